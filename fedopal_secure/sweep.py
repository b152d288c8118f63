"""Grids of runs: every combination of some fields' values is simulated once, and kept so that it is not run again."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fedopal_secure.core.errors import InputError, ProtocolError
from fedopal_secure.federation.config import SimulationConfig, load_toml, parse_config
from fedopal_secure.runtimes.result import Result, own_version

if TYPE_CHECKING:
    from fedopal_secure.data.datasets import Dataset
    from fedopal_secure.vision.backbone import Backbone
    from fedopal_secure.vision.feature_cache import FeatureCache

# What the images depend on; cells that share it run one after another.
_DATA: Final = ("dataset", "seed", "skip_unreadable", "train_limit", "backbone", "image_size", "device", "compile")


@dataclass(frozen=True)
class Cell:
    """One point of the grid: its values by dotted field name, the whole configuration, and that one's SHA-256 in hex.

    Points that come out as the same configuration have the same key, and are one run.
    """

    values: dict[str, Any]
    config: SimulationConfig
    key: str

    @property
    def label(self) -> str:
        """Its values in words."""
        return words(self.values)


class Measured(msgspec.Struct, frozen=True):
    """What became of a run: a result, or why there is none, in one line.

    `aborted` says that the protocol ended it, which it would again; other errors are worth another try. `majority` is
    the share of the largest class among the test images.
    """

    result: Result | None
    majority: float
    error: str = ""
    aborted: bool = False


class Record(msgspec.Struct, frozen=True):
    """The file of a run: what ran, by which version of this package, what came out, and in how many seconds."""

    version: str
    config: dict[str, Any]
    measured: Measured
    seconds: float


Run = Callable[[SimulationConfig], Measured]
# the cell that has just run, and about how many seconds the rest will take
Report = Callable[[Cell, float], None]


def load_grid(path: Path) -> tuple[Cell, ...]:
    """Every cell of a file with [base], a simulation's configuration, and [grid], lists of values by dotted field name.

    A field in [grid] replaces the one in [base]; the last field varies fastest. Raises InputError, in one line that
    names the field, for anything that is no grid or makes a cell that is no configuration.
    """
    values = load_toml(path)
    for name in values:
        if name not in ("base", "grid"):
            raise InputError(f"{path}: '{name}' is neither [base] nor [grid]: put the configuration under [base]")
    base, grid = values.get("base", {}), values.get("grid", {})
    if not isinstance(base, dict) or not isinstance(grid, dict):
        raise InputError(f"{path}: [base] and [grid] are tables")
    axes = _axes(grid, path)
    cells = []
    for point in itertools.product(*axes.values()):
        chosen = dict(zip(axes, point, strict=True))
        settings = base
        for name, value in chosen.items():
            settings = _replaced(settings, name, value, path)
        config = parse_config(SimulationConfig, settings, f"{path}, with {words(chosen)}")
        cells.append(Cell(chosen, config, _key(config)))
    return tuple(cells)


def _axes(grid: dict[str, Any], path: Path) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}

    def collect(table: dict[str, Any], prefix: str) -> None:
        for key, values in table.items():
            name = f"{prefix}{key}"
            if isinstance(values, dict):  # a dotted name without quotes is a table in TOML
                collect(values, f"{name}.")
            elif not isinstance(values, list):
                raise InputError(f"{path}: '{name}' in [grid] is one value: write a list, or put it into [base]")
            elif not values:
                raise InputError(f"{path}: '{name}' in [grid] is an empty list: give the values to run")
            elif any(value in values[:place] for place, value in enumerate(values)):
                raise InputError(f"{path}: '{name}' in [grid] has a value twice: give each once")
            elif name in axes:
                raise InputError(f"{path}: '{name}' stands in [grid] twice: give it once")
            else:
                axes[name] = values

    collect(grid, "")
    if not axes:
        raise InputError(f"{path} has nothing in [grid]: give lists of values, such as seed = [0, 1, 2]")
    for name in axes:
        for other in axes:
            if other.startswith(f"{name}."):
                raise InputError(f"{path}: '{name}' in [grid] replaces the whole of what '{other}' is in: give one")
    return axes


def _replaced(settings: dict[str, Any], name: str, value: Any, path: Path) -> dict[str, Any]:
    """The settings with one field, by its dotted name, set to a value."""
    head, _, rest = name.partition(".")
    if not rest:
        return settings | {head: value}
    section = settings.get(head, {})
    if not isinstance(section, dict):
        raise InputError(f"{path}: '{head}' is not a table in [base], so [grid] cannot set a field in it")
    return settings | {head: _replaced(section, rest, value, path)}


def _key(config: SimulationConfig) -> str:
    stamped = {"version": own_version(), "config": _resolved(config)}
    return hashlib.sha256(json.dumps(stamped, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _resolved(config: SimulationConfig) -> dict[str, Any]:
    """The configuration as JSON, with every default written out that needs no images to be computed."""
    computed = {"corrupt": config.corrupt_clients, "min_survivors": config.cohort, "degree": config.graph_degree}
    resolved: dict[str, Any] = plain(config.model_copy(update=computed).model_dump(mode="json"))
    return resolved


def plain(value: Any) -> Any:
    """A value with infinities as text, which JSON has no numbers for; a configuration reads them back."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def words(values: Mapping[str, Any]) -> str:
    """Fields and their values, for people."""
    return ", ".join(f"{name} = {format_value(value)}" for name, value in values.items())


def format_value(value: Any) -> str:
    """A field's value in tables and labels."""
    return f"{value:g}" if isinstance(value, float) else str(value)


class Store:
    """The folder of a sweep: `cells/` has a file per run, under the first 16 digits of its key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, cell: Cell) -> Record | None:
        """The record of a cell; None if it has not run, or if its file is unreadable or another configuration's."""
        try:
            record = msgspec.json.decode(self._path(cell).read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        same = record.version == own_version() and record.config == _resolved(cell.config)
        return record if same and (record.measured.result is not None or record.measured.aborted) else None

    def put(self, cell: Cell, record: Record) -> None:
        """Keep a record."""
        text = msgspec.json.format(msgspec.json.encode(record), indent=1).decode()
        self.write(f"cells/{self._path(cell).name}", text)

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder: whole, or not at all."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)

    def _path(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{cell.key[:16]}.json"


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """One cell for each run, those on the same images side by side."""
    groups: dict[tuple[Any, ...], dict[str, Cell]] = {}
    for cell in cells:
        groups.setdefault(_data_key(cell.config), {}).setdefault(cell.key, cell)
    return [cell for group in groups.values() for cell in group.values()]


def _data_key(config: SimulationConfig) -> tuple[Any, ...]:
    return tuple(getattr(config, name) for name in _DATA)


class Runner:
    """Runs simulations one after another, and keeps what the next one is likely to need again.

    In memory are the backbone and the images of the last simulation only; features are in a folder.
    """

    def __init__(self, features: Path) -> None:
        self._folder = features
        self._loaded: tuple[Any, ...] | None = None
        self._backbone: Backbone
        self._dataset: Dataset
        self._features: FeatureCache

    def __call__(self, config: SimulationConfig) -> Measured:
        """Run one simulation. Raises InputError if its backbone or its images cannot be loaded."""
        # Here, because a wrong or a finished grid needs no torch.
        import numpy as np

        from fedopal_secure.runtimes.simulation import Simulation
        from fedopal_secure.vision.features import extract_features

        self._load(config)
        labels = self._dataset.test.labels
        majority = float(np.bincount(labels).max() / len(labels))
        # Features under prompts that were just tuned will not be wanted again.
        extract = self._features if config.prompts.mode in ("none", "public") else extract_features
        try:
            simulation = Simulation(config, backbone=self._backbone, dataset=self._dataset, extract=extract)
        except InputError as error:
            return Measured(None, majority, str(error))
        try:
            return Measured(simulation.run().result, majority)
        except (InputError, ProtocolError) as error:
            return Measured(None, majority, simulation.with_names(str(error)), isinstance(error, ProtocolError))

    def _load(self, config: SimulationConfig) -> None:
        from fedopal_secure.runtimes.setup import load_images, load_network
        from fedopal_secure.vision.feature_cache import FeatureCache

        wanted = _data_key(config)
        if wanted == self._loaded:
            return
        self._loaded = None
        self._backbone = load_network(config)
        self._dataset, self._features = load_images(config, self._backbone), FeatureCache(self._folder)
        self._loaded = wanted


def run_missing(cells: Sequence[Cell], store: Store, run: Run, report: Report) -> list[tuple[Cell, str]]:
    """Run every cell that the store has no record of, once each; returns those that failed for want of good input.

    A run that the protocol aborted is kept with its error, as it would abort again; one that failed otherwise is not,
    so that it runs again once its cause is mended. Raises what `run` raises.
    """
    todo = [cell for cell in distinct(cells) if store.get(cell) is None]
    refused, seconds = [], []
    for left, cell in zip(reversed(range(len(todo))), todo, strict=True):
        start = time.perf_counter()
        measured = run(cell.config)
        seconds.append(time.perf_counter() - start)
        if measured.result is None and not measured.aborted:
            refused.append((cell, measured.error))
        else:
            store.put(cell, Record(own_version(), _resolved(cell.config), measured, seconds[-1]))
        # The median, because the first run on new images takes their features for all others.
        report(cell, statistics.median(seconds) * left)
    return refused


def seconds_left(cells: Sequence[Cell], store: Store) -> float | None:
    """About how long the missing runs will take, by those that are there; None if none is."""
    records = [store.get(cell) for cell in distinct(cells)]
    known = [record.seconds for record in records if record is not None]
    return statistics.median(known) * (len(records) - len(known)) if known else None
