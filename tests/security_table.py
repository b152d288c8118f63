"""Collects what the adversary suite found, and keeps `docs/security-tests.md` equal to it.

With `--security-tests=check` a run fails if the page is not what it found (`make test`); with `write` it writes the
page (`make security-tests`). A run of a part of the suite does neither.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attacks.catalogue import PROPERTY

PAGE = Path(__file__).parents[1] / "docs" / "security-tests.md"
_BEGIN, _END = "<!-- table: written by `make security-tests` -->\n", "<!-- end of table -->\n"
_COLUMNS = ("number", "name", "goal", "defence", "control", "defended")


class SecurityTable:
    """A pytest plugin: it sees every report, also those of other workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._mode = config.getoption("--security-tests")
        self._rows: dict[tuple[int, str], dict[str, object]] = {}
        self._failed = False
        self.problem = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "tests/attacks/" not in report.nodeid or (report.when == "setup" and report.passed):
            return
        self._failed |= report.failed
        for name, value in report.user_properties if report.when == "call" else ():
            if name == PROPERTY:
                row = json.loads(str(value))
                self._rows.setdefault((row["number"], row["name"]), {}).update(row)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput") or self._mode is None or self._failed:
            return
        table = self._table()
        page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else _BEGIN + _END
        before, _, rest = page.partition(_BEGIN)
        listed, _, after = rest.partition(_END)
        if self._mode == "write":
            PAGE.write_text(before + _BEGIN + table + _END + after, encoding="utf-8")
        elif listed != table:
            self.problem = f"{PAGE.name} is not what this run found: run `make security-tests` and look at the change"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.problem:
            terminalreporter.write_line(self.problem, red=True)

    def _table(self) -> str:
        lines = [
            "| # | attack | what it is after | the defence that the control removes | without it | defended |",
            "|---|---|---|---|---|---|",
        ]
        for key in sorted(self._rows):
            row = {column: str(self._rows[key].get(column, "")).replace("|", "\\|") for column in _COLUMNS}
            row["defence"] = f"`{row['defence']}`"
            lines.append(f"| {' | '.join(row[column] for column in _COLUMNS)} |")
        return "\n".join(lines) + "\n"
