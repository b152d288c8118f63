"""What a round would do with a data set, found out before anything is trained: used, skipped, left out, repeated.

It reads images the way `load_dataset(..., skip_unreadable=True)` does, through the same functions, and keeps a hash of
each in place of its pixels.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.datasets import Plan, check_usable, read_records
from fedopal_secure.data.records import LeftOut, Record


@dataclass(frozen=True)
class ClassCount:
    """How many images of a class will be used."""

    name: str
    train: int
    test: int


@dataclass(frozen=True)
class Size:
    """How many of the images used have this size; `channels` is 1 for grey and 3 for colour."""

    width: int
    height: int
    channels: int
    images: int


@dataclass(frozen=True)
class Repeat:
    """Images with equal pixels, with the part and the class of each: of these, `parts` and `classes` may differ."""

    names: tuple[str, ...]
    parts: tuple[str, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Groups:
    """How many groups (patients) the images used have, and how large they are; `in_both` are in both parts."""

    train: int
    test: int
    smallest: int
    largest: int
    in_both: tuple[str, ...]


@dataclass(frozen=True)
class Survey:
    """What a round that skips unreadable images does with a data set.

    `train` and `test` name the images used; `problem` says, where it is not None, why there can be no round.
    """

    name: str
    problem: str | None
    classes: tuple[ClassCount, ...]
    groups: Groups | None
    sizes: tuple[Size, ...]
    repeats: tuple[Repeat, ...]
    unreadable: tuple[LeftOut, ...]
    left_out: tuple[LeftOut, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]

    @property
    def repeated(self) -> int:
        """How many images have the pixels of one that was counted already."""
        return sum(len(repeat.names) - 1 for repeat in self.repeats)


@dataclass(frozen=True)
class _Print:
    digest: bytes
    shape: tuple[int, ...]


def survey(plan: Plan, progress: Callable[[], None]) -> Survey:
    """Read every image of a plan once, calling `progress` after each."""
    train, lost_train = read_records(_counted(plan.train, progress), _print, skip_unreadable=True)
    test, lost_test = read_records(_counted(plan.test, progress), _print, skip_unreadable=True)
    of_train, of_test = [record for record, _ in train], [record for record, _ in test]
    problem = None
    try:
        check_usable(plan.classes, of_train, of_test, lost_train, lost_test)
    except InputError as error:
        problem = str(error)
    labels = [Counter(record.label for record in records) for records in (of_train, of_test)]
    return Survey(
        name=plan.name,
        problem=problem,
        classes=tuple(ClassCount(name, labels[0][i], labels[1][i]) for i, name in enumerate(plan.classes)),
        groups=_groups(of_train, of_test),
        sizes=_sizes([made.shape for _, made in train + test]),
        repeats=_repeats({"train": train, "test": test}, plan.classes),
        unreadable=tuple(sorted(lost_train + lost_test, key=lambda lost: lost.name)),
        left_out=tuple(sorted(plan.left_out, key=lambda left: left.name)),
        train=tuple(record.name for record in of_train),
        test=tuple(record.name for record in of_test),
    )


def _counted(records: Iterable[Record], progress: Callable[[], None]) -> Iterator[Record]:
    for record in records:
        yield record
        progress()


def _print(image: NDArray[np.uint8]) -> _Print:
    return _Print(hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest(), image.shape)


def _groups(train: Sequence[Record], test: Sequence[Record]) -> Groups | None:
    counts = [Counter(record.group for record in records if record.group is not None) for records in (train, test)]
    sizes = (counts[0] + counts[1]).values()
    if not sizes:
        return None
    in_both = tuple(sorted(group for group in counts[0] if group is not None and group in counts[1]))
    return Groups(len(counts[0]), len(counts[1]), min(sizes), max(sizes), in_both)


def _sizes(shapes: Sequence[tuple[int, ...]]) -> tuple[Size, ...]:
    counts = Counter(shapes).most_common()
    return tuple(Size(shape[1], shape[0], 1 if len(shape) == 2 else shape[2], images) for shape, images in counts)


def _repeats(parts: dict[str, list[tuple[Record, _Print]]], classes: Sequence[str]) -> tuple[Repeat, ...]:
    same: dict[bytes, list[tuple[str, str, str]]] = {}
    for part, read in parts.items():
        for record, made in read:
            same.setdefault(made.digest, []).append((record.name, part, classes[record.label]))
    found = []
    for members in same.values():
        if len(members) > 1:
            names, of_parts, labels = zip(*sorted(members), strict=True)
            found.append(Repeat(names, of_parts, labels))
    return tuple(sorted(found, key=lambda repeat: repeat.names))
