"""Exact integer statistics beside a plain float64 Gram of the same features, in one run.

python -m benchmarks.statistics --json statistics.json
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from benchmarks.session import clock
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.statistics.sums import accumulate

IMAGES, DIMENSIONS, CLASSES, REPEATS = 10_000, (384, 512, 768), (10, 100), 15
QUICK_IMAGES, QUICK_DIMENSIONS, QUICK_REPEATS = 500, (32,), 3

# What is promised of every size, with one thread and with all.
OVER_PLAIN = 1.2

HELP = """Measure the exact integer statistics beside a plain float64 Gram.

Both start from memory: ours from the integers on the grid (12 bits), the plain one from the same features as float64
and the labels as one-hot float64, of which it makes H^T H and H^T Y. Ours also checks that every row is on the grid,
converts, and counts the classes. What rounding features to the grid takes is shown beside it.

Every piece is timed in turn, several times, and medians are compared. With one thread of BLAS seconds are the
processor's; with as many as BLAS takes they are the clock's, because BLAS threads that wait use the processor too.
Where other work shares the machine, the former are worth more.
"""


@dataclass(frozen=True)
class Sums:
    """Medians in seconds: one thread by the processor, all threads by the clock."""

    images: int
    dimension: int
    classes: int
    exact: float
    plain: float
    rounding: float
    exact_threads: float
    plain_threads: float
    error: int  # of C, and of eight rows of R, against integer sums that use no BLAS, in grid units: it must be 0
    plain_order: float  # the most that an entry of the plain Gram changes when the images are in another order

    @property
    def ratio(self) -> float:
        """Ours over plain, one thread."""
        return self.exact / self.plain

    @property
    def ratio_threads(self) -> float:
        """Ours over plain, all threads."""
        return self.exact_threads / self.plain_threads


def timed(pieces: dict[str, Callable[[], Any]], repeats: int, now: Callable[[], float]) -> dict[str, float]:
    """The median seconds of each piece, all of them in turn."""
    found: dict[str, list[float]] = {name: [] for name in pieces}
    for work in pieces.values():
        work()  # memory that is touched for the first time
    for _ in range(repeats):
        for name, work in pieces.items():
            start = now()
            work()
            found[name].append(now() - start)
    return {name: median(seconds) for name, seconds in found.items()}


def measure(images: int, dimension: int, classes: int, repeats: int) -> Sums:
    """Time one size."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((images, dimension)).astype(np.float32)
    labels = rng.integers(0, classes, images)
    grid = FeatureGrid(dimension)
    q, h, y = grid.quantise(features), grid.normalised(features), np.eye(classes)[labels]
    pieces: dict[str, Callable[[], Any]] = {
        "exact": lambda: accumulate(q, labels, classes, grid.bits),
        "plain": lambda: (h.T @ h, h.T @ y),
    }
    with threadpool_limits(1):
        single = timed(pieces | {"rounding": lambda: grid.quantise(features)}, repeats, clock)
    threads = timed(pieces, repeats, time.perf_counter)
    ours = accumulate(q, labels, classes, grid.bits)
    shuffled = rng.permutation(h)
    wide, some = q.astype(np.int64), rng.choice(dimension, 8, replace=False)  # numpy multiplies integers without BLAS
    error = max(
        int(np.abs(ours.r[some] - wide[:, some].T @ wide).max()),
        max(int(np.abs(ours.c[:, label] - wide[labels == label].sum(axis=0)).max()) for label in range(classes)),
    )
    return Sums(
        images=images,
        dimension=dimension,
        classes=classes,
        exact=single["exact"],
        plain=single["plain"],
        rounding=single["rounding"],
        exact_threads=threads["exact"],
        plain_threads=threads["plain"],
        error=error,
        plain_order=float(np.abs(h.T @ h - shuffled.T @ shuffled).max()),
    )


def judge(found: Sums) -> list[Measure]:
    """What was promised of this size."""
    size = f"d = {found.dimension}, {found.classes} classes"
    measures = [Measure(f"{size}: error of the exact sums", found.error, 0)]
    if found.images >= IMAGES:
        measures.append(Measure(f"{size}: exact over plain, one thread", found.ratio, OVER_PLAIN))
        measures.append(Measure(f"{size}: exact over plain, all threads", found.ratio_threads, OVER_PLAIN))
    return measures


def print_sums(screen: Console, runs: list[Sums]) -> None:
    """The numbers behind the ratios."""
    table = Table(title=f"Statistics of {runs[0].images:,} images: milliseconds")
    for name in ("d", "classes", "exact", "plain", "ratio", "rounding", "all threads: exact", "plain", "ratio"):
        table.add_column(name, justify="right")
    for run in runs:
        single = (
            f"{1000 * run.exact:.1f}",
            f"{1000 * run.plain:.1f}",
            f"{run.ratio:.2f}",
            f"{1000 * run.rounding:.1f}",
        )
        threads = (f"{1000 * run.exact_threads:.1f}", f"{1000 * run.plain_threads:.1f}", f"{run.ratio_threads:.2f}")
        table.add_row(str(run.dimension), str(run.classes), *single, *threads)
    screen.print(table)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Few images: a second, to see it work.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers here.")] = None,
) -> None:
    """Run it; the text for people is in HELP."""
    screen = console()
    where = environment()
    images, dimensions, repeats = (
        (QUICK_IMAGES, QUICK_DIMENSIONS, QUICK_REPEATS) if quick else (IMAGES, DIMENSIONS, REPEATS)
    )
    sizes = [(dimension, classes) for dimension in dimensions for classes in CLASSES]
    with progress_bar(screen) as bar:
        runs = [measure(images, *size, repeats) for size in bar.track(sizes, description="exact and plain sums")]
    measures = [one for run in runs for one in judge(run)]
    print_sums(screen, runs)
    print_measures(screen, measures)
    if json_file is not None:
        result = {"environment": where, "runs": [asdict(run) for run in runs]}
        write_json(json_file, result | {"measures": [one.as_dict() for one in measures]})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
