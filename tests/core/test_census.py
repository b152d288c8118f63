"""The census: every client computes its sum again, and no statistic leaves a client while a class has too few people.

A round is two sessions here, the census over presence bits and the statistics that continue it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from fedopal_secure.core import census, checks, client, messages, server
from fedopal_secure.core.census import Census, Opening, recheck
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import MisuseError, PolicyRefusal, ServerFault, SessionAborted
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import CENSUS, Segment, check_params
from fedopal_secure.core.policy import check_proposal
from fedopal_secure.core.ring import U64
from fedopal_secure.core.states import ParentView, Revealed
from tests.core.harness import PRIMES, TASK, Federation, Member, Run, entropy, make, run, seed

N, C, MINIMUM = 7, 1, 3  # so at least 4 clients have to show a class
PRESENCE = (Segment("presence", 2, 1, False),)


def federation(minimum: int = MINIMUM, *, modulus: int = 0) -> Federation:
    """Those who ask for a census; the first session is that census."""
    made = make(N, C, parts=PRESENCE, modulus=modulus, min_contributors=minimum)
    task = msgspec.structs.replace(TASK, min_contributors=minimum)
    return replace(made, params=msgspec.structs.replace(made.params, name=CENSUS, task=task))


IDS = federation().ids


def presence(cats: int = N, dogs: int = N) -> dict[bytes, U64]:
    """The first so many have cats, the last so many have dogs."""
    return {i: np.array([place < cats, place >= N - dogs], dtype=np.uint64) for place, i in enumerate(IDS)}


def take(
    vectors: Mapping[bytes, U64] | None = None, *, minimum: int = MINIMUM, modulus: int = 0, **options: Any
) -> Run:
    """A census."""
    return run(federation(minimum, modulus=modulus), vectors=vectors or presence(), **options)


def views(parent: Run) -> dict[bytes, ParentView]:
    return {i: m.state.view for i, m in parent.members.items() if isinstance(m.state, Revealed)}


def following(parent: Run, name: str = "statistics") -> tuple[Federation, Context]:
    """The session that continues another, and its honest context."""
    child = parent.federation.child(parent.sum.session, name=name, segments=(Segment("x", 5, 3, True),))
    session = server.start(child.params, child.members, child.host)[0].session
    payload = b"" if parent.sum.opening is None else encode(parent.sum.opening)
    return child, Context(session, parent.sum.session, parent.sum.view, parent.sum.survivors, payload)


def go_on(parent: Run, **options: Any) -> Run:
    """The statistics after a census."""
    child, context = following(parent)
    return run(child, parents=views(parent), **{"context": context} | options)


# The sum, computed again.


@pytest.mark.parametrize("modulus", [0, 251, PRIMES[0]])
@pytest.mark.parametrize(
    "drops", [{}, {"upload": IDS[2:4]}, {"share": IDS[:1], "upload": IDS[6:]}, {"upload": IDS[:1], "reveal": IDS[3:4]}]
)
def test_every_client_finds_the_plain_sum(drops, modulus):
    result = take(presence(5, 4), modulus=modulus, drops=drops)
    gone = {i for phase in ("share", "upload") for i in drops.get(phase, ())}
    survivors = tuple(i for i in IDS if i not in gone)
    plain = tuple(int(count) for count in result.plain_sum(survivors))
    assert tuple(result.sum.total.tolist()) == plain
    told = views(result)
    assert set(told) == set(survivors) - set(drops.get("reveal", ()))
    for view in told.values():
        assert view.census is None
        assert recheck(view.witness, encode(result.sum.opening)) == Census(survivors, plain)


def test_a_late_client_finds_the_sum_too():
    late = IDS[1]
    result = take(presence(5, 4), late=[late])
    found = recheck(views(result)[late].witness, encode(result.sum.opening))
    assert found == Census(tuple(i for i in IDS if i != late), (4, 4))


def test_only_a_census_is_opened():
    assert run(make(N, C)).sum.opening is None
    assert all(view.witness is None for view in views(run(make(N, C))).values())
    assert not run(make(N, C)).state.records.payloads


@cache
def opened() -> tuple[Run, Opening]:
    """A census in which one client dropped out, and its opening."""
    result = take(presence(5, 4), drops={"upload": IDS[2:3]})
    return result, result.sum.opening


def put(entries: tuple[bytes, ...], place: int, entry: bytes) -> tuple[bytes, ...]:
    return (*entries[:place], entry, *entries[place + 1 :])


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def alter(name: str, place: int, change: Callable[[bytes], bytes]) -> Callable[[Opening], Opening]:
    return lambda o: msgspec.structs.replace(o, **{name: put(getattr(o, name), place, change(getattr(o, name)[place]))})


def resize(**change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]) -> Callable[[Opening], Opening]:
    return lambda o: msgspec.structs.replace(o, **{name: f(getattr(o, name)) for name, f in change.items()})


ALTERED: list[tuple[str, Callable[[Opening], Opening], str]] = [
    *((f"payload {k}", alter("payloads", k, flip), "another upload") for k in range(N - 1)),
    *((f"seed {k}", alter("seeds", k, flip), "did not commit to") for k in range(N - 1)),
    ("key", alter("mask_secrets", 0, lambda key: bytes([key[0] ^ 8]) + key[1:]), "was not advertised"),
    ("short payload", alter("payloads", 0, lambda payload: payload[:-1]), "another upload"),
    ("long payload", alter("payloads", 0, lambda payload: payload + b"\0"), "another upload"),
    ("payloads exchanged", resize(payloads=lambda p: p[::-1]), "another upload"),
    ("seeds exchanged", resize(seeds=lambda s: s[::-1]), "did not commit to"),
    ("payload missing", resize(payloads=lambda p: p[1:]), "view that was attested"),
    ("seed missing", resize(seeds=lambda s: s[1:]), "view that was attested"),
    ("key missing", resize(mask_secrets=lambda k: ()), "view that was attested"),
    ("payload more", resize(payloads=lambda p: (*p, p[0])), "view that was attested"),
    ("seed more", resize(seeds=lambda s: (*s, s[0])), "view that was attested"),
    ("key more", resize(mask_secrets=lambda k: k * 2), "view that was attested"),
    ("one survivor less", resize(payloads=lambda p: p[1:], seeds=lambda s: s[1:]), "view that was attested"),
    ("another session", lambda o: msgspec.structs.replace(o, session=bytes(32)), "view that was attested"),
]


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in ALTERED], ids=[case[0] for case in ALTERED])
def test_an_altered_opening_is_refused_by_every_client(change, words):
    result, opening = opened()
    lie = encode(change(opening))
    for view in views(result).values():
        with pytest.raises(ServerFault, match=words):
            recheck(view.witness, lie)
    told = go_on(result, context=msgspec.structs.replace(following(result)[1], payload=lie))
    # Who dropped out of the census is not asked.
    assert set(told.refusals) == set(result.sum.survivors)
    for who in views(result):
        assert isinstance(told.refusals[who], ServerFault)
        assert words in str(told.refusals[who])
    assert not told.sent("upload")


@pytest.mark.parametrize("payload", [b"", b"\xc0", encode(TASK)])
def test_something_else_than_an_opening_is_refused(payload):
    result, opening = opened()
    for data in (payload, encode(opening) + b"\0", encode(opening)[:-1]):
        told = go_on(result, context=msgspec.structs.replace(following(result)[1], payload=data))
        assert set(told.refusals) == set(result.sum.survivors)
        assert all("not a valid opening" in str(told.refusals[who]) for who in views(result))


def test_the_opening_of_another_census_is_refused():
    result, _ = opened()
    other = run(replace(federation(), start=seed("other")), vectors=presence(), drops={"upload": IDS[2:3]})
    for view in views(result).values():
        with pytest.raises(ServerFault):
            recheck(view.witness, encode(other.sum.opening))
    honest = other.sum.opening
    swapped = msgspec.structs.replace(honest, session=opened()[1].session)
    for view in views(result).values():
        with pytest.raises(ServerFault):
            recheck(view.witness, encode(swapped))


CHECKS = ("payloads_are_signed", "seeds_are_the_dealers", "mask_secrets_are_the_dealers")


@pytest.mark.parametrize(("check", "name"), list(zip(CHECKS, ("payloads", "seeds", "mask_secrets"), strict=True)))
def test_without_its_check_an_altered_opening_gives_another_sum(check, name, monkeypatch):
    """The control: one check taken away, one client believes whatever the server makes of that part."""
    result, opening = opened()
    witness = next(iter(views(result).values())).witness
    honest = recheck(witness, encode(opening))
    lie = encode(alter(name, 0, lambda data: bytes([data[0] ^ 8]) + data[1:])(opening))
    with pytest.raises(ServerFault):
        recheck(witness, lie)
    monkeypatch.setattr(checks, f"opening_{check}", lambda *_: None)
    assert recheck(witness, lie).contributors != honest.contributors


def test_entries_that_are_not_residues_are_refused():
    """A corrupt client and a corrupt server agree on an upload that no server should take."""

    class Wild(Member):
        def upload(self, context: bytes) -> bytes:
            upload = messages.Upload
            sent = super().upload(context)
            honest = census.decode(upload, sent, MisuseError)
            payload = b"\xfb" * len(honest.payload)  # 251
            header = messages.sign(
                self.key, msgspec.structs.replace(honest.header, payload_hash=messages.payload_hash(payload))
            )
            self.state.header = header
            return encode(upload(header, payload))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedopal_secure.core.ring.Ring.contains", lambda self, vector: True)
        result = take(modulus=251, kinds={IDS[3]: Wild})
    assert result.error is None
    for view in views(result).values():
        with pytest.raises(ServerFault, match="not residues"):
            recheck(view.witness, encode(result.sum.opening))


# Too few contributors.


def refused(told: Run, who: set[bytes], number: int) -> None:
    """All of these refused by the rule, naming the class."""
    assert set(told.refusals) == who
    for error in told.refusals.values():
        assert isinstance(error, PolicyRefusal)
        assert error.rule == "min_contributors"
        assert f"class {number} has" in str(error)


@pytest.mark.parametrize(
    ("cats", "dogs", "few"), [(7, 4, None), (4, 4, None), (7, 3, 1), (3, 7, 0), (0, 7, 0), (1, 1, 0)]
)
def test_a_class_that_too_few_hold_stops_every_client_before_its_upload(cats, dogs, few):
    told = go_on(take(presence(cats, dogs)))
    if few is None:
        assert told.error is None
        np.testing.assert_array_equal(told.sum.total, told.plain_sum(IDS))
        return
    refused(told, set(IDS), few)
    assert not told.sent("upload")
    assert isinstance(told.error, SessionAborted)


def test_a_context_can_be_checked_before_anything_is_computed():
    parent = take(presence(7, 3))
    child, context = following(parent)
    ready = run(child, stop="attest", late=IDS, parents=views(parent), context=context)
    state = ready.members[IDS[0]].state
    with pytest.raises(PolicyRefusal) as caught:
        client.check_context(state, encode(context), views(parent)[IDS[0]])
    assert caught.value.rule == "min_contributors"
    assert not state.used


def test_without_that_check_they_upload(monkeypatch):
    """The control."""
    monkeypatch.setattr(checks, "census_allows", lambda *_: None)
    assert go_on(take(presence(7, 3))).sum is not None


@pytest.mark.parametrize(
    ("step", "gone"), [("advertise", 1), ("share", 1), ("upload", 1), ("upload", 2), ("attest", 1), ("reveal", 1)]
)
def test_who_leaves_before_uploading_may_have_been_a_contributor(step, gone):
    """Five have dogs and c = 1: one may leave between the census and the sum, and a second one may not.

    Who it is does not matter, as nobody knows who has dogs; here they have none. Who leaves after its upload is in the
    sum.
    """
    for dogs, spare in ((4, 0), (5, 1), (6, 2)):
        parent = take(presence(7, dogs))
        told = go_on(parent, drops={step: IDS[:gone]})
        if step in ("attest", "reveal") or gone <= spare:
            assert told.error is None
            assert not told.refusals
        else:
            refused(told, set(IDS[gone:]), 1)
            assert not told.sent("attest")
            assert f"of whom {gone} left" in str(next(iter(told.refusals.values())))


def test_a_late_client_is_lost_to_the_sum_and_checks_for_itself():
    parent = take(presence(7, 4))
    told = go_on(parent, late=IDS[:1])
    refused(told, set(IDS), 1)
    assert not told.sent("attest")
    assert go_on(take(presence(7, 5)), late=IDS[:1]).sum is not None
    # Asked to attest and never to upload, it sees the census then, and refuses before it looks at the view.
    parent = take(presence(7, 3))
    child, context = following(parent)
    state = run(child, stop="attest", late=IDS[:1], parents=views(parent), context=context).members[IDS[0]].state
    with pytest.raises(PolicyRefusal) as caught:
        client.attest(state, b"", encode(context), views(parent)[IDS[0]])
    assert caught.value.rule == "min_contributors"
    assert not any(secret._data for secret in state.secrets())


def test_without_counting_who_left_the_sum_goes_through(monkeypatch):
    """The control."""
    check = checks.census_allows
    monkeypatch.setattr(
        checks, "census_allows", lambda found, minimum, corrupt, _: check(found, minimum, corrupt, None)
    )
    assert go_on(take(presence(7, 4)), drops={"upload": IDS[:1]}).sum is not None


# A census earlier in the chain.


def test_a_census_counts_for_every_later_session():
    """Census, prompts, statistics: the second hands on what the first found, and who left in between counts."""
    for dogs, spare in ((4, 0), (5, 1)):
        first = take(presence(7, dogs))
        child, context = following(first, "prompts")
        second = run(child, parents=views(first), context=context)
        assert second.sum.opening is None
        for view in views(second).values():
            assert view.witness is None
            assert view.census == Census(IDS, (7, dogs))
        assert go_on(second).sum is not None
        told = go_on(second, drops={"upload": IDS[:1]})
        assert (told.sum is not None) == bool(spare)
        if not spare:
            refused(told, set(IDS[1:]), 1)


def test_who_left_in_between_stays_lost():
    """One leaves in the second session and one in the third: two are lost."""
    for dogs, fine in ((5, False), (6, True)):
        first = take(presence(7, dogs))
        child, context = following(first, "prompts")
        second = run(child, parents=views(first), context=context, drops={"upload": IDS[:1]})
        told = go_on(second, drops={"upload": IDS[:2]})
        assert (told.sum is not None) == fine


def test_a_parent_that_is_no_census_does_not_do():
    """The server skips the census, and its statistics name a session over something else as their parent."""
    made = federation()
    params = msgspec.structs.replace(made.params, name="prompts", parent=b"", task=TASK)
    parent = run(replace(made, params=params, policy=replace(made.policy, min_contributors=0)), vectors=presence())
    child, context = following(parent)
    task = msgspec.structs.replace(TASK, min_contributors=MINIMUM)
    child = replace(child, params=msgspec.structs.replace(child.params, task=task))
    context = msgspec.structs.replace(context, session=server.start(child.params, child.members, child.host)[0].session)
    told = run(child, parents=views(parent), context=context)
    assert set(told.refusals) == set(IDS)
    assert all("no census was taken" in str(error) for error in told.refusals.values())
    assert not told.sent("upload")


# Parameters and policies.


def changed(**changes: Any) -> Any:
    """Parameters of a census, with some of the task's changed as well."""
    task = {name: changes.pop(name) for name in tuple(changes) if name in TASK.__struct_fields__}
    params = federation().params
    return msgspec.structs.replace(params, task=msgspec.structs.replace(params.task, **task), **changes)


BAD = [
    ("min_contributors", {"min_contributors": 0}),  # a census that nobody asked for
    ("min_contributors", {"min_contributors": -1}),
    ("min_contributors", {"min_contributors": N + 1}),
    ("min_contributors", {"release": "gaussian"}),
    ("min_contributors", {"clients": 257, "degree": 100}),
    ("parent", {"parent": bytes(32)}),  # a census that continues something
    ("parent", {"name": "statistics"}),  # statistics without the census that they are to continue
    ("parent", {"name": "prompts"}),
]


@pytest.mark.parametrize(("rule", "changes"), BAD)
def test_unsound_parameters(rule, changes):
    made = federation()
    policy = replace(made.policy, min_contributors=-1, release=changes.get("release", ""))
    proposal = encode(messages.sign(made.host, messages.Proposal(changed(**changes))))
    with pytest.raises(PolicyRefusal) as caught:
        client.advertise(proposal, policy, made.keys[0], b"", entropy(b""))
    assert caught.value.rule == rule
    with pytest.raises(PolicyRefusal) as caught:
        server.start(changed(**changes), made.members, made.host)
    assert caught.value.rule == rule


def test_a_census_of_plain_sums_is_refused():
    """Nobody can check what a server adds up in the clear."""
    params = changed(protocol="plain/v1")
    with pytest.raises(PolicyRefusal, match="'min_contributors'"):
        check_params(params, "plain/v1")
    policy = replace(federation().policy, protocols=frozenset({"plain/v1"}))
    with pytest.raises(PolicyRefusal, match="'min_contributors'"):
        check_proposal(policy, params, "plain/v1")
    check_params(changed())


@pytest.mark.parametrize(
    ("asked", "proposed", "fits"), [(3, 0, False), (3, 2, False), (3, 3, True), (2, 3, True), (0, 3, True)]
)
def test_the_least_number_of_contributors_is_the_policys(asked, proposed, fits):
    policy = replace(federation().policy, min_contributors=asked)
    params = changed(min_contributors=proposed)
    if not proposed:  # what a server would propose that skips the census
        params = msgspec.structs.replace(params, name="statistics")
    if fits:
        check_proposal(policy, params)
        return
    with pytest.raises(PolicyRefusal) as caught:
        check_proposal(policy, params)
    assert caught.value.rule == "min_contributors"


def test_no_census_without_a_policy_that_asks_for_one():
    """Sessions of people who ask for none go on as before, whatever the classes."""
    assert run(make(N, C)).sum is not None
