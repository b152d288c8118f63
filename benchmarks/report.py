"""How the benchmarks say what they found: measures against their targets, a table, a JSON file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cryptography
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


@dataclass(frozen=True)
class Measure:
    """One number and what was promised of it; `target` is a bound, from below or from above."""

    what: str
    value: float
    target: float
    at_least: bool = False
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the promise holds."""
        return self.value >= self.target if self.at_least else self.value <= self.target

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        relation = ">=" if self.at_least else "<="
        return {
            "what": self.what,
            "value": self.value,
            "target": f"{relation} {self.target:g}",
            "unit": self.unit,
            "met": self.met,
        }


def console() -> Console:
    """Standard output, wide enough for the tables where it goes to a file."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=120)


def print_measures(screen: Console, measures: Sequence[Measure]) -> None:
    """One line for each measure, and MISSED where it is not what was promised."""
    table = Table(title="Against the targets")
    for name in ("measure", "measured", "target", ""):
        table.add_column(name, justify="left" if name in ("measure", "") else "right")
    for measure in measures:
        verdict = "[green]met[/]" if measure.met else "[bold red]MISSED[/]"
        relation = "≥" if measure.at_least else "≤"
        unit = f" {measure.unit}" if measure.unit else ""
        table.add_row(measure.what, f"{measure.value:.4g}{unit}", f"{relation} {measure.target:g}{unit}", verdict)
    screen.print(table)


def progress_bar(screen: Console) -> Progress:
    """A bar for long work; it redraws seldom, since drawing takes time from what is measured."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=screen, refresh_per_second=1)


def environment() -> dict[str, Any]:
    """What the numbers depend on; the load is that of other programs too."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cryptography": cryptography.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_at_start": load,
    }


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write what was found."""
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
