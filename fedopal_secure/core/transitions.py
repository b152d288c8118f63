"""The one transition table: which event is allowed in which phase, and what phase follows.

A state is used once. A step marks it as used before it does anything else, so neither a retry, nor a copy of the
reference, nor a replayed message can make a client speak twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NoReturn

from fedopal_secure.core.errors import MisuseError


class Phase(StrEnum):
    """Where a party stands; a client's phases are above, the server's below."""

    ADVERTISED = "advertised"
    SHARED = "shared"
    READY = "ready"
    UPLOADED = "uploaded"
    ATTESTED = "attested"
    REVEALED = "revealed"

    ADVERTS = "collecting adverts"
    SHARES = "collecting shares"
    SET_UP = "set up"
    UPLOADS = "collecting uploads"
    ATTESTATIONS = "collecting attestations"
    REVEALS = "collecting reveals"
    SUMMED = "summed"


# phase -> event -> next phase
CLIENT: Final = {
    Phase.ADVERTISED: {"share": Phase.SHARED},
    Phase.SHARED: {"hold": Phase.READY},
    Phase.READY: {"upload": Phase.UPLOADED, "attest": Phase.ATTESTED},
    Phase.UPLOADED: {"attest": Phase.ATTESTED},
    Phase.ATTESTED: {"reveal": Phase.REVEALED},
    Phase.REVEALED: {},
}

SERVER: Final = {
    Phase.ADVERTS: {"receive": Phase.ADVERTS, "close": Phase.SHARES},
    Phase.SHARES: {"receive": Phase.SHARES, "close": Phase.SET_UP},
    Phase.SET_UP: {"open": Phase.UPLOADS},
    Phase.UPLOADS: {"receive": Phase.UPLOADS, "close": Phase.ATTESTATIONS},
    Phase.ATTESTATIONS: {"receive": Phase.ATTESTATIONS, "close": Phase.REVEALS},
    Phase.REVEALS: {"receive": Phase.REVEALS, "finish": Phase.SUMMED},
    Phase.SUMMED: {},
}

_TABLE: Final = CLIENT | SERVER


@dataclass(repr=False, eq=False)
class State:
    """Base of every state: a phase, and whether the state has been used."""

    phase: Phase
    used: bool = field(default=False, init=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.phase}{', used' if self.used else ''})"

    def __reduce__(self) -> NoReturn:
        raise MisuseError("a protocol state is never pickled or copied")


def follow(state: State, event: str) -> Phase:
    """The phase that an event leads to; raises MisuseError if the state was used or the event is out of order."""
    if state.used:
        raise MisuseError(f"this state has been used; '{event}' takes the state that the last step returned")
    following = _TABLE[state.phase].get(event)
    if following is None:
        allowed = ", ".join(f"'{name}'" for name in _TABLE[state.phase]) or "nothing"
        raise MisuseError(f"'{event}' cannot follow while {state.phase}; allowed: {allowed}")
    return following


def use(state: State, event: str) -> Phase:
    """`follow`, and mark the state as used."""
    following = follow(state, event)
    state.used = True
    return following
