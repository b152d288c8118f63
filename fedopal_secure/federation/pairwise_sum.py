"""secagg/v1 behind the common interface: the server learns the sum of masked vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core import client as secagg_client
from fedopal_secure.core import server as secagg_server
from fedopal_secure.core import states
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import MisuseError, ServerFault
from fedopal_secure.core.messages import Context, Proposal
from fedopal_secure.core.params import PROTOCOL as SECAGG
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.server import Sum
from fedopal_secure.core.states import ParentView
from fedopal_secure.core.tally import Tally
from fedopal_secure.federation.secure_sum import UPLOAD, Participant


class PairwiseClient:
    """secagg/v1: the core's steps behind the common interface."""

    def __init__(self, participant: Participant, protocol: str = SECAGG) -> None:
        self._me, self._protocol = participant, protocol
        self._state: states.ClientState | None = None
        self._begun: tuple[bytes, ParentView | None] | None = None
        self.view: ParentView | None = None

    def answer(self, phase: str, request: bytes) -> bytes:
        """See `SumClient.answer`."""
        me, state, answer = self._me, self._state, b""
        match phase, state:
            case "advertise", None:
                self._state, answer = secagg_client.advertise(
                    request, me.policy, me.key, me.certificate, me.entropy, self._protocol
                )
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
        return self._upload(vector)

    def _upload(self, vector: NDArray[np.uint64], pack: Callable[[NDArray[np.uint64]], bytes] | None = None) -> bytes:
        if not isinstance(self._state, states.Holding) or self._begun is None:
            raise MisuseError("`upload` comes after `begin_upload`")
        self._state, answer = secagg_client.upload(self._state, vector, *self._begun, pack)
        return answer

    def close(self) -> None:
        """See `SumClient.close`."""
        if self._state is not None:
            states.abandon(self._state)


class PairwiseServer:
    """secagg/v1: the core's streaming server behind the common interface."""

    def __init__(
        self,
        proposal: Proposal,
        members: Membership,
        invited: tuple[bytes, ...],
        tally: Tally | None = None,
    ) -> None:
        self.params, self._proposal = proposal.params, encode(proposal)
        self._state = secagg_server.begin(proposal, members, tally)
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

    def receive_public(self, sender: bytes, shown: bytes) -> None:
        """See `SumServer.receive_public`."""
        self._state = secagg_server.receive_public(self._state, sender, shown)

    def finish(self) -> Sum:
        """See `SumServer.finish`."""
        return secagg_server.finish(self._state)
