"""The benchmarks of tuning, statistics and solving run at small sizes, and what they compare computes the same."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.solve import GAMMA, AflServer, afl_upload, rational_solution
from tests.benchmarks.test_smoke import quick


def test_statistics_beside_a_plain_gram(tmp_path):
    found = quick("statistics", tmp_path)
    assert [(run["dimension"], run["classes"], run["error"]) for run in found["runs"]] == [(32, 10, 0), (32, 100, 0)]
    assert all(min(run["exact"], run["plain"], run["rounding"]) > 0 for run in found["runs"])
    assert [measure["met"] for measure in found["measures"]] == [True, True]


def test_our_solver_beside_afl(tmp_path):
    found = quick("solve", tmp_path)
    (run,) = found["runs"]
    assert run["clients"] == 3
    assert run["difference"] < 1e-9
    assert len(found["small"]) == 3
    assert all(0 <= case["ours"] < 1e-9 and case["afl"] < 1e-6 for case in found["small"])
    assert [measure["met"] for measure in found["measures"]] == [True]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks of memory are read from Linux's /proc")
def test_tuning_beside_a_plain_loop_and_its_limit(tmp_path):
    found = quick("tuning", tmp_path)
    speeds = {speed["dtype"]: speed for speed in found["speeds"]}
    assert speeds.keys() == {"float32", "bfloat16"}
    assert [speed["chosen"] for speed in speeds.values()].count(True) == 1
    assert all(min(speed["ours"], speed["plain"], speed["limit"]) > 0 for speed in speeds.values())
    assert [memory["what"] for memory in found["memory"]] == ["tuning", "statistics"]
    assert all(measure["met"] for measure in found["measures"])


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_afls_law_is_the_pooled_solution(clients):
    rng = np.random.default_rng(0)
    parts = [(rng.standard_normal((20, 6)), rng.standard_normal((20, 2))) for _ in range(clients)]
    server = AflServer(GAMMA)
    for x, y in parts:
        server.fold(*afl_upload(x, y, GAMMA))
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    for ridge in (0.0, 0.5):
        np.testing.assert_allclose(server.release(ridge), np.linalg.solve(x.T @ x + ridge * np.eye(6), x.T @ y))


def test_a_rational_solution_is_exact_and_needs_a_pivot():
    matrix = [[Fraction(0), Fraction(1, 3)], [Fraction(2, 7), Fraction(5)]]
    solution = [[Fraction(1, 10)], [Fraction(-3)]]
    right = [[row[0] * solution[0][0] + row[1] * solution[1][0]] for row in matrix]
    assert rational_solution(matrix, right) == solution
