"""Exact integer sums of a set of features: R, C and the class counts, all that a client ever says of its images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedopal_secure.core.errors import InputError, MisuseError, OverflowBudgetError
from fedopal_secure.encoding.grid import MAX_FEATURE_BITS
from fedopal_secure.encoding.layout import COUNTS, R_DIAGONAL, R_UPPER, C, statistics_lengths

_EXACT_BITS: Final = 53  # float64 holds every integer up to 2**53
_BLOCK_ROWS: Final = 8192  # bounds the memory of a block; only grids beyond 20 bits need smaller ones


@dataclass(frozen=True, eq=False, repr=False)
class SufficientStatistics:
    """R = sum of q q^T, C = sum of q y^T and the class counts of grid points q (FedOPAL eq. 7); y is one-hot.

    `r`: int64 (d, d), symmetric, grid units squared. `c`: int64 (d, classes), grid units. `counts`: int64 (classes,).
    Statistics of disjoint sets of images add up to those of their union, bit for bit. Raises MisuseError if the arrays
    do not fit together.
    """

    r: NDArray[np.int64]
    c: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"SufficientStatistics(dimension {len(self.r)}, {len(self.counts)} classes)"  # the sums may be private

    def __post_init__(self) -> None:
        if any(array.dtype != np.int64 for array in (self.r, self.c, self.counts)):
            raise MisuseError("statistics are int64 arrays")
        if self.counts.ndim != 1 or self.c.ndim != 2 or self.r.shape != (len(self.c), len(self.c)):
            raise MisuseError(f"shapes {self.r.shape}, {self.c.shape} and {self.counts.shape} do not fit together")
        if self.c.shape[1] != len(self.counts):
            raise MisuseError(f"C has {self.c.shape[1]} classes and there are {len(self.counts)} counts")
        if not np.array_equal(self.r, self.r.T):
            raise MisuseError("R is not symmetric")

    @classmethod
    def zeros(cls, dimension: int, classes: int) -> SufficientStatistics:
        """The statistics of no images."""
        return cls(
            np.zeros((dimension, dimension), np.int64),
            np.zeros((dimension, classes), np.int64),
            np.zeros(classes, np.int64),
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.int64]], dimension: int, classes: int) -> SufficientStatistics:
        """The inverse of `to_arrays`; arrays of other names are ignored. Raises MisuseError for wrong lengths."""
        for name, length in statistics_lengths(dimension, classes).items():
            if name not in arrays or arrays[name].shape != (length,):
                raise MisuseError(f"statistics need an array {name!r} of {length} entries")
        r = np.zeros((dimension, dimension), np.int64)
        upper = np.triu_indices(dimension, 1)
        r[upper] = arrays[R_UPPER]
        r += r.T
        r[np.diag_indices(dimension)] = arrays[R_DIAGONAL]
        return cls(r, arrays[C].reshape(dimension, classes), arrays[COUNTS])

    def to_arrays(self) -> dict[str, NDArray[np.int64]]:
        """The same numbers as the flat arrays that the segments of the vector are named after; R's triangle once."""
        return {
            R_DIAGONAL: self.r.diagonal().copy(),
            R_UPPER: self.r[np.triu_indices(len(self.r), 1)],
            C: self.c.ravel(),
            COUNTS: self.counts,
        }

    @property
    def images(self) -> int:
        """Number of images in all."""
        return sum(self.counts.tolist())

    def check_budget(self, max_images: int) -> None:
        """Raise OverflowBudgetError if there are more than `max_images` images, for which the widths were chosen.

        Whoever unmasks a sum checks this before anything is read from it.
        """
        if int(self.counts.min(initial=0)) < 0 or self.images > max_images:
            raise OverflowBudgetError(
                f"{self.images} images, but the session's budget is {max_images}: use fewer or agree on a larger budget"
            )

    def __add__(self, other: SufficientStatistics) -> SufficientStatistics:
        """Statistics of the union of two disjoint sets; raises OverflowBudgetError rather than wrap."""
        if self.c.shape != other.c.shape:
            raise MisuseError(f"statistics of shapes {self.c.shape} and {other.c.shape} cannot be added")
        return SufficientStatistics(_add(self.r, other.r), _add(self.c, other.c), _add(self.counts, other.counts))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SufficientStatistics):
            return NotImplemented
        return (
            np.array_equal(self.r, other.r)
            and np.array_equal(self.c, other.c)
            and np.array_equal(self.counts, other.counts)
        )


def accumulate(q: NDArray[Any], labels: NDArray[Any], classes: int, bits: int) -> SufficientStatistics:
    """Statistics of grid points q, integer (n, d), with labels, integer (n,) in [0, classes). FedOPAL eq. 7.

    Exact: equal, bit for bit, to the sum in unbounded integers, for any split and any order of the rows. Raises
    OverflowBudgetError if a row has ||q||_2 > 2**bits or the sums could pass int64, InputError for a label out of
    range, MisuseError for wrong shapes or types.
    """
    q, labels = np.asarray(q), np.asarray(labels)
    if q.ndim != 2 or labels.shape != (len(q),) or q.dtype.kind not in "iu" or labels.dtype.kind not in "iu":
        raise MisuseError(
            f"grid points {q.dtype} {q.shape} and labels {labels.dtype} {labels.shape}: integers (n, d) and (n,)"
        )
    if not 1 <= bits <= MAX_FEATURE_BITS or classes < 1:
        raise MisuseError(f"{bits} bits and {classes} classes")
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"label {labels[row]} of row {row} is not one of the {classes} classes 0 to {classes - 1}")
    if len(q) << (2 * bits) > np.iinfo(np.int64).max:
        raise OverflowBudgetError(f"{len(q)} images are too many for sums of 64 bits at {bits} bits of the grid")

    statistics = SufficientStatistics.zeros(q.shape[1], classes)
    # |sum of any of the products in a block| <= rows * 2**(2 bits) <= 2**53, so BLAS rounds nothing, in any order.
    rows = min(_BLOCK_ROWS, 1 << (_EXACT_BITS - 2 * bits))
    buffer = np.empty((min(rows, len(q)), q.shape[1]))  # one for all blocks: fresh memory takes time
    for start in range(0, len(q), rows):
        label = labels[start : start + rows]
        block = buffer[: len(label)]
        block[...] = q[start : start + rows]
        outside = np.einsum("ij,ij->i", block, block) > float(1 << (2 * bits))
        if outside.any():
            raise OverflowBudgetError(f"row {start + int(np.argmax(outside))} is outside the grid of {bits} bits")
        # Sparse: adding each row to its class once takes no product with the zeros of the other classes.
        one_hot = csr_array((np.ones(len(label)), label, np.arange(len(label) + 1)), (len(label), classes))
        statistics.r[...] += (block.T @ block).astype(np.int64)
        statistics.c[...] += (one_hot.T @ block).T.astype(np.int64)
        statistics.counts[...] += np.bincount(label, minlength=classes)
    return statistics


def _add(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    total = a + b
    if ((a ^ total) & (b ^ total) < 0).any():  # the sign differs from that of both terms: it wrapped
        raise OverflowBudgetError("the sum of these statistics passes 64 bits: use fewer images or bits of the grid")
    return total
