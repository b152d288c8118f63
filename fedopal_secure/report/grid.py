"""What a grid of runs found: means and spreads over seeds, as tables and as curves."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from fedopal_secure.runtimes.result import own_version
from fedopal_secure.sweep import Cell, Record, Store, distinct, plain, words

EPSILON: Final = "privacy.epsilon"
MODE: Final = "privacy.mode"
SEED: Final = "seed"


class Group(msgspec.Struct, frozen=True):
    """Cells that differ in their seed only.

    `accuracy` is their mean, `deviation` the sample standard deviation (0 for one cell), both None without a result;
    `claimed_epsilon` is the largest that a cell claims, None if exact sums left.
    """

    values: dict[str, Any]
    cells: int
    failed: int
    accuracy: float | None
    deviation: float | None
    lowest: float | None
    highest: float | None
    claimed_epsilon: float | None
    majority: float | None


class Summary(msgspec.Struct, frozen=True):
    """The whole of `summary.json`. `runs` counts configurations that differ, `failures` are (cell, error) in words."""

    version: str
    cells: int
    runs: int
    failed_runs: int
    fields: list[str]
    groups: list[Group]
    failures: list[tuple[str, str]]

    def to_json(self) -> str:
        """The file's text; infinities are the text "inf"."""
        return json.dumps(plain(msgspec.to_builtins(self)), indent=2)


def summarise(cells: Sequence[Cell], store: Store, refused: Sequence[tuple[Cell, str]] = ()) -> Summary:
    """Mean and spread over seeds, and what failed; `refused` is what `run_missing` returned."""
    records = {cell.key: store.get(cell) for cell in cells}
    failures = {cell.key: (cell.label, error) for cell, error in refused}
    for cell in distinct(cells):
        record = records[cell.key]
        if record is not None and record.measured.result is None:
            failures[cell.key] = (cell.label, record.measured.error)
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(json.dumps(plain(_without(cell.values, SEED))), []).append(cell)
    return Summary(
        version=own_version(),
        cells=len(cells),
        runs=len(records),
        failed_runs=len(failures),
        fields=list(cells[0].values),
        groups=[_group(group, [records[cell.key] for cell in group]) for group in groups.values()],
        failures=list(failures.values()),
    )


def _group(cells: Sequence[Cell], records: Sequence[Record | None]) -> Group:
    found = [record.measured for record in records if record is not None]
    results = [measured.result for measured in found if measured.result is not None]
    accuracies = [result.accuracy for result in results]
    claims = [result.privacy.epsilon for result in results if result.privacy is not None]
    return Group(
        values=_without(cells[0].values, SEED),
        cells=len(cells),
        failed=len(cells) - len(results),
        accuracy=statistics.mean(accuracies) if accuracies else None,
        deviation=(statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0) if accuracies else None,
        lowest=min(accuracies, default=None),
        highest=max(accuracies, default=None),
        claimed_epsilon=max(claims, default=None),
        majority=statistics.mean(measured.majority for measured in found) if found else None,
    )


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def csv_table(cells: Sequence[Cell], store: Store) -> str:
    """`cells.csv`: a row per cell, its values, what was measured and claimed, or the error."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    measured = ("accuracy", "claimed_epsilon", "rho", "realised", "rule", "lambda", "error")
    rows.writerow(("cell", *cells[0].values, *measured))
    for cell in cells:
        record = store.get(cell)
        result = None if record is None else record.measured.result
        row: tuple[Any, ...]
        if result is None:
            row = (*[""] * 6, "not run" if record is None else record.measured.error)
        else:
            claim = result.privacy
            private = ("inf", "", "") if claim is None else (claim.epsilon, claim.rho, claim.realised)
            row = (result.accuracy, *private, result.ridge.rule, result.ridge.value, "")
        rows.writerow((cell.key[:16], *cell.values.values(), *row))
    return text.getvalue()


class Point(NamedTuple):
    """A point of a curve: the epsilon asked for, mean accuracy and standard deviation over seeds, as shares."""

    epsilon: float
    accuracy: float
    deviation: float


def curves(summary: Summary) -> dict[str, list[Point]]:
    """Accuracy by epsilon, for each combination of the other fields except the seed; without epsilon = inf."""
    found: dict[str, list[Point]] = {}
    for group in summary.groups:
        epsilon = float(group.values.get(EPSILON, math.inf))
        if group.accuracy is not None and group.deviation is not None and math.isfinite(epsilon):
            found.setdefault(curve_name(group), []).append(Point(epsilon, group.accuracy, group.deviation))
    return {name: sorted(points) for name, points in found.items()}


def curve_name(group: Group) -> str:
    """What sets a group's curve apart: the privacy mode, and whatever else varies."""
    mode, rest = group.values.get(MODE), words(_without(group.values, EPSILON, MODE))
    return ", ".join(part for part in (mode, rest) if part) or "private"


def references(summary: Summary) -> dict[str, float]:
    """The accuracies that curves are held against: without privacy, where the grid has it, and of the largest class."""
    exact: dict[str, float] = {}
    largest: dict[str, float] = {}
    for group in summary.groups:
        rest = words(_without(group.values, EPSILON, MODE))
        if math.isinf(float(group.values[EPSILON])) and group.accuracy is not None:
            exact[rest] = group.accuracy
        if group.majority is not None:
            largest[rest] = group.majority
    found: dict[str, float] = {}
    for name, lines in (("no privacy", exact), ("always the largest class", largest)):
        if len(set(lines.values())) == 1:
            lines = {"": next(iter(lines.values()))}
        found |= {f"{name}, {rest}" if rest else name: accuracy for rest, accuracy in lines.items()}
    return found


def title(cells: Sequence[Cell]) -> str:
    """What all cells have in common, for the head of a figure or table."""
    config, fields = cells[0].config, cells[0].values
    facts = {
        "dataset": Path(config.dataset).stem,
        "clients": f"{config.clients} clients",
        "alpha": f"Dirichlet alpha = {config.alpha:g}",
        "train_limit": f"{config.train_limit} training images" if config.train_limit else "",
    }
    return ", ".join(fact for field, fact in facts.items() if fact and field not in fields)


def spread(cells: Sequence[Cell]) -> str:
    """What means and deviations of the groups are of."""
    seeds = len({cell.config.seed for cell in cells})
    return f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
