"""Ridge regression for every lambda at once, and the choice of lambda by generalised cross-validation.

One eigendecomposition of the Gram matrix gives the weights, the residual and the degrees of freedom at any lambda.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import brentq, minimize_scalar

# Searched range, in units of the largest eigenvalue: from where rounding drowns lambda to where W is all but zero.
_LOWEST: Final = 1e-10
_HIGHEST: Final = 1e3
_GRID_POINTS: Final = 131  # ten for each decade
# Of the rows, at least this share must remain as residual freedom: closer to interpolation, images that resemble each
# other make the residual of a useless fit look small. docs/accuracy.md has what it is worth.
LEAST_FREEDOM: Final = 0.5


@dataclass(frozen=True, eq=False)
class RidgeSpectrum:
    """The least-squares problem min ||X W - Y||^2 + lambda ||W||^2 in the eigenvectors of X^T X.

    `eigenvalues`: float64 (r,), positive, ascending. `vectors`: float64 (d, r). `projected`: float64 (r, classes), the
    vectors' transpose times X^T Y. `freedom`: rows of X, less one if they were centred. `target`: ||Y||^2, centred if
    X is. Directions whose eigenvalue is zero up to rounding are left out: X^T Y has no component there.
    """

    eigenvalues: NDArray[np.float64]
    vectors: NDArray[np.float64]
    projected: NDArray[np.float64]
    freedom: int
    target: float

    @classmethod
    def decompose(
        cls, gram: NDArray[np.float64], cross: NDArray[np.float64], freedom: int, target: float
    ) -> RidgeSpectrum:
        """From gram = X^T X, float64 (d, d), and cross = X^T Y, float64 (d, classes)."""
        eigenvalues, vectors = eigh(gram)
        # Errors of computed eigenvalues are of the order of d * epsilon times the largest; the rank is at most freedom.
        rounding = len(gram) * np.finfo(np.float64).eps * max(eigenvalues[-1], 0.0)
        rank = min(int((eigenvalues > rounding).sum()), freedom)
        kept = slice(len(gram) - rank, None)
        return cls(eigenvalues[kept], vectors[:, kept], vectors[:, kept].T @ cross, freedom, target)

    def weights(self, ridge: float) -> NDArray[np.float64]:
        """W at this lambda, float64 (d, classes); at zero, the least-squares solution of least norm."""
        w: NDArray[np.float64] = self.vectors @ (self.projected / (self.eigenvalues + ridge)[:, None])
        return w

    def residual(self, ridge: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """||X W - Y||^2 at each lambda, float64, shaped like `ridge`.

        As what no W explains plus what the ridge leaves, both non-negative: ||Y||^2 - 2 tr W^T C + tr W^T R W is the
        same number, but cancels when the fit is close.
        """
        explained = np.square(self.projected).sum(axis=1) / self.eigenvalues
        unexplained = max(0.0, self.target - float(explained.sum()))
        return np.asarray(unexplained + np.square(self._shrunk(ridge)) @ explained)

    def residual_freedom(self, ridge: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Rows less the degrees of freedom of the fit (the trace of I - hat matrix) at each lambda, float64."""
        return np.asarray(self.freedom - len(self.eigenvalues) + self._shrunk(ridge).sum(axis=-1))

    def gcv(self, ridge: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Generalised cross-validation, RSS / (n - df)^2 up to the constant factor n, at each lambda, float64.

        Golub, Heath and Wahba, Technometrics 21 (1979). NaN or infinite where no freedom is left.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.residual(ridge) / np.square(self.residual_freedom(ridge)))

    def _shrunk(self, ridge: NDArray[np.float64] | float) -> NDArray[np.float64]:
        at = np.asarray(ridge, dtype=np.float64)[..., None]
        return np.asarray(at / (self.eigenvalues + at))


def choose_ridge(spectrum: RidgeSpectrum) -> float:
    """The lambda > 0 that minimises `RidgeSpectrum.gcv` where at least `LEAST_FREEDOM` of the rows remain.

    Deterministic: a logarithmic grid, then Brent's method. The bound is met by any lambda where features are fewer than
    half the images, and rules out lambdas that are too small where they are more.

    Where every lambda gives the same predictions (all images alike, or all of one class), the answer is 1.
    """
    if not len(spectrum.eigenvalues) or spectrum.target == 0:
        return 1.0
    largest = float(spectrum.eigenvalues[-1])
    grid = np.linspace(_least(spectrum, largest), math.log(_HIGHEST), _GRID_POINTS)
    scores = spectrum.gcv(largest * np.exp(grid))
    best = _GRID_POINTS - 1 - int(np.argmin(scores[::-1]))  # of equal scores, the more stable one
    refined: Any = minimize_scalar(
        lambda x: float(spectrum.gcv(largest * math.exp(x))),
        bounds=(grid[max(best - 1, 0)], grid[min(best + 1, _GRID_POINTS - 1)]),
        method="bounded",
        options={"xatol": 1e-6},
    )
    x = float(refined.x) if refined.fun < scores[best] else float(grid[best])
    return largest * math.exp(x)


def is_searched(spectrum: RidgeSpectrum, ridge: float) -> bool:
    """Whether `choose_ridge` may choose this lambda on some machine: enough freedom is left, up to rounding."""
    return float(spectrum.residual_freedom(ridge)) >= (LEAST_FREEDOM - 1e-6) * spectrum.freedom


def _least(spectrum: RidgeSpectrum, largest: float) -> float:
    """The logarithm of where the search begins, in units of the largest eigenvalue."""

    def spare(x: float) -> float:
        return float(spectrum.residual_freedom(largest * math.exp(x))) - LEAST_FREEDOM * spectrum.freedom

    lowest, highest = math.log(_LOWEST), math.log(_HIGHEST)
    if spare(lowest) >= 0:
        return lowest
    return float(brentq(spare, lowest, highest, xtol=1e-9))
