"""The two rings: sums against Python integers, wire forms, primes, and words without bias."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fedopal_secure.core.errors import MisuseError
from fedopal_secure.core.params import Segment
from fedopal_secure.core.ring import Ring, from_wire, is_prime, reduce_to_width, to_wire
from tests.core.harness import PRIMES, segments

MODULI = (0, 3, 251, *PRIMES, 2**63 - 25)  # the last one is the largest prime below 2**63


@pytest.mark.parametrize("modulus", MODULI)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_sums_and_differences(modulus, data):
    order = modulus or 2**64
    entries = st.sampled_from((0, 1, order // 2, order - 2, order - 1)) | st.integers(0, order - 1)
    one, other = (data.draw(st.lists(entries, min_size=5, max_size=5)) for _ in range(2))
    for combine, sign in ((Ring(modulus).add_into, 1), (Ring(modulus).subtract_into, -1)):
        total = np.array(one, dtype=np.uint64)
        term = np.array(other, dtype=np.uint64)
        combine(total, term)
        assert total.tolist() == [(a + sign * b) % order for a, b in zip(one, other, strict=True)]
        assert term.tolist() == other
        assert Ring(modulus).contains(total)


def test_contains():
    assert Ring(0).contains(np.array([2**64 - 1], dtype=np.uint64))
    assert Ring(251).contains(np.array([250], dtype=np.uint64))
    assert not Ring(251).contains(np.array([0, 251], dtype=np.uint64))
    assert Ring(251).contains(np.zeros(0, dtype=np.uint64))


def test_primes():
    sieve = [n for n in range(3000) if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))]
    assert [n for n in range(-5, 3000) if is_prime(n)] == sieve
    for prime in (2**31 - 1, 2**61 - 1, 2**63 - 25, 2**64 - 59, PRIMES[0]):
        assert is_prime(prime)
    # Strong pseudoprimes to the first 1 to 11 prime bases (OEIS A014233), Carmichael numbers, squares of primes.
    composites = [
        *(2047, 1373653, 25326001, 3215031751, 2152302898747, 3474749660383, 341550071728321, 3825123056546413051),
        *(561, 1105, 1729, 41**2, (2**31 - 1) ** 2, 2**61 + 1, 2**63 - 1),
    ]
    assert not any(is_prime(number) for number in composites)


def test_the_prime_of_the_harness_suits_bfv():
    assert PRIMES[0].bit_length() == 50
    assert PRIMES[0] % (2 * 8192) == 1


# Words. All statistics here use fixed entropy, so they pass or fail for good; with fresh entropy each would fail with
# the stated probability although all is well.

FALSE_ALARM = 1e-6


def chi_square_is_fine(counts: np.ndarray) -> bool:
    """Whether counts look uniform: Pearson's test with a false-alarm rate of 1e-6."""
    expected = counts.sum() / len(counts)
    return ((counts - expected) ** 2 / expected).sum() < chi2.isf(FALSE_ALARM, len(counts) - 1)


@pytest.mark.parametrize("modulus", [3, 11, 251])
def test_accepted_words_have_no_bias(modulus):
    words = np.random.default_rng(1).integers(0, 2**64, 200_000, dtype=np.uint64, endpoint=False)
    accepted = Ring(modulus).accept(words)
    assert int(accepted.max()) < modulus
    assert chi_square_is_fine(np.bincount(accepted.astype(np.int64), minlength=modulus))


def test_reduction_instead_of_rejection_would_be_biased():
    """The control: 256 is no multiple of 251, so five residues come twice as often."""
    words = np.random.default_rng(1).integers(0, 2**64, 200_000, dtype=np.uint64, endpoint=False)
    assert not chi_square_is_fine(np.bincount(((words & np.uint64(255)) % np.uint64(251)).astype(np.int64)))


def test_accept_keeps_order_and_cuts_to_the_bit_length():
    words = np.array([3, 250, 251, 255, 256, 2**64 - 1, 2**63 + 7], dtype=np.uint64)
    assert Ring(251).accept(words).tolist() == [3, 250, 0, 7]
    assert Ring(0).accept(words) is words


# Wire form.


@st.composite
def vectors(draw: st.DrawFn) -> tuple[list[Segment], list[int]]:
    shapes = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 8)), min_size=1, max_size=4))
    parts = list(segments(*shapes))
    return parts, [draw(st.integers(0, 2**64 - 1)) for part in parts for _ in range(part.length)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(vectors())
def test_the_wire_carries_the_low_bytes(case):
    parts, values = case
    vector = np.array(values, dtype=np.uint64)
    payload = to_wire(vector, parts)
    widths = [part.width for part in parts for _ in range(part.length)]
    naive = b"".join((v % 256**w).to_bytes(w, "little") for v, w in zip(values, widths, strict=True))
    assert payload == naive
    expected = [v % 256**w for v, w in zip(values, widths, strict=True)]
    assert from_wire(payload, parts).tolist() == expected
    assert reduce_to_width(vector, iter(parts)).tolist() == expected
    assert from_wire(payload, parts).dtype == np.uint64


def test_a_vector_that_does_not_fit_its_segments():
    for length in (4, 6):
        with pytest.raises(MisuseError, match=f"5 entries and the vector has {length}"):
            to_wire(np.zeros(length, dtype=np.uint64), segments((2, 3), (3, 8)))
