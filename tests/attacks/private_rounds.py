"""Private rounds to be attacked: a backbone of pixels, six people, and a server that asks for what it likes.

Its clients are those of a round, on a backbone whose features are pixels, and one of them is corrupt: it adds no noise.
So what hides an image is the noise of the honest survivors, and the suite can measure it, because it knows the exact
sums too. A play is won when that noise is thinner than the claim takes, which two numbers must say: its variance, by
the chi-square distribution, and the epsilon that the accountant gives for what was really added. Seeds are fixed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, cat, nn, zeros, zeros_like

from fedopal_secure.core.errors import FedopalError, SessionAborted
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import SessionParams, Task
from fedopal_secure.core.policy import Policy
from fedopal_secure.core.ring import U64
from fedopal_secure.core.server import Sum
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.layout import COUNTS
from fedopal_secure.encoding.vector import unpack
from fedopal_secure.federation import vectors
from fedopal_secure.federation.client import JoinedSession, PrivateData, RoundClient, compute_statistics
from fedopal_secure.federation.config import TuningSettings
from fedopal_secure.federation.protocols import open_server
from fedopal_secure.federation.secure_sum import PHASES, UPLOAD, Participant
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.vectors import session_segments
from fedopal_secure.privacy.accounting import claimed
from fedopal_secure.privacy.calibration import Vector, calibrate
from fedopal_secure.privacy.release import Release, squared_sensitivities
from fedopal_secure.statistics.sums import SufficientStatistics
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.preprocessing import Preprocessing
from tests.attacks.catalogue import Outcome, words
from tests.core.harness import TASK, make, seed

CLIENTS, CORRUPT, COHORT = 6, 1, 5  # t = 4, and a quorum is 4
HONEST = COHORT - CORRUPT
SIDE, IMAGES = 8, 4
EPSILON, DELTA = 1.0, 1e-5
SPARE = 1000.0  # the epsilon of a policy that leaves the claim of one release to its own check
LEVEL = 1e-6  # of a chance that honest noise looks thinner than it is

Arrays = Mapping[str, NDArray[np.int64]]


class Pixels(Backbone):
    """Features are the pixels, from -1 to 1, plus the sum of the prompts."""

    def __init__(self) -> None:
        super().__init__(Preprocessing(SIDE, (0.5,), (0.5,), "bilinear"))
        self.id, self.hash, self.embed_dim, self.feature_dim = "pixels", "cd" * 32, SIDE**2, SIDE**2
        self.nothing = nn.Parameter(zeros(1))
        self.freeze()

    def embed(self, images: Tensor) -> Tensor:
        pixels = images.reshape(len(images), 1, SIDE**2)
        return cat([pixels, zeros_like(pixels)], dim=1)

    def encode(self, tokens: Tensor) -> Tensor:
        return tokens.sum(dim=1) + self.nothing


BACKBONE = Pixels()
VECTOR = Vector(BACKBONE.feature_dim, len(TASK.classes), TASK.feature_bits, TASK.max_images, HONEST)
RELEASE = calibrate(VECTOR, "distributed", EPSILON, DELTA, r_share=0.5)
EXACT = replace(
    TASK,
    backbone=BACKBONE.id,
    backbone_hash=bytes.fromhex(BACKBONE.hash),
    preprocessing=BACKBONE.preprocessing,
    feature_dimension=BACKBONE.feature_dim,
)
SETTINGS = TuningSettings(epochs=2, learning_rate=0.1)
TUNED = replace(
    EXACT,
    prompt_mode="local",
    prompt_tokens=1,
    prompt_dimension=BACKBONE.embed_dim,
    prompt_bound=4.0,
    prompt_source=bytes(32),
    tuning=SETTINGS.model_dump_json(),
)


def private(release: Release = RELEASE, task: Task = EXACT) -> Task:
    return replace(task, release=release.text())


def some_images(*parts: object, count: int = IMAGES) -> PrivateData:
    """Images of noise whose first pixel is grey."""
    random = np.random.default_rng(list(seed("private images", *parts)))
    images = random.integers(0, 256, (count, SIDE, SIDE, 1), dtype=np.uint8)
    images[:, 0, 0] = 128
    return PrivateData(images, random.integers(0, len(TASK.classes), count))


class Silent(RoundClient):
    """A corrupt client, which adds no noise."""

    def _vector(self, session: JoinedSession, context: Context) -> U64:
        def scaled(arrays: Arrays, release: Release, entropy: object) -> Arrays:
            return {**arrays, COUNTS: arrays[COUNTS] * release.count_scale}

        with mock.patch.object(vectors, "add_noise", scaled):
            return super()._vector(session, context)


class People:
    """The same clients with the same data and journals, whatever session they are asked into.

    The first is the victim, the last is corrupt. `map` is the feature map that they have loaded, `tuned` are prompts.
    """

    def __init__(self) -> None:
        segments = session_segments(EXACT, "statistics", CLIENTS)
        self.federation = make(CLIENTS, CORRUPT, start="privacy", parts=segments, min_survivors=COHORT)
        self.ids = self.federation.ids
        self.victim, self.corrupt = self.ids[0], self.ids[-1]
        self.data = {identity: some_images(number) for number, identity in enumerate(self.ids)}
        self.journals = {identity: Journal() for identity in self.ids}
        self.map: FeatureMap | None = None
        self.tuned: dict[bytes, NDArray[np.float32]] = {}
        self.asked = self.summed = 0

    def close(self) -> None:
        for journal in self.journals.values():
            journal.close()

    def policy(self, task: Task, **changes: Any) -> Policy:
        """What agrees to a task."""
        agreed: dict[str, Any] = {"release": task.release, "epsilon": SPARE, "delta": DELTA, "sessions": 99}
        named = {name: getattr(task, name) for name in ("backbone", "backbone_hash", "preprocessing", "max_images")}
        return dataclasses.replace(self.federation.policy, **named, **(agreed | changes))

    def params(self, task: Task, **changes: Any) -> SessionParams:
        """The next session's."""
        self.asked += 1
        params = replace(self.federation.params, nonce=seed("private session", self.asked), task=task, **changes)
        return replace(params, segments=session_segments(task, params.name, CLIENTS))

    def session(self, task: Task, policy: Policy | None = None, **params: Any) -> Session:
        """The next session; unless told, the policy agrees to its task."""
        return Session(self, self.params(task, **params), policy or self.policy(task))

    def exact(self, task: Task, who: Collection[bytes], public_map: FeatureMap | None = None) -> Arrays:
        """The sum of these clients' statistics without any noise, on the grid of the task's release."""
        total = SufficientStatistics.zeros(task.feature_dimension, len(task.classes))
        for client in who:
            prompts = self.tuned.get(client)
            total += compute_statistics(BACKBONE, self.data[client], task, prompts, public_map or self.map)
        release = vectors.task_release(task)
        arrays = total.to_arrays()
        return arrays if release is None else {**arrays, COUNTS: arrays[COUNTS] * release.count_scale}


class Session:
    """One session with clients that were started for it, and all that the server is sent."""

    def __init__(self, people: People, params: SessionParams, policy: Policy) -> None:
        self.people, self.params = people, params
        federation = people.federation
        self.server = open_server(params, federation.members, federation.ids, federation.host)
        self.refused: dict[bytes, FedopalError] = {}
        self.answers: dict[tuple[str, bytes], bytes] = {}
        self.sum: Sum | None = None
        self.clients = {
            key.identity: (Silent if key.identity == people.corrupt else RoundClient)(
                Participant(key, b"", policy, federation.entropy(key.identity, params.nonce)),
                BACKBONE,
                people.data[key.identity],
                people.journals[key.identity],
                Timings(),
                tuning_seed=0,
                public_map=people.map,
                tuned=people.tuned.get(key.identity),
            )
            for key in federation.keys
        }

    def run(self, phases: Sequence[str] | None = None, lost: Collection[bytes] = ()) -> Session:
        """Carry on, by default to the end. Clients that are `lost` answer no more from the upload on."""
        every = PHASES[self.params.protocol]
        with contextlib.suppress(SessionAborted):
            for phase in every if phases is None else phases:
                context = Context(self.server.session, b"", b"", (), b"") if phase == UPLOAD else None
                gone = self.refused.keys() | (set(lost) if every.index(phase) >= every.index(UPLOAD) else set())
                for client, request in self.server.request(phase, context).items():
                    if client not in gone:
                        self._ask(client, phase, request)
                if phase == every[-1]:
                    self.sum = self.server.finish()
                    self.people.summed += 1
        return self

    def _ask(self, client: bytes, phase: str, request: bytes) -> None:
        try:
            answer = self.clients[client].answer(self.params.name, phase, request)
        except FedopalError as error:
            self.refused[client] = error
            return
        if answer:
            self.answers[phase, client] = answer
            self.server.receive(client, answer)

    @property
    def survivors(self) -> tuple[bytes, ...]:
        """Who is in the sum."""
        return self._result().survivors

    def shown(self) -> Arrays:
        """What is in the sum."""
        return unpack(self.params.segments, self._result().total)

    def noise(self) -> Arrays:
        """What hides the sum from the server."""
        return less(self.shown(), self.people.exact(self.params.task, self.survivors))

    def _result(self) -> Sum:
        if self.sum is None:
            raise Refused(self.refused, self.people.summed)
        return self.sum


class Refused(Exception):
    """There is no sum, because all clients refused, and for one reason."""

    def __init__(self, refused: Mapping[bytes, FedopalError], summed: int = 0) -> None:
        # What depends on the last bits of a feature map is left out.
        told = {re.sub(r"\b[0-9a-f]{64}\b", "…", words(error)) for error in refused.values()}
        if len(told) != 1:
            raise RuntimeError(f"not one reason: {told}")
        after = f"after {summed} sum{'s' * (summed > 1)}, " * (summed > 0)
        super().__init__(f"{after}refused by {len(refused)} clients: {told.pop()}")


def less(one: Arrays, other: Arrays) -> Arrays:
    return {name: one[name] - other[name] for name in other}


# What is measured.


def variance(noise: Mapping[str, NDArray[Any]], release: Release = RELEASE) -> float:
    """Mean square of all entries, each in units of the least noise that the claim takes; it was made by `release`."""
    parts = []
    for name, array in noise.items():
        unit = RELEASE.count_scale / release.count_scale if name == COUNTS else 1.0
        parts.append(np.square(array * unit / (math.sqrt(RELEASE.contributors) * RELEASE.sigma(name))))
    return float(np.concatenate(parts).mean())


def bounds(noise: Mapping[str, NDArray[Any]]) -> tuple[float, float]:
    """Between which `variance` is for that very noise, but with probability `LEVEL`."""
    entries = sum(array.size for array in noise.values())
    low, high = (float(stats.chi2.ppf(q, entries)) / entries for q in (LEVEL / 2, 1 - LEVEL / 2))
    return low, high


def spent(release: Release, honest: int, times: int = 1) -> float:
    """Epsilon at `DELTA` of what so many honest clients really add, for how far an image really moves the vector."""
    limits = squared_sensitivities(VECTOR.dimension, VECTOR.bits, release.count_scale, 1)
    segments = tuple(replace(s, squared_sensitivity=limits[s.name]) for s in release.segments)
    return claimed([replace(release, contributors=honest, segments=segments)] * times, DELTA)


def judged(noise: Mapping[str, NDArray[Any]], release: Release, honest: int, what: str, times: int = 1) -> Outcome:
    """Whether this noise of so many honest clients is less than the claim takes."""
    found, epsilon, (low, _) = variance(noise, release), spent(release, honest, times), bounds(noise)
    told = f"{what} has {100 * found:.0f} % of the variance that epsilon {EPSILON:g} takes: it is epsilon {epsilon:.2g}"
    return Outcome(found < low and epsilon > EPSILON, told)


def played(attack: Callable[[People], Outcome]) -> Callable[[], Outcome]:
    def play() -> Outcome:
        with contextlib.closing(People()) as people:
            try:
                return attack(people)
            except Refused as refused:
                return Outcome(False, str(refused))

    return play


def thinned(release: Release, epsilon: float = SPARE, *, cohort: int = COHORT, lost: int = 0) -> Callable[[], Outcome]:
    """A release that all agreed to; their policies grant `epsilon`. So many are lost before they upload."""

    def attack(people: People) -> Outcome:
        task = private(release)
        session = people.session(task, people.policy(task, epsilon=epsilon), min_survivors=cohort)
        noise = session.run(lost=people.ids[1 : 1 + lost]).noise()
        return judged(noise, release, len(session.survivors) - CORRUPT, "the noise")

    return played(attack)
