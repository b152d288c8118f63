"""The ring in which vectors are summed: integers modulo 2**64, or modulo a prime below 2**63.

Vectors are uint64 arrays of residues. Modulo 2**64 the low `width` bytes of an entry are its residue modulo
2**(8 * width), and sums and masks go through that quotient; so a segment travels as its low bytes only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import MisuseError

U64 = NDArray[np.uint64]

_WITNESSES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


class _Segment(Protocol):
    @property
    def length(self) -> int: ...
    @property
    def width(self) -> int: ...


def is_prime(number: int) -> bool:
    """Whether a number below 3.3e24 is prime: Miller-Rabin with the first twelve primes (Sorenson, Webster 2015)."""
    if number < 2 or any(number % small == 0 for small in _WITNESSES):
        return number in _WITNESSES
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _WITNESSES:
        power = pow(witness, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


@dataclass(frozen=True)
class Ring:
    """Arithmetic on uint64 residues; `modulus` is 0 for 2**64, or a prime below 2**63 (checked with the parameters)."""

    modulus: int

    def add_into(self, total: U64, term: U64) -> None:
        """Add residues to `total` in place."""
        np.add(total, term, out=total)
        if self.modulus:
            self._fold(total)

    def subtract_into(self, total: U64, term: U64) -> None:
        """Subtract residues from `total` in place."""
        if self.modulus:
            self.add_into(total, np.uint64(self.modulus) - term)
        else:
            np.subtract(total, term, out=total)

    def accept(self, words: U64) -> U64:
        """Turn uniform 64-bit words into uniform residues.

        Modulo 2**64 every word is one. For a prime p a word is cut to the bit length of p and dropped unless it is
        below p (rejection, so there is no bias); the words that remain keep their order.
        """
        if not self.modulus:
            return words
        cut = words & np.uint64((1 << self.modulus.bit_length()) - 1)
        return cut if self.contains(cut) else cut[cut < np.uint64(self.modulus)]

    def contains(self, vector: U64) -> bool:
        """Whether every entry is a residue."""
        return not self.modulus or not vector.size or int(vector.max()) < self.modulus

    def _fold(self, total: U64) -> None:
        # Both terms were below p < 2**63, so the sum did not wrap and one subtraction is enough; where it is one too
        # many it wraps, to more than the sum.
        np.minimum(total, total - np.uint64(self.modulus), out=total)


def to_wire(vector: U64, segments: Iterable[_Segment]) -> bytes:
    """The low `width` bytes of every entry, little-endian, segment after segment."""
    octets = np.ascontiguousarray(vector, dtype="<u8").view(np.uint8).reshape(-1, 8)
    parts, start = [], 0
    for segment in segments:
        parts.append(octets[start : start + segment.length, : segment.width].tobytes())
        start += segment.length
    if start != len(octets):
        raise MisuseError(f"the segments describe {start} entries and the vector has {len(octets)}")
    return b"".join(parts)


def from_wire(payload: bytes, segments: Iterable[_Segment]) -> U64:
    """The inverse of `to_wire`, with the missing high bytes zero; the caller has checked the payload's length."""
    segments = tuple(segments)
    octets = np.zeros((sum(segment.length for segment in segments), 8), dtype=np.uint8)
    row = at = 0
    for segment in segments:
        size = segment.length * segment.width
        part = np.frombuffer(payload, dtype=np.uint8, count=size, offset=at)
        octets[row : row + segment.length, : segment.width] = part.reshape(segment.length, segment.width)
        row, at = row + segment.length, at + size
    return octets.view("<u8").reshape(-1).astype(np.uint64, copy=False)


def reduce_to_width(vector: U64, segments: Iterable[_Segment]) -> U64:
    """A sum modulo 2**64 read modulo each segment's 2**(8 * width), which is all that uploads determine."""
    parts = tuple(segments)
    return from_wire(to_wire(vector, parts), parts)
