"""What a client knows and holds between two steps of secagg/v1, and the secrets that end with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from fedopal_secure.core import messages
from fedopal_secure.core.census import Census, Witness
from fedopal_secure.core.graph import Graph
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Advert, Context, ShareMessage, UploadHeader
from fedopal_secure.core.params import SessionParams
from fedopal_secure.core.policy import Policy
from fedopal_secure.core.secret import Secret
from fedopal_secure.core.transitions import State


@dataclass(frozen=True)
class Setup:
    """What a client fixes before the session starts."""

    params: SessionParams
    session: bytes
    policy: Policy
    key: SigningKey


@dataclass(frozen=True)
class Room:
    """The roster, as this client has checked it."""

    roster: messages.Roster
    hash: bytes
    identities: tuple[bytes, ...]
    position: int
    graph: Graph


@dataclass(frozen=True)
class ParentView:
    """What a client itself attested, with a quorum, in the session that this one continues.

    `witness` is set if that session was a census; `census` is what a census earlier in the chain found.
    """

    session: bytes
    view: bytes
    survivors: tuple[bytes, ...]
    witness: Witness | None = None
    census: Census | None = None


@dataclass(frozen=True)
class Held:
    """One dealer's shares for this holder."""

    key_share: Secret
    seed_share: Secret


@dataclass(repr=False, eq=False)
class ClientState(State):
    """Base of a client's states."""

    setup: Setup

    def secrets(self) -> Iterator[Secret]:
        """Every session secret that the state holds."""
        for entry in fields(self):
            yield from _secrets_in(getattr(self, entry.name))


@dataclass(repr=False, eq=False)
class Advertised(ClientState):
    """Two key pairs and a self-mask seed are made, and the public keys sent."""

    mask_secret: Secret
    seal_secret: Secret
    seed: Secret
    advert: Advert


@dataclass(repr=False, eq=False)
class Shared(ClientState):
    """The roster is accepted and shares are dealt; `agreed` are the sealing secrets, by holder."""

    mask_secret: Secret
    seal_secret: Secret
    seed: Secret
    room: Room
    own: ShareMessage
    own_held: Held
    holders: tuple[bytes, ...]
    agreed: dict[bytes, Secret]


@dataclass(repr=False, eq=False)
class Holding(ClientState):
    """The sharers are known, and the shares of those who dealt to this client held; after the upload, `header` is set.

    `peers` are those that this client masks with. `dealt` are the messages of those who dealt to it, and `held` their
    shares, None where a dealer's ciphertext did not open or match (a dispute).
    """

    mask_secret: Secret
    seed: Secret
    room: Room
    sharers: tuple[bytes, ...]
    sharers_hash: bytes
    peers: tuple[bytes, ...]
    dealt: dict[bytes, ShareMessage]
    held: dict[bytes, Held | None]
    context: Context | None = None
    census: Census | None = None
    header: UploadHeader | None = None

    @property
    def disputes(self) -> tuple[bytes, ...]:
        """Dealers whose shares this client could not use."""
        return tuple(dealer for dealer, held in self.held.items() if held is None)


@dataclass(repr=False, eq=False)
class Attested(ClientState):
    """One view is signed; only other clients' shares are still needed."""

    room: Room
    sharers: tuple[bytes, ...]
    held: dict[bytes, Held | None]
    view: ParentView


@dataclass(repr=False, eq=False)
class Revealed(ClientState):
    """All is said and every secret erased; `view` is how a later session refers to this one."""

    view: ParentView


def _secrets_in(value: object) -> Iterator[Secret]:
    match value:
        case Secret():
            yield value
        case Held(key_share, seed_share):
            yield from (key_share, seed_share)
        case dict():
            for entry in value.values():
                yield from _secrets_in(entry)


def abandon(state: ClientState) -> None:
    """End a session early: the state is used up and its secrets are erased."""
    state.used = True
    for secret in state.secrets():
        secret.erase()
