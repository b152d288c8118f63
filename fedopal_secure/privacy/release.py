"""What leaves under differential privacy: which segments, how far one unit can move each, and the noise on each.

A release is described apart from the sampler that draws the noise and from the accountant that turns it into (epsilon,
delta). Its text stands in the session parameters (`Task.release`), so that whoever reads a transcript can compute the
claim again.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, Literal, get_args

import msgspec

from fedopal_secure.core.errors import InputError, PolicyRefusal
from fedopal_secure.encoding.layout import COUNTS, R_DIAGONAL, R_UPPER, C, statistics_lengths

MECHANISM: Final = "discrete-gaussian"
RELATION: Final = "add-remove"
LEAST_SIGMA: Final = 3  # below, a sum of discrete Gaussians is not close to one (Kairouz, Liu, Steinke 2021)
MOST_SIGMA: Final = 2**40
MOST_UNIT_IMAGES: Final = 2**12
LEAST_SAMPLE_RATE: Final = 2**-20  # below 1e-10 accountants lose their digits

Mode = Literal["distributed", "central", "local"]
MODES: Final = get_args(Mode)
Unit = Literal["image", "group"]
UNITS: Final = get_args(Unit)


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class NoisySegment(_Record, frozen=True):
    """A segment that leaves with noise.

    `squared_sensitivity`: the most by which one unit moves it, squared L2 norm, in grid units; an integer. `sigma`: the
    parameter of the discrete Gaussian that one contributor of noise adds to each of the `length` entries, grid units.
    """

    name: str
    length: int
    squared_sensitivity: int
    sigma: int


class PrivateTuning(_Record, frozen=True):
    """DP-SGD over a client's own images, by which it tunes the prompts that leave; every number is public.

    In each of `steps` steps an image is taken with probability `sample_rate`; gradients are clipped to `clip` and
    summed, and the sum gets Gaussian noise of standard deviation `noise_multiplier` * `clip` and is divided by `lot`.
    """

    sample_rate: float
    noise_multiplier: float
    steps: int
    clip: float
    lot: int


class Release(_Record, frozen=True):
    """Everything that determines a claim of (epsilon, delta).

    `contributors` is the number of honest contributors of noise that the claim counts on: in mode `distributed` the
    least cohort less the corrupt clients, in mode `local` the client alone, in mode `central` the server. `unit_images`
    is the largest number of images of one unit, 1 if the unit is an image. `count_scale` is how many grid units a
    class count has for one image. `prompts` is None where the prompts say nothing of private images.
    """

    mechanism: str
    mode: str
    unit: str
    unit_images: int
    relation: str
    epsilon: float
    delta: float
    contributors: int
    count_scale: int
    segments: tuple[NoisySegment, ...]
    prompts: PrivateTuning | None

    def text(self) -> str:
        """The one text of this release, as `Task.release` holds it."""
        return msgspec.json.encode(self).decode()

    def sigma(self, name: str) -> int:
        """One contributor's sigma of a segment."""
        return next(segment.sigma for segment in self.segments if segment.name == name)

    @property
    def adds_at_client(self) -> bool:
        """Whether each client adds noise before anyone else sees its vector."""
        return self.mode != "central"


def parse_release(text: str) -> Release:
    """Read `Release.text`; raises PolicyRefusal if it is no release, an unknown one, or not in its one form."""
    try:
        release = msgspec.json.decode(text, type=Release)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise PolicyRefusal("release", "the release is not a valid one") from None
    if release.text() != text:
        raise PolicyRefusal("release", "the release is not in its canonical form")
    return release


def squared_sensitivities(dimension: int, bits: int, count_scale: int, unit_images: int) -> dict[str, int]:
    """By segment, the most by which adding or removing one unit moves it: squared L2 norm, grid units, an integer.

    For one grid point q with ||q||_2 <= 2**bits: the diagonal moves by sqrt(sum q_i^4) <= ||q||^2; the strict upper
    triangle by sqrt((||q||^4 - sum q_i^4) / 2) <= ||q||^2 sqrt((d - 1) / 2d), most where all |q_i| are equal; one
    column of C by ||q||; one count by its scale. A unit of k images moves each by k times as much at most.
    """
    fourth, k = 1 << (4 * bits), unit_images * unit_images
    return {
        R_DIAGONAL: k * fourth,
        R_UPPER: k * fourth * (dimension - 1) // (2 * dimension),
        C: k << (2 * bits),
        COUNTS: k * count_scale * count_scale,
    }


def zcdp(release: Release) -> float:
    """rho of zero-concentrated differential privacy (Bun and Steinke 2016) of one release of the noisy sums.

    One image moves all segments together, so this is less than the sum of what each could move alone: over grid points
    of norm Q the two segments of R cost (1/2) max of [s / sigma_diagonal^2 + (Q^4 - s) / 2 sigma_upper^2] with
    s = sum q_i^4 between Q^4/d and Q^4. A sum of m discrete Gaussians counts as one of variance m sigma^2, and
    tau D / 4 more for D entries (Kairouz, Liu, Steinke 2021, Corollary 12).
    """
    by_name = {segment.name: segment for segment in release.segments}
    diagonal, upper, c, counts = (by_name[name] for name in (R_DIAGONAL, R_UPPER, C, COUNTS))
    m, d = release.contributors, diagonal.length
    on_diagonal = Fraction(1, m * diagonal.sigma**2)
    off_diagonal = Fraction(1, 2 * m * upper.sigma**2)
    spread = on_diagonal / d + off_diagonal * (d - 1) / d  # all entries of q equal
    moved = diagonal.squared_sensitivity * max(on_diagonal, spread)
    for segment in (c, counts):
        moved += Fraction(segment.squared_sensitivity, m * segment.sigma**2)
    gap = sum(segment.length * sum_gap(segment.sigma, m) for segment in release.segments)
    return float(moved / 2) + gap / 4


def sum_gap(sigma: int, terms: int) -> float:
    """tau: how far a sum of discrete Gaussians is from one, in max divergence per entry.

    10 sum over k < terms of exp(-2 pi^2 sigma^2 k / (k + 1)): Kairouz, Liu and Steinke 2021, arXiv:2102.06387.
    """
    return 10 * sum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, terms))


def check_release(
    release: Release, dimension: int, classes: int, bits: int, prompt_mode: str, max_images: int, honest: int
) -> None:
    """Refuse a release that is unknown, or whose numbers are not those of the vector that it describes.

    `honest` is the least number of honest survivors of the session. Whether the noise is enough for the claimed epsilon
    is the accountant's matter (`accounting.check_claim`). Raises PolicyRefusal.
    """

    def require(holds: bool, detail: str) -> None:
        if not holds:
            raise PolicyRefusal("release", detail)

    require(release.mechanism == MECHANISM, f"there is no mechanism {release.mechanism!r}: {MECHANISM} is known")
    require(release.relation == RELATION, f"there is no relation {release.relation!r}: {RELATION} is known")
    require(release.mode in MODES, f"there is no mode {release.mode!r}: {', '.join(MODES)} are known")
    require(release.unit in UNITS, f"there is no unit {release.unit!r}: {', '.join(UNITS)} are known")
    most = 1 if release.unit == "image" else MOST_UNIT_IMAGES
    require(1 <= release.unit_images <= most, f"a unit of {release.unit_images} images; 1 to {most} are possible")
    require(0 < release.epsilon < math.inf, f"epsilon is {release.epsilon}: it must be a number above 0")
    require(0 < release.delta < 1 / max_images, f"delta is {release.delta}: it must be below 1/{max_images}")
    counted = honest if release.mode == "distributed" else 1
    require(
        1 <= release.contributors <= counted, f"it counts on {release.contributors} sources of noise, not {counted}"
    )
    require(1 <= release.count_scale <= 2**32, f"{release.count_scale} grid units for one image")
    limits = squared_sensitivities(dimension, bits, release.count_scale, release.unit_images)
    lengths = statistics_lengths(dimension, classes)
    shown = [(segment.name, segment.length, segment.squared_sensitivity) for segment in release.segments]
    require(shown == [(name, lengths[name], limits[name]) for name in lengths], "its segments are not the session's")
    for segment in release.segments:
        require(
            LEAST_SIGMA <= segment.sigma <= MOST_SIGMA,
            f"sigma of {segment.name!r} is {segment.sigma}; {LEAST_SIGMA} to 2^40 are possible",
        )
    tuned = prompt_mode in ("local", "two-phase")
    require(
        not tuned or release.prompts is not None,
        "prompts that were tuned without privacy would void the bound of every feature: tune them by DP-SGD",
    )
    require(tuned or release.prompts is None, f"prompts of mode {prompt_mode!r} are not tuned")
    # Not `unit_images == 1`: a group that may use one image in the sums would be tuned on with all of its images.
    require(release.prompts is None or release.unit == "image", "DP-SGD hides single images, and not groups of them")
    if release.prompts is not None:
        _check_tuning(release.prompts)


def _check_tuning(tuning: PrivateTuning) -> None:
    positive = all(0 < x < math.inf for x in (tuning.noise_multiplier, tuning.clip, tuning.lot))
    if not (LEAST_SAMPLE_RATE <= tuning.sample_rate <= 1 and 1 <= tuning.steps <= 2**20 and positive):
        raise PolicyRefusal("release", "the numbers of its DP-SGD are out of range")


def noise_terms(release: Release, survivors: int) -> int:
    """How many contributions of noise are in the sum over so many survivors."""
    return survivors if release.adds_at_client else 1


def total_sigma(release: Release, terms: int) -> dict[str, float]:
    """Standard deviation of the noise in the sum of `terms` contributors, by segment, grid units."""
    if terms < 1:
        raise InputError(f"noise of {terms} contributors: give at least 1")
    return {segment.name: math.sqrt(terms) * segment.sigma for segment in release.segments}
