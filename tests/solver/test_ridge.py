"""The ridge head against raw data: normal equations, scikit-learn, explicit hat matrices, and singular systems."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.solver.gcv import RidgeSpectrum, choose_ridge
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.ridge import RidgeHead, cholesky_weights, gcv_head, rounding, solve_ridge
from fedopal_secure.statistics.sums import accumulate


class Problem:
    """Rows on the grid, so that raw-data formulas and formulas from sums see the very same numbers."""

    def __init__(self, features: np.ndarray, labels: np.ndarray, classes: int, bits: int = 12) -> None:
        grid = FeatureGrid(features.shape[1], bits=bits)
        q = grid.quantise(features)
        self.statistics = accumulate(q, labels, classes, bits)
        self.moments = Moments.from_statistics(self.statistics, grid)
        self.grid = grid
        self.x = q / grid.scale
        self.y = np.eye(classes)[labels]
        self.labels = labels

    def centred(self, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
        if not intercept:
            return self.x, self.y
        return self.x - self.x.mean(axis=0), self.y - self.y.mean(axis=0)

    def spectrum(self, intercept: bool) -> RidgeSpectrum:
        x, y = self.centred(intercept)
        return RidgeSpectrum.decompose(x.T @ x, x.T @ y, len(x) - intercept, float((y**2).sum()))


def clusters(seed: int, n: int, dimension: int, classes: int, spread: float = 1.0) -> Problem:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    centres = rng.standard_normal((classes, dimension))
    return Problem(centres[labels] + spread * rng.standard_normal((n, dimension)) + 0.5, labels, classes)


def dual_weights(problem: Problem, ridge: float, intercept: bool) -> np.ndarray:
    """X^T (X X^T + lambda I)^-1 Y: the same W through the n by n system, well conditioned when n < d."""
    x, y = problem.centred(intercept)
    w: np.ndarray = x.T @ np.linalg.solve(x @ x.T + ridge * np.eye(len(x)), y)
    return w


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 1.0, 100.0])
def test_fixed_equals_scikit_learn(ridge: float, intercept: bool) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    p = clusters(0, 300, 20, 4)
    theirs = linear_model.Ridge(alpha=ridge, fit_intercept=intercept, solver="svd").fit(p.x, p.y)
    ours = solve_ridge(p.moments, "fixed", ridge, intercept=intercept)
    np.testing.assert_allclose(ours.weights, theirs.coef_.T, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(ours.intercept, theirs.intercept_ if intercept else 0, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(ours.scores(p.x), theirs.predict(p.x), atol=1e-8)
    assert (ours.ridge, ours.rule) == (ridge, "fixed")


def test_without_intercept_it_is_the_papers_equation() -> None:
    """FedOPAL eq. 9, written down as published."""
    p = clusters(1, 200, 15, 3)
    s = p.grid.scale
    w = np.linalg.solve(p.statistics.r / s**2 + 1e-6 * np.eye(15), p.statistics.c / s)
    head = solve_ridge(p.moments, "fixed", intercept=False)
    np.testing.assert_allclose(head.weights, w, rtol=1e-8)
    assert head.ridge == 1e-6
    assert not head.intercept.any()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(2, 60), st.integers(2, 25), st.integers(2, 5), st.floats(-4, 3), st.booleans()
)
def test_gcv_equals_the_explicit_hat_matrix(
    seed: int, n: int, dimension: int, classes: int, log_ridge: float, intercept: bool
) -> None:
    """RSS, degrees of freedom and RSS / (n - df)^2 from H = X (X^T X + lambda I)^-1 X^T and the labels themselves."""
    p = clusters(seed, n, dimension, classes)
    ridge = 10.0**log_ridge
    x, _ = p.centred(intercept)
    hat = x @ np.linalg.solve(x.T @ x + ridge * np.eye(dimension), x.T) + intercept / n
    rss = float((((np.eye(n) - hat) @ p.y) ** 2).sum())
    left = n - np.trace(hat)
    moments = p.moments
    gram, cross = (moments.centred_r(), moments.centred_c()) if intercept else (moments.r, moments.c)
    target = float((p.centred(intercept)[1] ** 2).sum())
    spectrum = RidgeSpectrum.decompose(gram, cross, n - intercept, target)
    assert float(spectrum.residual(ridge)) == pytest.approx(rss, rel=1e-6, abs=1e-9)
    assert float(spectrum.residual_freedom(ridge)) == pytest.approx(left, rel=1e-6)
    assert float(spectrum.gcv(ridge)) == pytest.approx(rss / left**2, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("n", "dimension"), [(300, 20), (60, 20), (25, 40)])
def test_rss_from_sums_equals_rss_of_the_released_head(n: int, dimension: int, intercept: bool) -> None:
    p = clusters(2, n, dimension, 4)
    head = solve_ridge(p.moments, "gcv", intercept=intercept)
    rss = float(((head.scores(p.x) - p.y) ** 2).sum())
    assert float(p.spectrum(intercept).residual(head.ridge)) == pytest.approx(rss, rel=1e-9)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("n", "dimension", "spread"), [(150, 30, 1.0), (40, 60, 1.0), (31, 30, 1.0), (200, 10, 8.0)])
def test_gcv_chooses_the_minimum_of_brute_force(n: int, dimension: int, spread: float, intercept: bool) -> None:
    """Against 400 lambdas, each with its own hat matrix from the singular values of the raw rows."""
    p = clusters(3, n, dimension, 5, spread)
    x, y = p.centred(intercept)
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    head = solve_ridge(p.moments, intercept=intercept)

    def gcv(ridge: float) -> float:
        hat = (u * (s**2 / (s**2 + ridge))) @ u.T
        left = n - intercept - np.trace(hat)
        if left < (n - intercept) / 2 * (1 - 1e-9):  # closer to interpolation it does not look
            return math.inf
        return float(((y - hat @ y) ** 2).sum()) / left**2

    # below 1e-5 of the largest eigenvalue the brute force itself drowns in rounding when n < d
    best = min(gcv(s[0] ** 2 * 10**e) for e in np.linspace(-5, 3, 400))
    assert gcv(head.ridge) <= best * (1 + 1e-6)
    assert head.rule == "gcv"


def test_gcv_is_leave_one_out_when_leverages_are_equal() -> None:
    """On a circulant design every h_ii equals df / n, and GCV is exactly the mean squared leave-one-out error / n."""
    rng = np.random.default_rng(4)
    first = rng.standard_normal(12)
    x = np.array([np.roll(first, k) for k in range(12)])[:, :12]
    y = np.eye(3)[rng.integers(0, 3, 12)]
    ridge, loo = 2.5, 0.0
    for i in range(12):
        keep = np.arange(12) != i
        w = np.linalg.solve(x[keep].T @ x[keep] + ridge * np.eye(12), x[keep].T @ y[keep])
        loo += float(((y[i] - x[i] @ w) ** 2).sum())
    spectrum = RidgeSpectrum.decompose(x.T @ x, x.T @ y, 12, 12.0)
    assert 12**2 * float(spectrum.gcv(ridge)) == pytest.approx(loo, rel=1e-9)


def test_gcv_beats_the_papers_lambda_when_images_are_few() -> None:
    """Held-out accuracy with n near d, where lambda = 1e-6 interpolates noise."""
    rng = np.random.default_rng(5)
    dimension, classes = 100, 10
    centres = rng.standard_normal((classes, dimension))
    labels = rng.integers(0, classes, 1120)
    features = centres[labels] + 3 * rng.standard_normal((1120, dimension))
    p = Problem(features[:120], labels[:120], classes)
    held_out = p.grid.normalised(features[120:])

    def accuracy(head: RidgeHead) -> float:
        return float((head.scores(held_out).argmax(axis=1) == labels[120:]).mean())

    assert accuracy(solve_ridge(p.moments)) > accuracy(solve_ridge(p.moments, "fixed")) + 0.15


# systems that are singular, or nearly


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 1.0])
def test_fewer_images_than_dimensions(ridge: float, intercept: bool) -> None:
    p = clusters(6, 30, 80, 3)
    head = solve_ridge(p.moments, "fixed", ridge, intercept=intercept)
    np.testing.assert_allclose(head.weights, dual_weights(p, ridge, intercept), rtol=1e-4, atol=1e-5)
    if ridge == 1e-6:
        np.testing.assert_allclose(head.scores(p.x), p.y, atol=1e-3)  # it interpolates


def duplicated(seed: int, n: int = 200, dimension: int = 12) -> Problem:
    """Every feature occurs twice, and one is constant zero: the Gram matrix is exactly singular, rank 11 of 25."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    half = rng.standard_normal((3, dimension))[labels] + rng.standard_normal((n, dimension))
    return Problem(np.hstack([half, half, np.zeros((n, 1))]), labels, 3)


@pytest.mark.parametrize("ridge", [1e-6, 1e-9])
def test_duplicated_features_share_their_weight(ridge: float) -> None:
    p = duplicated(7)
    head = solve_ridge(p.moments, "fixed", ridge)
    np.testing.assert_allclose(head.weights[:12], head.weights[12:24], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(head.weights[24], 0, atol=1e-12)
    np.testing.assert_allclose(head.weights, dual_weights(p, 1e-6, True), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("problem", [duplicated(8), clusters(8, 30, 80, 3), clusters(8, 81, 80, 3)])
def test_without_a_ridge_the_fallback_gives_the_solution_of_least_norm(problem: Problem) -> None:
    """Cholesky sees that these are singular and steps aside; the answer is numpy's lstsq on the raw rows."""
    x, y = problem.centred(True)
    least = np.linalg.lstsq(x, y, rcond=1e-7)[0]
    full_rank = np.linalg.matrix_rank(x, tol=1e-7) == x.shape[1]
    moments = problem.moments
    assert (cholesky_weights(moments.centred_r(), moments.centred_c(), 0.0) is None) == (not full_rank)
    head = solve_ridge(moments, "fixed", 0.0)
    np.testing.assert_allclose(head.weights, least, rtol=1e-6, atol=1e-6)


def test_cholesky_steps_aside_only_when_it_must() -> None:
    gram, cross = np.diag([1.0, 1e-3]), np.eye(2)
    weights = cholesky_weights(gram, cross, 1e-6)
    assert weights is not None
    np.testing.assert_allclose(weights, np.diag([1 / (1 + 1e-6), 1 / (1e-3 + 1e-6)]))
    assert cholesky_weights(np.diag([1.0, 0.0]), cross, 0.0) is None  # the factorisation fails
    assert cholesky_weights(np.diag([1.0, 1e-17]), cross, 0.0) is None  # it succeeds, and means nothing
    assert cholesky_weights(np.diag([1.0, -1e-9]), cross, 0.0) is None
    assert cholesky_weights(np.zeros((2, 2)), cross, 0.0) is None


@pytest.mark.parametrize("rule", ["fixed", "gcv"])
@pytest.mark.parametrize("intercept", [True, False])
def test_nearly_equal_features_do_not_blow_up(rule: str, intercept: bool) -> None:
    """Columns that differ in the last grid unit only; scores on fresh rows stay of the size of the labels."""
    rng = np.random.default_rng(9)
    labels = rng.integers(0, 3, 400)
    one = rng.standard_normal((3, 6))[labels] + rng.standard_normal((400, 6))
    p = Problem(np.hstack([one, one + 1e-4 * rng.standard_normal((400, 6))]), labels, 3)
    head = solve_ridge(p.moments, rule, 1e-6, intercept=intercept)
    assert np.abs(head.scores(p.x)).max() < 3
    assert (head.scores(p.x).argmax(axis=1) == labels).mean() > 0.7


def test_the_residual_is_never_negative_when_the_fit_interpolates() -> None:
    spectrum = clusters(10, 20, 60, 3).spectrum(True)
    lambdas = 10.0 ** np.linspace(-12, 3, 60)
    assert (spectrum.residual(lambdas) >= 0).all()
    assert (np.diff(spectrum.residual(lambdas)) >= -1e-12).all()
    assert (spectrum.residual_freedom(lambdas) > 0).all()
    assert np.isfinite(spectrum.gcv(lambdas)).all()


# degenerate data


@pytest.mark.parametrize("rule", ["fixed", "gcv"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("n", [1, 2, 50])
def test_one_class_predicts_that_class(rule: str, intercept: bool, n: int) -> None:
    rng = np.random.default_rng(11)
    p = Problem(rng.standard_normal((n, 8)) + 2, np.full(n, 1), 3)
    head = solve_ridge(p.moments, rule, intercept=intercept)
    assert np.isfinite(head.weights).all() and np.isfinite(head.intercept).all() and math.isfinite(head.ridge)
    assert (head.scores(p.x).argmax(axis=1) == 1).all()
    np.testing.assert_allclose(head.scores(p.x)[:, [0, 2]], 0, atol=1e-9)
    if intercept:
        np.testing.assert_allclose(head.scores(p.x)[:, 1], 1, atol=1e-6)


@pytest.mark.parametrize("rule", ["fixed", "gcv"])
@pytest.mark.parametrize("intercept", [True, False])
def test_absent_classes_score_zero(rule: str, intercept: bool) -> None:
    """And leave the other classes as they would be without them."""
    p = clusters(12, 200, 10, 3)
    wide = Problem(p.x, 2 * p.labels, 6)
    head = solve_ridge(wide.moments, rule, intercept=intercept)
    assert not head.weights[:, [1, 3, 5]].any()
    assert not head.intercept[[1, 3, 5]].any()
    narrow = solve_ridge(Problem(p.x, p.labels, 3).moments, rule, intercept=intercept)
    np.testing.assert_allclose(head.weights[:, ::2], narrow.weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", ["fixed", "gcv"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("features", [np.zeros((6, 4)), np.ones((6, 4))])
def test_features_that_do_not_vary_give_the_class_shares(features: np.ndarray, intercept: bool, rule: str) -> None:
    p = Problem(features, np.array([0, 0, 0, 1, 1, 2]), 3)
    scores = solve_ridge(p.moments, rule, intercept=intercept).scores(p.x)
    assert np.isfinite(scores).all()
    if intercept:
        np.testing.assert_allclose(scores, np.tile([3 / 6, 2 / 6, 1 / 6], (6, 1)), atol=1e-6)


def test_noise_labels_get_a_large_lambda() -> None:
    """With nothing to learn, the best head is the class shares, and GCV moves towards it."""
    rng = np.random.default_rng(13)
    p = Problem(rng.standard_normal((500, 20)), rng.integers(0, 2, 500), 2)
    head = solve_ridge(p.moments)
    assert head.ridge > float(p.spectrum(True).eigenvalues[-1])
    assert np.abs(head.scores(p.x) - p.moments.class_shares).max() < 0.2


# determinism and refusals


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 90), st.sampled_from(["gcv", "fixed"]), st.booleans())
def test_any_split_gives_the_same_head_bit_for_bit(seed: int, n: int, rule: str, intercept: bool) -> None:
    p = clusters(seed, n, 40, 3)
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    cut = int(rng.integers(0, n))
    q = np.rint(p.x * p.grid.scale).astype(np.int32)
    parts = [accumulate(q[i], p.labels[i], 3, 12) for i in (order[:cut], order[cut:])]
    ours = solve_ridge(Moments.from_statistics(parts[1] + parts[0], p.grid), rule, intercept=intercept)
    pooled = solve_ridge(p.moments, rule, intercept=intercept)
    assert ours.weights.tobytes() == pooled.weights.tobytes()
    assert ours.intercept.tobytes() == pooled.intercept.tobytes()
    assert ours.ridge == pooled.ridge


def test_the_head_does_not_depend_on_where_memory_lies() -> None:
    p = clusters(14, 300, 64, 5)
    reference = solve_ridge(p.moments)
    for shift in range(1, 9):
        r = np.empty(64 * 64 + shift)[shift:].reshape(64, 64)
        c = np.empty(64 * 5 + shift)[shift:].reshape(64, 5)
        r[...], c[...] = p.moments.r, p.moments.c
        again = solve_ridge(Moments(r, c, p.moments.counts))
        assert again.weights.tobytes() == reference.weights.tobytes()
        assert again.ridge == reference.ridge


def test_near_copies_do_not_talk_gcv_into_interpolation() -> None:
    """A third of the people have a copy: a fit of every person leaves no residual, and says nothing of others."""
    rng = np.random.default_rng(5)
    person = np.concatenate([np.arange(60), np.arange(20)])
    features = rng.standard_normal((60, 200))[person] + 0.01 * rng.standard_normal((80, 200))
    problem = Problem(features, rng.integers(0, 2, 60)[person], 2)
    spectrum = problem.spectrum(True)
    lambdas = spectrum.eigenvalues[-1] * np.logspace(-9, 2, 400)
    unbound = float(lambdas[int(np.argmin(spectrum.gcv(lambdas)))])
    chosen = solve_ridge(problem.moments, "gcv").ridge
    assert float(spectrum.residual_freedom(unbound)) < 0.3 * spectrum.freedom
    assert float(spectrum.residual_freedom(chosen)) == pytest.approx(0.5 * spectrum.freedom, rel=1e-6)
    # A server that releases the head of the other one, and says that it is GCV's, is found out.
    assert gcv_head(problem.moments, unbound)[1] == math.inf
    assert gcv_head(problem.moments, chosen)[1] == 0


def test_choose_ridge_refines_between_grid_points() -> None:
    """The criterion is flat at its minimum: moving lambda by 1 % either way does not improve it."""
    spectrum = clusters(15, 200, 20, 4).spectrum(True)
    ridge = choose_ridge(spectrum)
    at = float(spectrum.gcv(ridge))
    assert at < float(spectrum.gcv(ridge * 1.01))
    assert at < float(spectrum.gcv(ridge * 0.99))


@pytest.mark.parametrize("ridge", [-1e-9, math.nan, math.inf])
def test_impossible_lambdas_are_refused(ridge: float) -> None:
    with pytest.raises(InputError, match="lambda"):
        solve_ridge(clusters(0, 9, 3, 2).moments, "fixed", ridge)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InputError, match="gcv, fixed"):
        solve_ridge(clusters(0, 9, 3, 2).moments, "loo")


@pytest.mark.parametrize("shape", [(3,), (2, 4)])
def test_features_of_another_dimension_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(MisuseError, match=r"\(n, 3\)"):
        solve_ridge(clusters(0, 9, 3, 2).moments).scores(np.zeros(shape))


@pytest.mark.parametrize("intercept", [True, False])
def test_the_head_of_gcv_at_a_lambda_that_was_told(intercept: bool) -> None:
    moments = clusters(5, 80, 12, 3).moments
    chosen = solve_ridge(moments, intercept=intercept)
    again, excess = gcv_head(moments, chosen.ridge, intercept=intercept)
    assert excess == 0
    assert np.array_equal(again.weights, chosen.weights)
    assert np.array_equal(again.intercept, chosen.intercept)
    other, excess = gcv_head(moments, chosen.ridge * 100, intercept=intercept)
    assert excess > 1e-3
    fixed = solve_ridge(moments, "fixed", chosen.ridge * 100, intercept=intercept)
    assert np.allclose(other.weights, fixed.weights, rtol=1e-9)
    assert [gcv_head(moments, none)[1] for none in (0.0, -1.0, math.nan, math.inf)] == [math.inf] * 4


def test_rounding_is_of_the_condition_number() -> None:
    moments = Moments(np.diag([1.0, 1e-6]), np.ones((2, 2)), np.array([1, 1]))
    epsilon = 2 * np.finfo(np.float64).eps
    assert rounding(moments, 0.0, intercept=False) == pytest.approx(1e6 * epsilon)
    assert rounding(moments, 1.0, intercept=False) == pytest.approx(2 * epsilon, rel=1e-5)
