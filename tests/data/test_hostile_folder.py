"""A folder with one file of each hostile kind: check-data says what becomes of each, and a round does just that."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedopal_secure.cli import app
from fedopal_secure.federation.config import PromptSettings, SimulationConfig
from fedopal_secure.runtimes.simulation import Simulation
from tests.data.folders import dicom, encoded, picture, write

GREY = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 16), dtype=np.uint8))
COLOUR = Image.merge("RGB", [GREY, GREY.rotate(90).resize(GREY.size), GREY.rotate(180)])


def png_of_declared_size(width: int, height: int) -> bytes:
    """A whole PNG file that declares so many pixels and has hardly any."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    )


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(COLOUR, "JPEG", exif=exif)


USED = {
    "eight.png": encoded(GREY),
    "sixteen.png": encoded(Image.fromarray(np.arange(320, dtype=np.uint16).reshape(20, 16) * 200)),
    "bilevel.tif": encoded(GREY.convert("1"), "TIFF"),
    "palette.gif": encoded(COLOUR.quantize(16), "GIF"),
    "cmyk.jpg": encoded(COLOUR.convert("CMYK"), "JPEG"),
    "alpha.webp": encoded(Image.merge("RGBA", [*COLOUR.split(), GREY]), "WEBP"),
    "turned.jpg": turned(),
    "animated.gif": encoded(COLOUR.quantize(8), "GIF", save_all=True, append_images=[GREY.quantize(8)]),
    "SUFFIX.JPEG": encoded(COLOUR.rotate(45), "JPEG"),
    "größe-画像.bmp": encoded(GREY.rotate(45), "BMP"),
    "two\nlines.png": picture(1),
    "a png.jpg": picture(2),
    "copy.png": encoded(GREY),
    "one pixel.png": picture(3, (1, 1)),
}
UNREADABLE = {
    "zero.png": (b"", "the file is empty"),
    "text.jpg": (b"only words", "not an image in a known format"),
    "truncated.jpg": (encoded(COLOUR, "JPEG")[:400], ""),
    "truncated.png": (encoded(COLOUR)[:200], ""),
    "float.tiff": (encoded(GREY.convert("F"), "TIFF"), "32-bit pixels"),
    "bomb.png": (png_of_declared_size(200_000, 200_000), "could be decompression bomb"),
    "half a bomb.png": (png_of_declared_size(10_000, 10_000), "10000 x 10000 is more than 89,478,485 pixels"),
    "needle.png": (png_of_declared_size(1, 30_000), "one side is more than 100 times the other"),
    "photoshop.png": (encoded(COLOUR, "PPM"), "not an image in a known format"),
    "text.dcm": (b"\0" * 128 + b"DICM only words", ""),
}
LEFT_OUT = {
    ".hidden.png": "hidden",
    "._resource.jpg": "hidden",
    ".cache": "hidden",
    "Thumbs.db": "not a kind of image that is opened (.db)",
    "scan.NII": "not a kind of image that is opened (.nii)",
    "README": "not a kind of image that is opened (no suffix)",
    "folder.png": "a folder with the name of an image, and none in it",
    "pipe.png": "not a plain file",
    "again": "a link to a folder that is read already",
}
# Used where pydicom is installed, and otherwise told what it needs.
SCAN = {"scan.dcm": dicom(np.arange(320, dtype=np.uint16).reshape(20, 16), "MONOCHROME1")}
if importlib.util.find_spec("pydicom"):
    USED |= SCAN
else:
    UNREADABLE |= {"scan.dcm": (SCAN["scan.dcm"], 'DICOM needs pydicom: pip install "fedopal-secure[dicom]"')}
LINKS = {"loop.png": "loop.png", "dangling.png": "gone.png"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "data"
    write(root, {f"cat/{name}": raw for name, raw in USED.items()})
    write(root, {f"cat/{name}": raw for name, (raw, _) in UNREADABLE.items()})
    write(root, {f"dog/{i}.png": picture(10 + i) for i in range(6)} | {"dog/copy.png": picture(1)})
    for name, why in LEFT_OUT.items():
        if why == "hidden" or why.startswith("not a kind"):
            write(root, {f"cat/{name}/1.png" if name == ".cache" else f"cat/{name}": picture(4)})
    (root / "cat" / "folder.png").mkdir()
    os.mkfifo(root / "cat" / "pipe.png")
    (root / "cat" / "again").symlink_to(root)
    for name, target in LINKS.items():
        (root / "cat" / name).symlink_to(root / "cat" / target)
    if os.geteuid() != 0:  # root reads it all the same
        write(root, {"cat/locked.png": picture(5)})
        (root / "cat" / "locked.png").chmod(0)
    return root


def check(root: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["check-data", str(root), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def said(hostile: Path) -> dict:
    return json.loads(check(hostile, "--json"))


def test_every_file_is_used_unreadable_or_left_out_and_no_two_of_these(hostile: Path, said: dict) -> None:
    used = {*said["used"]["train"], *said["used"]["test"]}
    assert used == {f"cat/{name}" for name in USED} | {
        f"dog/{name}" for name in ("copy.png", *(f"{i}.png" for i in range(6)))
    }
    unreadable = {item["name"]: item["why"] for item in said["unreadable"]}
    locked = set() if os.geteuid() == 0 else {"locked.png"}
    assert set(unreadable) == {f"cat/{name}" for name in {*UNREADABLE, *LINKS} | locked}
    left_out = {item["name"]: item["why"] for item in said["left_out"]}
    assert left_out == {f"cat/{name}": why for name, why in LEFT_OUT.items()}
    below = {path.relative_to(hostile).as_posix() for path in (hostile / "cat").iterdir()}
    assert below == {name for name in used | set(unreadable) | set(left_out) if name.startswith("cat/")}


@pytest.mark.parametrize("name", UNREADABLE)
def test_the_reason_is_given_in_one_line(said: dict, name: str) -> None:
    why = {item["name"]: item["why"] for item in said["unreadable"]}[f"cat/{name}"]
    assert UNREADABLE[name][1] in why and why and "\n" not in why


def test_links_that_lead_nowhere_say_so(said: dict) -> None:
    why = {item["name"]: item["why"] for item in said["unreadable"]}
    assert why["cat/loop.png"] == "Too many levels of symbolic links"
    assert why["cat/dangling.png"] == "No such file or directory"


def test_equal_pixels_are_found_under_another_label_too(said: dict) -> None:
    assert [repeat["names"] for repeat in said["repeats"]] == [
        ["cat/copy.png", "cat/eight.png"],
        ["cat/two\nlines.png", "dog/copy.png"],
    ]
    assert said["repeats"][1]["classes"] == ["cat", "dog"] and said["repeated_images"] == 2


def test_the_table_is_for_people(hostile: Path, said: dict) -> None:
    told = check(hostile)
    assert "two\\nlines.png" in told and "größe" not in told  # the latter is used, and nothing is wrong with it
    for words in ("under two labels: 1", f"unreadable: {len(said['unreadable'])};", "left out: 9", "hidden"):
        assert words in told


def test_a_round_uses_just_what_was_said(hostile: Path, said: dict) -> None:
    config = SimulationConfig(
        dataset=str(hostile), skip_unreadable=True, clients=3, alpha=100.0, prompts=PromptSettings(mode="none")
    )
    simulation = Simulation(config)
    assert simulation.dataset.train.names == tuple(said["used"]["train"])
    assert simulation.dataset.test.names == tuple(said["used"]["test"])
    assert sorted(simulation.dataset.skipped) == [item["name"] for item in said["unreadable"]]
    counts = [
        np.bincount(part.labels, minlength=2).tolist() for part in (simulation.dataset.train, simulation.dataset.test)
    ]
    assert counts == [[row[part] for row in said["classes"]] for part in ("train", "test")]
    result = simulation.run().result
    assert result.exact.max_abs_difference == 0
    assert result.skipped_images == len(said["unreadable"]) and result.test_images == said["test_images"]


def test_without_skipping_a_round_names_one_of_them(hostile: Path, said: dict) -> None:
    result = CliRunner().invoke(app, ["simulate", "--dataset", str(hostile), "--clients", "3", "--prompts", "none"])
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert any(Path(item["name"]).name in result.stderr for item in said["unreadable"])


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"{label}/{i}.png": picture(i) for label in "ab" for i in range(4)})
    read = Path.read_bytes

    def locked(path: Path) -> bytes:
        if path.name == "2.png":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", locked)
    said = json.loads(check(tmp_path, "--json"))
    assert said["unreadable"] == [{"name": f"{label}/2.png", "why": "Permission denied"} for label in "ab"]
