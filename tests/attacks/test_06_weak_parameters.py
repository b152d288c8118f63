"""Parameters that a server would like its clients to accept.

Nobody but the client's own policy stands between a server and a session with a lower threshold, a smaller cohort or
other terms. Where such parameters give the attacker something, it takes it here; where they give it nothing that can
be computed, the control shows that the client's vector enters a sum under terms that it never agreed to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core import messages
from fedopal_secure.core.errors import PolicyRefusal
from fedopal_secure.core.graph import Graph
from fedopal_secure.core.messages import Attestation
from fedopal_secure.core.params import Segment, SessionParams, Task
from fedopal_secure.core.policy import Policy, check_proposal
from fedopal_secure.core.ring import reduce_to_width
from fedopal_secure.core.states import ClientState
from tests.attacks.catalogue import Attack, Outcome, always, nothing, suite
from tests.attacks.cheating import CheatingServer, prepared
from tests.core.harness import TASK, Federation, Member, fork, make

VICTIM = "the victim's vector"
TERMS = "the client takes part under other terms"
PROPOSAL = "core.client.check_proposal"


class Hoarder(Member):
    """A corrupt client: of every state it keeps a copy whose secrets are never erased."""

    @property
    def state(self) -> Any:
        return self.states[-1]

    @state.setter
    def state(self, state: ClientState) -> None:
        self.states += [fork(state), state]


def meeting(federation: Federation, corrupt: int, until: str = "upload") -> CheatingServer:
    """A server with that many corrupt clients, the last ones; it has been honest so far, but for what it proposed."""
    colluding = federation.ids[len(federation.ids) - corrupt :]
    return prepared(federation, until, corrupt=colluding, kinds=dict.fromkeys(colluding, Hoarder))


def proposing(federation: Federation, **changes: Any) -> Federation:
    """The same people and policies, and a server that proposes something else."""
    return dataclasses.replace(federation, params=replace(federation.params, **changes))


# Numbers of corrupt clients, thresholds, cohorts and degrees.


def shares_of_corrupt_clients(federation: Federation, corrupt: int) -> Outcome:
    """Nobody is asked to reveal anything: the corrupt clients' own shares are enough, or they are not."""
    server = meeting(federation, corrupt)
    return server.outcome(server.ids[0])


def two_views() -> Outcome:
    """With c = 0 two of six may be corrupt and the others still split into two quorums, one for each view."""
    server = meeting(proposing(make(6, 2), corrupt=0, min_survivors=3), 2)
    victim, friend, *others = server.honest
    if victim not in server.uploads:
        return server.refusal(victim)
    for view, who in (
        (server.view(), [victim, friend]),
        (server.view(survivors=server.uploads.keys() - {victim}), others),
    ):
        server.attest(who, view)
        for client in server.corrupt:
            signed = Attestation(server.session, client, messages.view_hash(view))
            server.attestations[client] = messages.sign(server.members[client].key, signed)
        server.reveal(who, server.request(view))
    return server.outcome(victim)


def small_cohort(federation: Federation, corrupt: int) -> Outcome:
    """Only the victim and some corrupt clients are asked to upload; the rest attest and reveal as late clients do."""
    server = meeting(federation, corrupt, "hold")
    server.upload([server.ids[0], *sorted(server.corrupt)])
    return without_the_corrupt(server)


def small_roster(federation: Federation, corrupt: int) -> Outcome:
    """Only the victim and some corrupt clients are in the roster."""
    colluding = federation.ids[-corrupt:]
    server = CheatingServer(federation, corrupt=colluding, kinds=dict.fromkeys(colluding, Hoarder))
    server.advertise([server.ids[0], *colluding])
    server.share()
    server.hold()
    server.upload()
    return without_the_corrupt(server)


def without_the_corrupt(server: CheatingServer) -> Outcome:
    """The server removes the masks as an honest one would, and takes away what the corrupt clients contributed."""
    victim = server.ids[0]
    if victim not in server.uploads:
        return server.refusal(victim)
    server.attest()
    server.reveal()
    if server.refused:
        return server.refusal(victim)
    summed, segments = server.sum_over(sorted(server.uploads)), server.federation.params.segments
    if summed is None:
        return server.refusal(victim)
    for client in server.corrupt:
        summed -= server.members[client].vector
    if np.array_equal(reduce_to_width(summed, segments), reduce_to_width(server.members[victim].vector, segments)):
        return Outcome(True, "the sum less what the corrupt clients sent is the victim's vector, every entry")
    return server.refusal(victim)


def surrounded() -> Outcome:
    """Two holders for each client: some client drew two corrupt ones, and no honest client drew it."""
    server = meeting(make(9, 3, degree=2), 3)
    if server.uploads:
        server.attest()
        server.reveal()
    victim = next((client for client in server.honest if peers(server, client) <= server.corrupt), server.ids[0])
    return server.outcome(victim)


def peers(server: CheatingServer, client: bytes) -> set[bytes]:
    """Whom a client masks with."""
    holding = next((state for state in server.members[client].states if hasattr(state, "peers")), None)
    return set(server.ids) if holding is None else set(holding.peers)


def graph_of_any_degree(policy: Policy, params: SessionParams, roster: int) -> Graph:
    """`roster_graph` without its rules."""
    return Graph(roster, params.degree, params.corrupt)


# Other terms.


def under_other_terms(policy: Mapping[str, Any], params: Mapping[str, Any]) -> Callable[[], Outcome]:
    """A whole session under these parameters; won if the victim's vector is in its sum."""

    def play() -> Outcome:
        federation = proposing(make(5, 1, **policy), **params)
        server = prepared(federation, "upload")
        victim = server.ids[0]
        if victim not in server.uploads:
            return server.refusal(victim)
        server.attest()
        server.reveal()
        plain = np.zeros(federation.params.length, dtype=np.uint64)
        for member in server.members.values():
            plain += member.vector
        plain = reduce_to_width(plain, federation.params.segments)
        found = server.sum_over(server.ids)
        return Outcome(found is not None and np.array_equal(found, plain), "the victim's vector is in the sum")

    return play


def task(**changes: Any) -> dict[str, Task]:
    return {"task": replace(TASK, **changes)}


PROMPTED = {"prompt_mode": "local", "prompt_tokens": 2, "prompt_dimension": 8, "prompt_source": bytes(32)}
TERMS_OFFERED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("another backbone's weights", "backbone_hash", {}, task(backbone_hash=b"\1" * 32)),
    ("another class list", "classes", {}, task(classes=("dog", "cat"))),
    ("exact sums where a private release was agreed", "release", {"release": "distributed: epsilon 1"}, {}),
    ("another private release than agreed", "release", {"release": "epsilon 1"}, task(release="epsilon 8")),
    ("a lower image cap", "max_images", {}, task(max_images=10)),
    ("a higher image cap", "max_images", {}, task(max_images=2**30)),
    ("a negative image cap", "max_images", {"max_images": -1}, task(max_images=-1)),
    ("a prompt mode that was not agreed", "prompt_modes", {"prompt_modes": frozenset({"none"})}, task(**PROMPTED)),
    ("a feature bound that is no number", "feature_bound", {}, task(feature_bound=math.nan)),
    ("a segment of no entries", "segments", {}, {"segments": (Segment("x", 5, 3, True), Segment("y", 0, 3, True))}),
    ("the complete graph for 300 clients", "degree", {}, {"clients": 300}),
    ("a session of another server", "servers", {"servers": frozenset({bytes(32)})}, {}),
]


test_defended, test_control = suite(
    Attack(
        6,
        "a threshold of one",
        VICTIM,
        lambda: shares_of_corrupt_clients(make(6, 1, min_threshold=1), 1),
        "core.graph.threshold",
        "too few shares",
        always(1),
    ),
    Attack(
        6,
        "a threshold that corrupt clients reach alone",
        VICTIM,
        lambda: shares_of_corrupt_clients(make(6, 2), 2),
        "core.graph.threshold",
        "too few shares",
        always(2),
    ),
    Attack(
        6,
        "a negative number of corrupt clients, and so a low threshold",
        VICTIM,
        lambda: shares_of_corrupt_clients(proposing(make(6, 2), corrupt=-4, min_survivors=3), 2),
        PROPOSAL,
        "'corrupt'",
    ),
    Attack(6, "c understated, and two views", VICTIM, two_views, PROPOSAL, "'corrupt'"),
    Attack(
        6,
        "c understated, and a cohort of the victim and corrupt clients",
        VICTIM,
        lambda: small_cohort(proposing(make(6, 2), corrupt=0, min_survivors=3), 2),
        PROPOSAL,
        "'corrupt'",
    ),
    Attack(
        6,
        "a cohort of one",
        VICTIM,
        lambda: small_cohort(make(5, 1), 0),
        "core.checks.cohort_is_reached",
        "'min_survivors'",
    ),
    Attack(
        6,
        "a cohort of the victim and c corrupt clients",
        VICTIM,
        lambda: small_cohort(make(6, 2), 2),
        "core.checks.cohort_is_reached",
        "'min_survivors'",
    ),
    Attack(
        6,
        "a degree of two on a sparse graph",
        VICTIM,
        surrounded,
        "core.client.roster_graph",
        "holders are too few",
        graph_of_any_degree,
    ),
    *(
        Attack(6, name, TERMS, under_other_terms(policy, params), PROPOSAL, f"'{rule}'")
        for name, rule, policy, params in TERMS_OFFERED
    ),
)


# Where two defences stand in the way.


ROSTER, COHORT = "fedopal_secure.core.client.roster_graph", "fedopal_secure.core.checks.cohort_is_reached"
PROPOSED = f"fedopal_secure.{PROPOSAL}"


@contextlib.contextmanager
def without(removed: Sequence[str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in removed:
            stack.enter_context(mock.patch(name, graph_of_any_degree if name == ROSTER else nothing))
        yield


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ((), "a roster of 3 cannot give a cohort of 4"),
        ((COHORT,), "a roster of 3 cannot give a cohort of 4"),
        ((ROSTER,), "3 survivors, and 4 are needed"),
        ((ROSTER, COHORT), "the victim's vector"),
    ],
)
def test_a_roster_of_the_victim_and_corrupt_clients_meets_two_defences(removed: Sequence[str], told: str) -> None:
    """It cannot give the cohort, and were it let in, the cohort of the view is counted again."""
    with without(removed):
        outcome = small_roster(make(6, 2), 2)
    assert outcome.won == (len(removed) == 2)
    assert told in outcome.told


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ((), "1 survivors proposed; with c = 2 it takes 4 to 6"),
        ((COHORT,), "1 survivors proposed; with c = 2 it takes 4 to 6"),
        ((PROPOSED,), "3 survivors, and 4 are needed"),
        ((PROPOSED, COHORT), "the victim's vector"),
    ],
)
def test_a_proposed_cohort_below_the_least_meets_two_defences(removed: Sequence[str], told: str) -> None:
    """The proposal is refused, and were it not, every client counts with the least cohort all the same."""
    with without(removed):
        outcome = small_cohort(proposing(make(6, 2), min_survivors=1), 2)
    assert outcome.won == (len(removed) == 2)
    assert told in outcome.told


# Refusals by rule that `tests/core/test_policy.py` has not.

REFUSED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("min_threshold", {"min_threshold": 5}, {}),
    ("prompt_modes", {"prompt_modes": frozenset({"none"})}, task(**PROMPTED)),
]


@pytest.mark.parametrize(("rule", "policy", "params"), REFUSED)
def test_refused_by_rule(rule: str, policy: dict[str, Any], params: dict[str, Any]) -> None:
    federation = make(5, 1, **policy)
    with pytest.raises(PolicyRefusal) as caught:
        check_proposal(federation.policy, replace(federation.params, **params))
    assert caught.value.rule == rule


def test_a_proposal_is_refused_before_anything_is_sent() -> None:
    """Whatever is wrong with it: no client answers."""
    for _, _, policy, params in TERMS_OFFERED:
        server = CheatingServer(proposing(make(5, 1, **policy), **params))
        server.advertise()
        assert not server.adverts
        assert set(server.refused) == set(server.ids)
        assert all(isinstance(error, PolicyRefusal) for error in server.refused.values())
        assert all(not member.states for member in server.members.values())
