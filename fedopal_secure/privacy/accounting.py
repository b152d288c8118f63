"""From noise to (epsilon, delta) and back, by the accountants of dp-accounting and no formula of our own.

The integer path counts as zero-concentrated DP and composes with DP-SGD under Renyi DP. What DP-SGD took alone is told
by its privacy loss distribution, which is tighter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedopal_secure.core.errors import InputError, PolicyRefusal
from fedopal_secure.privacy.release import PrivateTuning, Release, zcdp

ACCOUNTANT: Final = "RDP"  # of a release
# Renyi orders; dp-accounting's own leap from 128 to 256 and beyond, which costs a twentieth of a small epsilon. Below 2
# its series for Poisson samples need not converge, and it says so hundreds of times.
_WHOLE_ORDERS: Final = (*range(2, 64), *range(64, 257, 16), 384, 512, 1024)
_ORDERS: Final = (*(1 + x / 10 for x in range(1, 100)), *_WHOLE_ORDERS)
_ROUNDING: Final = 1 + 1e-9  # claims are compared after a detour through float64
_STEPS: Final = 30  # of bisection, down to 1e-7 of the result
_MOST_NOISE: Final = 1e4
_MOST_RHO: Final = 1e6


def tuning_event(tuning: PrivateTuning) -> DpEvent:
    """DP-SGD: Gaussian noise on Poisson samples, `steps` times."""
    step = PoissonSampledDpEvent(tuning.sample_rate, GaussianDpEvent(tuning.noise_multiplier))
    return SelfComposedDpEvent(step, tuning.steps)


def events(release: Release) -> tuple[DpEvent, ...]:
    """What a release spends: the noisy sums, and the prompts if they were tuned on private images."""
    sums: tuple[DpEvent, ...] = (ZCDpEvent(zcdp(release)),)
    return sums if release.prompts is None else (tuning_event(release.prompts), *sums)


def tuning_epsilon(tuning: PrivateTuning, delta: float) -> float:
    """Epsilon of DP-SGD alone, by its privacy loss distribution."""
    return float(PLDAccountant().compose(tuning_event(tuning)).get_epsilon(delta))


def epsilon_of(spent: Sequence[DpEvent], delta: float) -> float:
    """The least epsilon, at this delta, of everything spent together, add/remove, under Renyi DP."""
    return float(_composed(spent).get_epsilon(delta))


def _composed(spent: Sequence[DpEvent]) -> RdpAccountant:
    sampled = any(isinstance(event, SelfComposedDpEvent) for event in spent)
    accountant = RdpAccountant(_WHOLE_ORDERS if sampled else _ORDERS)
    for event in spent:
        accountant.compose(event)
    return accountant


def claimed(releases: Iterable[Release], delta: float) -> float:
    """Epsilon at this delta of several releases on the same images; infinite without any bound."""
    return _claimed(tuple(releases), delta)


@lru_cache(64)  # in a simulation every client asks the same
def _claimed(releases: tuple[Release, ...], delta: float) -> float:
    return epsilon_of([event for release in releases for event in events(release)], delta)


def check_claim(release: Release) -> None:
    """Refuse a release whose noise does not hold what it claims; raises PolicyRefusal."""
    found = claimed([release], release.delta)
    if not found <= release.epsilon * _ROUNDING:
        detail = f"its noise gives epsilon {found:.4g} at delta {release.delta:g}, and it claims {release.epsilon:g}"
        raise PolicyRefusal("release", detail)


def check_limit(releases: Iterable[Release], epsilon: float, delta: float) -> None:
    """Refuse what takes all releases together past a limit; raises PolicyRefusal."""
    if not epsilon > 0 or not 0 < delta < 1:
        raise PolicyRefusal("epsilon", "the policy grants no private release: set its epsilon and delta")
    found = claimed(releases, delta)
    if not found <= epsilon * _ROUNDING:
        detail = f"with this release the journal's images reach epsilon {found:.4g} at delta {delta:g}"
        raise PolicyRefusal("epsilon", f"{detail}, and the policy allows {epsilon:g}")


def affordable_rho(epsilon: float, delta: float, spent: Sequence[DpEvent] = ()) -> float:
    """The largest rho whose release, composed with what is spent, keeps to (epsilon, delta).

    Raises InputError if nothing is left for it.
    """
    before = _composed(spent)

    def holds(rho: float) -> bool:
        return float(copy.deepcopy(before).compose(ZCDpEvent(rho)).get_epsilon(delta)) <= epsilon

    return _largest(holds, 1e-12, _MOST_RHO)


@lru_cache(64)
def least_noise_multiplier(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """The least noise multiplier with which DP-SGD alone keeps to (epsilon, delta) under Renyi DP."""

    def holds(inverse: float) -> bool:
        event = tuning_event(PrivateTuning(sample_rate, 1 / inverse, steps, clip=1.0, lot=1))
        return epsilon_of([event], delta) <= epsilon  # as it will be composed with the sums

    return 1 / _largest(holds, 1 / _MOST_NOISE, 10.0)


def _largest(holds: Callable[[float], bool], least: float, most: float) -> float:
    """The largest number between the two for which `holds`, by bisection on a logarithmic scale; it is monotone."""
    if not holds(least):
        raise InputError("no noise that can be drawn is enough for this epsilon and delta: raise epsilon")
    low, high = math.log(least), math.log(most)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(math.exp(middle)) else (low, middle)
    return math.exp(low)
