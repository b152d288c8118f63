"""Rubbish on the command line: one line on standard error, exit code 2 (3 for an aborted protocol), nothing lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedopal_secure.cli import app

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog"):
            at = tmp_path / "data" / part / name
            at.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(random.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(at / f"{number}.png")
    return tmp_path / "data"


def fails(words: str, *arguments: object, code: int = 2) -> None:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    error = result.stderr.strip()
    assert "\n" not in error, error
    assert error.startswith("fedopal-secure: ")
    assert words in error
    assert result.stdout == ""


def simulate(folder: Path, *more: object) -> tuple[object, ...]:
    return ("simulate", "--dataset", folder, "--clients", 3, "--prompts", "none", *more)


def test_the_folder_that_all_these_tests_break_is_fine(folder: Path) -> None:
    result = runner.invoke(app, [str(part) for part in simulate(folder, "--json")])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("{")


def test_missing_or_empty_folder(tmp_path: Path) -> None:
    fails("nothing", *simulate(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    fails("empty", *simulate(tmp_path / "empty"))


def test_unreadable_image_is_named_or_skipped_and_counted(folder: Path) -> None:
    (folder / "train" / "cat" / "broken.png").write_bytes(b"no image")
    fails("broken.png", *simulate(folder))
    result = runner.invoke(app, [str(part) for part in simulate(folder, "--skip-unreadable")])
    assert result.exit_code == 0, result.output
    assert "1 unreadable images were skipped" in result.stdout


def test_a_class_in_test_that_is_not_in_train(folder: Path) -> None:
    (folder / "train" / "cat").rename(folder / "train" / "owl")
    fails("cat", *simulate(folder))


def test_non_finite_features(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from fedopal_secure.vision.backbone import Backbone

    monkeypatch.setattr(Backbone, "forward", lambda self, images, prompts=None: torch.full((len(images), 224), np.nan))
    fails("not finite", *simulate(folder))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--alpha", 0), "alpha"),
        (("--alpha", "-1"), "alpha"),
        (("--alpha", "nan"), "alpha"),
        (("--clients", 13), "13 clients but only 12 images"),
        (("--clients", 2), "clients"),
        (("--backbone", "resnet"), "resnet"),
        (("--backbone", "timm:no_such_model"), "no_such_model"),
        (("--lambda", "small"), "head.rule"),
        (("--lambda", "-1"), "head.value"),
        (("--prompts", "global"), "prompts.mode"),
        (("--prompts", "public"), "public:MODEL"),
        (("--prompts", "public:missing.safetensors"), "missing.safetensors"),
        (("--drop", "upload"), "--drop upload"),
        (("--drop", "upload:9"), "9 clients are to drop"),
        (("--protocol", "hope"), "protocol"),
        (("--corrupt", "-1"), "corrupt"),
        (("--seed", "-1"), "seed"),
        (("--train-limit", "0"), "train_limit"),
        (("--policy", "missing.toml"), "missing.toml"),
    ],
)
def test_wrong_options(folder: Path, arguments: tuple[object, ...], words: str) -> None:
    fails(words, *simulate(folder, *arguments))


def test_more_images_than_the_budget(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f"dataset = {str(folder)!r}\nclients = 3\nmax_images = 5\nprompts.mode = 'none'\n")
    fails("max_images = 5", "simulate", tmp_path / "c.toml")


def test_an_output_folder_that_holds_a_run(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert runner.invoke(app, [str(part) for part in simulate(folder, "--out", out)]).exit_code == 0
    before = (out / "result.json").read_bytes()
    fails("already holds a run", *simulate(folder, "--out", out))
    assert (out / "result.json").read_bytes() == before


def test_a_run_that_did_not_finish_says_so(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fails("min_survivors", *simulate(folder, "--drop", "upload:1", "--out", out), code=3)
    fails("did not finish", *simulate(folder, "--out", out))


def test_an_output_folder_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    fails("cannot be written", *simulate(folder, "--out", tmp_path / "file"))
    fails("cannot be written", *simulate(folder, "--out", tmp_path / ("x" * 300)))
    assert (tmp_path / "file").read_text() == "here first"


def test_an_abort_says_which_rule_and_who(folder: Path, tmp_path: Path) -> None:
    fails("min_survivors", *simulate(folder, "--drop", "upload:1"), code=3)
    (tmp_path / "policy.toml").write_text("corrupt = 0\nmin_survivors = 3\nmax_images = 128\n")
    fails("'max_images'", *simulate(folder, "--policy", tmp_path / "policy.toml"), code=3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prompts = 'two-phase'", "'prompts'"),
        ("head = 3", "'head'"),
        ("clients = 'many'", "'clients'"),
        ("[prompts", "not valid TOML"),
    ],
)
def test_wrong_configurations(folder: Path, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    fails(words, "simulate", tmp_path / "c.toml", "--dataset", folder, "--prompts", "none", "--lambda", "gcv")


def test_a_wrong_policy(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("corrupt = 0\nbackbone_hash = 'zz'")
    fails("'backbone_hash'", *simulate(folder, "--policy", tmp_path / "policy.toml"))


def test_models_that_are_none(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"rubbish")
    for command in ("predict", "evaluate"):
        fails("not a released model", command, tmp_path / "model.safetensors", folder)
        fails("cannot be read", command, tmp_path / "missing.safetensors", folder)
