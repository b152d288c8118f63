"""The one interface of every way to sum vectors: `pairwise` masking (secagg/v1), and `plain`, which hides nothing.

A protocol is a list of phases. In each the server has one request for each client, and a client answers it with bytes
or, where a phase only informs, with nothing. The vector enters in the phase `upload`, and the phases before it depend
on no data. Runtimes carry the bytes and need to know no more than this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core import checks, messages, states
from fedopal_secure.core import client as secagg_client
from fedopal_secure.core import server as secagg_server
from fedopal_secure.core.codec import Bytes32, Message, decode, encode
from fedopal_secure.core.errors import ClientFault, MisuseError, ServerFault, SessionAborted
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import PROTOCOL as SECAGG
from fedopal_secure.core.params import SessionParams, check_params, session_id
from fedopal_secure.core.policy import Membership, Policy, check_proposal
from fedopal_secure.core.ring import Ring, from_wire, reduce_to_width, to_wire
from fedopal_secure.core.server import Sum
from fedopal_secure.core.shamir import Entropy
from fedopal_secure.core.states import ParentView

PLAIN: Final = "plain/v1"
PROTOCOLS: Final = {"pairwise": SECAGG, "plain": PLAIN}

UPLOAD: Final = "upload"
PHASES: Final = {
    SECAGG: ("advertise", "share", "hold", UPLOAD, "attest", "reveal"),
    PLAIN: ("join", UPLOAD),
}


@dataclass(frozen=True)
class Participant:
    """Who a client is and what it accepts."""

    key: SigningKey
    certificate: bytes
    policy: Policy
    entropy: Entropy


class SumClient(Protocol):
    """A client's side of one session."""

    view: ParentView | None

    def answer(self, phase: str, request: bytes) -> bytes:
        """Answer the request of any phase but `upload`; empty where the phase only informs."""
        ...

    def begin_upload(self, context: bytes, parent: ParentView | None) -> None:
        """Check the request of `upload`, before anything is computed for it; raises ServerFault."""
        ...

    def upload(self, vector: NDArray[np.uint64]) -> bytes:
        """Answer the request of `upload` that was begun."""
        ...

    def close(self) -> None:
        """Leave the session and erase its secrets; may be called at any time, and twice."""
        ...


class SumServer(Protocol):
    """The server's side of one session."""

    params: SessionParams
    session: bytes

    def request(self, phase: str, context: Context | None = None) -> Mapping[bytes, bytes]:
        """End the phase before and return the requests of this one; `upload` takes the context."""
        ...

    def receive(self, sender: bytes, data: bytes) -> None:
        """Take a client's answer; raises ClientFault, after which the session goes on without that answer."""
        ...

    def finish(self) -> Sum:
        """End the session with its sum."""
        ...


def open_client(proposal: bytes, participant: Participant) -> tuple[SumClient, SessionParams]:
    """The client's side of whatever protocol the proposal names; raises PolicyRefusal for one it does not accept."""
    signed = decode(messages.Proposal, proposal, ServerFault)
    checks.proposal_is_signed(signed)
    params = signed.params
    if params.protocol == PLAIN:
        check_proposal(participant.policy, params, PLAIN)
        return PlainClient(params, participant), params
    check_proposal(participant.policy, params)
    return PairwiseClient(participant), params


def open_server(params: SessionParams, members: Membership, invited: tuple[bytes, ...], key: SigningKey) -> SumServer:
    """The server's side of the protocol that the parameters name; raises PolicyRefusal for unsound parameters."""
    if params.protocol == PLAIN:
        return PlainServer(params, invited, key)
    return PairwiseServer(params, members, invited, key)


class PairwiseClient:
    """secagg/v1: the core's steps behind the common interface."""

    def __init__(self, participant: Participant) -> None:
        self._me = participant
        self._state: states.ClientState | None = None
        self._begun: tuple[bytes, ParentView | None] | None = None
        self.view: ParentView | None = None

    def answer(self, phase: str, request: bytes) -> bytes:
        """See `SumClient.answer`."""
        me, state, answer = self._me, self._state, b""
        match phase, state:
            case "advertise", None:
                self._state, answer = secagg_client.advertise(request, me.policy, me.key, me.certificate, me.entropy)
            case "share", states.Advertised():
                self._state, answer = secagg_client.share(state, request, me.entropy)
            case "hold", states.Shared():
                self._state = secagg_client.hold(state, request)
            case "attest", states.Holding() if self._begun is not None:
                # A client whose upload came to nothing still owes the context that it was given.
                begun = self._begun if state.header is None else (None, None)
                self._state, answer = secagg_client.attest(state, request, *begun)
            case "reveal", states.Attested():
                revealed, answer = secagg_client.reveal(state, request)
                self._state, self.view = revealed, revealed.view
            case _:
                raise ServerFault(f"the server asks for '{phase}' out of order")
        return answer

    def begin_upload(self, context: bytes, parent: ParentView | None) -> None:
        """See `SumClient.begin_upload`."""
        if not isinstance(self._state, states.Holding) or self._begun is not None:
            raise ServerFault("the server asks for 'upload' out of order")
        secagg_client.check_context(self._state, context, parent)
        self._begun = (context, parent)

    def upload(self, vector: NDArray[np.uint64]) -> bytes:
        """See `SumClient.upload`."""
        if not isinstance(self._state, states.Holding) or self._begun is None:
            raise MisuseError("`upload` comes after `begin_upload`")
        self._state, answer = secagg_client.upload(self._state, vector, *self._begun)
        return answer

    def close(self) -> None:
        """See `SumClient.close`."""
        if self._state is not None:
            states.abandon(self._state)


class PairwiseServer:
    """secagg/v1: the core's streaming server behind the common interface."""

    def __init__(self, params: SessionParams, members: Membership, invited: tuple[bytes, ...], key: SigningKey) -> None:
        self.params = params
        self._state, self._proposal = secagg_server.start(params, members, key)
        self.session = self._state.session
        self._invited = invited

    def request(self, phase: str, context: Context | None = None) -> Mapping[bytes, bytes]:
        """See `SumServer.request`."""
        if phase == "advertise":
            return dict.fromkeys(self._invited, self._proposal)
        if phase == UPLOAD:
            if context is None:
                raise MisuseError("uploads need a context")
            self._state, request = secagg_server.open_uploads(self._state, context)
            return dict.fromkeys(self._state.sharers, request)
        self._state, requests = secagg_server.close(self._state)
        return requests

    def receive(self, sender: bytes, data: bytes) -> None:
        """See `SumServer.receive`."""
        self._state = secagg_server.receive(self._state, sender, data)

    def finish(self) -> Sum:
        """See `SumServer.finish`."""
        return secagg_server.finish(self._state)


class PlainUpload(Message, frozen=True, tag="plain-upload"):
    """A vector in the clear."""

    session: Bytes32
    sender: Bytes32
    context: Bytes32
    payload: bytes


class PlainClient:
    """Uploads its vector as it is: for comparison, and for a server that may see everything."""

    def __init__(self, params: SessionParams, participant: Participant) -> None:
        self._params, self._me = params, participant
        self._context = b""
        self.view: ParentView | None = None

    def answer(self, phase: str, request: bytes) -> bytes:
        """See `SumClient.answer`; there is nothing to say before the upload."""
        return b""

    def begin_upload(self, context: bytes, parent: ParentView | None) -> None:
        """See `SumClient.begin_upload`."""
        accepted = decode(Context, context, ServerFault)
        if (accepted.session, accepted.parent) != (session_id(self._params), self._params.parent):
            raise ServerFault("the context is of another session")
        self._context = messages.context_hash(accepted)

    def upload(self, vector: NDArray[np.uint64]) -> bytes:
        """See `SumClient.upload`. The view is empty: no one attests to who survived."""
        session = session_id(self._params)
        self.view = ParentView(session, b"", ())
        payload = to_wire(vector, self._params.segments)
        return encode(PlainUpload(session, self._me.key.identity, self._context, payload))

    def close(self) -> None:
        """See `SumClient.close`; there are no secrets."""


class PlainServer:
    """Adds what it is sent, and sees all of it."""

    def __init__(self, params: SessionParams, invited: tuple[bytes, ...], key: SigningKey) -> None:
        check_params(params, PLAIN)
        self._proposal = encode(messages.sign(key, messages.Proposal(params)))
        self.params, self.session = params, session_id(params)
        self._invited = invited
        self._context = b""
        self._total = np.zeros(params.length, dtype=np.uint64)
        self._survivors: set[bytes] = set()

    def request(self, phase: str, context: Context | None = None) -> dict[bytes, bytes]:
        """See `SumServer.request`."""
        if phase == "join":
            return dict.fromkeys(self._invited, self._proposal)
        if context is None:
            raise MisuseError("uploads need a context")
        self._context = messages.context_hash(context)
        return dict.fromkeys(self._invited, encode(context))

    def receive(self, sender: bytes, data: bytes) -> None:
        """See `SumServer.receive`."""
        upload = decode(PlainUpload, data, lambda reason: ClientFault(sender, reason))
        if (upload.sender, upload.session, upload.context) != (sender, self.session, self._context):
            raise ClientFault(sender, "uploaded for another identity, session or context")
        if sender in self._survivors or len(upload.payload) != self.params.upload_bytes:
            raise ClientFault(sender, "uploaded twice, or an upload of the wrong length")
        Ring(self.params.modulus).add_into(self._total, from_wire(upload.payload, self.params.segments))
        self._survivors.add(sender)

    def finish(self) -> Sum:
        """See `SumServer.finish`."""
        if len(self._survivors) < self.params.min_survivors:
            detail = f"{len(self._survivors)} uploaded, and it takes {self.params.min_survivors}"
            raise SessionAborted("min_survivors", detail)
        survivors = tuple(sorted(self._survivors))
        dropped = tuple(sorted(set(self._invited) - self._survivors))
        total = reduce_to_width(self._total, self.params.segments)
        return Sum(self.session, total, survivors, dropped, 0, b"", ())
