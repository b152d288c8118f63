"""Isolation: the victim is brought to mask with clients whose masking keys the server will rebuild, and no others.

On the complete graph the victim alone is told that most of the others never shared; the few that it masks with are
then declared dropped. What each upload says of its sharers, under its sender's signature, gives that away.

On a sparse graph nobody needs to lie about who shared: the server declares all neighbours of a victim dropped. Or it
proposes a graph so thin that, for a roster of this size, a few corrupt clients are all neighbours of somebody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from unittest import mock

import msgspec
import numpy as np
import pytest

from fedopal_secure.core.codec import encode
from fedopal_secure.core.graph import Graph
from fedopal_secure.core.masks import Binding
from fedopal_secure.core.messages import View
from fedopal_secure.core.params import SessionParams
from fedopal_secure.core.policy import Policy
from fedopal_secure.core.recovery import remove_self_mask
from fedopal_secure.core.ring import Ring, from_wire, reduce_to_width
from fedopal_secure.core.shamir import Recovery
from tests.attacks.catalogue import Attack, Outcome, nothing, suite
from tests.attacks.cheating import CheatingServer, prepared
from tests.attacks.test_02_split_views import attested_by
from tests.core.harness import make


def as_it_is(server: CheatingServer, view: View, victim: bytes) -> View:
    return view


def rewritten(server: CheatingServer, view: View, victim: bytes) -> View:
    """The victim's header as it would be if it had been told what the others were; its signature does not fit."""
    headers = [
        msgspec.structs.replace(header, sharers=view.sharers) if header.sender == victim else header
        for header in view.survivors
    ]
    return msgspec.structs.replace(view, survivors=tuple(headers))


def of_the_victim(server: CheatingServer, view: View, victim: bytes) -> View:
    """The view names the set of sharers that the victim was told of."""
    return msgspec.structs.replace(view, sharers=server.uploads[victim].header.sharers)


def isolated(neighbours: int, change: Callable[[CheatingServer, View, bytes], View]) -> Callable[[], Outcome]:
    """The victim is told that only these shared, everyone else that all did; then these do not upload."""

    def play() -> Outcome:
        server = prepared(make(6, 1), "share")  # t = 4, and a quorum is 4
        victim, *others = server.ids
        near, far = others[:neighbours], others[neighbours:]
        server.hold([victim], dealers=[victim, *near])
        server.hold(others)
        server.upload([victim, *far])
        view = change(server, server.view(like=far[0]), victim)
        server.attest(others, view)
        server.reveal(request=server.request(view))
        return server.outcome(victim)

    return play


# A sparse graph.


def neighbours(server: CheatingServer, client: bytes) -> set[bytes]:
    """Those whom it drew, and those who drew it."""
    place = server.ids.index(client)
    drew = {dealer for dealer, shares in server.shares.items() if place in shares.message.holders}
    return (drew | {server.ids[position] for position in server.shares[client].message.holders}) - {client}


def all_neighbours_dropped() -> Outcome:
    """Nobody else lies about anything: the neighbours are slow, attest the view without them, and reveal."""
    server = prepared(make(16, 1, degree=8), "hold")  # t = 6
    victim = min(server.ids, key=lambda client: len(neighbours(server, client)))
    near = neighbours(server, victim)
    server.upload([client for client in server.ids if client not in near])
    server.attest()
    server.reveal()
    return server.outcome(victim)


def thin_graph() -> Outcome:
    """Everyone survives, and the server looks for somebody who drew corrupt clients only and whom no one else drew."""
    federation = make(20, 5, degree=2)  # t = 3: all holders
    server = prepared(federation, "share", corrupt=federation.ids[:5])
    if not server.shares:
        return server.refusal(server.honest[0])
    victim = next(client for client in server.honest if neighbours(server, client) <= server.corrupt)
    server.hold()
    server.upload()
    server.attest(server.honest)
    server.attestations |= {client: attested_by(server.members[client].key, server.view()) for client in server.corrupt}
    server.reveal(server.honest)
    return server.outcome(victim)


def pair_cut_out() -> Outcome:
    """Six honest clients that ask for a cohort of six, one holder each, and two that happened to draw each other.

    The server keeps the others' messages from these two, so that they mask with each other only; all six survive.
    Set-ups cost nothing, since nobody has given any data: it begins again until two have drawn each other.
    """
    for attempt in range(40):
        server = prepared(make(6, 0, start=attempt, degree=1, min_survivors=6), "share")
        if not server.shares:
            return server.refusal(server.ids[0])
        drew = {
            client: server.ids[next(place for place in shares.message.holders if server.ids[place] != client)]
            for client, shares in server.shares.items()
        }
        pair = next(((client, other) for client, other in drew.items() if drew[other] == client), None)
        if pair is not None:
            return sum_of_pair(server, pair)
    raise RuntimeError("nobody drew each other in 40 set-ups")


def sum_of_pair(server: CheatingServer, pair: tuple[bytes, bytes]) -> Outcome:
    for client in server.ids:
        relay = server.relay(client)
        if client in pair:
            dealers = tuple(dealt for dealt in relay.dealers if dealt.message.sender in pair)
            relay = msgspec.structs.replace(relay, dealers=dealers)
        server.ask(client, "hold", encode(relay))
    server.upload()
    server.attest()
    server.reveal()
    params = server.federation.params
    ring, total = Ring(params.modulus), np.zeros(params.length, dtype=np.uint64)
    for client in pair:
        upload = server.uploads[client]
        header = upload.header
        ring.add_into(total, from_wire(upload.payload, params.segments))
        # Those two were told of no other dealer, so their reveals have shares of these two seeds only.
        shares = {
            server.ids.index(holder) + 1: reveal.seed_shares[sorted(pair).index(client)]
            for holder, _, reveal in server.reveals
            if holder in pair
        }
        seed = Recovery(tuple(shares), len(shares)).combine(list(shares.values())) or b""
        remove_self_mask(ring, total, seed, client, Binding(header.session, header.roster, header.context))
    plain = np.add(*(server.members[client].vector for client in pair))
    won = np.array_equal(reduce_to_width(total, params.segments), reduce_to_width(plain, params.segments))
    return Outcome(won, "the sum of two clients where a cohort of six was agreed, every entry")


def any_graph(policy: Policy, params: SessionParams, roster: int) -> Graph:
    """`policy.roster_graph` without its questions."""
    return Graph(roster, params.degree, params.corrupt)


GOAL = "the victim's vector"

test_defended, test_control = suite(
    Attack(
        3,
        "the victim alone is told that the others never shared",
        GOAL,
        isolated(3, as_it_is),
        "core.checks.survivors_headers_match",
        "uploaded under another roster, set of sharers or context",
    ),
    Attack(
        3,
        "the same, and its upload header is rewritten for the others",
        GOAL,
        isolated(3, rewritten),
        "core.checks.survivors_headers_are_signed",
        "is not signed by it",
    ),
    Attack(
        3,
        "all neighbours on a sparse graph are declared dropped",
        GOAL,
        all_neighbours_dropped,
        "core.checks.survivors_keep_holders",
        "survive, below the threshold",
    ),
    Attack(
        3,
        "a sparse graph in which all neighbours are corrupt",
        GOAL,
        thin_graph,
        "core.client.roster_graph",
        "2 holders are too few for a cohort of 7 in a roster of 20",
        any_graph,
    ),
    Attack(
        3,
        "a small roster on a sparse graph, of which two that drew each other are cut out",
        "a sum over fewer than the cohort",
        pair_cut_out,
        "core.client.roster_graph",
        "1 holders are too few for a cohort of 6 in a roster of 6",
        any_graph,
    ),
)

ENOUGH, MATCH = "fedopal_secure.core.checks.enough_shared", "fedopal_secure.core.checks.survivors_headers_match"


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ((), "2 of our holders shared, below the threshold of 4"),
        ((MATCH,), "2 of our holders shared, below the threshold of 4"),
        ((ENOUGH,), "uploaded under another roster, set of sharers or context"),
        ((ENOUGH, MATCH), "the victim's vector"),
    ],
)
def test_fewer_sharers_than_the_threshold_meet_two_defences(removed: Sequence[str], told: str) -> None:
    """Told that one other client shared, the victim stops before it uploads; were it to go on, the others would."""
    with contextlib.ExitStack() as stack:
        for name in removed:
            stack.enter_context(mock.patch(name, nothing))
        outcome = isolated(1, as_it_is)()
    assert outcome.won == (len(removed) == 2)
    assert told in outcome.told


VIEW_OURS = "fedopal_secure.core.checks.view_is_ours"


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ((), "the view is of another session, roster, set of sharers or context"),
        ((MATCH,), "the view is of another session, roster, set of sharers or context"),
        ((VIEW_OURS,), "uploaded under another roster, set of sharers or context"),
        ((VIEW_OURS, MATCH), "the victim's vector"),
    ],
)
def test_a_view_of_other_sharers_meets_two_defences(removed: Sequence[str], told: str) -> None:
    """The others are shown a view that fits the isolated victim's header; it fits neither them nor their headers."""
    with contextlib.ExitStack() as stack:
        for name in removed:
            stack.enter_context(mock.patch(name, nothing))
        outcome = isolated(3, of_the_victim)()
    assert outcome.won == (len(removed) == 2)
    assert told in outcome.told
