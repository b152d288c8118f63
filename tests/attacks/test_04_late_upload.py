"""A late upload: the victim is declared dropped, its masking key is rebuilt, and then its upload arrives after all.

All pairwise masks of the upload can be taken off. What is left over the vector is the self-mask, whose seed no client
reveals for somebody who dropped. Without the second mask (Bonawitz et al. 2017, section 4.0.2) it is the vector.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from fedopal_secure.core.transitions import CLIENT, Phase, follow
from tests.attacks.catalogue import Attack, Outcome, always, nothing, suite
from tests.attacks.cheating import SEED, CheatingServer
from tests.core.harness import Member, make

N, C = 6, 1  # t = 4, and a quorum is 4


class GuessingServer(CheatingServer):
    """Where it cannot rebuild a seed, it tries one: it has the upload, and nothing to lose."""

    def rebuild(self, dealer: bytes, kind: str) -> bytes | None:
        found = super().rebuild(dealer, kind)
        return bytes(32) if found is None and kind == SEED else found


def declared_dropped(server: CheatingServer, victims: Sequence[bytes], *, late: bool) -> None:
    """The others attest a view without the victims and reveal, and the server has the victims' uploads as well."""
    others = [client for client in server.ids if client not in victims]
    server.advertise()
    server.share()
    server.hold()
    server.upload(others if late else None)
    server.attest(others, server.view(others))
    server.reveal(others, server.request(server.view(others)))
    if late:
        server.upload(victims)


def played(*, late: bool) -> Callable[[], Outcome]:
    def play() -> Outcome:
        server = GuessingServer(make(N, C))
        victim = server.ids[0]
        declared_dropped(server, [victim], late=late)
        return server.outcome(victim)

    return play


GOAL, SELF_MASK, KNOWN_TO_ALL = "the victim's vector", "core.masks.self_key", always(bytes(32))
# It is the mask that stops the attack, not a refusal.
USELESS = "nobody refuses, and too few shares come out"

test_defended, test_control = suite(
    Attack(
        4,
        "an upload arrives after its masking key was rebuilt",
        GOAL,
        played(late=True),
        SELF_MASK,
        USELESS,
        KNOWN_TO_ALL,
    ),
    Attack(
        4,
        "the server hides an upload until the masking key is rebuilt",
        GOAL,
        played(late=False),
        SELF_MASK,
        USELESS,
        KNOWN_TO_ALL,
    ),
)


@pytest.mark.parametrize("count", [1, 2])
def test_late_uploads_say_nothing_about_anybody(count: int) -> None:
    """As many as may be missing: t = 4 others remain. Neither a late client's vector comes out nor another's."""
    server = GuessingServer(make(N, C))
    declared_dropped(server, server.ids[:count], late=True)
    assert not server.refused
    assert set(server.uploads) == set(server.ids)
    assert not any(server.outcome(client).won for client in server.ids)


# A client that missed the upload attests and reveals. It must not upload after that.


class Reviving(Member):
    """Its program goes back to the state before the upload when it is asked for one."""

    def upload(self, context: bytes) -> bytes:
        self.states.append(next(state for state in reversed(self.states) if state.phase == Phase.READY))
        return super().upload(context)


def uploads_after_all(kind: type[Member]) -> Outcome:
    """The victim attests that it dropped, and reveals; then it is asked to upload."""
    federation = make(N, C)
    server = GuessingServer(federation, kinds={federation.ids[0]: kind})
    victim, *others = server.ids
    server.advertise()
    server.share()
    server.hold()
    server.upload(others)
    server.attest()
    server.reveal()
    server.upload([victim])
    return server.outcome(victim)


def test_nothing_but_a_reveal_follows_an_attestation() -> None:
    """The transition table, which is where a client that uploads after all is stopped first."""
    assert set(CLIENT[Phase.ATTESTED]) == {"reveal"}
    assert not CLIENT[Phase.REVEALED]
    assert "'upload' cannot follow while revealed; allowed: nothing" in uploads_after_all(Member).told


REMOVED: dict[str, Callable[..., Any]] = {
    "fedopal_secure.core.client.use": follow,  # checks the order, and marks nothing as used
    "fedopal_secure.core.secret.Secret.erase": nothing,
    f"fedopal_secure.{SELF_MASK}": KNOWN_TO_ALL,
}
USE, ERASE, MASK = REMOVED


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ((), "this state has been used"),
        ((ERASE, MASK), "this state has been used"),
        ((USE, MASK), "this secret has been erased"),
        ((USE, ERASE), USELESS),
        ((USE, ERASE, MASK), "the victim's vector"),
    ],
)
def test_an_upload_from_an_old_state_meets_three_defences(removed: Sequence[str], told: str) -> None:
    """A state is used once, own secrets are erased when the view is signed, and a self-mask is left on the upload."""
    with contextlib.ExitStack() as stack:
        for name in removed:
            stack.enter_context(mock.patch(name, REMOVED[name]))
        outcome = uploads_after_all(Reviving)
    assert outcome.won == (len(removed) == len(REMOVED))
    assert told in outcome.told
