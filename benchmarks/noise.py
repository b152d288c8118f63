"""The discrete Gaussian sampler beside OpenDP's, and the noise of one client beside its masks.

python -m benchmarks.noise --json noise.json
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from benchmarks.session import clock
from fedopal_secure.core import masks
from fedopal_secure.core.ring import Ring
from fedopal_secure.privacy.gaussian import discrete_gaussian

SIGMA, CLIENTS, LENGTH, PEER_LENGTH, REPEATS = 2**27, 100, 200_000, 20_000, 9
QUICK_LENGTH, QUICK_PEER_LENGTH, QUICK_REPEATS = 20_000, 2_000, 3

# What is promised, at the full length.
FASTER_THAN_PEER, NOISE_OVER_MASKING = 5, 1

HELP = """Measure the discrete Gaussian sampler beside OpenDP's, and the noise of one client beside its masks.

Both samplers draw at sigma = 2^27 from the operating system's entropy. A client among 100 on the complete graph masks
its vector with 100 streams: one for each other client and its own. Every piece is timed in turn, several times, and the
medians are compared. All seconds are the processor's. Where other work shares the machine's caches, only ratios within
a run mean something.

It takes some ten seconds and needs the package opendp.
"""

Sampler = Callable[[int], Any]


@dataclass(frozen=True)
class Noise:
    """Medians: samples of both in a second, and seconds for one vector."""

    sigma: int
    length: int
    ours_per_second: float
    peer_per_second: float
    noise: float
    masking: float


def load_peer() -> Sampler:
    """OpenDP's sampler, or an end with one line that says what is missing."""
    try:
        import opendp.prelude as dp
    except ModuleNotFoundError as error:
        if error.name != "opendp":
            raise
        typer.echo(f"benchmarks.noise: {error}", err=True)
        raise typer.Exit(2) from None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    release: Any = dp.m.make_gaussian(*space, scale=float(SIGMA))
    return lambda count: release([0] * count)


def mask(vector: Any) -> None:
    """Mask the vector as one of so many clients does."""
    ring = Ring(0)
    for number in range(CLIENTS):
        masks.apply_stream(ring, vector, number.to_bytes(32, "big"), masks.ADD)


def seconds(work: Callable[[], Any]) -> float:
    """Of the processor, all threads."""
    start = clock()
    work()
    return clock() - start


def measure(peer: Sampler, length: int, peer_length: int, repeats: int, bar: Any) -> Noise:
    """Time everything in turn; `bar` shows how far it is."""
    vector = np.ones(length, dtype=np.uint64)
    pieces: dict[str, Callable[[], Any]] = {
        "noise": lambda: discrete_gaussian(SIGMA, length, os.urandom),
        "masking": lambda: mask(vector),
        "peer": lambda: peer(peer_length),
    }
    for work in pieces.values():
        work()  # tables, and memory that is touched for the first time
    found: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in bar.track(range(repeats), description="noise, masks, OpenDP"):
        for name, work in pieces.items():
            found[name].append(seconds(work))
    middle = {name: median(times) for name, times in found.items()}
    return Noise(
        sigma=SIGMA,
        length=length,
        ours_per_second=length / middle["noise"],
        peer_per_second=peer_length / middle["peer"],
        noise=middle["noise"],
        masking=middle["masking"],
    )


def judge(found: Noise) -> list[Measure]:
    """What was promised of this length."""
    faster = found.ours_per_second / found.peer_per_second
    measures = [Measure("samples in a second, over OpenDP's", faster, FASTER_THAN_PEER, at_least=True, unit="times")]
    if found.length >= LENGTH:
        what = f"noise over masking, a client among {CLIENTS}"
        measures.append(Measure(what, found.noise / found.masking, NOISE_OVER_MASKING))
    return measures


def print_noise(screen: Console, found: Noise) -> None:
    """The numbers behind the ratios."""
    table = Table(title=f"sigma = {found.sigma:,}; a vector has {found.length:,} entries")
    for name in ("our samples/s", "OpenDP's samples/s", "noise of a vector, ms", "its masks, ms"):
        table.add_column(name, justify="right")
    rates = (f"{found.ours_per_second:,.0f}", f"{found.peer_per_second:,.0f}")
    table.add_row(*rates, f"{1000 * found.noise:.1f}", f"{1000 * found.masking:.1f}")
    screen.print(table)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A shorter vector: a second or two, to see it work.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers here.")] = None,
) -> None:
    """Run it; the text for people is in HELP."""
    peer = load_peer()
    screen = console()
    where = environment()
    sizes = (QUICK_LENGTH, QUICK_PEER_LENGTH, QUICK_REPEATS) if quick else (LENGTH, PEER_LENGTH, REPEATS)
    with progress_bar(screen) as bar:
        found = measure(peer, *sizes, bar)
    measures = judge(found)
    print_noise(screen, found)
    print_measures(screen, measures)
    if json_file is not None:
        result = {"environment": where, "clients": CLIENTS, "noise": asdict(found)}
        write_json(json_file, result | {"measures": [one.as_dict() for one in measures]})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
