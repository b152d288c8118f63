"""plain/v1: vectors travel in the clear, for comparison, and for a server that may see everything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core import messages
from fedopal_secure.core.codec import Bytes32, Message, decode, encode
from fedopal_secure.core.errors import ClientFault, MisuseError, ServerFault, SessionAborted
from fedopal_secure.core.messages import Context, Proposal
from fedopal_secure.core.params import SessionParams, check_params, session_id
from fedopal_secure.core.ring import Ring, from_wire, reduce_to_width, to_wire
from fedopal_secure.core.server import Sum
from fedopal_secure.core.states import ParentView
from fedopal_secure.federation.secure_sum import PLAIN, Participant


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

    def __init__(self, proposal: Proposal, invited: tuple[bytes, ...]) -> None:
        params = proposal.params
        check_params(params, PLAIN)
        self.params, self.session, self._proposal = params, session_id(params), encode(proposal)
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
        if len(self._survivors) == self.params.clients:
            raise ClientFault(sender, "came after the roster was full")
        if sender in self._survivors or len(upload.payload) != self.params.upload_bytes:
            raise ClientFault(sender, "uploaded twice, or an upload of the wrong length")
        Ring(self.params.modulus).add_into(self._total, from_wire(upload.payload, self.params.segments))
        self._survivors.add(sender)

    def receive_public(self, sender: bytes, shown: bytes) -> None:
        """See `SumServer.receive_public`; all of an answer is shown."""
        self.receive(sender, shown)

    def finish(self) -> Sum:
        """See `SumServer.finish`."""
        if len(self._survivors) < self.params.min_survivors:
            detail = f"{len(self._survivors)} uploaded, and it takes {self.params.min_survivors}"
            raise SessionAborted("min_survivors", detail)
        survivors = tuple(sorted(self._survivors))
        dropped = tuple(sorted(set(self._invited) - self._survivors))
        total = reduce_to_width(self._total, self.params.segments)
        return Sum(self.session, total, survivors, dropped, 0, b"", ())
