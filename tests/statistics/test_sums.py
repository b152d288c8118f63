"""Sums are the exact integers, whatever the split, the order, the block and the size of the features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedopal_secure.core.errors import InputError, MisuseError, OverflowBudgetError
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.encoding.layout import statistics_segments
from fedopal_secure.encoding.vector import pack, unpack
from fedopal_secure.statistics.sums import SufficientStatistics, accumulate


def grid_points(rng: np.random.Generator, n: int, dimension: int, bits: int) -> np.ndarray:
    """Random grid points, some at the very edge of the ball."""
    q = FeatureGrid(dimension, bits=bits).quantise(rng.standard_normal((n, dimension)))
    edge = rng.random(n) < 0.3
    q[edge] = 0
    q[edge, rng.integers(0, dimension, edge.sum())] = rng.choice([-1, 1], edge.sum()) * (1 << bits)
    return q


def naive(q: np.ndarray, labels: np.ndarray, classes: int) -> tuple[list, list, list]:
    """The same sums in Python integers."""
    d = q.shape[1]
    r, c, counts = [[0] * d for _ in range(d)], [[0] * classes for _ in range(d)], [0] * classes
    for row, label in zip(q.tolist(), labels.tolist(), strict=True):
        counts[label] += 1
        for i in range(d):
            c[i][label] += row[i]
            for j in range(d):
                r[i][j] += row[i] * row[j]
    return r, c, counts


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 80), st.integers(1, 6), st.integers(1, 4), st.integers(3, 24))
def test_equals_python_integers(seed: int, n: int, dimension: int, classes: int, bits: int) -> None:
    rng = np.random.default_rng(seed)
    q, labels = grid_points(rng, n, dimension, bits), rng.integers(0, classes, n)
    s = accumulate(q, labels, classes, bits)
    assert (s.r.tolist(), s.c.tolist(), s.counts.tolist()) == naive(q, labels, classes)
    assert s.images == n


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(2, 40), st.integers(1, 12), st.sampled_from([4, 12, 24]))
def test_any_split_and_order_give_the_same_bits(seed: int, n: int, dimension: int, clients: int, bits: int) -> None:
    rng = np.random.default_rng(seed)
    classes = 5
    q, labels = grid_points(rng, n, dimension, bits), rng.integers(0, classes, n)
    pooled = accumulate(q, labels, classes, bits)
    owner = rng.integers(0, clients, n)  # some clients may hold nothing
    order = rng.permutation(n)
    parts = []
    for client in rng.permutation(clients):
        mine = order[owner[order] == client]
        parts.append(accumulate(q[mine], labels[mine], classes, bits))
    assert sum(parts, SufficientStatistics.zeros(dimension, classes)) == pooled


def test_features_split_over_clients_give_the_same_bits() -> None:
    """From the float features on: each client rounds and sums its own; the vectors add up to the pooled sums."""
    rng = np.random.default_rng(5)
    features, labels = rng.standard_normal((500, 33)).astype(np.float32), rng.integers(0, 7, 500)
    grid = FeatureGrid(33)
    segments = statistics_segments(33, 7, grid.bits, 500)
    total = np.zeros(sum(segment.length for segment in segments), np.uint64)
    for mine in np.array_split(rng.permutation(500), 9):
        total += pack(segments, accumulate(grid.quantise(features[mine]), labels[mine], 7, grid.bits).to_arrays())
    pooled = accumulate(grid.quantise(features), labels, 7, grid.bits)
    assert SufficientStatistics.from_arrays(unpack(segments, total), 33, 7) == pooled


@pytest.mark.parametrize(("bits", "n"), [(24, 101), (20, 20_001), (22, 1501)])
def test_sums_beyond_float64_are_exact(bits: int, n: int) -> None:
    """Squares of odd numbers whose sum passes 2**53: one float64 product over all rows is wrong (the control)."""
    q = np.zeros((n, 3), np.int32)
    q[:, 0] = (1 << bits) - 1
    q[:, 1] = np.arange(n) % 3 - 1
    labels = np.zeros(n, np.int64)
    s = accumulate(q, labels, 1, bits)
    exact = n * ((1 << bits) - 1) ** 2
    assert exact > 2**53
    assert s.r[0].tolist() == [exact, ((1 << bits) - 1) * int(q[:, 1].sum()), 0]
    assert s.c[0, 0] == n * ((1 << bits) - 1)
    assert int((q.astype(np.float64).T @ q.astype(np.float64))[0, 0]) != exact


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 5))
def test_arrays_round_trip(seed: int, dimension: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    s = accumulate(grid_points(rng, 20, dimension, 12), rng.integers(0, classes, 20), classes, 12)
    arrays = s.to_arrays()
    assert arrays["r_upper"].tolist() == [int(s.r[i, j]) for i in range(dimension) for j in range(i + 1, dimension)]
    assert SufficientStatistics.from_arrays(arrays, dimension, classes) == s


def test_statistics_know_when_they_differ() -> None:
    a = accumulate(np.array([[1, 2]]), np.array([0]), 2, 12)
    assert a != accumulate(np.array([[1, 3]]), np.array([0]), 2, 12)
    assert a != accumulate(np.array([[1, 2]]), np.array([1]), 2, 12)
    assert a != "statistics"


def test_the_budget_counts_images() -> None:
    s = accumulate(np.ones((5, 2), np.int32), np.array([0, 1, 1, 0, 1]), 2, 12)
    s.check_budget(5)
    with pytest.raises(OverflowBudgetError, match="5 images, but the session's budget is 4"):
        s.check_budget(4)
    huge = SufficientStatistics(s.r, s.c, np.array([2**62, 2**62]))  # wraps if it is added as int64
    with pytest.raises(OverflowBudgetError):
        huge.check_budget(2**40)
    with pytest.raises(OverflowBudgetError):
        SufficientStatistics(s.r, s.c, np.array([-1, 3])).check_budget(5)


def test_a_row_outside_the_ball_is_refused() -> None:
    """One unit beyond, at 24 bits, in the second block."""
    q = np.zeros((60, 2), np.int32)
    q[:, 0] = 1 << 24
    accumulate(q, np.zeros(60, int), 1, 24)
    q[47, 1] = 1
    with pytest.raises(OverflowBudgetError, match="row 47"):
        accumulate(q, np.zeros(60, int), 1, 24)
    with pytest.raises(OverflowBudgetError, match="row 0"):
        accumulate(np.full((1, 9), np.iinfo(np.int32).min, np.int32), np.zeros(1, int), 1, 12)


@pytest.mark.parametrize("label", [-1, 3, 100])
def test_labels_out_of_range_are_refused(label: int) -> None:
    with pytest.raises(InputError, match=f"label {label} of row 2"):
        accumulate(np.zeros((4, 2), np.int32), np.array([0, 2, label, 1]), 3, 12)


def test_sums_that_could_pass_64_bits_are_refused() -> None:
    """Before any work: 2**15 images at 24 bits may reach 2**63."""
    q = np.zeros((2**15, 1), np.int32)
    with pytest.raises(OverflowBudgetError, match="32768 images"):
        accumulate(q, np.zeros(2**15, int), 1, 24)
    q = q[1:]
    q[:] = 1 << 24
    assert accumulate(q, np.zeros(2**15 - 1, int), 1, 24).r[0, 0] == (2**15 - 1) * 2**48


def test_adding_never_wraps() -> None:
    q = np.full((2**14, 1), 1 << 24, np.int32)
    half = accumulate(q, np.zeros(2**14, int), 1, 24)  # R is 2**62
    with pytest.raises(OverflowBudgetError, match="64 bits"):
        half + half


def test_no_images_have_zero_statistics() -> None:
    empty = accumulate(np.empty((0, 3), np.int32), np.empty(0, np.int64), 4, 12)
    assert empty == SufficientStatistics.zeros(3, 4)
    assert empty.images == 0


@pytest.mark.parametrize(
    ("q", "labels", "classes", "bits"),
    [
        (np.zeros((2, 3)), np.zeros(2, int), 2, 12),
        (np.zeros((2, 3), int), np.zeros(2), 2, 12),
        (np.zeros((2, 3), int), np.zeros(3, int), 2, 12),
        (np.zeros(3, int), np.zeros(3, int), 2, 12),
        (np.zeros((2, 3), int), np.zeros(2, int), 0, 12),
        (np.zeros((2, 3), int), np.zeros(2, int), 2, 25),
    ],
)
def test_misuse_is_refused(q: np.ndarray, labels: np.ndarray, classes: int, bits: int) -> None:
    with pytest.raises(MisuseError):
        accumulate(q, labels, classes, bits)


@pytest.mark.parametrize(
    ("r", "c", "counts"),
    [
        (np.zeros((2, 2)), np.zeros((2, 1), int), np.zeros(1, int)),
        (np.zeros((2, 3), int), np.zeros((2, 1), int), np.zeros(1, int)),
        (np.zeros((2, 2), int), np.zeros((3, 1), int), np.zeros(1, int)),
        (np.zeros((2, 2), int), np.zeros((2, 1), int), np.zeros(2, int)),
        (np.array([[0, 1], [0, 0]]), np.zeros((2, 1), int), np.zeros(1, int)),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(r: np.ndarray, c: np.ndarray, counts: np.ndarray) -> None:
    with pytest.raises(MisuseError):
        SufficientStatistics(r, c, counts)


def test_other_shapes_and_names_are_refused() -> None:
    s = SufficientStatistics.zeros(3, 2)
    with pytest.raises(MisuseError):
        s + SufficientStatistics.zeros(3, 4)
    arrays = s.to_arrays()
    with pytest.raises(MisuseError, match="'c'"):
        SufficientStatistics.from_arrays(arrays, 3, 4)
    del arrays["counts"]
    with pytest.raises(MisuseError, match="'counts'"):
        SufficientStatistics.from_arrays(arrays, 3, 2)
