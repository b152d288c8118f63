"""Packing is exact at the edges of every width, sums of packed vectors included, and refuses what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedopal_secure.core.errors import MisuseError, OverflowBudgetError
from fedopal_secure.core.params import Segment
from fedopal_secure.encoding.layout import c_bound, r_diagonal_bound, r_upper_bound, width_of
from fedopal_secure.encoding.vector import pack, unpack


def limits(segment: Segment) -> tuple[int, int]:
    bits = 8 * segment.width
    if segment.signed:
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, min(2**bits, 2**63) - 1


@st.composite
def segments_and_arrays(draw: st.DrawFn) -> tuple[list[Segment], dict[str, np.ndarray]]:
    segments, arrays = [], {}
    for i in range(draw(st.integers(1, 5))):
        segment = Segment(f"s{i}", draw(st.integers(1, 6)), draw(st.integers(1, 8)), draw(st.booleans()))
        least, most = limits(segment)
        near = sorted({min(max(x + e, least), most) for x in (least, -1, 0, most) for e in (-1, 0, 1)})
        values = st.one_of(st.sampled_from(near), st.integers(least, most))
        arrays[segment.name] = np.array(
            draw(st.lists(values, min_size=segment.length, max_size=segment.length)), np.int64
        )
        segments.append(segment)
    return segments, arrays


@given(segments_and_arrays(), st.integers(0, 2**32))
def test_round_trip_reads_the_low_bytes_only(case: tuple[list[Segment], dict[str, np.ndarray]], seed: int) -> None:
    segments, arrays = case
    vector = pack(segments, arrays)
    assert vector.dtype == np.uint64
    assert len(vector) == sum(segment.length for segment in segments)
    noise = np.random.default_rng(seed).integers(0, 2**64, len(vector), np.uint64)
    widths = np.concatenate([np.full(s.length, 8 * s.width % 64, np.uint64) for s in segments])
    noise = np.where(widths == 0, np.uint64(0), noise << widths)  # only bytes that do not travel
    for received in (vector, vector + noise):
        back = unpack(segments, received)
        assert back.keys() == arrays.keys()
        assert all(back[name].dtype == np.int64 and np.array_equal(back[name], arrays[name]) for name in arrays)


@given(st.data(), st.sampled_from([8, 12, 16]), st.integers(1, 2**20), st.integers(1, 6))
def test_sums_at_the_bounds_are_exact(data: st.DataObject, bits: int, images: int, clients: int) -> None:
    """Shares of N 2**2b (and of its neighbours below) come back as their sum in integers, for each of our bounds."""
    bounds = [
        ("diagonal", r_diagonal_bound(bits, images), False),
        ("upper", r_upper_bound(bits, images), True),
        ("c", c_bound(bits, images), True),
    ]
    segments = [Segment(name, 3, width_of(bound, signed), signed) for name, bound, signed in bounds]
    total = np.zeros(9, np.uint64)
    sent: dict[str, list[int]] = {name: [0, 0, 0] for name, _, _ in bounds}
    cuts = {
        name: [sorted(data.draw(st.lists(st.integers(0, bound), min_size=clients - 1, max_size=clients - 1)))]
        for name, bound, _ in bounds
    }
    for k in range(clients):
        arrays = {}
        for name, bound, signed in bounds:
            edges = [0, *cuts[name][0], bound]
            share = edges[k + 1] - edges[k]
            values = [share, -share if signed else share, share - (k == 0 and share > 0)]  # +N, -N (or N), N - 1
            sent[name] = [a + b for a, b in zip(sent[name], values, strict=True)]
            arrays[name] = np.array(values, np.int64)
        total += pack(segments, arrays)
    back = unpack(segments, total)
    assert {name: values.tolist() for name, values in back.items()} == sent
    assert all(sent[name][0] == bound for name, bound, _ in bounds)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("width", range(1, 9))
def test_one_more_than_the_width_holds(width: int, signed: bool) -> None:
    """A value is refused; a sum of two that fit, but do not together, wraps: that is why the budget comes first."""
    segment = Segment("edge", 1, width, signed)
    least, most = limits(segment)
    for inside in (least, most):
        assert unpack([segment], pack([segment], {"edge": np.array([inside])}))["edge"].tolist() == [inside]
    for outside in (least - 1, most + 1):
        if -(2**63) <= outside < 2**63:
            with pytest.raises(OverflowBudgetError, match="'edge'"):
                pack([segment], {"edge": np.array([outside])})
    over = pack([segment], {"edge": np.array([most])}) + np.uint64(1)
    if width == 8 and not signed:
        with pytest.raises(OverflowBudgetError, match="'edge'"):
            unpack([segment], over)
    else:
        assert unpack([segment], over)["edge"].tolist() == [least]


SEGMENTS = [Segment("a", 2, 3, True), Segment("b", 1, 8, False)]


@pytest.mark.parametrize(
    "arrays",
    [
        {"a": np.zeros(2, np.int64)},
        {"a": np.zeros(2, np.int64), "b": np.zeros(1, np.int64), "c": np.zeros(1, np.int64)},
        {"a": np.zeros(3, np.int64), "b": np.zeros(1, np.int64)},
        {"a": np.zeros((2, 1), np.int64), "b": np.zeros(1, np.int64)},
        {"a": np.zeros(2), "b": np.zeros(1, np.int64)},
        {"a": np.zeros(2, np.int64), "b": np.zeros(1, np.uint64)},
    ],
)
def test_arrays_of_other_segments_are_refused(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(MisuseError):
        pack(SEGMENTS, arrays)


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(MisuseError):
        pack([SEGMENTS[0], SEGMENTS[0]], {"a": np.zeros(2, np.int64)})


@pytest.mark.parametrize("vector", [np.zeros(2, np.uint64), np.zeros((3, 1), np.uint64), np.zeros(3, np.int64)])
def test_vectors_of_other_segments_are_refused(vector: np.ndarray) -> None:
    with pytest.raises(MisuseError):
        unpack(SEGMENTS, vector)


def test_the_vector_of_no_segments_is_empty() -> None:
    assert pack([], {}).shape == (0,)
    assert unpack([], np.empty(0, np.uint64)) == {}
