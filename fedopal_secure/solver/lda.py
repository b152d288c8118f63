"""Linear discriminant analysis from the same sums as the ridge head: classes as Gaussians with one covariance.

With counts, C has the class means, and R less their part is the scatter within classes. So the Gaussian head of FedCGS
comes out of what a ridge head is solved from, with a shrunk covariance that no class of few images can make singular.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import eigh

from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.ridge import RidgeHead, chosen_ridge

# The logarithm of no share at all, as far as a float64 goes: a class without images is never the answer.
_NO_PRIOR = math.log(np.finfo(np.float64).tiny)


def solve_lda(moments: Moments, rule: str = "gcv", value: float = 0.0) -> RidgeHead:
    """Scores log p(class) + log N(h; class mean, (S + lambda I) / n), S the scatter within classes (Fisher 1936).

    lambda is in the units of R; its rules are those of `chosen_ridge`, "gcv" that of the ridge head of the same sums.
    The priors are the shares of the classes. Raises InputError for a rule or a value that does not exist.
    """
    ridge = chosen_ridge(moments, rule, value)
    means, n = moments.class_means, moments.images
    within = moments.r - (means * moments.counts) @ means.T
    eigenvalues, vectors = eigh((within + within.T) / 2)
    # A scatter has no negative eigenvalue; where rounding gives one, or lambda is 0, the direction is left out.
    variances = np.maximum(eigenvalues, 0.0) + ridge
    least = len(means) * np.finfo(np.float64).eps * max(float(eigenvalues[-1]), ridge)
    inverse = np.divide(float(n), variances, out=np.zeros_like(variances), where=variances > least)
    weights = vectors @ (inverse[:, None] * (vectors.T @ means))
    present = moments.counts > 0
    priors = np.log(moments.class_shares, out=np.full(len(present), _NO_PRIOR), where=present)
    intercept = priors - np.einsum("dc,dc->c", means, weights) / 2
    return RidgeHead(weights, intercept, ridge, rule)
