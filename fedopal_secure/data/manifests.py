"""A CSV file that lists images with their labels, and where known their group and split, one image a line."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.images import read_image
from fedopal_secure.data.records import LeftOut, Record, Source, shown
from fedopal_secure.data.trees import UNUSED

_COLUMNS: Final = ("path", "label", "group", "split")
_SPLITS: Final = {"train": "train", "test": "test", "val": "val", "validation": "val"}


def read_manifest(path: Path) -> Source:
    """The records of a CSV file in UTF-8 with the header `path,label[,group][,split]`, in any order and case.

    Paths are relative to the file and stay below its folder. With `split`, each line says train, test or val (left
    out); without it there is no split. With `group`, every training image has one. Spaces around a value are no part
    of it; columns of other names are passed over and named in `Source.left_out`.

    Raises:
        InputError: in one line with the line's number: a column missing or twice, a value missing, too few or many
            values, a path that is absolute, leaves the folder or is listed twice, an unknown split.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = [name.strip().lower() for name in next(reader, [])]
        _check_header(path, header)
        rows = [(reader.line_num, row) for row in reader if any(value.strip() for value in row)]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise InputError(f"{path} lists no images: add a line for each below its header")

    parts: dict[str, list[tuple[str, str, str | None]]] = {"train": [], "test": [], "val": []}
    seen: set[str] = set()
    for number, row in rows:
        where = f"{path}, line {number}"
        if len(row) != len(header):
            raise InputError(f"{where} has {len(row)} values for {len(header)} columns: quote values with commas")
        values = {name: value.strip() for name, value in zip(header, row, strict=True)}
        name = _relative(where, values["path"])
        if name in seen:
            raise InputError(f"{where} lists {shown(name)} a second time: remove one")
        seen.add(name)
        if not values["label"]:
            raise InputError(f"{where}: the label is missing: give the class of {shown(name)}")
        part = _SPLITS.get(values.get("split", "train").lower())
        if part is None:
            raise InputError(f"{where}: the split is {shown(repr(values['split']))}: give train, test or val")
        if part == "train" and values.get("group") == "":
            raise InputError(f"{where}: the group is missing: give every training image its group")
        parts[part].append((name, values["label"], values.get("group") or None))

    classes = tuple(sorted({label for part in ("train", "test") for _, label, _ in parts[part]}))
    index = {label: i for i, label in enumerate(classes)}
    records = {
        part: tuple(
            Record(name, index[label], functools.partial(read_image, path.parent / name), group)
            for name, label, group in parts[part]
        )
        for part in ("train", "test")
    }
    left_out = [LeftOut(f"column {name}", "not path, label, group or split") for name in header if name not in _COLUMNS]
    left_out += [LeftOut(name, UNUSED) for name, _, _ in parts["val"]]
    return Source(records["train"], records["test"] if "split" in header else None, classes, tuple(left_out))


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in ("path", "label") if name not in header]
    if missing:
        hint = "separate columns by commas" if len(header) == 1 and ";" in header[0] else "name the columns there"
        raise InputError(
            f"the first line of {path} lacks {' and '.join(missing)} of path,label[,group][,split]: {hint}"
        )
    for name in _COLUMNS:
        if header.count(name) > 1:
            raise InputError(f"the first line of {path} has the column {name} twice: remove one")


def _relative(where: str, text: str) -> str:
    path = PurePosixPath(text)
    if not path.parts or "\0" in text:
        raise InputError(f"{where}: the path is missing: name an image file relative to the CSV file")
    if path.is_absolute():
        raise InputError(f"{where}: {shown(text)} is absolute: give paths relative to the CSV file")
    if ".." in path.parts:
        raise InputError(f"{where}: {shown(text)} leaves the folder of the CSV file: put the CSV file above its images")
    return str(path)
