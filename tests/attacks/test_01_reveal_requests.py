"""Reveal requests that ask for more than a view allows, views made to allow more, and a second answer to a request.

Both kinds of share for the victim are its vector, since the masking key takes the pairwise masks off and the seed the
self-mask. So are its seed and the masking keys of everyone else, which is what a view with the victim as its only true
survivor would give. The cohort of such a view is filled with repeats of the victim or with invented clients; or each
client is shown a view of its own (see `test_02_split_views.py`) and the quorum for it is made up.

A second answer helps the server if it follows a second view, so clients are restored from a backup made before the
first one. Their journals on disk are not, and stop it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import msgspec
import numpy as np
import pytest

from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Attestation, UploadHeader, View, view_hash
from fedopal_secure.core.ring import reduce_to_width
from fedopal_secure.core.transitions import follow
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.vectors import session_segments, to_vector
from tests.attacks.catalogue import Attack, Outcome, nothing, suite
from tests.attacks.cheating import CheatingServer, prepared
from tests.attacks.test_02_split_views import THRESHOLD, Retrying, attested_by, in_order, majority, to_each_its_own
from tests.core.harness import TASK, Federation, Member, forge, fork, make, seed

# Torch takes seconds to import: what needs it is imported where it is used.
if TYPE_CHECKING:
    from fedopal_secure.federation.client import RoundClient

N, C = 6, 1  # t = 4, a quorum is 4, and the cohort 3
OUTSIDERS = sorted((SigningKey(seed("outsider", number)) for number in range(4)), key=lambda key: key.identity)


# Requests about an honest view.


def both_lists(server: CheatingServer, victim: bytes) -> None:
    """The victim in both lists of one request."""
    request = server.request()
    server.reveal(request=server.request(dropped=(*request.dropped, victim)))


def one_survivor(server: CheatingServer, victim: bytes) -> None:
    """The victim is called the only survivor and everyone else dropped: all its pairwise masks come off."""
    others = tuple(client for client in server.ids if client != victim)
    server.reveal(request=server.request(survivors=(victim,), dropped=others))


def asked(lie: Callable[[CheatingServer, bytes], None]) -> Callable[[], Outcome]:
    def play() -> Outcome:
        server = prepared(make(N, C), "attest")
        lie(server, server.ids[0])
        return server.outcome(server.ids[0])

    return play


# Views in which nobody but the victim survived. The others were not asked to upload, so they are content.


def repeated(header: UploadHeader) -> tuple[UploadHeader, ...]:
    return (header,) * 3


def with_outsiders(header: UploadHeader) -> tuple[UploadHeader, ...]:
    """Two that nobody knows fill the cohort; they sign what the victim signed."""
    invented = (forge(key, header, sender=key.identity) for key in OUTSIDERS[:2])
    return tuple(sorted((header, *invented), key=lambda entry: entry.sender))


def viewed(survivors: Callable[[UploadHeader], tuple[UploadHeader, ...]]) -> Callable[[], Outcome]:
    def play() -> Outcome:
        server = prepared(make(N, C), "hold")
        victim, *others = server.ids
        server.upload([victim])
        view = msgspec.structs.replace(server.view(), survivors=survivors(server.uploads[victim].header))
        server.attest(others, view)
        request = server.request(view)
        server.reveal(request=request)
        # No share was dealt by those who do not exist.
        known = tuple(survivor for survivor in request.survivors if survivor in server.shares)
        request = msgspec.structs.replace(request, survivors=known)
        server.reveals = [(client, request, reveal) for client, _, reveal in server.reveals]
        return server.outcome(victim)

    return play


# A quorum that is none, for a view that only one client was shown.


def own_only(server: CheatingServer, view: View, client: bytes) -> tuple[Attestation, ...]:
    return (server.attestations[client],)


def of_other_views(server: CheatingServer, view: View, client: bytes) -> tuple[Attestation, ...]:
    """Everyone did sign: each its own view."""
    return in_order(list(server.attestations.values()))


def own_repeated(server: CheatingServer, view: View, client: bytes) -> tuple[Attestation, ...]:
    return (server.attestations[client],) * len(server.ids)


def of_outsiders(server: CheatingServer, view: View, client: bytes) -> tuple[Attestation, ...]:
    return in_order([server.attestations[client], *(attested_by(key, view) for key in OUTSIDERS)])


def unsigned(server: CheatingServer, view: View, client: bytes) -> tuple[Attestation, ...]:
    return tuple(Attestation(view.session, member, view_hash(view)) for member in server.ids)


# A second answer.


def second_view(server: CheatingServer, victim: bytes) -> None:
    """Everyone but the victim is shown that the victim dropped, and asked to reveal again."""
    others = [client for client in server.ids if client != victim]
    view = server.view(others)
    server.attest(others, view)
    server.reveal(others, server.request(view))


class FlatBackbone:
    """Stands in for a vision transformer, which has no part in this: a feature is the pixels."""

    id, hash, preprocessing, feature_dim, embed_dim = "embedded", "00" * 32, "grey 32 x 32", 8, 4

    def parameters(self) -> Any:
        import torch

        return iter([torch.zeros(1)])

    def normalise(self, batch: Any) -> Any:
        import torch

        return torch.from_numpy(batch.reshape(len(batch), -1).astype(np.float32))

    def __call__(self, images: Any, prompts: None) -> Any:
        return images


class Program(Member):
    """The program of a client, as a federation runs it: a `RoundClient` with its journal on disk."""

    def __init__(self, federation: Federation, key: SigningKey, vector: Any, parent: None, folder: Path) -> None:
        super().__init__(federation, key, vector, parent)
        draw = np.random.default_rng(list(seed("images", key.identity)))
        self._images = draw.integers(0, 256, (4, 2, 4, 1), dtype=np.uint8)
        self._labels = draw.integers(0, 2, 4)
        self.journals: list[Journal] = []
        self._path = folder / f"{key.identity.hex()}.db"
        self.round = self._start()
        self.vector = self._plain()

    def _start(self) -> RoundClient:
        from fedopal_secure.federation.client import PrivateData, RoundClient
        from fedopal_secure.federation.secure_sum import Participant
        from fedopal_secure.federation.timings import Timings

        self.journals.append(Journal(self._path))
        me = Participant(self.key, b"", self.federation.policy, self.entropy)
        data = PrivateData(self._images, self._labels)
        backbone = cast("Any", FlatBackbone())
        return RoundClient(me, backbone, data, self.journals[-1], Timings(), tuning_seed=0)

    def _plain(self) -> Any:
        """The vector that this client will upload, for the test to compare with."""
        from fedopal_secure.federation.client import compute_statistics

        params, backbone = self.federation.params, cast("Any", FlatBackbone())
        return to_vector(params, compute_statistics(backbone, self.round._data, params.task, None), None)

    def _answer(self, phase: str, request: bytes) -> bytes:
        answer = self.round.answer("statistics", phase, request)
        self.state = cast("Any", self.round._sessions["statistics"].sums)._state
        return answer

    def advertise(self, proposal: bytes) -> bytes:
        return self._answer("advertise", proposal)

    def share(self, roster: bytes) -> bytes:
        return self._answer("share", roster)

    def hold(self, relay: bytes) -> None:
        self._answer("hold", relay)

    def upload(self, context: bytes) -> bytes:
        return self._answer("upload", context)

    def attest(self, view: bytes, context: bytes) -> bytes:
        return self._answer("attest", view)

    def reveal(self, request: bytes) -> bytes:
        return self._answer("reveal", request)

    def backup(self) -> RoundClient:
        """What a checkpoint of the process holds: its memory, and none of its files."""
        from fedopal_secure.federation.pairwise_sum import PairwiseClient

        restored = self._start()
        for name, joined in self.round._sessions.items():
            sums, live = PairwiseClient(restored._me), cast("Any", joined.sums)
            sums._state, sums._begun = fork(live._state), live._begun
            restored._sessions[name] = replace(joined, sums=sums)
        return restored


def restored_from_backup() -> Outcome:
    """All clients attest and reveal, and are then put back to before that by whoever runs their machines."""
    federation = make(N, C, parts=session_segments(TASK, "statistics", N))
    with tempfile.TemporaryDirectory() as folder:
        programs: dict[bytes, Any] = dict.fromkeys(federation.ids, partial(Program, folder=Path(folder)))
        server = prepared(federation, kinds=programs)
        members = cast("dict[bytes, Program]", server.members)
        backups = {client: member.backup() for client, member in members.items()}
        server.attest()
        server.reveal()
        for client, backup in backups.items():
            members[client].round = backup
        victim = server.ids[0]
        second_view(server, victim)
        for member in members.values():
            for journal in member.journals:
                journal.close()
        return server.outcome(victim)


GOAL = "the victim's vector"
LISTS, DISTINCT = "core.checks.lists_are_the_views", "core.checks.survivors_are_distinct_sharers"
MEMBERS, SIGNED = "core.checks.attestations_are_of_distinct_members", "core.checks.attestations_are_signed"
NO_QUORUM = "core.checks.quorum_is_reached"

test_defended, test_control = suite(
    Attack(1, "the victim in both lists", GOAL, asked(both_lists), LISTS, "the lists are not exactly"),
    Attack(1, "one survivor, all others called dropped", GOAL, asked(one_survivor), LISTS, "not exactly"),
    Attack(1, "a view repeats the victim to reach the cohort", GOAL, viewed(repeated), DISTINCT, "repeats a survivor"),
    Attack(
        1,
        "invented survivors fill the cohort of a view",
        GOAL,
        viewed(with_outsiders),
        DISTINCT,
        "the view has a survivor that never shared",
    ),
    Attack(
        1,
        "requests without a quorum, each for another view",
        GOAL,
        to_each_its_own(7, 1, own_only),
        NO_QUORUM,
        "no quorum of 7 members with c = 1",
    ),
    Attack(
        1,
        "a quorum of signatures on other views",
        GOAL,
        to_each_its_own(7, 1, of_other_views),
        SIGNED,
        "did not sign the view that we signed",
    ),
    Attack(
        1,
        "a quorum of one signature repeated",
        GOAL,
        to_each_its_own(7, 1, own_repeated),
        MEMBERS,
        "the request repeats a signer",
    ),
    Attack(
        1,
        "a quorum of outsiders",
        GOAL,
        to_each_its_own(7, 1, of_outsiders),
        MEMBERS,
        "a signature from outside the roster",
    ),
    Attack(
        1,
        "a quorum that is not signed",
        GOAL,
        to_each_its_own(7, 1, unsigned),
        SIGNED,
        "did not sign the view that we signed",
    ),
    Attack(
        1,
        "clients restored from a backup attest and reveal again",
        GOAL,
        restored_from_backup,
        "federation.state.Journal.answer",
        "was answered before",
    ),
)


USE, ABANDON = "fedopal_secure.core.client.use", "fedopal_secure.core.client.abandon"


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ({}, "this state has been used"),
        ({ABANDON: nothing}, "this state has been used"),
        ({USE: follow}, "this secret has been erased"),
        ({USE: follow, ABANDON: nothing}, "the victim's vector"),
    ],
)
def test_a_second_answer_by_the_same_process_meets_two_defences(removed: Mapping[str, Any], told: str) -> None:
    """A state is used once, and what it held is erased once it has revealed."""
    with contextlib.ExitStack() as stack:
        for name, instead in removed.items():
            stack.enter_context(mock.patch(name, instead))
        federation = make(N, C)
        server = prepared(federation, "attest", kinds=dict.fromkeys(federation.ids, Retrying))
        server.reveal()
        second_view(server, server.ids[0])
        outcome = server.outcome(server.ids[0])
    assert outcome.won == (len(removed) == 2)
    assert told in outcome.told


OWN_VIEW = "core.checks.request_is_for_own_view"


def named_for_another_view() -> Outcome:
    """Everyone attests its own view, and is shown what all attested, in a request that names none of these views."""
    federation = make(7, 1)
    server = prepared(federation, corrupt=federation.ids[-1:])
    victim = server.honest[0]
    views = server.own_views(victim)
    for client, view in views.items():
        server.attest([client], view)
    for client, view in views.items():
        request = server.request(view, attestations=of_other_views(server, view, client))
        server.reveal([client], msgspec.structs.replace(request, view=bytes(32)))
    return server.outcome(victim)


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ((), "the request is for another view than the one we signed"),
        ((SIGNED,), "the request is for another view than the one we signed"),
        ((OWN_VIEW,), "did not sign the view that we signed"),
        ((OWN_VIEW, SIGNED), "the victim's vector"),
    ],
)
def test_a_request_about_another_view_meets_two_defences(removed: Sequence[str], told: str) -> None:
    """What the request says of itself is compared first; nothing rests on it, as the signatures are compared too."""
    with contextlib.ExitStack() as stack:
        for name in removed:
            stack.enter_context(mock.patch(f"fedopal_secure.{name}", nothing))
        outcome = named_for_another_view()
    assert outcome.won == (len(removed) == 2)
    assert told in outcome.told


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ({}, "the lists are not exactly"),
        ({THRESHOLD: majority}, "the lists are not exactly"),
        ({f"fedopal_secure.{LISTS}": nothing}, "too few shares come out"),
        ({THRESHOLD: majority, f"fedopal_secure.{LISTS}": nothing}, "the victim's vector"),
    ],
)
def test_one_kind_from_each_half_meets_two_defences(removed: Mapping[str, Any], told: str) -> None:
    """Half of the honest clients are asked as the view says, and half for the victim's masking key."""
    with contextlib.ExitStack() as stack:
        for name, instead in removed.items():
            stack.enter_context(mock.patch(name, instead))
        federation = make(6, 2)  # t = 5; with a plain majority it is 4, two honest clients and the corrupt ones
        server = prepared(federation, "attest", corrupt=federation.ids[-2:])
        victim, *others = server.ids
        server.reveal(server.honest[:2])
        server.reveal(server.honest[2:], server.request(survivors=tuple(others), dropped=(victim,)))
        outcome = server.outcome(victim)
    assert outcome.won == (len(removed) == 2)
    assert told in outcome.told


def test_limit_with_t_reveals_the_sum_is_given_whatever_becomes_of_the_session() -> None:
    """The server may abort then, and has the sum by itself; one reveal fewer, and it has nothing."""
    server = prepared(make(N, C), "hold")
    survivors = server.ids[1:]
    server.upload(survivors)
    server.attest()
    server.reveal(survivors[:3])
    assert server.sum_over(survivors) is None
    server.reveal(survivors[3:4])
    plain = np.add.reduce([server.members[client].vector for client in survivors])
    segments = server.federation.params.segments
    np.testing.assert_array_equal(server.sum_over(survivors), reduce_to_width(plain, segments))
    assert not server.outcome(survivors[0]).won
