"""Drives whole sessions of secagg/v1 over bytes: who is there, who leaves when, in which order messages arrive.

A `Member` is one client and speaks through the public functions of `core.client`; an adversary is a subclass that
overrides one step. `run` is the network: it carries bytes, writes each one down, and lets a `tamper` function change or
swallow it. Nothing here decides anything, and all entropy comes from a seed, so that every run can be repeated.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

import msgspec
import numpy as np

from fedopal_secure.core import client, messages, server
from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import MisuseError, ProtocolError
from fedopal_secure.core.graph import COMPLETE_UP_TO
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import PROTOCOL, Segment, SessionParams, Task, least_cohort
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.core.ring import U64
from fedopal_secure.core.secret import Secret
from fedopal_secure.core.server import ServerState, Sum
from fedopal_secure.core.shamir import Entropy
from fedopal_secure.core.states import ClientState, ParentView
from fedopal_secure.core.tally import WireTally

PRIMES = (0x3FFFFFFFFC001, 2**61 - 1)  # 50 bits and 1 modulo 2 * 8192, as BFV wants it; a Mersenne prime
PHASES = ("advertise", "share", "upload", "attest", "reveal")

T = TypeVar("T")

TASK = Task(
    backbone="embedded",
    backbone_hash=bytes(32),
    preprocessing="grey 32 x 32",
    feature_map="cls",
    feature_dimension=8,
    feature_bound=1.0,
    feature_bits=12,
    normalise=True,
    classes=("cat", "dog"),
    prompt_mode="none",
    prompt_tokens=0,
    prompt_dimension=0,
    prompt_bound=1.0,
    prompt_bits=24,
    prompt_source=b"",
    tuning="",
    max_images=1000,
    release="",
    min_contributors=0,
)


def seed(*parts: object) -> bytes:
    """32 bytes that depend on every part."""
    return hashlib.sha256(repr(parts).encode()).digest()


def entropy(start: bytes) -> Entropy:
    """A function from a count to that many bytes, never the same ones twice."""
    calls = itertools.count()
    return lambda count: hashlib.shake_256(start + next(calls).to_bytes(8, "big")).digest(count)


def segments(*lengths_and_widths: tuple[int, int], signed: bool = True) -> tuple[Segment, ...]:
    """Segments from (length, width) pairs."""
    return tuple(Segment(f"s{i}", n, w, signed) for i, (n, w) in enumerate(lengths_and_widths))


@dataclass(frozen=True, repr=False)
class Federation:
    """Parameters, policy and keys that fit each other; `ids` ascend."""

    params: SessionParams
    policy: Policy
    members: Membership
    keys: tuple[SigningKey, ...]
    host: SigningKey
    start: bytes = b""

    def __repr__(self) -> str:
        p = self.params
        return (
            f"make({p.clients}, {p.corrupt}, modulus={p.modulus}, parts={p.segments}, min_survivors={p.min_survivors})"
        )

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Identities in ascending order."""
        return tuple(key.identity for key in self.keys)

    def entropy(self, *parts: object) -> Entropy:
        """An independent source for each purpose."""
        return entropy(seed(self.start, self.params.nonce, *parts))

    def vectors(self) -> dict[bytes, U64]:
        """A uniform vector of residues for everyone."""
        modulus = self.params.modulus or 2**64
        draws = {i: np.random.default_rng(list(seed("vector", self.start, i))) for i in self.ids}
        return {
            i: rng.integers(0, modulus, self.params.length, dtype=np.uint64, endpoint=False) for i, rng in draws.items()
        }

    def child(self, parent: bytes, **changes: Any) -> Federation:
        """The same people in the next session of a chain."""
        params = msgspec.structs.replace(self.params, nonce=seed("child", self.params.nonce), parent=parent, **changes)
        return replace(self, params=params)


def make(
    clients: int = 4,
    corrupt: int = 0,
    *,
    start: object = 0,
    degree: int = 0,
    modulus: int = 0,
    parts: Sequence[Segment] = (Segment("x", 5, 3, True), Segment("n", 2, 8, False)),
    min_survivors: int | None = None,
    **policy: Any,
) -> Federation:
    """A federation of `clients` people; keywords beyond the named ones go into the policy.

    With a `degree` the graph is sparse: the parameters then allow for more clients than there are.
    """
    if modulus:
        width = (modulus.bit_length() + 7) // 8
        parts = [msgspec.structs.replace(part, width=width) for part in parts]
    keys = [SigningKey(seed("identity", start, number)) for number in range(clients)]
    keys.sort(key=lambda key: key.identity)
    host = SigningKey(seed("server", start))
    params = SessionParams(
        protocol=PROTOCOL,
        name="statistics",
        nonce=seed("nonce", start),
        server=host.identity,
        parent=b"",
        clients=max(clients, COMPLETE_UP_TO + 1) if degree else clients,
        corrupt=corrupt,
        degree=degree,
        min_survivors=least_cohort(corrupt) if min_survivors is None else min_survivors,
        modulus=modulus,
        public_context=b"",
        segments=tuple(parts),
        task=TASK,
    )
    members = Membership(frozenset(key.identity for key in keys))
    rules = Policy(
        members=members,
        servers=frozenset({host.identity}),
        backbone=TASK.backbone,
        backbone_hash=TASK.backbone_hash,
        preprocessing=TASK.preprocessing,
        classes=TASK.classes,
        corrupt=corrupt,
        max_images=TASK.max_images,
    )
    return Federation(params, replace(rules, **policy), members, tuple(keys), host, seed("federation", start))


class Member:
    """One client. Every state that it was ever in is kept, so that a test can look for what should be gone."""

    def __init__(self, federation: Federation, key: SigningKey, vector: U64, parent: ParentView | None = None) -> None:
        self.federation, self.key, self.vector, self.parent = federation, key, vector, parent
        self.entropy = federation.entropy("client", key.identity)
        self.states: list[ClientState] = []
        self.error: ProtocolError | None = None

    @property
    def identity(self) -> bytes:
        return self.key.identity

    @property
    def state(self) -> Any:
        return self.states[-1]

    @state.setter
    def state(self, state: ClientState) -> None:
        self.states.append(state)

    def advertise(self, proposal: bytes) -> bytes:
        self.state, sent = client.advertise(proposal, self.federation.policy, self.key, b"", self.entropy)
        return sent

    def share(self, roster: bytes) -> bytes:
        self.state, sent = client.share(self.state, roster, self.entropy)
        return sent

    def hold(self, relay: bytes) -> None:
        self.state = client.hold(self.state, relay)

    def upload(self, context: bytes) -> bytes:
        self.state, sent = client.upload(self.state, self.vector, context, self.parent)
        return sent

    def attest(self, view: bytes, context: bytes) -> bytes:
        late = self.state.header is None
        self.state, sent = client.attest(self.state, view, context if late else None, self.parent if late else None)
        return sent

    def reveal(self, request: bytes) -> bytes:
        self.state, sent = client.reveal(self.state, request)
        return sent


@dataclass(frozen=True)
class Letter:
    """One message on its way; `client` is who sends it (`up`) or who gets it."""

    step: str
    client: bytes
    up: bool
    data: bytes


Tamper = Callable[[Letter], bytes | None]


@dataclass
class Run:
    """What a session left behind.

    `error` ended it; `faults` are what the server held against clients, whose messages it then ignored; a client that
    refused has its own `error`. `letters` are the messages as they were sent, before anybody tampered.
    """

    federation: Federation
    members: dict[bytes, Member]
    state: ServerState
    sum: Sum | None = None
    error: ProtocolError | None = None
    letters: list[Letter] = field(default_factory=list)
    faults: dict[bytes, ProtocolError] = field(default_factory=dict)

    def sent(self, step: str, *, up: bool = True) -> dict[bytes, bytes]:
        """Every message of one step and one direction, by client."""
        return {letter.client: letter.data for letter in self.letters if (letter.step, letter.up) == (step, up)}

    @property
    def refusals(self) -> dict[bytes, ProtocolError]:
        """Why clients stopped by themselves."""
        return {identity: member.error for identity, member in self.members.items() if member.error is not None}

    def plain_sum(self, survivors: Collection[bytes]) -> U64:
        """What the sum over these clients must be, in Python integers."""
        params = self.federation.params
        totals = [sum(int(self.members[i].vector[k]) for i in survivors) for k in range(params.length)]
        moduli = [params.modulus or 2 ** (8 * part.width) for part in params.segments for _ in range(part.length)]
        return np.array([total % modulus for total, modulus in zip(totals, moduli, strict=True)], dtype=np.uint64)


def run(
    federation: Federation,
    *,
    vectors: Mapping[bytes, U64] | None = None,
    drops: Mapping[str, Collection[bytes]] | None = None,
    late: Collection[bytes] = (),
    kinds: Mapping[bytes, type[Member]] | None = None,
    parents: Mapping[bytes, ParentView] | None = None,
    context: Context | None = None,
    order: int = 0,
    tamper: Tamper = lambda letter: letter.data,
    stop: str | None = None,
) -> Run:
    """Run one session.

    `drops` names who is gone from a phase on; `late` clients miss the upload only, and attest and reveal. `kinds` puts
    a subclass in place of an honest member. `order` shuffles in which order messages arrive. `stop` ends the session
    before that phase, with all states in place.
    """
    vectors = federation.vectors() if vectors is None else vectors
    parents = parents or {}
    people = {
        key.identity: (kinds or {}).get(key.identity, Member)(
            federation, key, vectors[key.identity], parents.get(key.identity)
        )
        for key in federation.keys
    }
    state, proposal = server.start(federation.params, federation.members, federation.host)
    result = Run(federation, people, state)
    gone: set[bytes] = set()
    shuffle = np.random.default_rng(order)

    def carry(letter: Letter) -> bytes | None:
        result.letters.append(letter)
        return tamper(letter)

    def ask(step: str, replies: Mapping[bytes, bytes], answer: Callable[[Member, bytes], bytes | None]) -> None:
        """Deliver to each client that is still there, and take what it answers to the server."""
        answers = []
        for identity in shuffle.permutation(sorted(replies)).tolist() if replies else ():
            delivered = None if identity in gone else carry(Letter(step, identity, False, replies[identity]))
            if delivered is None:
                continue
            try:
                answered = answer(people[identity], delivered)
            except ProtocolError as error:
                people[identity].error = error
                gone.add(identity)
                continue
            if answered is not None:
                answers.append(Letter(step, identity, True, answered))
        for place in shuffle.permutation(len(answers)).tolist():
            letter = answers[place]
            arrived = carry(letter)
            if arrived is None:
                continue
            try:
                result.state = server.receive(result.state, letter.client, arrived)
            except ProtocolError as error:
                result.faults[letter.client] = error

    def steps() -> Iterator[str]:
        for step in PHASES:
            if step == stop:
                return
            gone.update((drops or {}).get(step, ()))
            yield step

    try:
        replies, opened = dict.fromkeys(federation.ids, proposal), b""
        for step in steps():
            match step:
                case "advertise":
                    ask(step, replies, lambda member, data: member.advertise(data))
                case "share":
                    ask(step, replies, lambda member, data: member.share(data))
                case "upload":
                    ask("hold", replies, lambda member, data: member.hold(data))
                    wanted = context or Context(result.state.session, federation.params.parent, b"", (), b"")
                    result.state, opened = server.open_uploads(result.state, wanted)
                    lawful = result.state.records.parent_survivors if wanted.parent else federation.ids
                    on_time = [identity for identity in replies if identity in lawful and identity not in late]
                    ask(step, dict.fromkeys(on_time, opened), lambda member, data: member.upload(data))
                case "attest":
                    ask(step, replies, lambda member, data, told=opened: member.attest(data, told))
                case "reveal":
                    ask(step, replies, lambda member, data: member.reveal(data))
            if step == "reveal":
                result.sum = server.finish(result.state)
            else:
                result.state, replies = server.close(result.state)
    except ProtocolError as error:
        result.error = error
    return result


def forge(key: SigningKey, message: Any, **changes: Any) -> Any:
    """A message with some fields changed, signed anew: what a corrupt client can make of its own messages."""
    return messages.sign(key, msgspec.structs.replace(message, signature=bytes(64), **changes))


def read(kind: type[T], data: bytes) -> T:
    """Decode a message of an honest party."""
    return decode(kind, data, MisuseError)


def fork(value: Any) -> Any:
    """A copy of a state that shares nothing which a step could use up: what an attacker on the machine would need.

    States refuse to be copied, so this rebuilds them field by field, with new Secret objects.
    """
    if isinstance(value, Secret):
        return Secret(value.expose())
    if isinstance(value, dict):
        return {key: fork(item) for key, item in value.items()}
    if isinstance(value, list | set):
        return type(value)(fork(item) for item in value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, WireTally):
        twin = copy.copy(value)
        twin._total = value.total()
        return twin
    if is_dataclass(value) and not isinstance(value, type) and type(value).__name__ not in ("Setup", "Room"):
        return type(value)(**{f.name: fork(getattr(value, f.name)) for f in fields(value) if f.init})
    return value
