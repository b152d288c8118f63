"""LDA from sums: what scikit-learn and the densities themselves give from the images."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedopal_secure.core.errors import InputError
from fedopal_secure.solver.lda import solve_lda
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.ridge import normalised, solve_ridge


def images(seed: int, n: int = 200, dimension: int = 6, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, n, p=np.arange(1, classes + 1) / sum(range(1, classes + 1)))
    return rng.standard_normal((classes, dimension))[labels] + rng.standard_normal((n, dimension)), labels


def moments_of(x: np.ndarray, labels: np.ndarray, classes: int = 3) -> Moments:
    y = np.eye(classes)[labels]
    return Moments(x.T @ x, x.T @ y, np.bincount(labels, minlength=classes).astype(np.int64))


def test_without_a_ridge_it_is_scikit_learns() -> None:
    discriminant = pytest.importorskip("sklearn.discriminant_analysis", reason="scikit-learn is not installed")
    x, labels = images(0)
    ours = solve_lda(moments_of(x, labels), "fixed", 0.0)
    theirs = discriminant.LinearDiscriminantAnalysis(solver="lsqr").fit(x, labels)
    assert np.allclose(ours.scores(x), theirs.decision_function(x), atol=1e-9)


@pytest.mark.parametrize("ridge", [0.5, 20.0])
def test_scores_differ_as_log_densities_do(ridge: float) -> None:
    x, labels = images(1)
    head = solve_lda(moments_of(x, labels), "fixed", ridge)
    means = np.array([x[labels == c].mean(axis=0) for c in range(3)])
    within = sum((x[labels == c] - means[c]).T @ (x[labels == c] - means[c]) for c in range(3))
    covariance = (within + ridge * np.eye(6)) / len(x)
    logs = [multivariate_normal(means[c], covariance).logpdf(x) + np.log((labels == c).mean()) for c in range(3)]
    expected = np.array(logs).T
    scores = head.scores(x)
    assert np.allclose(scores - scores[:, :1], expected - expected[:, :1], atol=1e-9)


def test_fewer_images_than_dimensions_and_a_class_without_any() -> None:
    x, labels = images(2, n=12, dimension=40)
    for rule, value in (("gcv", 0.0), ("relative", 1e-2), ("fixed", 0.0)):
        head = solve_lda(moments_of(x, labels, classes=4), rule, value)
        assert np.isfinite(head.weights).all()
        assert np.isfinite(head.intercept).all()
        assert (head.scores(x).argmax(axis=1) != 3).all()


def test_relative_does_not_depend_on_the_number_of_images() -> None:
    x, labels = images(3)
    once, twice = moments_of(x, labels), moments_of(np.tile(x, (2, 1)), np.tile(labels, 2))
    for solve in (solve_lda, solve_ridge):
        one, two = solve(once, "relative", 0.1), solve(twice, "relative", 0.1)
        assert np.allclose(one.weights, two.weights)
        assert two.ridge == pytest.approx(2 * one.ridge)


def test_a_rule_that_is_none_and_a_negative_lambda() -> None:
    moments = moments_of(*images(4))
    with pytest.raises(InputError, match="no lambda rule"):
        solve_lda(moments, "best", 0.0)
    with pytest.raises(InputError, match="not negative"):
        solve_lda(moments, "relative", -1.0)


def test_normalised_weights_have_length_one() -> None:
    x, labels = images(5)
    head = normalised(solve_ridge(moments_of(x, labels, classes=4)))
    assert np.allclose(np.linalg.norm(head.weights, axis=0), [1, 1, 1, 0])
    plain = solve_ridge(moments_of(x, labels))
    scale = np.linalg.norm(plain.weights, axis=0)
    assert np.allclose(normalised(plain).scores(x) * scale, plain.scores(x))
