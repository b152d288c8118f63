"""The ridge head: from summed moments to the linear classifier that is released."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.linalg.lapack import dpocon

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.solver.gcv import RidgeSpectrum, choose_ridge, is_searched
from fedopal_secure.solver.moments import Moments

RIDGE_RULES: Final = ("gcv", "fixed", "relative")
PAPER_RIDGE: Final = 1e-6


@dataclass(frozen=True, eq=False)
class RidgeHead:
    """A linear classifier on features as `FeatureGrid.normalised`.

    `weights`: float64 (d, classes). `intercept`: float64 (classes,). `ridge`: the lambda that was used, in units of
    features squared. `rule`: how it was chosen. A class that had no images scores 0.
    """

    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    ridge: float
    rule: str

    def scores(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Features (n, d) -> scores, float64 (n, classes); the largest is the prediction (FedOPAL eq. 10)."""
        if features.ndim != 2 or features.shape[1] != len(self.weights):
            raise MisuseError(f"features of shape {features.shape}: (n, {len(self.weights)}) is expected")
        return np.asarray(features @ self.weights + self.intercept, dtype=np.float64)


def solve_ridge(
    moments: Moments, rule: str = "gcv", ridge: float = PAPER_RIDGE, *, intercept: bool = True
) -> RidgeHead:
    """W = (R + lambda I)^-1 C, by a factorisation and never by an inverse; FedOPAL eq. 9.

    `rule` "fixed" takes lambda from `ridge` (a Cholesky factorisation, or the eigendecomposition where rounding makes
    the matrix singular); "relative" takes `ridge` times the mean of R's diagonal, which means the same for any number
    of images; "gcv" ignores `ridge` and chooses lambda. With `intercept`, R and C are centred first and the
    intercept is free of the penalty; without, it is zero and "fixed" is the paper's equation as published.
    Equal moments give equal heads, bit for bit, on one machine with one BLAS and one number of its threads (another
    number changes the last digits). Raises InputError for a rule or a lambda that does not exist.
    """
    ridge, weights = _given(moments, rule, ridge), None
    if rule != "gcv":
        gram, cross = (moments.centred_r(), moments.centred_c()) if intercept else (moments.r, moments.c)
        weights = cholesky_weights(gram, cross, ridge)
    if weights is None:
        spectrum = _spectrum(moments, intercept)
        if rule == "gcv":
            ridge = choose_ridge(spectrum)
        weights = spectrum.weights(ridge)
    return RidgeHead(weights, _offset(moments, weights, intercept), ridge, rule)


def chosen_ridge(moments: Moments, rule: str, value: float) -> float:
    """The lambda of a rule, for a head of another kind; "gcv" is that of the ridge head with an intercept."""
    return choose_ridge(_spectrum(moments, True)) if rule == "gcv" else _given(moments, rule, value)


def normalised(head: RidgeHead) -> RidgeHead:
    """The head with each class's weights scaled to length 1, and its intercept with them.

    Least squares gives a class of few images short weights, and so small scores; here the direction alone decides.
    """
    lengths = np.linalg.norm(head.weights, axis=0)
    scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return replace(head, weights=head.weights * scale, intercept=head.intercept * scale)


def gcv_head(moments: Moments, ridge: float, *, intercept: bool = True) -> tuple[RidgeHead, float]:
    """The head of rule "gcv" at this lambda, for whoever checks one that was made elsewhere.

    And by how much cross-validation likes that lambda less than its own choice, relative; infinite for a lambda that it
    never chooses.
    """
    spectrum = _spectrum(moments, intercept)
    weights = spectrum.weights(ridge)
    head = RidgeHead(weights, _offset(moments, weights, intercept), ridge, "gcv")
    best = choose_ridge(spectrum)
    if ridge == best:
        return head, 0.0
    known = math.isfinite(ridge) and ridge > 0 and len(spectrum.eigenvalues)
    if not known or not is_searched(spectrum, ridge):
        return head, math.inf
    told, least = float(spectrum.gcv(ridge)), float(spectrum.gcv(best))
    return head, told / least - 1 if least > 0 and math.isfinite(told) else math.inf


def rounding(moments: Moments, ridge: float, *, intercept: bool = True) -> float:
    """How far rounding alone may take a head's weights at this lambda, relative: d * epsilon * the condition number."""
    eigenvalues = _spectrum(moments, intercept).eigenvalues + ridge
    if not len(eigenvalues):
        return 0.0
    return float(len(moments.r) * np.finfo(np.float64).eps * eigenvalues[-1] / eigenvalues[0])


def _given(moments: Moments, rule: str, value: float) -> float:
    """The lambda that a rule makes of its value; "gcv" makes nothing of it."""
    if rule not in RIDGE_RULES:
        raise InputError(f"there is no lambda rule {rule!r}: give one of {', '.join(RIDGE_RULES)}")
    if rule != "gcv" and not (math.isfinite(value) and value >= 0):
        raise InputError(f"lambda {value}: give a number that is not negative")
    return value * float(np.trace(moments.r)) / len(moments.r) if rule == "relative" else value


def _spectrum(moments: Moments, intercept: bool) -> RidgeSpectrum:
    n, counts = moments.images, moments.counts.tolist()
    if not intercept:
        return RidgeSpectrum.decompose(moments.r, moments.c, n, float(n))
    target = (n * n - sum(count * count for count in counts)) / n  # in integers: exactly 0 for a single class
    return RidgeSpectrum.decompose(moments.centred_r(), moments.centred_c(), n - 1, target)


def _offset(moments: Moments, weights: NDArray[np.float64], intercept: bool) -> NDArray[np.float64]:
    return moments.class_shares - moments.mean @ weights if intercept else np.zeros(len(moments.counts))


def cholesky_weights(gram: NDArray[np.float64], cross: NDArray[np.float64], ridge: float) -> NDArray[np.float64] | None:
    """(gram + ridge I)^-1 cross, float64 (d, classes), by Cholesky; None if the matrix is singular up to rounding.

    That is, if the factorisation fails or the estimated reciprocal condition number is below d * epsilon.
    """
    matrix = gram + ridge * np.eye(len(gram))
    try:
        factor, lower = cho_factor(matrix, lower=True)
    except LinAlgError:
        return None
    condition, _ = dpocon(factor, np.abs(matrix).sum(axis=0).max(), uplo="L")
    if condition < len(gram) * np.finfo(np.float64).eps:
        return None
    weights: NDArray[np.float64] = cho_solve((factor, lower), cross)
    return weights
