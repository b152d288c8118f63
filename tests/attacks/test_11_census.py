"""Lies about the census: a class that one client alone holds must not get into a sum.

Class 1 is the victim's alone, so its column of C in the sum is the victim's. The clients ask for a census of presence
bits first and compute it again from its opening. The server alters the opening, leaves the census out, or loses
contributors after it; corrupt clients claim to be contributors. What comes out of the statistics session is then the
victim's column, or a refusal before any statistic is uploaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fedopal_secure.core import checks, server
from fedopal_secure.core.census import Census, Opening, recheck
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import ServerFault, SessionAborted
from fedopal_secure.core.messages import Context, Relayed, Upload, context_hash, payload_hash, view_hash
from fedopal_secure.core.params import CENSUS, PROTOCOL, session_id
from fedopal_secure.core.ring import U64, Ring, from_wire, to_wire
from fedopal_secure.core.server import ServerState
from fedopal_secure.encoding.layout import COUNTS, PRESENCE, C, presence_segment, statistics_segments
from fedopal_secure.encoding.vector import pack, unpack
from fedopal_secure.federation.config import HeadSettings
from fedopal_secure.federation.pairwise_sum import PairwiseClient
from fedopal_secure.federation.secure_sum import UPLOAD, Participant
from fedopal_secure.federation.server import Proposal, RoundServer
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript
from fedopal_secure.statistics.sums import accumulate
from tests.attacks.catalogue import Attack, Outcome, always, suite, untyped, words
from tests.attacks.cheating import SEED, prepared
from tests.core.harness import PRIMES, TASK, Federation, Member, Run, forge, make, read, run, seed

WON = "the victim's column of C, every entry"
MINIMUM, VICTIM, RARE = 2, 0, 1  # clients are numbered in the order of their identities
COUNTED = replace(TASK, min_contributors=MINIMUM)


def population(clients: int, corrupt: int, modulus: int = 0) -> Federation:
    """Clients that ask for a census, in its session."""
    parts = (presence_segment(len(TASK.classes), clients),)
    federation = make(clients, corrupt, modulus=modulus, parts=parts, min_contributors=MINIMUM)
    return federation.child(b"", name=CENSUS, task=COUNTED)


def statistics_of(federation: Federation, parent: bytes, task: Any = COUNTED) -> Federation:
    """The same people in the session over statistics that follows."""
    segments = statistics_segments(task.feature_dimension, len(task.classes), task.feature_bits, task.max_images)
    return federation.child(parent, name="statistics", segments=segments, task=task)


def present(federation: Federation, rare: Mapping[int, int]) -> dict[bytes, U64]:
    """What each client says in the census: it holds class 0, and `rare` is what it says of class 1."""
    segments = federation.params.segments
    said = [np.array([1, rare.get(number, 0)]) for number in range(len(federation.ids))]
    return {client: pack(segments, {PRESENCE: bits}) for client, bits in zip(federation.ids, said, strict=True)}


def held(federation: Federation, holders: Collection[int]) -> dict[bytes, U64]:
    """The statistics of five images of each client, of both classes or of class 0 only."""
    vectors = {}
    for number, client in enumerate(federation.ids):
        points = np.random.default_rng(list(seed("images", number))).integers(-1000, 1000, (5, TASK.feature_dimension))
        labels = np.array([0, RARE, 0, RARE, 0]) if number in holders else np.zeros(5, np.int64)
        statistics = accumulate(points, labels, len(TASK.classes), TASK.feature_bits)
        vectors[client] = pack(federation.params.segments, statistics.to_arrays())
    return vectors


def column(federation: Federation, vector: U64) -> NDArray[np.int64]:
    """Of a vector of statistics: what it says of class 1."""
    arrays = unpack(federation.params.segments, vector)
    return np.append(arrays[C].reshape(TASK.feature_dimension, -1)[:, RARE], arrays[COUNTS][RARE])


def judged(federation: Federation, vectors: Mapping[bytes, U64], result: Run) -> Outcome:
    """Whether the sum shows the victim's column; otherwise why the victim refused."""
    victim = federation.ids[VICTIM]
    if result.sum is not None:
        shown = column(federation, result.sum.total)
        won = np.array_equal(shown, column(federation, vectors[victim]))
        return Outcome(won, WON if won else "a column of several clients")
    when = "after its upload, and nobody unmasks it" if result.sent("upload") else "before its upload"
    return Outcome(False, f"the victim refuses {when}: {words(result.refusals[victim])}")


@dataclass(frozen=True)
class Counted:
    """A round: the census as it was, and what the server makes of it.

    `rare` is what clients say of class 1, `holders` who has images of it, `away` who misses the census's upload, `late`
    who is declared dropped in the session over statistics, and `lie` what the server does to the opening.
    """

    clients: int = 6
    corrupt: int = 1
    rare: tuple[tuple[int, int], ...] = ((VICTIM, 1),)
    holders: tuple[int, ...] = (VICTIM,)
    away: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    lie: Callable[[Opening], Any] = lambda opening: opening

    def __call__(self) -> Outcome:
        first = population(self.clients, self.corrupt)
        counted = run(first, vectors=present(first, dict(self.rare)), late=[first.ids[k] for k in self.away])
        if counted.sum is None or counted.sum.opening is None:
            raise RuntimeError("the census itself failed")
        then = statistics_of(first, counted.sum.session)
        vectors = held(then, self.holders)
        context = Context(
            session_id(then.params),
            counted.sum.session,
            counted.sum.view,
            counted.sum.survivors,
            encode(self.lie(counted.sum.opening)),
        )
        parents = {client: member.state.view for client, member in counted.members.items()}
        late = [then.ids[k] for k in self.late]
        return judged(then, vectors, run(then, vectors=vectors, parents=parents, context=context, late=late))


# What the server does to the opening.


def first_entry(entries: tuple[bytes, ...], changed: bytes) -> tuple[bytes, ...]:
    return (changed, *entries[1:])


def payload_raised(opening: Opening) -> Opening:
    """Five more for class 1, which masks do not hide: what is added to a masked entry is added to the sum."""
    payload = opening.payloads[0]
    raised = payload[:RARE] + bytes([(payload[RARE] + 5) % 256])
    return replace(opening, payloads=first_entry(opening.payloads, raised))


def seed_swapped(opening: Opening) -> Opening:
    """Another seed leaves noise, and noise reads as many contributors."""
    return replace(opening, seeds=first_entry(opening.seeds, seed("made up")))


def mask_secret_swapped(opening: Opening) -> Opening:
    """The same with the masking key of a client that dropped out."""
    return replace(opening, mask_secrets=first_entry(opening.mask_secrets, seed("made up")))


def skipped() -> Outcome:
    """The server's task has no census, and the session over statistics is the first."""
    federation = statistics_of(population(6, 1), b"", TASK)
    vectors = held(federation, (VICTIM,))
    return judged(federation, vectors, run(federation, vectors=vectors))


# A dealer whose message the others never saw. It is a sharer all the same, so they mask with it; then it drops out.
# They do not know that its masking key belongs into the opening: its masks stay on the sum, and noise reads as many.


def with_one_twice(dealers: Sequence[Relayed]) -> tuple[Relayed, ...]:
    """As many dealers as there are sharers."""
    return (dealers[0], *dealers)


def withheld(shown: Callable[[Sequence[Relayed]], Sequence[Relayed]]) -> Callable[[], Outcome]:
    """All others are shown what `shown` makes of the other dealers."""

    def play() -> Outcome:
        first = population(6, 1)
        server = prepared(first, "share", vectors=present(first, {VICTIM: 1}))
        gone = server.ids[4]
        others = [client for client in server.ids if client != gone]
        server.hold([gone])
        for client in others:
            relay = server.relay(client)
            known = [dealt for dealt in relay.dealers if dealt.message.sender != gone]
            server.ask(client, "hold", encode(replace(relay, dealers=tuple(shown(known)))))
        server.upload(others)
        if server.refused:
            return server.refusal(server.ids[VICTIM])
        server.attest()
        server.reveal()
        seeds = [server.rebuild(client, SEED) or b"" for client in others]
        opening = Opening(server.session, tuple(server.uploads[c].payload for c in others), tuple(seeds), ())
        then = statistics_of(first, server.session)
        context = Context(
            session_id(then.params), server.session, view_hash(server.view()), tuple(others), encode(opening)
        )
        parents = {client: member.state.view for client, member in server.members.items()}
        vectors = held(then, (VICTIM,))
        return judged(then, vectors, run(then, vectors=vectors, parents=parents, context=context, late=[gone]))

    return play


# An upload whose entries have another form than the residue that they stand for, modulo a prime below 2**61. Numbers of
# 64 bits then wrap, or do not, as the order in which uploads are added has it.


class Unreduced(Member):
    def upload(self, context: bytes) -> bytes:
        upload, segments = read(Upload, super().upload(context)), self.federation.params.segments
        payload = to_wire(from_wire(upload.payload, segments) + np.uint64(7 * PRIMES[1]), segments)
        self.state.header = forge(self.key, upload.header, payload_hash=payload_hash(payload))
        return encode(Upload(self.state.header, payload))


def no_residue() -> Outcome:
    """Won if a client counts otherwise than the server, which added the uploads in the order of their arrival."""
    first = population(6, 1, modulus=PRIMES[1])
    with mock.patch.object(Ring, "contains", always(True)):  # the server's own rule, and the cheat's, are no defence
        counted = run(first, vectors=present(first, {VICTIM: 1}), kinds={first.ids[2]: Unreduced})
    if counted.sum is None:
        raise RuntimeError("the census itself failed")
    try:
        found = recheck(counted.members[first.ids[VICTIM]].state.view.witness, encode(counted.sum.opening))
    except ServerFault as error:
        return Outcome(False, f"the victim refuses: {words(error)}")
    told = "contributors by the server's sum are not those that its clients find in the opening"
    return Outcome(found.contributors != tuple(counted.sum.total.tolist()), told)


allows = checks.census_allows


def forgetting_who_left(found: Census | None, minimum: int, corrupt: int, survivors: Collection[bytes] | None) -> None:
    """`census_allows` as if everyone who was counted were still there."""
    allows(found, minimum, corrupt, None)


def trusting_everyone(found: Census | None, minimum: int, corrupt: int, survivors: Collection[bytes] | None) -> None:
    """`census_allows` as if no client lied."""
    allows(found, minimum, 0, survivors)


GOAL = "the class column of the victim"
ALLOWS, FEW = "core.checks.census_allows", "'min_contributors'"

test_defended, test_control = suite(
    Attack(11, "statistics in spite of a class that one client holds", GOAL, Counted(), ALLOWS, FEW),
    Attack(
        11,
        "an upload altered in the opening",
        GOAL,
        Counted(lie=payload_raised),
        "core.checks.opening_payloads_are_signed",
        "another upload",
    ),
    Attack(
        11,
        "a seed made up in the opening",
        GOAL,
        Counted(lie=seed_swapped),
        "core.checks.opening_seeds_are_the_dealers",
        "did not commit to",
    ),
    Attack(
        11,
        "a masking key made up in the opening",
        GOAL,
        Counted(lie=mask_secret_swapped, away=(5,), late=(5,)),
        "core.checks.opening_mask_secrets_are_the_dealers",
        "not advertised",
    ),
    Attack(
        11,
        "contributors declared dropped after the census",
        GOAL,
        Counted(rare=((VICTIM, 1), (1, 1), (2, 1)), holders=(VICTIM, 1, 2), late=(1, 2)),
        ALLOWS,
        "of whom 2 left",
        forgetting_who_left,
    ),
    Attack(
        11,
        "corrupt clients that claim to be contributors",
        GOAL,
        Counted(7, 2, rare=((VICTIM, 1), (5, 1), (6, 1))),
        ALLOWS,
        "2 may be corrupt",
        trusting_everyone,
    ),
    Attack(
        11,
        "a dealer withheld from the others, who then drops out of the census",
        GOAL,
        withheld(tuple),
        "core.checks.relay_is_complete",
        "leaves out the message of someone who shared",
    ),
    Attack(
        11,
        "a dealer withheld, with another one twice in its place",
        GOAL,
        withheld(with_one_twice),
        "core.checks.dealers_are_sharers",
        "repeats a dealer",
    ),
    Attack(
        11,
        "an upload in the opening that is no residue",
        "two counts of one census",
        no_residue,
        "core.checks.opening_shows_residues",
        "not residues",
    ),
    Attack(
        11,
        "an opening without one of its seeds",
        "clients that stop and name nobody",
        untyped(Counted(lie=lambda opening: replace(opening, seeds=opening.seeds[:-1]))),
        "core.checks.opening_fits",
        "is not of the view that was attested",
    ),
    Attack(11, "no census although clients ask for one", GOAL, skipped, "core.client.check_proposal", FEW),
)


# What the attacks above rest on.


def test_a_class_with_enough_contributors_is_summed() -> None:
    """Nothing is refused that need not be: three of six hold the class, and one may be corrupt."""
    enough = Counted(rare=((VICTIM, 1), (1, 1), (2, 1)), holders=(VICTIM, 1, 2))
    with mock.patch.object(checks, "census_allows", side_effect=allows) as called:
        outcome = enough()
    assert outcome == Outcome(False, "a column of several clients")
    assert called.call_count == 12  # six clients before their upload, and again before they attest


# Where more than one defence stands in the way.


CHECKS = "fedopal_secure.core.checks"
FITS, PAYLOADS, SEEDS = (
    f"{CHECKS}.opening_{rule}" for rule in ("fits", "payloads_are_signed", "seeds_are_the_dealers")
)


@pytest.mark.parametrize(
    ("removed", "replayed", "renamed"),
    [
        ((), "is not of the view", "another upload"),
        ((PAYLOADS, SEEDS), "is not of the view", WON),
        ((FITS,), "another upload", "another upload"),
        ((FITS, SEEDS), "another upload", "another upload"),
        ((FITS, PAYLOADS), "did not commit to", "did not commit to"),
        ((FITS, PAYLOADS, SEEDS), WON, WON),
    ],
)
def test_the_opening_of_another_census_meets_three_defences(
    removed: Sequence[str], replayed: str, renamed: str
) -> None:
    """One in which the class had enough contributors, with its session or with ours written on it."""
    other = population(6, 1)
    other = dataclasses.replace(other, params=replace(other.params, nonce=seed("yesterday")))
    before = run(other, vectors=present(other, dict.fromkeys(range(6), 1)))
    assert before.sum is not None
    assert before.sum.opening is not None
    theirs = before.sum.opening
    with contextlib.ExitStack() as stack:
        for name in removed:
            stack.enter_context(mock.patch(name))
        assert replayed in Counted(lie=lambda _: theirs)().told
        assert renamed in Counted(lie=lambda own: replace(theirs, session=own.session))().told


def test_a_census_that_never_was_meets_two_defences() -> None:
    """The parameters name a parent that no client knows; were its context believed, there still is no census."""
    then = statistics_of(population(6, 1), seed("never was"))
    vectors = held(then, (VICTIM,))
    context = Context(session_id(then.params), seed("never was"), seed("a view"), then.ids, b"")
    assert "another view of the parent" in judged(then, vectors, run(then, vectors=vectors, context=context)).told
    with mock.patch.object(checks, "context_shows_own_parent_view"):
        told = judged(then, vectors, run(then, vectors=vectors, context=context)).told
    assert "no census was taken" in told
    with mock.patch.object(checks, "context_shows_own_parent_view"), mock.patch.object(checks, "census_allows"):
        assert judged(then, vectors, run(then, vectors=vectors, context=context)).won


CONTEXT, COUNTED_ALL, SURVIVORS = (
    f"{CHECKS}.{rule}" for rule in ("context_is_ours", "census_allows", "survivors_are_the_parents")
)


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ((), "continues another session than the parameters say"),
        ((COUNTED_ALL, SURVIVORS), "continues another session than the parameters say"),
        ((CONTEXT,), "no census was taken"),
        ((CONTEXT, SURVIVORS), "no census was taken"),
        ((CONTEXT, COUNTED_ALL), "a survivor was not one of the parent session"),
        ((CONTEXT, COUNTED_ALL, SURVIVORS), WON),
    ],
)
def test_a_context_without_the_parent_of_the_parameters_meets_three_defences(removed: Sequence[str], told: str) -> None:
    """The parameters name a census that never was, as they must name one, and the context says that there is none."""
    then = statistics_of(population(6, 1), seed("never was"))
    vectors = held(then, (VICTIM,))
    context = Context(session_id(then.params), b"", b"", (), b"")
    opened = server.open_uploads

    def careless(state: ServerState, told: Context) -> tuple[ServerState, bytes]:
        """An honest server would not send such a context, nor take an upload under it."""
        following, _ = opened(state, replace(told, parent=then.params.parent, parent_survivors=then.ids))
        following.records.context = context_hash(told)
        return following, encode(told)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(server, "open_uploads", careless))
        for name in removed:
            stack.enter_context(mock.patch(name))
        assert told in judged(then, vectors, run(then, vectors=vectors, context=context)).told


def test_an_honest_server_stops_before_statistics() -> None:
    """It does not even ask for them: the round ends with the census, by the rule's name."""
    federation = population(6, 1)
    server = RoundServer(
        federation.host,
        federation.members,
        federation.ids,
        Proposal(PROTOCOL, 6, 1, 0, 3, COUNTED),
        HeadSettings(),
        federation.entropy("server"),
        Transcript(),
        Timings(),
    )
    clients = {
        key.identity: PairwiseClient(Participant(key, b"", federation.policy, federation.entropy(key.identity)))
        for key in federation.keys
    }
    bits = present(federation, {VICTIM: 1, 1: 1})
    for phase in server.phases:
        for client, request in server.request(CENSUS, phase).items():
            party = clients[client]
            if phase == UPLOAD:
                party.begin_upload(request, None)
            answer = party.upload(bits[client]) if phase == UPLOAD else party.answer(phase, request)
            if answer:
                server.receive(CENSUS, phase, client, answer)
    with pytest.raises(SessionAborted, match="fewer than 3 clients hold images of dog, and c = 1 may lie") as caught:
        server.finish(CENSUS)
    assert caught.value.rule == "min_contributors"


# What a census cannot do.


def test_limit_one_corrupt_client_may_claim_for_many() -> None:
    """A masked entry can be any number, and nothing proves that it was a bit: c is subtracted as if it were one.

    So a census stands against a server that lies, and against corrupt clients as long as they send bits. Against one
    that says 3 it does not, and this attack works.
    """
    assert Counted(rare=((VICTIM, 1), (5, 3)))().won
