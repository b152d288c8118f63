"""Random sessions of up to six clients: any order of messages, drops, duplicates, forgeries, and states used again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedopal_secure.core import client, server
from fedopal_secure.core.errors import MisuseError, SessionAborted
from tests.core.harness import PRIMES, entropy, make
from tests.stateful.world import World

SUMS: Counter[str] = Counter()


class Session(RuleBasedStateMachine):
    """Hypothesis chooses the next event; `World` carries it out and knows what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World
        self.sent: list[tuple[bytes, str, bytes]] = []
        self.used: list[tuple[str, Any]] = []

    @initialize(
        clients=st.integers(3, 6),
        corrupt=st.integers(0, 1),
        kind=st.sampled_from([{}, {"modulus": PRIMES[0]}, {"degree": 3}]),
    )
    def start(self, clients: int, corrupt: int, kind: dict[str, int]) -> None:
        self.world = World(make(max(clients, corrupt + 2), corrupt, **kind))
        self.kind = next(iter(kind), "complete graph")

    def _pick(self, data: st.DataObject, of: Any) -> Any:
        return data.draw(st.sampled_from(sorted(of)))

    @property
    def bears_a_loss(self) -> bool:
        """Whether a client may go and the session still come to a sum; or else hardly any would."""
        return len(self.world.gone | self.world.refused) < len(self.world.ids) // 3

    # What a network does.

    @precondition(lambda self: not self.world.over and any(self.world.waiting()))
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        who = self._pick(data, self.world.waiting())
        step = self.world.step
        before = len(self.world.members[who].states)
        self.world.deliver_request(who)
        if before and step != "upload":
            self.used.append((step, self.world.members[who].states[before - 1]))
        if (who, step) in self.world.answers:
            self.sent.append((who, step, self.world.answers[who, step]))

    @precondition(lambda self: not self.world.over and any(self.world.waiting()))
    @rule()
    def ask_everyone(self) -> None:
        for who in sorted(self.world.waiting()):
            self.world.deliver_request(who)
            if (who, self.world.step) in self.world.answers:
                self.sent.append((who, self.world.step, self.world.answers[who, self.world.step]))

    @precondition(lambda self: not self.world.over and self.world.answers)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.world.deliver_answer(*self._pick(data, self.world.answers))

    @precondition(lambda self: not self.world.over and self.world.answers)
    @rule()
    def answer_everything(self) -> None:
        for who, step in sorted(self.world.answers):
            self.world.deliver_answer(who, step)

    @precondition(lambda self: not self.world.over and self.bears_a_loss)
    @rule(data=st.data())
    def lose_a_client(self, data: st.DataObject) -> None:
        self.world.drop(self._pick(data, self.world.ids))

    @precondition(lambda self: not self.world.over)
    @rule(patience=st.integers(0, 9))
    def end_phase(self, patience: int) -> None:
        """Mostly after everyone has been heard, or else hardly any session would come to its end."""
        if patience:
            self.ask_everyone()
            self.answer_everything()
        before = self.world.state
        self.world.close()
        if self.world.sum is not None:
            SUMS[self.kind] += 1
        if before.used:
            with pytest.raises(MisuseError):
                server.close(before)

    # What an attacker on the network does.

    @precondition(lambda self: not self.world.over and self.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """An answer again, in whatever phase the server is now, under its sender's name or another's."""
        who, step, sent = self._pick(data, self.sent)
        name = self._pick(data, self.world.ids)
        heard = name in self.world.heard.get(self.world.step, ())
        taken = self.world.deliver_answer(name, self.world.step, sent)
        assert not taken or (name == who and step == self.world.step and not heard)
        if taken:
            self.world.answers.pop((who, step), None)

    @precondition(lambda self: not self.world.over and self.world.answers)
    @rule(data=st.data(), flip=st.integers(1, 255))
    def forge_an_answer(self, data: st.DataObject, flip: int) -> None:
        who, step = self._pick(data, self.world.answers)
        sent = bytearray(self.world.answers[who, step])
        sent[data.draw(st.integers(0, len(sent) - 1))] ^= flip
        assert not self.world.deliver_answer(who, step, bytes(sent)), "the server took a forged answer"

    @precondition(lambda self: not self.world.over and any(self.world.waiting()) and self.bears_a_loss)
    @rule(data=st.data(), flip=st.integers(1, 255))
    def forge_a_request(self, data: st.DataObject, flip: int) -> None:
        """No client answers it. It leaves, which is all that forging a request achieves."""
        who = self._pick(data, self.world.waiting())
        told = bytearray(self.world.asked[who])
        told[data.draw(st.integers(0, len(told) - 1))] ^= flip
        self.world.asked[who] = bytes(told)
        step = self.world.step
        self.world.deliver_request(who)
        assert (who, step) not in self.world.answers

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def use_again(self, data: st.DataObject) -> None:
        """A state that has been used raises, whatever it is asked."""
        step, state = data.draw(st.sampled_from(self.used))
        calls = {
            "share": lambda: client.share(state, b"", entropy(b"")),
            "attest": lambda: client.attest(state, b"", b""),
            "reveal": lambda: client.reveal(state, b""),
        }
        with pytest.raises(MisuseError):
            calls[step]()

    @precondition(lambda self: self.world.over)
    @rule()
    def rest(self) -> None:
        """Nothing can follow."""

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            assert isinstance(self.world.error, SessionAborted | None), self.world.error


def test_any_order_of_events() -> None:
    """A failure shows its whole history: to shrink it would take minutes."""
    SUMS.clear()
    run_state_machine_as_test(
        Session, settings=settings(max_examples=300, stateful_step_count=60, phases=[Phase.generate])
    )
    # Most sessions are torn apart; enough of every kind must come to their end.
    assert min(SUMS[kind] for kind in ("complete graph", "modulus", "degree")) >= 5, SUMS
