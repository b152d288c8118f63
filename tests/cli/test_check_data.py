"""check-data on the command line: a table, or JSON and nothing else; exit code 2 where there is nothing to use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from fedopal_secure.cli import app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for name in ("cat", "dog [red]"):
        at = tmp_path / "pets" / name
        at.mkdir(parents=True)
        for number in range(10):
            Image.fromarray(random.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(at / f"{number}.png")
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("hello")
    (tmp_path / "pets" / "cat" / "broken.png").write_bytes(b"junk")
    return tmp_path / "pets"


def check(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check-data", *(str(argument) for argument in arguments)])


def test_table(folder: Path) -> None:
    result = check(folder)
    assert result.exit_code == 0 and result.stderr == ""
    for words in (
        "pets: 15 images to train with, 5 to test with",
        "dog [red]",
        "width x height: 24 x 20 colour (20)",
        "groups: none are named",
        "no two images have the same pixels",
        "unreadable: 1; a round goes on without them with --skip-unreadable",
        "cat/broken.png",
        "not an image in a known format",
        "left out: 1",
        "cat/notes.txt",
    ):
        assert words in result.stdout


def test_json(folder: Path) -> None:
    result = check(folder, "--json", "--seed", 4)
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and result.stderr == ""
    assert (found["train_images"], found["test_images"], found["repeated_images"]) == (15, 5, 0)
    assert [row["name"] for row in found["classes"]] == ["cat", "dog [red]"]
    assert found["sizes"] == [{"width": 24, "height": 20, "channels": 3, "images": 20}]
    assert found["problem"] is None and found["groups"] is None and found["repeats"] == []
    assert len(found["used"]["train"]) == 15 and found["unreadable"][0]["name"] == "cat/broken.png"
    assert found["used"] != json.loads(check(folder, "--json").stdout)["used"]  # the split is that of the seed


def test_long_lists_are_cut_on_the_screen_only(folder: Path) -> None:
    for number in range(30):
        (folder / "cat" / f"bad{number:02d}.png").write_bytes(b"")
    told = check(folder).stdout
    assert "bad19.png" in told and "bad25.png" not in told and "and 11 more: --json has all" in told
    assert len(json.loads(check(folder, "--json").stdout)["unreadable"]) == 31


def test_a_manifest(folder: Path) -> None:
    lines = [
        "path,label,group,split",
        "cat/0.png,cat,p1,train",
        "dog [red]/1.png,dog,p2,train",
        "cat/2.png,cat,p1,test",
    ]
    (folder / "list.csv").write_text("\n".join(lines))
    told = check(folder / "list.csv").stdout
    assert "list: 2 images to train with, 1 to test with" in told
    assert "groups both to train and to test with: p1" in told


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_nothing_usable(folder: Path, options: tuple[str, ...]) -> None:
    for path in folder.rglob("*.png"):
        path.write_bytes(b"")
    result = check(folder, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("fedopal-secure: no readable image is left: all 16 were skipped, the first is ")
    assert len(result.stderr.splitlines()) == 1
    assert "the file is empty" in result.stdout  # the reason of each file is told all the same
    if options:
        assert "no readable image is left" in json.loads(result.stdout)["problem"]


@pytest.mark.parametrize("at", ["gone", "empty"])
def test_nothing_there(tmp_path: Path, at: str) -> None:
    (tmp_path / "empty").mkdir()
    result = check(tmp_path / at)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("fedopal-secure: ") and len(result.stderr.splitlines()) == 1
