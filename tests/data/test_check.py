"""What check-data finds: the same images as a round, counts, groups, sizes, and repeats between parts and labels."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedopal_secure.data.check import ClassCount, Groups, Repeat, Size, survey
from fedopal_secure.data.datasets import load_dataset, plan_dataset
from tests.data.folders import encoded, picture, write


def checked(root, seed=0):
    return survey(plan_dataset(str(root), seed=seed), lambda: None)


@pytest.fixture
def tree(tmp_path):
    files = {f"train/{label}/{i}.png": picture([i, n]) for n, label in enumerate("ab") for i in range(5)}
    return write(
        tmp_path / "tree",
        files | {f"test/{label}/{i}.png": picture([i, n + 2]) for n, label in enumerate("ab") for i in range(2)},
    )


def test_counts_and_sizes(tree):
    write(tree, {"train/a/wide.png": encoded(Image.new("RGB", (9, 4)))})
    found = checked(tree)
    assert found.classes == (ClassCount("a", 6, 2), ClassCount("b", 5, 2))
    assert found.sizes == (Size(10, 12, 1, 14), Size(9, 4, 3, 1))
    assert found.groups is None and found.repeats == () and found.problem is None and found.name == "tree"


@pytest.mark.parametrize("seed", [0, 3])
def test_it_is_what_loading_keeps_for_every_seed(tmp_path, seed):
    files = {
        f"{label}/{i}.png": picture([i, n]) if i % 4 else b"junk" for n, label in enumerate("ab") for i in range(20)
    }
    root = write(tmp_path, files)
    found, loaded = checked(root, seed), load_dataset(str(root), seed=seed, skip_unreadable=True)
    assert (found.train, found.test) == (loaded.train.names, loaded.test.names)
    assert tuple(lost.name for lost in found.unreadable) == tuple(sorted(loaded.skipped))
    assert [count.train for count in found.classes] == np.bincount(loaded.train.labels).tolist()


def test_repeats_are_of_pixels_not_of_bytes(tree):
    pixels = Image.fromarray(np.asarray(Image.open(tree / "train/a/0.png")))
    write(tree, {"test/b/copy.bmp": encoded(pixels, "BMP"), "train/a/again.tiff": encoded(pixels, "TIFF")})
    found = checked(tree)
    names = ("test/b/copy.bmp", "train/a/0.png", "train/a/again.tiff")
    assert found.repeats == (Repeat(names, ("test", "train", "train"), ("b", "a", "a")),)
    assert found.repeated == 2


def test_the_same_pixels_in_another_shape_are_another_image(tree):
    flat = np.asarray(Image.open(tree / "train/a/0.png")).reshape(10, 12)
    write(tree, {"train/a/flat.png": encoded(Image.fromarray(flat))})
    assert checked(tree).repeats == ()


def test_groups_and_those_in_both_parts(tree):
    of = [("train/a", "p1"), ("train/b", "p2"), ("test/a", "p2")]
    lines = [f"{at}/{path.name},{group}\n" for at, group in of for path in sorted((tree / at).iterdir())]
    write(tree, {"groups.csv": ("file,group\n" + "".join(lines)).encode()})
    found = checked(tree)
    assert found.groups == Groups(train=2, test=1, smallest=5, largest=7, in_both=("p2",))
    assert found.left_out == ()


def test_nothing_left_to_use_is_a_problem_with_the_files_still_told(tree):
    for path in (tree / "train" / "a").iterdir():
        path.write_bytes(b"junk")
    found = checked(tree)
    assert found.problem == "class 'a' has test images but no training image: add some or remove it"
    assert len(found.unreadable) == 5 and found.classes[0] == ClassCount("a", 0, 2)
    for path in tree.rglob("*.png"):
        path.write_bytes(b"")
    found = checked(tree)
    assert "all 10 were skipped, the first is" in found.problem and "(the file is empty)" in found.problem


def test_progress_counts_every_image(tree):
    write(tree, {"train/a/bad.png": b""})
    seen = []
    survey(plan_dataset(str(tree), seed=0), lambda: seen.append(1))
    assert len(seen) == 15


def test_validation_images_and_other_files_are_left_out(tree):
    write(tree, {"val/a/1.png": picture(9), "train/a/notes.txt": b"x"})
    assert [(left.name, left.why) for left in checked(tree).left_out] == [
        ("train/a/notes.txt", "not a kind of image that is opened (.txt)"),
        ("val/a/1.png", "for validation: neither for training nor for testing"),
    ]
