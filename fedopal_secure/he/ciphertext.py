"""Ciphertexts as arrays of residues: how they travel and how they are added. Needs no key, and no TenSEAL.

A payload is, for every ciphertext and each of its two polynomials, the N coefficients modulo the first prime of q, then
modulo the next, each as the fewest whole bytes that hold the prime, little-endian. There is one way to write it, and
nothing in it says under which parameters it is to be read: those are the session's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedopal_secure.core.params import Segment
from fedopal_secure.core.ring import U64, Ring, from_wire, to_wire
from fedopal_secure.he.packing import (
    I64,
    Segments,
    digit_count,
    from_digits,
    from_residues,
    residue_counts,
    to_digits,
    to_residues,
)
from fedopal_secure.he.parameters import BFV_SCHEME, Parameters


@dataclass(frozen=True)
class CiphertextForm:
    """The shape of one encrypted vector: uint64 (ciphertexts, 2, primes of q, N), under one key after the other.

    With a `modulus`, which is then the first plain modulus, the vector's entries are residues already, and each takes
    one slot; else they are integers of the segments' widths. Raises PolicyRefusal if they do not fit the plain moduli.
    """

    parameters: Parameters
    segments: Segments
    modulus: int

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """How many integers are encrypted under each key."""
        if self.modulus:
            return (sum(segment.length for segment in self.segments), *[0] * (self.parameters.keys - 1))
        if self.parameters.scheme == BFV_SCHEME:
            return residue_counts(self.segments, self.parameters.plain_moduli)
        return (digit_count(self.segments),)

    @cached_property
    def ciphertexts(self) -> tuple[int, ...]:
        """How many ciphertexts there are under each key."""
        return tuple(-(-slots // self.parameters.degree) for slots in self.slots)

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of a payload."""
        return sum(self.ciphertexts) * sum(part.length * part.width for part in self._rows(1))

    def _rows(self, ciphertexts: int) -> tuple[Segment, ...]:
        primes = self.parameters.ciphertext_moduli
        rows = [Segment("", self.parameters.degree, (q.bit_length() + 7) // 8, False) for q in primes]
        return tuple(rows * (2 * ciphertexts))

    def zeros(self) -> U64:
        """The sum of no ciphertexts."""
        shape = (sum(self.ciphertexts), 2, len(self.parameters.ciphertext_moduli), self.parameters.degree)
        return np.zeros(shape, dtype=np.uint64)

    def to_slots(self, vector: U64) -> list[U64] | list[I64]:
        """A vector, uint64 (length,), as the integers to encrypt under each key: residues, or CKKS's digits."""
        if self.modulus:
            return [vector, *[vector[:0]] * (self.parameters.keys - 1)]
        if self.parameters.scheme == BFV_SCHEME:
            return to_residues(vector, self.segments, self.parameters.plain_moduli)
        return [to_digits(vector, self.segments)]

    def from_slots(self, parts: Sequence[Any]) -> U64:
        """The inverse of `to_slots`, of a sum; each part may be longer than it need be."""
        cut = [part[:slots] for part, slots in zip(parts, self.slots, strict=True)]
        if self.modulus:
            return np.asarray(cut[0], dtype=np.uint64)
        if self.parameters.scheme == BFV_SCHEME:
            return from_residues(cut, self.segments, self.parameters.plain_moduli)
        return from_digits(cut[0], self.segments)

    def to_bytes(self, residues: U64) -> bytes:
        """Ciphertexts as a payload."""
        return to_wire(residues.reshape(-1), self._rows(len(residues)))

    def from_bytes(self, payload: bytes) -> U64:
        """A payload as ciphertexts. Raises ValueError, in words that complete "it is", if it is none."""
        if len(payload) != self.payload_bytes:
            raise ValueError(f"{len(payload)} bytes long and not {self.payload_bytes}")
        count = sum(self.ciphertexts)
        residues = from_wire(payload, self._rows(count)).reshape(self.zeros().shape)
        for place, prime in enumerate(self.parameters.ciphertext_moduli):
            if not Ring(prime).contains(residues[:, :, place]):
                raise ValueError("not made of residues modulo the coefficient moduli")
        return residues

    def add_into(self, total: U64, term: U64) -> None:
        """Add ciphertexts to `total` in place: they then decrypt to the sums."""
        for place, prime in enumerate(self.parameters.ciphertext_moduli):
            Ring(prime).add_into(total[:, :, place], term[:, :, place])

    def by_key(self, residues: U64) -> list[U64]:
        """The ciphertexts under each key."""
        return np.split(residues, np.cumsum(self.ciphertexts)[:-1])
