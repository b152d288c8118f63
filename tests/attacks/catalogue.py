"""What an attack of the suite is: a play over bytes, the one function that stops it, and what came of it.

Every attack is played twice. Once as the library is, and it must fail with the error that the table promises; once as
the control, with exactly one named function replaced, and it must get what it is after. Otherwise the test would not
show that the defence is what stops the attack.
"""

from __future__ import annotations

import contextlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from fedopal_secure.core.errors import ClientFault

PROPERTY = "attack"


@dataclass(frozen=True)
class Outcome:
    """Whether the attacker got what it was after, and in a few words what it got or who refused."""

    won: bool
    told: str


def nothing(*arguments: object, **named: object) -> None:
    """What most controls put in place of a check."""


def always(value: Any) -> Callable[..., Any]:
    """A function that gives the same answer whatever it is asked."""
    return lambda *arguments, **named: value


def unless(tolerated: str) -> Callable[[bytes, bool, str], None]:
    """`server._require` that lets pass one thing, told by its reason, which it is there to refuse."""

    def require(sender: bytes, holds: bool, reason: str) -> None:
        if not holds and reason != tolerated:
            raise ClientFault(sender, reason)

    return require


@dataclass(frozen=True)
class Attack:
    """One attack.

    `number` is the group in `docs/security-tests.md`, `goal` what the attacker is after, `defence` the dotted name
    below `fedopal_secure` of the function that the control replaces by `instead`. `error` is part of what a defended
    play must report.
    """

    number: int
    name: str
    goal: str
    play: Callable[[], Outcome]
    defence: str
    error: str
    instead: Callable[..., Any] = nothing

    def __str__(self) -> str:
        return f"{self.number}: {self.name}"

    @contextlib.contextmanager
    def without_defence(self) -> Iterator[None]:
        """The control: exactly one function replaced."""
        place, _, name = self.defence.rpartition(".")
        owner = pkgutil.resolve_name(f"fedopal_secure.{place}")  # a module, or a class for one of its methods
        if not callable(getattr(owner, name)):
            raise TypeError(f"{self.defence} is no function")
        with mock.patch.object(owner, name, self.instead):
            yield


Record = Callable[[str, object], None]


def _record(record: Record, attack: Attack, column: str, outcome: Outcome) -> None:
    row = {
        "number": attack.number,
        "name": attack.name,
        "goal": attack.goal,
        "defence": attack.defence,
        column: outcome.told,
    }
    record(PROPERTY, json.dumps(row))


def suite(*attacks: Attack) -> tuple[Callable[..., None], Callable[..., None]]:
    """The two tests of some attacks, to be named `test_defended` and `test_control` in a test module."""
    each = pytest.mark.parametrize("attack", attacks, ids=str)

    @each
    def test_defended(attack: Attack, record_property: Record) -> None:
        outcome = attack.play()
        assert not outcome.won, f"the attack works: {outcome.told}"
        assert attack.error in outcome.told
        _record(record_property, attack, "defended", outcome)

    @each
    def test_control(attack: Attack, record_property: Record) -> None:
        with attack.without_defence():
            outcome = attack.play()
        assert outcome.won, f"something else than {attack.defence} stops the attack: {outcome.told}"
        _record(record_property, attack, "control", outcome)

    return test_defended, test_control


def untyped(play: Callable[[], Outcome]) -> Callable[[], Outcome]:
    """A play that is won if it ends in an error of Python's own, which says of nobody that it is at fault."""

    def played() -> Outcome:
        try:
            return play()
        except (LookupError, ValueError) as error:
            return Outcome(True, f"clients end in {type(error).__name__}, which names nobody")

    return played


def words(error: BaseException) -> str:
    """An error as the table shows it: its class and text, identities left out."""
    text = re.sub(r"\b[0-9a-f]{12}\b", "…", str(error))
    return f"{type(error).__name__}: {text}"
