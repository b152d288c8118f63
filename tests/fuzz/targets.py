"""What is fuzzed: every function that reads bytes which somebody else wrote, and real inputs of each to start from.

A target takes bytes. It returns if they are what they should be, after checking what must then hold, and raises a
FedopalError if they are not. Anything else that comes out of it is a finding.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedopal_secure.core import messages
from fedopal_secure.core.census import Opening
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import InputError, MisuseError, PolicyRefusal, ServerFault
from fedopal_secure.core.params import CENSUS, SessionParams, Task
from fedopal_secure.core.policy import check_proposal
from fedopal_secure.core.ring import from_wire, to_wire
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.federation.config import (
    PolicyConfig,
    SimulationConfig,
    TuningSettings,
    dump_toml,
    load_toml,
    parse_config,
)
from fedopal_secure.federation.keys import load_key
from fedopal_secure.federation.plain_sum import PlainUpload
from fedopal_secure.federation.rules import parse_tuning
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.transcript import Transcript, read_transcript
from fedopal_secure.federation.vectors import PromptTotal, session_names, session_segments
from fedopal_secure.model import Model
from fedopal_secure.solver.ridge import RidgeHead
from tests.core.harness import TASK, make, run, seed, segments

EXAMPLES = Path(__file__).parents[2] / "examples"
PARTS = segments((3, 2), (1, 8))
PROMPTED = msgspec.structs.replace(
    TASK,
    prompt_mode="two-phase",
    prompt_tokens=2,
    prompt_dimension=3,
    prompt_source=bytes(32),
    tuning=TuningSettings().model_dump_json(),
)
# RFC 8032 section 7.1, test 1, as PKCS #8.
KEY = b"""-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpe3GWmXAyGuw6f65g
-----END PRIVATE KEY-----
"""


@dataclass(frozen=True)
class Target:
    """One reader: what it is given, and what it must make of it. `packed` if the bytes are MessagePack."""

    read: Callable[[bytes], None]
    seeds: Callable[[], tuple[bytes, ...]]
    packed: bool = False


@cache
def session() -> dict[str, tuple[bytes, ...]]:
    """The messages of an honest session in which one client uploads too late, and of a census, by kind."""
    federation = make(4, parts=PARTS)
    result = run(federation, late=[federation.ids[3]])
    kinds = {
        "proposal": ("advertise", False),
        "advert": ("advertise", True),
        "roster": ("share", False),
        "shares": ("share", True),
        "relay": ("hold", False),
        "context": ("upload", False),
        "upload": ("upload", True),
        "view": ("attest", False),
        "attestation": ("attest", True),
        "revealrequest": ("reveal", False),
        "reveal": ("reveal", True),
    }
    found = {name: tuple(result.sent(step, up=up).values())[:2] for name, (step, up) in kinds.items()}
    task = msgspec.structs.replace(TASK, min_contributors=1)
    counted = make(4, parts=segments((2, 1), signed=False), min_contributors=1).child(b"", name=CENSUS, task=task)
    census = run(counted, late=[counted.ids[3]])
    if census.sum is None:
        raise RuntimeError("the census failed")
    total = np.arange(6, dtype="<i8").tobytes()
    return found | {
        "opening": (encode(census.sum.opening),),
        "sessionparams": (encode(federation.params), encode(counted.params)),
        "task": (encode(TASK), encode(PROMPTED)),
        "sharemessage": tuple(encode(decode(messages.Shares, data, ServerFault).message) for data in found["shares"]),
        "prompttotal": (encode(PromptTotal(3, total)),),
        "plainupload": (encode(PlainUpload(bytes(32), bytes(32), bytes(32), bytes(14))),),
    }


KINDS: tuple[type[Any], ...] = (
    messages.Proposal,
    messages.Advert,
    messages.Roster,
    messages.ShareMessage,
    messages.Shares,
    messages.Relay,
    messages.Context,
    messages.Upload,
    messages.View,
    messages.Attestation,
    messages.RevealRequest,
    messages.Reveal,
    SessionParams,
    Task,
    Opening,
    PromptTotal,
    PlainUpload,
)


def canonical(kind: type[Any]) -> Callable[[bytes], None]:
    """Decode; what decodes has these very bytes."""

    def read(data: bytes) -> None:
        value = decode(kind, data, ServerFault)
        if encode(value) != data:
            raise AssertionError(f"{kind.__name__} has two encodings")

    return read


def propose(data: bytes) -> None:
    """Everything that a client computes from parameters before it answers."""
    params, policy = decode(SessionParams, data, ServerFault), make(4).policy
    session_names(params.task.prompt_mode, params.task.min_contributors)
    check_proposal(policy, params)
    session_segments(params.task, params.name, params.clients)


def mean(data: bytes) -> None:
    """The mean prompt that a context carries."""
    found = decode(PromptTotal, data, ServerFault).mean(PROMPTED)
    if found.shape != (2, 3) or not np.isfinite(found).all() or np.abs(found).max() > PROMPTED.prompt_bound:
        raise AssertionError("a mean prompt beyond the bound of every client's")


def payload(data: bytes) -> None:
    """A vector in wire form; the callers check its length first."""
    if len(data) != sum(part.length * part.width for part in PARTS):
        raise ServerFault("wrong length")
    if to_wire(from_wire(data, PARTS), PARTS) != data:
        raise AssertionError("a vector in wire form is read as another")


def tuning(data: bytes) -> None:
    """The tuning settings in a task."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise PolicyRefusal("tuning", "no text, which the codec refuses") from None
    parse_tuning(msgspec.structs.replace(PROMPTED, tuning=text))


def on_disk(read: Callable[[Path], None], name: str) -> Callable[[bytes], None]:
    """A reader of a file, as one of bytes."""

    def read_bytes(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            read(path)

    return read_bytes


def configuration(kind: type[Any]) -> Callable[[Path], None]:
    """A configuration file; an error is one line, and what is accepted can be written out and read again."""

    def read(path: Path) -> None:
        try:
            config = parse_config(kind, load_toml(path), "the file")
        except InputError as error:
            if "\n" in str(error):
                raise AssertionError("an error of two lines") from None
            raise
        path.write_text(dump_toml(config), encoding="utf-8")
        if parse_config(kind, load_toml(path), "the file") != config:
            raise AssertionError("a configuration that is not what it was once it is written out")

    return read


def journal(path: Path) -> None:
    """What a client that is restarted does with its journal: after it opened it must still refuse a repetition."""
    opened = Journal(path)
    try:
        opened.answer(b"n" * 32, "reveal")
        opened.give(b"data", b"chain", "statistics", b"session", 1)
        repeats: tuple[Callable[[], None], ...] = (
            lambda: opened.answer(b"n" * 32, "reveal"),
            lambda: opened.give(b"data", b"chain", "statistics", b"other", 1),
            lambda: opened.give(b"data", b"other chain", "statistics", b"other", 1),
        )
        for again in repeats:
            try:
                again()
            except (MisuseError, PolicyRefusal):
                continue
            raise AssertionError("the journal lets a client speak twice")
    finally:
        opened.close()


def transcript(data: bytes) -> None:
    """The chain of a transcript whose messages are in place; what is read is text and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "messages").mkdir()
        for number in range(3):
            (path / "messages" / f"{number:05d}.bin").write_bytes(BODIES[number])
        (path / "chain.jsonl").write_bytes(data)
        for entry in read_transcript(path):
            if not all(isinstance(text, str) for text in (entry.session, entry.phase, entry.sender)):
                raise AssertionError("an entry whose fields are no text")


BODIES = (b"", b"a message", bytes(range(256)))


def model(path: Path) -> None:
    """A released model: what loads can be used, and saves as what it was."""
    loaded = Model.load(path)
    if loaded.head.weights.dtype != np.float64 or loaded.head.intercept.dtype != np.float64:
        raise AssertionError("a head of another type than it was saved in")
    loaded.head.scores(np.zeros((1, loaded.grid.dimension)))
    loaded.save(path)
    again = Model.load(path)
    if (again.classes, again.grid, again.transcript) != (loaded.classes, loaded.grid, loaded.transcript):
        raise AssertionError("a model that is not what it was once it is saved")


def _file(write: Callable[[Path], None], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return path.read_bytes()


def _journal() -> tuple[bytes, ...]:
    def write(path: Path) -> None:
        opened = Journal(path)
        opened.answer(seed("session"), "reveal")
        opened.give(seed("data"), seed("chain"), "statistics", seed("session"), 1)
        opened.close()

    return (b"", _file(write, "journal.db"))


def _transcript() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder:
        written = Transcript(Path(folder) / "run")
        for sender, body in zip(("server", "ab" * 32, "cd" * 32), BODIES, strict=True):
            written.record(seed("session"), "advertise", sender, body)
        return ((Path(folder) / "run" / "chain.jsonl").read_bytes(),)


def _model() -> tuple[bytes, ...]:
    weights = np.arange(8, dtype=np.float64).reshape(4, 2)
    head = RidgeHead(weights, np.zeros(2), 1.0, "gcv")
    made = Model(
        head,
        np.ones((1, 3), np.float32),
        ("a", "b"),
        "embedded",
        bytes(32),
        "grey",
        FeatureGrid(4),
        transcript="ab" * 32,
    )
    return (_file(made.save, "model.safetensors"),)


def _vector() -> tuple[bytes, ...]:
    return (bytes(range(14)), bytes(14))


def _examples(*names: str) -> Callable[[], tuple[bytes, ...]]:
    return lambda: tuple((EXAMPLES / name).read_bytes() for name in names)


def _tuning() -> tuple[bytes, ...]:
    return (PROMPTED.tuning.encode(), json.dumps({"epochs": 1}).encode())


def _of(name: str) -> Callable[[], tuple[bytes, ...]]:
    return lambda: session()[name]


TARGETS: dict[str, Target] = {
    kind.__name__.lower(): Target(canonical(kind), _of(kind.__name__.lower()), True) for kind in KINDS
} | {
    "propose": Target(propose, _of("sessionparams"), True),
    "mean": Target(mean, _of("prompttotal"), True),
    "payload": Target(payload, _vector),
    "tuning": Target(tuning, _tuning),
    "simulation": Target(on_disk(configuration(SimulationConfig), "simulate.toml"), _examples("simulate.toml")),
    "policy": Target(on_disk(configuration(PolicyConfig), "policy.toml"), _examples("policy.toml")),
    "journal": Target(on_disk(journal, "journal.db"), _journal),
    "transcript": Target(transcript, _transcript),
    "model": Target(on_disk(model, "model.safetensors"), _model),
    "key": Target(on_disk(lambda path: (load_key(path), None)[1], "client.key"), lambda: (KEY,)),
}
