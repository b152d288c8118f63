"""An empirical audit of the private release: what attacks prove stays below the claim, and with less noise exceeds it.

How many runs it takes was computed before any was made, so it is no luck that a control succeeds
(`test_these_runs_are_enough_to_tell_half_the_noise`). By the confidence of `auditing`, an honest release fails for one
seed in a thousand at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fedopal_secure.core.shamir import Entropy
from fedopal_secure.encoding.layout import COUNTS, R_DIAGONAL, R_UPPER, C
from fedopal_secure.privacy import noise
from fedopal_secure.privacy.calibration import Vector, calibrate
from fedopal_secure.privacy.gaussian import discrete_gaussian
from fedopal_secure.privacy.release import Mode, Unit, zcdp
from fedopal_secure.statistics.sums import accumulate
from tests.privacy.auditing import CONFIDENCE, Target, audit, chances, lower_bound, scores

DIMENSION, CLASSES, BITS, DELTA = 2, 2, 12, 1e-5
HONEST = 2  # a least cohort of three, of whom one is corrupt and has told its noise
SEGMENTS = (R_DIAGONAL, R_UPPER, C, COUNTS)
RUNS = {0.5: 500_000, 1.0: 200_000, 4.0: 150_000}  # in each world
EPSILONS = sorted(RUNS)
# A grid point with equal entries, which moves the diagonal and the triangle by as much as any may move both.
CANARY = np.full((1, DIMENSION), math.isqrt(4**BITS // DIMENSION), np.int32)


def target(
    epsilon: float,
    mode: Mode = "distributed",
    *,
    unit: Unit = "image",
    unit_images: int = 1,
    images: int = 1,
    segments: tuple[str, ...] = SEGMENTS,
) -> Target:
    """A release for units of `unit_images`, attacked by a record of `images` equal ones."""
    vector = Vector(DIMENSION, CLASSES, BITS, 1000, HONEST)
    release = calibrate(vector, mode, epsilon, DELTA, r_share=0.5, unit=unit, unit_images=unit_images)
    random = np.random.default_rng(0)
    clients = tuple(
        accumulate(random.integers(-(2**11), 2**11, (20, DIMENSION)), random.integers(0, CLASSES, 20), CLASSES, BITS)
        for _ in range(HONEST)
    )
    record = accumulate(np.repeat(CANARY, images, axis=0), np.zeros(images, np.int64), CLASSES, BITS)
    return Target(release, clients, record, segments)


def entropy(seed: int) -> Entropy:
    return np.random.default_rng(seed).bytes


Sampler = Callable[[int, int, Entropy], NDArray[np.int64]]


def half(sigma: int, count: int, entropy: Entropy) -> NDArray[np.int64]:
    return discrete_gaussian(sigma // 2, count, entropy)


def none(sigma: int, count: int, entropy: Entropy) -> NDArray[np.int64]:
    return np.zeros(count, np.int64)


def shown(epsilon: float, noise: str, bound: float) -> float:
    """The bound, and a line for docs/dp.md: `pytest tests/privacy/test_audit.py -k claim -s`."""
    print(f"\nclaimed epsilon {epsilon:g}, {noise}: attacks prove at least {bound:.3f}")
    return bound


# The auditor itself.


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_auditor_finds_the_epsilon_of_randomised_response(epsilon: float) -> None:
    runs, random = 1_000_000, np.random.default_rng(1)
    hits, alarms = random.binomial(runs, [1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))])
    assert 0.97 * epsilon < lower_bound(alarms, hits, runs, 0.0, 1 - CONFIDENCE) <= epsilon


def test_a_bound_that_must_hold_always_is_none() -> None:
    assert lower_bound(0, 0, 10, DELTA, 0.01) == -math.inf
    assert lower_bound(10, 10, 10, DELTA, 0.01) < 0
    assert lower_bound(0, 10**6, 10**6, DELTA, 0.01) > 10


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_canary_is_as_bad_as_any(epsilon: float) -> None:
    attacked = target(epsilon)
    assert 0.999 < attacked.distance() ** 2 / (2 * zcdp(attacked.release)) <= 1


def test_scores_are_what_the_attacker_takes_them_for() -> None:
    attacked = target(1.0)
    for present, mean in ((False, 0.0), (True, attacked.distance())):
        found = scores(attacked, present, 100_000, entropy(2))
        assert found.mean() == pytest.approx(mean, abs=0.02)
        assert found.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_these_runs_are_enough_to_tell_half_the_noise(epsilon: float) -> None:
    assert max(chances(target(epsilon), RUNS[epsilon], 0.5)) > 0.999
    assert sum(chances(target(epsilon), RUNS[epsilon], 1.0)) < 1e-6  # and all of it is not taken for less


# The audit, each with its controls.


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_attacks_prove_less_than_is_claimed(epsilon: float) -> None:
    attacked = target(epsilon)
    found = shown(epsilon, "as released", audit(attacked, RUNS[epsilon], entropy(3)))
    assert 0 < found <= attacked.release.epsilon <= epsilon


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_control_half_the_noise_breaks_the_claim(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "discrete_gaussian", half)
    assert shown(epsilon, "sigma halved", audit(target(epsilon), RUNS[epsilon], entropy(4))) > epsilon


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_control_no_noise_breaks_the_claim(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "discrete_gaussian", none)
    assert shown(epsilon, "without noise", audit(target(epsilon), 10_000, entropy(5))) > max(epsilon, 6)


@pytest.mark.parametrize("segment", SEGMENTS)
def test_control_one_segment_without_noise_breaks_the_claim(segment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = target(4.0, segments=(segment,))
    assert audit(attacked, 10_000, entropy(6)) < 4
    bare = attacked.release.sigma(segment)
    monkeypatch.setattr(noise, "discrete_gaussian", lambda s, n, e: none(s, n, e) if s == bare else half(s, n, e))
    assert audit(attacked, 10_000, entropy(6)) > 6


def test_the_noise_of_a_trusted_server_holds_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < audit(target(4.0, "central"), RUNS[4.0], entropy(7)) <= 4
    monkeypatch.setattr(noise, "discrete_gaussian", half)
    assert audit(target(4.0, "central"), RUNS[4.0], entropy(8)) > 4


def test_a_group_is_hidden_by_noise_for_a_group() -> None:
    attacked = target(1.0, unit="group", unit_images=3, images=3)
    assert attacked.distance() ** 2 / (2 * zcdp(attacked.release)) > 0.999
    assert 0 < audit(attacked, 50_000, entropy(9)) <= 1


def test_control_a_group_is_not_hidden_by_noise_for_one_image() -> None:
    assert audit(target(1.0, images=3), 50_000, entropy(10)) > 1.5
