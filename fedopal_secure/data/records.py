"""A data set before its pixels are read: records of labelled images, and what was found beside them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Load = Callable[[], NDArray[np.uint8]]


@dataclass(frozen=True)
class Record:
    """One labelled image that has not been read: `load()` gives uint8 (h, w) or (h, w, 3), or raises UnreadableImage.

    `group` is None where the source names no groups. The training records of a source all have one, or none has.
    """

    name: str
    label: int
    load: Load
    group: str | None = None


@dataclass(frozen=True)
class LeftOut:
    """Something in the source that is no image to train or test with, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Source:
    """All records of a data set in file order; `test` is None where the source does not say which images those are."""

    train: tuple[Record, ...]
    test: tuple[Record, ...] | None
    classes: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()


def array_records(images: NDArray[np.uint8], labels: NDArray[np.integer[Any]], prefix: str) -> list[Record]:
    """Records of images that are in memory, uint8 (n, h, w) or (n, h, w, 3), with labels (n,): named PREFIX/NUMBER."""
    return [
        Record(f"{prefix}/{i:05d}", int(label), functools.partial(images.__getitem__, i))
        for i, label in enumerate(labels)
    ]


def shown(name: object) -> str:
    """A name or path in one line for any terminal: control characters and bytes that are no UTF-8 are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(name))
