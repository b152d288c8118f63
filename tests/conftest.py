"""What all tests share: one thread per worker, and in CI no skip for a tool that is missing."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator

# Before numpy and torch are imported: two workers with two threads each would fight over two cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"

import pytest

from tests.security_table import SecurityTable

# A test that skips because something is not installed begins its reason like this; importorskip has its own words.
MISSING_TOOL = ("missing tool", "could not import")

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # Fixed examples, so that a run that passed passes again; no deadline, for machines that pause.
    settings.register_profile("repository", deadline=None, derandomize=True, database=None)
    settings.load_profile("repository")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--security-tests", choices=("check", "write"), help="compare docs/security-tests.md, or write it")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SecurityTable(config))


def _fail_missing_tool(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not report.skipped or not isinstance(report.longrepr, tuple):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if reason.startswith(MISSING_TOOL):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where every tool must be there: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_missing_tool(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_missing_tool(report)
    return report
