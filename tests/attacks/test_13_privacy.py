"""Less noise than was promised, or none: a server that takes a private release apart.

The people and the measures are those of `private_rounds`. Seeds are fixed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from fedopal_secure.core import server as core_server
from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import MisuseError
from fedopal_secure.core.params import CENSUS, PROTOCOL
from fedopal_secure.core.ring import from_wire, reduce_to_width
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.layout import PRESENCE, PROMPTS, C
from fedopal_secure.encoding.prompts import initial_prompts
from fedopal_secure.encoding.vector import pack, unpack
from fedopal_secure.federation import rules
from fedopal_secure.federation.client import PrivateData, RoundClient, compute_statistics
from fedopal_secure.federation.plain_sum import PlainUpload
from fedopal_secure.federation.secure_sum import PHASES, PLAIN, UPLOAD
from fedopal_secure.federation.vectors import feature_map_name, prompt_grid, to_vector
from fedopal_secure.privacy.calibration import calibrate
from fedopal_secure.privacy.release import Release
from fedopal_secure.vision.tuning import TuningConfig, tune_prompts
from tests.attacks.catalogue import Attack, Outcome, always, nothing, suite
from tests.attacks.private_rounds import (
    BACKBONE,
    CLIENTS,
    COHORT,
    CORRUPT,
    DELTA,
    EPSILON,
    EXACT,
    HONEST,
    RELEASE,
    SETTINGS,
    SIDE,
    TUNED,
    VECTOR,
    Arrays,
    People,
    Refused,
    Session,
    bounds,
    judged,
    less,
    played,
    private,
    some_images,
    spent,
    thinned,
    variance,
)
from tests.core.harness import run

# Releases that do not hold what they say.


def quieter(release: Release, divisor: int) -> Release:
    return replace(release, segments=tuple(replace(s, sigma=s.sigma // divisor) for s in release.segments))


QUIET = quieter(RELEASE, 3)
COARSE = calibrate(dataclasses.replace(VECTOR, bits=VECTOR.bits - 2), "distributed", EPSILON, DELTA, r_share=0.5)
CROWDED = calibrate(dataclasses.replace(VECTOR, honest=2 * CLIENTS), "distributed", EPSILON, DELTA, r_share=0.5)
LOUD = calibrate(VECTOR, "distributed", 4 * EPSILON, DELTA, r_share=0.5)


# A server that claims dropouts to thin the noise. It opens the uploads to one honest client and the corrupt one; the
# others, whom it calls slow, still attest and reveal.


def claimed_dropouts(people: People) -> Outcome:
    task = private()
    federation = dataclasses.replace(people.federation, params=people.params(task), policy=people.policy(task))
    segments = federation.params.segments
    sent = {people.corrupt: pack(segments, people.exact(task, [people.corrupt]))}
    for client in people.ids[:-1]:
        statistics = compute_statistics(BACKBONE, people.data[client], task, None)
        sent[client] = to_vector(federation.params, statistics, None, federation.entropy("noise", client))
    with mock.patch.object(core_server, "_enough"):  # its own rule is no defence
        session = run(federation, vectors=sent, late=people.ids[1:-1])
    if session.sum is None:
        raise Refused(session.refusals)
    noise = less(unpack(segments, session.sum.total), people.exact(task, session.sum.survivors))
    return judged(noise, RELEASE, len(session.sum.survivors) - CORRUPT, "the noise of one honest client")


# A server that asks again.

ROUNDS = 16


def the_same_again(people: People) -> Outcome:
    """The same release of the same data, for as long as anyone answers; the average is what counts."""
    policy = people.policy(private(), epsilon=EPSILON)
    return averaged([people.session(private(), policy).run().noise() for _ in range(ROUNDS)])


def two_at_once(people: People) -> Outcome:
    """Two releases are set up before either gets an upload, so that no budget is spent when clients join."""
    every, policy = PHASES[PROTOCOL], people.policy(private(), epsilon=EPSILON)
    both = [people.session(private(), policy) for _ in range(2)]
    for phases in (every[: every.index(UPLOAD)], every[every.index(UPLOAD) :]):
        for session in both:
            session.run(phases)
    return averaged([session.noise() for session in both])


def averaged(noises: Sequence[Arrays]) -> Outcome:
    mean = {name: np.mean([noise[name] for noise in noises], axis=0) for name in noises[0]}
    return judged(mean, RELEASE, CLIENTS - CORRUPT, f"the average of {len(noises)} sums", len(noises))


# A server that asks for something else.


def plain_uploads(people: People) -> Outcome:
    """Over the protocol that masks nothing, the server sees each client's own noise."""
    task = private()
    policy = people.policy(task, protocols=frozenset({PROTOCOL, PLAIN}))
    session = people.session(task, policy, protocol=PLAIN).run()
    if session.refused:
        raise Refused(session.refused)
    upload = decode(PlainUpload, session.answers[UPLOAD, people.victim], MisuseError)
    segments = session.params.segments
    sent = unpack(segments, reduce_to_width(from_wire(upload.payload, segments), segments))
    return judged(less(sent, people.exact(task, [people.victim])), RELEASE, 1, "the noise on the victim's upload")


def exact_sums(people: People) -> Outcome:
    """The policy agreed to a release, and the server proposes none."""
    return is_exact(people.session(EXACT, people.policy(private())).run())


def exact_after_private(people: People) -> Outcome:
    """The release was given, and then the policy was changed to one of exact sums."""
    people.session(private()).run().shown()
    return is_exact(people.session(EXACT).run())


def private_after_exact(people: People) -> Outcome:
    """The other way round: a claim is made for images whose exact sums are known."""
    before, after = people.session(EXACT).run(), people.session(private()).run()
    told = f"a claim of epsilon {EPSILON:g} for the images of a sum that the server has without any noise"
    return Outcome(after.shown() != {} and is_exact(before).won, told)


def is_exact(session: Session) -> Outcome:
    """Whether the sum is that of the statistics themselves."""
    same = not any(array.any() for array in session.noise().values())
    return Outcome(same, "R, C and counts without any noise, every entry")


def census(people: People) -> Outcome:
    """Presence bits are counted exactly, and class 1 is the victim's alone: one image of it is in the count or not."""
    for client, data in people.data.items():
        labels = np.zeros(len(data), np.int64)
        labels[0] = client == people.victim
        people.data[client] = dataclasses.replace(data, labels=labels)
    task = replace(private(), min_contributors=1)
    with mock.patch.object(core_server, "check_params"):  # its own rule is no defence
        session = people.session(task, name=CENSUS).run()
    found = session.shown()[PRESENCE].tolist()
    return Outcome(found == [CLIENTS, 1], f"without any noise, {found[1]} client holds images of class 1")


def tune(data: PrivateData) -> NDArray[np.float32]:
    """Prompts as a client tunes them that knows of no privacy."""
    start = initial_prompts(TUNED.prompt_source, TUNED.prompt_tokens, TUNED.prompt_dimension)
    config = TuningConfig(tokens=TUNED.prompt_tokens, **SETTINGS.model_dump())
    return tune_prompts(BACKBONE, data.images, data.labels, len(TUNED.classes), start, config, 0)


def tuned_prompts(people: People) -> Outcome:
    """Prompts from an earlier day go into the sum, without noise beside noisy statistics.

    The server of differential privacy knows everybody else's images, and asks whether one is among the victim's.
    """
    task = private(task=TUNED)
    people.tuned = {client: tune(data) for client, data in people.data.items()}
    session = people.session(task).run()
    grid, data = prompt_grid(task), people.data[people.victim]
    rest = sum(grid.quantise(prompts) for client, prompts in people.tuned.items() if client != people.victim)
    left = session.shown()[PROMPTS] - np.ravel(rest)
    without = tune(PrivateData(data.images[1:], data.labels[1:]))
    with_it, without_it = (np.array_equal(left, grid.quantise(p).ravel()) for p in (tune(data), without))
    told = "the victim's prompts, every entry, and so whether an image is in its data"
    return Outcome(with_it and not without_it, told)


# A public map that is none. The victim's camera leaves a faint mark in one pixel, which the altered map turns into
# nearly all of the feature. It is a fixed map, so an image moves the sums no farther than before; but now all images
# of one person move them the same way.

MARKED = 100
PUBLIC = BACKBONE(BACKBONE.normalise(some_images("public", count=50).images)).numpy()
AGREED = FeatureMap.centring(PUBLIC)
ALTERED = FeatureMap(AGREED.centre, np.diag(np.append(1000, np.ones(SIDE**2 - 1))).astype(np.float32), np.eye(SIDE**2))


def marked(people: People) -> None:
    images = some_images("marked", count=MARKED)
    images.images[:, 0, 0] = 255
    people.data[people.victim] = images


def marks(session: Session) -> float:
    """How far the first row of C stands out of its noise, in standard deviations."""
    rows = session.shown()[C].reshape(VECTOR.dimension, VECTOR.classes)
    deviation = RELEASE.sigma(C) * math.sqrt(VECTOR.classes * (CLIENTS - CORRUPT))
    return float(rows[0].sum() / deviation)


def altered_map(people: People) -> Outcome:
    """The server hands out the altered map, and proposes the one that was agreed, as everyone can read later."""
    marked(people)
    people.map = ALTERED
    found = marks(people.session(replace(private(), feature_map=feature_map_name("embedded", AGREED))).run())
    told = f"the victim's mark stands {found:.0f} standard deviations out of the noise: its images are in the sum"
    return Outcome(found > 6, told)


def another_map(people: People) -> Outcome:
    """The server proposes the altered map to clients who have loaded the one that was agreed."""
    marked(people)
    people.map = AGREED
    session = people.session(replace(EXACT, feature_map=feature_map_name("embedded", ALTERED))).run()
    under = [people.exact(EXACT, session.survivors, public_map) for public_map in (AGREED, ALTERED)]
    same = [np.array_equal(session.shown()[C], arrays[C]) for arrays in under]
    return Outcome(same == [True, False], "statistics under the agreed map, signed for as if under the altered one")


# The plays. What several modules have imported is one function, and is taken away from all of them.


class Everywhere(Attack):
    """An attack whose defence is called by the names that other modules gave it, too."""

    @contextlib.contextmanager
    def without_defence(self) -> Iterator[None]:
        """The control: exactly one function replaced, wherever it is known."""
        place, _, name = self.defence.rpartition(".")
        function = getattr(sys.modules[f"fedopal_secure.{place}"], name)
        with ExitStack() as stack:
            for module in [m for n, m in sys.modules.items() if n.startswith("fedopal_secure.")]:
                if getattr(module, name, None) is function:
                    stack.enter_context(mock.patch.object(module, name, self.instead))
            yield


THIN, NAKED = "noise thinner than the claim", "exact sums"
CLAIMS = f"and it claims {RELEASE.epsilon:g}"
CHECK_RELEASE, SPENDING = "federation.rules.check_release", "federation.client.check_spending"

CLAIM = Attack(
    13,
    "a release whose sigma is too small for its claim",
    THIN,
    thinned(QUIET),
    "federation.rules.check_claim",
    CLAIMS,
)

test_defended, test_control = suite(
    CLAIM,
    Attack(
        13,
        "a release that says what it costs, and costs more than the policy allows",
        THIN,
        thinned(LOUD, epsilon=EPSILON),
        "federation.rules.check_limit",
        "'epsilon'",
    ),
    Attack(
        13, "a claim at a delta of one in two", THIN, thinned(replace(QUIET, delta=0.5)), CHECK_RELEASE, "delta is 0.5"
    ),
    Attack(
        13,
        "a claim that counts on more honest clients than the cohort gives",
        THIN,
        thinned(CROWDED),
        CHECK_RELEASE,
        f"counts on {2 * CLIENTS} sources of noise, not {HONEST}",
    ),
    Attack(
        13,
        "a lower cohort than the noise was made for",
        THIN,
        thinned(RELEASE, cohort=COHORT - 1, lost=2),
        CHECK_RELEASE,
        f"counts on {HONEST} sources of noise, not {HONEST - 1}",
    ),
    Attack(
        13,
        "a release made for a coarser grid, so with a sensitivity too small",
        THIN,
        thinned(COARSE),
        CHECK_RELEASE,
        "its segments are not the session's",
    ),
    Attack(
        13,
        "dropouts claimed until the noise of one is left",
        THIN,
        played(claimed_dropouts),
        "core.checks.cohort_is_reached",
        "'min_survivors'",
    ),
    Attack(
        13,
        "distributed noise over the protocol that masks nothing",
        THIN,
        played(plain_uploads),
        "federation.rules.check_privacy",
        "masks none",
    ),
    Attack(
        13, "the same release of the same data, again and again", THIN, played(the_same_again), SPENDING, "'epsilon'"
    ),
    Attack(
        13, "the same release twice at once", THIN, played(two_at_once), "federation.state.Journal.give", "'epsilon'"
    ),
    Everywhere(
        13,
        "exact sums of clients that agreed to a release",
        NAKED,
        played(exact_sums),
        "core.policy.check_proposal",
        "the release is not the one agreed",
    ),
    Attack(
        13,
        "exact sums after private ones",
        NAKED,
        played(exact_after_private),
        SPENDING,
        "exact sums would void the private releases",
    ),
    Attack(
        13,
        "a private release after exact sums",
        "a claim that is false",
        played(private_after_exact),
        SPENDING,
        "no privacy can be claimed",
    ),
    Attack(
        13,
        "a census before a private release",
        "exact presence bits",
        played(census),
        "core.policy.check_params",
        "exact presence bits would void",
    ),
    Attack(
        13,
        "an altered public map, handed out under the agreed one's name",
        "whether the victim takes part",
        played(altered_map),
        "federation.client.feature_map_name",
        "'feature_map'",
        always(feature_map_name("embedded", AGREED)),
    ),
    Attack(
        13,
        "an altered public map that no client has loaded",
        "a transcript of another map than was used",
        played(another_map),
        "federation.client.feature_map_name",
        "'feature_map'",
        always(feature_map_name("embedded", ALTERED)),
    ),
)


# What the attacks above rest on.


@pytest.mark.parametrize("lost", [0, 1])
def test_an_honest_release_has_the_noise_that_was_promised(lost: int) -> None:
    """The measure can say no: as many clients as may be lost are lost, and one adds no noise."""
    with contextlib.closing(People()) as people:
        session = people.session(private(), people.policy(private(), epsilon=EPSILON))
        noise = session.run(lost=people.ids[1 : 1 + lost]).noise()
    low, high = bounds(noise)
    honest = CLIENTS - CORRUPT - lost
    assert low < variance(noise) * HONEST / honest < high
    assert spent(RELEASE, honest) <= EPSILON
    assert not judged(noise, RELEASE, honest, "").won


def test_under_the_agreed_map_the_mark_is_lost_in_the_noise() -> None:
    with contextlib.closing(People()) as people:
        marked(people)
        people.map = AGREED
        assert marks(people.session(replace(private(), feature_map=feature_map_name("embedded", AGREED))).run()) < 3


# Where two defences stand.


def test_thin_noise_meets_two_defences() -> None:
    """A policy that grants no more than the claim refuses what the claim leaves out."""
    limit = Attack(13, "", "", CLAIM.play, "federation.rules.check_limit", "")
    play = thinned(QUIET, epsilon=EPSILON)
    assert CLAIMS in play().told
    with limit.without_defence():
        assert CLAIMS in play().told
    with CLAIM.without_defence():
        assert "and the policy allows 1" in play().told
        with limit.without_defence():
            assert play().won


def test_prompts_tuned_without_privacy_meet_two_defences(monkeypatch: pytest.MonkeyPatch) -> None:
    play = played(tuned_prompts)
    assert "would void the bound of every feature" in play().told
    with monkeypatch.context() as patch:
        patch.setattr(rules, "check_release", nothing)
        assert "tuned elsewhere" in play().told
    brought = property(lambda client: False, lambda client, value: None)
    monkeypatch.setattr(RoundClient, "_brought_prompts", brought, raising=False)
    assert "would void the bound of every feature" in play().told
    monkeypatch.setattr(rules, "check_release", nothing)
    assert play().won


def test_prompts_that_are_yet_to_be_tuned_meet_two_defences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has none does not tune them without privacy, whatever was agreed."""
    monkeypatch.setattr(rules, "check_release", nothing)
    with contextlib.closing(People()) as people:
        task = private(task=TUNED)
        session = people.session(task).run(PHASES[PROTOCOL][:3])
        assert not session.refused
        client = session.clients[people.victim]
        with pytest.raises(MisuseError, match="may not be tuned on private images"):
            client.tune()
        # As if nothing private had been agreed: what it would upload is what it tunes without privacy.
        monkeypatch.setattr("fedopal_secure.federation.client.task_release", nothing)
        client.tune()
        assert client.tuned is not None
        np.testing.assert_array_equal(client.tuned, tune(people.data[people.victim]))


def test_the_budget_is_that_of_the_journal_and_not_of_the_data() -> None:
    """One image less would be other data to the ledger of exact sums; to this one it is the same budget."""
    with contextlib.closing(People()) as people:
        task = private()
        policy = people.policy(task, epsilon=EPSILON)
        people.session(task, policy).run().shown()
        for client, data in people.data.items():
            people.data[client] = PrivateData(data.images[1:], data.labels[1:])
        with pytest.raises(Refused, match="'epsilon'"):
            people.session(task, policy).run().shown()
