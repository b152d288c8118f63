"""Entries of the vector as what fits into a slot: residues modulo BFV's plain moduli, or CKKS's signed digits.

A vector is uint64 in two's complement; of an entry of a segment of `width` bytes only the residue modulo
2**(8 width) counts. BFV carries an entry as its residue modulo t_0 and, if 2**(8 width + 1) is above t_0, also modulo
t_1 and so on (Chinese remainders), so that the sums of residues tell no more than the sum. CKKS carries balanced
digits to base 2**24.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import MisuseError, PolicyRefusal
from fedopal_secure.core.params import Segment
from fedopal_secure.core.ring import U64, reduce_to_width
from fedopal_secure.he.parameters import DIGIT_BITS

I64 = NDArray[np.int64]
Segments = Sequence[Segment]


def residue_counts(segments: Segments, moduli: Sequence[int]) -> tuple[int, ...]:
    """How many entries have a residue modulo each of the plain moduli; raises PolicyRefusal if some do not fit all."""
    needed = [(segment.length, _moduli_for(segment, moduli)) for segment in segments]
    return tuple(sum(length for length, count in needed if count > place) for place in range(len(moduli)))


def digit_count(segments: Segments) -> int:
    """How many digits a vector has."""
    return sum(segment.length * _digits_of(segment) for segment in segments)


def to_residues(vector: U64, segments: Segments, moduli: Sequence[int]) -> list[U64]:
    """A vector, uint64 (length,), as its residues modulo each of the plain moduli, uint64 (`residue_counts`,)."""
    parts: list[list[U64]] = [[] for _ in moduli]
    for segment, entries in _split(reduce_to_width(vector, segments), segments):
        for part, modulus in zip(parts[: _moduli_for(segment, moduli)], moduli, strict=False):
            if segment.signed:
                part.append((_sign_extended(entries, segment) % np.int64(modulus)).astype(np.uint64))
            else:
                part.append(entries % np.uint64(modulus))
    return [np.concatenate(part) if part else np.empty(0, np.uint64) for part in parts]


def from_residues(parts: Sequence[U64], segments: Segments, moduli: Sequence[int]) -> U64:
    """The inverse of `to_residues`, of sums within the widths: uint64 (length,), reduced to the segments' widths."""
    entries, read = [], [0] * len(moduli)
    for segment in segments:
        count, own = _moduli_for(segment, moduli), []
        for place in range(count):
            own.append(parts[place][read[place] : read[place] + segment.length])
            read[place] += segment.length
        entries.append(centred(own[0], moduli[0]) if count == 1 else _chinese_remainder(own, moduli))
    return reduce_to_width(np.concatenate(entries), segments)


def to_digits(vector: U64, segments: Segments) -> I64:
    """A vector, uint64 (length,), as digits from -2**23 to 2**23, int64 (`digit_count`,), least significant first.

    An entry of eight bytes may wrap around on the way, which its residue modulo 2**64 does not notice.
    """
    parts = []
    for segment, entries in _split(reduce_to_width(vector, segments), segments):
        # Signed or not: only the residue counts, and the one nearest to zero has the smallest digits.
        left = _sign_extended(entries, segment)
        for _ in range(_digits_of(segment)):
            half, base = np.int64(1 << (DIGIT_BITS - 1)), np.int64(1 << DIGIT_BITS)
            digit = (left + half) % base - half
            parts.append(digit)
            left = (left - digit) >> np.int64(DIGIT_BITS)
    return np.concatenate(parts)


def from_digits(digits: I64, segments: Segments) -> U64:
    """The inverse of `to_digits`, of a sum: uint64 (length,), reduced to the segments' widths."""
    entries, read = [], 0
    for segment in segments:
        value = np.zeros(segment.length, dtype=np.uint64)
        for place in range(_digits_of(segment)):
            part = digits[read : read + segment.length].view(np.uint64)
            value += part << np.uint64(DIGIT_BITS * place)
            read += segment.length
        entries.append(value)
    return reduce_to_width(np.concatenate(entries), segments)


def to_ring(vector: U64, modulus: int) -> U64:
    """Integers in two's complement as residues modulo a prime t, uint64; the inverse of `centred`.

    Raises MisuseError for an integer that is not between -t/2 and t/2.
    """
    values, half = vector.view(np.int64), modulus // 2
    if values.size and not -half <= int(values.min()) <= int(values.max()) <= half:
        raise MisuseError(f"an entry is not between -{half} and {half}, so it has no place in the plain modulus")
    return (values % np.int64(modulus)).astype(np.uint64)


def centred(entries: U64, modulus: int) -> U64:
    """Residues modulo an odd t as the integers between -t/2 and t/2, in two's complement."""
    t = np.uint64(modulus)
    return np.where(entries > t >> np.uint64(1), entries - t, entries)


def _split(vector: U64, segments: Segments) -> Iterator[tuple[Segment, U64]]:
    start = 0
    for segment in segments:
        yield segment, vector[start : start + segment.length]
        start += segment.length


def _sign_extended(entries: U64, segment: Segment) -> I64:
    unused = np.uint64(64 - 8 * segment.width)
    return (entries << unused).view(np.int64) >> unused.astype(np.int64)


def _digits_of(segment: Segment) -> int:
    return -(-8 * segment.width // DIGIT_BITS)


def _moduli_for(segment: Segment, moduli: Sequence[int]) -> int:
    product, span = 1, 1 << (8 * segment.width + 1)
    for count, modulus in enumerate(moduli, 1):
        product *= modulus
        if product > span:
            return count
    detail = f"entries of {segment.width} bytes ({segment.name!r}) do not fit the plain moduli: agree on fewer bits"
    raise PolicyRefusal("segments", detail)


def _chinese_remainder(residues: Sequence[U64], moduli: Sequence[int]) -> U64:
    """The integers nearest to zero with these residues, in two's complement; few entries, so in Python's integers."""
    product, values = 1, [0] * len(residues[0])
    for part, modulus in zip(residues, moduli, strict=False):
        inverse = pow(product, -1, modulus)
        values = [
            value + product * ((residue - value) * inverse % modulus)
            for value, residue in zip(values, part.tolist(), strict=True)
        ]
        product *= modulus
    return np.array([(value - product * (2 * value > product)) % 2**64 for value in values], dtype=np.uint64)
