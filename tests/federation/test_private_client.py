"""What a client refuses of a private release: it computes the claim again, and trusts no statement of the server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core.errors import InputError, MisuseError, OverflowBudgetError, PolicyRefusal
from fedopal_secure.core.params import Task
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.federation import rules
from fedopal_secure.federation.client import PrivateData, RoundClient, compute_statistics
from fedopal_secure.federation.config import FeatureSettings, PrivacySettings, SimulationConfig
from fedopal_secure.federation.secure_sum import PLAIN, Participant
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.vectors import session_segments, to_vector
from fedopal_secure.privacy.release import PrivateTuning, Release, parse_release
from fedopal_secure.runtimes.parties import SeededEntropy
from fedopal_secure.runtimes.simulation import Simulation
from tests.federation.test_round_client import CLIENT, join, make, proposal

BARE = FeatureSettings(public="none")


def configured(**privacy: object) -> SimulationConfig:
    settings = PrivacySettings.model_validate({"epsilon": 1.0} | privacy)
    return SimulationConfig(train_limit=40, clients=3, privacy=settings, features=BARE)


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return Simulation(configured())


def with_release(simulation: Simulation, **changes: object) -> Task:
    release: Release = replace(parse_release(simulation.task.release), **changes)
    return replace(simulation.task, release=release.text())


def ask(simulation: Simulation, task: Task, client: RoundClient | None = None, **params: object) -> None:
    """Propose a session with this task, to a client whose policy agrees to whatever release it names."""
    client = client or make(simulation, release=task.release)
    join(simulation, client, proposal(simulation, task=task, **params))


def test_the_release_that_was_agreed_is_accepted(simulation: Simulation) -> None:
    ask(simulation, simulation.task)


def test_a_release_that_was_not_agreed_is_refused(simulation: Simulation) -> None:
    for task in (replace(simulation.task, release=""), with_release(simulation, epsilon=2.0)):
        with pytest.raises(PolicyRefusal, match="not the one agreed"):
            ask(simulation, task, make(simulation))


def halved(simulation: Simulation) -> Task:
    segments = parse_release(simulation.task.release).segments
    return with_release(simulation, segments=tuple(replace(s, sigma=s.sigma // 2) for s in segments))


def test_noise_that_does_not_hold_the_claim_is_refused(simulation: Simulation) -> None:
    task = halved(simulation)
    segments = session_segments(task, "statistics", 3)
    with pytest.raises(PolicyRefusal, match=r"gives epsilon [2-3].*claims"):
        ask(simulation, task, segments=segments)


def test_control_a_client_that_believes_the_claim_sends_half_the_noise(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "check_claim", lambda release: None)
    monkeypatch.setattr(rules, "check_limit", lambda releases, epsilon, delta: None)
    task = halved(simulation)
    ask(simulation, task, segments=session_segments(task, "statistics", 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mechanism": "laplace"}, "no mechanism"),
        ({"contributors": 4}, "counts on 4 sources"),
        ({"delta": 0.5}, "delta is 0.5"),
        ({"unit": "group"}, "no group column"),
        ({"segments": ()}, "not the session's"),
    ],
)
def test_a_release_that_is_unsound_is_refused(simulation: Simulation, changes: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyRefusal, match=message):
        ask(simulation, with_release(simulation, **changes))


def test_noise_counts_on_the_cohort_of_the_session_and_not_on_the_roster(simulation: Simulation) -> None:
    # Three clients with c = 0 give m = 3. If one may be corrupt, that takes four, and two of them count.
    with pytest.raises(PolicyRefusal, match="counts on 3 sources of noise, not 2"):
        ask(simulation, simulation.task, clients=4, corrupt=2, min_survivors=4)


def test_distributed_noise_is_not_sent_over_a_protocol_without_masks(simulation: Simulation) -> None:
    protocols = frozenset({PLAIN, "secagg/v1"})
    client = make(simulation, release=simulation.task.release, protocols=protocols)
    with pytest.raises(PolicyRefusal, match="masks none"):
        ask(simulation, simulation.task, client, protocol=PLAIN)


def test_prompts_tuned_without_privacy_are_refused(simulation: Simulation) -> None:
    tuned = {"prompt_mode": "local", "prompt_tokens": 2, "prompt_dimension": 224, "prompt_source": bytes(32)}
    task = replace(simulation.task, **tuned)
    client = make(simulation, prompt_modes=frozenset({"local"}))
    with pytest.raises(PolicyRefusal, match="void the bound of every feature"):
        ask(simulation, task, client)


def test_a_feature_map_that_it_has_not_loaded_is_refused(simulation: Simulation) -> None:
    public = FeatureMap.centring(np.random.default_rng(0).standard_normal((4, 224)))
    task = replace(simulation.task, feature_map=f"cls, public map {public.digest().hex()}")
    with pytest.raises(PolicyRefusal, match="'feature_map'"):
        ask(simulation, task)


def test_a_journal_that_is_spent_refuses_before_anything_is_sent(simulation: Simulation, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.give(b"", b"earlier", "statistics", b"earlier", 1, simulation.task.release)
    with pytest.raises(PolicyRefusal, match="'epsilon'"):
        ask(simulation, simulation.task, make(simulation, journal))
    ask(simulation, simulation.task, make(simulation, journal, epsilon=2.0))


def test_noise_that_would_overflow_is_refused_before_anything_is_sent() -> None:
    # The sums of so many images just fit into 63 bits, and with the noise they do not.
    wide = SimulationConfig(
        train_limit=40, clients=3, max_images=2**27 - 1, features=FeatureSettings(bits=18, public="none")
    )
    exact = Simulation(wide)
    assert session_segments(exact.task, "statistics", 3)
    noisy = wide.model_copy(update={"privacy": PrivacySettings(epsilon=1.0, delta=1e-9)})
    with pytest.raises(OverflowBudgetError, match="do not fit into 8 bytes"):
        Simulation(noisy).run()


def test_what_a_client_sends_is_its_statistics_with_fresh_noise(simulation: Simulation) -> None:
    params = proposal(simulation)
    statistics = compute_statistics(simulation.backbone, simulation.data_of([0]), simulation.task, None)
    entropy = SeededEntropy(0, "noise")
    one, two = (to_vector(params, statistics, None, entropy) for _ in range(2))
    assert (one != two).mean() > 0.99
    with pytest.raises(MisuseError, match="needs entropy"):
        to_vector(params, statistics, None)


def test_a_group_keeps_the_same_images_whatever_else_is_there() -> None:
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 255, (12, 4, 4, 1), np.uint8), np.arange(12) % 3
    groups = np.repeat([0, 1, 2], 4)
    data = PrivateData(images, labels, groups)
    alone = PrivateData(images[4:8], labels[4:8], np.zeros(4, np.int64))
    kept = data.capped(2)
    assert len(kept) == 6
    assert sorted(kept.keys()[2:4]) == sorted(alone.capped(2).keys())
    order = random.permutation(12)
    shuffled = PrivateData(images[order], labels[order], groups[order])
    assert shuffled.capped(2).digest() == kept.digest()


def test_without_a_bound_on_epsilon_nothing_is_private() -> None:
    settings = configured(epsilon=float("inf"))
    assert settings.privacy is None
    assert Simulation(settings).task.release == ""


def test_a_group_is_not_tuned_on_even_if_one_image_of_it_counts(simulation: Simulation) -> None:
    tuned = {"prompt_mode": "local", "prompt_tokens": 2, "prompt_dimension": 224, "prompt_source": bytes(32)}
    prompts = PrivateTuning(sample_rate=0.1, noise_multiplier=9.0, steps=2, clip=1.0, lot=8)
    task = replace(with_release(simulation, unit="group", prompts=prompts), **tuned)
    client = make(simulation, release=task.release, prompt_modes=frozenset({"local"}))
    with pytest.raises(PolicyRefusal, match="not groups of them"):
        ask(simulation, task, client)


@pytest.mark.parametrize("mode", ["central", "local"])
def test_only_noise_that_needs_no_masks_goes_without_them(mode: str) -> None:
    simulation = Simulation(configured(mode=mode))
    client = make(simulation, release=simulation.task.release, protocols=frozenset({PLAIN}))
    if mode == "local":
        ask(simulation, simulation.task, client, protocol=PLAIN)
    else:
        with pytest.raises(PolicyRefusal, match="masks none"):
            ask(simulation, simulation.task, client, protocol=PLAIN)


def test_claims_of_another_kind_do_not_share_a_journal(simulation: Simulation) -> None:
    group, central = (
        with_release(simulation, **changes).release for changes in ({"unit": "group"}, {"mode": "central"})
    )
    for earlier in (group, central):
        journal = Journal()
        journal.give(b"", b"earlier", "statistics", b"earlier", 1, earlier)
        with pytest.raises(PolicyRefusal, match="do not add up"):
            ask(simulation, simulation.task, make(simulation, journal, epsilon=1000.0))


def test_a_policys_delta_must_be_one_too(simulation: Simulation) -> None:
    with pytest.raises(PolicyRefusal, match="'delta'"):
        ask(simulation, simulation.task, make(simulation, delta=0.5))


def test_a_client_without_images_takes_part_like_any_other(simulation: Simulation) -> None:
    """Otherwise the roster, which is public, would tell whether a client has any."""
    some = simulation.data_of([0])
    none = PrivateData(some.images[:0], some.labels[:0])
    client = make(simulation, data=none)
    ask(simulation, simulation.task, client)
    statistics = compute_statistics(simulation.backbone, none, simulation.task, None)
    assert statistics.images == 0
    assert not statistics.r.any()
    with pytest.raises(InputError, match="no images"):
        make(simulation, data=none, release="")


def test_a_label_that_no_class_has_is_found_before_the_round(simulation: Simulation) -> None:
    some = simulation.data_of([0])
    with pytest.raises(InputError, match="a label that is none of 0 to 9"):
        make(simulation, data=PrivateData(some.images, some.labels + 10))


def test_prompts_from_elsewhere_have_no_place_in_a_private_round(simulation: Simulation) -> None:
    rules = Participant(simulation.keys[CLIENT], b"", simulation.policy, SeededEntropy(0, CLIENT))
    client = RoundClient(
        rules,
        simulation.backbone,
        simulation.data_of([0]),
        Journal(),
        Timings(),
        tuning_seed=0,
        tuned=np.zeros((2, 224), np.float32),
    )
    with pytest.raises(MisuseError, match="tuned elsewhere"):
        ask(simulation, simulation.task, client)
