"""The client's journal: it holds across a restart, and without it the same steps would go through."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedopal_secure.core.errors import MisuseError, PolicyRefusal
from fedopal_secure.federation.state import Journal

SESSION, OTHER, DATA = b"s" * 32, b"o" * 32, b"d" * 32


def test_a_phase_is_answered_once_even_after_a_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.answer(SESSION, "reveal")
    journal.close()
    restarted = Journal(tmp_path / "journal.db")
    restarted.answer(SESSION, "attest")
    with pytest.raises(MisuseError, match="answered before"):
        restarted.answer(SESSION, "reveal")


def test_control_without_the_file_a_phase_could_be_answered_twice(tmp_path: Path) -> None:
    Journal(tmp_path / "one.db").answer(SESSION, "reveal")
    Journal(tmp_path / "two.db").answer(SESSION, "reveal")


def test_data_enters_as_many_chains_as_are_granted(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.give(DATA, SESSION, "prompts", SESSION, 1)
    journal.give(DATA, SESSION, "statistics", OTHER, 1)  # the same chain goes on
    with pytest.raises(PolicyRefusal, match="'sessions'"):
        journal.give(DATA, OTHER, "statistics", OTHER, 1)
    journal.close()
    restarted = Journal(tmp_path / "journal.db")
    with pytest.raises(PolicyRefusal, match="'sessions'"):
        restarted.give(DATA, OTHER, "statistics", OTHER, 1)
    restarted.give(DATA, OTHER, "statistics", OTHER, 2)
    restarted.give(b"e" * 32, b"x" * 32, "statistics", OTHER, 1)  # other data


def test_a_chain_sums_each_thing_once() -> None:
    journal = Journal()
    journal.give(DATA, SESSION, "statistics", SESSION, 1)
    with pytest.raises(PolicyRefusal, match="already"):
        journal.give(DATA, SESSION, "statistics", OTHER, 1)
