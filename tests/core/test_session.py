"""Whole sessions: the exact sum of those who uploaded, or an abort that names the right rule. Nothing in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedopal_secure.core import client, messages, server
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import ClientFault, MisuseError, ServerFault, SessionAborted
from fedopal_secure.core.messages import KEY_SHARE, SEED_SHARE, Context
from fedopal_secure.core.params import Segment
from fedopal_secure.core.states import ParentView
from tests.core.harness import PHASES, PRIMES, Federation, Run, fork, make, read, run, segments

MODULI = st.sampled_from((0, 0, *PRIMES))


# An oracle that knows the rules of the protocol and none of its code.


def expected_abort(n: int, c: int, lost: dict[str, int], late: int, least: int) -> str | None:
    """The rule that stops a session of n clients in which `lost` many leave at each phase; None if it gives a sum.

    `late` of those still there at upload miss it but stay.
    """
    roster = n - lost["advertise"]
    if roster < least:
        return "min_survivors"
    t = (roster + c) // 2 + 1
    sharers = roster - lost["share"]
    if sharers < least:
        return "min_survivors"
    if sharers < t:
        return "threshold"
    present = sharers - lost["upload"]
    if present - late < least:
        return "min_survivors"
    attesters = present - lost["attest"]
    if 2 * attesters <= roster + c:
        return "quorum"
    if attesters - lost["reveal"] < t:
        return "threshold"
    return None


def opened_shares(result: Run) -> Iterable[tuple[bytes, bytes, bytes]]:
    """(holder, dealer, kind) of every share that anybody released, told by the dealers' own commitments."""
    ids = [advert.sender for advert in roster_of(result).adverts]
    dealt = {i: read(messages.Shares, data).message for i, data in result.sent("share").items()}
    for holder, data in result.sent("reveal").items():
        reveal = read(messages.Reveal, data)
        place = ids.index(holder)
        for share in (*reveal.seed_shares, *reveal.key_shares):
            for dealer, message in dealt.items():
                for kind, commitments in (
                    (KEY_SHARE, message.key_commitments),
                    (SEED_SHARE, message.seed_commitments),
                ):
                    if messages.share_commitment(message.session, dealer, place + 1, kind, share) == commitments[place]:
                        yield holder, dealer, kind


def roster_of(result: Run) -> messages.Roster:
    return read(messages.Roster, next(iter(result.sent("share", up=False).values())))


def check(result: Run, rule: str | None, survivors: set[bytes]) -> None:
    """The sum if `rule` is None, else that abort; and no client released two kinds of share for one dealer."""
    assert not result.faults
    assert not result.refusals
    if rule is None:
        assert result.error is None
        assert result.sum is not None
        assert set(result.sum.survivors) == survivors
        assert not result.sum.blame
        np.testing.assert_array_equal(result.sum.total, result.plain_sum(survivors))
    else:
        assert isinstance(result.error, SessionAborted), result.error
        assert result.error.rule == rule
        assert result.sum is None
    reveals = result.sent("reveal")
    if rule is not None:
        # Some may have revealed before too many others left; without t of them that tells nothing.
        assert len(reveals) < result.state.records.graph.threshold or not reveals
        assert rule == "threshold" or not reveals
    released: dict[bytes, set[bytes]] = {}
    if reveals:
        for _, dealer, kind in opened_shares(result):
            released.setdefault(dealer, set()).add(kind)
        sharers = set(result.state.records.shares)
        assert released == {i: {SEED_SHARE if i in survivors else KEY_SHARE} for i in sharers}


def edges(part: Segment) -> st.SearchStrategy[int]:
    """Integers at the edges of a width: around 0, around half of the range, around its end."""
    half, whole = 1 << (8 * part.width - 1), 1 << (8 * part.width)
    low, high = (-half, half - 1) if part.signed else (0, whole - 1)
    near = [edge + step for edge in (0, low, high, half, -half) for step in (-1, 0, 1)]
    return st.sampled_from([value for value in near if low <= value <= high]) | st.integers(low, high)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[Federation, dict[str, list[bytes]], list[bytes], dict[bytes, np.ndarray], int]:
    n = draw(st.integers(3, 9))
    c = draw(st.integers(0, n - 2))
    modulus = draw(MODULI)
    parts = [
        Segment(f"s{place}", draw(st.integers(1, 4)), draw(st.integers(1, 8)), draw(st.booleans()))
        for place in range(draw(st.integers(1, 4)))
    ]
    least = max(3, c + 2)
    if least > n:
        c, least = 0, 3
    federation = make(n, c, parts=parts, modulus=modulus, min_survivors=draw(st.integers(least, n)))
    # When somebody leaves; most stay, or no session would get far.
    leaves = draw(
        st.lists(st.sampled_from((None,) * 12 + PHASES + ("late",)), min_size=n, max_size=n).map(
            lambda when: dict(zip(federation.ids, when, strict=True))
        )
    )
    drops = {phase: [i for i in federation.ids if leaves[i] == phase] for phase in PHASES}
    late = [i for i in federation.ids if leaves[i] == "late"]
    vectors = {}
    for identity in federation.ids:
        if modulus:
            near = st.sampled_from((0, 1, modulus // 2, modulus - 2, modulus - 1)) | st.integers(0, modulus - 1)
            values = [draw(near) for part in parts for _ in range(part.length)]
        else:
            values = [draw(edges(part)) % 2**64 for part in parts for _ in range(part.length)]
        vectors[identity] = np.array(values, dtype=np.uint64)
    return federation, drops, late, vectors, draw(st.integers(0, 2**32))


@settings(max_examples=90, deadline=None, derandomize=True)
@given(sessions())
def test_the_sum_is_exact_or_the_right_rule_aborts(case):
    federation, drops, late, vectors, order = case
    result = run(federation, vectors=vectors, drops=drops, late=late, order=order)
    lost = {phase: len(ids) for phase, ids in drops.items()}
    params = federation.params
    rule = expected_abort(len(federation.ids), params.corrupt, lost, len(late), params.min_survivors)
    gone = {i for phase in PHASES[:3] for i in drops[phase]}
    check(result, rule, set(federation.ids) - gone - set(late))


@pytest.mark.parametrize(("n", "c", "modulus"), [(16, 3, 0), (30, 6, PRIMES[0])])
def test_larger_rosters(n, c, modulus):
    federation = make(n, c, modulus=modulus)
    ids = federation.ids
    drops = {"advertise": ids[:1], "share": ids[3:4], "upload": ids[7:9], "attest": ids[11:12], "reveal": ids[12:13]}
    check(run(federation, drops=drops, order=n), None, set(ids) - {ids[0], ids[3], ids[7], ids[8]})


# The table: how many may leave, and what happens when one more does.

TABLE = [
    # n, c, leaving before advertise, share, upload, attest, reveal; the rule that stops it
    (12, 2, (1, 1, 2, 0, 1), None),
    (12, 2, (1, 1, 2, 1, 0), None),
    (12, 2, (1, 1, 2, 1, 1), "threshold"),
    (12, 2, (1, 1, 2, 2, 0), "quorum"),
    (12, 2, (1, 1, 2, 0, 2), "threshold"),
    (12, 2, (1, 5, 0, 0, 0), "threshold"),
    (12, 2, (1, 7, 0, 0, 0), "threshold"),
    (12, 2, (1, 8, 0, 0, 0), "min_survivors"),
    (12, 2, (9, 0, 0, 0, 0), "min_survivors"),
    (12, 2, (0, 0, 9, 0, 0), "min_survivors"),
    (5, 1, (1, 0, 1, 0, 0), None),
    (5, 1, (1, 0, 1, 0, 1), "threshold"),
    (5, 1, (1, 1, 1, 0, 0), "min_survivors"),
    (5, 1, (0, 0, 1, 0, 0), None),
    (5, 1, (0, 0, 1, 1, 0), "quorum"),
    (3, 0, (0, 0, 0, 0, 0), None),
    (3, 0, (0, 0, 0, 0, 1), None),
    (3, 0, (0, 0, 0, 1, 0), None),
    (3, 0, (0, 0, 0, 1, 1), "threshold"),
    (3, 0, (0, 0, 1, 0, 0), "min_survivors"),
    (3, 0, (0, 1, 0, 0, 0), "min_survivors"),
    (3, 0, (1, 0, 0, 0, 0), "min_survivors"),
]


@pytest.mark.parametrize(("n", "c", "leaving", "rule"), TABLE)
def test_tolerated_dropouts(n, c, leaving, rule):
    federation = make(n, c)
    remaining = list(federation.ids)
    drops = {phase: [remaining.pop() for _ in range(count)] for phase, count in zip(PHASES, leaving, strict=True)}
    result = run(federation, drops=drops)
    gone = {i for phase in PHASES[:3] for i in drops[phase]}
    check(result, rule, set(federation.ids) - gone)


@pytest.mark.parametrize(("n", "c", "leaving", "rule"), TABLE)
def test_the_oracle_knows_the_table(n, c, leaving, rule):
    assert expected_abort(n, c, dict(zip(PHASES, leaving, strict=True)), 0, max(3, c + 2)) == rule


def test_threshold_and_outcome_are_reported():
    federation = make(12, 2)
    ids = federation.ids
    assert run(federation, drops={"share": ids[1:2]}, stop="upload").state.sharers == (ids[0], *ids[2:])
    result = run(federation, drops={"advertise": ids[:1], "share": ids[1:2], "upload": ids[2:4], "reveal": ids[4:5]})
    assert result.sum is not None
    assert result.sum.threshold == 7
    assert result.sum.survivors == ids[4:]
    assert result.sum.dropped == ids[2:4]
    assert result.sum.session == result.state.session


def test_too_few_sharers_are_not_asked_to_upload():
    """Three clients, t = 2: two who shared could unmask a sum, but not one that anybody would attest."""
    federation = make(3)
    result = run(federation, drops={"share": federation.ids[:1]})
    check(result, "min_survivors", set())
    assert not result.sent("upload", up=False)


def test_a_long_vector_crosses_the_blocks_of_the_keystream():
    for modulus in (0, PRIMES[1]):
        federation = make(3, parts=segments((20_000, 8), (13_001, 3)), modulus=modulus)
        check(run(federation), None, set(federation.ids))


def test_arrival_order_does_not_matter():
    federation = make(5, 1)
    totals = [run(federation, order=order).sum.total for order in range(3)]
    np.testing.assert_array_equal(totals[0], totals[1])
    np.testing.assert_array_equal(totals[0], totals[2])


# A client whose upload came too late.


def test_a_late_client_attests_and_reveals():
    """Five clients, t = 4: without the late client's share nothing could be rebuilt."""
    federation = make(5, 1)
    late = federation.ids[2]
    survivors = set(federation.ids) - {late}
    check(run(federation, late=[late], drops={"reveal": federation.ids[:1]}), None, survivors)
    assert run(federation, drops={"upload": [late], "reveal": federation.ids[:1]}).error.rule == "threshold"


def test_who_attested_without_upload_can_never_upload():
    result = run(make(5, 1), late=(who := make(5, 1).ids[2:3]), stop="reveal")
    state = result.members[who[0]].state
    with pytest.raises(MisuseError, match="'upload' cannot follow"):
        client.upload(state, result.members[who[0]].vector, b"", None)


def test_a_late_upload_is_refused():
    """The server shows a view without it; what it sends later is of no phase."""
    result = run(make(4), tamper=lambda letter: None if letter.step == "upload" and letter.up else letter.data)
    assert isinstance(result.error, SessionAborted)
    federation = make(4)
    slow = federation.ids[0]
    result = run(
        federation,
        stop="reveal",
        tamper=lambda letter: (
            None if (letter.step, letter.client, letter.up) == ("upload", slow, True) else letter.data
        ),
    )
    # It did upload, so a view without it is a lie to it, whoever lost the message.
    assert isinstance(result.refusals[slow], ServerFault)
    with pytest.raises(ClientFault):
        server.receive(result.state, slow, result.sent("upload")[slow])


def test_the_server_may_wait_for_more_after_too_few():
    federation = make(4)
    slow = federation.ids[:2]

    def lose(letter):
        return None if (letter.step, letter.up) == ("upload", True) and letter.client in slow else letter.data

    result = run(federation, tamper=lose)
    assert isinstance(result.error, SessionAborted)
    state = server.receive(result.state, slow[0], result.sent("upload")[slow[0]])
    _, views = server.close(state)
    assert set(views) == set(federation.ids)


# A chain of two sessions.


def parent_and_context(
    n: int = 5, c: int = 1, **options: object
) -> tuple[Run, Federation, dict[bytes, ParentView], Context]:
    """A finished session, and what the next one needs."""
    parent = run(make(n, c), **options)
    views = {i: m.state.view for i, m in parent.members.items() if isinstance(m.state, client.Revealed)}
    child = parent.federation.child(parent.sum.session)
    session = server.start(child.params, child.members, child.host)[0].session
    return parent, child, views, Context(session, parent.sum.session, parent.sum.view, parent.sum.survivors, b"mean")


def test_a_chain_gives_the_exact_sum():
    parent, child, views, context = parent_and_context()
    assert set(views.values()) == {ParentView(parent.sum.session, parent.sum.view, parent.sum.survivors)}
    check(run(child, parents=views, context=context), None, set(child.ids))


def test_a_late_client_in_a_chain():
    _, child, views, context = parent_and_context()
    late = child.ids[:1]
    check(run(child, parents=views, context=context, late=late), None, set(child.ids[1:]))


def test_who_was_late_in_the_parent_is_no_survivor_of_the_child():
    """It is not asked for its upload, and the round goes on; it may still attest and reveal."""
    late = make(5, 1).ids[3]
    _, child, views, context = parent_and_context(late=[late])
    assert late in views
    assert late not in context.parent_survivors
    result = run(child, parents=views, context=context)
    assert not result.faults
    assert late in result.sent("reveal")
    np.testing.assert_array_equal(result.sum.total, result.plain_sum(set(child.ids) - {late}))
    check(run(child, parents=views, context=context, late=[late]), None, set(child.ids) - {late})


def test_who_was_late_in_the_parent_does_not_upload_if_asked(monkeypatch):
    """Or it would blame the server for the view that leaves it out, and the server it for the upload."""
    late = make(5, 1).ids[3]
    _, child, views, context = parent_and_context(late=[late])
    state = run(child, parents=views, context=context, stop="upload")
    member = state.members[late]
    relay = run(child, parents=views, context=context, stop="attest").sent("hold", up=False)[late]
    member.hold(relay)
    copy = fork(member.state)
    with pytest.raises(ServerFault, match="although we are no survivor"):
        client.check_context(fork(member.state), encode(context), views[late])
    with pytest.raises(ServerFault, match="although we are no survivor"):
        client.upload(member.state, member.vector, encode(context), views[late])
    monkeypatch.setattr("fedopal_secure.core.checks.we_survived_the_parent", lambda *_: None)
    sent = client.upload(copy, member.vector, encode(context), views[late])[1]
    opened = run(child, parents=views, context=context, late=child.ids, stop="attest").state
    with pytest.raises(ClientFault, match="survivor of the parent"):
        server.receive(opened, late, sent)


def test_clients_refuse_a_survivor_who_was_not_the_parents(monkeypatch):
    """A server that takes the upload all the same gets no signature; without the check it gets a sum."""
    monkeypatch.setattr("fedopal_secure.core.checks.we_survived_the_parent", lambda *_: None)
    late = make(5, 1).ids[3]
    _, child, views, context = parent_and_context(late=[late])

    honest = server.open_uploads

    def careless(state, told):
        following, data = honest(state, told)
        following.records.parent_survivors = child.ids
        return following, data

    monkeypatch.setattr(server, "open_uploads", careless)
    result = run(child, parents=views, context=context)
    assert isinstance(result.error, SessionAborted)
    assert result.error.rule == "quorum"
    assert {str(error) for error in result.refusals.values()} == {"a survivor was not one of the parent session"}
    assert not result.sent("reveal")
    monkeypatch.setattr("fedopal_secure.core.checks.survivors_are_the_parents", lambda *_: None)
    assert run(child, parents=views, context=context).sum is not None


@pytest.mark.parametrize(
    "change",
    [
        {"parent_view": bytes(32)},
        {"parent_survivors": ()},
        {"parent_survivors": make(5, 1).ids[:4]},
        {"parent": bytes(32)},
        {"parent": b"", "parent_view": b"", "parent_survivors": ()},
        {"session": bytes(32)},
    ],
)
def test_a_wrong_parent_view_is_refused(change):
    _, child, views, context = parent_and_context()
    lie = messages.encode(msgspec.structs.replace(context, **change))

    def tamper(letter):
        return lie if letter.step == "upload" and not letter.up else letter.data

    result = run(child, parents=views, context=context, tamper=tamper)
    assert set(result.refusals) == set(child.ids)
    assert all(isinstance(error, ServerFault) for error in result.refusals.values())
    assert not result.sent("upload")
    assert isinstance(result.error, SessionAborted)


def test_who_did_not_see_the_parent_end_takes_no_part():
    _, child, views, context = parent_and_context()
    stranger = child.ids[0]
    del views[stranger]
    result = run(child, parents=views, context=context)
    assert isinstance(result.refusals[stranger], ServerFault)
    check(replace(result, members={i: m for i, m in result.members.items() if i != stranger}), None, set(child.ids[1:]))


def test_a_parent_that_the_parameters_do_not_name_is_refused():
    """The server proposes a fresh session to clients who take it for the next of their chain."""
    parent, _, views, _ = parent_and_context()
    loose = parent.federation.child(b"")
    result = run(loose, parents=views)
    assert set(result.refusals) == set(loose.ids)
    assert not result.sent("upload")


@pytest.mark.parametrize("change", [{"session": bytes(32)}, {"parent": bytes(32)}])
def test_the_server_is_told_of_a_context_that_cannot_work(change):
    _, child, _, context = parent_and_context()
    result = run(child, stop="upload")
    with pytest.raises(MisuseError, match="context"):
        server.open_uploads(result.state, msgspec.structs.replace(context, **change))
    server.open_uploads(result.state, context)
