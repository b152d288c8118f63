"""From a wished (epsilon, delta) to a release: how much noise goes on which segment.

What is claimed is computed back from the integers that come out, so it is never more than was wished.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import msgspec

from fedopal_secure.core.errors import InputError
from fedopal_secure.encoding.layout import COUNTS, R_DIAGONAL, R_UPPER, C, statistics_lengths
from fedopal_secure.privacy.accounting import (
    affordable_rho,
    check_claim,
    claimed,
    least_noise_multiplier,
    tuning_event,
)
from fedopal_secure.privacy.release import (
    LEAST_SIGMA,
    MECHANISM,
    MODES,
    MOST_SIGMA,
    MOST_UNIT_IMAGES,
    RELATION,
    Mode,
    NoisySegment,
    PrivateTuning,
    Release,
    Unit,
    squared_sensitivities,
)

# Of rho, to the counts: with a fiftieth, a count is off by about 5 / epsilon images times the square root of 1/delta's
# logarithm, which moves an intercept and nothing else.
COUNT_SHARE: Final = 0.02
_COUNT_SIGMA: Final = 2**10  # fine enough a grid that the rounding of sigma to an integer costs nothing


@dataclass(frozen=True)
class Vector:
    """The vector that noise is calibrated for, as the task and the session describe it.

    `honest` is the least number of honest survivors, the least cohort less the corrupt clients.
    """

    dimension: int
    classes: int
    bits: int
    max_images: int
    honest: int


def private_tuning(
    epsilon: float, delta: float, *, sample_rate: float, steps: int, clip: float, lot: int
) -> PrivateTuning:
    """DP-SGD with the least noise that keeps to (epsilon, delta) by itself; see `PrivateTuning`."""
    return PrivateTuning(sample_rate, least_noise_multiplier(epsilon, delta, sample_rate, steps), steps, clip, lot)


def calibrate(
    vector: Vector,
    mode: Mode,
    epsilon: float,
    delta: float,
    *,
    r_share: float = 0.5,
    unit: Unit = "image",
    unit_images: int = 1,
    prompts: PrivateTuning | None = None,
) -> Release:
    """The release with the least noise that keeps to (epsilon, delta) for one unit, add/remove.

    `r_share` is R's part of the privacy of R and C together, `prompts` how prompts are tuned beforehand; the sums get
    what that leaves. Raises InputError for numbers that make no release.
    """
    _check(vector, mode, epsilon, delta, r_share, unit, unit_images, prompts)
    rho = affordable_rho(epsilon, delta, () if prompts is None else (tuning_event(prompts),))
    contributors = vector.honest if mode == "distributed" else 1
    count_scale = _count_scale(rho * COUNT_SHARE * contributors, unit_images)
    limits = squared_sensitivities(vector.dimension, vector.bits, count_scale, unit_images)
    sigmas = _sigmas(limits, rho * contributors, r_share)
    lengths = statistics_lengths(vector.dimension, vector.classes)
    release = Release(
        mechanism=MECHANISM,
        mode=mode,
        unit=unit,
        unit_images=unit_images,
        relation=RELATION,
        epsilon=epsilon,
        delta=delta,
        contributors=contributors,
        count_scale=count_scale,
        segments=tuple(NoisySegment(name, length, limits[name], sigmas[name]) for name, length in lengths.items()),
        prompts=prompts,
    )
    found = claimed([release], delta)
    # Where delta alone covers everything, the accountant says 0, and a claim must be above.
    release = msgspec.structs.replace(release, epsilon=min(epsilon, found) or epsilon)
    check_claim(release)
    return release


def _check(
    vector: Vector,
    mode: str,
    epsilon: float,
    delta: float,
    r_share: float,
    unit: str,
    unit_images: int,
    prompts: PrivateTuning | None,
) -> None:
    if mode not in MODES:
        raise InputError(f"there is no privacy mode {mode!r}: give one of {', '.join(MODES)}")
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon is {epsilon:g}: give a number above 0")
    if not 0 < delta < 1 / vector.max_images:
        limit = f"1/{vector.max_images}, one over the public cap on images"
        raise InputError(f"delta is {delta:g}: give a number above 0 and below {limit}")
    if not 0 < r_share < 1:
        raise InputError(f"the share of R is {r_share:g}: give a number between 0 and 1")
    if not 1 <= unit_images <= (1 if unit == "image" else MOST_UNIT_IMAGES):
        raise InputError(f"a unit of {unit_images} images: give 1 for images, 1 to {MOST_UNIT_IMAGES} for groups")
    if prompts is not None and unit != "image":
        raise InputError("prompts by DP-SGD hide single images and not groups: take unit 'image', or other prompts")


def _sigmas(limits: dict[str, int], budget: float, r_share: float) -> dict[str, int]:
    """By segment, one contributor's sigma; `budget` is rho times the number of contributors."""

    def least(squared: float, part: float) -> int:
        return math.ceil(math.sqrt(squared / (2 * part * budget)))

    rest = 1 - COUNT_SHARE
    # Off the diagonal 1/sqrt(2) of the noise on it: all entries of R, taken twice, then cost the same, which gives the
    # least spectral norm for its rho.
    upper = least(limits[R_DIAGONAL] / 2, r_share * rest)
    sigmas = {
        R_DIAGONAL: math.isqrt(2 * upper * upper - 1) + 1,
        R_UPPER: upper,
        C: least(limits[C], (1 - r_share) * rest),
        COUNTS: least(limits[COUNTS], COUNT_SHARE),
    }
    for name, sigma in sigmas.items():
        if sigma < LEAST_SIGMA:
            raise InputError(
                f"sigma of {name!r} is {sigma} and must be at least {LEAST_SIGMA} to hold the claim: "
                "give more feature bits or a smaller epsilon"
            )
        if sigma > MOST_SIGMA:
            raise InputError(f"sigma of {name!r} is beyond 2^40: give fewer feature bits or a larger epsilon")
    return sigmas


def _count_scale(rho: float, unit_images: int) -> int:
    """Grid units of one image in the counts, a power of two: their sigma is then `_COUNT_SIGMA` or a little more."""
    wanted = _COUNT_SIGMA * math.sqrt(2 * rho) / unit_images
    return 1 << max(0, min(32, math.ceil(math.log2(wanted))))
