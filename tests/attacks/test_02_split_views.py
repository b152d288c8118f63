"""Split views: clients are told different things about who uploaded, and each reveals by what it was told.

Half of them told that the victim survived and the other half that it dropped is the plain form. It meets two defences:
no half is a quorum, and no half holds enough shares. So it is a plain test below, with each of them taken away.

The form that only the quorum stops tells every client a view of its own, whose survivors are the victim, the corrupt
clients and the client itself. Such a view passes every other check. Everyone else is dropped in nearly all of them, so
the masking key of everyone else is rebuilt, and the self-mask seed of the victim, which survives in all.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from unittest import mock

import pytest

from fedopal_secure.core import messages
from fedopal_secure.core.codec import encode
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Attestation, View
from fedopal_secure.core.transitions import Phase, follow
from tests.attacks.catalogue import Attack, Outcome, suite
from tests.attacks.cheating import CheatingServer, prepared
from tests.core.harness import Member, forge, make, read

Evidence = Callable[[CheatingServer, View, bytes], tuple[Attestation, ...]]


def majority(roster: int, corrupt: int) -> int:
    """The plain majority, which forgets that corrupt clients sign more than once."""
    return roster // 2 + 1


def attested_by(key: SigningKey, view: View) -> Attestation:
    """The signature of somebody whose key the server has: no program of its own refuses."""
    return messages.sign(key, Attestation(view.session, key.identity, messages.view_hash(view)))


def in_order(attestations: Sequence[Attestation]) -> tuple[Attestation, ...]:
    return tuple(sorted(attestations, key=lambda attestation: attestation.sender))


def signed_by_corrupt(server: CheatingServer, view: View) -> tuple[Attestation, ...]:
    return tuple(attested_by(server.members[client].key, view) for client in server.corrupt)


def to_each_its_own(clients: int, corrupt: int, evidence: Evidence) -> Callable[[], Outcome]:
    """Everyone attests a view of its own, and is then asked to reveal, with some evidence of a quorum."""

    def play() -> Outcome:
        federation = make(clients, corrupt)
        server = prepared(federation, corrupt=federation.ids[-corrupt:])
        victim = server.honest[0]
        views = server.own_views(victim)
        for client, view in views.items():
            server.attest([client], view)
        for client, view in views.items():
            signed = evidence(server, view, client)
            server.reveal([client], server.request(view, attestations=signed))
        return server.outcome(victim)

    return play


def who_signed(server: CheatingServer, view: View, client: bytes) -> tuple[Attestation, ...]:
    """Honest clients once each, corrupt ones under every view."""
    return in_order((*server.request(view).attestations, *signed_by_corrupt(server, view)))


# Honest clients whose program can be made to sign twice.


class Retrying(Member):
    """Its program answers again when it is asked again, from the state that it had before it first answered."""

    def attest(self, view: bytes, context: bytes) -> bytes:
        self.states.append(next(s for s in reversed(self.states) if s.phase in (Phase.READY, Phase.UPLOADED)))
        return super().attest(view, context)


class Copying(Member):
    """Its program keeps a copy of its state, and attests from a copy of that whenever it is asked."""

    def attest(self, view: bytes, context: bytes) -> bytes:
        kept = (Phase.READY, Phase.UPLOADED)
        self.states.append(copy.copy(next(s for s in reversed(self.states) if s.phase in kept and not s.used)))
        return super().attest(view, context)


def signing_all(kind: type[Member]) -> Callable[[], Outcome]:
    """Three views with a quorum each, since the honest clients that fit several of them sign those.

    Each view lets the victim, the corrupt client and one of three others survive. Each client reveals once, by the
    view that it signed last; and each of the three is dropped in two views out of three.
    """

    def play() -> Outcome:
        federation = make(7, 1)  # t = 5, and a quorum is 5
        corrupt = federation.ids[-1]
        server = prepared(federation, "hold", corrupt=[corrupt], kinds=dict.fromkeys(federation.ids[:-1], kind))
        victim, *fillers = server.honest[:4]
        late = server.honest[4:]
        server.upload([victim, *fillers, corrupt])
        views = [server.view((victim, filler, corrupt)) for filler in fillers]
        signed: dict[int, list[Attestation]] = {
            number: [*signed_by_corrupt(server, views[number])] for number in range(3)
        }
        asked = {filler: [number] for number, filler in enumerate(fillers)}
        asked |= {victim: [1, 2, 0], late[0]: [0, 2, 1], late[1]: [0, 1, 2]}
        for client, numbers in asked.items():
            for number in numbers:
                context = server.contexts.get(client, encode(server.context()))
                answer = server.ask(client, "attest", encode(views[number]), context)
                if answer is not None:
                    signed[number].append(read(Attestation, answer))
        for client, numbers in asked.items():
            view = views[numbers[-1]]
            server.reveal([client], server.request(view, attestations=in_order(signed[numbers[-1]])))
        return server.outcome(victim)

    return play


GOAL = "the victim's vector"

test_defended, test_control = suite(
    Attack(
        2,
        "every client is shown a view of its own, signed by more than half",
        GOAL,
        to_each_its_own(9, 4, who_signed),  # five or six sign each view: a majority of 9, and a quorum is 7
        "core.checks.quorum",
        "signatures are no quorum of 9 members with c = 4",
        majority,
    ),
    Attack(
        2,
        "honest clients are asked again and sign several views",
        GOAL,
        signing_all(Retrying),
        "core.client.use",
        "this state has been used",
        follow,  # which checks the order, and marks nothing as used
    ),
    Attack(
        2,
        "honest clients sign several views from copies of one state",
        GOAL,
        signing_all(Copying),
        "core.transitions.State.__reduce__",
        "never pickled or copied",
        object.__reduce__,
    ),
)


# Two halves.

N, C = 6, 2  # t = 5, and a quorum is 5; a majority is 4: two honest clients and the corrupt ones


def told_that_it_dropped(server: CheatingServer, victim: bytes) -> dict[View, Sequence[bytes]]:
    """One half is told that everyone uploaded, the other half that the victim did not."""
    server.hold()
    server.upload()
    others = [client for client in server.ids if client != victim]
    return {server.view(): server.honest[:2], server.view(others): server.honest[2:]}


def told_that_it_never_shared(server: CheatingServer, victim: bytes) -> dict[View, Sequence[bytes]]:
    """One half is told that everyone shared, and that the other half dropped; the other half is told the like.

    To the other half the victim never shared. Corrupt clients upload under both sets of sharers.
    """
    one, other = server.honest[:2], server.honest[2:]
    server.hold([*one, *server.corrupt])
    server.hold(other, [client for client in server.ids if client != victim])
    server.upload()
    told = server.uploads[other[0]].header.sharers
    headers = [server.uploads[client].header for client in other]
    headers += [
        forge(server.members[client].key, server.uploads[client].header, sharers=told) for client in server.corrupt
    ]
    model = headers[0]
    survivors = tuple(sorted(headers, key=lambda header: header.sender))
    second = View(model.session, model.roster, model.sharers, model.context, survivors)
    return {server.view((*one, *server.corrupt)): one, second: other}


Lie = Callable[[CheatingServer, bytes], Mapping[View, Sequence[bytes]]]


def halves(lie: Lie) -> Outcome:
    federation = make(N, C)
    server = prepared(federation, "share", corrupt=federation.ids[-C:])
    victim = server.honest[0]
    told = lie(server, victim)
    for view, half in told.items():
        server.attest(half, view)
    for view, half in told.items():
        survivors = {header.sender for header in view.survivors}
        sharers = server.members[half[-1]].state.sharers
        dropped = tuple(client for client in sharers if client not in survivors)
        signed = who_signed(server, view, half[-1])
        server.reveal(half, server.request(view, attestations=signed, dropped=dropped))
    return server.outcome(victim)


QUORUM, THRESHOLD = "fedopal_secure.core.checks.quorum", "fedopal_secure.core.graph.threshold"


@pytest.mark.parametrize("lie", [told_that_it_dropped, told_that_it_never_shared])
@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ((), "no quorum"),
        ((THRESHOLD,), "no quorum"),
        ((QUORUM,), "too few shares come out"),
        ((QUORUM, THRESHOLD), "the victim's vector"),
    ],
)
def test_two_halves_meet_two_defences(lie: Lie, removed: Sequence[str], told: str) -> None:
    """A plain majority in place of the quorum does not do, nor in place of the threshold; only of both."""
    with contextlib.ExitStack() as stack:
        for name in removed:
            stack.enter_context(mock.patch(name, majority))
        outcome = halves(lie)
    assert outcome.won == (len(removed) == 2)
    assert told in outcome.told
