"""The table in docs/dropouts.md, computed again by running the rules over every case."""

from __future__ import annotations

import itertools
from pathlib import Path

from fedopal_secure.core.graph import Graph, corrupt_holders, least_degree, quorum, threshold
from fedopal_secure.core.params import least_cohort

PAGE = Path(__file__).parents[2] / "docs" / "dropouts.md"


def table(column: str) -> list[list[int]]:
    """The numbers of the table that has a column of this name."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|") and column in line) + 2
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))
    assert len(rows) > 10
    return [[int(cell.replace(",", "")) for cell in row.strip("|").split("|")] for row in rows]


def test_the_table_is_what_the_rules_give() -> None:
    for n, c, cohort, t, later, never in table("least cohort"):
        assert (c, cohort, t) == (n // 5, least_cohort(c), threshold(n, c))
        survives = [lost for lost in range(n) if n - lost >= max(t, cohort, quorum(n, c))]
        assert later == max(survives)
        starts = [lost for lost in range(n) if n - lost >= cohort and n - lost >= threshold(n - lost, c)]
        assert never == max(starts)


def test_the_table_of_sparse_graphs() -> None:
    for n, c, leaving, k, most, t in table("c_max"):
        graph = Graph(n, k, c)
        assert (least_degree(n, c, leaving, least_cohort(c)), corrupt_holders(n, k, c), graph.threshold) == (k, most, t)
