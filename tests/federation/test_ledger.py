"""The privacy budget on the client's disk: releases of the same data compose, and are refused past the limit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fedopal_secure.core.errors import PolicyRefusal
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.federation.rules import check_spending
from fedopal_secure.federation.state import Journal
from fedopal_secure.privacy.calibration import Vector, calibrate

ONE = calibrate(Vector(16, 3, 12, 4096, 8), "distributed", 1.0, 1e-5).text()


def policy(epsilon: float, delta: float = 1e-5) -> Policy:
    return Policy(
        members=Membership(),
        servers=frozenset(),
        backbone="",
        backbone_hash=bytes(32),
        preprocessing="",
        classes=("a", "b", "c"),
        corrupt=0,
        max_images=4096,
        release=ONE,
        epsilon=epsilon,
        delta=delta,
        sessions=99,
    )


def give(journal: Journal, chain: bytes, limit: float, release: str = ONE, data: bytes = b"") -> None:
    rules = policy(limit)
    journal.give(data, chain, "statistics", chain, rules.sessions, release, partial(check_spending, rules, release))


def test_a_second_release_composes_with_the_first_even_after_a_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    give(journal, b"1", limit=1.0)
    journal.close()
    again = Journal(tmp_path / "journal.db")
    with pytest.raises(PolicyRefusal, match=r"'epsilon'.*reach epsilon 1\.[3-9].*allows 1"):
        give(again, b"2", limit=1.0)
    give(again, b"2", limit=1.6)  # a policy that allows both
    with pytest.raises(PolicyRefusal, match="'epsilon'"):
        give(again, b"3", limit=1.6)


def test_control_with_the_file_rolled_back_the_budget_is_fresh(tmp_path: Path) -> None:
    # Assumption LEDGER-KEPT: nobody deletes the journal or restores an older copy.
    path = tmp_path / "journal.db"
    give(Journal(path), b"1", limit=1.0)
    path.unlink()
    give(Journal(path), b"2", limit=1.0)


def test_other_data_in_the_same_journal_spends_the_same_budget() -> None:
    journal = Journal()
    give(journal, b"1", limit=1.0, data=b"all images")
    with pytest.raises(PolicyRefusal, match="'epsilon'"):
        give(journal, b"2", limit=1.0, data=b"one image more")


def test_one_chain_spends_once_for_all_its_sessions() -> None:
    journal, rules = Journal(), policy(1.0)
    for name in ("prompts", "statistics"):
        journal.give(b"", b"1", name, name.encode(), 1, ONE, partial(check_spending, rules, ONE))


def test_exact_and_private_sums_of_one_journal_exclude_each_other() -> None:
    exact_first, private_first = Journal(), Journal()
    give(exact_first, b"1", limit=1.0, release="")
    with pytest.raises(PolicyRefusal, match="no privacy can be claimed"):
        give(exact_first, b"2", limit=100.0)
    give(private_first, b"1", limit=1.0)
    with pytest.raises(PolicyRefusal, match="void the private releases"):
        give(private_first, b"2", limit=1.0, release="")


def test_what_is_refused_leaves_no_trace() -> None:
    journal = Journal()
    with pytest.raises(PolicyRefusal):
        give(journal, b"1", limit=0.5)
    assert journal.released(besides=b"") == []
    give(journal, b"1", limit=1.0)
    assert journal.released(besides=b"2") == [ONE]


def test_two_processes_cannot_both_spend_the_last_of_it(tmp_path: Path) -> None:
    first, second = Journal(tmp_path / "journal.db"), Journal(tmp_path / "journal.db")
    assert first.released(b"") == second.released(b"") == []
    give(first, b"1", limit=1.0)
    with pytest.raises(PolicyRefusal, match="'epsilon'"):
        give(second, b"2", limit=1.0)


def test_a_policy_without_a_limit_grants_nothing() -> None:
    with pytest.raises(PolicyRefusal, match="grants no private release"):
        check_spending(policy(0.0, 0.0), ONE, [])
