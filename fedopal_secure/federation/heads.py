"""From summed statistics to the head that is released: one solver for exact sums, and one for sums with noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.params import Task
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.layout import COUNTS, R_DIAGONAL, C
from fedopal_secure.federation.config import HeadSettings
from fedopal_secure.federation.vectors import feature_grid, task_release
from fedopal_secure.privacy.release import Release, noise_terms, total_sigma
from fedopal_secure.solver.lda import solve_lda
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.private import PRIVATE_RULES, NoisyMoments, ridge_floor, solve_private
from fedopal_secure.solver.ridge import RidgeHead, gcv_head, normalised, solve_ridge
from fedopal_secure.statistics.sums import SufficientStatistics

WITH_VALUE: Final = ("fixed", "relative")  # rules that take lambda from the settings' value
_EXACT: Final = {"auto": "gcv", "gcv": "gcv", "fixed": "fixed", "relative": "relative"}


def check_rule(head: HeadSettings, *, noisy: bool) -> None:
    """Raise InputError if a head of noisy sums, or of exact ones, cannot be made by these settings."""
    if not noisy and head.rule not in _EXACT:
        raise InputError(f"lambda rule '{head.rule}' is for sums with noise: give an --epsilon, or another rule")
    if noisy and head.rule not in (*PRIVATE_RULES, "fixed"):
        known = ", ".join(PRIVATE_RULES)
        raise InputError(f"lambda rule '{head.rule}' needs exact residuals: under noise, take one of {known}")
    if noisy and head.kind != "ridge":
        raise InputError(f"a head of kind '{head.kind}' needs exact sums: under noise, leave out the kind")
    if not head.intercept and (noisy or head.kind == "lda"):
        what = "of noisy sums" if noisy else "of kind 'lda'"
        raise InputError(f"a head {what} has an intercept: leave out intercept = false")


def solve_exact(task: Task, statistics: SufficientStatistics, head: HeadSettings) -> RidgeHead:
    """The head of exact sums; a rule that is for noise gives way to gcv."""
    moments, rule = exact_moments(task, statistics), _EXACT.get(head.rule, "gcv")
    if head.kind == "lda":
        return solve_lda(moments, rule, head.value)
    solved = solve_ridge(moments, rule, head.value, intercept=head.intercept)
    return normalised(solved) if head.kind == "ridge-normalised" else solved


def exact_moments(task: Task, statistics: SufficientStatistics) -> Moments:
    """What the head of exact sums is made of, in units of features."""
    return Moments.from_statistics(statistics, feature_grid(task))


def solve_at(moments: Moments, head: HeadSettings, ridge: float) -> tuple[RidgeHead, float]:
    """The head of rule "gcv" at a lambda that somebody else's chose, and by how much that is worse; see `gcv_head`."""
    solved, excess = gcv_head(moments, ridge, intercept=head.intercept)
    if head.kind == "lda":
        return replace(solve_lda(moments, "fixed", ridge), rule="gcv"), excess
    return (normalised(solved) if head.kind == "ridge-normalised" else solved), excess


def solve_head(
    task: Task, statistics: SufficientStatistics, survivors: int, head: HeadSettings, public_map: FeatureMap | None
) -> RidgeHead:
    """The head of what was summed over so many survivors, as the task says it leaves: FedOPAL eq. 9."""
    release = task_release(task)
    if release is None:
        return solve_exact(task, statistics, head)
    rule, ridge = head.rule, None
    if rule == "fixed":
        rule, ridge = "private-ridge", head.value
    moments = noisy_moments(task, release, statistics, survivors)
    prior = None if public_map is None else public_map.second_moment
    return solve_private(moments, rule, ridge, public_moment=prior)


def check_ridge(head: HeadSettings, task: Task, clients: int) -> None:
    """Raise InputError if lambda is below the noise of a private round with up to so many clients, before it runs."""
    release = task_release(task)
    if release is None or head.rule != "fixed":
        return
    sigma = total_sigma(release, noise_terms(release, clients))[R_DIAGONAL]
    floor = ridge_floor(sigma / feature_grid(task).scale ** 2, task.feature_dimension)
    if head.value < floor:
        raise InputError(f"lambda {head.value:g} is below the noise of R: give at least {floor:.6g}, or take 'auto'")


def noisy_moments(task: Task, release: Release, statistics: SufficientStatistics, survivors: int) -> NoisyMoments:
    """Noisy integer sums in units of features, with the standard deviation of the noise that is in them."""
    scale = feature_grid(task).scale
    sigma = total_sigma(release, noise_terms(release, survivors))
    return NoisyMoments(
        r=statistics.r / (scale * scale),
        c=statistics.c / scale,
        counts=statistics.counts / release.count_scale,
        sigma_r=sigma[R_DIAGONAL] / (scale * scale),
        sigma_c=sigma[C] / scale,
        sigma_counts=sigma[COUNTS] / release.count_scale,
        max_images=task.max_images,
        bound=task.feature_bound,
    )
