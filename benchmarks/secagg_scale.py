"""Our secure aggregation with thousands of clients on the sparse graph: the server's memory and time, a client's time.

    python -m benchmarks.secagg_scale --json secagg_scale.json

The clients are played by this process, one after the other; the server runs in another.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.crowd import SHORTCUTS, Crowd
from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from benchmarks.server_process import started
from benchmarks.session import STEPS, WIDTH, Client, cast, dropouts, run
from fedopal_secure.core.graph import Graph, least_degree
from fedopal_secure.core.params import least_cohort

# (clients, entries): the first two differ in what uploads weigh and in nothing else.
SIZES = ((1_000, 1_000), (1_000, 20_000), (10_000, 1_000))
QUICK_SIZES = ((260, 1_000),)
SAMPLE = 5

# What is promised. An upload leaves its signed header behind, and nothing of its vector.
LEFT_BY_AN_UPLOAD, SERVER_BYTES, OF_CLIENTS, GROWTH = 2_000, 10**9, 10_000, 1.5

HELP = """Measure our secure aggregation with 1,000 and with 10,000 clients on the sparse graph.

The server has a process of its own, so its memory is its own. Times are the processor's, inside the protocol's code.
5 % of the clients are taken to be corrupt, and 5 % drop out after sharing; the degree is the least that bears both.

A sample of five clients is measured whole. The others run the real code too, but for what only their own machine would
do: n clients check n² signatures between them, and here one process plays them all. So outside the sample signatures
of others are taken to be good, and what all clients get alike is decoded and hashed once. The server checks everything.

1,000 clients take a minute or two, 10,000 half an hour and about 3 GB in the process that plays the clients.
"""


@dataclass(frozen=True)
class Scale:
    """One session: bytes of the server's process, and seconds; a client's are medians over the sample."""

    clients: int
    length: int
    corrupt: int
    dropouts: int
    degree: int
    threshold: int
    client_total: float
    client_seconds: dict[str, float]
    sent_bytes: int
    got_bytes: int
    server_total: float
    server_seconds: dict[str, float]
    resident_at_start: int
    resident_before_uploads: int
    resident_after_uploads: int
    resident_at_most: int
    wall_seconds: float
    error: int

    @property
    def upload_bytes(self) -> int:
        """Payload bytes of all uploads together."""
        return (self.clients - self.dropouts) * self.length * WIDTH

    @property
    def left_by_an_upload(self) -> float:
        """Bytes by which the server grew for each upload, beyond the one vector that it adds them to."""
        grown = self.resident_after_uploads - self.resident_before_uploads - self.length * WIDTH
        return grown / (self.clients - self.dropouts)

    @property
    def per_edge(self) -> float:
        """Server's seconds for each client and holder."""
        return self.server_total / (self.clients * self.degree)


def measure(clients: int, length: int, bar: Any) -> Scale:
    """Run one session; `bar` shows how far it is."""
    corrupt = gone = dropouts(clients)
    degree = least_degree(clients, corrupt, gone, least_cohort(corrupt))
    people = cast(clients, corrupt, degree, length)
    step = (clients - gone) // SAMPLE
    crowd = Crowd(frozenset(range(gone, gone + SAMPLE * step, step)))
    task = bar.add_task(f"{clients:,} clients, {length:,} entries", total=2 * clients + 4 * (clients - gone))
    resident: dict[str, tuple[int, int]] = {}
    begin = time.perf_counter()
    with started(people) as host, crowd.patched():

        def act(one: Client, step: str, data: bytes) -> bytes:
            if step not in resident:
                resident[step] = host.resident()
            return crowd.act(one, step, data)

        # Clients drop out by number, and numbers are in the order of identities, which are hashes.
        outcome = run(people, host, frozenset(range(gone)), act=act, arrived=lambda _: bar.advance(task))
        at_most, server_seconds = host.resident()[1], host.spent()
    wall = time.perf_counter() - begin
    seconds = outcome.client_seconds(crowd.sample)
    one = next(one for one in outcome.survivors if one.number in crowd.sample)
    return Scale(
        clients=clients,
        length=length,
        corrupt=corrupt,
        dropouts=gone,
        degree=degree,
        threshold=Graph(clients, degree, corrupt).threshold,
        client_total=sum(seconds.values()),
        client_seconds=seconds,
        sent_bytes=sum(one.sent.values()),
        got_bytes=sum(one.got.values()),
        server_total=sum(server_seconds.values()),
        server_seconds=server_seconds,
        resident_at_start=resident["advertise"][0],
        resident_before_uploads=resident["upload"][0],
        resident_after_uploads=resident["attest"][0],
        resident_at_most=at_most,
        wall_seconds=wall,
        error=outcome.error,
    )


def judge(found: list[Scale]) -> list[Measure]:
    """What was promised, of each session and of the largest beside the smallest."""
    measures = []
    for one in found:
        name = f"{one.clients:,} clients, {one.length:,} entries"
        measures.append(Measure(f"{name}: error of the sum", one.error, 0))
        left = Measure(f"{name}: what an upload leaves in memory", one.left_by_an_upload, LEFT_BY_AN_UPLOAD, unit="B")
        measures.append(left)
        if one.clients >= OF_CLIENTS:
            most = one.resident_at_most / 10**6
            measures.append(Measure(f"{name}: server's memory at most", most, SERVER_BYTES / 10**6, unit="MB"))
    few, many = min(found, key=lambda one: one.clients), max(found, key=lambda one: one.clients)
    if few.clients != many.clients:
        name = f"server's time for a client and holder, {many.clients:,} clients over {few.clients:,}"
        measures.append(Measure(name, many.per_edge / few.per_edge, GROWTH))
    return measures


def print_sessions(screen: Console, found: list[Scale]) -> None:
    """Two tables: the server, and a client of the sample."""
    server = Table(title="The server: MB in memory, seconds of its processor")
    heads = (
        "clients",
        "entries",
        "degree",
        "t",
        "start",
        "before uploads",
        "after",
        "most",
        "all uploads",
        "s",
        "µs/edge",
    )
    for name in heads:
        server.add_column(name, justify="right")
    for one in found:
        sizes = (
            one.resident_at_start,
            one.resident_before_uploads,
            one.resident_after_uploads,
            one.resident_at_most,
            one.upload_bytes,
        )
        numbers = (f"{one.clients:,}", f"{one.length:,}", str(one.degree), str(one.threshold))
        times = (f"{one.server_total:.1f}", f"{1e6 * one.per_edge:.1f}")
        server.add_row(*numbers, *(f"{size / 10**6:.1f}" for size in sizes), *times)
    screen.print(server)
    client = Table(title=f"A client, whole, median of {SAMPLE}: milliseconds of its processor")
    for name in ("clients", "entries", *STEPS, "all", "bytes sent", "bytes got"):
        client.add_column(name, justify="right")
    for one in found:
        spent = (*one.client_seconds.values(), one.client_total)
        cells = (*(f"{1000 * part:.0f}" for part in spent), f"{one.sent_bytes:,}", f"{one.got_bytes:,}")
        client.add_row(f"{one.clients:,}", f"{one.length:,}", *cells)
    screen.print(client)
    screen.print(SHORTCUTS)


def _size(text: str) -> tuple[int, int]:
    clients, by, length = text.partition("x")
    if not (by and clients.isdecimal() and length.isdecimal() and int(clients) > 256 and int(length) > 0):
        raise typer.BadParameter(f"{text!r} is not CLIENTSxENTRIES with more than 256 clients, such as 1000x20000")
    return int(clients), int(length)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="260 clients only: seconds, to see it work.")] = False,
    size: Annotated[
        list[str] | None, typer.Option(help="CLIENTSxENTRIES, instead of all sizes; may be given again.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers here.")] = None,
) -> None:
    """Run it; the text for people is in HELP."""
    sizes = [_size(text) for text in size] if size else (QUICK_SIZES if quick else SIZES)
    screen, where = console(), environment()
    with progress_bar(screen) as bar:
        found = [measure(clients, length, bar) for clients, length in sizes]
    measures = judge(found)
    print_sessions(screen, found)
    print_measures(screen, measures)
    if json_file is not None:
        extra = {"width": WIDTH, "sample": SAMPLE, "shortcuts": SHORTCUTS}
        result = {"environment": where, **extra, "runs": [asdict(one) for one in found]}
        write_json(json_file, result | {"measures": [measure.as_dict() for measure in measures]})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
