"""Classes, the split and groups from relative paths: what a folder and an archive laid out like one have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.groups import LISTING, parse_listing
from fedopal_secure.data.records import LeftOut, Load, Record, Source, shown

UNUSED: Final = "for validation: neither for training nor for testing"
_SPLITS: Final = frozenset({"train", "test", "val", "validation"})
_EXPECTED: Final = "expected CLASS/*.jpg (or png, bmp, gif, webp, tif, dcm), or train/CLASS/* and test/CLASS/*"


def why_not(name: str) -> str:
    """Why a file is no image to use, by its name."""
    parts = PurePosixPath(name).parts
    if any(part.startswith(".") for part in parts):
        return "hidden"
    return f"not a kind of image that is opened ({PurePosixPath(name).suffix.lower() or 'no suffix'})"


def read_tree(
    root: Path,
    files: Sequence[tuple[str, Load]],
    folders: Iterable[str],
    listing: bytes | None,
    left_out: Iterable[LeftOut],
) -> Source:
    """Read the classes, and the split where there is one, from relative paths, and the groups from the listing.

    `files` are the images, `folders` all folders that hold a file of any kind, `left_out` what was no image. Raises
    InputError in one line for a layout that leaves doubt what is meant.
    """
    if not files:
        raise InputError(f"no images in {root}: {_EXPECTED}")
    top = {PurePosixPath(folder).parts[0] for folder in folders}
    if not top:
        raise InputError(f"no class folders in {root}, only images: {_EXPECTED}")
    for folder in sorted(folders):
        try:
            folder.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(f"folder {shown(folder)} in {root} has a name that is not UTF-8: rename it") from None
    # A class may be called "train" as long as another one is called neither test nor val.
    split = "train" in top and top <= _SPLITS
    if split and "test" not in top:
        raise InputError(f"{root} has train/ but no test/: add test/CLASS/*, or give the folder train/ itself")
    level = 1 if split else 0

    filled: set[tuple[str, ...]] = set()
    for name, _ in files:
        parts = PurePosixPath(name).parts
        if len(parts) < level + 2:
            raise InputError(f"image {shown(name)} in {root} is in no class folder: move it into one")
        filled.add(parts[: level + 1])
    for folder in sorted(folders):
        parts = PurePosixPath(folder).parts
        if len(parts) == level + 1 and parts not in filled:
            raise InputError(f"class folder {shown(folder)} in {root} holds no images: add some or remove it")

    wanted = ("train", "test") if split else ("",)
    parted: dict[str, list[tuple[str, str, Load]]] = {part: [] for part in wanted}
    unused: list[LeftOut] = []
    for name, load in files:
        parts = PurePosixPath(name).parts
        part = parts[0] if split else ""
        if part in parted:
            parted[part].append((name, parts[level], load))
        else:
            unused.append(LeftOut(name, UNUSED))
    classes = tuple(sorted({label for rows in parted.values() for _, label, _ in rows}))
    index = {label: i for i, label in enumerate(classes)}
    groups = {} if listing is None else _groups(root, listing, files, [name for name, _, _ in parted[wanted[0]]])
    records = {
        part: tuple(Record(name, index[label], load, groups.get(name)) for name, label, load in rows)
        for part, rows in parted.items()
    }
    return Source(records[wanted[0]], records.get("test") if split else None, classes, (*left_out, *unused))


def _groups(root: Path, listing: bytes, files: Iterable[tuple[str, Load]], training: Sequence[str]) -> dict[str, str]:
    """The groups of the images that are listed, which all training images must be."""
    groups = parse_listing(listing, f"{LISTING} in {root}")
    strangers = groups.keys() - {name for name, _ in files}
    for name in groups:
        if name in strangers:
            raise InputError(f"{LISTING} in {root} lists {name!r}, which is no image there: correct or remove the line")
    for name in training:
        if name not in groups:
            raise InputError(f"{LISTING} in {root} does not list {name!r}: give every training image its group")
    return groups
