"""The noise that a server unmasks is as much as was promised: with dropouts, with corrupt clients, after lies.

Whole sessions of secagg/v1 run over bytes, with the vectors that clients of a private release send. What comes out,
less the exact sum of the survivors' statistics, is their noise. Its variance on each segment is compared with the
chi-square distribution; seeds are fixed, so a comparison holds always or never.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedopal_secure.core import checks, server
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import OverflowBudgetError, PolicyRefusal
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Proposal, sign
from fedopal_secure.core.params import PROTOCOL, Segment, SessionParams, Task
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.core.ring import U64
from fedopal_secure.core.shamir import Entropy
from fedopal_secure.encoding.layout import COUNTS, R_DIAGONAL, R_UPPER, C, statistics_segments, width_of
from fedopal_secure.encoding.vector import unpack
from fedopal_secure.federation.client import RoundClient
from fedopal_secure.federation.secure_sum import Participant
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.vectors import from_vector, session_segments, to_vector
from fedopal_secure.privacy import noise
from fedopal_secure.privacy.calibration import Vector, calibrate
from fedopal_secure.privacy.gaussian import discrete_gaussian
from fedopal_secure.privacy.noise import noise_bounds
from fedopal_secure.privacy.release import Release, noise_terms, total_sigma
from fedopal_secure.statistics.sums import SufficientStatistics, accumulate
from tests.attacks.test_06_whole_rounds import BRIGHT, GATE, GATE_TASK, one_image
from tests.core.harness import PHASES, TASK, Federation, Run, entropy, make, run, seed

LEVEL = 1e-6  # of both tails together
DIMENSION, CLASSES, BITS, IMAGES = 100, 200, 5, 24  # so few images that widths are what the noise needs
EPSILON, DELTA = 0.25, 1e-5
CLIENTS, CORRUPT, COHORT = 8, 1, 5
HONEST = COHORT - CORRUPT
SEGMENTS = (R_DIAGONAL, R_UPPER, C, COUNTS)

Arrays = Mapping[str, NDArray[np.int64]]


@cache
def release() -> Release:
    return calibrate(Vector(DIMENSION, CLASSES, BITS, IMAGES, HONEST), "distributed", EPSILON, DELTA, r_share=0.5)


@cache
def statistics_of(number: int) -> SufficientStatistics:
    random = np.random.default_rng(number)
    return accumulate(
        random.integers(-3, 4, (IMAGES // CLIENTS, DIMENSION)),
        random.integers(0, CLASSES, IMAGES // CLIENTS),
        CLASSES,
        BITS,
    )


def private_federation() -> Federation:
    """Eight people, one of them corrupt, whose task and policy carry the release; t = 5."""
    task = msgspec.structs.replace(
        TASK,
        feature_dimension=DIMENSION,
        feature_bits=BITS,
        classes=tuple(f"class {number}" for number in range(CLASSES)),
        max_images=IMAGES,
        release=release().text(),
    )
    parts = session_segments(task, "statistics", CLIENTS)
    made = make(CLIENTS, CORRUPT, start="noise", parts=parts, min_survivors=COHORT)
    policy = replace(made.policy, classes=task.classes, max_images=IMAGES, release=task.release)
    return replace(made, params=msgspec.structs.replace(made.params, task=task), policy=policy)


def private_vectors(federation: Federation) -> dict[bytes, U64]:
    """What each client masks: its statistics with its own noise on them."""
    return {
        identity: to_vector(federation.params, statistics_of(number), None, federation.entropy("noise", identity))
        for number, identity in enumerate(federation.ids)
    }


def exact(federation: Federation, clients: Collection[bytes]) -> Arrays:
    """The sum of these clients' statistics without any noise, on the grid of the release."""
    total = SufficientStatistics.zeros(DIMENSION, CLASSES)
    for identity in clients:
        total += statistics_of(federation.ids.index(identity))
    arrays = total.to_arrays()
    return arrays | {COUNTS: arrays[COUNTS] * release().count_scale}


@dataclass(frozen=True)
class Seen:
    """A session and what the server knows after it; `noise` is what hides the sum from it, by segment."""

    run: Run
    survivors: tuple[bytes, ...]
    noise: Arrays

    def without(self, corrupt: Collection[bytes]) -> Arrays:
        """The noise that is left when these have told the server theirs."""
        params, left = self.run.federation.params, dict(self.noise)
        for identity in corrupt:
            told = unpack(params.segments, self.run.members[identity].vector)
            own = exact(self.run.federation, [identity])
            left = {name: left[name] - (told[name] - own[name]) for name in SEGMENTS}
        return left


def session(drops: Mapping[str, Collection[int]] | None = None, late: Collection[int] = ()) -> Seen:
    """One session; clients are given by number."""
    federation = private_federation()
    ids = federation.ids
    made = run(
        federation,
        vectors=private_vectors(federation),
        drops={phase: [ids[number] for number in who] for phase, who in (drops or {}).items()},
        late=[ids[number] for number in late],
    )
    if made.sum is None:
        return Seen(made, (), {})
    statistics, _ = from_vector(federation.params, made.sum.total)
    assert statistics is not None
    plain, noisy = exact(federation, made.sum.survivors), statistics.to_arrays()
    return Seen(made, made.sum.survivors, {name: noisy[name] - plain[name] for name in SEGMENTS})


def variance_interval(entries: int, terms: int, sigma: int) -> tuple[float, float]:
    """Between which the mean square of `entries` sums of `terms` noises is, but with probability `LEVEL`."""
    low, high = (float(stats.chi2.ppf(q, entries)) for q in (LEVEL / 2, 1 - LEVEL / 2))
    return low / entries * terms * sigma**2, high / entries * terms * sigma**2


def mean_square(array: NDArray[np.int64]) -> float:
    return float(np.mean(np.square(array.astype(np.float64))))


def fits(left: Arrays, terms: int) -> dict[str, bool]:
    """By segment, whether this is noise of `terms` contributors: its variance, and a mean of zero."""
    found = {}
    for name, array in left.items():
        low, high = variance_interval(len(array), terms, release().sigma(name))
        deviation = math.sqrt(terms / len(array)) * release().sigma(name)
        mean_is_zero = abs(float(array.mean())) < float(stats.norm.isf(LEVEL / 2)) * deviation
        found[name] = low < mean_square(array) < high and mean_is_zero
    return found


SCENARIOS = [
    pytest.param({}, 8, id="everyone survives"),
    *(pytest.param({phase: [2]}, 8 if phase in ("attest", "reveal") else 7, id=f"lost at {phase}") for phase in PHASES),
    pytest.param({"share": [1], "upload": [4, 6]}, COHORT, id="the least cohort"),
]


@pytest.mark.parametrize(("drops", "survivors"), SCENARIOS)
def test_the_noise_is_that_of_the_survivors(drops: dict[str, list[int]], survivors: int) -> None:
    seen = session(drops)
    assert len(seen.survivors) == survivors
    assert all(fits(seen.noise, survivors).values())
    sigmas = total_sigma(release(), noise_terms(release(), survivors))
    assert all(sigmas[name] == pytest.approx(math.sqrt(survivors) * release().sigma(name)) for name in SEGMENTS)


@pytest.mark.parametrize(("drops", "survivors"), SCENARIOS)
def test_corrupt_clients_who_tell_their_noise_leave_what_was_promised(
    drops: dict[str, list[int]], survivors: int
) -> None:
    seen = session(drops)
    left = seen.without(seen.survivors[:CORRUPT])
    assert all(fits(left, survivors - CORRUPT).values())
    assert survivors - CORRUPT >= release().contributors == HONEST
    for name, array in left.items():
        assert mean_square(array) > variance_interval(len(array), HONEST, release().sigma(name))[0], name


def test_control_more_corrupt_clients_than_were_counted_leave_less() -> None:
    seen = session({"share": [1], "upload": [4, 6]})
    left = seen.without(seen.survivors[: CORRUPT + 1])
    for name in (R_UPPER, C):  # the other segments have too few entries to tell three noises from four
        assert mean_square(left[name]) < variance_interval(len(left[name]), HONEST, release().sigma(name))[0], name


def test_clients_draw_their_noise_apart() -> None:
    federation = private_federation()
    vectors = private_vectors(federation)
    drawn = []
    for identity in federation.ids[:2]:
        own, plain = unpack(federation.params.segments, vectors[identity]), exact(federation, [identity])
        drawn.append(np.concatenate([(own[n] - plain[n]) / release().sigma(n) for n in SEGMENTS]))
    correlation = float(np.mean(drawn[0] * drawn[1]))
    assert abs(correlation) < float(stats.norm.isf(LEVEL / 2)) / math.sqrt(len(drawn[0]))


def test_control_one_client_without_noise_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(CLIENTS * len(SEGMENTS)))

    def all_but_the_first(sigma: int, count: int, source: Entropy) -> NDArray[np.int64]:
        return discrete_gaussian(sigma, count, source) * (next(turns) >= len(SEGMENTS))

    monkeypatch.setattr(noise, "discrete_gaussian", all_but_the_first)
    found = fits(session().noise, CLIENTS)
    assert not found[C]


def test_control_without_noise_the_sum_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "discrete_gaussian", lambda sigma, count, source: np.zeros(count, np.int64))
    for drops in ({}, {"share": [1], "upload": [4, 6]}):
        seen = session(drops)
        assert seen.survivors
        assert not any(array.any() for array in seen.noise.values())


# A server that claims dropouts to thin the noise. It opens the uploads to a few only; the others, whom it calls slow,
# still attest and reveal. Its own rule on the cohort is no defence, since it is its own.

SLOW = range(CORRUPT + 1, CLIENTS)  # all but the corrupt client and one honest one


def test_claimed_dropouts_below_the_cohort_get_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_enough", lambda *arguments: None)
    seen = session(late=SLOW)
    assert seen.run.sum is None
    refusals = seen.run.refusals
    assert set(refusals) == set(seen.run.federation.ids)
    assert all(isinstance(error, PolicyRefusal) and error.rule == "min_survivors" for error in refusals.values())
    assert not seen.run.sent("attest")
    assert not seen.run.sent("reveal")


def test_control_without_the_cohort_rule_claimed_dropouts_thin_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_enough", lambda *arguments: None)
    monkeypatch.setattr(checks, "cohort_is_reached", lambda *arguments: None)
    seen = session(late=SLOW)
    assert len(seen.survivors) == CORRUPT + 1
    left = seen.without(seen.survivors[:CORRUPT])
    assert all(fits(left, 1).values())
    for name in SEGMENTS:
        assert mean_square(left[name]) < variance_interval(len(left[name]), HONEST, release().sigma(name))[0], name


# Widths.


def test_noise_stays_below_the_bound_that_widths_are_made_for() -> None:
    bounds = noise_bounds(release(), CLIENTS)
    for drops in ({}, {"upload": [3]}):
        seen = session(drops)
        for name, array in seen.noise.items():
            assert int(np.abs(array).max()) <= bounds[name], name
            # And the bound is no wild guess: of n normal numbers the largest is near sqrt(2 ln 2n) sigma.
            expected = math.sqrt(2 * math.log(2 * len(array)) * len(seen.survivors)) * release().sigma(name)
            assert bounds[name] < 4 * expected, name


def narrow_segments() -> tuple[Segment, ...]:
    """The widths that would do without noise."""
    return statistics_segments(DIMENSION, CLASSES, BITS, IMAGES, dict.fromkeys(SEGMENTS, 0), release().count_scale)


def test_control_widths_without_room_for_noise_do_not_hold_it() -> None:
    federation = private_federation()
    assert any(
        narrow.width < wide.width for narrow, wide in zip(narrow_segments(), federation.params.segments, strict=True)
    )
    narrow = replace(federation, params=msgspec.structs.replace(federation.params, segments=narrow_segments()))
    with pytest.raises(OverflowBudgetError, match="has a value outside"):
        private_vectors(narrow)


# Noise that fits no width: eight bytes just hold the diagonal of so many images at 20 bits, and nothing on top.

FULL = msgspec.structs.replace(GATE_TASK, feature_bits=20, max_images=2**23 - 1)
FULL_EPSILON, FULL_DELTA = 8.0, 1e-8


def full_task(**changes: int) -> Task:
    task = msgspec.structs.replace(FULL, **changes)
    vector = Vector(task.feature_dimension, len(task.classes), task.feature_bits, task.max_images, 3)
    return msgspec.structs.replace(
        task, release=calibrate(vector, "distributed", FULL_EPSILON, FULL_DELTA, r_share=0.5).text()
    )


def answer(task: Task, segments: tuple[Segment, ...], journal: Journal) -> bytes:
    """What a client answers to this proposal; its policy agrees to all of it."""
    host, key = SigningKey(seed("full server")), SigningKey(seed("full"))
    members = Membership(frozenset({key.identity}))
    policy = Policy(
        members=members,
        servers=frozenset({host.identity}),
        backbone=task.backbone,
        backbone_hash=task.backbone_hash,
        preprocessing=task.preprocessing,
        classes=task.classes,
        corrupt=0,
        max_images=task.max_images,
        release=task.release,
        epsilon=FULL_EPSILON,
        delta=FULL_DELTA,
    )
    participant = Participant(key, b"", policy, entropy(seed("full")))
    client = RoundClient(participant, GATE, one_image(BRIGHT, 1), journal, Timings(), tuning_seed=0)
    params = SessionParams(PROTOCOL, "statistics", bytes(32), host.identity, b"", 4, 0, 0, 3, 0, b"", segments, task)
    return client.answer("statistics", PHASES[0], encode(sign(host, Proposal(params))))


def test_noise_that_fits_no_width_is_refused_before_anything_is_sent() -> None:
    task = full_task()
    unlimited = statistics_segments(task.feature_dimension, len(task.classes), task.feature_bits, task.max_images)
    assert unlimited[0].width == width_of(task.max_images << 40, True) == 8  # it is the noise that is too much
    with pytest.raises(OverflowBudgetError, match="do not fit into 8 bytes"):
        session_segments(task, "statistics", 4)
    journal = Journal()
    with pytest.raises(PolicyRefusal, match=r"'segments'.*do not fit into 8 bytes") as refused:
        answer(task, unlimited, journal)
    assert refused.value.rule == "segments"
    assert journal.released(besides=b"") == []


def test_control_the_same_noise_beside_fewer_images_is_accepted() -> None:
    task = full_task(max_images=2**22)
    assert answer(task, session_segments(task, "statistics", 4), Journal())
