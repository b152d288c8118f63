"""The public integer grids that features and prompts are rounded to before anything is summed.

Once rounded, sums are sums of integers: exact, and the same for any split over clients and any order of arrival.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError, MisuseError, OverflowBudgetError
from fedopal_secure.core.params import MAX_BOUND, MIN_BOUND

MAX_FEATURE_BITS: Final = 24  # a float32 feature has 24 significant bits: a finer grid would record nothing
MAX_PROMPT_BITS: Final = 32


@dataclass(frozen=True)
class FeatureGrid:
    """The grid of the features, agreed in the session parameters.

    `normalise` puts every feature on the sphere of radius `bound`; without it, features inside that ball stay as they
    are and those outside are pulled back to the sphere. Either way the grid promises ||q||_2 <= 2**bits, which is what
    the overflow budget and the sensitivity of differential privacy are computed from.

    Raises InputError if the parameters make no grid.
    """

    dimension: int
    bound: float = 1.0
    bits: int = 12
    normalise: bool = True

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise InputError(f"features of dimension {self.dimension}: give at least 1")
        if not 1 <= self.bits <= MAX_FEATURE_BITS:
            raise InputError(f"{self.bits} feature bits: give 1 to {MAX_FEATURE_BITS}")
        _check_bound("feature", self.bound)
        if self._radius <= 0:
            least = math.floor(math.log2(math.sqrt(self.dimension) / 2)) + 1
            raise InputError(f"{self.bits} feature bits are too few for dimension {self.dimension}: give {least}")

    @property
    def _radius(self) -> float:
        """Largest norm, in grid units, of what is rounded: rounding moves a vector by at most sqrt(dimension)/2."""
        return (1 << self.bits) - math.sqrt(self.dimension) / 2

    @property
    def scale(self) -> float:
        """Grid units per unit of feature: (2**bits - sqrt(dimension)/2) / bound.

        Sums are read back with this number and not with 2**bits / bound, so that they are sums of what `normalised`
        returns, and the head fits the features that it is shown at prediction.
        """
        return self._radius / self.bound

    def quantise(self, features: NDArray[Any]) -> NDArray[np.int32]:
        """Features (n, dimension), any real dtype -> grid points, int32 (n, dimension), with ||q||_2 <= 2**bits.

        The bound holds for the exact integer norm of every row, whatever the finite input. Half-way values go to the
        even neighbour; zero rows stay zero. Each row depends on that row alone, bit for bit. Raises InputError naming
        the first row that is not finite, MisuseError for a wrong shape.
        """
        return _round_into_ball(self._in_unit_ball(features) * self._radius, self.bits)

    def normalised(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """What `quantise` rounds, in units of feature: float64 (n, dimension), norms at most `bound`.

        Prediction applies the head to these. Raises as `quantise` does.
        """
        return self._in_unit_ball(features) * self.bound

    def _in_unit_ball(self, features: NDArray[Any]) -> NDArray[np.float64]:
        # C order makes numpy add each row in one fixed order, however many rows there are.
        h = np.array(features, dtype=np.float64, order="C")
        if h.ndim != 2 or h.shape[1] != self.dimension:
            raise MisuseError(f"features of shape {h.shape}: (n, {self.dimension}) is expected")
        finite = np.isfinite(h).all(axis=1)
        if not finite.all():
            row = int(np.argmin(finite))
            raise InputError(f"features of row {row} are not finite: leave that image out or check the backbone")
        # Dividing by the largest entry first keeps the squares of huge and of denormal features in range.
        largest = np.abs(h).max(axis=1, keepdims=True)
        h /= np.where(largest == 0, 1.0, largest)
        norm = np.sqrt(np.square(h).sum(axis=1, keepdims=True))
        if self.normalise:
            return h / np.where(norm == 0, 1.0, norm)
        with np.errstate(over="ignore"):  # a norm beyond float64 is infinite, hence outside the ball, as it should be
            inside = norm * largest <= self.bound
            return np.where(inside, h * (np.where(inside, largest, 0.0) / self.bound), h / np.where(inside, 1.0, norm))


def _round_into_ball(x: NDArray[np.float64], bits: int) -> NDArray[np.int32]:
    """Rows of x, rounded half to even, or toward zero where that would leave the ball of radius 2**bits."""
    q = np.rint(x).astype(np.int32)
    norms = np.square(q, dtype=np.int64).sum(axis=1)
    outside = norms > (1 << (2 * bits))
    # Only float round-off in the norm of a row can bring it here; toward zero, no entry grows.
    q[outside] = np.trunc(x[outside]).astype(np.int32)
    return q


@dataclass(frozen=True)
class PromptGrid:
    """The grid of the prompt tokens: `bound` is the largest magnitude of an entry, 2**bits its grid value.

    Raises InputError if the parameters make no grid.
    """

    bound: float = 4.0
    bits: int = 24

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MAX_PROMPT_BITS:
            raise InputError(f"{self.bits} prompt bits: give 1 to {MAX_PROMPT_BITS}")
        _check_bound("prompt", self.bound)

    @property
    def scale(self) -> float:
        """Grid units per unit of prompt: 2**bits / bound."""
        return (1 << self.bits) / self.bound

    def quantise(self, prompts: NDArray[Any]) -> NDArray[np.int64]:
        """Prompts (M, D), any real dtype -> grid points, int64 (M, D), each of magnitude at most 2**bits.

        Raises InputError if an entry is not finite, OverflowBudgetError if one exceeds `bound`, MisuseError for a
        wrong shape.
        """
        p = np.asarray(prompts, dtype=np.float64)
        if p.ndim != 2:
            raise MisuseError(f"prompts of shape {p.shape}: (tokens, dimension) is expected")
        finite = np.isfinite(p).all(axis=1)
        if not finite.all():
            row = int(np.argmin(finite))
            raise InputError(f"prompt token {row} is not finite: tune with a lower learning rate")
        largest = float(np.abs(p).max(initial=0.0))
        if largest > self.bound:
            raise OverflowBudgetError(
                f"a prompt entry of magnitude {largest:.4g} exceeds the bound {self.bound:g}: "
                "tune with a lower learning rate or agree on a larger prompt bound"
            )
        return np.rint(p / self.bound * (1 << self.bits)).astype(np.int64)

    def mean(self, total: NDArray[np.int64], clients: int) -> NDArray[np.float32]:
        """The sum of the grid points of `clients` clients, int64 (M, D) -> their mean prompt, float32 (M, D).

        FedOPAL eq. 8. Raises OverflowBudgetError if so many clients cannot have this sum.
        """
        if clients < 1:
            raise MisuseError(f"the mean prompt of {clients} clients")
        limit = clients << self.bits
        if total.size and (int(total.max()) > limit or int(total.min()) < -limit):
            raise OverflowBudgetError(f"the sum of the prompts is larger than {clients} clients can make it")
        return (total / (clients * self.scale)).astype(np.float32)


def _check_bound(what: str, bound: float) -> None:
    if not MIN_BOUND <= bound <= MAX_BOUND:  # NaN fails too
        raise InputError(f"{what} bound {bound}: give a positive number, 1 is usual")
