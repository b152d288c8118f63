"""Five ways to sum the same vectors in one run: in plain, masked, and encrypted with BFV (masked or not) and CKKS.

    python -m benchmarks.protocols --json protocols.json

All parties are driven in this process, and nothing is sent anywhere.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from benchmarks.session import Cast, cast, clock, dropouts
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import BFV, BFV_MASKED, CKKS, ENCRYPTED, Segment, SessionParams
from fedopal_secure.core.params import PROTOCOL as SECAGG
from fedopal_secure.core.ring import U64
from fedopal_secure.encoding.vector import unpack
from fedopal_secure.federation.protocols import open_client, open_server
from fedopal_secure.federation.secure_sum import OPEN, PHASES, PLAIN, SILENT, UPLOAD, Participant, SumClient
from fedopal_secure.federation.vectors import STATISTICS_SESSION, session_segments
from fedopal_secure.he.authority import AuthorityPolicy, KeyAuthority, SecretKeys, generate
from fedopal_secure.he.context import SCHEMES, read_public_context, session_error_bound
from fedopal_secure.he.messages import public_context_hash
from fedopal_secure.he.parameters import DEFAULTS, SECURE_BITS
from fedopal_secure.he.seal import load_seal

NAMES = {PLAIN: "plain", SECAGG: "pairwise", BFV: "bfv", BFV_MASKED: "bfv masked", CKKS: "ckks"}

# Statistics of 624 features in 8 classes: 624 + 624 * 623 / 2 + 624 * 8 + 8 is 200,000 to the entry.
DIMENSION, CLASSES, MAX_IMAGES, CLIENTS = 624, 8, 50_000, (10, 100)
QUICK_DIMENSION, QUICK_CLIENTS = 60, (5,)

# What is promised at the full length, in bytes of an upload for each entry.
ENTRY_BYTES = {BFV: 22, BFV_MASKED: 22, CKKS: 35}

HELP = """Measure the five ways to sum vectors beside each other: plain, pairwise, bfv, bfv masked, ckks.

The vector is that of a real round: the statistics of 624 features in 8 classes, 200,000 entries, with the widths that
at most 50,000 images at 12 bits take. The same vectors go through every way; 5 % of the clients (rounded up) are lost
before they upload, and up to a fifth may be corrupt. Every client does all of its work: what is added is its own.

A client's time is the sum of its steps, in the median over those that stay; the server's and the key authority's is all
that they do. Transport is in none of them. Making keys, and loading a public context (with the known answers that are
asked for), happen once for many rounds and are shown on their own. All seconds are the processor's. Where other work
shares the machine's caches, only ratios within a run mean something.

It takes some seven minutes and needs the package tenseal.
"""


@dataclass(frozen=True)
class Found:
    """One session of a protocol: processor seconds and bytes, a client's in the median over those that stayed.

    `answers` is how many a client owes. `largest_error` is how far from an integer the authority found one, which it
    tells nobody outside of a benchmark.
    """

    protocol: str
    clients: int
    dropouts: int
    widths: dict[str, int]
    client_seconds: float
    client_phases: dict[str, float]
    server_seconds: float
    sent_bytes: int
    got_bytes: int
    upload_bytes: int
    entry_bytes: float
    answers: int
    error: int
    authority_seconds: float = 0.0
    authority_got_bytes: int = 0
    authority_sent_bytes: int = 0
    largest_error: float = 0.0
    error_bound: float = 0.0


@dataclass(frozen=True)
class Keys:
    """A protocol's keys, and what making and loading them took: processor seconds, bytes of the public context."""

    secrets: SecretKeys
    make_seconds: float
    load_seconds: float
    context_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON; the secret keys stay out."""
        return {name: value for name, value in vars(self).items() if name != "secrets"}


class Stopwatch:
    """Adds up processor time under names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        start = clock()
        yield
        self.seconds[name] += clock() - start

    @property
    def total(self) -> float:
        """Everything."""
        return sum(self.seconds.values())


AUTHORITY = SigningKey(bytes(32))


def make_keys(protocol: str) -> Keys:
    """Keys of a protocol, and what a client or an authority does once in a process before it uses them."""
    watch = Stopwatch()
    load_seal(DEFAULTS[SCHEMES[protocol]])  # TenSEAL itself is imported here
    with watch.on("make"):
        secrets = generate(protocol, AUTHORITY)
    published = encode(secrets.context)
    load_seal.cache_clear()
    with watch.on("load"):
        context = read_public_context(published)
        load_seal(context.parameters)
    return Keys(secrets, watch.seconds["make"], watch.seconds["load"], len(published))


def seat(clients: int, dimension: int, protocol: str, keys: Keys | None) -> Cast:
    """People for a statistics session of a protocol; everything else is the same for all of them."""
    people, classes = cast(clients, clients // 5, 0, length=1), tuple(f"class {number}" for number in range(CLASSES))
    shape: dict[str, Any] = {"classes": classes, "max_images": MAX_IMAGES}
    task = msgspec.structs.replace(people.params.task, feature_dimension=dimension, **shape)
    pinned = b"" if keys is None else public_context_hash(keys.secrets.context)
    modulus = 0 if keys is None or protocol != BFV_MASKED else keys.secrets.context.parameters.plain_moduli[0]
    params = msgspec.structs.replace(
        people.params,
        protocol=protocol,
        modulus=modulus,
        public_context=pinned,
        segments=session_segments(task, STATISTICS_SESSION, clients, protocol, modulus),
        task=task,
    )
    policy = dataclasses.replace(people.policy, protocols=frozenset({protocol}), public_context=pinned, **shape)
    return dataclasses.replace(people, params=params, policy=policy)


def draw(params: SessionParams, number: int) -> U64:
    """A client's vector, uint64 (length,): uniform integers of which all clients' sum keeps to the least widths.

    It is the same for every protocol.
    """
    random = np.random.default_rng(number)

    def entries(segment: Segment) -> Any:
        most = (1 << 8 * segment.width - int(segment.signed)) // params.clients
        return random.integers(-most + 1 if segment.signed else 0, most, segment.length)

    narrow = session_segments(params.task, STATISTICS_SESSION, params.clients, BFV)
    return np.concatenate([entries(segment) for segment in narrow]).view(np.uint64)


Work = Callable[[str, bytes], bytes]


class Party:
    """Someone who answers requests, with a clock and the bytes that it sent and got by phase."""

    def __init__(self, work: Work) -> None:
        self._work, self.watch = work, Stopwatch()
        self.sent: dict[str, int] = {}
        self.got: dict[str, int] = {}

    def answer(self, phase: str, request: bytes) -> bytes:
        """Answer a request; empty if the phase only informs."""
        with self.watch.on(phase):
            answer = self._work(phase, request)
        self.sent[phase], self.got[phase] = len(answer), len(request)
        return answer


def client_work(participant: Participant, vector: U64) -> Work:
    """All that a client does, from the first request on."""
    client: SumClient | None = None

    def work(phase: str, request: bytes) -> bytes:
        nonlocal client
        if client is None:
            client, _ = open_client(request, participant)
        if phase != UPLOAD:
            return client.answer(phase, request)
        client.begin_upload(request, None)
        return client.upload(vector)

    return work


def authority_work(authority: KeyAuthority) -> Work:
    """All that a key authority does."""
    return lambda phase, request: authority.open_total(request)


def measure(
    protocol: str, clients: int, dimension: int, keys: Keys | None, arrived: Callable[[], None] = lambda: None
) -> Found:
    """Run one session; `arrived` is called whenever a party has taken a step."""
    people = seat(clients, dimension, protocol, keys)
    params, members, context = people.params, people.policy.members, None if keys is None else keys.secrets.context
    vectors = {key.identity: draw(params, number) for number, key in enumerate(people.keys)}
    parties: dict[bytes, Party] = {}
    for number, key in enumerate(people.keys):
        me = Participant(key, b"", people.policy, people.entropy(number), context)
        parties[key.identity] = Party(client_work(me, vectors[key.identity]))
    authority = None
    if keys is not None:
        policy = AuthorityPolicy(members, frozenset({params.server}), params.corrupt, params.min_survivors)
        authority = KeyAuthority(AUTHORITY, keys.secrets, policy)
        parties[AUTHORITY.identity] = Party(authority_work(authority))
    gone, late = frozenset(people.identities[: dropouts(clients)]), False
    serving = Stopwatch()
    with serving.on("start"):
        server = open_server(params, members, people.identities, SigningKey(people.host_seed), context)
    for phase in PHASES[protocol]:
        late = late or phase == UPLOAD
        with serving.on(phase):
            requests = server.request(phase, Context(server.session, b"", b"", (), b"") if phase == UPLOAD else None)
        for identity in requests:
            if late and identity in gone:
                continue
            with serving.on(phase):
                request = requests[identity]  # some are made when they are looked up
            answer = parties[identity].answer(phase, request)
            if answer:
                with serving.on(phase):
                    server.receive(identity, answer)
            arrived()
    with serving.on("finish"):
        total = server.finish().total
    staying = [identity for identity in people.identities if identity not in gone]
    expected = sum((vectors[identity] for identity in staying), np.zeros(params.length, np.uint64))
    found = summary(params, serving, [parties[identity] for identity in staying], distance(params, expected, total))
    if authority is None:
        return found
    opener = parties[AUTHORITY.identity]
    return dataclasses.replace(
        found,
        authority_seconds=opener.watch.total,
        authority_got_bytes=opener.got[OPEN],
        authority_sent_bytes=opener.sent[OPEN],
        largest_error=authority.largest_error[server.session],
        error_bound=session_error_bound(params, authority.public_context.parameters),
    )


def summary(params: SessionParams, serving: Stopwatch, staying: list[Party], error: int) -> Found:
    """What a finished session took of its clients and its server."""
    phases = [phase for phase in PHASES[params.protocol] if phase != OPEN]
    upload = median(party.sent[UPLOAD] for party in staying)
    return Found(
        protocol=params.protocol,
        clients=params.clients,
        dropouts=params.clients - len(staying),
        widths={segment.name: segment.width for segment in params.segments},
        client_seconds=median(party.watch.total for party in staying),
        client_phases={phase: median(party.watch.seconds[phase] for party in staying) for phase in phases},
        server_seconds=serving.total,
        sent_bytes=int(median(sum(party.sent.values()) for party in staying)),
        got_bytes=int(median(sum(party.got.values()) for party in staying)),
        upload_bytes=int(upload),
        entry_bytes=upload / params.length,
        answers=sum(phase not in SILENT for phase in phases),
        error=error,
    )


def distance(params: SessionParams, expected: U64, total: U64) -> int:
    """The largest difference of two entries."""
    wanted, found = unpack(params.segments, expected), unpack(params.segments, total)
    return max(int(np.abs(entries - found[name]).max()) for name, entries in wanted.items())


def judge(found: list[Found], keys: dict[str, Keys], *, full: bool) -> list[Measure]:
    """What was promised."""
    measures = []
    for one in found:
        name = f"{NAMES[one.protocol]}, {one.clients} clients"
        measures.append(Measure(f"{name}: error of the sum", one.error, 0))
        if one.protocol == CKKS:
            measures.append(Measure(f"{name}: error bound", one.error_bound, 0.5))
            measures.append(Measure(f"{name}: largest error over its bound", one.largest_error / one.error_bound, 1))
        if full and one.protocol in ENTRY_BYTES:
            measures.append(Measure(f"{name}: upload, bytes an entry", one.entry_bytes, ENTRY_BYTES[one.protocol]))
    for protocol, one_key in keys.items():
        p = one_key.secrets.context.parameters
        what = f"{NAMES[protocol]}: bits of all moduli, 128-bit security at N = {p.degree}"
        measures.append(Measure(what, p.modulus_bits, SECURE_BITS[p.degree]))
    return measures


def print_found(screen: Console, length: int, found: list[Found]) -> None:
    """All protocols, line under line."""
    table = Table(title=f"{length:,} entries; 5 % of the clients are lost before they upload")
    seconds, sizes = ("client\ns", "server\ns", "authority\ns"), ("sent\nbytes", "got\nbytes", "bytes an\nentry")
    for name in ("clients", "protocol", *seconds, *sizes, "authority\nbytes", "answers", "error"):
        table.add_column(name, justify="left" if name == "protocol" else "right")
    for place, one in enumerate(found):
        spent = (one.client_seconds, one.server_seconds, one.authority_seconds)
        table.add_row(
            str(one.clients),
            NAMES[one.protocol],
            *(f"{value:.3f}" for value in spent),
            f"{one.sent_bytes:,}",
            f"{one.got_bytes:,}",
            f"{one.entry_bytes:.2f}",
            f"{one.authority_got_bytes + one.authority_sent_bytes:,}",
            str(one.answers),
            str(one.error),
            end_section=place % len(NAMES) == len(NAMES) - 1,
        )
    screen.print(table)


def print_keys(screen: Console, found: list[Found], keys: dict[str, Keys]) -> None:
    """What happens once for many rounds, and how close CKKS came to its bound."""
    for protocol, one in keys.items():
        screen.print(
            f"{NAMES[protocol]}, once for many rounds: {one.make_seconds:.3f} s to make keys, "
            f"{one.load_seconds:.3f} s to load the {one.context_bytes:,} bytes of the public context"
        )
    for session in found:
        if session.protocol == CKKS:
            screen.print(
                f"ckks, {session.clients} clients: the largest error before rounding was {session.largest_error:.2g}, "
                f"and its bound is {session.error_bound:.2g}"
            )


def main(
    quick: Annotated[bool, typer.Option("--quick", help="5 clients, 60 features: seconds, to see it work.")] = False,
    clients: Annotated[
        list[int] | None, typer.Option(min=4, max=256, help="Clients; may be given again. Default: 10, 100.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers here.")] = None,
) -> None:
    """Run it; the text for people is in HELP."""
    screen = console()
    sizes = tuple(clients or (QUICK_CLIENTS if quick else CLIENTS))
    dimension = QUICK_DIMENSION if quick else DIMENSION
    where = environment()
    try:
        keys = {protocol: make_keys(protocol) for protocol in ENCRYPTED}
    except InputError as error:
        typer.echo(f"benchmarks.protocols: {error}", err=True)
        raise typer.Exit(2) from None
    found: list[Found] = []
    with progress_bar(screen) as bar:
        for count in sizes:
            for protocol, name in NAMES.items():
                phases = [phase for phase in PHASES[protocol] if phase != OPEN]
                steps = len(phases) * count - dropouts(count) * (len(phases) - phases.index(UPLOAD))
                task = bar.add_task(f"{count} clients, {name}", total=steps + int(protocol in ENCRYPTED))
                mine = keys.get(protocol)
                found.append(measure(protocol, count, dimension, mine, partial(bar.advance, task)))
    measures = judge(found, keys, full=not quick)
    length = seat(sizes[0], dimension, PLAIN, None).params.length
    print_found(screen, length, found)
    print_keys(screen, found, keys)
    print_measures(screen, measures)
    if json_file is not None:
        shape = {"length": length, "features": dimension, "classes": CLASSES, "max_images": MAX_IMAGES}
        result: dict[str, Any] = {"environment": where | {"tenseal": version("tenseal")}, **shape}
        result["keys"] = {protocol: one.as_dict() for protocol, one in keys.items()}
        result["runs"] = [asdict(one) for one in found]
        write_json(json_file, result | {"measures": [measure.as_dict() for measure in measures]})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
