"""torchvision's data sets by name: small files in the published formats are read; without a network, one line.

No test opens a connection: downloads are replaced, and the checksums of torchvision's classes by those of our files.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import socket
import sys
import tarfile
import urllib.error

import numpy as np
import pytest
from PIL import Image

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.datasets import load_dataset, plan_dataset
from fedopal_secure.data.torchvision_sets import torchvision_cache
from tests.data.folders import encoded, write

datasets = pytest.importorskip("torchvision.datasets")
scipy_io = pytest.importorskip("scipy.io")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """An empty cache, and no network: every look-up of a host fails at once, and says so."""

    def nowhere(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return torchvision_cache()


def md5(raw):
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


def batch(count, classes, key):
    """A batch as published: uint8 (n, 3072) by channel, row and column, and labels."""
    return {"data": RNG.integers(0, 256, (count, 3072), dtype=np.uint8), key: [i % classes for i in range(count)]}


def cifar_files(kind, key, classes, names):
    return {
        kind.meta["filename"]: {kind.meta["key"]: names},
        **{name: batch(2 * classes, classes, key) for name, _ in kind.train_list},
        **{name: batch(classes, classes, key) for name, _ in kind.test_list},
    }


@pytest.mark.parametrize(("name", "key", "classes"), [("CIFAR10", "labels", 10), ("CIFAR100", "fine_labels", 100)])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar(offline, monkeypatch, name, key, classes, packed):
    kind = getattr(datasets, name)
    content = cifar_files(kind, key, classes, [f"class {i}" for i in range(classes)])
    files = {f"{kind.base_folder}/{file}": pickle.dumps(value) for file, value in content.items()}
    for part in ("train_list", "test_list"):
        sums = [[file, md5(files[f"{kind.base_folder}/{file}"])] for file, _ in getattr(kind, part)]
        monkeypatch.setattr(kind, part, sums)
    meta = kind.meta | {"md5": md5(files[f"{kind.base_folder}/{kind.meta['filename']}"])}
    monkeypatch.setattr(kind, "meta", meta)
    if packed:  # the archive as somebody carried it over
        offline.mkdir(parents=True)
        with tarfile.open(offline / kind.filename, "w:gz") as archive:
            for file, raw in files.items():
                member = tarfile.TarInfo(file)
                member.size = len(raw)
                archive.addfile(member, io.BytesIO(raw))
        monkeypatch.setattr(kind, "tgz_md5", md5((offline / kind.filename).read_bytes()))
    else:
        write(offline, files)

    dataset = load_dataset(f"torchvision:{name.lower()}", seed=0)
    assert dataset.train.classes[:2] == ("class 0", "class 1") and len(dataset.train.classes) == classes
    assert dataset.test.images.shape == (classes, 32, 32, 3)
    published = content[kind.test_list[0][0]]
    assert np.array_equal(dataset.test.images, published["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert dataset.test.labels.tolist() == published[key]
    assert len(dataset.train) == 2 * classes * len(kind.train_list)
    assert len(load_dataset(f"TORCHVISION:CIFAR-{classes}", seed=0, limit=classes).train) == classes


def test_svhn(offline, monkeypatch):
    offline.mkdir(parents=True)
    tables = {part: RNG.integers(0, 256, (32, 32, 3, 20), dtype=np.uint8) for part in ("train", "test")}
    sums = {}
    for part, pixels in tables.items():
        # As published, the digit 0 has the label 10.
        path = offline / f"{part}_32x32.mat"
        scipy_io.savemat(path, {"X": pixels, "y": np.array([[i % 10 + 1] for i in range(20)], dtype=np.uint8)})
        sums[part] = ["http://localhost/", path.name, md5(path.read_bytes())]
    monkeypatch.setattr(datasets.SVHN, "split_list", sums)
    dataset = load_dataset("torchvision:SVHN", seed=0)
    assert dataset.train.classes == tuple("0123456789")
    assert dataset.test.labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert np.array_equal(dataset.test.images[3], tables["test"][:, :, :, 3])


def test_dtd(offline):
    folder = offline / "dtd" / "dtd"
    parts = {"train": 4, "val": 2, "test": 3}
    for part, count in parts.items():
        names = [f"{label}/{label}_{part}{i}.jpg" for label in ("banded", "woven") for i in range(count)]
        write(folder, {f"labels/{part}1.txt": "\n".join(names).encode()})
        pixels = encoded(Image.fromarray(RNG.integers(0, 256, (40, 30, 3), dtype=np.uint8)), "JPEG")
        write(folder, {f"images/{name}": pixels for name in names})
    dataset = load_dataset("torchvision:dtd", seed=0)
    assert dataset.train.classes == ("banded", "woven") and dataset.test.images.shape == (6, 40, 30, 3)
    assert dataset.test.labels.tolist() == [0] * 3 + [1] * 3 and len(dataset.train) == 8
    left_out = plan_dataset("torchvision:DTD", seed=0).left_out
    assert len(left_out) == 4 and left_out[0].name == "val/banded/banded_val0.jpg"


@pytest.mark.parametrize(
    ("name", "put"),
    [
        ("CIFAR10", "put cifar-10-python.tar.gz into "),
        ("cifar100", "put cifar-100-python.tar.gz into "),
        ("SVHN", "put train_32x32.mat and test_32x32.mat into "),
        ("DTD", "put dtd-r1.0.1.tar.gz into .*/dtd "),
    ],
)
def test_without_a_network_the_error_says_what_to_put_where(offline, name, put):
    with pytest.raises(InputError, match=f"not in the cache and cannot be downloaded .*: {put}") as caught:
        load_dataset(f"torchvision:{name}", seed=0)
    assert "\n" not in str(caught.value) and str(offline) in str(caught.value)
    assert socket.getdefaulttimeout() is None


def test_a_broken_archive_is_not_taken(offline):
    write(offline, {"cifar-10-python.tar.gz": b"half of it"})
    with pytest.raises(InputError, match="cannot be downloaded"):
        load_dataset("torchvision:CIFAR10", seed=0)


def test_a_folder_that_was_unpacked_by_half_is_named(offline):
    write(offline, {"dtd/dtd/labels/train1.txt": b"banded/1.jpg"})
    with pytest.raises(InputError, match="dtd/dtd is incomplete: remove it and try again"):
        load_dataset("torchvision:DTD", seed=0)


def test_other_names_and_no_torchvision(monkeypatch):
    with pytest.raises(InputError, match=r"torchvision:ImageNet is not a data set: give torchvision:CIFAR10, .*DTD$"):
        load_dataset("torchvision:ImageNet", seed=0)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(InputError, match=r'needs torchvision: pip install "fedopal-secure\[vision\]"'):
        load_dataset("torchvision:SVHN", seed=0)


def test_the_network_is_what_fails(offline):
    # The control of the tests above: with a network, torchvision would have asked for the file.
    with pytest.raises((urllib.error.URLError, OSError)):
        datasets.SVHN(str(offline), split="test", download=True)
