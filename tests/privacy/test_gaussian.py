"""The discrete Gaussian against its exact probabilities, against OpenDP's sampler, and decision by decision."""

from __future__ import annotations

import math
import os
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedopal_secure.core.errors import MisuseError
from fedopal_secure.privacy import gaussian
from fedopal_secure.privacy.gaussian import MAX_SIGMA, discrete_gaussian, tail_bound

# Seeds are fixed, so a check passes always or never; where OpenDP draws its own entropy, it errs once in a million.
LEVEL = 1e-3
LEVEL_UNSEEDED = 1e-6


def entropy(seed):
    return np.random.default_rng(seed).bytes


def scripted(data):
    """Bytes one after the other, and no more than there are."""
    position = 0

    def take(count):
        nonlocal position
        position += count
        assert position <= len(data)
        return data[position - count : position]

    take.left = lambda: len(data) - position
    return take


def draw(sigma, count, seed=1):
    return discrete_gaussian(sigma, count, entropy(seed))


def rounded_normal(sigma, count, seed=1):
    return np.rint(np.random.default_rng(seed).normal(0, sigma, count)).astype(np.int64)


@lru_cache
def probabilities(sigma):
    """The values within 12 sigma, and their probabilities."""
    values = np.arange(-12 * sigma, 12 * sigma + 1)
    weights = np.exp(-((values / sigma) ** 2) / 2)
    return values, weights / weights.sum()


def chi_square(counts, expected):
    """The p-value, after neighbours are pooled until 20 are expected in each cell."""
    cell = np.minimum(np.cumsum(expected) // 20, expected.sum() // 20 - 1).astype(np.int64)
    _, cell = np.unique(cell, return_inverse=True)
    pooled = np.bincount(cell, expected)
    return stats.chisquare(np.bincount(cell, counts), pooled * (counts.sum() / pooled.sum())).pvalue


def fits(samples, sigma):
    values, expected = probabilities(sigma)
    counts = np.bincount(samples - values[0], minlength=len(values))
    return chi_square(counts, expected * len(samples)) > LEVEL


def has_the_moments(samples, sigma):
    """Mean, variance, skewness and fourth moment, each within five standard deviations."""
    if sigma <= 50:
        values, weights = probabilities(sigma)
    else:  # beyond 50 the discrete moments are the continuous ones to far more digits than a float has
        values, weights = np.polynomial.hermite_e.hermegauss(20)
        values, weights = values * sigma, weights / weights.sum()
    moment = [float(np.sum(weights * (values / sigma) ** k)) for k in range(9)]
    return all(
        abs(np.mean((samples / sigma) ** k) - moment[k])
        < 5 * math.sqrt((moment[2 * k] - moment[k] ** 2) / len(samples))
        for k in (1, 2, 3, 4)
    )


# Single integers are strips up to sigma = 63; 64, 100 and 1000 have strips of 2, 2 and 16.
@pytest.mark.parametrize("sigma", [1, 2, 3, 50, 63, 64, 100, 1000])
def test_exact_probabilities(sigma):
    assert fits(draw(sigma, 200_000), sigma)


@pytest.mark.parametrize("sigma", [1, 50, 100])
def test_exact_probabilities_where_no_strip_is_settled_by_one_digit(sigma, monkeypatch):
    unsettled = np.full(65536, gaussian._OPEN, dtype=np.uint16)
    monkeypatch.setattr(gaussian, "_first_digit", lambda sigma: unsettled)
    assert fits(draw(sigma, 10_000), sigma)


@pytest.mark.parametrize("sigma", [1, 3, 50, 2**15, 2**30, 2**40 - 1, 2**40])
def test_moments(sigma):
    assert has_the_moments(draw(sigma, 200_000), sigma)


def test_quantiles():
    sigma, edges = 2**15, np.linspace(-4, 4, 161)
    cells = np.searchsorted(np.round(edges * sigma) - 0.5, draw(sigma, 200_000))
    below = stats.norm.cdf((np.round(edges * sigma) - 0.5) / sigma)
    expected = np.diff(np.concatenate([[0], below, [1]]))
    assert chi_square(np.bincount(cells, minlength=162), expected * 200_000) > LEVEL


@pytest.mark.parametrize("sigma", [2**15, 2**30, 2**40])
@pytest.mark.parametrize("modulus", [2, 7, 256, 1000])
def test_low_digits_are_uniform(sigma, modulus):
    assert stats.chisquare(np.bincount(draw(sigma, 200_000) % modulus, minlength=modulus)).pvalue > LEVEL


def slope_within_strips():
    """p-value of where in their strips the samples are, at a sigma whose strips are 1024 wide."""
    sigma, eighths = 2**15, 128
    samples = draw(sigma, 2_000_000)
    values, expected = probabilities(sigma)
    cells = partial(np.bincount, minlength=8)
    counts = cells(np.abs(samples) % 1024 // eighths)
    return chi_square(counts, cells(np.abs(values) % 1024 // eighths, expected) * len(samples))


def test_slope_within_strips():
    assert slope_within_strips() > LEVEL


# Controls: the same checks refuse what is not the distribution.


def test_rounded_normal_noise_is_told_apart():
    samples = rounded_normal(1, 200_000)
    assert not fits(samples, 1)
    assert not has_the_moments(samples, 1)


@pytest.mark.parametrize("sigma", [2, 50, 2**30])
def test_half_the_noise_is_told_apart(sigma):
    assert not has_the_moments(draw(sigma // 2, 200_000), sigma)


def test_a_neighbouring_sigma_is_told_apart():
    assert not fits(draw(97, 200_000), 100)


def test_keeping_every_point_is_told_apart(monkeypatch):
    monkeypatch.setattr(gaussian, "_exp_bernoulli", lambda strip, *_: np.ones(len(strip), dtype=np.bool_))
    assert slope_within_strips() < LEVEL / 1000


# OpenDP as an independent oracle.


def opendp_draw(sigma, count):
    dp = pytest.importorskip("opendp.prelude", reason="missing tool: opendp, the oracle of this test")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    return np.array(dp.m.make_gaussian(*space, scale=float(sigma))([0] * count), dtype=np.int64)


def two_sample_p(ours, theirs):
    values = np.concatenate([ours, theirs])
    cells = np.unique(np.quantile(values, np.linspace(0.005, 0.995, 100)).round())
    table = [np.bincount(np.searchsorted(cells, samples), minlength=len(cells) + 1) for samples in (ours, theirs)]
    return stats.chi2_contingency(table).pvalue


@pytest.mark.parametrize("sigma", [3, 50])
def test_agrees_with_opendp_at_small_sigma(sigma):
    theirs = opendp_draw(sigma, 40_000)
    assert two_sample_p(draw(sigma, 200_000), theirs) > LEVEL_UNSEEDED
    assert two_sample_p(draw(sigma + max(1, sigma // 10), 200_000), theirs) < LEVEL_UNSEEDED


def test_agrees_with_opendp_at_large_sigma():
    theirs = opendp_draw(2**15, 40_000)
    assert stats.ks_2samp(draw(2**15, 200_000), theirs).pvalue > LEVEL_UNSEEDED
    assert stats.ks_2samp(draw(2**15 + 2**13, 200_000), theirs).pvalue < LEVEL_UNSEEDED


# Entropy decides everything.


@pytest.mark.parametrize("sigma", [1, 50, 2**27])
def test_entropy_decides(sigma):
    once, again, other = draw(sigma, 100_000), draw(sigma, 100_000), draw(sigma, 100_000, seed=2)
    assert np.array_equal(once, again)
    assert abs(np.corrcoef(once, other)[0, 1]) < 0.02
    assert abs(np.corrcoef(once[1:], once[:-1])[0, 1]) < 0.02


def test_a_known_stream_gives_the_known_samples():
    # A pin, against changes by accident: numpy's bit generators are stable across its versions.
    stream = np.random.PCG64(7).random_raw(1000).astype("<u8").tobytes()
    assert [discrete_gaussian(sigma, 6, scripted(stream)).tolist() for sigma in (1, 1000, 2**40)] == PINNED


PINNED = [
    [0, 2, 0, 0, 0, 1],
    [-370, 547, 197, -411, 205, 1126],
    [-425752590578, 618053654419, 221573933749, -463207171867, 208732398717, 1263199643142],
]


def test_shape_and_the_system_source():
    for count in (0, 1, gaussian._BLOCK, gaussian._BLOCK + 1):
        samples = discrete_gaussian(5, count, os.urandom)
        assert samples.shape == (count,)
        assert samples.dtype == np.int64


@pytest.mark.parametrize(("sigma", "count"), [(0, 1), (-1, 1), (MAX_SIGMA + 1, 1), (1.5, 1), (np.int64(4), 1), (1, -1)])
def test_out_of_range(sigma, count):
    with pytest.raises(MisuseError, match="expected"):
        discrete_gaussian(sigma, count, entropy(1))


@pytest.mark.parametrize("sigma", [1, 64, MAX_SIGMA])
@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_a_source_that_is_stuck_gives_no_noise(sigma, byte):
    with pytest.raises(MisuseError, match="random"):
        discrete_gaussian(sigma, 3, lambda count: byte * count)


# The decisions one by one.


@given(st.data())
def test_rational_decisions_are_exact(data):
    denominator = data.draw(st.integers(1, 2**47))
    numerator = data.draw(st.integers(0, denominator))
    # A uniform number that agrees with the quotient in some digits and then goes its own way.
    same = data.draw(st.integers(0, 4))
    digits = [(numerator << 16 * (k + 1)) // denominator % 65536 for k in range(same)]
    digits += data.draw(st.lists(st.integers(0, 65535), min_size=6, max_size=6))
    digits[same] = min(
        65535, max(0, (numerator << 16 * (same + 1)) // denominator % 65536 + data.draw(st.integers(-1, 1)))
    )
    uniform = sum(Fraction(digit, 2 ** (16 * (k + 1))) for k, digit in enumerate(digits))
    source = scripted(b"".join(digit.to_bytes(2, "little") for digit in digits))
    try:
        below = gaussian._bernoulli(np.array([numerator], dtype=np.uint64), denominator, source)[0]
    except AssertionError:  # the digits agree to the last
        assert uniform <= Fraction(numerator, denominator) < uniform + Fraction(1, 2 ** (16 * len(digits)))
    else:
        assert below == (uniform < Fraction(numerator, denominator))


# With sigma = 100 and strips of 2, the last three exponents are above 1, where several factors are drawn.
@pytest.mark.parametrize(
    ("sigma", "strip", "offset"),
    [(100, 40, 1), (2**15, 100, 1023), (100, 5000, 1), (100, 9999, 1), (2**40, 1900, 2**35 - 1)],
)
def test_points_are_kept_with_the_right_probability(sigma, strip, offset):
    width = 1 << gaussian._shift(sigma)
    exponent = offset * (2 * strip * width + offset) / (2 * sigma**2)
    strips, offsets = (np.full(300_000, value, dtype=np.uint64) for value in (strip, offset))
    kept = gaussian._exp_bernoulli(strips, offsets, sigma, entropy(3)).sum()
    assert stats.binomtest(int(kept), 300_000, math.exp(-exponent)).pvalue > LEVEL


def exact_distribution(sigma, digits=60):
    """F(j) of the strips to so many decimal digits, by other means: the exponential function of `decimal`."""
    with localcontext() as context:
        context.prec = digits
        width = 1 << gaussian._shift(sigma)
        count = 20 * sigma // width  # the rest weighs exp(-200)
        weights = [(-Decimal((j * width) ** 2) / (2 * sigma**2)).exp() for j in range(count)]
        starts = [Decimal(0)]
        for weight in weights:
            starts.append(starts[-1] + weight)
        return [Fraction(start / starts[-1]) for start in starts]


@pytest.mark.parametrize("sigma", [1, 2, 63, 64, 100_003, MAX_SIGMA])
@pytest.mark.parametrize("bits", [16, 128])
def test_bounds_hold_the_exact_distribution(sigma, bits):
    exact = exact_distribution(sigma)
    lower, upper = gaussian._bounds(sigma, bits)
    error = Fraction(2**bits, 10**50)
    assert len(lower) == len(upper) < len(exact)
    for least, most, start in zip(lower, upper, exact, strict=False):
        assert least - error <= start * 2**bits <= most + error
        assert most - least <= 2
    # What is left after the last bound is less than a few units.
    assert 2**bits - lower[-1] <= 2


@pytest.mark.parametrize("sigma", [3, 64, 2**27])
@pytest.mark.parametrize("strip", [1, 5, 20])
def test_a_tie_draws_on(sigma, strip):
    boundary = gaussian._bounds(sigma, 256)[0][strip]
    for uniform, expected in ((boundary - 9, strip - 1), (boundary + 9, strip)):
        source = scripted((uniform % 2**240).to_bytes(30, "big"))
        assert gaussian._strip(sigma, uniform >> 240, source) == expected
        assert source.left() == 0  # 128 bits left it open


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 2), (1, 1), (1, 2048), (3, 7)])
@pytest.mark.parametrize("bits", [16, 192, 2112])
def test_exponentials(numerator, denominator, bits):
    with localcontext() as context:
        context.prec = 700
        exact = (-Decimal(numerator) / denominator).exp() * 2**bits
        found = gaussian._exp(numerator, denominator, bits)
        assert found <= exact <= found + 2


# The tail of a sum.


@pytest.mark.parametrize(
    ("sigma", "terms", "entries"), [(1, 1, 1), (3, 10, 1), (2**27, 60, 400_000), (2**40, 10**4, 10**7)]
)
def test_tail_bound_keeps_the_promise_and_hardly_more(sigma, terms, entries):
    bound = tail_bound(sigma, terms, entries)
    assert type(bound) is int

    def failure(t):
        return math.log(2 * entries) - t**2 / (2 * terms * sigma**2)

    assert failure(bound) <= -40 * math.log(2) < failure(0.995 * bound - 1)
    # The normal distribution itself, at the same probability, is hardly narrower.
    normal = sigma * math.sqrt(terms) * stats.norm.isf(2.0**-41 / entries)
    assert normal <= bound < 1.1 * normal + 1


def test_tail_bound_against_the_exact_tail():
    expected = probabilities(3)[1]
    total = expected
    for _ in range(3):
        total = np.convolve(total, expected)
    bound = tail_bound(3, 4, 1000)
    away = np.abs(np.arange(len(total)) - len(total) // 2)
    assert 0 < 1000 * total[away > bound].sum() < 2**-40
    assert 1000 * total[away > 0.9 * bound].sum() > 2**-40


def test_tail_bound_holds_in_samples():
    # The largest of 100,000 sums is beyond four standard deviations, and the bound beyond that.
    sums = draw(50, 8 * 100_000).reshape(8, -1).sum(axis=0)
    assert 4 * 50 * math.sqrt(8) < np.abs(sums).max() < tail_bound(50, 8, 100_000)


@given(st.integers(1, MAX_SIGMA), st.integers(1, 10**5), st.integers(1, 10**8))
def test_tail_bound_grows(sigma, terms, entries):
    bound = tail_bound(sigma, terms, entries)
    assert tail_bound(sigma + 1, terms, entries) > bound
    assert tail_bound(sigma, terms + 1, entries) >= bound
    assert tail_bound(sigma, terms, 2 * entries) >= bound


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1.0, 1, 1), (np.int64(1), 1, 1)])
def test_tail_bound_of_nothing(wrong):
    with pytest.raises(MisuseError, match="expected"):
        tail_bound(*wrong)
