"""Data sets that torchvision can download: `torchvision:CIFAR10`, `CIFAR100`, `SVHN` and `DTD`.

torchvision downloads, checks and unpacks; images and labels are then read like all others. The files stay in a cache
folder, and files that somebody put there are taken without a network.
"""

from __future__ import annotations

import functools
import os
import socket
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.images import read_image
from fedopal_secure.data.records import LeftOut, Record, Source, array_records
from fedopal_secure.data.trees import UNUSED

PREFIX: Final = "torchvision:"
_PATIENCE: Final = 20.0  # seconds without a byte from the network


def torchvision_cache() -> Path:
    """Where downloaded files are kept: fedopal-secure/torchvision in $XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fedopal-secure", "torchvision")


def open_torchvision(spec: str) -> Source:
    """The records of `torchvision:NAME`, NAME in any case, with torchvision's own train and test images.

    Of DTD this is the first of its ten partitions; its validation images are left out.

    Raises:
        InputError: in one line: another name, torchvision is missing, or the files are neither in the cache nor to be
            downloaded, with how to put them there.
    """
    name = spec[len(PREFIX) :].upper().replace("-", "")
    if name not in _READERS:
        raise InputError(f"{spec} is not a data set: give {', '.join(PREFIX + known for known in _READERS)}")
    files, below, read = _READERS[name]
    try:
        from torchvision import datasets  # here: `data` itself works without torch, only these sets need it
    except ImportError as error:
        raise InputError(f'{spec} needs torchvision: pip install "fedopal-secure[vision]"') from error
    root = torchvision_cache()
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        root.mkdir(parents=True, exist_ok=True)
        return read(functools.partial(getattr(datasets, name), str(root), download=True), root)
    except (OSError, RuntimeError, EOFError, ValueError, tarfile.TarError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{spec} is not in the cache and cannot be downloaded ({reason}): "
            f"put {' and '.join(files)} into {root / below} and try again"
        ) from error
    finally:
        socket.setdefaulttimeout(patience)


def _cifar(make: Callable[..., Any], root: Path) -> Source:
    train, test = make(train=True), make(train=False)
    parts = [
        array_records(part.data, np.asarray(part.targets), name) for part, name in ((train, "train"), (test, "test"))
    ]
    return Source(tuple(parts[0]), tuple(parts[1]), tuple(train.classes))


def _svhn(make: Callable[..., Any], root: Path) -> Source:
    sets = {name: make(split=name) for name in ("train", "test")}
    parts = [
        array_records(np.ascontiguousarray(part.data.transpose(0, 2, 3, 1)), part.labels, name)
        for name, part in sets.items()
    ]
    return Source(tuple(parts[0]), tuple(parts[1]), tuple("0123456789"))


def _dtd(make: Callable[..., Any], root: Path) -> Source:
    make(split="train")  # downloads; the images are then read from the files as published
    folder = root / "dtd" / "dtd"
    try:
        lists = {name: (folder / "labels" / f"{name}1.txt").read_text().split() for name in ("train", "val", "test")}
    except OSError as error:
        # torchvision takes the folder for the whole, and would never fetch what is missing.
        raise InputError(f"{folder} is incomplete: remove it and try again") from error
    classes = tuple(sorted({file.split("/")[0] for files in lists.values() for file in files}))

    def records(part: str, files: Sequence[str]) -> tuple[Record, ...]:
        return tuple(
            Record(
                f"{part}/{file}",
                classes.index(file.split("/")[0]),
                functools.partial(read_image, folder / "images" / file),
            )
            for file in files
        )

    left_out = tuple(LeftOut(f"val/{file}", UNUSED) for file in lists["val"])
    return Source(records("train", lists["train"]), records("test", lists["test"]), classes, left_out)


# By name: the files as published, where in the cache they belong, and how they are read.
_READERS: Final[dict[str, tuple[tuple[str, ...], str, Callable[[Callable[..., Any], Path], Source]]]] = {
    "CIFAR10": (("cifar-10-python.tar.gz",), "", _cifar),
    "CIFAR100": (("cifar-100-python.tar.gz",), "", _cifar),
    "SVHN": (("train_32x32.mat", "test_32x32.mat"), "", _svhn),
    "DTD": (("dtd-r1.0.1.tar.gz",), "dtd", _dtd),
}
