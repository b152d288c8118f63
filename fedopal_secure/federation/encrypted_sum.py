"""bfv/v1, bfv-masked/v1 and ckks/v1: uploads are encrypted, and a key authority opens their sum and nothing else.

Without masks a client says one thing, its upload. With masks it takes part in secagg/v1, whose payload is encrypted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from fedopal_secure.core import messages
from fedopal_secure.core import server as secagg_server
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import ClientFault, MisuseError, PolicyRefusal, SessionAborted
from fedopal_secure.core.messages import Context, Proposal, UploadHeader
from fedopal_secure.core.params import SessionParams, check_params, session_id
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.ring import U64, reduce_to_width
from fedopal_secure.core.server import Sum
from fedopal_secure.core.states import ParentView
from fedopal_secure.federation.pairwise_sum import PairwiseClient, PairwiseServer
from fedopal_secure.federation.plain_sum import PlainClient
from fedopal_secure.federation.secure_sum import OPEN, Participant
from fedopal_secure.he.context import EncryptedTally, check_session, encrypt
from fedopal_secure.he.messages import (
    NO_HASH,
    EncryptedUpload,
    OpenedTotal,
    OpenRequest,
    PublicContext,
    SignedUpload,
    is_signed,
    total_hash,
)
from fedopal_secure.he.packing import centred, to_ring


def own_context(params: SessionParams, participant: Participant) -> PublicContext:
    """The public context that this client has loaded, if it is the session's; raises PolicyRefusal.

    The policy pins its hash, so nothing that the server sends plays a part.
    """
    if participant.public_context is None:
        raise PolicyRefusal("public_context", "this client has loaded no public context")
    check_session(params, participant.public_context)
    return participant.public_context


class EncryptedClient(PlainClient):
    """Uploads its vector encrypted, and says nothing else."""

    def __init__(self, params: SessionParams, participant: Participant, public_context: PublicContext) -> None:
        super().__init__(params, participant)
        self._public_context = public_context

    def upload(self, vector: U64) -> bytes:
        """See `SumClient.upload`. The view is empty: no one attests to who survived."""
        session, me = session_id(self._params), self._me
        self.view = ParentView(session, b"", ())
        payload = encrypt(self._params, self._public_context, vector)
        header = messages.sign(
            me.key,
            UploadHeader(session, me.key.identity, NO_HASH, NO_HASH, self._context, messages.payload_hash(payload)),
        )
        return encode(EncryptedUpload(SignedUpload(header, me.certificate), payload))


class MaskedEncryptedClient(PairwiseClient):
    """secagg/v1 modulo the plain modulus, with the masked vector encrypted on its way to the server."""

    def __init__(self, params: SessionParams, participant: Participant, public_context: PublicContext) -> None:
        super().__init__(participant, params.protocol)
        self._params, self._public_context = params, public_context

    def upload(self, vector: U64) -> bytes:
        """See `SumClient.upload`."""
        masked = to_ring(vector, self._params.modulus)
        return self._upload(masked, partial(encrypt, self._params, self._public_context))


class _Total:
    """The encrypted total of a session: summed, sent to the key authority, and taken back opened."""

    def __init__(self, proposal: Proposal, public_context: PublicContext) -> None:
        self._proposal = proposal
        self._authority, self.asked = public_context.authority, b""
        self.tally = EncryptedTally(proposal.params, public_context)

    def request(self, uploads: tuple[SignedUpload, ...]) -> dict[bytes, bytes]:
        """The one request to the authority."""
        total = self.tally.ciphertexts()
        self.asked = total_hash(total)
        return {self._authority: encode(OpenRequest(self._proposal, uploads, total))}

    def receive(self, sender: bytes, data: bytes) -> None:
        """Take the authority's answer."""
        opened = decode(OpenedTotal, data, lambda reason: ClientFault(sender, reason))
        session = session_id(self._proposal.params)
        told = (sender, opened.authority, opened.session, opened.total)
        if told != (self._authority, self._authority, session, self.asked) or self.tally.is_open:
            raise ClientFault(sender, "opened another total than it was asked for, or a second time")
        if not is_signed(opened):
            raise ClientFault(sender, "sent a total that it did not sign")
        try:
            self.tally.open(opened.vector)
        except ValueError as error:
            raise ClientFault(sender, f"sent {error}") from None

    def require_open(self) -> None:
        """Raise SessionAborted unless the total is opened."""
        if not self.tally.is_open:
            raise SessionAborted(OPEN, "the key authority has not opened the total")


class EncryptedServer:
    """Adds ciphertexts as they arrive, and has their sum opened."""

    def __init__(
        self,
        proposal: Proposal,
        members: Membership,
        invited: tuple[bytes, ...],
        public_context: PublicContext,
    ) -> None:
        params = proposal.params
        check_params(params, params.protocol)
        check_session(params, public_context)
        self.params, self.session, self._proposal = params, session_id(params), encode(proposal)
        self._members, self._invited = members, invited
        self._context = b""
        self._total = _Total(proposal, public_context)
        self._uploads: dict[bytes, SignedUpload] = {}
        self._asked = False

    def request(self, phase: str, context: Context | None = None) -> dict[bytes, bytes]:
        """See `SumServer.request`."""
        if phase == "join":
            return dict.fromkeys(self._invited, self._proposal)
        if phase == OPEN:
            self._check_cohort()
            self._asked = True
            return self._total.request(tuple(self._uploads[identity] for identity in sorted(self._uploads)))
        if context is None:
            raise MisuseError("uploads need a context")
        self._context = messages.context_hash(context)
        return dict.fromkeys(self._invited, encode(context))

    def receive(self, sender: bytes, data: bytes) -> None:
        """See `SumServer.receive`."""
        if self._asked:
            self._total.receive(sender, data)
            return
        upload = decode(EncryptedUpload, data, lambda reason: ClientFault(sender, reason))
        self._take(sender, upload.signed, upload.payload)

    def receive_public(self, sender: bytes, shown: bytes) -> None:
        """See `SumServer.receive_public`."""
        if self._asked:
            self._total.receive(sender, shown)
        else:
            self._take(sender, decode(SignedUpload, shown, lambda reason: ClientFault(sender, reason)), None)

    def believe_total(self, asked: bytes) -> None:
        """Take the hash of the total from a transcript, in which there are no ciphertexts to add."""
        self._total.asked = asked

    def _take(self, sender: bytes, signed: SignedUpload, payload: bytes | None) -> None:
        header = signed.header
        expected = (sender, self.session, NO_HASH, NO_HASH, self._context)
        if (header.sender, header.session, header.roster, header.sharers, header.context) != expected:
            raise ClientFault(sender, "uploaded for another identity, session or context")
        if sender in self._uploads:
            raise ClientFault(sender, "uploaded twice")
        if len(self._uploads) == self.params.clients:
            raise ClientFault(sender, "came after the roster was full")
        if not self._members.admits(sender, signed.certificate):
            raise ClientFault(sender, "is not a member")
        if not messages.is_signed(header):
            raise ClientFault(sender, "sent an upload that it did not sign")
        if payload is not None:
            if messages.payload_hash(payload) != header.payload_hash:
                raise ClientFault(sender, "sent an upload that it did not sign")
            try:
                self._total.tally.add(payload)
            except ValueError as error:
                raise ClientFault(sender, f"sent {error}") from None
        self._uploads[sender] = signed

    def finish(self) -> Sum:
        """See `SumServer.finish`."""
        self._check_cohort()
        self._total.require_open()
        survivors = tuple(sorted(self._uploads))
        dropped = tuple(sorted(set(self._invited) - set(survivors)))
        return Sum(self.session, self._total.tally.total(), survivors, dropped, 0, b"", ())

    def _check_cohort(self) -> None:
        if len(self._uploads) < self.params.min_survivors:
            detail = f"{len(self._uploads)} uploaded, and it takes {self.params.min_survivors}"
            raise SessionAborted("min_survivors", detail)


class MaskedEncryptedServer(PairwiseServer):
    """The server of secagg/v1, which never sees a masked vector: only the sum of them, once it is opened."""

    def __init__(
        self,
        proposal: Proposal,
        members: Membership,
        invited: tuple[bytes, ...],
        public_context: PublicContext,
    ) -> None:
        check_session(proposal.params, public_context)
        self._total = _Total(proposal, public_context)
        self._asked = False
        super().__init__(proposal, members, invited, self._total.tally)

    def request(self, phase: str, context: Context | None = None) -> Mapping[bytes, bytes]:
        """See `SumServer.request`."""
        if phase != OPEN:
            return super().request(phase, context)
        self._asked = True
        uploads = secagg_server.signed_uploads(self._state)
        return self._total.request(tuple(SignedUpload(header, certificate) for header, certificate in uploads))

    def receive(self, sender: bytes, data: bytes) -> None:
        """See `SumServer.receive`."""
        if self._asked:
            self._total.receive(sender, data)
        else:
            super().receive(sender, data)

    def receive_public(self, sender: bytes, shown: bytes) -> None:
        """See `SumServer.receive_public`."""
        if self._asked:
            self._total.receive(sender, shown)
        else:
            super().receive_public(sender, shown)

    def believe_total(self, asked: bytes) -> None:
        """Take the hash of the total from a transcript, in which there are no ciphertexts to add."""
        self._total.asked = asked

    def finish(self) -> Sum:
        """See `SumServer.finish`."""
        self._total.require_open()
        result = super().finish()
        total = reduce_to_width(centred(result.total, self.params.modulus), self.params.segments)
        return dataclasses.replace(result, total=total)
