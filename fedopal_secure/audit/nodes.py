"""Names of tests: pytest ids, with or without their parameters. Nothing is imported, as pytest loads this early."""

from __future__ import annotations


def path_of(name: str) -> str:
    """The file of a pytest id, whose parameters may hold any character."""
    return name.partition("[")[0].partition("::")[0]


def covers(name: str, node: str) -> bool:
    """Whether a pytest id, or its beginning up to `::` or `[`, stands for a node."""
    return node == name or node.startswith((f"{name}[", f"{name}::"))
