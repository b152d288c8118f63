"""A federation as an untidy network sees it: requests and answers lie around, and anything may happen next.

`World` holds a server, its clients and every message that is on its way. An event delivers one message, loses a client,
or ends a phase. What must hold whatever happens is checked after every event (`check`): both the exhaustive walk and
the random machine only choose which event comes next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import numpy as np

from fedopal_secure.core import server
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import ClientFault, MisuseError, ProtocolError
from fedopal_secure.core.messages import Attestation, Context, Reveal, RevealRequest
from fedopal_secure.core.secret import Secret
from fedopal_secure.core.server import ServerState, Sum
from fedopal_secure.core.tally import WireTally
from fedopal_secure.core.transitions import Phase
from tests.core.harness import Federation, Member, fork, read

# What a client is asked for while the server collects something.
STEPS: Mapping[Phase, str] = {
    Phase.ADVERTS: "advertise",
    Phase.SHARES: "share",
    Phase.UPLOADS: "upload",
    Phase.ATTESTATIONS: "attest",
    Phase.REVEALS: "reveal",
}


class World:
    """One moment of a session, with everything that is on its way.

    `patient` says that no phase was ended while somebody who is still there had not been heard.
    """

    def __init__(self, federation: Federation, *, forks: bool = False) -> None:
        """With `forks` an event leaves the states of other worlds alone; without, states are used up as in life."""
        self.federation, self.forks = federation, forks
        vectors = federation.vectors()
        self.members: dict[bytes, SteadyMember] = {
            key.identity: SteadyMember(federation, key, vectors[key.identity]) for key in federation.keys
        }
        self.state: ServerState
        self.state, proposal = server.start(federation.params, federation.members, federation.host)
        self.step = "advertise"
        self.opened = b""
        self.relays: dict[bytes, bytes] = {}
        self.asked: dict[bytes, bytes] = dict.fromkeys(federation.ids, proposal)
        self.answers: dict[tuple[bytes, str], bytes] = {}
        self.heard: dict[str, set[bytes]] = {}
        self.gone: frozenset[bytes] = frozenset()
        self.refused: frozenset[bytes] = frozenset()
        self.signed: dict[bytes, bytes] = {}
        self.revealed: dict[bytes, tuple[frozenset[bytes], frozenset[bytes]]] = {}
        self.sum: Sum | None = None
        self.error: ProtocolError | None = None
        self.patient = True

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Everyone, in order."""
        return self.federation.ids

    @property
    def over(self) -> bool:
        """Whether the session has ended, one way or the other."""
        return self.sum is not None or self.error is not None

    def fork(self) -> World:
        """A copy that goes its own way. States are copied when an event is about to use them up, and not before."""
        copy = object.__new__(World)
        copy.__dict__.update(self.__dict__)
        for name in ("members", "asked", "answers", "signed", "revealed"):
            setattr(copy, name, dict(getattr(self, name)))
        copy.heard = {step: set(who) for step, who in self.heard.items()}
        return copy

    def _own(self, client: bytes) -> SteadyMember:
        if self.forks:
            self.members[client] = self.members[client].twin()
        return self.members[client]

    def _own_server(self) -> ServerState:
        return fork(self.state) if self.forks else self.state

    # Events.

    def waiting(self) -> Iterator[bytes]:
        """Clients that are there and have not answered the request of this phase."""
        yield from (client for client in self.asked if client not in self.gone | self.refused)

    def deliver_request(self, client: bytes) -> None:
        """A client gets the request of this phase, and its answer is on its way; or it refuses and leaves."""
        data, member = self.asked.pop(client), self._own(client)
        try:
            if self.step == "upload":
                member.hold(data)
                answer = member.upload(self.opened)
            elif self.step == "attest":
                if member.state.phase == Phase.SHARED:  # the relay comes now: too late to upload, in time to help
                    member.hold(self.relays[client])
                answer = member.attest(data, self.opened)
            else:
                answer = getattr(member, self.step)(data)
        except ProtocolError:
            self.refused |= {client}
            return
        self.note(client, data, answer)
        self.answers[client, self.step] = answer

    def note(self, client: bytes, request: bytes, answer: bytes) -> None:
        """Write down what a client has committed itself to, and that it did so once."""
        if self.step == "attest":
            assert client not in self.signed, "a client signed two views"
            self.signed[client] = read(Attestation, answer).view
        if self.step == "reveal":
            assert client not in self.revealed, "a client revealed twice"
            asked, reveal = read(RevealRequest, request), read(Reveal, answer)
            dealers = self.members[client].states[-2].held
            survivors, dropped = ([n for n in names if n in dealers] for names in (asked.survivors, asked.dropped))
            seeds = {name for name, share in zip(survivors, reveal.seed_shares, strict=True) if share}
            keys = {name for name, share in zip(dropped, reveal.key_shares, strict=True) if share}
            self.revealed[client] = (frozenset(seeds), frozenset(keys))

    def deliver_answer(self, client: bytes, step: str, data: bytes | None = None) -> bool:
        """An answer reaches the server, perhaps late, twice or changed; returns whether it was taken."""
        sent = self.answers.pop((client, step)) if data is None else data
        mine = self._own_server()
        try:
            self.state = server.receive(mine, client, sent)
        except (ClientFault, MisuseError):
            return False
        self.heard.setdefault(step, set()).add(client)
        return True

    def drop(self, client: bytes) -> None:
        """A client is gone for good; what it has sent is still on its way."""
        self.gone |= {client}

    def close(self) -> None:
        """The server ends the phase with what it has."""
        unheard = set(self.waiting()) | {client for client, step in self.answers if step == self.step}
        self.patient &= not unheard
        mine = self._own_server()
        try:
            if self.state.phase == Phase.REVEALS:
                self.sum = server.finish(mine)
            else:
                self.state, replies = server.close(mine)
                if self.state.phase == Phase.SET_UP:
                    context = Context(self.state.session, b"", b"", (), b"")
                    self.state, self.opened = server.open_uploads(self.state, context)
                    self.relays = dict(replies)
                self.asked = dict(replies)
                self.step = STEPS[self.state.phase]
        except ProtocolError as error:
            self.error = error

    # What must hold.

    def check(self) -> None:
        """The invariants, after any event."""
        for seeds, keys in self.revealed.values():
            assert not seeds & keys, "a client released both kinds of share for one peer"
        seeds = {peer for released, _ in self.revealed.values() for peer in released}
        keys = {peer for _, released in self.revealed.values() for peer in released}
        assert not seeds & keys, "honest clients released both kinds of share for one peer"
        if self.sum is not None:
            survivors = self.sum.survivors
            assert np.array_equal(self.sum.total, self.plain_sum(survivors)), "the sum is not the plain sum"
            assert len(survivors) >= self.federation.params.min_survivors
            assert set(survivors) == self.heard["upload"]

    def plain_sum(self, survivors: tuple[bytes, ...]) -> Any:
        """The sum over the survivors, in Python integers."""
        params = self.federation.params
        moduli = [params.modulus or 2 ** (8 * part.width) for part in params.segments for _ in range(part.length)]
        totals = [sum(int(self.members[i].vector[k]) for i in survivors) for k in range(params.length)]
        return np.array([total % modulus for total, modulus in zip(totals, moduli, strict=True)], dtype=np.uint64)

    def fingerprint(self) -> bytes:
        """A hash of all that can matter from here on: two worlds with the same one have the same future.

        Of the order in which the server heard its clients nothing is left out but the order of entries in mappings and
        of the shares shown for one dealer, which the server uses sorted, or in sums that do not depend on it.
        """
        parts = (
            self.step,
            [(identity, member.content()) for identity, member in self.members.items()],
            _content(self.state),
            sorted(self.asked.items()),
            sorted(self.answers.items()),
            sorted((step, sorted(who)) for step, who in self.heard.items()),
            (sorted(self.gone), sorted(self.refused), sorted(self.signed.items()), self.patient),
            sorted((who, sorted(seeds), sorted(keys)) for who, (seeds, keys) in self.revealed.items()),
            None if self.sum is None else self.sum.total.tobytes(),
            str(self.error),
        )
        return hashlib.sha256(repr(parts).encode()).digest()


class SteadyMember(Member):
    """A member that draws the same entropy in a step whatever happened before, and that can be copied."""

    _content: str | None = None

    def advertise(self, proposal: bytes) -> bytes:
        self.entropy = self.federation.entropy("advertise", self.identity)
        return super().advertise(proposal)

    def share(self, roster: bytes) -> bytes:
        self.entropy = self.federation.entropy("share", self.identity)
        return super().share(roster)

    def twin(self) -> SteadyMember:
        """A copy whose state can be used up without using up this one's."""
        copy = type(self)(self.federation, self.key, self.vector, self.parent)
        copy.states = [fork(self.states[-1])] if self.states else []
        return copy

    def content(self) -> str:
        """What its state holds, as text; the state of a twin does not change once its step is taken."""
        if self._content is None:
            self._content = repr(_content(self.states[-1]) if self.states else None)
        return self._content


def _content(value: Any) -> Any:
    """A value as nested tuples that print the same if and only if they are the same."""
    if isinstance(value, Secret):
        return bytes(value._data).hex()
    if isinstance(value, WireTally):
        value = value.total()
    if isinstance(value, np.ndarray):
        return value.tobytes().hex()
    if isinstance(value, msgspec.Struct):
        return encode(value).hex()
    if isinstance(value, dict):
        return sorted((_content(key), _content(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return sorted(_content(item) for item in value)
    if isinstance(value, list):
        return sorted((_content(item) for item in value), key=repr)
    if is_dataclass(value) and not isinstance(value, type):
        named = type(value).__name__
        if named in ("Setup", "Membership", "Policy", "Graph"):
            return named
        return (named, *(_content(getattr(value, entry.name)) for entry in fields(value)))
    return repr(value)
