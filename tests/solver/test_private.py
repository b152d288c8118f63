"""Heads from noisy sums: hand computations, refusals, and what the rules are for: holding up under noise."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.private import (
    NoisyMoments,
    project_psd,
    solve_private,
    suggest_dimensions,
    suggest_r_share,
)
from fedopal_secure.solver.ridge import PAPER_RIDGE, RidgeHead, solve_ridge

D, CLASSES = 30, 5


@dataclass
class Problem:
    """Unit features in clusters, training and test."""

    h: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    truth: np.ndarray

    @property
    def exact(self) -> Moments:
        y = np.eye(CLASSES)[self.labels]
        return Moments(self.h.T @ self.h, self.h.T @ y, np.bincount(self.labels, minlength=CLASSES))

    @property
    def public_moment(self) -> np.ndarray:
        """From test features: this solver never sees whose they are."""
        return self.test.T @ self.test / len(self.test)

    def noisy(self, seed: int, sigma_r: float, sigma_c: float, sigma_counts: float | None = None) -> NoisyMoments:
        rng, exact = np.random.default_rng(seed), self.exact
        upper = np.triu(rng.normal(0, sigma_r / math.sqrt(2), (D, D)), 1)
        r = exact.r + upper + upper.T + np.diag(rng.normal(0, sigma_r, D))
        c = exact.c + rng.normal(0, sigma_c, (D, CLASSES))
        counts = None if sigma_counts is None else exact.counts + rng.normal(0, sigma_counts, CLASSES)
        return NoisyMoments((r + r.T) / 2, c, counts, sigma_r, sigma_c, sigma_counts, 2 * len(self.h))

    def accuracy(self, head: RidgeHead) -> float:
        return float((head.scores(self.test).argmax(axis=1) == self.truth).mean())


def clusters(seed: int, n: int = 2000, shares: tuple[float, ...] = (0.2,) * CLASSES, distance: float = 1.0) -> Problem:
    rng = np.random.default_rng(seed)
    centres = distance * rng.standard_normal((CLASSES, D))
    spread = np.geomspace(2, 0.5, D)

    def draw(labels: np.ndarray) -> np.ndarray:
        x = centres[labels] + rng.standard_normal((len(labels), D)) * spread
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    labels = np.repeat(np.arange(CLASSES), [round(share * n) for share in shares])
    truth = np.repeat(np.arange(CLASSES), [round(share * 1000) for share in shares])
    return Problem(draw(labels), labels, draw(truth), truth)


# against hand computations


@pytest.mark.parametrize("shares", [(0.2,) * 5, (0.5, 0.2, 0.1, 0.1, 0.1)])
@pytest.mark.parametrize("ridge", [0.01, 1.0, 50.0])
def test_without_noise_it_is_the_ordinary_ridge_head(shares: tuple[float, ...], ridge: float) -> None:
    p = clusters(0, shares=shares)
    ours = solve_private(p.noisy(0, 0, 0, 0), "private-ridge", ridge)
    plain = solve_ridge(p.exact, "fixed", ridge)
    np.testing.assert_allclose(ours.weights, plain.weights, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.intercept, plain.intercept, rtol=1e-8, atol=1e-10)
    assert (ours.ridge, ours.rule) == (ridge, "private-ridge")


def test_without_noise_and_counts_equal_classes_are_the_ordinary_ridge_head() -> None:
    """The number of images is then the trace of R."""
    p = clusters(0)
    ours, plain = solve_private(p.noisy(0, 0, 0), "private-ridge", 3.0), solve_ridge(p.exact, "fixed", 3.0)
    np.testing.assert_allclose(ours.weights, plain.weights, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.intercept, plain.intercept, rtol=1e-8, atol=1e-10)


def test_another_bound_gives_the_same_scores() -> None:
    p = clusters(1)
    m = p.noisy(1, 2.0, 1.0)
    scaled = NoisyMoments(9 * m.r, 3 * m.c, None, 18.0, 3.0, None, m.max_images, bound=3.0)
    for rule in ("private-ridge", "class-mean"):
        one = solve_private(m, rule, public_moment=p.public_moment)
        three = solve_private(scaled, rule, public_moment=p.public_moment)
        np.testing.assert_allclose(three.scores(3 * p.test), one.scores(p.test), rtol=1e-9, atol=1e-12)


def test_class_means_by_hand() -> None:
    """Two classes of 6 and 2 images on orthogonal axes, and a third axis that shows nothing."""
    c = np.array([[6.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    m = NoisyMoments(np.diag([6.0, 2.0, 0.0]), c, np.array([6.0, 2.0]), 0.0, 0.0, 0.0, 100)
    mean = np.array([6.0, 2.0, 0.0]) / 8
    cross = c - np.outer(mean, [6.0, 2.0])  # [[1.5, -1.5], [-1.5, 1.5], [0, 0]]
    head = solve_private(m, "class-mean")
    # Without public features R is taken to be 8 / 3 I, and lambda is three times that: 4 * 8 / 3 in all.
    np.testing.assert_allclose(head.weights, cross * 3 / 32)
    np.testing.assert_allclose(head.intercept, np.array([0.75, 0.25]) - mean @ head.weights)
    assert (head.ridge, head.rule) == (8.0, "class-mean")

    public = np.diag([0.5, 0.25, 0.25])
    by_public = solve_private(m, "class-mean", public_moment=public)
    np.testing.assert_allclose(by_public.weights, np.diag(1 / (8 * np.diag(public) + 8)) @ cross)


def test_class_means_do_not_read_r() -> None:
    p = clusters(2)
    m = p.noisy(2, 3.0, 2.0, 5.0)
    other = replace(m, r=np.eye(D))
    first, second = (solve_private(x, "class-mean", public_moment=p.public_moment) for x in (m, other))
    assert first.weights.tobytes() == second.weights.tobytes()


def test_class_means_shrink_more_where_c_is_noisier() -> None:
    p = clusters(3)
    ridges = [solve_private(p.noisy(3, 1, sigma, 1), "class-mean").ridge for sigma in (0.0, 10.0, 40.0, 1000.0)]
    assert ridges == sorted(set(ridges))
    assert ridges[0] == pytest.approx(3 * 2000 / D, rel=0.01)
    assert ridges[-1] <= 3 * 2000 / D * 21.1  # where C shows nothing, the ratio stops at 20


# the projection


def test_projection_takes_away_negative_eigenvalues_only() -> None:
    rng = np.random.default_rng(4)
    q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    values = np.array([-3.0, -1e-9, 0.0, 0.5, 2.0, 7.0])
    projected = project_psd((q * values) @ q.T)
    np.testing.assert_allclose(projected, (q * np.maximum(values, 0)) @ q.T, atol=1e-12)
    assert np.array_equal(projected, projected.T)
    np.testing.assert_allclose(project_psd(projected), projected, atol=1e-12)


def test_it_is_the_nearest_positive_semidefinite_matrix() -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal((5, 5))
    a += a.T
    distance = np.linalg.norm(a - project_psd(a))
    for _ in range(200):
        b = rng.standard_normal((5, 5)) * 0.3
        assert np.linalg.norm(a - project_psd(project_psd(a) + b + b.T)) >= distance - 1e-12


def test_the_head_uses_the_projection() -> None:
    """Under noise, R has negative eigenvalues beyond lambda; the head is what the projected matrix gives."""
    p = clusters(6, 200)
    m = p.noisy(6, 20.0, 1.0, 1.0)
    n, counts = m.images, m.class_counts
    mean = m.c.sum(axis=1) / n
    gram, cross = m.r - n * np.outer(mean, mean), m.c - np.outer(mean, counts)
    assert np.linalg.eigvalsh(gram)[0] < -0.5 * m.ridge_floor
    head = solve_private(m, "private-ridge")
    direction = np.linalg.solve(project_psd(gram) + m.ridge_floor * np.eye(D), cross)
    unprojected = np.linalg.solve(gram + m.ridge_floor * np.eye(D), cross)
    scale = float((head.weights * direction).sum() / np.square(direction).sum())
    assert scale >= 1
    np.testing.assert_allclose(head.weights, scale * direction, rtol=1e-8, atol=1e-12)
    assert np.abs(direction - unprojected).max() > 0.05 * np.abs(direction).max()


# the floor under lambda


def test_the_floor_is_the_norm_of_the_noise() -> None:
    """sigma sqrt(2 d) is what noise of variance sigma^2 on the diagonal and half of it elsewhere amounts to."""
    rng, sigma, d = np.random.default_rng(7), 3.0, 300
    norms = []
    for _ in range(3):
        upper = np.triu(rng.normal(0, sigma / math.sqrt(2), (d, d)), 1)
        norms.append(np.linalg.norm(upper + upper.T + np.diag(rng.normal(0, sigma, d)), 2))
    m = NoisyMoments(np.eye(d), np.ones((d, 2)), None, sigma, 1.0, None, 100)
    assert np.mean(norms) == pytest.approx(m.ridge_floor, rel=0.05)


def test_lambda_is_the_floor_unless_given() -> None:
    m = clusters(8).noisy(8, 2.0, 1.0)
    assert solve_private(m, "private-ridge").ridge == m.ridge_floor == 2.0 * math.sqrt(2 * D)
    assert solve_private(m, "private-ridge", m.ridge_floor).ridge == m.ridge_floor
    assert solve_private(m, "auto", 100.0).ridge == 100.0


@pytest.mark.parametrize("ridge", [PAPER_RIDGE, 0.0, -1.0, 15.49, math.nan, math.inf])
@pytest.mark.parametrize("rule", ["private-ridge", "auto"])
def test_a_lambda_below_the_noise_is_refused(ridge: float, rule: str) -> None:
    m = clusters(8).noisy(8, 2.0, 1.0)  # the floor is 15.4919
    with pytest.raises(InputError, match=r"below the noise of R: give at least 15\.4919"):
        solve_private(m, rule, ridge)


def test_a_refused_lambda_would_do_harm() -> None:
    """Control: the paper's 1e-6 on the same noisy sums loses more than ten points."""
    p = clusters(9, distance=0.5)
    losses = []
    for seed in range(3):
        m = p.noisy(seed, 8.0, 4.0, 5.0)
        plain = np.linalg.solve(m.r + PAPER_RIDGE * np.eye(D), m.c)
        losses.append(p.accuracy(solve_private(m)) - p.accuracy(RidgeHead(plain, np.zeros(CLASSES), 0.0, "")))
    assert min(losses) > 0.1


def test_class_means_take_no_lambda() -> None:
    with pytest.raises(InputError, match="no lambda to choose"):
        solve_private(clusters(8).noisy(8, 2.0, 1.0), "class-mean", 100.0)


def test_without_noise_a_singular_r_needs_a_lambda() -> None:
    m = NoisyMoments(np.diag([5.0, 0.0]), np.array([[3.0, 2.0], [0.0, 0.0]]), None, 0.0, 0.0, None, 10)
    with pytest.raises(InputError, match="leaves R singular"):
        solve_private(m, "private-ridge")


# the choice of the rule


def test_auto_changes_to_class_means_as_noise_grows() -> None:
    p = clusters(10)
    for public in (None, p.public_moment):
        sigmas = (0.0, 1.0, 5.0, 20.0, 60.0, 200.0, 1000.0)
        rules = [
            solve_private(p.noisy(10, sigma, sigma), "auto", 1e6 if not sigma else None, public_moment=public).rule
            for sigma in sigmas
        ]
        assert rules[0] == rules[1] == "private-ridge"
        assert rules[-1] == "class-mean"
        assert rules == sorted(rules, reverse=True)  # one change, and no way back


def test_public_features_move_the_change() -> None:
    """With them, class means are worth more and are taken at less noise."""
    p, changed = clusters(11), 0
    for sigma in np.geomspace(5, 200, 20):
        m = p.noisy(11, sigma, sigma)
        alone, beside = solve_private(m).rule, solve_private(m, public_moment=p.public_moment).rule
        assert (alone, beside) != ("class-mean", "private-ridge")
        changed += alone != beside
    assert changed > 0


def test_each_rule_is_best_where_auto_takes_it() -> None:
    p = clusters(12, distance=0.3)

    def accuracies(sigma: float, rule: str) -> float:
        noisy = [p.noisy(seed, 3 * sigma, sigma, sigma) for seed in range(8)]
        return float(np.mean([p.accuracy(solve_private(m, rule, public_moment=p.public_moment)) for m in noisy]))

    for sigma in (0.5, 20.0):
        best = max(accuracies(sigma, "private-ridge"), accuracies(sigma, "class-mean"))
        assert accuracies(sigma, "auto") >= best - 0.01
    assert accuracies(0.5, "private-ridge") > accuracies(0.5, "class-mean") + 0.005
    assert accuracies(20.0, "class-mean") > accuracies(20.0, "private-ridge") + 0.005


# counts


def test_images_come_from_the_trace_or_the_counts_and_keep_to_the_cap() -> None:
    p = clusters(13)
    assert p.noisy(0, 0, 0).images == pytest.approx(2000)
    assert p.noisy(0, 0, 0, 0).images == pytest.approx(2000)
    m = p.noisy(0, 1, 1, 10)
    assert m.counts is not None
    assert m.images == pytest.approx(m.counts.sum())
    assert replace(m, max_images=1500).images == 1500
    assert replace(m, counts=-m.counts).images == 1


def test_counts_that_noise_explains_become_equal() -> None:
    m = clusters(14).noisy(0, 1, 1, 100)
    assert m.counts is not None
    equal = replace(m, counts=m.counts.mean() + np.array([60.0, -60.0, 0.0, 60.0, -60.0]))
    np.testing.assert_allclose(equal.class_counts, equal.images / CLASSES)
    clear = replace(equal, sigma_counts=1.0)
    assert clear.counts is not None
    np.testing.assert_allclose(clear.class_counts, clear.counts, rtol=1e-3)
    exact = replace(equal, sigma_counts=0.0)
    np.testing.assert_allclose(exact.class_counts, equal.counts)


@pytest.mark.parametrize("counts", [[-5.0, 3.0, -9.0, 1.0, 2.0], [0.0] * 5, [-1e9, 1e9, 1.0, 1.0, 1.0]])
def test_counts_are_never_negative(counts: list[float]) -> None:
    m = replace(clusters(14).noisy(0, 1, 1, 1), counts=np.array(counts))
    assert (m.class_counts >= 0).all()
    assert m.class_counts.sum() == pytest.approx(m.images)
    assert np.isfinite(solve_private(m).weights).all()


def test_the_largest_class_does_not_drown_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four fifths in one class and a lambda far above R: the rarer classes are still predicted. Without the scale that
    undoes the shrinking of the slopes, all images go to the large class."""
    p = clusters(15, shares=(0.8, 0.05, 0.05, 0.05, 0.05), distance=1.5)
    m = p.noisy(15, 100.0, 1.0, 1.0)
    rare = p.truth > 0

    def recall() -> float:
        return float((solve_private(m, "private-ridge").scores(p.test).argmax(axis=1) == p.truth)[rare].mean())

    assert recall() > 0.5
    monkeypatch.setattr("fedopal_secure.solver.private._unshrinking", lambda *_: 1.0)
    assert recall() < 0.05


# choices from public numbers


def test_more_budget_pays_for_r_and_for_axes() -> None:
    budgets = [10.0**e for e in range(-5, 3)]
    shares = [suggest_r_share(4000, rho) for rho in budgets]
    axes = [suggest_dimensions(4000, rho, 384) for rho in budgets]
    assert shares == sorted(shares) and (shares[0], shares[-1]) == (0.1, 0.5)
    assert axes == sorted(axes) and (axes[0], axes[-1]) == (16, 384)
    assert suggest_dimensions(4000, 0.03055, 384) == 164  # epsilon 1 at delta 1e-5: noise of 4.05
    assert suggest_r_share(4000, 0.03055) == pytest.approx(0.198, abs=0.001)
    assert suggest_dimensions(4000, 100.0, 7) == 7


@pytest.mark.parametrize(("images", "rho"), [(0, 1.0), (10, 0.0), (10, -1.0), (10, math.nan), (10, math.inf)])
def test_budgets_that_cannot_be_are_refused(images: int, rho: float) -> None:
    with pytest.raises(InputError, match="positive"):
        suggest_r_share(images, rho)
    with pytest.raises(InputError, match="positive"):
        suggest_dimensions(images, rho, 10)
    with pytest.raises(InputError, match="axes"):
        suggest_dimensions(10, 1.0, 0)


# post-processing only


def test_nothing_but_the_release_and_public_numbers_comes_in() -> None:
    """The signatures are the whole way in: noisy sums, noise levels, a cap, and a second moment of public features."""
    assert list(inspect.signature(solve_private).parameters) == ["moments", "rule", "ridge", "public_moment"]
    assert {field.name for field in fields(NoisyMoments)} == {
        *("r", "c", "counts", "sigma_r", "sigma_c", "sigma_counts", "max_images", "bound")
    }


def test_equal_moments_give_equal_heads_and_are_not_written_to() -> None:
    p = clusters(16)
    public = p.public_moment
    for rule in ("private-ridge", "class-mean", "auto"):
        first, second = p.noisy(3, 5.0, 2.0, 4.0), p.noisy(3, 5.0, 2.0, 4.0)
        for array in (first.r, first.c, first.counts, public):
            assert array is not None
            array.setflags(write=False)
        one, two = (solve_private(m, rule, public_moment=public) for m in (first, second))
        assert one.weights.tobytes() == two.weights.tobytes()
        assert one.intercept.tobytes() == two.intercept.tobytes()
        assert (one.ridge, one.rule) == (two.ridge, two.rule)


# refusals and degenerate sums


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InputError, match="auto, private-ridge, class-mean"):
        solve_private(clusters(0).noisy(0, 1, 1), "gcv")


def test_a_public_moment_of_another_dimension_is_misuse() -> None:
    with pytest.raises(MisuseError, match="30 dimensions"):
        solve_private(clusters(0).noisy(0, 1, 1), public_moment=np.eye(4))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sigma_r": -1.0}, InputError, "sigma_r -1.0"),
        ({"sigma_c": math.nan}, InputError, "sigma_c nan"),
        ({"sigma_counts": math.inf}, InputError, "sigma_counts inf"),
        ({"max_images": 0}, InputError, "at most 0 images"),
        ({"bound": 0.0}, InputError, "norm 0.0"),
        ({"bound": math.nan}, InputError, "norm nan"),
        ({"r": np.full((D, D), np.inf)}, InputError, "not finite"),
        ({"c": np.full((D, CLASSES), np.nan)}, InputError, "not finite"),
        ({"r": np.eye(D)[1:]}, MisuseError, "symmetric"),
        ({"r": np.triu(np.ones((D, D)))}, MisuseError, "symmetric"),
        ({"c": np.zeros(D)}, MisuseError, "symmetric"),
        ({"c": np.zeros((D, 0))}, MisuseError, "symmetric"),
        ({"counts": np.ones(4)}, MisuseError, "5 classes"),
        ({"counts": None}, MisuseError, "come together"),
        ({"sigma_counts": None}, MisuseError, "come together"),
    ],
)
def test_releases_that_cannot_be_are_refused(change: dict, error: type[Exception], message: str) -> None:
    m = clusters(0).noisy(0, 1, 1, 1)
    with pytest.raises(error, match=message):
        replace(m, **change)


@pytest.mark.parametrize("rule", ["private-ridge", "class-mean", "auto"])
@pytest.mark.parametrize("sigma", [0.1, 1e3, 1e9])
@pytest.mark.parametrize("with_counts", [True, False])
def test_sums_of_nothing_give_a_finite_head(rule: str, sigma: float, with_counts: bool) -> None:
    rng = np.random.default_rng(17)
    e, c = rng.normal(0, sigma, (D, D)), rng.normal(0, sigma, (D, CLASSES))
    counts = rng.normal(0, sigma, CLASSES) if with_counts else None
    m = NoisyMoments(e + e.T, c, counts, sigma, sigma, sigma if with_counts else None, 10)
    head = solve_private(m, rule)
    assert np.isfinite(head.weights).all() and np.isfinite(head.intercept).all() and math.isfinite(head.ridge)


@pytest.mark.parametrize("rule", ["private-ridge", "class-mean", "auto"])
def test_one_class(rule: str) -> None:
    p = clusters(18)
    r = p.exact.r
    m = NoisyMoments(r, p.exact.c.sum(axis=1, keepdims=True), None, 1.0, 1.0, None, 5000)
    head = solve_private(m, rule)
    np.testing.assert_allclose(head.scores(p.test), 1, atol=1e-9)
