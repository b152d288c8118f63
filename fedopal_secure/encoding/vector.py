"""Named integer arrays to the vector that is masked and summed, and back.

The vector holds residues modulo 2**64. An entry of a segment of `width` bytes counts modulo 2**(8 width) only, which
is all that travels; signed segments are in two's complement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import MisuseError, OverflowBudgetError
from fedopal_secure.core.params import Segment


def pack(segments: Sequence[Segment], arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Arrays, int64 (length,) for each segment's name, to one vector, uint64 (total,), in the order of the segments.

    Raises OverflowBudgetError naming the segment if a value does not fit its width, MisuseError if the names, lengths
    or types are not those of the segments.
    """
    names = [segment.name for segment in segments]
    if set(names) != set(arrays) or len(set(names)) != len(names):
        raise MisuseError(f"arrays {sorted(arrays)} do not belong to segments {sorted(names)}")
    parts = []
    for segment in segments:
        values = np.asarray(arrays[segment.name])
        if values.shape != (segment.length,) or not np.can_cast(values.dtype, np.int64):
            raise MisuseError(
                f"segment {segment.name!r} takes int64 ({segment.length},), not {values.dtype} {values.shape}"
            )
        least, most = _range(segment)
        if values.size and (int(values.min()) < least or int(values.max()) > most):
            raise OverflowBudgetError(
                f"segment {segment.name!r} has a value outside {least} to {most}: "
                "there are more images than the budget, or the grids differ"
            )
        parts.append(values.astype(np.int64).view(np.uint64))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def unpack(segments: Sequence[Segment], vector: NDArray[np.uint64]) -> dict[str, NDArray[np.int64]]:
    """A vector, uint64 (total,), to int64 (length,) for each segment's name.

    Only the low `width` bytes of an entry are read. The inverse of `pack`, and of a sum of packed vectors if the true
    sums keep to their bounds. Raises OverflowBudgetError if an unsigned sum exceeds int64, MisuseError for a vector of
    another length or type.
    """
    if vector.dtype != np.uint64 or vector.shape != (sum(segment.length for segment in segments),):
        raise MisuseError(f"a vector of {vector.dtype} {vector.shape} does not belong to these segments")
    arrays: dict[str, NDArray[np.int64]] = {}
    start = 0
    for segment in segments:
        entries = vector[start : start + segment.length]
        start += segment.length
        unused = np.uint64(64 - 8 * segment.width)
        if segment.signed:  # the arithmetic shift of a signed integer copies the sign downwards
            values = (entries << unused).view(np.int64) >> unused.astype(np.int64)
        else:
            values = ((entries << unused) >> unused).view(np.int64)
            if values.size and int(values.min()) < 0:
                raise OverflowBudgetError(f"segment {segment.name!r} sums to more than any honest clients can send")
        arrays[segment.name] = values
    return arrays


def _range(segment: Segment) -> tuple[int, int]:
    bits = 8 * segment.width
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if segment.signed else (0, (1 << bits) - 1)
