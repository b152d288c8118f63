"""The commands as people use them: simulate, then predict and evaluate with what it released."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedopal_secure.cli import app
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.data.datasets import load_dataset
from fedopal_secure.model import Model

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
    for command in ("demo", "simulate", "privacy", "public-map", "sweep", "predict", "evaluate", "keys", "audit"):
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


def test_heads_of_other_kinds_come_of_the_same_sums() -> None:
    common = ("simulate", "--clients", 3, "--train-limit", 300, "--prompts", "none", "--json")
    found = {
        arguments: json.loads(run(*common, *arguments))
        for arguments in [(), ("--head", "lda"), ("--head", "ridge-normalised"), ("--lambda", "relative:0.01")]
    }
    assert len({json.dumps(result["lambda"]) for result in found.values()}) == 2  # lda takes the lambda of ridge
    assert found["--lambda", "relative:0.01"]["lambda"]["rule"] == "relative"
    assert all(result["accuracy"] > 0.6 for result in found.values())
    assert len({result["accuracy"] for result in found.values()}) > 1
    for arguments, reason in [
        (("--head", "best"), "head.kind"),
        (("--head", "lda", "--epsilon", "4"), "needs exact sums"),
    ]:
        result = runner.invoke(app, [str(argument) for argument in (*common, *arguments)])
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert reason in result.stderr


def test_audit_verify_as_text_and_as_json(released: Path, tmp_path: Path) -> None:
    said = run("audit", "verify", released, "--trust", released / "trust.toml")
    assert "OK: " in said
    assert "signed by server" in said
    assert "not checked" in said
    found = json.loads(run("audit", "verify", released, "--trust", released / "trust.toml", "--json"))
    assert found["ok"] is True
    assert found["head"] == json.loads((released / "result.json").read_text())["transcript"]

    held = tmp_path / "held"
    shutil.copytree(released, held)
    message = held / "transcript" / "messages" / "00005.bin"
    message.write_bytes(message.read_bytes()[:-1] + b"x")
    result = runner.invoke(app, ["audit", "verify", str(held), "--trust", str(held / "trust.toml")])
    assert result.exit_code == 3
    assert "entry 5: is not the one that was recorded" in result.stderr
    assert "To blame: whoever kept this transcript" in result.stderr
    result = runner.invoke(app, ["audit", "verify", str(tmp_path), "--trust", str(held / "trust.toml")])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "holds no transcript" in result.stderr


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_model_by_somebody_else_is_refused(command: str, released: Path, images: Path, tmp_path: Path) -> None:
    model = Model.load(released / "model.safetensors")
    assert run(command, released / "model.safetensors", images, "--trust", model.server)
    other = SigningKey(bytes(32))
    model.signed(other, model.transcript).save(tmp_path / "other.safetensors")
    scaled = dataclasses.replace(model, head=dataclasses.replace(model.head, weights=model.head.weights * 2))
    scaled.save(tmp_path / "changed.safetensors")
    for file, identity, code, reason in [
        ("other", model.server, 2, f"it names {other.identity.hex()[:12]}"),
        ("changed", model.server, 2, "is not the one that"),
        ("other", "abc", 2, "64 hex digits"),
    ]:
        arguments = [command, str(tmp_path / f"{file}.safetensors"), str(images), "--trust", identity]
        result = runner.invoke(app, arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (code, 1)
        assert reason in result.stderr
    # Control: whoever does not ask whose it is gets an answer from either.
    assert run(command, tmp_path / "other.safetensors", images)
    assert run(command, tmp_path / "changed.safetensors", images)
