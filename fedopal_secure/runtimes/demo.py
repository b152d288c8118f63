"""The demonstration: the same twelve clients without prompts, with the paper's local prompts, and in two phases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedopal_secure.core.errors import MisuseError
from fedopal_secure.federation.config import PromptMode, PromptSettings, SimulationConfig
from fedopal_secure.runtimes.result import Result
from fedopal_secure.runtimes.simulation import Report, Simulation, prepare, work

MODES: Final[dict[PromptMode, str]] = {
    "none": "no prompts (AFL, exact)",
    "local": "FedOPAL, local prompts (the paper)",
    "two-phase": "FedOPAL, two-phase",
}
CENTRALISED: Final = "centralised: two-phase prompts, pooled data"
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
        self._simulations = {
            mode: Simulation(SimulationConfig(seed=seed, drop=DROPS, prompts=PromptSettings(mode=mode)))
            for mode in MODES
        }

    @property
    def work(self) -> dict[str, int]:
        """Images that each stage goes through, for progress bars."""
        last = self._simulations["two-phase"].dataset
        total = {"tuning": 0, "features": len(last.train), "evaluation": len(last.test)}
        for simulation in self._simulations.values():
            for stage, images in work(simulation).items():
                total[stage] += images
        return total

    def run(self, out: Path | None, report: Report) -> DemoReport:
        """Run all three; with `out`, leave the two-phase run there. Raises InputError if it holds a run already."""
        if out is not None:
            prepare(out)
        rows, difference, seconds = [], 0, 0.0
        for mode, simulation in self._simulations.items():
            outcome = simulation.run(out if mode == "two-phase" else None, report)
            result = outcome.result
            if result.exact is None:
                raise MisuseError("a simulation knows whether its sums are exact")
            uploaded = sum(session.upload_bytes_per_client for session in result.sessions)
            rows.append(DemoRow(MODES[mode], result.accuracy, uploaded, result.plain_float32_bytes))
            difference = max(difference, result.exact.max_abs_difference)
            seconds += result.timings_s["total"]
        accuracy, identical = simulation.compare_with_centralised(outcome.model, outcome.pooled)
        rows.append(DemoRow(CENTRALISED, accuracy, None, None))
        return DemoReport(tuple(rows), result.clients, _lost(result), difference, identical, seconds)


def _lost(result: Result) -> tuple[tuple[str, str], ...]:
    """Each client that dropped out, with the first phase that it did not answer."""
    first: dict[str, str] = {}
    for session in reversed(result.sessions):  # keys and shares of the statistics are exchanged first
        for phase, names in session.dropped.items():
            for name in names:
                first.setdefault(name, phase)
    return tuple(first.items())
