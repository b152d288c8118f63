"""Two sums that differ by one client differ by that client's data, however well each of them is masked.

The server does nothing wrong in either session: it sums everyone, finds a reason to sum again, and the second time one
client is missing. So each client keeps a ledger of what its data was given to, and refuses a second chain of sessions
unless its policy grants one. The clients are those of a round, with a small stand-in for the backbone.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import cast

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedopal_secure.core.errors import FedopalError, SessionAborted
from fedopal_secure.core.messages import Context
from fedopal_secure.core.ring import reduce_to_width
from fedopal_secure.core.server import Sum
from fedopal_secure.federation.client import PrivateData, RoundClient, compute_statistics
from fedopal_secure.federation.protocols import open_server
from fedopal_secure.federation.secure_sum import Participant
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.vectors import session_segments, to_vector
from fedopal_secure.vision.backbone import Backbone
from tests.attacks.catalogue import Attack, Outcome, nothing, suite, words
from tests.core.harness import TASK, make, seed

N, C = 5, 1  # t = 4, a quorum is 4, the cohort 3
SET_UP, REST = ("advertise", "share", "hold"), ("upload", "attest", "reveal")


class Pixels:
    """A backbone whose feature is the image itself."""

    id, hash, preprocessing = TASK.backbone, TASK.backbone_hash.hex(), TASK.preprocessing
    feature_dim = embed_dim = TASK.feature_dimension

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)])

    def normalise(self, batch: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return batch

    def __call__(self, batch: NDArray[np.uint8], prompts: None) -> torch.Tensor:
        return torch.from_numpy(batch.reshape(len(batch), -1).astype(np.float32))


BACKBONE = cast(Backbone, Pixels())


class People:
    """The same clients with the same data and ledgers, whatever session they are asked into."""

    def __init__(self, sessions: int = 1) -> None:
        self.federation = make(N, C, parts=session_segments(TASK, "statistics", N), sessions=sessions)
        self.data, self.journals = {}, {identity: Journal() for identity in self.federation.ids}
        self.starts = itertools.count()
        for identity in self.federation.ids:
            rng = np.random.default_rng(list(seed("images", identity)))
            count = int(rng.integers(3, 7))
            images = rng.integers(0, 256, (count, 1, TASK.feature_dimension, 1), dtype=np.uint8)
            self.data[identity] = PrivateData(images, rng.integers(0, 2, count))

    def close(self) -> None:
        for journal in self.journals.values():
            journal.close()


class Session:
    """A session with clients that were started for it; `number` makes the nonce, and two of the same are the same."""

    def __init__(self, people: People, number: int) -> None:
        federation = people.federation
        params = msgspec.structs.replace(federation.params, nonce=seed("round", number))
        self.server = open_server(params, federation.members, federation.ids, federation.host)
        self.refused: dict[bytes, FedopalError] = {}
        self.sum: Sum | None = None
        start = next(people.starts)  # a new process has fresh entropy, also where the session is the same
        self.clients = {
            key.identity: RoundClient(
                Participant(key, b"", federation.policy, federation.entropy(key.identity, start)),
                BACKBONE,
                people.data[key.identity],
                people.journals[key.identity],
                Timings(),
                tuning_seed=0,
            )
            for key in federation.keys
        }

    def run(self, phases: Collection[str], who: Collection[bytes]) -> None:
        """Carry on with these clients. The sum comes after the last phase, if enough of them take part."""
        try:
            for phase in phases:
                context = Context(self.server.session, b"", b"", (), b"") if phase == "upload" else None
                requests = self.server.request(phase, context)
                for client in sorted(requests.keys() & set(who) - self.refused.keys()):
                    self._ask(client, phase, requests[client])
            if "reveal" in phases:
                self.sum = self.server.finish()
        except SessionAborted:
            pass

    def _ask(self, client: bytes, phase: str, request: bytes) -> None:
        try:
            answer = self.clients[client].answer("statistics", phase, request)
        except FedopalError as error:
            self.refused[client] = error
            return
        if answer:
            self.server.receive(client, answer)


def difference(people: People, first: Session, second: Session) -> Outcome:
    """What the server makes of two sums that differ by the first client."""
    victim, params = people.federation.ids[0], people.federation.params
    if first.sum is None or second.sum is None:
        error = next(iter(second.refused.values()))
        return Outcome(False, f"refused by {len(second.refused)} clients: {words(error)}")
    found = reduce_to_width(first.sum.total - second.sum.total, params.segments)
    plain = to_vector(params, compute_statistics(BACKBONE, people.data[victim], TASK, None), None)
    same = np.array_equal(found, reduce_to_width(plain, params.segments))
    return Outcome(same, "the victim's statistics, every entry")


def again_without_one(people: People, numbers: tuple[int, int] = (1, 2)) -> Outcome:
    """A second session to which the victim is not invited; with equal numbers it is the first one's proposal again."""
    everyone = people.federation.ids
    first, second = (Session(people, number) for number in numbers)
    first.run(SET_UP + REST, everyone)
    second.run(SET_UP + REST, everyone[1:])
    return difference(people, first, second)


def lost_on_the_way(people: People) -> Outcome:
    """The first session is called aborted and run again. Everyone sets it up, and the victim's upload is lost."""
    everyone = people.federation.ids
    first, second = Session(people, 1), Session(people, 2)
    first.run(SET_UP + REST, everyone)
    second.run(SET_UP, everyone)
    second.run(REST, everyone[1:])
    return difference(people, first, second)


def both_at_once(people: People) -> Outcome:
    """Two sessions are set up before either gets an upload, so that neither is over when the other begins."""
    everyone = people.federation.ids
    first, second = Session(people, 1), Session(people, 2)
    first.run(SET_UP, everyone)
    second.run(SET_UP, everyone)
    first.run(REST, everyone)
    second.run(REST, everyone[1:])
    return difference(people, first, second)


def played(attack: Callable[[People], Outcome]) -> Callable[[], Outcome]:
    def play() -> Outcome:
        with contextlib.closing(People()) as people:
            return attack(people)

    return play


GOAL, GIVE = "the victim's statistics", "federation.state.Journal.give"
REFUSED = "'sessions': this data is in other sums already, and the policy grants 1"

test_defended, test_control = suite(
    Attack(12, "a second round without the victim", GOAL, played(again_without_one), GIVE, REFUSED),
    Attack(12, "a round run again, the victim's upload lost", GOAL, played(lost_on_the_way), GIVE, REFUSED),
    Attack(12, "two rounds at once, the victim in one", GOAL, played(both_at_once), GIVE, REFUSED),
)


def test_the_same_proposal_again_meets_two_defences() -> None:
    """Clients that were restarted have answered its first phase before; and its chain has had their data."""
    play = played(partial(again_without_one, numbers=(1, 1)))
    answer, give = (Attack(12, "", GOAL, play, f"federation.state.Journal.{name}", "") for name in ("answer", "give"))
    for removed in itertools.chain.from_iterable(itertools.combinations((answer, give), count) for count in range(3)):
        with ExitStack() as stack:
            for attack in removed:
                stack.enter_context(attack.without_defence())
            outcome = play()
        assert outcome.won == (len(removed) == 2)
        if removed != (answer,):
            assert outcome.won or "was answered before" in outcome.told
        else:
            assert "in a sum of statistics of the same chain already" in outcome.told


@pytest.mark.parametrize("granted", [2, 3])
def test_a_policy_may_grant_more_sums_and_no_more_than_that(granted: int) -> None:
    """Whoever grants two grants their difference; the one after that is refused, whatever it sums."""
    with contextlib.closing(People(sessions=granted)) as people:
        assert again_without_one(people).won
        others = people.federation.ids[1:]
        for number in range(3, granted + 2):
            session = Session(people, number)
            session.run(SET_UP + REST, others)
            assert (session.sum is not None) == (number <= granted)
        assert set(session.refused) == set(others)
        assert all(f"the policy grants {granted}" in str(error) for error in session.refused.values())


def test_a_grant_of_two_does_not_let_one_chain_sum_the_same_thing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "answer", nothing)
    with contextlib.closing(People(sessions=2)) as people:
        outcome = again_without_one(people, numbers=(1, 1))
    assert not outcome.won
    assert "of the same chain already" in outcome.told


@pytest.mark.parametrize("phases", [SET_UP, (*SET_UP, "upload"), (*SET_UP, "upload", "attest")])
def test_an_aborted_session_counts_from_the_upload_on(phases: tuple[str, ...]) -> None:
    """Before it nothing was given; after it a client cannot know what the server made of it."""
    with contextlib.closing(People()) as people:
        Session(people, 1).run(phases, people.federation.ids)
        session = Session(people, 2)
        session.run(SET_UP + REST, people.federation.ids)
        assert (session.sum is not None) == (phases == SET_UP)
        assert len(session.refused) == (0 if phases == SET_UP else N)


def test_other_data_is_another_matter() -> None:
    """The ledger knows data by its digest: one image less is other data, which its policy has not given yet."""
    with contextlib.closing(People()) as people:
        everyone = people.federation.ids
        Session(people, 1).run(SET_UP + REST, everyone)
        for identity, held in people.data.items():
            people.data[identity] = replace(held, images=held.images[1:], labels=held.labels[1:])
        session = Session(people, 2)
        session.run(SET_UP + REST, everyone)
        assert session.sum is not None
