"""Our secure aggregation beside the arithmetic of Flower's SecAgg+: time, bytes, error, on the complete graph.

    python -m benchmarks.secagg --json secagg.json

Both are driven in this process, and nothing is sent anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any
from unittest import mock

import numpy as np
import typer
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from rich.console import Console
from rich.table import Table

from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from benchmarks.session import STEPS, WIDTH, Client, Host, cast, clock, dropouts, run
from fedopal_secure.core import masks

LENGTH, CLIENTS = 200_000, (10, 50, 100)
QUICK_LENGTH, QUICK_CLIENTS = 2_000, (10,)
PRG, SEED_BITS = "AES-256-CTR", 256

# What is promised, of the largest number of clients at the full length.
FASTER_CLIENT, FASTER_SERVER, MASKING_OVER_FLOOR, REST_OVER_MASKING = 20, 100, 1.5, 4

HELP = """Measure our secure aggregation beside the arithmetic of Flower's SecAgg+.

Both run here, one after the other, with the same vector length, clients and dropouts (5 %, rounded up, after sharing),
on the complete graph. Ours has everything switched on: signatures, commitments and the consistency round. A client's
time is the sum of its steps; the protocols are compared by the mean over all clients that stay, and single steps are
shown in medians. The server's time is all that it does. Transport is in neither. All seconds are the processor's, since
no party waits for anything and other work on the machine must not count.

How well the masks are made is measured against a floor: the raw AES-256-CTR keystream of as many vectors, each added
once, timed between the clients' uploads.

The full run takes about a quarter of an hour, nearly all of it in the peer. It needs the package flwr. Where other work
shares the machine's caches, only ratios within a run mean something.
"""


@dataclass(frozen=True)
class Ours:
    """One session of secagg/v1: seconds and bytes, a client's in the median over those that stayed."""

    client_total: float  # the mean, as the peer gives it
    client_median: float
    client_seconds: dict[str, float]
    masking: float
    rest: float  # signatures, key agreement, sealing, sharing, hashing, encoding
    floor: float
    server_total: float
    server_seconds: dict[str, float]
    sent_bytes: int
    upload_bytes: int
    got_bytes: int
    error: int
    prg: str = PRG
    seed_bits: int = SEED_BITS


def keystream_floor(length: int, passes: int, chunk: int) -> float:
    """Seconds that so many vectors of raw keystream take, each added once to a vector of 64-bit words."""
    keystream = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor()
    vector, zeros, buffer = np.ones(length, dtype=np.uint64), memoryview(bytes(chunk)), bytearray(chunk + 15)
    words, step = np.frombuffer(buffer, dtype=np.uint64, count=chunk // 8), chunk // 8
    begin = clock()
    for _ in range(passes):
        for start in range(0, length, step):
            piece = vector[start : start + step]
            keystream.update_into(zeros[: 8 * len(piece)], buffer)
            np.add(piece, words[: len(piece)], out=piece)
    return clock() - begin


def fastest_chunk(length: int) -> int:
    """The size of a piece, in bytes, at which the floor is lowest on this machine."""
    sizes = [1 << bits for bits in range(14, 22)]
    return min(sizes, key=lambda size: min(keystream_floor(length, 3, size) for _ in range(5)))


def measure_ours(clients: int, length: int, arrived: Callable[[str], None] = lambda step: None) -> Ours:
    """Run one session of ours, with the floor measured after each upload."""
    people = cast(clients, corrupt=clients // 5, degree=0, length=length)
    host = Host(people.params, people.policy.members, people.host_seed)
    chunk = fastest_chunk(length)
    masking: dict[int, float] = {}
    floors: list[float] = []
    apply_stream = masks.apply_stream

    def act(one: Client, step: str, data: bytes) -> bytes:
        if step != "upload":
            return one.act(step, data)
        spent: list[float] = []

        def timed(*args: Any) -> None:
            start = clock()
            apply_stream(*args)
            spent.append(clock() - start)

        with mock.patch.object(masks, "apply_stream", timed):
            sent = one.act(step, data)
        masking[one.number] = sum(spent)
        floors.append(keystream_floor(length, len(spent), chunk))
        return sent

    outcome = run(people, host, frozenset(range(dropouts(clients))), act=act, arrived=arrived)
    totals = {one.number: sum(one.seconds.values()) for one in outcome.survivors}
    one = outcome.survivors[0]
    return Ours(
        client_total=mean(totals.values()),
        client_median=median(totals.values()),
        client_seconds=outcome.client_seconds(),
        masking=median(masking.values()),
        rest=median(total - masking[number] for number, total in totals.items()),
        floor=median(floors),
        server_total=sum(host.seconds.values()),
        server_seconds=host.spent(),
        sent_bytes=sum(one.sent.values()),
        upload_bytes=one.sent["upload"],
        got_bytes=sum(one.got.values()),
        error=outcome.error,
    )


def judge(clients: int, length: int, ours: Ours, peer: Any) -> list[Measure]:
    """What was promised of this size."""
    measures = [Measure(f"{clients} clients: error of the sum", ours.error, 0)]
    if length >= LENGTH:
        ratio = ours.masking / ours.floor
        measures.append(Measure(f"{clients} clients: masking over raw keystream", ratio, MASKING_OVER_FLOOR))
    if length >= LENGTH and clients == max(CLIENTS):
        faster_client, faster_server = peer.client_total / ours.client_total, peer.server_total / ours.server_total
        measures += [
            Measure("client faster than SecAgg+", faster_client, FASTER_CLIENT, at_least=True, unit="times"),
            Measure("server faster than SecAgg+", faster_server, FASTER_SERVER, at_least=True, unit="times"),
            Measure("all else of a client over its masking", ours.rest / ours.masking, REST_OVER_MASKING),
        ]
    return measures


def print_comparison(screen: Console, length: int, found: list[tuple[int, Ours, Any]]) -> None:
    """Both protocols, line under line."""
    table = Table(title=f"{length:,} entries, complete graph, 5 % drop out after sharing")
    table.add_column("clients", justify="right")
    table.add_column("")
    for name in ("client s", "server s", "sent bytes", "upload bytes", "error of the sum"):
        table.add_column(name, justify="right")
    table.add_column("PRG")
    table.add_column("seed bits", justify="right")
    for clients, ours, peer in found:
        for name, one, sent, error in (
            ("secagg/v1", ours, ours.sent_bytes, f"{ours.error}"),
            ("SecAgg+", peer, sum(peer.sent_bytes.values()), f"{peer.max_error:.1e}"),
        ):
            seconds = (f"{one.client_total:.4f}", f"{one.server_total:.3f}")
            sizes = (f"{sent:,}", f"{one.upload_bytes:,}")
            table.add_row(str(clients), name, *seconds, *sizes, error, one.prg.partition(" ")[0], str(one.seed_bits))
        faster = (peer.client_total / ours.client_total, peer.server_total / ours.server_total)
        table.add_row("", "times faster", *(f"{times:.0f}" for times in faster), end_section=True)
    screen.print(table)


def print_parts(screen: Console, found: list[tuple[int, Ours, Any]]) -> None:
    """Where a client's time goes."""
    table = Table(title="A client of ours: milliseconds")
    table.add_column("clients", justify="right")
    for name in (*STEPS, "of it masking", "raw keystream", "all but masking"):
        table.add_column(name, justify="right")
    for clients, ours, _ in found:
        parts = (*ours.client_seconds.values(), ours.masking, ours.floor, ours.rest)
        table.add_row(str(clients), *(f"{1000 * part:.1f}" for part in parts))
    screen.print(table)


def load_peer() -> ModuleType:
    """The peer, or an end with one line that says what is missing."""
    try:
        from benchmarks import flower_peer
    except ModuleNotFoundError as error:
        if error.name != "flwr":
            raise
        typer.echo(f"benchmarks.secagg: {error}", err=True)
        raise typer.Exit(2) from None
    return flower_peer


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="10 clients and 2,000 entries: seconds, to see it work.")
    ] = False,
    clients: Annotated[
        list[int] | None, typer.Option(min=4, max=256, help="Clients; may be given again. Default: 10, 50, 100.")
    ] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Entries of a vector. Default: 200,000.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers here.")] = None,
) -> None:
    """Run it; the text for people is in HELP."""
    flower = load_peer()
    screen = console()
    sizes = tuple(clients or (QUICK_CLIENTS if quick else CLIENTS))
    entries = length or (QUICK_LENGTH if quick else LENGTH)
    where = environment()
    found: list[tuple[int, Ours, Any]] = []
    measures: list[Measure] = []
    with progress_bar(screen) as bar:
        for count in sizes:
            # The peer reports nothing on its way, so its bar only pulses.
            waiting = bar.add_task(f"{count} clients, SecAgg+", total=None)
            with mock.patch.object(flower, "time", SimpleNamespace(perf_counter=clock)):
                peer = flower.run(entries, count, dropouts(count))
            bar.remove_task(waiting)
            steps = 2 * count + (len(STEPS) - 2) * (count - dropouts(count))
            task = bar.add_task(f"{count} clients, secagg/v1", total=steps)
            ours = measure_ours(count, entries, lambda step, task=task: bar.advance(task))  # type: ignore[misc]
            found.append((count, ours, peer))
            measures += judge(count, entries, ours, peer)
    print_comparison(screen, entries, found)
    print_parts(screen, found)
    print_measures(screen, measures)
    if json_file is not None:
        runs = [
            {"clients": count, "dropouts": dropouts(count), "secagg/v1": asdict(ours), "SecAgg+": asdict(peer)}
            for count, ours, peer in found
        ]
        result = {"environment": where, "length": entries, "width": WIDTH, "runs": runs}
        write_json(json_file, result | {"measures": [measure.as_dict() for measure in measures]})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
