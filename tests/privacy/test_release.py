"""What one image, or one group, can move: never more than the release states, and as much as it states."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedopal_secure.core.errors import PolicyRefusal
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.encoding.layout import COUNTS, R_DIAGONAL, R_UPPER, C
from fedopal_secure.privacy.calibration import Vector, calibrate
from fedopal_secure.privacy.release import (
    Release,
    check_release,
    parse_release,
    squared_sensitivities,
    zcdp,
)
from fedopal_secure.statistics.sums import accumulate

D, CLASSES, BITS, SCALE = 4, 3, 6, 128
LIMITS = squared_sensitivities(D, BITS, SCALE, 1)


def moved(before: NDArray[np.int32], added: NDArray[np.int32], labels: list[int]) -> dict[str, NDArray[np.int64]]:
    """By segment, the difference that adding these rows to a data set makes to the vector."""
    base = np.arange(len(before)) % CLASSES
    with_them = accumulate(np.concatenate([before, added]), np.concatenate([base, labels]).astype(int), CLASSES, BITS)
    without = accumulate(before, base, CLASSES, BITS)
    arrays = {name: array - without.to_arrays()[name] for name, array in with_them.to_arrays().items()}
    return arrays | {COUNTS: arrays[COUNTS] * SCALE}


def squared(array: NDArray[np.int64]) -> int:
    return sum(int(x) ** 2 for x in array)


def cost(release: Release, difference: dict[str, NDArray[np.int64]]) -> float:
    """Sum over segments of squared norm / (2 m sigma^2): what this difference costs under Gaussian noise."""
    m = release.contributors
    parts = (Fraction(squared(difference[s.name]), 2 * m * s.sigma**2) for s in release.segments)
    return float(sum(parts))


def release_of(dimension: int = D, bits: int = BITS, **options: object) -> Release:
    mode = options.pop("mode", "distributed")
    return calibrate(Vector(dimension, CLASSES, bits, 1000, 4), mode, 1.0, 1e-5, **options)  # type: ignore[arg-type]


entries = st.lists(st.integers(-(2**BITS), 2**BITS), min_size=D, max_size=D)


@settings(max_examples=150, deadline=None)
@given(entries, st.integers(0, CLASSES - 1))
def test_no_grid_point_moves_a_segment_further_than_stated(point: list[int], label: int) -> None:
    q = np.array([point], np.int32)
    while (q.astype(np.int64) ** 2).sum() > 4**BITS:
        q //= 2
    difference = moved(np.zeros((2, D), np.int32), q, [label])
    for name, limit in LIMITS.items():
        assert squared(difference[name]) <= limit, name
    release = release_of()
    assert cost(release, difference) <= zcdp(release)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 1e300])
def test_no_feature_moves_a_segment_further_than_stated(normalise: bool, scale: float) -> None:
    grid = FeatureGrid(D, 1.0, BITS, normalise)
    random = np.random.default_rng(0)
    features = np.concatenate([random.standard_normal((50, D)), np.eye(D), np.ones((1, D)), -np.ones((1, D))]) * scale
    for q in grid.quantise(features):
        difference = moved(np.zeros((1, D), np.int32), q[None], [1])
        assert all(squared(difference[name]) <= limit for name, limit in LIMITS.items())


ONE_AXIS = np.array([[2**BITS, 0, 0, 0]], np.int32)
ALL_EQUAL = np.full((1, D), 2 ** (BITS - 1), np.int32)  # norm 2**BITS, since D = 4


@pytest.mark.parametrize(
    ("segment", "record"), [(R_DIAGONAL, ONE_AXIS), (R_UPPER, ALL_EQUAL), (C, ONE_AXIS), (COUNTS, ONE_AXIS)]
)
def test_a_record_meets_each_bound_with_equality(segment: str, record: NDArray[np.int32]) -> None:
    assert squared(moved(ONE_AXIS, record, [0])[segment]) == LIMITS[segment]


def test_a_record_meets_the_joint_bound_with_equality() -> None:
    release = release_of()
    assert cost(release, moved(ONE_AXIS, ALL_EQUAL, [0])) == pytest.approx(zcdp(release), rel=1e-12)


def test_control_a_point_outside_the_ball_breaks_every_bound_but_that_of_the_counts() -> None:
    outside = 2 * ALL_EQUAL
    difference = {
        R_DIAGONAL: outside[0].astype(np.int64) ** 2,
        R_UPPER: np.outer(outside, outside)[np.triu_indices(D, 1)],
        C: outside[0],
    }
    assert all(squared(array) > LIMITS[name] for name, array in difference.items() if name != R_DIAGONAL)
    assert 4 * squared(ONE_AXIS[0] ** 2) > LIMITS[R_DIAGONAL]


@pytest.mark.parametrize("k", [2, 5])
def test_a_group_moves_as_many_times_as_much_as_it_has_images(k: int) -> None:
    limits = squared_sensitivities(D, BITS, SCALE, k)
    same = moved(ONE_AXIS, np.repeat(ALL_EQUAL, k, axis=0), [0] * k)
    assert squared(same[R_UPPER]) == limits[R_UPPER]
    on_axis = moved(ONE_AXIS, np.repeat(ONE_AXIS, k, axis=0), [0] * k)
    assert all(squared(on_axis[name]) == limits[name] for name in (R_DIAGONAL, C, COUNTS))
    random = np.random.default_rng(k)
    grid = FeatureGrid(D, 1.0, BITS)
    for _ in range(50):
        q = grid.quantise(random.standard_normal((k, D)))
        difference = moved(ONE_AXIS, q, list(random.integers(0, CLASSES, k)))
        assert all(squared(difference[name]) <= limit for name, limit in limits.items())


def test_a_group_costs_the_square_of_its_images() -> None:
    one, five = release_of(), release_of(unit="group", unit_images=5)
    assert five.sigma(R_UPPER) == pytest.approx(5 * one.sigma(R_UPPER), rel=1e-3)
    assert zcdp(five) == pytest.approx(zcdp(one), rel=1e-2)
    unscaled = msgspec.structs.replace(five, segments=one.segments)  # the control: noise for one image
    difference = moved(ONE_AXIS, np.repeat(ALL_EQUAL, 5, axis=0), [0] * 5)
    assert cost(unscaled, difference) > 20 * zcdp(one)


def test_the_least_sigma_of_the_cheapest_split_is_on_the_diagonal() -> None:
    release = release_of(dimension=64, bits=12)
    assert release.sigma(R_DIAGONAL) ** 2 >= 2 * release.sigma(R_UPPER) ** 2
    assert (release.sigma(R_DIAGONAL) - 1) ** 2 < 2 * release.sigma(R_UPPER) ** 2


def check(release: Release, **changed: object) -> None:
    facts = {"dimension": D, "classes": CLASSES, "bits": BITS, "prompt_mode": "none", "max_images": 1000, "honest": 4}
    check_release(release, **(facts | changed))  # type: ignore[arg-type]


def test_a_release_is_read_back_from_its_text() -> None:
    release = release_of()
    assert parse_release(release.text()) == release
    check(release)


@pytest.mark.parametrize("text", ["", "dp", "{}", "null", '{"mechanism":"discrete-gaussian"}', "[" * 100_000])
def test_what_is_no_release_is_refused(text: str) -> None:
    with pytest.raises(PolicyRefusal, match="'release'"):
        parse_release(text)


def test_another_text_of_the_same_release_is_refused() -> None:
    with pytest.raises(PolicyRefusal, match="canonical"):
        parse_release(release_of().text().replace(":", ": ", 1))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mechanism", "laplace", "no mechanism 'laplace'"),
        ("relation", "replace-one", "no relation"),
        ("mode", "shuffled", "no mode"),
        ("unit", "person", "no unit"),
        ("unit_images", 2, "a unit of 2 images"),
        ("epsilon", 0.0, "epsilon is 0"),
        ("epsilon", -1.0, "epsilon is -1"),
        ("delta", 1e-3, "below 1/1000"),
        ("contributors", 5, "counts on 5 sources"),
        ("contributors", 0, "counts on 0 sources"),
        ("count_scale", 0, "0 grid units"),
        ("segments", (), "not the session's"),
    ],
)
def test_a_release_that_is_unknown_or_of_another_vector_is_refused(field: str, value: object, message: str) -> None:
    release = msgspec.structs.replace(release_of(), **{field: value})
    with pytest.raises(PolicyRefusal, match=message):
        check(release)


@pytest.mark.parametrize("sigma", [2, 0, -5, 2**40 + 1])
def test_noise_that_cannot_hold_a_claim_is_refused(sigma: int) -> None:
    release = release_of()
    first, *rest = release.segments
    with pytest.raises(PolicyRefusal, match="sigma of 'r_diagonal'"):
        check(msgspec.structs.replace(release, segments=(msgspec.structs.replace(first, sigma=sigma), *rest)))


@pytest.mark.parametrize("changed", [{"dimension": 5}, {"bits": 7}, {"classes": 4}])
def test_a_stated_sensitivity_must_be_the_vectors(changed: dict[str, int]) -> None:
    with pytest.raises(PolicyRefusal, match="not the session's"):
        check(release_of(), **changed)


def test_prompts_tuned_without_privacy_are_refused() -> None:
    for mode in ("local", "two-phase"):
        with pytest.raises(PolicyRefusal, match="void the bound of every feature"):
            check(release_of(), prompt_mode=mode)
    check(release_of(), prompt_mode="public")
