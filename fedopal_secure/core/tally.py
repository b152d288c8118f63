"""The running sum of uploads, whose payloads are masked vectors in wire form or in whatever a protocol packs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from fedopal_secure.core.params import SessionParams
from fedopal_secure.core.ring import U64, Ring, from_wire, to_wire

# A masked vector, uint64 (length,), to the payload of an upload.
Pack = Callable[[U64], bytes]


class Tally(Protocol):
    """Takes payloads one by one and keeps their sum only."""

    def add(self, payload: bytes) -> None:
        """Add a payload. Raises ValueError, in words that complete "client X sent ...", and is then unchanged."""
        ...

    def total(self) -> U64:
        """The sum of the masked vectors, uint64 (length,): residues, in an array of the caller's own."""
        ...


class WireTally:
    """The sum of vectors that travel in wire form."""

    def __init__(self, params: SessionParams) -> None:
        self._params, self._ring = params, Ring(params.modulus)
        self._total = np.zeros(params.length, dtype=np.uint64)

    def add(self, payload: bytes) -> None:
        """See `Tally.add`."""
        if len(payload) != self._params.upload_bytes:
            raise ValueError("an upload of the wrong length")
        vector = from_wire(payload, self._params.segments)
        if not self._ring.contains(vector):
            raise ValueError("entries that are not residues")
        self._ring.add_into(self._total, vector)

    def total(self) -> U64:
        """See `Tally.total`."""
        return self._total.copy()


def wire(params: SessionParams) -> Pack:
    """How a masked vector travels unless something else is asked for: its low bytes, segment after segment."""
    return lambda masked: to_wire(masked, params.segments)
