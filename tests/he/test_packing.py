"""Entries come back from slots as their sum, at every width, with sums at the very edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedopal_secure.core.errors import MisuseError, PolicyRefusal
from fedopal_secure.core.params import Segment
from fedopal_secure.core.ring import reduce_to_width
from fedopal_secure.he import packing
from fedopal_secure.he.parameters import BFV, DIGIT_BITS

MODULI = BFV.plain_moduli


def edges(segment):
    bits = 8 * segment.width
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if segment.signed else (0, (1 << bits) - 1)
    half = 1 << (DIGIT_BITS - 1)
    values = {low, low + 1, -1, 0, 1, half - 1, half, half + 1, high // 2, high - 1, high}
    return sorted(value for value in values if low <= value <= high)


def vector_of(values):
    return np.array([value % 2**64 for value in values], dtype=np.uint64)


every_segment = pytest.mark.parametrize(
    "segment", [Segment("x", 0, width, signed) for width in range(1, 9) for signed in (True, False)], ids=str
)


def sized(segment, values):
    return (Segment(segment.name, len(values), segment.width, segment.signed),)


@every_segment
def test_edges_come_back(segment):
    values = edges(segment)
    segments, vector = sized(segment, values), vector_of(values)
    expected = reduce_to_width(vector, segments)
    residues = packing.to_residues(vector, segments, MODULI)
    assert np.array_equal(packing.from_residues(residues, segments, MODULI), expected)
    digits = packing.to_digits(vector, segments)
    assert np.array_equal(packing.from_digits(digits, segments), expected)
    assert np.abs(digits).max() <= 1 << (DIGIT_BITS - 1)


@every_segment
@given(data=st.data())
def test_sums_of_parts_are_parts_of_sums(segment, data):
    bits, clients = 8 * segment.width, 5
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if segment.signed else (0, (1 << bits) - 1)
    shares = st.lists(st.integers(low // clients + 1, high // clients), min_size=3, max_size=3)
    vectors = [vector_of(data.draw(shares)) for _ in range(clients)]
    segments = sized(segment, [0] * 3)
    expected = reduce_to_width(np.sum(vectors, axis=0, dtype=np.uint64), segments)
    columns = zip(*(packing.to_residues(vector, segments, MODULI) for vector in vectors), strict=True)
    summed = [
        np.array([sum(map(int, column)) % t for column in zip(*parts, strict=True)], dtype=np.uint64)
        for parts, t in zip(columns, MODULI, strict=True)
    ]
    assert np.array_equal(packing.from_residues(summed, segments, MODULI), expected)
    digits = np.sum([packing.to_digits(vector, segments) for vector in vectors], axis=0)
    assert np.array_equal(packing.from_digits(digits, segments), expected)


def test_only_wide_entries_have_a_second_residue():
    segments = [Segment(str(width), width, width, False) for width in range(1, 9)]
    assert packing.residue_counts(segments, MODULI) == (36, 7 + 8)
    assert packing.digit_count(segments) == (1 + 2 + 3) * 1 + (4 + 5 + 6) * 2 + (7 + 8) * 3
    parts = packing.to_residues(np.zeros(36, np.uint64), segments, MODULI)
    assert [len(part) for part in parts] == [36, 15]


def test_residues_of_a_sum_tell_no_more_than_the_sum():
    # Two ways to share 300 out over two clients: sums of residues are equal, while base-256 digits would carry.
    segments, totals = (Segment("x", 1, 8, False),), []
    for shares in ((150, 150), (299, 1)):
        parts = [packing.to_residues(vector_of([share]), segments, MODULI) for share in shares]
        totals.append([(int(a[0]) + int(b[0])) % t for a, b, t in zip(*parts, MODULI, strict=True)])
    assert totals[0] == totals[1]


def test_too_wide_for_the_moduli():
    with pytest.raises(PolicyRefusal, match="fewer bits"):
        packing.residue_counts([Segment("r", 1, 7, True)], MODULI[:1])


def test_ring_of_the_plain_modulus():
    t = MODULI[0]
    values = [0, 1, -1, t // 2, -(t // 2)]
    ring = packing.to_ring(vector_of(values), t)
    assert ring.tolist() == [value % t for value in values]
    assert np.array_equal(packing.centred(ring, t), vector_of(values))
    for outside in (t // 2 + 1, -(t // 2) - 1):
        with pytest.raises(MisuseError, match="plain modulus"):
            packing.to_ring(vector_of([outside]), t)
