"""Whole rounds on real digits: the released head is the centralised one bit for bit, whatever the split or dropouts."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedopal_secure.core.errors import InputError, PolicyRefusal, SessionAborted
from fedopal_secure.federation.config import PolicyConfig, PromptSettings, SimulationConfig, TuningSettings
from fedopal_secure.federation.transcript import read_transcript
from fedopal_secure.model import Model
from fedopal_secure.runtimes.result import Result
from fedopal_secure.runtimes.simulation import Outcome, Simulation, simulate

FIVE_GONE = ("advertise:1", "share:1", "upload:2", "reveal:1")


def config(mode: str = "two-phase", **changes: object) -> SimulationConfig:
    prompts = PromptSettings.model_validate({"mode": mode, "tuning": TuningSettings(epochs=1)})
    return SimulationConfig.model_validate({"train_limit": 240, "prompts": prompts} | changes)


def run_and_compare(settings: SimulationConfig) -> tuple[Outcome, bool]:
    simulation = Simulation(settings)
    outcome = simulation.run()
    assert outcome.result.exact is not None
    assert outcome.result.exact.max_abs_difference == 0
    # Features are computed again from the pooled images: nothing is taken from what the clients computed.
    return outcome, simulation.compare_with_centralised(outcome.model, outcome.pooled)[1]


@pytest.mark.parametrize("alpha", [0.01, 0.1, 10.0])
@pytest.mark.parametrize("clients", [3, 12, 50])
def test_two_phase_gives_the_centralised_head_bit_for_bit(clients: int, alpha: float) -> None:
    outcome, identical = run_and_compare(config(clients=clients, alpha=alpha, seed=clients))
    assert identical
    assert len(outcome.pooled.labels) == 240


def test_five_of_twelve_drop_out_and_the_head_is_that_of_those_who_uploaded() -> None:
    outcome, identical = run_and_compare(config(clients=12, drop=FIVE_GONE))
    assert identical
    sessions = {session.name: session for session in outcome.result.sessions}
    statistics = sessions["statistics"]
    assert {phase: len(names) for phase, names in statistics.dropped.items()} == {
        "advertise": 1,
        "share": 1,
        "upload": 2,
        "reveal": 1,
    }
    assert len(statistics.survivors) == 8
    assert statistics.threshold == 7
    assert len(outcome.pooled.labels) < 240


def test_local_prompts_are_the_paper_and_not_the_centralised_head() -> None:
    outcome, identical = run_and_compare(config("local", clients=5))
    assert not identical  # each client's statistics are under its own prompts: eq. 7 and eq. 8 do not match
    assert [session.name for session in outcome.result.sessions] == ["statistics"]
    assert outcome.result.sessions[0].widths["prompts"] == 4


def test_the_protocol_does_not_change_the_model() -> None:
    released = [simulate(config(clients=4, protocol=protocol)).model for protocol in ("pairwise", "plain")]
    assert np.array_equal(released[0].head.weights, released[1].head.weights)
    assert np.array_equal(released[0].prompts, released[1].prompts)


@pytest.mark.parametrize("mode", ["none", "two-phase"])
def test_a_census_comes_first_and_does_not_change_the_model(mode: str) -> None:
    settings = {"clients": 5, "alpha": 10.0, "train_limit": 120}
    outcome, identical = run_and_compare(config(mode, min_contributors=2, **settings))
    without = simulate(config(mode, **settings))
    assert identical
    assert np.array_equal(outcome.model.head.weights, without.model.head.weights)
    assert np.array_equal(outcome.model.head.intercept, without.model.head.intercept)
    if mode == "two-phase":
        assert np.array_equal(outcome.model.prompts, without.model.prompts)
    census, *rest = outcome.result.sessions
    assert census.name == "census"
    assert census.widths == {"presence": 1}
    assert [session.name for session in rest] == [session.name for session in without.result.sessions]


@pytest.mark.parametrize(("drop", "survivors"), [("census.upload:1", [6, 6]), ("statistics.upload:1", [7, 6])])
def test_one_drops_out_of_the_census_or_between_it_and_the_statistics(drop: str, survivors: list[int]) -> None:
    settings = config("none", clients=7, alpha=10.0, min_contributors=3, drop=(drop,))
    outcome, identical = run_and_compare(settings)
    assert identical
    assert [len(session.survivors) for session in outcome.result.sessions] == survivors


@pytest.mark.parametrize("mode", ["none", "two-phase"])
def test_a_class_of_too_few_aborts_before_a_statistic_is_uploaded(mode: str, tmp_path: Path) -> None:
    settings = config(mode, clients=5, corrupt=1, alpha=10.0, train_limit=120, min_contributors=5)
    with pytest.raises(SessionAborted, match="'min_contributors'") as caught:
        simulate(settings, tmp_path / "run")
    assert caught.value.rule == "min_contributors"
    entries = list(read_transcript(tmp_path / "run" / "transcript"))
    assert len({entry.session for entry in entries}) == (2 if mode == "none" else 3)
    [census] = {entry.session for entry in entries if entry.phase == "upload"}
    assert census == entries[0].session
    assert {entry.session for entry in entries if entry.phase in ("attest", "reveal")} == {census}


def test_control_with_one_fewer_the_round_ends() -> None:
    settings = config("none", clients=5, corrupt=1, alpha=10.0, train_limit=120, min_contributors=4)
    assert simulate(settings).result.exact is not None


def test_a_run_leaves_what_it_should_and_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = simulate(config(clients=4), out)
    written = msgspec.json.decode((out / "result.json").read_bytes(), type=Result)
    assert written == outcome.result
    assert json.loads((out / "result.json").read_text())["lambda"]["rule"] == "gcv"
    entries = list(read_transcript(out / "transcript"))
    assert entries[-1].head == outcome.model.transcript
    assert {entry.session for entry in entries} == {entry.session for entry in entries if entry.phase == "reveal"}
    loaded = Model.load(out / "model.safetensors")
    assert np.array_equal(loaded.head.weights, outcome.model.head.weights)
    assert np.array_equal(loaded.prompts, outcome.model.prompts)
    with pytest.raises(InputError, match="already holds a run"):
        simulate(config(clients=4), out)

    reused = PromptSettings(mode="public", file=out / "model.safetensors")
    public = simulate(SimulationConfig(train_limit=240, clients=4, prompts=reused)).model
    assert np.array_equal(public.prompts, outcome.model.prompts)
    assert np.array_equal(public.head.weights, outcome.model.head.weights)  # two-phase is this, with ΣP summed first


def test_a_seed_fixes_the_run_and_another_changes_it() -> None:
    heads = [simulate(config("none", clients=3, train_limit=60, seed=seed)).model.head.weights for seed in (1, 1, 2)]
    assert np.array_equal(heads[0], heads[1])
    assert not np.array_equal(heads[0], heads[2])


def test_too_few_survivors_abort_with_the_rule() -> None:
    with pytest.raises(SessionAborted, match="'min_survivors'"):
        simulate(config("none", clients=4, train_limit=60, drop=("upload:2",)))
    with pytest.raises(SessionAborted, match="'quorum'"):
        simulate(config("none", clients=5, train_limit=60, drop=("attest:3",)))
    with pytest.raises(SessionAborted, match="'threshold'"):
        simulate(config("none", clients=5, train_limit=60, drop=("reveal:3",)))


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (PolicyConfig(corrupt=3), "corrupt"),
        (PolicyConfig(corrupt=0, min_survivors=6), "min_survivors"),
        (PolicyConfig(corrupt=0, max_images=128), "max_images"),
        (PolicyConfig(corrupt=0, prompt_modes=("none",)), "prompt_modes"),
        (PolicyConfig(corrupt=0, release="gaussian"), "release"),
        (PolicyConfig(corrupt=0, min_threshold=11), "min_threshold"),
        (PolicyConfig(corrupt=0, classes=tuple("9876543210")), "classes"),
        (PolicyConfig(corrupt=0, backbone="another"), "backbone"),
        (PolicyConfig(corrupt=0, backbone_hash="00" * 32), "backbone_hash"),
        (PolicyConfig(corrupt=0, preprocessing="another"), "preprocessing"),
        (PolicyConfig(corrupt=0, protocols=("bfv/v1",)), "protocols"),
        (PolicyConfig(corrupt=0, prompt_radius=1e-9), "prompt_radius"),
        (PolicyConfig(corrupt=0, min_contributors=1), "min_contributors"),
    ],
)
def test_a_clients_policy_refuses_with_the_name_of_its_rule(policy: PolicyConfig, rule: str) -> None:
    with pytest.raises(PolicyRefusal) as caught:
        simulate(config(clients=5, corrupt=1, train_limit=40), policy=policy)
    assert caught.value.rule == rule


def test_a_simulation_does_not_pretend_to_check_identities() -> None:
    with pytest.raises(InputError, match="makes its own"):
        simulate(config("none", clients=3, train_limit=40), policy=PolicyConfig(corrupt=0, servers={"x": "00" * 32}))


def test_wrong_data_is_one_line(tmp_path: Path) -> None:
    for changes, words in (
        ({"clients": 50, "train_limit": 40}, "50 clients but only 40 images"),
        ({"max_images": 100}, "more than max_images"),
        ({"dataset": str(tmp_path / "nothing")}, "nothing"),
        ({"backbone": "no-such-backbone"}, "no-such-backbone"),
        ({"drop": ("upload:99",)}, "only"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            simulate(config("none", **changes))
        assert "\n" not in str(caught.value)
