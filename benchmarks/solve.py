"""The head from summed statistics beside AFL's aggregation of client inverses, pair by pair.

    python -m benchmarks.solve --json solve.json

AFL: He et al., "AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models", CVPR 2025.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from benchmarks.session import clock
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.encoding.layout import statistics_segments
from fedopal_secure.encoding.vector import pack, unpack
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.ridge import PAPER_RIDGE, solve_ridge
from fedopal_secure.statistics.sums import SufficientStatistics, accumulate

CLIENTS, DIMENSION, CLASSES, IMAGES = (10, 100, 1000), 512, 100, 10_000
QUICK_CLIENTS, QUICK_DIMENSION, QUICK_IMAGES = (3,), 16, 60
SMALL_DIMENSION, SMALL_CLASSES, SMALL_CLIENTS = 16, 3, 6
SMALL_CASES = ((20, 0.0), (20, PAPER_RIDGE), (2, PAPER_RIDGE))  # images of each client, lambda
GAMMA = 1.0  # AFL's regularisation of each client

# What is promised: of 100 clients, and of every small case.
FASTER, FASTER_AT, ERROR = 20, 100, 1e-9

Array = NDArray[np.float64]

HELP = """Measure the head from summed statistics beside AFL's aggregation law, pair by pair.

AFL's server gets from each client its weights and its Gram matrix with gamma on the diagonal, and folds them in one
after the other; the last step takes K gamma off the diagonal again. Ours adds the vectors of statistics as they arrive,
reads R, C and the counts back, and solves once. Both solve the same problem: the features are those on the grid, lambda
is the paper's 1e-6, there is no intercept. What a head with an intercept takes, its lambda chosen by cross-validation,
is shown beside it. What clients do is in neither time, and nothing is masked.

AFL is timed as published, but the inverse of a sum of two is kept for the next step, where it is needed again: two
inverses a client. Seconds are the processor's with one thread of BLAS. The errors are those of a small case against
rational arithmetic: the largest of an entry, over the largest entry.

It takes some minutes, nearly all of it in AFL among 1,000 clients.
"""


@dataclass(frozen=True)
class Solve:
    """Seconds of the server for one number of clients; `difference` is that of the two heads, relative."""

    clients: int
    dimension: int
    classes: int
    afl: float
    adding: float
    solving: float
    solving_gcv: float
    difference: float

    @property
    def faster(self) -> float:
        """AFL's time over ours, at the same lambda."""
        return self.afl / (self.adding + self.solving)


@dataclass(frozen=True)
class Small:
    """Relative errors of both heads in the small case, against rational arithmetic."""

    images: int
    dimension: int
    ridge: float
    ours: float
    afl: float


class AflServer:
    """AFL's server: `fold` takes one client's upload, `release` ends the round. Weights (d, classes), Grams (d, d)."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._clients = 0

    def fold(self, weights: Array, gram: Array) -> None:
        """The absolute aggregation law: W = V_u W_u + V_v W_v, with C = C_u + C_v.

        V_u = I - R_u C_v + R_u C_v (C_u + C_v)^-1 C_v where R = C^-1, and V_v with u and v exchanged; u is what has
        been folded so far.
        """
        inverse = np.linalg.inv(gram)
        self._clients += 1
        if self._clients == 1:
            self._weights, self._gram, self._inverse = weights, gram, inverse
            return
        identity, total = np.eye(len(gram)), self._gram + gram
        inverse_of_total = np.linalg.inv(total)
        so_far, new = self._inverse @ gram, inverse @ self._gram
        of_so_far = identity - so_far + so_far @ inverse_of_total @ gram
        of_new = identity - new + new @ inverse_of_total @ self._gram
        self._weights = of_so_far @ self._weights + of_new @ weights
        self._gram, self._inverse = total, inverse_of_total

    def release(self, ridge: float) -> Array:
        """The weights without the regularisation of the clients: (C - K gamma I)^-1 C W; `ridge` of it stays."""
        surplus = self._clients * self._gamma - ridge
        released: Array = np.linalg.inv(self._gram - surplus * np.eye(len(self._gram))) @ (self._gram @ self._weights)
        return released


def afl_upload(h: Array, y: Array, gamma: float) -> tuple[Array, Array]:
    """What a client of AFL sends: (X^T X + gamma I)^-1 X^T Y, (d, classes), and that matrix, (d, d)."""
    gram = h.T @ h + gamma * np.eye(h.shape[1])
    return np.linalg.inv(gram) @ (h.T @ y), gram


def rational_solution(matrix: list[list[Fraction]], right: list[list[Fraction]]) -> list[list[Fraction]]:
    """The exact X of matrix X = right, by Gauss and Jordan; the matrix is regular."""
    rows = [left + more for left, more in zip(matrix, right, strict=True)]
    for column in range(len(rows)):
        pivot = next(number for number in range(column, len(rows)) if rows[number][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column][column]
        rows[column] = [entry / head for entry in rows[column]]
        for number, row in enumerate(rows):
            if number != column and row[column]:
                factor = row[column]
                rows[number] = [entry - factor * above for entry, above in zip(row, rows[column], strict=True)]
    return [row[len(matrix) :] for row in rows]


def rational_head(statistics: SufficientStatistics, grid: FeatureGrid, ridge: float) -> Array:
    """(R + lambda I)^-1 C of exact integer statistics, without rounding until the end."""
    scale, weight = Fraction(grid.scale), Fraction(ridge)
    matrix = [[Fraction(entry) / scale**2 for entry in row] for row in statistics.r.tolist()]
    for number, row in enumerate(matrix):
        row[number] += weight
    right = [[Fraction(entry) / scale for entry in row] for row in statistics.c.tolist()]
    return np.array([[float(entry) for entry in row] for row in rational_solution(matrix, right)])


def distance(found: Array, expected: Array) -> float:
    """The largest difference of an entry, over the largest entry."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


class Timer:
    """Adds up the processor's seconds spent inside it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._start = clock()

    def __exit__(self, *_: object) -> None:
        self.seconds += clock() - self._start


def clients_data(images: int, dimension: int, classes: int, clients: int) -> tuple[FeatureGrid, list[Any]]:
    """The grid, and (grid points, labels) of each client; classes are separable a little, and every client has all."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, images)
    features = rng.standard_normal((images, dimension)) + 0.5 * rng.standard_normal((classes, dimension))[labels]
    grid = FeatureGrid(dimension)
    q = grid.quantise(features)
    return grid, list(zip(np.array_split(q, clients), np.array_split(labels, clients), strict=True))


def measure(clients: int, images: int, dimension: int, classes: int, bar: Any) -> Solve:
    """Both servers with the same clients; `bar` shows how far it is."""
    grid, data = clients_data(images, dimension, classes, clients)
    segments = statistics_segments(dimension, classes, grid.bits, images)
    total = np.zeros(sum(segment.length for segment in segments), np.uint64)
    afl, adding, solving, solving_gcv = Timer(), Timer(), Timer(), Timer()
    server, one_hot = AflServer(GAMMA), np.eye(classes)
    for q, labels in bar.track(data, description=f"{clients} clients"):
        vector = pack(segments, accumulate(q, labels, classes, grid.bits).to_arrays())
        upload = afl_upload(q / grid.scale, one_hot[labels], GAMMA)
        with adding:
            total += vector
        with afl:
            server.fold(*upload)
    with afl:
        theirs = server.release(PAPER_RIDGE)

    def moments() -> Moments:
        arrays = unpack(segments, total)
        return Moments.from_statistics(SufficientStatistics.from_arrays(arrays, dimension, classes), grid)

    with solving:
        head = solve_ridge(moments(), "fixed", PAPER_RIDGE, intercept=False)
    with solving_gcv:
        solve_ridge(moments())
    return Solve(
        clients=clients,
        dimension=dimension,
        classes=classes,
        afl=afl.seconds,
        adding=adding.seconds,
        solving=solving.seconds,
        solving_gcv=solving_gcv.seconds,
        difference=distance(theirs, head.weights),
    )


def measure_small(images_per_client: int, ridge: float) -> Small:
    """Both heads of a few images against rational arithmetic."""
    images = SMALL_CLIENTS * images_per_client
    grid, data = clients_data(images, SMALL_DIMENSION, SMALL_CLASSES, SMALL_CLIENTS)
    server, statistics = AflServer(GAMMA), SufficientStatistics.zeros(SMALL_DIMENSION, SMALL_CLASSES)
    for q, labels in data:
        server.fold(*afl_upload(q / grid.scale, np.eye(SMALL_CLASSES)[labels], GAMMA))
        statistics += accumulate(q, labels, SMALL_CLASSES, grid.bits)
    exact = rational_head(statistics, grid, ridge)
    ours = solve_ridge(Moments.from_statistics(statistics, grid), "fixed", ridge, intercept=False)
    return Small(
        images=images,
        dimension=SMALL_DIMENSION,
        ridge=ridge,
        ours=distance(ours.weights, exact),
        afl=distance(server.release(ridge), exact),
    )


def judge(runs: list[Solve], small: list[Small]) -> list[Measure]:
    """What was promised of these sizes."""
    measures = [
        Measure(f"{run.clients} clients: faster than AFL", run.faster, FASTER, at_least=True, unit="times")
        for run in runs
        if run.clients == FASTER_AT
    ]
    worst = max(case.ours for case in small)
    return [*measures, Measure("error of ours against rational arithmetic", worst, ERROR)]


def print_solves(screen: Console, runs: list[Solve], small: list[Small]) -> None:
    """The numbers behind the ratios."""
    table = Table(title=f"The server, d = {runs[0].dimension}, {runs[0].classes} classes: seconds")
    for name in ("clients", "AFL", "adding", "solving", "times faster", "solving with gcv", "heads differ by"):
        table.add_column(name, justify="right")
    for run in runs:
        ours = (f"{run.adding:.4f}", f"{run.solving:.4f}", f"{run.faster:.0f}", f"{run.solving_gcv:.3f}")
        table.add_row(str(run.clients), f"{run.afl:.3f}", *ours, f"{run.difference:.1e}")
    screen.print(table)
    table = Table(title=f"Errors against rational arithmetic, d = {SMALL_DIMENSION}, {SMALL_CLIENTS} clients")
    for name in ("images", "lambda", "ours", "AFL"):
        table.add_column(name, justify="right")
    for case in small:
        table.add_row(str(case.images), f"{case.ridge:g}", f"{case.ours:.1e}", f"{case.afl:.1e}")
    screen.print(table)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Three clients, d = 16: a second, to see it work.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers here.")] = None,
) -> None:
    """Run it; the text for people is in HELP."""
    screen = console()
    where = environment()
    counts, images, dimension = (
        (QUICK_CLIENTS, QUICK_IMAGES, QUICK_DIMENSION) if quick else (CLIENTS, IMAGES, DIMENSION)
    )
    with progress_bar(screen) as bar, threadpool_limits(1):
        runs = [measure(clients, images, dimension, CLASSES, bar) for clients in counts]
        small = [measure_small(*case) for case in SMALL_CASES]
    measures = judge(runs, small)
    print_solves(screen, runs, small)
    print_measures(screen, measures)
    if json_file is not None:
        result = {"environment": where, "runs": [asdict(run) for run in runs], "small": [asdict(one) for one in small]}
        write_json(json_file, result | {"measures": [one.as_dict() for one in measures]})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
