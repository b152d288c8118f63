"""Whole private rounds on real digits: who adds how much noise, and what the result says of it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedopal_secure.core.errors import InputError
from fedopal_secure.encoding.layout import C
from fedopal_secure.federation.client import compute_statistics
from fedopal_secure.federation.config import SimulationConfig
from fedopal_secure.federation.vectors import task_release
from fedopal_secure.model import Model
from fedopal_secure.runtimes import simulation as simulation_module
from fedopal_secure.runtimes.simulation import Outcome, Simulation
from fedopal_secure.statistics.sums import SufficientStatistics

BARE = {"public": "none"}  # all 224 axes, so that there are entries enough to measure the noise on


def config(**changes: object) -> SimulationConfig:
    values = {"train_limit": 240, "clients": 5, "corrupt": 1, "alpha": math.inf, "privacy": {"epsilon": 4.0}}
    return SimulationConfig.model_validate(values | changes)


def run(
    settings: SimulationConfig, monkeypatch: pytest.MonkeyPatch
) -> tuple[Simulation, Outcome, SufficientStatistics]:
    """A round, and what its server had to solve from."""
    released: list[SufficientStatistics] = []
    solve = simulation_module.RoundServer.release

    def spy(server: simulation_module.RoundServer) -> Model:
        released.append(server.statistics())
        return solve(server)

    monkeypatch.setattr(simulation_module.RoundServer, "release", spy)
    simulated = Simulation(settings)
    return simulated, simulated.run(), released[0]


def noise_of_c(simulated: Simulation, outcome: Outcome, released: SufficientStatistics) -> float:
    """Standard deviation of what C differs by from that of the survivors' pooled images, over one client's sigma."""
    exact = compute_statistics(simulated.backbone, outcome.pooled, simulated.task, None, simulated.public_map)
    release = task_release(simulated.task)
    assert release is not None
    return float((released.c - exact.c).std() / release.sigma(C))


@pytest.mark.parametrize(("mode", "terms", "contributors"), [("distributed", 5, 2), ("local", 5, 1), ("central", 1, 1)])
def test_each_mode_has_the_noise_that_it_says(
    mode: str, terms: int, contributors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated, outcome, released = run(config(privacy={"epsilon": 4.0, "mode": mode}, features=BARE), monkeypatch)
    assert noise_of_c(simulated, outcome, released) == pytest.approx(math.sqrt(terms), rel=0.06)  # 2,240 entries
    found = outcome.result.privacy
    assert found is not None
    assert (found.mode, found.contributors, found.unit, found.relation) == (mode, contributors, "image", "add-remove")
    assert found.realised == pytest.approx(math.sqrt(terms / contributors))
    assert 3.9 < found.epsilon <= 4
    assert found.accountant == "RDP"
    # The vectors that were summed are the survivors', noise and all.
    assert outcome.result.exact is not None
    assert outcome.result.exact.max_abs_difference == 0


def test_dropouts_leave_the_noise_that_the_claim_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated, outcome, released = run(
        config(clients=6, drop=("upload:2",), min_survivors=4, features=BARE), monkeypatch
    )
    assert outcome.result.privacy is not None
    assert outcome.result.privacy.contributors == 3
    assert noise_of_c(simulated, outcome, released) == pytest.approx(2.0, rel=0.06)  # four of six survived


def test_a_large_epsilon_costs_little_and_a_small_one_much() -> None:
    exact = Simulation(config(privacy=None, train_limit=600)).run().result
    loose = Simulation(config(privacy={"epsilon": 50.0, "mode": "central"}, train_limit=600)).run().result
    tight = Simulation(config(privacy={"epsilon": 0.01, "mode": "local"}, train_limit=600)).run().result
    assert exact.privacy is None
    assert exact.accuracy - loose.accuracy < 0.06
    assert tight.accuracy < 0.5 < loose.accuracy


def test_central_noise_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    add = simulation_module.RoundServer._with_noise
    monkeypatch.setattr(
        simulation_module.RoundServer, "_with_noise", lambda server, sums: drawn.append(1) or add(server, sums)
    )
    simulated, outcome, released = run(config(privacy={"epsilon": 4.0, "mode": "central"}), monkeypatch)
    del simulated, outcome, released
    assert len(drawn) == 1


def test_prompts_by_dp_sgd_take_part_in_the_claim() -> None:
    prompts = {"mode": "two-phase", "tokens": 2, "dp_sgd": {"clip": 1.0, "steps": 2, "sample_rate": 0.2}}
    settings = config(prompts=prompts, train_limit=60, clients=4, corrupt=0)
    one, again = Simulation(settings).run(), Simulation(settings).run()
    found = one.result.privacy
    assert found is not None
    assert found.prompts_epsilon is not None
    assert 0 < found.prompts_epsilon <= 2.0
    assert 3.9 < found.epsilon <= 4
    assert one.model.prompts is not None
    assert np.array_equal(
        one.model.prompts, again.model.prompts
    )  # tuning beside the protocol draws from its own entropy
    assert np.array_equal(one.model.head.weights, again.model.head.weights)


def test_a_model_carries_its_public_map(tmp_path: Path) -> None:
    first = Simulation(config(privacy={"epsilon": 2.0, "mode": "distributed"})).run(tmp_path / "one")
    loaded = Model.load(tmp_path / "one" / "model.safetensors")
    assert first.model.public_map is not None
    assert loaded.public_map is not None
    assert loaded.public_map.digest() == first.model.public_map.digest()
    assert np.array_equal(loaded.head.weights, first.model.head.weights)


def test_public_prompts_must_be_public(tmp_path: Path) -> None:
    small = {"train_limit": 40, "clients": 3, "corrupt": 0}
    tuned = {"mode": "local", "tokens": 2, "tuning": {"epochs": 1}}
    Simulation(config(**small, privacy=None, prompts=tuned)).run(tmp_path / "exact")
    Simulation(config(**small, prompts=tuned | {"dp_sgd": {"clip": 1.0, "steps": 1}})).run(tmp_path / "private")
    public = {"mode": "public", "file": str(tmp_path / "exact" / "model.safetensors")}
    with pytest.raises(InputError, match="would void that of the sums"):
        Simulation(config(**small, prompts=public))
    assert Simulation(config(**small, privacy=None, prompts=public)).public_prompts is not None
    public["file"] = str(tmp_path / "private" / "model.safetensors")
    assert Simulation(config(**small, prompts=public)).public_prompts is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_contributors": 1}, "census sums exact presence bits"),
        ({"prompts": {"mode": "local"}}, "void that of the sums"),
        ({"prompts": {"mode": "two-phase"}}, "void that of the sums"),
        ({"protocol": "plain"}, "only inside a masked sum"),
        ({"head": {"rule": "gcv"}}, "needs exact residuals"),
        ({"head": {"rule": "fixed", "value": 1e-6}}, "below the noise of R"),
        ({"head": {"intercept": False}}, "has an intercept"),
        ({"privacy": {"epsilon": 1.0, "unit": "group", "unit_images": 3}}, "which images are of one group"),
        ({"privacy": {"epsilon": 1.0, "delta": 0.01}}, "below 1/256"),
        ({"privacy": None, "head": {"rule": "class-mean"}}, "for sums with noise"),
        ({"features": {"dimensions": 1000}}, "1000 dimensions of a feature map"),
        ({"features": {"public": "nowhere.safetensors"}}, "cannot be read"),
    ],
)
def test_what_would_void_the_claim_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Simulation(config(**changes)).run()
