"""Remove each guard of the client in turn, and show that some test notices: `make mutants`.

A guard is a statement that does nothing but refuse: a call of a check, or an `if` that only refuses. Each is replaced
by `pass` in a copy of the repository, where the tests then run until the first failure. A mutant that no test kills is
printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
CORE = Path("fedopal_secure/core")
FILES = ("client.py", "checks.py", "census.py", "policy.py", "params.py")
# Calls that are guards although their value is not used.
CHECKS = ("checks", "check_params", "check_proposal", "follow", "require")
# Quick and telling tests first: a mutant dies with the first failure.
TESTS = (
    "tests/core/test_lies.py",
    "tests/core/test_policy.py",
    "tests/core/test_states.py",
    "tests/core/test_census.py",
    "tests/core/test_sparse.py",
    "tests/core",
    "tests/attacks",
    "tests/federation/test_secure_sum.py",
    "tests/vectors/test_secagg_vectors.py",
)
HARNESS = ("fedopal_secure", "tests", "protocols", "benchmarks", "docs", "pyproject.toml")


@dataclass(frozen=True)
class Guard:
    """A statement of a file that only refuses."""

    file: Path
    first: int
    last: int
    text: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.first}  {self.text}"


def guards(file: Path) -> Iterator[Guard]:
    """Every guard of a file, from top to bottom."""
    source = (ROOT / file).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and _is_guard(node):
            end = node.end_lineno or node.lineno
            text = " ".join(line.strip() for line in source.splitlines()[node.lineno - 1 : end])
            yield Guard(file, node.lineno, end, text[:100])


def _is_guard(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return not node.orelse and all(_refuses(inner) for inner in node.body)
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    name = ast.unparse(node.value.func)
    return any(check in name for check in CHECKS)


def _refuses(node: ast.stmt) -> bool:
    # `return None`, written out, is how an opened share is found to be in dispute.
    gives_none = isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and node.value.value is None
    return isinstance(node, ast.Raise) or gives_none


def without(guard: Guard, source: str) -> str:
    """The source of the guard's file with the guard replaced by `pass`."""
    lines = source.splitlines(keepends=True)
    first = lines[guard.first - 1]
    indent = first[: len(first) - len(first.lstrip())]
    lines[guard.first - 1 : guard.last] = [f"{indent}pass\n"]
    return "".join(lines)


def first_failure(copy: Path) -> str | None:
    """The first test that fails in a copy, or None. A run that takes too long says nothing, and raises."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-n", "0", *TESTS],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if run.returncode == 0:
        return None
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed:
        raise RuntimeError(f"the tests did not run: {run.stdout[-500:]}{run.stderr[-500:]}")
    return failed[0].split(" ", 1)[1].split(" - ")[0]


def main() -> int:
    """Run all mutants, two at a time; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=FILES, help=f"files of {CORE} (default: {' '.join(FILES)})")
    parser.add_argument("--list", action="store_true", help="only list the guards")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    found = [guard for file in arguments.files for guard in sorted(guards(CORE / file), key=lambda guard: guard.first)]
    if arguments.list:
        print(*found, sep="\n")
        return 0
    copies: SimpleQueue[Path] = SimpleQueue()
    originals = {file: (ROOT / CORE / file).read_text(encoding="utf-8") for file in arguments.files}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(arguments.workers):
            copy = Path(folder) / str(number)
            copy.mkdir()
            for part in HARNESS:
                source = ROOT / part
                if source.is_dir():
                    shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, copy / part)
            copies.put(copy)
        failing = first_failure(copy)
        if failing is not None:
            print(f"the tests fail with every guard in place: {failing}", file=sys.stderr)
            return 2

        def judge(guard: Guard) -> bool:
            copy = copies.get()
            source = originals[guard.file.name]
            (copy / guard.file).write_text(without(guard, source), encoding="utf-8")
            killer = first_failure(copy)
            (copy / guard.file).write_text(source, encoding="utf-8")
            copies.put(copy)
            print(f"{'SURVIVES' if killer is None else 'killed  '}  {guard}\n          {killer or ''}", flush=True)
            return killer is not None

        with ThreadPoolExecutor(arguments.workers) as pool:
            results = list(pool.map(judge, found))
    print(f"{sum(results)} of {len(results)} guards are missed by some test when they are gone")
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
