"""Groups of images, such as all those of one patient: the privacy unit of a release where one image is too little."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError, MisuseError

LISTING: Final = "groups.csv"
_HEADER: Final = ["file", "group"]


def parse_listing(raw: bytes, where: str) -> dict[str, str]:
    """The bytes of a groups.csv -> the group of each file it lists, in its order.

    UTF-8, the header `file,group`, then one line per file; empty lines are passed over. Spaces around a group do not
    make another group. Raises InputError in one line that says `where`, with the line that is wrong.
    """
    groups: dict[str, str] = {}
    try:
        rows = csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""), strict=True)
        if next(rows, None) != _HEADER:
            raise InputError(f"{where}: the first line must be file,group")
        for row in rows:
            if not row:
                continue
            if len(row) != len(_HEADER) or not row[0] or not row[1].strip():
                raise InputError(f"{where}: line {rows.line_num} must have a file and its group, and no more")
            if row[0] in groups:
                raise InputError(f"{where}: line {rows.line_num} lists {row[0]!r} a second time: remove one")
            groups[row[0]] = row[1].strip()
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{where} is not a CSV file in UTF-8: {error}") from error
    return groups


def numbered(names: Sequence[str]) -> NDArray[np.int64]:
    """The group of each image by name -> by number, int64 (n,): 0, 1, ... in the sorted order of the names."""
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def majority(labels: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The commonest label of each group, the smallest of equals: int64, in ascending order of the groups.

    `labels` and `groups`: int64 (n,), of each image.
    """
    (group, label), counts = np.unique(np.stack([groups, labels]), axis=1, return_counts=True)
    order = np.lexsort((label, -counts, group))
    _, first = np.unique(group[order], return_index=True)
    commonest: NDArray[np.int64] = label[order][first]
    return commonest


def capped(groups: NDArray[np.int64], cap: int, keys: Sequence[bytes]) -> NDArray[np.int64]:
    """The images that count: of each group the `cap` with the smallest keys, or all where it has no more.

    Adding or removing one group then adds or removes at most `cap` images and no other, which is what the sensitivity
    of a release is computed from. That needs a choice within each group that depends on this group's images alone:
    not on the order of the images, nor on how many there are in all, nor on randomness shared with other groups.

    Args:
        groups: int64 (n,), the group of each image.
        cap: most images of one group, at least 1.
        keys: of each image a hash of its pixels and label, and of nothing else. Images with equal keys are taken to
            be equal, and the first of them to be as good as the last.

    Returns:
        int64 (m,), ascending indices of the images kept.

    Raises:
        InputError: a cap below 1.
        MisuseError: not one key per image.
    """
    if cap < 1:
        raise InputError(f"a cap of {cap} images per group: give at least 1")
    if groups.shape != (len(keys),):
        raise MisuseError(f"groups of shape {groups.shape} and {len(keys)} keys: one of each per image is expected")
    members: dict[int, list[int]] = {}
    for image, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(image)
    kept = [image for images in members.values() for image in sorted(images, key=keys.__getitem__)[:cap]]
    return np.sort(np.array(kept, dtype=np.int64))
