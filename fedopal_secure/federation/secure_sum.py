"""The one interface of every way to sum vectors: masked pairwise, in plain, or encrypted with BFV or CKKS.

A protocol is a list of phases. In each the server has one request for each client, and a client answers it with bytes
or, where a phase only informs, with nothing. The vector enters in the phase `upload`, and the phases before it depend
on no data. In the phase `open` the request is for the key authority. Runtimes carry the bytes and need to know no more
than this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import BFV, BFV_MASKED, CKKS, SessionParams
from fedopal_secure.core.params import PROTOCOL as SECAGG
from fedopal_secure.core.policy import Policy
from fedopal_secure.core.server import Sum
from fedopal_secure.core.shamir import Entropy
from fedopal_secure.core.states import ParentView
from fedopal_secure.he.messages import PublicContext

PLAIN: Final = "plain/v1"
PROTOCOLS: Final = {"pairwise": SECAGG, "plain": PLAIN, "bfv": BFV, "ckks": CKKS}

UPLOAD: Final = "upload"
OPEN: Final = "open"
SILENT: Final = ("hold", "join")  # phases that only inform
_MASKING: Final = ("advertise", "share", "hold", UPLOAD, "attest", "reveal")
PHASES: Final = {
    SECAGG: _MASKING,
    PLAIN: ("join", UPLOAD),
    BFV: ("join", UPLOAD, OPEN),
    CKKS: ("join", UPLOAD, OPEN),
    BFV_MASKED: (*_MASKING, OPEN),
}

# Those whose requests everyone may see, and so a transcript has: relays carry sealed shares.
RECORDED: Final = {name: tuple(phase for phase in phases if phase != "hold") for name, phases in PHASES.items()}


def protocol_named(name: str, masked: bool) -> str:
    """The protocol that people call by a name of `PROTOCOLS`, with masks inside the encryption or without."""
    if name not in PROTOCOLS:
        raise InputError(f"there is no protocol {name!r}: take one of {', '.join(PROTOCOLS)}")
    if not masked:
        return PROTOCOLS[name]
    if name != "bfv":
        raise InputError(f"'masked' goes with protocol 'bfv' and not with {name!r}: leave it out, or take 'bfv'")
    return BFV_MASKED


@dataclass(frozen=True)
class Participant:
    """Who a client is and what it accepts; `public_context` is the key authority's, as this client has loaded it."""

    key: SigningKey
    certificate: bytes
    policy: Policy
    entropy: Entropy
    public_context: PublicContext | None = None


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
        """End the phase before and return the requests of this one, by who is to answer; `upload` takes the context."""
        ...

    def receive(self, sender: bytes, data: bytes) -> None:
        """Take an answer; raises ClientFault(sender), after which the session goes on without that answer."""
        ...

    def receive_public(self, sender: bytes, shown: bytes) -> None:
        """As `receive`, of what `transcript.public_part` shows of an answer; the session ends with the same sum."""
        ...

    def finish(self) -> Sum:
        """End the session with its sum."""
        ...
