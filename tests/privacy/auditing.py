"""An attacker on a private release, and the epsilon that its successes prove.

The attacker knows all images but one record (or one group of them), and must say whether it is there. It sees what the
server sees after unmasking, less the noise of corrupt clients, who tell it theirs. Under Gaussian noise no other test
is better than a threshold on the likelihood ratio, which is a projection onto what the record moves; so that is the
attack. How often it is right in each world bounds epsilon from below, with a confidence (Clopper and Pearson 1934).

Runs are repeated, since the sums are small. One run with many canaries (Steinke, Nasr and Jagielski 2023) does not have
the power here: canaries whose guesses are independent take an axis each, so a vector of dimension d holds d of them,
and to tell half the noise from all of it takes some hundred thousand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedopal_secure.core.shamir import Entropy
from fedopal_secure.encoding.layout import COUNTS
from fedopal_secure.privacy.noise import add_noise
from fedopal_secure.privacy.release import Release
from fedopal_secure.statistics.sums import SufficientStatistics

CONFIDENCE = 0.999  # that a bound is below the true epsilon, over all its thresholds together
_BLOCK = 1 << 16  # runs in memory together

Arrays = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Target:
    """A release under attack.

    `clients` are the statistics of those whose noise the claim counts on, without the record, which the first of them
    may hold as well. The attacker looks at `segments` only.
    """

    release: Release
    clients: tuple[SufficientStatistics, ...]
    record: SufficientStatistics
    segments: tuple[str, ...]

    def moved(self) -> dict[str, NDArray[np.float64]]:
        """What the record adds to each segment that the attacker looks at, as it is released: float64 (length,)."""
        arrays = _scaled(self.record, self.release)
        return {name: arrays[name].astype(np.float64) for name in self.segments}

    def distance(self) -> float:
        """mu: between the scores' means in the two worlds, in their standard deviations under the stated noise."""
        m, release = self.release.contributors, self.release
        return math.sqrt(sum(float(x @ x) / (m * release.sigma(name) ** 2) for name, x in self.moved().items()))


def _scaled(statistics: SufficientStatistics, release: Release) -> dict[str, NDArray[np.int64]]:
    arrays = statistics.to_arrays()
    return arrays | {COUNTS: arrays[COUNTS] * release.count_scale}


def noisy_sums(
    release: Release, clients: tuple[SufficientStatistics, ...], runs: int, entropy: Entropy
) -> Iterator[Arrays]:
    """Independent releases of the same sums, in blocks: by segment, int64 (runs of the block, length).

    Each run goes through `add_noise`, of each client or of the trusted server; a block is one long vector to it.
    """
    together = reduce(SufficientStatistics.__add__, clients)
    contributions = clients if release.adds_at_client else (together,)
    for start in range(0, runs, _BLOCK):
        rows = min(_BLOCK, runs - start)
        long = msgspec.structs.replace(
            release,
            segments=tuple(msgspec.structs.replace(part, length=rows * part.length) for part in release.segments),
        )
        noisy = [
            add_noise({name: np.tile(array, rows) for name, array in part.to_arrays().items()}, long, entropy)
            for part in contributions
        ]
        yield {
            part.name: np.sum([arrays[part.name] for arrays in noisy], axis=0).reshape(rows, -1)
            for part in release.segments
        }


def scores(target: Target, with_record: bool, runs: int, entropy: Entropy) -> NDArray[np.float64]:
    """The attacker's score of each run, float64 (runs,).

    Under the stated noise it has variance 1, and mean 0 without the record and `distance` with it.
    """
    release, first = target.release, target.clients[0]
    clients = (first + target.record, *target.clients[1:]) if with_record else target.clients
    known = _scaled(reduce(SufficientStatistics.__add__, target.clients), release)
    weights = {
        name: x / (release.contributors * release.sigma(name) ** 2 * target.distance())
        for name, x in target.moved().items()
    }
    found = [
        sum((sums[name] - known[name]) @ weight for name, weight in weights.items())
        for sums in noisy_sums(release, clients, runs, entropy)
    ]
    return np.concatenate(found)


def lower_bound(false_alarms: int, hits: int, runs: int, delta: float, error: float) -> float:
    """Epsilon is at least this, or something happened that has probability `error` at most.

    Under (epsilon, delta) the rate of hits is at most exp(epsilon) times the rate of false alarms, plus delta.
    """
    # Each rate misses its bound with half of the error; the two need not be independent.
    least = float(stats.beta.ppf(error / 2, hits, runs - hits + 1)) if hits else 0.0
    most = float(stats.beta.isf(error / 2, false_alarms + 1, runs - false_alarms)) if false_alarms < runs else 1.0
    return math.log((least - delta) / most) if least > delta else -math.inf


def thresholds(target: Target, runs: int) -> tuple[float, ...]:
    """Scores from which on the attacker says that the record is there; chosen before anything is drawn.

    The middle, which is the best without any noise; and what is best, by the expected rates, under the stated noise and
    under half of it.
    """
    mu = target.distance()

    def expected(threshold: float, sigma: float) -> float:
        rates = (stats.norm.sf(threshold / sigma), stats.norm.sf((threshold - mu) / sigma))
        alarms, hits = (round(runs * float(rate)) for rate in rates)
        return lower_bound(alarms, hits, runs, target.release.delta, (1 - CONFIDENCE) / 3)

    tried: list[float] = (np.arange(0.0, 5.0, 0.05) + mu / 2).tolist()
    return (mu / 2, *(max(tried, key=partial(expected, sigma=sigma)) for sigma in (1.0, 0.5)))


def audit(target: Target, runs: int, entropy: Entropy) -> float:
    """The largest epsilon that so many runs in each world prove at the release's delta, with `CONFIDENCE`."""
    chosen = thresholds(target, runs)
    without, with_record = (scores(target, present, runs, entropy) for present in (False, True))
    error = (1 - CONFIDENCE) / len(chosen)
    return max(
        lower_bound(
            int((without >= threshold).sum()), int((with_record >= threshold).sum()), runs, target.release.delta, error
        )
        for threshold in chosen
    )


def chances(target: Target, runs: int, sigma: float) -> list[float]:
    """For each threshold, the chance that an audit exceeds the claim by it, with `sigma` times the stated noise."""
    mu, error = target.distance(), (1 - CONFIDENCE) / 3
    found = []
    for threshold in thresholds(target, runs):
        alarms, hits = (stats.binom(runs, stats.norm.sf(x / sigma)) for x in (threshold, threshold - mu))
        counts = np.arange(alarms.ppf(1e-12), alarms.isf(1e-12) + 1)
        # `lower_bound` the other way round: the rate of hits that would be too high, and how many hits prove it.
        most = stats.beta.isf(error / 2, counts + 1, runs - counts)
        rate = np.minimum(1, math.exp(target.release.epsilon) * most + target.release.delta)
        found.append(float(alarms.pmf(counts) @ hits.sf(stats.binom.isf(error / 2, runs, rate))))
    return found
