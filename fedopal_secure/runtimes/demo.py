"""The demonstration: the same twelve clients without prompts, with the paper's local prompts, and in two phases."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedopal_secure.core.errors import MisuseError
from fedopal_secure.federation.client import Report
from fedopal_secure.federation.config import PromptMode, PromptSettings, SimulationConfig
from fedopal_secure.runtimes.result import Result
from fedopal_secure.runtimes.simulation import Simulation, work

MODES: Final[dict[PromptMode, str]] = {
    "none": "no prompts (AFL)",
    "local": "local prompts (FedOPAL)",
    "two-phase": "two-phase prompts",
}
EVERYONE: Final = "no prompts, and nobody drops out"
CENTRALISED: Final = "two-phase prompts, pooled data"
DROPS: Final = ("advertise:1", "share:1", "upload:2", "reveal:1")


@dataclass(frozen=True)
class DemoRow:
    """One line of the table; bytes are per client, and None where nothing is uploaded."""

    name: str
    accuracy: float
    upload_bytes: int | None
    plain_float32_bytes: int | None


@dataclass(frozen=True)
class DemoReport:
    """What the demonstration found.

    `dropped` says for each client that disappeared before which phase, in the two-phase run; `difference` is the
    largest over all sums of all runs; `identical` compares the two-phase head with the centralised one.
    """

    rows: tuple[DemoRow, ...]
    clients: int
    dropped: tuple[tuple[str, str], ...]
    difference: int
    identical: bool
    seconds: float


class Demo:
    """Three simulations that differ in their prompts only."""

    def __init__(self, seed: int) -> None:
        """Load the digits and the embedded backbone. Raises InputError if either is missing."""
        self._everyone = Simulation(SimulationConfig(seed=seed, prompts=PromptSettings(mode="none")))
        self._simulations = {
            mode: Simulation(SimulationConfig(seed=seed, drop=DROPS, prompts=PromptSettings(mode=mode)))
            for mode in MODES
        }

    @property
    def work(self) -> dict[str, int]:
        """Images that each stage goes through, for progress bars."""
        last, dataset = self._simulations["two-phase"], self._everyone.dataset
        # One run for each row, and prompts are tuned once.
        runs = 1 + len(MODES) + 1
        return {
            "tuning": work(last)["tuning"],
            "features": runs * len(dataset.train),
            "evaluation": runs * len(dataset.test),
        }

    def run(self, out: Path | None, report: Report) -> DemoReport:
        """Run all three; with `out`, leave the two-phase run there. Raises InputError if it holds a run already."""
        start = time.perf_counter()
        outcome = self._everyone.run(None, report)
        rows, differences = [_row(EVERYONE, outcome.result)], [_difference(outcome.result)]
        for mode, simulation in self._simulations.items():
            outcome = simulation.run(out if mode == "two-phase" else None, report, outcome.tuned)
            rows.append(_row(MODES[mode], outcome.result))
            differences.append(_difference(outcome.result))
        accuracy, identical = simulation.compare_with_centralised(outcome.model, outcome.pooled)
        rows.append(DemoRow(CENTRALISED, accuracy, None, None))
        seconds = time.perf_counter() - start
        return DemoReport(
            tuple(rows), outcome.result.clients, _lost(outcome.result), max(differences), identical, seconds
        )


def _row(name: str, result: Result) -> DemoRow:
    uploaded = sum(session.upload_bytes_per_client for session in result.sessions)
    return DemoRow(name, result.accuracy, uploaded, result.plain_float32_bytes)


def _difference(result: Result) -> int:
    if result.exact is None:
        raise MisuseError("a simulation knows whether its sums are exact")
    return result.exact.max_abs_difference


def _lost(result: Result) -> tuple[tuple[str, str], ...]:
    """Each client that dropped out, with the first phase that it did not answer."""
    first: dict[str, str] = {}
    for session in reversed(result.sessions):  # keys and shares of the statistics are exchanged first
        for phase, names in session.dropped.items():
            for name in names:
                first.setdefault(name, phase)
    return tuple(first.items())
