"""A plugin of pytest, for `audit.evidence` alone: keep the tests that were asked for, and write down how each ended.

It is loaded by name into the process that runs the tests, and given two files: the names of the tests, as JSON, and one
that gets a line [node, outcome, reason] as soon as it is known, so that a crash loses none. Of two lines about one node
the later counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from fedopal_secure.audit.nodes import covers

_BADNESS: Final = {"passed": 0, "skipped": 1, "failed": 2}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that only `audit.evidence` gives."""
    parser.addoption("--audit-wanted", type=Path)
    parser.addoption("--audit-results", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    """Begin, where they are given."""
    wanted, results = config.getoption("--audit-wanted"), config.getoption("--audit-results")
    if wanted is not None and results is not None:
        config.pluginmanager.register(_Recorder(json.loads(wanted.read_text(encoding="utf-8")), results))


class _Recorder:
    def __init__(self, wanted: list[str], results: Path) -> None:
        self._wanted, self._results = wanted, results
        self._worst: dict[str, tuple[str, str]] = {}

    def _write(self, node: str, outcome: str, reason: str) -> None:
        with self._results.open("a", encoding="utf-8") as file:
            file.write(json.dumps([node, outcome, reason]) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._write(report.nodeid, report.outcome, _reason(report))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if any(covers(name, item.nodeid) for name in self._wanted)]
        for item in items:
            self._write(item.nodeid, "failed", "it did not run to its end")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test is set up, called and torn down, and the worst of these counts. One that was expected to fail proves
        # nothing, whatever it did.
        outcome, reason = report.outcome, _reason(report)
        if hasattr(report, "wasxfail") and outcome != "failed":
            outcome, reason = "skipped", f"expected to fail: {report.wasxfail}"
        worst = self._worst.get(report.nodeid)
        if worst is None or _BADNESS[outcome] > _BADNESS[worst[0]]:
            self._worst[report.nodeid] = (outcome, reason)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(nodeid, *self._worst[nodeid])


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why something failed or was skipped, in one line."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else report.longreprtext).strip().splitlines()
    return (lines[0] if crash else lines[-1].removeprefix("E").strip()) if lines else "no reason given"
