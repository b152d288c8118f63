"""The table in docs/dropouts.md, computed again by running the rules over every case."""

from __future__ import annotations

from pathlib import Path

from fedopal_secure.core.graph import has_quorum, threshold
from fedopal_secure.core.params import least_cohort

PAGE = Path(__file__).parents[2] / "docs" / "dropouts.md"


def test_the_table_is_what_the_rules_give() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        n, c, cohort, t, later, never = (int(cell) for cell in row.strip("|").split("|"))
        assert (c, cohort, t) == (n // 5, least_cohort(c), threshold(n, c))
        survives = [lost for lost in range(n) if n - lost >= max(t, cohort) and has_quorum(n - lost, n, c)]
        assert later == max(survives)
        starts = [lost for lost in range(n) if n - lost >= cohort and n - lost >= threshold(n - lost, c)]
        assert never == max(starts)
