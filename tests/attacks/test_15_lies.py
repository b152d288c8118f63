"""Lies about who is there, who shared and who uploaded: what it is good for that each client checks these by itself.

A lie that one client alone is told ends with that client, before it has uploaded. If it went on, it would sign an
upload that is in no sum, and the honest server would hold the signature against it: whoever lies on the wire has
somebody honest blamed, and the client has given its data for nothing.

A lie that all are told, or that a corrupt dealer helps with, gives a wrong sum, an honest holder's name on another's
fault, or a view that leaves out whom the server likes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core import client, server
from fedopal_secure.core.codec import encode
from fedopal_secure.core.messages import Context, Relay, RevealRequest, Roster, Shares
from fedopal_secure.core.params import Segment
from fedopal_secure.core.ring import reduce_to_width
from tests.attacks.catalogue import Attack, Outcome, always, suite, unless, untyped, words
from tests.attacks.cheating import prepared
from tests.core.harness import Letter, Member, forge, fork, make, read, run

N, C = 6, 1  # t = 4, a quorum is 4, and the cohort 3
IDS = make(N, C).ids
VICTIM, CHEAT = IDS[1], IDS[3]

# One client is told something else than the others; everybody is honest but for that one message.


def shown_to_one(step: str, kind: type[Any], lie: Callable[[Any], dict[str, Any]]) -> Callable[[], Outcome]:
    """Won if the server then holds it against the client."""

    def tamper(letter: Letter) -> bytes:
        if (letter.step, letter.client, letter.up) != (step, VICTIM, False):
            return letter.data
        message = read(kind, letter.data)
        return encode(replace(message, **lie(message)))

    def play() -> Outcome:
        result = run(make(N, C), tamper=tamper)
        if VICTIM in result.faults:
            return Outcome(True, f"the honest client is blamed: {words(result.faults[VICTIM])}")
        when = "after" if VICTIM in result.sent("upload") else "before"
        return Outcome(False, f"refused by the victim {when} its upload: {words(result.refusals[VICTIM])}")

    return play


def another_session(_: object) -> dict[str, Any]:
    return {"session": bytes(32)}


def turned_round(relay: Relay) -> dict[str, Any]:
    return {"sharers": relay.sharers[::-1]}


def without_the_victim(relay: Relay) -> dict[str, Any]:
    """It is told that its own message never arrived."""
    return {
        "sharers": tuple(sharer for sharer in relay.sharers if sharer.identity != VICTIM),
        "dealers": tuple(dealt for dealt in relay.dealers if dealt.message.sender != VICTIM),
    }


# More clients than the session was made for: the widths of its segments are those of three.


def crowded() -> Outcome:
    federation = make(N, parts=[Segment("n", 1, 1, False)])
    federation = changed(federation, params=replace(federation.params, clients=3))
    vectors = dict.fromkeys(federation.ids, np.array([255 // 3], np.uint64))
    with mock.patch.object(server, "_require", unless("came after the roster was full")):  # its own rule is no defence
        result = run(federation, vectors=vectors)
    if result.sum is None:
        error = next(iter(result.refusals.values()))
        return Outcome(False, f"refused by {len(result.refusals)} clients: {words(error)}")
    total = int(result.sum.total[0])
    return Outcome(total != N * 85, f"the sum of six times 85 is {total}, and nobody objects")


# A dealer that signs two messages. The server lists the first, and shows the victim the second.


class TwoFaced(Member):
    """Its second message has the same secrets on other polynomials."""

    def __init__(self, *arguments: Any, second: list[Shares]) -> None:
        super().__init__(*arguments)
        self.second = second

    def share(self, roster: bytes) -> bytes:
        self.second.append(read(Shares, client.share(fork(self.state), roster, self.federation.entropy("second"))[1]))
        return super().share(roster)


def second_message() -> Outcome:
    """Won if the victim is named: it reveals the share that it was shown, and the first message has another."""
    second: list[Shares] = []

    def tamper(letter: Letter) -> bytes:
        if (letter.step, letter.client, letter.up) != ("hold", VICTIM, False):
            return letter.data
        relay, place = read(Relay, letter.data), IDS.index(CHEAT)
        ciphertext = second[0].ciphertexts[IDS.index(VICTIM)]
        shown = replace(relay.dealers[place], message=second[0].message, ciphertext=ciphertext)
        return encode(replace(relay, dealers=(*relay.dealers[:place], shown, *relay.dealers[place + 1 :])))

    kinds: dict[bytes, Any] = {CHEAT: partial(TwoFaced, second=second)}
    result = run(make(N, C), kinds=kinds, tamper=tamper)
    if result.sum is not None and VICTIM in [blame.client for blame in result.sum.blame]:
        reason = words(Exception(result.sum.blame[0].reason)).removeprefix("Exception: ")
        return Outcome(True, f"the honest holder is named: it {reason}")
    return Outcome(False, f"refused by the victim: {words(result.refusals[VICTIM])}")


# A dealer whose message has holders and no commitments; the server passes it on.


class Unfit(Member):
    def share(self, roster: bytes) -> bytes:
        shares = read(Shares, super().share(roster))
        self.state.own = forge(self.key, shares.message, key_commitments=())
        return encode(Shares(self.state.own, shares.ciphertexts))


def unfit_message() -> Outcome:
    with mock.patch.object(server, "fits", always(True)):  # its own rule is no defence
        result = run(make(N, C), kinds={CHEAT: Unfit})
    error = result.refusals[VICTIM]
    return Outcome(False, f"refused by {len(result.refusals)} clients: {words(error)}")


# Everyone uploads, and only then the server chooses whom it sums.


def left_out() -> Outcome:
    cheat = prepared(make(N, C))
    chosen = cheat.ids[:3]
    view = cheat.view(chosen)
    cheat.attest(view=view)
    cheat.reveal(request=cheat.request(view))
    found, segments = cheat.sum_over(chosen), cheat.federation.params.segments
    plain = np.add.reduce([cheat.members[who].vector for who in chosen])
    if found is not None and np.array_equal(found, reduce_to_width(plain, segments)):
        return Outcome(True, "the sum of three of the six who uploaded, every entry")
    return cheat.refusal(cheat.ids[-1])


BLAMED, UNTYPED = "an honest client is blamed", "clients that stop and name nobody"
ROSTER, RELAY, CONTEXT = "core.checks.roster_is_ours", "core.checks.relay_is_ours", "core.checks.context_is_ours"
OWN_VIEW = "core.checks.request_is_for_own_view"
BEFORE = "refused by the victim before its upload"

test_defended, test_control = suite(
    Attack(
        15,
        "a roster of another session, shown to one client",
        BLAMED,
        shown_to_one("share", Roster, another_session),
        ROSTER,
        f"{BEFORE}: ServerFault: the roster is of another session",
    ),
    Attack(
        15,
        "sharers in another order, shown to one client",
        BLAMED,
        shown_to_one("hold", Relay, turned_round),
        RELAY,
        f"{BEFORE}: ServerFault: the relay repeats a sharer or is unordered",
    ),
    Attack(
        15,
        "a client that shared is told that it did not",
        BLAMED,
        shown_to_one("hold", Relay, without_the_victim),
        "core.checks.relay_shows_own_message",
        f"{BEFORE}: ServerFault: the relay omits or alters our own share message",
    ),
    Attack(
        15,
        "a context of another session, shown to one client",
        BLAMED,
        shown_to_one("upload", Context, another_session),
        CONTEXT,
        f"{BEFORE}: ServerFault: the context is of another session",
    ),
    Attack(
        15,
        "a dealer signs two messages, and a holder is shown the one that is not listed",
        BLAMED,
        second_message,
        "core.checks.dealers_are_sharers",
        "the relay shows a message that its list does not",
    ),
    Attack(
        15,
        "more clients in the roster than the session was made for",
        "a wrong sum",
        crowded,
        ROSTER,
        "the roster has 6 members, the session 3",
    ),
    Attack(
        15,
        "a dealer's message without its commitments",
        UNTYPED,
        untyped(unfit_message),
        "core.checks.relayed_messages_fit",
        "does not fit",
    ),
    Attack(
        15,
        "everyone uploaded, and the server picks three for the view",
        "a sum without clients that gave their data",
        left_out,
        "core.checks.view_treats_us_right",
        "the view is wrong about our own upload",
    ),
)


@pytest.mark.parametrize(
    ("step", "kind", "check", "lie"),
    [
        ("hold", Relay, RELAY, {"session": bytes(32)}),
        ("reveal", RevealRequest, OWN_VIEW, {"session": bytes(32)}),
        ("reveal", RevealRequest, OWN_VIEW, {"view": bytes(32)}),
    ],
)
def test_names_on_which_nothing_rests(step: str, kind: type[Any], check: str, lie: dict[str, Any]) -> None:
    """The session of a relay, and session and view of a request: what is inside is compared by itself.

    So with only the name wrong the check makes an error clear, and without it the session ends as if it were right.
    """

    def tamper(letter: Letter) -> bytes:
        named = letter.step == step and not letter.up
        return encode(replace(read(kind, letter.data), **lie)) if named else letter.data

    assert set(run(make(N, C), tamper=tamper).refusals) == set(IDS)
    with mock.patch(f"fedopal_secure.{check}"):
        misled, honest = run(make(N, C), tamper=tamper), run(make(N, C))
    assert misled.sum is not None
    for sent in ("upload", "attest", "reveal"):
        assert misled.sent(sent) == honest.sent(sent)
    np.testing.assert_array_equal(misled.sum.total, misled.plain_sum(IDS))
