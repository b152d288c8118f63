"""Sessions on a sparse graph: the exact sum whoever leaves, or the right abort; and what its clients refuse.

The parameters allow for more clients than there are, so that a roster of a dozen is sparse. What such a graph risks is
tested in tests/core/test_graph.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedopal_secure.core import checks, client, messages, server
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import ClientFault, PolicyRefusal, ServerFault, SessionAborted
from fedopal_secure.core.graph import Graph
from fedopal_secure.core.messages import KEY_SHARE, SEED_SHARE, Advert, Relay, Relayed, Roster, Sharer, View
from tests.core.harness import (
    PHASES,
    PRIMES,
    Federation,
    Letter,
    Member,
    Run,
    entropy,
    forge,
    fork,
    make,
    read,
    run,
)

N, C, DEGREE = 16, 1, 9  # t = 6 of 10 holders; a quorum is 9
IDS = make(N, C, degree=DEGREE).ids
VICTIM = IDS[3]


def sparse() -> Federation:
    return make(N, C, degree=DEGREE)


@cache
def honest() -> Run:
    """A whole session, for what everybody draws: the same entropy draws the same holders again."""
    result = run(sparse())
    assert result.error is None
    return result


def holders_of(result: Run) -> dict[bytes, tuple[bytes, ...]]:
    """Whom each dealer gave shares to, told by its own signed message."""
    roster = read(Roster, next(iter(result.sent("share", up=False).values())))
    sent = {dealer: read(messages.Shares, data).message for dealer, data in result.sent("share").items()}
    return {
        dealer: tuple(roster.adverts[place].sender for place in message.holders) for dealer, message in sent.items()
    }


def drawn_by(who: bytes, result: Run | None = None) -> tuple[bytes, ...]:
    """Its holders without itself."""
    return tuple(holder for holder in holders_of(result or honest())[who] if holder != who)


def assert_sum(result: Run, survivors: Collection[bytes]) -> None:
    """The exact sum, and not both kinds of share released of anybody."""
    assert not result.faults
    assert not result.refusals
    assert result.error is None
    assert set(result.sum.survivors) == set(survivors)
    assert not result.sum.blame
    np.testing.assert_array_equal(result.sum.total, result.plain_sum(survivors))
    sent = {dealer: read(messages.Shares, data).message for dealer, data in result.sent("share").items()}
    holders, released = holders_of(result), {dealer: set() for dealer in sent}
    for holder, data in result.sent("reveal").items():
        shown = read(messages.Reveal, data)
        dealers = [dealer for dealer in sorted(sent) if holder in holders[dealer]]
        assert len(shown.seed_shares) + len(shown.key_shares) == len(dealers)
        for share in (*shown.seed_shares, *shown.key_shares):
            for dealer in dealers:
                message, place = sent[dealer], holders[dealer].index(holder)
                index = message.holders[place] + 1
                for kind, commitments in ((KEY_SHARE, message.key_commitments), (SEED_SHARE, message.seed_commitments)):
                    if messages.share_commitment(message.session, dealer, index, kind, share) == commitments[place]:
                        released[dealer].add(kind)
    assert released == {dealer: {SEED_SHARE if dealer in set(survivors) else KEY_SHARE} for dealer in sent}


# Sums.


@pytest.mark.parametrize("modulus", [0, PRIMES[0]])
@pytest.mark.parametrize(("n", "c", "degree"), [(12, 0, 7), (16, 1, 12), (24, 2, 16), (40, 3, 18)])
def test_nobody_leaves(n, c, degree, modulus):
    federation = make(n, c, degree=degree, modulus=modulus)
    result = run(federation, order=n)
    assert_sum(result, federation.ids)
    assert result.sum.threshold == Graph(n, degree, c).threshold
    assert all(len(holders) == degree + 1 for holders in holders_of(result).values())
    assert len(set(holders_of(result).values())) > n // 2  # everybody draws its own


@pytest.mark.parametrize("modulus", [0, PRIMES[0]])
@pytest.mark.parametrize(("n", "c", "degree"), [(17, 1, 12), (25, 2, 16), (40, 3, 20)])
def test_one_leaves_at_every_phase_and_one_is_late(n, c, degree, modulus):
    federation = make(n, c, degree=degree, modulus=modulus)
    ids = federation.ids
    drops = dict(zip(PHASES, ([ids[0]], [ids[4]], [ids[7]], [ids[9]], [ids[11]]), strict=True))
    result = run(federation, drops=drops, late=[ids[2]], order=n)
    assert_sum(result, set(ids) - {ids[0], ids[4], ids[7], ids[2]})
    assert result.sum.dropped == tuple(sorted((ids[7], ids[2])))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("modulus", [0, PRIMES[1]])
def test_two_leave_at_one_phase(phase, modulus):
    federation = make(N, C, degree=11, modulus=modulus)
    gone = federation.ids[4:6]
    result = run(federation, drops={phase: gone})
    assert_sum(result, set(federation.ids) - (set(gone) if phase in PHASES[:3] else set()))


def expected_abort(result: Run, drops: dict[str, list[bytes]], late: list[bytes]) -> str | None:
    """The rule that stops a session, from who left and whom everybody drew; None if it gives a sum."""
    params = result.federation.params
    roster = set(result.federation.ids) - set(drops["advertise"])
    if len(roster) < params.min_survivors:
        return "min_survivors"
    graph = Graph(len(roster), params.degree, params.corrupt)
    if not graph.sound(params.min_survivors):
        return "degree"
    sharers = roster - set(drops["share"])
    if len(sharers) < params.min_survivors:
        return "min_survivors"
    holders = holders_of(result)
    t = graph.threshold
    if any(len(sharers & set(holders[dealer])) < t for dealer in sharers):
        return "threshold"
    present = sharers - set(drops["upload"])
    survivors = present - set(late)
    if len(survivors) < params.min_survivors:
        return "min_survivors"
    if any(len(survivors & set(holders[dealer])) < t for dealer in survivors):
        return "threshold"
    attesters = present - set(drops["attest"])
    if 2 * len(attesters) <= len(roster) + params.corrupt:
        return "quorum"
    helpers = attesters - set(drops["reveal"])
    if any(len(helpers & set(holders[dealer])) < t for dealer in sharers):
        return "threshold"
    return None


@st.composite
def sessions(draw: st.DrawFn) -> tuple[Federation, dict[str, list[bytes]], list[bytes], int]:
    n, c = draw(st.integers(12, 18)), draw(st.integers(0, 3))
    degree = draw(st.integers(n // 2, n - 1))
    federation = make(n, c, degree=degree, modulus=draw(st.sampled_from((0, *PRIMES))))
    leaves = draw(st.lists(st.sampled_from((None,) * 14 + PHASES + ("late",)), min_size=n, max_size=n))
    drops = {phase: [i for i, when in zip(federation.ids, leaves, strict=True) if when == phase] for phase in PHASES}
    late = [i for i, when in zip(federation.ids, leaves, strict=True) if when == "late"]
    return federation, drops, late, draw(st.integers(0, 2**32))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(sessions())
def test_the_sum_is_exact_or_the_right_rule_aborts(case):
    federation, drops, late, order = case
    result = run(federation, drops=drops, late=late, order=order)
    rule = expected_abort(result, drops, late)
    if rule is None:
        assert_sum(result, set(federation.ids) - {i for phase in PHASES[:3] for i in drops[phase]} - set(late))
    else:
        assert isinstance(result.error, SessionAborted), result.error
        assert result.error.rule == rule
        assert result.sum is None
        assert not result.faults
        assert not result.refusals


def test_the_oracle_has_seen_sums_and_aborts():
    """The control of the test above: drops that it knows the outcome of."""
    nobody = {phase: [] for phase in PHASES}
    assert expected_abort(honest(), nobody, []) is None
    assert expected_abort(honest(), nobody | {"upload": list(drawn_by(VICTIM)[:5])}, []) == "threshold"
    assert expected_abort(honest(), nobody | {"attest": list(IDS[:8])}, []) == "quorum"


# Too weak a graph.


@pytest.mark.parametrize(("n", "c", "degree"), [(12, 0, 4), (16, 1, 7), (12, 0, 12), (12, 0, 100), (20, 6, 8)])
def test_a_degree_that_is_wrong_for_the_roster(n, c, degree):
    """The server gives up, and a client that is asked to go on refuses by the same rule before it shares."""
    federation = make(n, c, degree=degree)
    result = run(federation)
    assert isinstance(result.error, SessionAborted)
    assert result.error.rule == "degree"
    assert not result.sent("share", up=False)
    adverts = tuple(read(Advert, data) for _, data in sorted(result.sent("advertise").items()))
    roster = encode(Roster(result.state.session, adverts))
    for member in result.members.values():
        with pytest.raises(PolicyRefusal) as caught:
            client.share(member.state, roster, entropy(b""))
        assert caught.value.rule == "degree"
        assert not any(secret._data for secret in member.states[0].secrets())


def test_a_roster_may_shrink_until_the_degree_is_wrong():
    federation = make(13, 0, degree=11)
    assert_sum(run(federation, drops={"advertise": federation.ids[:1]}), federation.ids[1:])
    assert run(federation, drops={"advertise": federation.ids[:2]}).error.rule == "degree"


def test_the_least_threshold_of_a_sparse_graph():
    """With all 257 clients t is 6; in a roster of 16 it is 6 as well, and a policy may ask for more."""
    assert run(make(N, C, degree=DEGREE, min_threshold=6)).sum is not None
    result = run(make(N, C, degree=DEGREE, min_threshold=7))
    assert {error.rule for error in result.refusals.values()} == {"min_threshold"}
    assert not result.sent("advertise")


# Adverts.


def test_a_client_checks_the_adverts_of_those_it_deals_with(monkeypatch):
    """Its holders' when it shares, and its other dealers' when it holds; nobody else's."""
    seen: dict[tuple[str, bytes], set[bytes]] = {}
    now: list[tuple[str, bytes]] = []
    check = checks.adverts_are_signed

    class Watched(Member):
        def share(self, roster: bytes) -> bytes:
            now[:] = [("share", self.identity)]
            return super().share(roster)

        def hold(self, relay: bytes) -> None:
            now[:] = [("hold", self.identity)]
            super().hold(relay)

    def spy(adverts, session):
        adverts = list(adverts)
        seen.setdefault(now[0], set()).update(advert.sender for advert in adverts)
        check(adverts, session)

    monkeypatch.setattr(checks, "adverts_are_signed", spy)
    result = run(sparse(), kinds=dict.fromkeys(IDS, Watched))
    holders = holders_of(result)
    for i in IDS:
        dealers = {dealer for dealer in IDS if i in holders[dealer]}
        assert seen["share", i] == set(holders[i])
        assert seen["hold", i] == dealers - set(holders[i])
    assert any(len(seen["share", i] | seen["hold", i]) < N for i in IDS)


def test_an_unsigned_advert_is_refused_by_those_who_drew_it():
    """The server shows everybody a roster in which one entry is not what that client signed."""

    def tamper(letter: Letter) -> bytes:
        if letter.step != "share" or letter.up:
            return letter.data
        roster = read(Roster, letter.data)
        adverts = tuple(
            msgspec.structs.replace(a, mask_key=bytes(32)) if a.sender == VICTIM else a for a in roster.adverts
        )
        return encode(msgspec.structs.replace(roster, adverts=adverts))

    result = run(sparse(), tamper=tamper)
    drew = {i for i in IDS if VICTIM in holders_of(honest())[i]}
    assert set(result.refusals) == drew
    assert all(isinstance(result.refusals[i], ServerFault) for i in drew)
    assert all("advert" in str(result.refusals[i]) for i in drew)
    # Who did not draw it shares for another roster than the server's, so nothing comes of it.
    assert set(result.faults) == set(IDS) - drew
    assert all("another roster" in str(fault) for fault in result.faults.values())


def shared_states() -> dict[bytes, Any]:
    """Everybody's state before the relay."""
    return {i: fork(member.state) for i, member in run(sparse(), stop="upload").members.items()}


def with_unsigned(state: Any, who: bytes) -> Any:
    """The same state, as if one advert of the roster had another key than was signed."""
    adverts = tuple(
        msgspec.structs.replace(a, mask_key=bytes(32)) if a.sender == who else a for a in state.room.roster.adverts
    )
    state.room = replace(state.room, roster=msgspec.structs.replace(state.room.roster, adverts=adverts))
    return state


def test_an_unsigned_advert_of_a_dealer_is_refused_when_it_deals():
    relays, holders = honest().sent("hold", up=False), holders_of(honest())
    met = {"dealer": 0, "nobody": 0}
    for i, state in shared_states().items():
        for other in IDS:
            if other in holders[i]:
                continue
            if i in holders[other]:
                with pytest.raises(ServerFault, match="the advert of"):
                    client.hold(with_unsigned(fork(state), other), relays[i])
                met["dealer"] += 1
            else:
                client.hold(with_unsigned(fork(state), other), relays[i])
                met["nobody"] += 1
    assert min(met.values()) > 10


# The relay.


def relayed(change: Any, to: bytes = VICTIM) -> Run:
    """A session in which one client is shown a changed relay."""

    def tamper(letter: Letter) -> bytes:
        if letter.step != "hold" or letter.up or letter.client != to:
            return letter.data
        return encode(change(read(Relay, letter.data)))

    return run(sparse(), tamper=tamper)


def redealt(dealer: bytes, **change: Any) -> Any:
    """A dealer signs what it should not; the list of sharers goes with it."""
    key = next(key for key in sparse().keys if key.identity == dealer)

    def apply(relay: Relay) -> Relay:
        dealers = tuple(
            Relayed(forge(key, d.message, **change), d.ciphertext) if d.message.sender == dealer else d
            for d in relay.dealers
        )
        changed = {d.message.sender: messages.share_message_hash(d.message) for d in dealers}
        sharers = tuple(Sharer(s.identity, changed.get(s.identity, s.message)) for s in relay.sharers)
        return Relay(relay.session, sharers, dealers)

    return apply


def a_dealer_to_the_victim() -> bytes:
    return next(dealer for dealer, holders in holders_of(honest()).items() if VICTIM in holders and dealer != VICTIM)


def bad_holders(dealer: bytes) -> dict[str, tuple[int, ...]]:
    """What a dealer may not name as its holders; all but the first two have the right number of them."""
    right = read(messages.Shares, honest().sent("share")[dealer]).message.holders
    own, victim = IDS.index(dealer), IDS.index(VICTIM)
    spare = next(place for place in range(N) if place not in right)
    foreign = [place for place in right if place not in (own, victim)]

    def swap(place: int, other: int) -> tuple[int, ...]:
        return tuple(sorted((set(right) - {place}) | {other}))

    return {
        "too few": tuple(place for place in right if place != foreign[0]),
        "too many": tuple(sorted((*right, spare))),
        "out of order": (right[1], right[0], *right[2:]),
        "repeated": tuple(sorted((*(place for place in right if place != foreign[0]), foreign[1]))),
        "not itself": swap(own, spare),
        "beyond the roster": swap(foreign[0], N),
        "negative": swap(foreign[0], -1),
    }


@pytest.mark.parametrize("fault", [*bad_holders(a_dealer_to_the_victim()), "not us"])
def test_clients_refuse_holders_that_do_not_fit(fault):
    dealer = a_dealer_to_the_victim()
    changes = bad_holders(dealer)
    right = read(messages.Shares, honest().sent("share")[dealer]).message.holders
    spare = next(place for place in range(N) if place not in right)
    changes["not us"] = tuple(sorted((set(right) - {IDS.index(VICTIM)}) | {spare}))
    result = relayed(redealt(dealer, holders=changes[fault]))
    assert set(result.refusals) == {VICTIM}
    assert isinstance(result.refusals[VICTIM], ServerFault)
    assert "does not fit" in str(result.refusals[VICTIM])
    assert VICTIM not in result.sent("upload")


@pytest.mark.parametrize("fault", bad_holders(VICTIM))
def test_the_server_refuses_holders_that_do_not_fit(fault):
    key = next(key for key in sparse().keys if key.identity == VICTIM)

    class Dealer(Member):
        def share(self, roster: bytes) -> bytes:
            shares = read(messages.Shares, super().share(roster))
            message = forge(key, shares.message, holders=bad_holders(VICTIM)[fault])
            return encode(messages.Shares(message, shares.ciphertexts))

    result = run(sparse(), kinds={VICTIM: Dealer})
    assert set(result.faults) == {VICTIM}
    assert isinstance(result.faults[VICTIM], ClientFault)
    assert "do not fit the roster" in str(result.faults[VICTIM])
    np.testing.assert_array_equal(result.sum.total, result.plain_sum(set(IDS) - {VICTIM}))


def test_a_client_that_too_few_of_its_holders_share_with_does_not_upload():
    """Five of its ten holders, itself among them, are in the list; everybody else is."""
    hidden = set(drawn_by(VICTIM)[:5])

    def change(relay: Relay) -> Relay:
        return Relay(
            relay.session,
            tuple(s for s in relay.sharers if s.identity not in hidden),
            tuple(d for d in relay.dealers if d.message.sender not in hidden),
        )

    result = relayed(change)
    assert isinstance(result.refusals[VICTIM], ServerFault)
    assert "5 of our holders shared, below the threshold of 6" in str(result.refusals[VICTIM])
    hidden.pop()
    # One more is enough to go on; that the list is not everybody's is then found by the server.
    result = relayed(change)
    assert "set of sharers" in str(result.faults[VICTIM])


def test_the_server_stops_when_too_few_holders_share():
    result = run(sparse(), drops={"share": drawn_by(VICTIM)[:5]})
    assert isinstance(result.error, SessionAborted)
    assert result.error.rule == "threshold"
    assert "holders of" in str(result.error)
    assert not result.sent("hold", up=False)


# Survivors.


def test_the_server_stops_when_a_survivor_loses_too_many_holders():
    """One has five of its ten holders left, itself among them, and it takes six."""
    result = run(sparse(), drops={"upload": drawn_by(VICTIM)[:5]})
    assert isinstance(result.error, SessionAborted)
    assert result.error.rule == "threshold"
    assert "holders of" in str(result.error)
    assert not result.sent("attest", up=False)


def isolating() -> Run:
    """The server claims that five of the victim's holders dropped out, to all alike."""
    hidden = set(drawn_by(VICTIM)[:5])

    def tamper(letter: Letter) -> bytes:
        if letter.step != "attest" or letter.up:
            return letter.data
        view = read(View, letter.data)
        survivors = tuple(header for header in view.survivors if header.sender not in hidden)
        return encode(msgspec.structs.replace(view, survivors=survivors))

    return run(sparse(), tamper=tamper)


def test_holders_refuse_a_view_that_isolates_a_dealer():
    """Everybody who holds a share of the victim refuses, and so no six shares of its seed can be had."""
    hidden = set(drawn_by(VICTIM)[:5])
    result = isolating()
    holders = holders_of(honest())
    left = set(IDS) - hidden
    thin = {dealer for dealer in left if len(left & set(holders[dealer])) < 6}
    assert VICTIM in thin
    refused = {i for i in left if any(i in holders[dealer] for dealer in thin)}
    assert refused >= set(holders[VICTIM]) - hidden
    for i in refused:
        assert "survive, below the threshold" in str(result.refusals[i])
    for i in hidden:  # they know that they uploaded
        assert "wrong about our own upload" in str(result.refusals[i])
    assert set(result.refusals) == refused | hidden
    assert not result.sent("reveal")


def test_without_that_check_they_sign_it(monkeypatch):
    """The control: only those whom the view leaves out complain."""
    monkeypatch.setattr(checks, "survivors_keep_holders", lambda *_: None)
    result = isolating()
    assert set(result.refusals) == set(drawn_by(VICTIM)[:5])
    assert set(result.sent("attest")) == set(IDS) - set(result.refusals)


def test_a_late_client_is_no_holder_that_survives():
    """Four holders of one client leave and a fifth is late: it would reveal, but it is not in the sum."""
    *gone, late = drawn_by(VICTIM)[:5]
    result = run(sparse(), late=[late], drops={"upload": gone})
    assert result.error.rule == "threshold"
    assert "holders of" in str(result.error)


def test_too_few_reveal_for_one_dealer():
    """Then the server may wait for more, and a few more are enough."""
    gone = drawn_by(VICTIM)[:5]
    result = run(sparse(), drops={"reveal": gone})
    assert isinstance(result.error, SessionAborted)
    assert result.error.rule == "threshold"
    assert "good shares of" in str(result.error)
    state, total = result.state, None
    for slow in gone:
        state = server.receive(state, slow, honest().sent("reveal")[slow])
        try:
            total = server.finish(state)
        except SessionAborted:
            assert not state.used
        else:
            break
    assert total is not None
    np.testing.assert_array_equal(total.total, honest().sum.total)


def test_a_phase_that_could_not_be_closed_may_be_closed_again():
    """The server waits for more after it tried too early; what it had counted by then is not counted twice."""
    federation = make(20, 0, degree=12)
    state = run(federation, stop="share").state
    relays, refused = None, 0
    for sender, sent in run(federation, stop="upload").sent("share").items():
        state = server.receive(state, sender, sent)
        try:
            _, relays = server.close(state)
            break
        except SessionAborted:
            refused += 1
    assert refused > Graph(20, 12, 0).threshold
    for relay in (relays or {}).values():
        dealers = [dealt.message.sender for dealt in read(Relay, relay).dealers]
        assert dealers == sorted(set(dealers))


def test_only_sharers_have_a_relay():
    """Although a holder that never shared was dealt to."""
    gone = IDS[3]
    state = run(sparse(), drops={"share": [gone]}, stop="upload").state
    relays = server._close_shares(state)
    assert gone in state.records.dealers
    assert gone not in relays
    assert set(relays) == set(IDS) - {gone}
    with pytest.raises(KeyError):
        relays[gone]
