"""TenSEAL is called in one module, so that reading it shows what SEAL is ever given."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "fedopal_secure"


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_only_seal_imports_tenseal() -> None:
    callers = [
        path for path in SOURCES.rglob("*.py") if any(name.split(".")[0] == "tenseal" for name in imported(path))
    ]
    assert [path.relative_to(SOURCES).as_posix() for path in callers] == ["he/seal.py"]
