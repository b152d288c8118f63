"""From noisy sums to a head: everything here is computed from what differential privacy already released.

Nothing but the noisy moments, their public noise levels and public features comes in, so the head is post-processing
and costs no further privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.solver.ridge import RidgeHead, cholesky_weights

PRIVATE_RULES: Final = ("auto", "private-ridge", "class-mean")

# Chosen by experiment; benchmarks/private_solvers.py repeats it on any features.
LEAST_R_SHARE: Final = 0.1
MOST_R_SHARE: Final = 0.5
IMAGES_OF_FULL_R_SHARE: Final = 5_000  # images per unit of noise at which R would have all
IMAGES_PER_AXIS: Final = 6
LEAST_AXES: Final = 16
_MOST_NOISE_BESIDE_PUBLIC: Final = 0.3  # of C's signal: beyond, public images know R's shape better than the sums do
_MOST_NOISE_OF_RIDGE: Final = 2.0  # the same where there are no public images
_CLASS_MEAN_RIDGE: Final = 3.0  # times the mean eigenvalue of R; more where C is noisy
_LEAST_SIGNAL: Final = 0.05  # of the noise: keeps the ratio finite where C shows nothing


@dataclass(frozen=True, eq=False)
class NoisyMoments:
    """R = sum of h h^T and C = sum of h y^T (FedOPAL eq. 7) with the noise of the release, in units of the feature h.

    `r`: float64 (d, d), symmetric, noise of standard deviation `sigma_r` on its diagonal and sigma_r / sqrt(2) off it.
    `c`: float64 (d, classes), noise `sigma_c`. `counts`: float64 (classes,), noise `sigma_counts`, or None where they
    were not released. Sigmas are those of all the noise that is in the sums; 0 means none. `max_images` is the public
    cap on images in all, `bound` the largest norm of h; every h is taken to have it. Raises MisuseError for arrays that
    do not fit together, InputError for sigmas or bounds that cannot be.
    """

    r: NDArray[np.float64]
    c: NDArray[np.float64]
    counts: NDArray[np.float64] | None
    sigma_r: float
    sigma_c: float
    sigma_counts: float | None
    max_images: int
    bound: float = 1.0

    def __post_init__(self) -> None:
        d, classes = self.c.shape if self.c.ndim == 2 else (0, 0)
        if not d or not classes or self.r.shape != (d, d) or not np.array_equal(self.r, self.r.T):
            raise MisuseError(f"R of shape {self.r.shape} and C of {self.c.shape}: symmetric (d, d) and (d, classes)")
        if (self.counts is None) != (self.sigma_counts is None):
            raise MisuseError("counts and their noise level come together")
        if self.counts is not None and self.counts.shape != (classes,):
            raise MisuseError(f"counts of shape {self.counts.shape} and {classes} classes")
        arrays = [self.r, self.c] + ([] if self.counts is None else [self.counts])
        if not all(np.isfinite(array).all() for array in arrays):
            raise InputError("the noisy sums are not finite: the release is damaged")
        for name in ("sigma_r", "sigma_c", "sigma_counts"):
            sigma = getattr(self, name)
            if sigma is not None and not (math.isfinite(sigma) and sigma >= 0):
                raise InputError(f"{name} {sigma}: give the noise level of the release, a number that is not negative")
        if not (self.max_images >= 1 and math.isfinite(self.bound) and self.bound > 0):
            raise InputError(f"at most {self.max_images} images of norm {self.bound}: give positive numbers")

    @property
    def ridge_floor(self) -> float:
        """See `ridge_floor`."""
        return ridge_floor(self.sigma_r, len(self.r))

    @property
    def images(self) -> float:
        """Number of images, estimated: the counts' sum or, with h on the sphere, the trace of R; within the cap."""
        total = np.trace(self.r) / self.bound**2 if self.counts is None else self.counts.sum()
        return float(min(max(total, 1.0), self.max_images))

    @property
    def class_counts(self) -> NDArray[np.float64]:
        """Images of each class, float64 (classes,), estimated; they add up to `images`.

        Released counts are drawn towards equal shares as far as their noise explains how they differ (James and Stein
        1961); without them, equal shares are assumed.
        """
        classes = self.c.shape[1]
        equal = np.full(classes, self.images / classes)
        if self.counts is None or self.sigma_counts is None or self.counts.sum() <= 0:
            return equal
        deviations = self.counts - self.counts.mean()
        spread = float(np.square(deviations).sum())
        noise = self.sigma_counts**2 * (classes - 1)
        positive = np.maximum(self.counts.mean() + max(0.0, 1 - noise / spread) * deviations, 0.0) if spread else equal
        return np.asarray(positive * (self.images / positive.sum()))


def ridge_floor(sigma_r: float, dimension: int) -> float:
    """The spectral norm of R's noise, sigma_r sqrt(2 d): a smaller lambda divides by noise."""
    return sigma_r * math.sqrt(2 * dimension)


def suggest_r_share(max_images: int, rho: float) -> float:
    """R's part of a budget of rho-zCDP for R and C together, from public numbers alone: 1/10 to 1/2.

    Class means come first, and R pays once they are clear. For features of norm at most 1 a release with noise sigma_r
    and sigma_c costs 1 / (2 sigma_r**2) + 1 / (2 sigma_c**2). Raises InputError for numbers that are no budget.
    """
    return min(MOST_R_SHARE, max(LEAST_R_SHARE, _images_per_noise(max_images, rho) / IMAGES_OF_FULL_R_SHARE))


def suggest_dimensions(max_images: int, rho: float, available: int) -> int:
    """How many of the `available` axes of a feature map to keep, from public numbers alone.

    Noise grows with the axes and what they add shrinks: one for every `IMAGES_PER_AXIS` images per unit of noise.
    """
    if available < 1:
        raise InputError(f"{available} axes to choose from: give a feature map")
    wanted = math.floor(_images_per_noise(max_images, rho) / IMAGES_PER_AXIS)
    return min(available, max(LEAST_AXES, wanted))


def _images_per_noise(max_images: int, rho: float) -> float:
    """The cap on images over the noise 1 / sqrt(2 rho) of a release of sensitivity 1: what the choices above go by."""
    if max_images < 1 or not (math.isfinite(rho) and rho > 0):
        raise InputError(f"at most {max_images} images and a budget rho of {rho}: give positive numbers")
    return max_images * math.sqrt(2 * rho)


def solve_private(
    moments: NoisyMoments,
    rule: str = "auto",
    ridge: float | None = None,
    *,
    public_moment: NDArray[np.float64] | None = None,
) -> RidgeHead:
    """A linear head from noisy moments, with an intercept that lambda does not touch.

    "private-ridge": R, centred by C, is projected onto the positive semidefinite matrices; lambda is `ridge` or, if
    None, `NoisyMoments.ridge_floor`, and a smaller one is refused. "class-mean": C alone, in the metric of
    `public_moment`, float64 (d, d), the second moment of public features h of norm 1 (None: that of features without a
    preferred direction, I / d), with a lambda that grows with C's noise. "auto": private-ridge, or class-mean if no
    lambda is given and C's noise is too large beside what it hides. Without released counts the classes are taken to
    be equally frequent. The head records the rule and the lambda that were used. Deterministic: equal moments give
    equal heads as `solve_ridge` does.

    Raises InputError for a rule that does not exist or a lambda below the floor.
    """
    if rule not in PRIVATE_RULES:
        raise InputError(f"there is no private rule {rule!r}: give one of {', '.join(PRIVATE_RULES)}")
    d = len(moments.r)
    if public_moment is not None and public_moment.shape != (d, d):
        raise MisuseError(f"a public moment of shape {public_moment.shape} for features of {d} dimensions")
    n, counts = moments.images, moments.class_counts
    mean = moments.c.sum(axis=1) / n
    cross = moments.c - np.outer(mean, counts)
    noise = _noise_to_signal(cross, moments.sigma_c)
    if rule == "auto":
        most = _MOST_NOISE_OF_RIDGE if public_moment is None else _MOST_NOISE_BESIDE_PUBLIC
        rule = "private-ridge" if ridge is not None or noise <= most else "class-mean"
    if rule == "class-mean":
        if ridge is not None:
            raise InputError("class-mean has no lambda to choose: leave it out, or take private-ridge")
        energy = n * moments.bound**2
        gram = energy * (np.eye(d) / d if public_moment is None else public_moment)
        ridge = _CLASS_MEAN_RIDGE * (1 + noise) * energy / d
    else:
        gram = moments.r - n * np.outer(mean, mean)
        ridge = moments.ridge_floor if ridge is None else ridge
        if not (math.isfinite(ridge) and ridge >= moments.ridge_floor):
            raise InputError(f"lambda {ridge:g} is below the noise of R: give at least {moments.ridge_floor:.6g}")
    gram = project_psd(gram)
    weights = cholesky_weights(gram, cross, ridge)
    if weights is None:
        raise InputError(f"lambda {ridge:g} leaves R singular: give a larger one")
    if moments.sigma_r > 0 or moments.sigma_c > 0:
        weights *= _unshrinking(moments, gram, cross, weights, ridge)
    return RidgeHead(weights, counts / n - mean @ weights, ridge, rule)


def project_psd(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest positive semidefinite matrix, float64 (d, d): negative eigenvalues become zero (Higham 1988)."""
    eigenvalues, vectors = eigh(matrix)
    projected = (vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T
    return np.asarray((projected + projected.T) / 2)


def _unshrinking(
    moments: NoisyMoments,
    gram: NDArray[np.float64],
    cross: NDArray[np.float64],
    weights: NDArray[np.float64],
    ridge: float,
) -> float:
    """The factor, at least 1, by which the weights fit best: lambda shrinks them and not the class shares beside them.

    At the noise level lambda shrinks so far that a head would only ever predict the largest class. Least squares over
    one scale: tr W^T C / tr W^T R W, less what C's noise adds to the numerator by having made W.
    """
    classes = cross.shape[1]
    inverse_trace = float((1 / (eigh(gram, eigvals_only=True) + ridge)).sum())
    fit = float((weights * cross).sum()) - moments.sigma_c**2 * (classes - 1) * inverse_trace
    energy = float((weights * (gram @ weights)).sum())
    return max(1.0, fit / energy) if energy > 0 else 1.0


def _noise_to_signal(cross: NDArray[np.float64], sigma: float) -> float:
    """Energy of the noise in C, centred, over that of what it hides, estimated by their sum."""
    d, classes = cross.shape
    noise = sigma**2 * d * (classes - 1)
    signal = max(float(np.square(cross).sum()) - noise, _LEAST_SIGNAL * noise)
    return noise / signal if signal > 0 else 0.0
