"""What a server has collected in a session, and the relays that it puts together from it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from fedopal_secure.core import messages
from fedopal_secure.core.codec import Message, decode, encode
from fedopal_secure.core.errors import MisuseError
from fedopal_secure.core.graph import Graph
from fedopal_secure.core.recovery import Shown
from fedopal_secure.core.tally import Tally


@dataclass(frozen=True)
class Dealt:
    """A dealer's messages as they came, since decoded they would take several times as much memory."""

    message: bytes
    holders: tuple[int, ...]
    ciphertexts: tuple[bytes, ...]

    def read(self) -> messages.ShareMessage:
        """The signed message, decoded."""
        return decode(messages.ShareMessage, self.message, MisuseError)


@dataclass
class Records:
    """What has been collected; it moves from state to state."""

    tally: Tally
    adverts: dict[bytes, messages.Advert] = field(default_factory=dict)
    keys: set[bytes] = field(default_factory=set)  # every public key advertised
    shares: dict[bytes, Dealt] = field(default_factory=dict)
    headers: dict[bytes, messages.UploadHeader] = field(default_factory=dict)
    payloads: dict[bytes, bytes] = field(default_factory=dict)  # of a census only
    attestations: dict[bytes, messages.Attestation] = field(default_factory=dict)
    revealed: set[bytes] = field(default_factory=set)
    shown: dict[bytes, list[Shown]] = field(default_factory=dict)  # by dealer
    roster: bytes = b""
    sharers: bytes = b""
    context: bytes = b""
    view: bytes = b""
    parent_survivors: tuple[bytes, ...] = ()
    identities: tuple[bytes, ...] = ()
    places: dict[bytes, int] = field(default_factory=dict)
    dealers: dict[bytes, list[bytes]] = field(default_factory=dict)  # by holder, in the order of identities
    graph: Graph = field(default_factory=lambda: Graph(0, 0, 0))

    def holders_of(self, dealer: bytes) -> list[bytes]:
        """Those that a dealer dealt to, in the order of their identities."""
        return [self.identities[position] for position in self.shares[dealer].holders]

    def lists(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Survivors, and the sharers that dropped out before their upload; each in the order of identities."""
        return tuple(sorted(self.headers)), tuple(sorted(self.shares.keys() - self.headers.keys()))


class _Passed(Message, frozen=True):
    message: msgspec.Raw
    ciphertext: bytes


class _Relay(Message, frozen=True, tag="relay"):
    session: bytes
    sharers: msgspec.Raw
    dealers: tuple[_Passed, ...]


class Relays(Mapping[bytes, bytes]):
    """The relay of every sharer, made when it is asked for.

    Its bytes are those of a messages.Relay. What was signed goes in as the bytes that it came in: to decode every
    message for each of its holders would be half of a server's work.
    """

    def __init__(self, session: bytes, records: Records, sharers: tuple[messages.Sharer, ...]) -> None:
        self._session, self._records = session, records
        self._identities = tuple(sharer.identity for sharer in sharers)
        self._sharers = msgspec.Raw(encode(sharers))

    def __getitem__(self, holder: bytes) -> bytes:
        r = self._records
        if holder not in r.shares:
            raise KeyError(holder)
        dealt = []
        for dealer in r.dealers[holder]:
            sent = r.shares[dealer]
            place = bisect_left(sent.holders, r.places[holder])
            dealt.append(_Passed(msgspec.Raw(sent.message), sent.ciphertexts[place]))
        return encode(_Relay(self._session, self._sharers, tuple(dealt)))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._identities)

    def __len__(self) -> int:
        return len(self._identities)
