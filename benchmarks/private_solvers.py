"""Heads from noisy sums: our solver beside plain perturbation, AdaSSP and the head without noise, on saved features.

python -m benchmarks.features digits --out digits.npz
python -m benchmarks.private_solvers digits.npz --json private_solvers.json
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.linalg import eigh

from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.privacy.accounting import affordable_rho
from fedopal_secure.privacy.calibration import COUNT_SHARE
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.private import NoisyMoments, solve_private, suggest_dimensions, suggest_r_share
from fedopal_secure.solver.ridge import PAPER_RIDGE, solve_ridge
from fedopal_secure.vision.embedded import embedded_public_map

EPSILONS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
QUICK_EPSILONS: Final = (1.0,)
DELTA: Final = 1e-5

# What AdaSSP may choose from after a look at the test images: parts of the budget for lambda_min, R and C, and a factor
# on its lambda. The first split is the published one.
SPLITS: Final = (
    (1 / 3, 1 / 3, 1 / 3),
    (0.1, 0.45, 0.45),
    (0.1, 0.2, 0.7),
    (0.05, 0.1, 0.85),
    (0.05, 0.3, 0.65),
    (0.03, 0.05, 0.92),
)
FACTORS: Final = (0.03, 0.1, 0.3, 1.0, 2.0, 3.0, 10.0, 30.0)
FAILURE: Final = 0.05  # AdaSSP's rho-bar, the probability that its bound on R's noise fails

BETTER_THAN_PLAIN: Final = 10.0  # points, at epsilon 1
NEVER_BELOW_ADASSP: Final = 0.0

HELP = """Measure heads from noisy sums on saved features.

FEATURES.npz is what `python -m benchmarks.features` writes, and --public-map a map of the same backbone. Noise is
continuous and Gaussian, for add/remove of one image; every method sees the same seeds. "ours" is the public feature map
with as many axes as `suggest_dimensions` says, and `solve_private` by its rule "auto", with the shares of the budget
that a round has. "plain" adds the same noise to the same sums and takes lambda = 1e-6. AdaSSP (Wang 2018) makes three
releases of epsilon / 3 each, delta / 3; here it may also pick its split and a factor on its lambda by the test
accuracy, which no honest user can. It runs on the features of our map, and on normalised features as they are.
"AdaSSP, zCDP" is our own strengthening of it: the same three releases and the same choices in hindsight, with the noise
that zero-concentrated DP asks for. --excess multiplies all noise, as clients that stay do in distributed mode.
"""


@dataclass(frozen=True, eq=False)
class Problem:
    """Sums of training images in some feature space, and test images in the same: features of norm 1."""

    r: NDArray[np.float64]
    c: NDArray[np.float64]
    counts: NDArray[np.float64]
    test: NDArray[np.float64]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, features: Features, map_of: Callable[[NDArray[Any]], NDArray[Any]]) -> Problem:
        """The problem that a feature map makes."""
        train, test = map_of(features.train), map_of(features.test)
        grid = FeatureGrid(train.shape[1])
        h, y = grid.normalised(train), np.eye(features.classes)[features.train_labels]
        return cls(h.T @ h, h.T @ y, y.sum(axis=0), grid.normalised(test), features.test_labels)

    def accuracy(self, weights: NDArray[np.float64], intercept: NDArray[np.float64] | float = 0.0) -> float:
        """Per cent of the test images."""
        return 100 * float(((self.test @ weights + intercept).argmax(axis=1) == self.labels).mean())


@dataclass(frozen=True, eq=False)
class Features:
    """A file of features: train and test."""

    train: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test: NDArray[np.float32]
    test_labels: NDArray[np.int64]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1

    @classmethod
    def load(cls, path: Path) -> Features:
        """Read an .npz file, or end with one line that says what is wrong."""
        try:
            with np.load(path) as file:
                return cls(*(file[name] for name in ("train", "train_labels", "test", "test_labels")))
        except (OSError, KeyError, ValueError) as error:
            typer.echo(f"benchmarks.private_solvers: {path}: {error}", err=True)
            raise typer.Exit(2) from None


@dataclass(frozen=True)
class Row:
    """Accuracy of one method at one epsilon, per cent: mean and spread over the seeds of the noise."""

    epsilon: float | None  # None where nothing depends on it
    method: str
    mean: float
    spread: float
    chosen: str


def noisy(rng: np.random.Generator, problem: Problem, sigma_r: float, sigma_c: float) -> tuple[Any, Any]:
    """R with noise, sigma_r on its diagonal and sigma_r / sqrt(2) off it, and C with noise sigma_c."""
    d = len(problem.r)
    upper = np.triu(rng.normal(0, sigma_r / math.sqrt(2), (d, d)), 1)
    r = problem.r + upper + upper.T + np.diag(rng.normal(0, sigma_r, d))
    return r, problem.c + rng.normal(0, sigma_c, problem.c.shape)


def ours_and_plain(
    problem: Problem, rho: float, seed: int, excess: float, public_moment: NDArray[np.float64], max_images: int
) -> tuple[float, float, str]:
    """Accuracy of our solver and of lambda = 1e-6 on one draw of the noise, and the rule that ours took."""
    rng = np.random.default_rng(seed)
    share = suggest_r_share(max_images, rho)
    parts = ((1 - COUNT_SHARE) * share, (1 - COUNT_SHARE) * (1 - share), COUNT_SHARE)
    sigma_r, sigma_c, sigma_counts = (excess / math.sqrt(2 * part * rho) for part in parts)
    r, c = noisy(rng, problem, sigma_r, sigma_c)
    counts = problem.counts + rng.normal(0, sigma_counts, problem.counts.shape)
    moments = NoisyMoments(r, c, counts, sigma_r, sigma_c, sigma_counts, max_images)
    head = solve_private(moments, public_moment=public_moment)
    plain = np.linalg.solve(r + PAPER_RIDGE * np.eye(len(r)), c)
    return problem.accuracy(head.weights, head.intercept), problem.accuracy(plain), head.rule


def adassp(
    problem: Problem, epsilon: float, rho: float | None, split: tuple[float, float, float], seed: int, excess: float
) -> Iterator[float]:
    """Accuracy of AdaSSP (Wang, UAI 2018, algorithm 2) on one draw of the noise, at each factor on its lambda.

    With rho None, the noise is the published one: sqrt(log(6 / delta)) over the part of epsilon. Otherwise it is that
    of the same parts of rho-zCDP, and the bound on lambda_min is the same quantile of that noise.
    """
    rng, d = np.random.default_rng(seed), len(problem.r)
    if rho is None:
        sigmas = [math.sqrt(math.log(6 / DELTA)) / (epsilon * part) for part in split]
        slack = math.log(6 / DELTA) / (epsilon * split[0])
    else:
        sigmas = [1 / math.sqrt(2 * rho * part) for part in split]
        slack = math.sqrt(math.log(6 / DELTA)) * sigmas[0]
    sigmas, slack = [excess * sigma for sigma in sigmas], excess * slack
    least = float(eigh(problem.r, eigvals_only=True, subset_by_index=(0, 0))[0])
    least = max(0.0, least + sigmas[0] * rng.standard_normal() - slack)
    # Its noise on R is the upper triangle of a Gaussian matrix, copied: sigma on and off the diagonal.
    upper = np.triu(rng.normal(0, sigmas[1], (d, d)))
    r = problem.r + upper + np.triu(upper, 1).T
    c = problem.c + rng.normal(0, sigmas[2], problem.c.shape)
    wanted = math.sqrt(d * math.log(2 * d * d / FAILURE)) * sigmas[1]
    eigenvalues, vectors = eigh(r)
    projected = vectors.T @ c
    for factor in FACTORS:
        ridge = factor * max(0.0, wanted - least)
        yield problem.accuracy(vectors @ (projected / (eigenvalues + ridge)[:, None]))


def tuned_adassp(
    problem: Problem, epsilon: float, rho: float | None, seeds: int, excess: float
) -> tuple[list[float], str]:
    """Accuracy by seed of the split and factor that are best on the test images, and what they are."""
    best: tuple[float, list[float], str] | None = None
    for split in SPLITS:
        by_seed = np.array([list(adassp(problem, epsilon, rho, split, seed, excess)) for seed in range(seeds)])
        for factor, column in zip(FACTORS, by_seed.T, strict=True):
            shown = f"split {'/'.join(f'{part:.2g}' for part in split)}, lambda x {factor:g}"
            if best is None or column.mean() > best[0]:
                best = float(column.mean()), column.tolist(), shown
    if best is None:
        raise RuntimeError("no split to try")
    return best[1], best[2]


def row(epsilon: float | None, method: str, accuracies: list[float], chosen: str = "") -> Row:
    """Mean and spread."""
    return Row(epsilon, method, mean(accuracies), stdev(accuracies) if len(accuracies) > 1 else 0.0, chosen)


OURS, PLAIN = "ours", "plain, lambda 1e-6"
ADASSP = ("AdaSSP tuned, our map", "AdaSSP tuned, normalised features")
STRONGER = "AdaSSP, zCDP, tuned, our map"


def measure(
    features: Features, full_map: FeatureMap, epsilons: tuple[float, ...], seeds: int, excess: float, bar: Any
) -> list[Row]:
    """All methods at each epsilon; `bar` shows how far it is."""
    images = len(features.train)
    as_they_are = Problem.of(features, lambda f: f)
    rows: list[Row] = []
    for epsilon in bar.track(epsilons, description="epsilon"):
        rho = affordable_rho(epsilon, DELTA)
        public_map = full_map.leading(suggest_dimensions(images, rho, full_map.dimension))
        problem = Problem.of(features, public_map.apply)
        draws = [ours_and_plain(problem, rho, seed, excess, public_map.second_moment, images) for seed in range(seeds)]
        ours, plain, rules = (list(column) for column in zip(*draws, strict=True))
        shown = f"{public_map.dimension} axes, {'/'.join(sorted(set(map(str, rules))))}"
        rows += [row(epsilon, OURS, ours, shown), row(epsilon, PLAIN, plain, f"{public_map.dimension} axes")]
        for method, where in zip(ADASSP, (problem, as_they_are), strict=True):
            rows.append(row(epsilon, method, *tuned_adassp(where, epsilon, None, seeds, excess)))
        rows.append(row(epsilon, STRONGER, *tuned_adassp(problem, epsilon, rho, seeds, excess)))
    exact = Moments(as_they_are.r, as_they_are.c, as_they_are.counts.astype(np.int64))
    head = solve_ridge(exact)
    majority = as_they_are.labels == int(as_they_are.counts.argmax())
    rows.append(row(None, "no privacy, gcv", [as_they_are.accuracy(head.weights, head.intercept)]))
    return [*rows, row(None, "largest class", [100 * float(majority.mean())])]


def judge(name: str, rows: list[Row]) -> list[Measure]:
    """What was promised."""
    at = {(found.epsilon, found.method): found.mean for found in rows}
    measures = []
    if (1.0, PLAIN) in at:
        ahead = at[1.0, OURS] - at[1.0, PLAIN]
        what = f"{name}: ours over lambda 1e-6, epsilon 1"
        measures.append(Measure(what, ahead, BETTER_THAN_PLAIN, at_least=True, unit="points"))
    epsilons = [found.epsilon for found in rows if found.method == OURS]
    least = min(at[epsilon, OURS] - max(at[epsilon, method] for method in ADASSP) for epsilon in epsilons)
    what = f"{name}: ours over the best tuned AdaSSP, least over epsilon"
    return [*measures, Measure(what, least, NEVER_BELOW_ADASSP, at_least=True, unit="points")]


def show(screen: Console, name: str, rows: list[Row], seeds: int) -> None:
    """The table."""
    table = Table(title=f"{name}: accuracy in per cent, mean ± spread over {seeds} draws, delta {DELTA:g}")
    for column in ("epsilon", "method", "accuracy", "chosen"):
        table.add_column(column, justify="right" if column in ("epsilon", "accuracy") else "left")
    for found in rows:
        epsilon = "" if found.epsilon is None else f"{found.epsilon:g}"
        table.add_row(epsilon, found.method, f"{found.mean:.1f} ± {found.spread:.1f}", found.chosen)
    screen.print(table)


def main(
    features: Annotated[list[Path], typer.Argument(help="Files of saved features.")],
    public_map: Annotated[str, typer.Option(help="'embedded' or a file of `fedopal-secure public-map`.")] = "embedded",
    quick: Annotated[bool, typer.Option("--quick", help="One epsilon and two draws, to see it work.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of the noise.")] = 10,
    excess: Annotated[float, typer.Option(min=1, help="All noise over the least that the privacy asks for.")] = 1.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers here.")] = None,
) -> None:
    """Run it; the text for people is in HELP."""
    screen, where = console(), environment()
    draws, epsilons = (2, QUICK_EPSILONS) if quick else (seeds, EPSILONS)
    full_map = embedded_public_map() if public_map == "embedded" else FeatureMap.load(Path(public_map))
    problems = {path.stem: Features.load(path) for path in features}
    with progress_bar(screen) as bar:
        found = {name: measure(loaded, full_map, epsilons, draws, excess, bar) for name, loaded in problems.items()}
    for name, rows in found.items():
        show(screen, name, rows, draws)
    measures = [one for name, rows in found.items() for one in judge(name, rows)]
    print_measures(screen, measures)
    if json_file is not None:
        runs = {name: [asdict(one) for one in rows] for name, rows in found.items()}
        result = {"environment": where, "delta": DELTA, "draws": draws, "excess": excess, "runs": runs}
        write_json(json_file, result | {"measures": [one.as_dict() for one in measures]})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
