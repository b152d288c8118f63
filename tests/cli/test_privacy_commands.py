"""Privacy on the command line: what is printed can be used, and what would void a claim is refused in one line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedopal_secure.cli import app
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.privacy.release import parse_release

runner = CliRunner()
SMALL = ("--train-limit", 120, "--clients", 4, "--corrupt", 0, "--alpha", "inf")


def run(*arguments: object) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(words: str, *arguments: object) -> None:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    error = result.stderr.strip()
    assert error.startswith("fedopal-secure: ")
    assert "\n" not in error
    assert words in error
    assert result.stdout == ""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "round.toml"
    path.write_text(
        "train_limit = 120\nclients = 4\ncorrupt = 0\nalpha = inf\nmax_images = 128\n"
        '[privacy]\nepsilon = 2\nmode = "local"\n'
    )
    return path


def test_a_private_round_says_what_it_claims_and_runs_again(tmp_path: Path) -> None:
    options = ("--epsilon", 2, "--delta", 1e-6, "--privacy", "central")
    text = " ".join(run("simulate", *SMALL, *options, "--out", tmp_path / "run").split())
    assert "-differential privacy for one image, central noise" in text
    assert "the claim is against those who see the model only" in text
    first = json.loads((tmp_path / "run" / "result.json").read_text())
    assert 1.9 < first["privacy"]["epsilon"] <= 2
    assert first["privacy"]["delta"] == 1e-6
    again = json.loads(run("simulate", tmp_path / "run" / "config.toml", "--json"))
    for same in ("accuracy", "lambda", "sessions", "transcript", "privacy"):
        assert again[same] == first[same]
    assert json.loads(run("evaluate", tmp_path / "run" / "model.safetensors", "digits", "--json"))["images"] == 1000


def test_the_lines_of_a_plan_make_a_policy_that_agrees_and_no_other(plan: Path, tmp_path: Path) -> None:
    shown = run("privacy", plan)
    assert "r_upper" in shown
    lines = shown[shown.index("release = ") :]
    assert parse_release(tomllib.loads(lines)["release"]) == parse_release(run("privacy", plan, "--json").strip())
    policy = tmp_path / "policy.toml"
    policy.write_text(f"corrupt = 0\n{lines}")
    assert json.loads(run("simulate", plan, "--policy", policy, "--json"))["privacy"]["mode"] == "local"
    result = runner.invoke(app, ["simulate", str(plan), "--epsilon", "4", "--policy", str(policy)])
    assert (result.exit_code, "the release is not the one agreed" in result.stderr) == (3, True)


def test_a_budget_below_the_release_is_refused(plan: Path, tmp_path: Path) -> None:
    shown = run("privacy", plan)
    release = next(line for line in shown.splitlines() if line.startswith("release = "))
    policy = tmp_path / "policy.toml"
    policy.write_text(f"corrupt = 0\n{release}\nepsilon = 1.0\ndelta = 1e-5\n")
    result = runner.invoke(app, ["simulate", str(plan), "--policy", str(policy)])
    assert result.exit_code == 3
    assert "the policy allows 1" in result.stderr


def test_a_public_map_is_learnt_and_used(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.safetensors"
    run("public-map", "digits", "--limit", 300, "--dimensions", 20, "--out", out)
    assert FeatureMap.load(out).dimension == 20
    # Little noise, so that what is measured is the map and not the seed.
    found = json.loads(run("simulate", plan, "--public-map", out, "--privacy", "central", "--epsilon", 16, "--json"))
    assert found["accuracy"] > 0.6
    fails("exists already", "public-map", "digits", "--limit", 300, "--out", out)
    random = np.random.default_rng(0)
    FeatureMap.from_public_features(random.standard_normal((50, 30))).save(tmp_path / "other.safetensors")
    fails("a map of 30 features", "simulate", plan, "--public-map", tmp_path / "other.safetensors")
    fails("cannot be read", "simulate", plan, "--public-map", tmp_path / "none.safetensors")


def test_dp_sgd_needs_privacy_and_keeps_the_files_other_settings(tmp_path: Path) -> None:
    fails("give an --epsilon", "simulate", *SMALL, "--prompts", "dp-sgd:1.0")
    fails("clipping bound", "simulate", *SMALL, "--epsilon", 1, "--prompts", "dp-sgd")
    path = tmp_path / "round.toml"
    path.write_text(
        "train_limit = 40\nclients = 3\ncorrupt = 0\nalpha = inf\n"
        "[privacy]\nepsilon = 8\n[prompts]\ntokens = 2\n[prompts.dp_sgd]\nclip = 9.0\nsteps = 2\n"
    )
    run("simulate", path, "--prompts", "dp-sgd:0.5", "--out", tmp_path / "run")
    left = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["prompts"]
    assert (left["mode"], left["dp_sgd"]["clip"], left["dp_sgd"]["steps"]) == ("two-phase", 0.5, 2)
    path.write_text("[privacy]\nepsilon = 1\n[prompts]\nmode = 'local'\n[prompts.dp_sgd]\nsteps = 2\n")
    fails("'prompts.dp_sgd.clip'", "simulate", path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--epsilon", 0), "privacy.epsilon"),
        (("--epsilon", -1), "privacy.epsilon"),
        (("--epsilon", "nan"), "privacy.epsilon"),
        (("--epsilon", 1, "--delta", 0), "privacy.delta"),
        (("--epsilon", 1, "--delta", 0.01), "below 1/128"),
        (("--privacy", "local"), "need an --epsilon"),
        (("--epsilon", 1, "--privacy", "shuffled"), "privacy.mode"),
        (("--epsilon", 1, "--prompts", "local"), "void that of the sums"),
        (("--epsilon", 1, "--lambda", "1e-6"), "below the noise of R"),
        (("--epsilon", 1, "--lambda", "gcv"), "needs exact residuals"),
        (("--lambda", "class-mean"), "for sums with noise"),
        (("--epsilon", 1, "--min-contributors", 1), "exact presence bits"),
        (("--epsilon", 1, "--protocol", "plain"), "only inside a masked sum"),
        (("--public-map", "embedded"), "under noise only"),
    ],
)
def test_what_would_void_a_claim_is_refused(arguments: tuple[object, ...], words: str) -> None:
    fails(words, "simulate", *SMALL, *arguments)


def test_a_plan_without_privacy_is_none(tmp_path: Path) -> None:
    path = tmp_path / "round.toml"
    for text in ("max_images = 4096\n", "max_images = 4096\n[privacy]\nepsilon = inf\n"):
        path.write_text(text)
        fails("nothing private to plan", "privacy", path)
    path.write_text("clients = 4\n[privacy]\nepsilon = 1\n")
    fails("give max_images", "privacy", path)
