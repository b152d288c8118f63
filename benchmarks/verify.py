"""What checking a transcript takes beside the round that left it, in one run.

    python -m benchmarks.verify --json verify.json

All parties are driven in this process; the transcript is written to a folder that goes again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from benchmarks.session import clock
from fedopal_secure.audit.verify import verify
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.params import PROTOCOL, Task, least_cohort
from fedopal_secure.core.policy import Membership
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.federation.config import HeadSettings, PolicyConfig
from fedopal_secure.federation.pairwise_sum import PairwiseClient
from fedopal_secure.federation.policies import policy_of
from fedopal_secure.federation.secure_sum import UPLOAD, Participant
from fedopal_secure.federation.server import Proposal, RoundServer
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript
from fedopal_secure.federation.vectors import STATISTICS_SESSION, to_vector
from fedopal_secure.statistics.sums import accumulate

# Statistics of 624 features in 8 classes: 624 + 624 * 623 / 2 + 624 * 8 + 8 is 200,000 to the entry.
DIMENSION, CLASSES, IMAGES, CLIENTS = 624, 8, 40, (12, 100)
QUICK_DIMENSION, QUICK_CLIENTS = 60, (5,)
MOST = 1.5  # times the round's own protocol

HELP = """Measure `audit verify` beside the round whose transcript it checks.

A round of secagg/v1 over the statistics of 624 features in 8 classes, 200,000 entries, with 12 and with 100 clients, of
whom up to a fifth may be corrupt; 5 % (rounded up) are lost before they upload. The round's time is that of its
protocol: what the server and all clients do, the transcript, and the head; taking features is in neither. Seconds are
the processor's, of all threads. The target is 1.5 times the round.
"""


@dataclass(frozen=True)
class Found:
    """One round and its check, in processor seconds; `server_seconds` is the server's part of the round."""

    clients: int
    entries: int
    transcript_bytes: int
    round_seconds: float
    server_seconds: float
    verify_seconds: float
    ratio: float


class Stopwatch:
    """Adds up processor time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Time what happens inside."""
        start = clock()
        yield
        self.seconds += clock() - start


def play(clients: int, dimension: int, folder: Path) -> tuple[PolicyConfig, float, float]:
    """Run a round that leaves its transcript in the folder; its policy, and the seconds of server and clients."""
    grid, names = FeatureGrid(dimension), tuple(f"class {number}" for number in range(CLASSES))
    task = Task(
        "none", bytes(32), "none", "cls", dimension, grid.bound, grid.bits, grid.normalise, names,
        "none", 0, 0, 4.0, 24, b"", "", clients * IMAGES, "", 0,
    )  # fmt: skip
    host, keys = SigningKey(os.urandom(32)), [SigningKey(os.urandom(32)) for _ in range(clients)]
    corrupt = clients // 5
    file = PolicyConfig(
        identities={f"client {number}": key.identity.hex() for number, key in enumerate(keys)},
        servers={"server": host.identity.hex()},
        corrupt=corrupt,
    )
    members, servers = Membership(frozenset(key.identity for key in keys)), frozenset({host.identity})
    policy = policy_of(file, task, members, servers, b"")
    hosting, taking_part = Stopwatch(), Stopwatch()
    with hosting.on():
        server = RoundServer(
            host, members, tuple(key.identity for key in keys),
            Proposal(PROTOCOL, clients, corrupt, 0, least_cohort(corrupt), task),
            HeadSettings(), os.urandom, Transcript(folder / "transcript"), Timings(),
        )  # fmt: skip
    parties = {key.identity: PairwiseClient(Participant(key, b"", policy, os.urandom)) for key in keys}
    lost = {key.identity for key in keys[: -(-clients // 20)]}
    for phase in server.phases:
        with hosting.on():
            requests = dict(server.request(STATISTICS_SESSION, phase).items())
        for number, (identity, request) in enumerate(requests.items()):
            if phase == UPLOAD and identity in lost:
                del parties[identity]
            if identity not in parties:
                continue
            if phase == UPLOAD:
                random = np.random.default_rng(number)
                labels = random.integers(0, CLASSES, IMAGES)
                points = grid.quantise(random.normal(size=(IMAGES, dimension)) + 2 * np.eye(dimension)[labels])
                params = server.records[STATISTICS_SESSION].params
                vector = to_vector(params, accumulate(points, labels, CLASSES, grid.bits), None)
                with taking_part.on():
                    parties[identity].begin_upload(request, None)
                    answer = parties[identity].upload(vector)
            else:
                with taking_part.on():
                    answer = parties[identity].answer(phase, request)
            if answer:
                with hosting.on():
                    server.receive(STATISTICS_SESSION, phase, identity, answer)
    with hosting.on():
        server.finish(STATISTICS_SESSION)
        server.release().save(folder / "model.safetensors")
    return file, hosting.seconds, taking_part.seconds


def measure(clients: int, dimension: int) -> Found:
    """One round and its check; raises InputError if the check does not say OK."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, server, others = play(clients, dimension, folder)
        checking = Stopwatch()
        with checking.on():
            found = verify(folder, file)
        if not found.ok:
            raise InputError(f"an honest round was not verified: {found.finding}")
        size = sum(path.stat().st_size for path in (folder / "transcript").rglob("*") if path.is_file())
    seconds = server + others
    length = dimension + dimension * (dimension - 1) // 2 + dimension * CLASSES + CLASSES
    return Found(clients, length, size, seconds, server, checking.seconds, checking.seconds / seconds)


def main(
    json_path: Annotated[Path | None, typer.Option("--json", help="Write all that was found to this file.")] = None,
    quick: Annotated[bool, typer.Option(help="Small sizes, to see that it works.")] = False,
) -> None:
    """See HELP."""
    screen, around = console(), environment()
    dimension, sizes = (QUICK_DIMENSION, QUICK_CLIENTS) if quick else (DIMENSION, CLIENTS)
    found = []
    with progress_bar(screen) as progress:
        for clients in progress.track(sizes, description="rounds"):
            found.append(measure(clients, dimension))
    table = Table(title=f"{found[0].entries} entries; processor seconds")
    for name in ("clients", "round", "of it the server", "verify", "verify / round", "transcript, MB"):
        table.add_column(name, justify="right")
    for one in found:
        seconds = (one.round_seconds, one.server_seconds, one.verify_seconds)
        table.add_row(
            str(one.clients), *(f"{s:.2f}" for s in seconds), f"{one.ratio:.2f}", f"{one.transcript_bytes / 1e6:.1f}"
        )
    screen.print(table)
    measures = [Measure(f"verify / round, {one.clients} clients", one.ratio, MOST) for one in found]
    print_measures(screen, measures)
    if json_path is not None:
        runs, told = [asdict(one) for one in found], [one.as_dict() for one in measures]
        write_json(json_path, {"environment": around, "runs": runs, "measures": told})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
