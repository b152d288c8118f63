"""Run exactly some tests of a source tree, all in one pytest process, and say of each named one what became of it.

A name is a pytest id, with or without its parameters. It stands for every test that it covers, and passes only if there
is one and all of them ran and passed: a test that is gone or was skipped is no evidence.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from fedopal_secure.audit.nodes import covers, path_of
from fedopal_secure.core.errors import InputError

Kind = Literal["passed", "skipped", "failed", "missing"]

_PLUGIN: Final = "fedopal_secure.audit.pytest_plugin"
_STANDARD_ERROR: Final = 2
_NO_TESTS: Final = 5


@dataclass(frozen=True)
class Outcome:
    """What became of the tests that a name covers: the worst of theirs, how many they are, why if not "passed"."""

    kind: Kind
    tests: int
    reason: str = ""


def run_tests(root: Path, names: Collection[str]) -> dict[str, Outcome]:
    """Run the tests that the names cover, in the tree at `root`; pytest shows its progress on standard error.

    A file that cannot be read, or is not there, keeps no other test from running. Raises InputError if pytest cannot
    start.
    """
    results = _run_pytest(root, names)
    return {name: _outcome(name, results) for name in names}


def _outcome(name: str, results: Mapping[str, tuple[str, str]]) -> Outcome:
    # What could not be collected stands for all that is in it.
    own = {node: result for node, result in results.items() if covers(name, node) or covers(node, name)}
    kinds: tuple[Kind, ...] = ("failed", "skipped")
    for kind in kinds:
        told = [(node, reason) for node, (outcome, reason) in own.items() if outcome == kind]
        if told:
            node, reason = told[0]
            which = "" if node == name else f"{node.removeprefix(name)}: "
            more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
            return Outcome(kind, len(own), f"{which}{reason}{more}")
    return Outcome("passed", len(own)) if own else Outcome("missing", 0, "there is no such test")


def _run_pytest(root: Path, names: Collection[str]) -> dict[str, tuple[str, str]]:
    """Outcome and reason by node: of each test, and of each file that was skipped or could not be read."""
    # Whole files: pytest runs nothing at all if one of the ids that it is given is missing. The plugin takes its pick.
    files = [file for file in dict.fromkeys(map(path_of, names)) if (root / file).is_file()]
    if not files:
        return {}
    if importlib.util.find_spec("pytest") is None:
        raise InputError('pytest is not installed: pip install -e ".[all,dev]" in the source tree')
    # Options of whoever calls this could take tests away, and an outer pytest would be taken for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        wanted, written = Path(folder) / "wanted.json", Path(folder) / "results.jsonl"
        wanted.write_text(json.dumps(list(names)), encoding="utf-8")
        command = (
            sys.executable, "-m", "pytest", "-q", f"--rootdir={root}", "-p", "no:cacheprovider", "-m", "",
            "--continue-on-collection-errors",
            "-p", _PLUGIN, f"--audit-wanted={wanted}", f"--audit-results={written}", *files,
        )  # fmt: skip
        ended = subprocess.run(
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=_STANDARD_ERROR, check=False
        )
        lines = written.read_text(encoding="utf-8").splitlines() if written.exists() else []
    if not lines and ended.returncode != _NO_TESTS:
        raise InputError(f"pytest could not start in {root}: exit code {ended.returncode}, and its reason above")
    return {node: (outcome, reason) for node, outcome, reason in map(json.loads, lines)}
