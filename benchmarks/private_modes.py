"""Distributed noise beside central noise of the same size: what the protocol costs in accuracy, if anything.

python -m benchmarks.private_modes --json private_modes.json
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from dp_accounting import ZCDpEvent
from rich.table import Table

from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from fedopal_secure.core.errors import MisuseError
from fedopal_secure.encoding.layout import COUNTS
from fedopal_secure.federation.config import FeatureSettings, PrivacySettings, SimulationConfig
from fedopal_secure.privacy.accounting import epsilon_of
from fedopal_secure.runtimes.result import Privacy, Result
from fedopal_secure.runtimes.setup import load_images
from fedopal_secure.runtimes.simulation import Simulation
from fedopal_secure.vision.backbone import load_backbone
from fedopal_secure.vision.feature_cache import FeatureCache

EPSILONS: Final = (0.25, 1.0, 4.0)
DELTA: Final = 1e-5
MOST_APART: Final = 0.5  # points

HELP = """Measure distributed and central noise of the same size on the packaged digits.

Twelve clients, two of whom may be corrupt, a least cohort of ten: each adds noise for eight, and all twelve survive, so
the sum has sqrt(12/8) times the noise that the claim needs. The central run is given that same noise, by an epsilon
that is smaller to match, on the same axes. What is left between them is chance.
"""


@dataclass(frozen=True)
class Pair:
    """Accuracies in per cent, of one seed; epsilon is the distributed run's."""

    epsilon: float
    seed: int
    distributed: float
    central: float


def config(seed: int, privacy: PrivacySettings, limit: int | None, dimensions: int | None = None) -> SimulationConfig:
    """A round on the digits, or on so many of them."""
    return SimulationConfig(
        train_limit=limit,
        alpha=math.inf,
        min_survivors=10,
        seed=seed,
        privacy=privacy,
        features=FeatureSettings(dimensions=dimensions),
    )


def privacy_of(result: Result) -> Privacy:
    """What it claims."""
    if result.privacy is None:
        raise MisuseError("the round was not private")
    return result.privacy


def measure(seed: int, epsilon: float, limit: int | None, simulate: Callable[[SimulationConfig], Simulation]) -> Pair:
    """Both runs of one seed; raises MisuseError if they do not have the same noise."""
    simulation = simulate(config(seed, PrivacySettings(epsilon=epsilon, delta=DELTA), limit))
    one = simulation.run().result
    claim = privacy_of(one)
    # The same shares of a smaller budget give R and C the noise that the distributed sum has. Counts follow; their grid
    # may differ.
    same = epsilon_of([ZCDpEvent(claim.rho / claim.realised**2)], DELTA)
    tighter = PrivacySettings(mode="central", epsilon=same, delta=DELTA, r_share=share_of_r(claim))
    other = simulate(config(seed, tighter, limit, simulation.task.feature_dimension)).run().result
    for name, sigma in privacy_of(other).sigma.items():
        if name != COUNTS and abs(sigma / (claim.sigma[name] * claim.realised) - 1) > 0.01:
            raise MisuseError(f"the noise on {name} is not the same in both")
    return Pair(epsilon, seed, 100 * one.accuracy, 100 * other.accuracy)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One epsilon, one seed, few images, to see it work.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of split and noise.")] = 30,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers here.")] = None,
) -> None:
    """Run it; the text for people is in HELP."""
    screen, where, backbone = console(), environment(), load_backbone("embedded")
    epsilons, count, limit = (EPSILONS[-1:], 1, 400) if quick else (EPSILONS, seeds, None)
    pairs: list[Pair] = []
    with TemporaryDirectory() as folder, progress_bar(screen) as bar:
        cache = FeatureCache(Path(folder))
        for seed in bar.track(range(count), description="seed"):
            images = load_images(config(seed, PrivacySettings(epsilon=1), limit), backbone)
            for epsilon in epsilons:
                simulate = partial(Simulation, backbone=backbone, dataset=images, extract=cache)
                pairs.append(measure(seed, epsilon, limit, simulate))
    table = Table(title=f"digits, accuracy in per cent, mean ± spread over {count} seeds")
    for column in ("epsilon", "distributed", "central, same noise", "apart"):
        table.add_column(column, justify="right")
    measures = []
    for epsilon in epsilons:
        both = [(pair.distributed, pair.central) for pair in pairs if pair.epsilon == epsilon]
        ours, central = (list(column) for column in zip(*both, strict=True))
        apart = mean(ours) - mean(central)
        shown = [f"{mean(x):.2f} ± {stdev(x) if len(x) > 1 else 0:.2f}" for x in (ours, central)]
        table.add_row(f"{epsilon:g}", *shown, f"{apart:+.2f}")
        measures.append(Measure(f"epsilon {epsilon:g}: apart", abs(apart), MOST_APART, unit="points"))
    screen.print(table)
    print_measures(screen, measures)
    if json_file is not None:
        found = {"environment": where, "pairs": [asdict(pair) for pair in pairs]}
        write_json(json_file, found | {"measures": [one.as_dict() for one in measures]})


def share_of_r(claim: Privacy) -> float:
    """R's part of the privacy of R and C together, from their sigmas: privacy goes by one over sigma squared."""
    unit = 2.0**12  # the default grid: one unit of a feature
    r, c = (unit**2 / claim.sigma["r_diagonal"]) ** 2, (unit / claim.sigma["c"]) ** 2
    return r / (r + c)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
