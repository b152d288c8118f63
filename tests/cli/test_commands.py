"""The commands as people use them: simulate, then predict and evaluate with what it released."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedopal_secure.cli import app
from fedopal_secure.data.datasets import load_dataset

runner = CliRunner()


def run(*arguments: object) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "digits"
    run("simulate", "--clients", 4, "--train-limit", 600, "--prompts", "none", "--baselines", "--out", out)
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    test = load_dataset("digits", seed=0).test
    for number in range(60):
        at = folder / str(test.labels[number])
        at.mkdir(exist_ok=True)
        Image.fromarray(np.asarray(test.images[number])).save(at / f"{number:03d}.png")
    return folder


def test_help_teaches() -> None:
    for command in ("demo", "simulate", "privacy", "public-map", "sweep", "predict", "evaluate", "keys"):
        assert command in run("--help")
    assert "Dirichlet" in run("simulate", "--help")


def test_a_run_can_be_run_again_from_its_folder(released: Path, tmp_path: Path) -> None:
    again = json.loads(run("simulate", released / "config.toml", "--json"))
    first = json.loads((released / "result.json").read_text())
    for same in ("accuracy", "lambda", "sessions", "transcript", "baseline", "exact"):
        assert again[same] == first[same]
    assert first["baseline"]["head_identical"]
    assert first["baseline"]["centralised"] == first["accuracy"]


def test_predict_writes_csv(released: Path, images: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("predict", released / "model.safetensors", images))))
    assert len(rows) == 60
    right = sum(row["label"] == Path(row["file"]).parent.name for row in rows)
    assert right > 40
    one = run("predict", released / "model.safetensors", rows[0]["file"])
    assert one.splitlines()[1] == ",".join(rows[0].values())


def test_evaluate_as_table_and_as_json(released: Path, images: Path) -> None:
    found = json.loads(run("evaluate", released / "model.safetensors", images, "--json"))
    assert found["images"] == 60
    assert found["accuracy"] > 0.7
    assert 0.9 < found["auc"] <= 1
    assert set(found["recall"]) == {str(digit) for digit in range(10)}
    assert "accuracy" in run("evaluate", released / "model.safetensors", images)


def test_keys_new_prints_the_public_key_only(tmp_path: Path) -> None:
    line = run("keys", "new", "hospital-a", "--folder", tmp_path)
    name, _, key = line.partition(" = ")
    assert name == '"hospital-a"'
    assert len(bytes.fromhex(json.loads(key))) == 32
    assert "PRIVATE" in (tmp_path / "hospital-a.key").read_text()
    assert run("keys", "show", tmp_path / "hospital-a.key") == line
    assert "PRIVATE" not in line
