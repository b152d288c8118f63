"""Exact samples of the discrete Gaussian, from integers alone, and how far their sums can stray.

N_Z(0, sigma²) gives every integer y a probability proportional to exp(-y²/(2 sigma²)) (Canonne, Kamath and Steinke
2020, arXiv:2004.00010). No floating-point number is involved anywhere, so nothing is rounded.

Why the samples are exact. The integers from 0 on are cut into strips of w = 2**b each: y = j w + u.

1. The strip j is drawn with probability proportional to exp(-(j w)²/(2 sigma²)), and u uniformly below w.
2. y is kept with probability exp(-u (2 j w + u)/(2 sigma²)). The two exponents add up to -y²/(2 sigma²).
3. A sign is drawn, and minus zero is dropped, since zero would be counted twice.

Every decision is one uniform real number against a threshold, digit by digit: what the digits at hand leave open is
settled by drawing more. Thresholds of step 2 are rational, and long division gives their digits. Those of step 1 are
not, and are known from integer bounds on both sides, as close as is asked for. Strips are narrow (sigma/64 to sigma/32,
or single integers), so that the first digits settle nearly all and few points are dropped.

How long a sample takes depends on its value, and so does how much entropy it uses. Draw a whole vector at once: only
the total shows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import MisuseError
from fedopal_secure.core.ring import U64
from fedopal_secure.core.shamir import Entropy

MAX_SIGMA: Final = 2**40
TAIL_BITS: Final = 40

_BLOCK: Final = 1 << 14  # points drawn together: what is computed for them fits the processor's cache
_DIGIT_BITS: Final = 16
_FINENESS: Final = 32  # a strip is at most sigma/32 wide, and more than sigma/64
_OPEN: Final = 0xFFFF  # in the place of a strip's number: one digit does not settle it
_LONGEST: Final = 2048  # bits of a uniform number: they leave a decision open less than once in 2**2000
_NOT_RANDOM: Final = f"{_LONGEST} bits of entropy leave open what they decide: give a source of random bytes"


def discrete_gaussian(sigma: int, count: int, entropy: Entropy) -> NDArray[np.int64]:
    """Independent samples of N_Z(0, sigma²): int64 (count,), exact, for any sigma from 1 to 2**40.

    `entropy` (a function from a count to that many uniform bytes) decides everything: the same bytes give the same
    samples on any machine. Raises MisuseError for a sigma or a count out of range, and where the entropy shows itself
    not to be random.
    """
    # A numpy integer would overflow in the squares.
    if not isinstance(sigma, int) or not 1 <= sigma <= MAX_SIGMA:
        raise MisuseError(f"discrete Gaussian noise of sigma {sigma}: an int from 1 to {MAX_SIGMA} is expected")
    if count < 0:
        raise MisuseError(f"{count} samples of noise: 0 or more are expected")
    blocks = [np.empty(0, dtype=np.int64)]
    missing = count
    while missing:
        # Each point is kept or dropped whatever becomes of the others, so those kept are samples in any number.
        blocks.append(_kept_points(sigma, min(missing, _BLOCK), entropy))
        missing -= len(blocks[-1])
    return np.concatenate(blocks)


def tail_bound(sigma: int, terms: int, entries: int) -> int:
    """A bound that `entries` sums of `terms` samples of N_Z(0, sigma²) all keep, but with probability 2**-40 at most.

    The least t with 2 entries exp(-t²/(2 terms sigma²)) <= 2**-40, or hardly more: the samples are subgaussian with
    parameter sigma (Canonne, Kamath and Steinke 2020), and a union bound covers the entries, which need not be
    independent of each other. In integers, hence the same on every machine. Raises MisuseError for a number below 1.
    """
    if any(not isinstance(number, int) or number < 1 for number in (sigma, terms, entries)):
        raise MisuseError(f"tail of {entries} sums of {terms} samples of sigma {sigma}: ints from 1 on are expected")
    # 2 ln(x) = 2 log2(x) ln(2), with log2(x) <= bits(x**256)/256 and ln(2) < 0.6931471806.
    bits = (((2 * entries) << TAIL_BITS) ** 256).bit_length()
    squared = -(-terms * sigma**2 * 2 * bits * 6_931_471_806 // (256 * 10**10))
    return math.isqrt(squared - 1) + 1


def _shift(sigma: int) -> int:
    # log2 of a strip's width w: a power of two, so that u is some bits of a word. From sigma = 64 on, it is the one
    # with sigma/64 < w <= sigma/32; below, a strip is one integer.
    return max(0, sigma.bit_length() - (2 * _FINENESS - 1).bit_length())


def _kept_points(sigma: int, size: int, entropy: Entropy) -> NDArray[np.int64]:
    """Samples: what is left of `size` points."""
    shift = _shift(sigma)
    # One word for each point: a digit for the strip, one bit for the sign, at most 35 bits for u.
    words: U64 = np.frombuffer(entropy(8 * size), dtype="<u8").astype(np.uint64, copy=False)
    digits = words & (2**_DIGIT_BITS - 1)
    negative = (words >> _DIGIT_BITS) & 1 == 1
    offset = (words >> np.uint64(_DIGIT_BITS + 1)) & np.uint64((1 << shift) - 1)
    strip = _first_digit(sigma)[digits].astype(np.uint64)
    for place in np.flatnonzero(strip == _OPEN).tolist():
        strip[place] = _strip(sigma, int(digits[place]), entropy)
    magnitude = ((strip << shift) + offset).view(np.int64)
    kept = _exp_bernoulli(strip, offset, sigma, entropy) & ~(negative & (magnitude == 0))
    samples: NDArray[np.int64] = np.where(negative, -magnitude, magnitude)[kept]
    return samples


def _exp_bernoulli(strip: U64, offset: U64, sigma: int, entropy: Entropy) -> NDArray[np.bool_]:
    """True with probability exp(-u (2 j w + u)/(2 sigma²)), for each strip j and offset u.

    Algorithm 1 of Canonne, Kamath and Steinke 2020: for an exponent g of at most one, draw events of probability g/1,
    g/2, g/3, ... up to the first that fails; it is an odd one with probability exp(-g). g is the product of two
    fractions that fit 64 bits, and for g/k all of three events must happen.
    """
    far = (strip << np.uint64(_shift(sigma) + 1)) + offset
    # One factor exp(-g) suffices up to 32 sigma. For exactness' sake, what lies beyond is split into several.
    factors = 1 + int(far.max(initial=0)) // (2 * _FINENESS * sigma)
    near, one = offset * np.uint64(_FINENESS), np.ones_like(far)
    kept = np.ones(len(far), dtype=np.bool_)
    for _ in range(factors):
        odd = np.ones(len(far), dtype=np.bool_)
        going, k = np.arange(len(far)), 1
        while going.size:
            for numerator, denominator in ((far, 2 * _FINENESS * sigma * factors), (near, sigma), (one, k)):
                going = going[_bernoulli(numerator[going], denominator, entropy)]
            k += 1
            odd[going] = k % 2 == 1
        kept &= odd
    return kept


def _bernoulli(numerator: U64, denominator: int, entropy: Entropy) -> NDArray[np.bool_]:
    """True with probability numerator/denominator, for each; numerator <= denominator < 2**48."""
    below = np.empty(len(numerator), dtype=np.bool_)
    tied, rest = np.arange(len(numerator)), numerator
    for _ in range(_LONGEST // _DIGIT_BITS):
        scaled = rest << _DIGIT_BITS
        threshold = scaled // denominator
        drawn = np.frombuffer(entropy(2 * len(rest)), dtype="<u2")
        below[tied] = drawn < threshold
        again = np.flatnonzero(drawn == threshold)
        if not again.size:
            return below
        tied, rest = tied[again], scaled[again] - threshold[again] * denominator
    raise MisuseError(_NOT_RANDOM)


def _strip(sigma: int, digit: int, entropy: Entropy) -> int:
    """The strip of a uniform number that begins with the given digit, which leaves it open."""
    bits, drawn = 128, digit
    known = _DIGIT_BITS
    while bits <= _LONGEST:
        drawn = drawn << (bits - known) | int.from_bytes(entropy((bits - known) // 8), "big")
        lower, upper = _bounds(sigma, bits)
        strip = bisect_right(upper, drawn) - 1
        if strip + 1 < len(lower) and drawn < lower[strip + 1]:
            return strip
        bits, known = 2 * bits, bits
    raise MisuseError(_NOT_RANDOM)


@lru_cache(maxsize=16)
def _first_digit(sigma: int) -> NDArray[np.uint16]:
    """The strip of a uniform number by its first digit alone, or _OPEN: uint16 (65536,)."""
    strips = np.full(1 << _DIGIT_BITS, _OPEN, dtype=np.uint16)
    lower, upper = _bounds(sigma, _DIGIT_BITS)
    for strip, (start, end) in enumerate(zip(upper, lower[1:], strict=False)):
        strips[start:end] = strip
    strips.flags.writeable = False  # the cache hands out this one
    return strips


@lru_cache(maxsize=16)
def _bounds(sigma: int, bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Integers on both sides of the distribution function F of the strips: lower[j] <= 2**bits F(j) <= upper[j].

    F(j) is the probability of the strips before j. Both end where so many bits tell no further strips apart.
    """
    width = 1 << _shift(sigma)
    guarded = bits + 64
    # The weight of strip j + 1 is that of j times exp(-(2 j + 1) w²/(2 sigma²)). Products are rounded down: by
    # induction the ratios are short by at most 3 j + 2 and the weights by at most 2 (j + 1)², in units of 2**-guarded.
    weight = 1 << guarded
    ratio = _exp(width**2, 2 * sigma**2, guarded)
    change = _exp(width**2, sigma**2, guarded)
    starts, missing = [0], [0]
    while weight:
        missing.append(missing[-1] + 2 * len(starts) ** 2)
        starts.append(starts[-1] + weight)
        weight, ratio = weight * ratio >> guarded, ratio * change >> guarded
    # Where a weight vanishes, j w is above sigma: from there on ratios are below exp(-w/sigma), and the weights
    # together below 1 + sigma/w <= 65 times the first, which is itself at most what it may be short by.
    least = starts[-1]
    most = least + missing[-1] + 65 * 2 * len(starts) ** 2
    lower = tuple((start << bits) // most for start in starts)
    upper = tuple(-((-(start + short) << bits) // least) for start, short in zip(starts, missing, strict=True))
    return lower, upper


def _exp(numerator: int, denominator: int, bits: int) -> int:
    """An integer E with E <= 2**bits exp(-numerator/denominator) <= E + 2, for an exponent from -1 to 0."""
    term = total = 1 << (bits + 16)
    k = 0
    while term:
        k += 1
        term = term * numerator // (denominator * k)
        total += -term if k % 2 else term
    # Each of k terms is short by less than 2, and the alternating rest of the series is below 2 as well.
    return (total - 2 * (k + 1)) >> 16
