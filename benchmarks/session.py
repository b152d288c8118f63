"""One session of secagg/v1 as the benchmarks drive it: fixed seeds, bytes between the parties, a clock on every step.

A client's seconds are those inside `fedopal_secure.core.client`, the server's those inside `fedopal_secure.core.server`
(relays included, which it makes when they are looked up). Drawing vectors and carrying bytes is in neither.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np

from fedopal_secure.core import client, server
from fedopal_secure.core.graph import COMPLETE_UP_TO
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import PROTOCOL, Segment, SessionParams, Task, least_cohort
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.core.ring import U64
from fedopal_secure.core.shamir import Entropy

WIDTH = 8  # bytes of an entry on the wire, the most there is
STEPS = ("advertise", "share", "hold", "upload", "attest", "reveal")

_TASK = Task(
    backbone="none",
    backbone_hash=bytes(32),
    preprocessing="none",
    feature_map="none",
    feature_dimension=2,
    feature_bound=1.0,
    feature_bits=12,
    normalise=True,
    classes=("one", "other"),
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


def _seed(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


@dataclass(frozen=True)
class Cast:
    """Parameters and keys that fit each other; clients are numbered in the order of their identities."""

    params: SessionParams
    policy: Policy
    keys: tuple[SigningKey, ...]
    host_seed: bytes
    seed: int

    @property
    def identities(self) -> tuple[bytes, ...]:
        """Every client's identity, ascending."""
        return tuple(key.identity for key in self.keys)

    def entropy(self, number: int) -> Entropy:
        """A client's source of bytes: the same in every run, never the same twice in one."""
        start, calls = _seed("entropy", self.seed, number), itertools.count()
        return lambda count: hashlib.shake_256(start + next(calls).to_bytes(8, "big")).digest(count)

    def vector(self, number: int) -> U64:
        """A client's uniform residues, the same at every call."""
        return np.random.default_rng([self.seed, number]).integers(0, 2**64, self.params.length, dtype=np.uint64)


def cast(clients: int, corrupt: int, degree: int, length: int, seed: int = 0) -> Cast:
    """People who can run a session; `degree` is 0 on the complete graph."""
    keys = sorted((SigningKey(_seed("client", seed, number)) for number in range(clients)), key=lambda k: k.identity)
    host_seed = _seed("server", seed)
    host = SigningKey(host_seed).identity
    params = SessionParams(
        protocol=PROTOCOL,
        name="statistics",
        nonce=_seed("nonce", seed),
        server=host,
        parent=b"",
        clients=max(clients, COMPLETE_UP_TO + 1) if degree else clients,
        corrupt=corrupt,
        degree=degree,
        min_survivors=least_cohort(corrupt),
        modulus=0,
        public_context=b"",
        segments=(Segment("x", length, WIDTH, False),),
        task=_TASK,
    )
    policy = Policy(
        members=Membership(frozenset(key.identity for key in keys)),
        servers=frozenset({host}),
        backbone=_TASK.backbone,
        backbone_hash=_TASK.backbone_hash,
        preprocessing=_TASK.preprocessing,
        classes=_TASK.classes,
        corrupt=corrupt,
        max_images=_TASK.max_images,
    )
    return Cast(params, policy, tuple(keys), host_seed, seed)


# Processor time, of all threads: no party waits for anything, and other work on the machine must not count.
clock = time.process_time


class Host:
    """The server, with its clock."""

    def __init__(self, params: SessionParams, members: Membership, seed: bytes) -> None:
        self._phase = "start"
        self.seconds: dict[str, float] = defaultdict(float)
        self._state, self._proposal = self._time(server.start, params, members, SigningKey(seed))
        self._replies: Mapping[bytes, bytes] = {}

    def _time(self, function: Callable[..., Any], *args: Any) -> Any:
        start = clock()
        result = function(*args)
        self.seconds[self._phase] += clock() - start
        return result

    def proposal(self) -> bytes:
        """What every client is sent first."""
        self._phase = "adverts"
        sent: bytes = self._proposal
        return sent

    def receive(self, sender: bytes, data: bytes) -> None:
        """Take one message."""
        self._state = self._time(server.receive, self._state, sender, data)

    def close(self, following: str) -> bytes | None:
        """End a phase. Returns the reply if every client gets the same one, else None: see `reply`."""
        self._state, self._replies = self._time(server.close, self._state)
        self._phase = following
        # Relays are not in a dict: they are made when they are looked up.
        return next(iter(self._replies.values())) if isinstance(self._replies, dict) else None

    def reply(self, identity: bytes) -> bytes:
        """One client's own reply."""
        reply: bytes = self._time(self._replies.__getitem__, identity)
        return reply

    def open_uploads(self) -> bytes:
        """Begin the uploads; the context for every sharer."""
        self._phase = "uploads"
        context = Context(self._state.session, b"", b"", (), b"")
        self._state, opened = self._time(server.open_uploads, self._state, context)
        sent: bytes = opened
        return sent

    def finish(self) -> U64:
        """The sum."""
        self._phase = "finish"
        total: U64 = self._time(server.finish, self._state).total
        return total

    def spent(self) -> dict[str, float]:
        """Seconds by phase."""
        return dict(self.seconds)


class AnyHost(Protocol):
    """A server here or in another process."""

    def proposal(self) -> bytes:
        """As in Host."""
        ...

    def receive(self, sender: bytes, data: bytes) -> None:
        """As in Host."""
        ...

    def close(self, following: str) -> bytes | None:
        """As in Host."""
        ...

    def reply(self, identity: bytes) -> bytes:
        """As in Host."""
        ...

    def open_uploads(self) -> bytes:
        """As in Host."""
        ...

    def finish(self) -> U64:
        """As in Host."""
        ...


class Client:
    """One client, with its clock and the bytes that it sent and got."""

    def __init__(self, cast: Cast, number: int) -> None:
        self.cast, self.number, self.key = cast, number, cast.keys[number]
        self.state: Any = None
        self.seconds: dict[str, float] = {}
        self.sent: dict[str, int] = {}
        self.got: dict[str, int] = {}
        self._entropy = cast.entropy(number)

    @property
    def identity(self) -> bytes:
        """Its public key."""
        return self.key.identity

    def act(self, step: str, data: bytes) -> bytes:
        """Take one step; empty if the step sends nothing."""
        vector = self.cast.vector(self.number) if step == "upload" else None
        sent = b""
        start = clock()
        match step:
            case "advertise":
                self.state, sent = client.advertise(data, self.cast.policy, self.key, b"", self._entropy)
            case "share":
                self.state, sent = client.share(self.state, data, self._entropy)
            case "hold":
                self.state = client.hold(self.state, data)
            case "upload":
                assert vector is not None  # noqa: S101
                self.state, sent = client.upload(self.state, vector, data, None)
            case "attest":
                self.state, sent = client.attest(self.state, data)
            case "reveal":
                self.state, sent = client.reveal(self.state, data)
        self.seconds[step] = clock() - start
        self.sent[step], self.got[step] = len(sent), len(data)
        return sent


Act = Callable[[Client, str, bytes], bytes]


@dataclass(frozen=True)
class Outcome:
    """What a session left: every client that stayed, and by how much the sum is wrong (0: not at all)."""

    survivors: tuple[Client, ...]
    error: int

    def client_seconds(self, numbers: frozenset[int] | None = None) -> dict[str, float]:
        """The median over clients of each step; `numbers` are those of a sample, None is everybody."""
        chosen = [one for one in self.survivors if numbers is None or one.number in numbers]
        return {step: median(one.seconds[step] for one in chosen) for step in STEPS}


def dropouts(clients: int) -> int:
    """5 % of the clients, rounded up."""
    return math.ceil(clients / 20)


def run(
    people: Cast,
    host: AnyHost,
    gone: frozenset[int],
    *,
    act: Act = Client.act,
    arrived: Callable[[str], None] = lambda step: None,
) -> Outcome:
    """Run one session in which the numbers in `gone` drop out after they have shared.

    `act` may wrap a client's step; `arrived` is called after each.
    """
    clients = [Client(people, number) for number in range(len(people.keys))]
    staying = [one for one in clients if one.number not in gone]
    expected = np.zeros(people.params.length, dtype=np.uint64)

    def ask(step: str, asked: list[Client], shared: bytes | None) -> None:
        for one in asked:
            sent = act(one, step, host.reply(one.identity) if shared is None else shared)
            if sent:
                host.receive(one.identity, sent)
            arrived(step)

    ask("advertise", clients, host.proposal())
    ask("share", clients, host.close("shares"))
    ask("hold", staying, host.close("relays"))
    opened = host.open_uploads()
    ask("upload", staying, opened)
    for one in staying:
        expected += people.vector(one.number)
    ask("attest", staying, host.close("attestations"))
    ask("reveal", staying, host.close("reveals"))
    total = host.finish()
    error = int(np.max(np.minimum(total - expected, expected - total)))
    return Outcome(tuple(staying), error)
