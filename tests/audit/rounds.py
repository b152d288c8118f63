"""Rounds whose transcripts are checked, and how somebody would change one: entry by entry, in a chain that holds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fedopal_secure.audit.verify import Verification, verify
from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.federation.config import PolicyConfig, SimulationConfig, load_toml, parse_config
from fedopal_secure.federation.release import RELEASE, Release
from fedopal_secure.federation.transcript import Entry, Transcript, read_transcript
from fedopal_secure.model import Model
from fedopal_secure.runtimes.simulation import Simulation

Entries = list[Entry]


@dataclass(frozen=True)
class Round:
    """A round that was run, and the folder that it left."""

    simulation: Simulation
    folder: Path

    @property
    def trust(self) -> PolicyConfig:
        return parse_config(PolicyConfig, load_toml(self.folder / "trust.toml"), "trust.toml")

    def entries(self) -> Entries:
        return list(read_transcript(self.folder / "transcript"))

    def verify(self, **changes: object) -> Verification:
        return verify(self.folder, self.trust.model_copy(update=changes))

    def key_of(self, sender: str) -> SigningKey:
        simulation = self.simulation
        return (
            simulation.server_key
            if sender == "server"
            else simulation.keys[simulation.by_identity[bytes.fromhex(sender)]]
        )


def run_round(folder: Path, **settings: Any) -> Round:
    simulation = Simulation(SimulationConfig.model_validate({"clients": 5, "train_limit": 100} | settings))
    simulation.run(folder)
    return Round(simulation, folder)


def rewritten(played: Round, entries: Entries, folder: Path, key: SigningKey | None) -> Round:
    """The round with other entries, in a chain that holds; with a key, its head and the model are signed again."""
    shutil.copytree(played.folder, folder)
    shutil.rmtree(folder / "transcript")
    transcript = Transcript(folder / "transcript")
    for entry in entries:
        transcript.record(bytes.fromhex(entry.session), entry.phase, entry.sender, entry.body)
    if key is None:
        shutil.copy(played.folder / "transcript" / "head.json", folder / "transcript" / "head.json")
    elif entries[-1].phase == RELEASE:
        signed = model_in(entries[-1], played).signed(key, transcript.head)
        transcript.sign(signed)
        signed.save(folder / "model.safetensors")
    return Round(played.simulation, folder)


def model_in(entry: Entry, played: Round) -> Model:
    """The model of a release, or that of the round where there is none that can be read."""
    try:
        return Model.from_bytes(decode(Release, entry.body, InputError).model, "")
    except InputError:
        return Model.load(played.folder / "model.safetensors")


def mutations(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each field of a message in turn with another value, and what is in structures and lists in it likewise."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            for where, other in mutations(getattr(value, name), f"{path}.{name}" if path else name):
                yield where, msgspec.structs.replace(value, **{name: other})
    elif isinstance(value, bool):
        yield path, not value
    elif isinstance(value, int):
        yield path, value + 1
    elif isinstance(value, float):
        yield path, value * 2 + 1
    elif isinstance(value, str):
        yield path, value + "x"
    elif isinstance(value, bytes):
        yield path, bytes([value[0] ^ 1]) + value[1:] if value else bytes(32)
    elif isinstance(value, tuple) and value:
        yield f"{path} shorter", value[:-1]
        if len(value) > 1:
            yield f"{path} swapped", (value[1], value[0], *value[2:])
        for where, other in mutations(value[0], f"{path}[0]"):
            yield where, (other, *value[1:])
    elif isinstance(value, tuple):
        yield path, (bytes(32),)
    else:
        raise AssertionError(f"no way to change {path}")
