"""What a client holds, and the exact statistics of it: the only things that are made of images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import MisuseError
from fedopal_secure.core.params import Task
from fedopal_secure.data.groups import capped
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.federation.vectors import feature_grid
from fedopal_secure.statistics.sums import SufficientStatistics, accumulate
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.features import Extract, extract_features


@dataclass(frozen=True, repr=False, eq=False)
class PrivateData:
    """A client's images as the backbone wants them, uint8 (n, size, size, channels), and labels, int64 (n,).

    `groups`, int64 (n,), says which images are of one person, where the source tells.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        return "PrivateData(...)"

    def __len__(self) -> int:
        return len(self.labels)

    def keys(self) -> list[bytes]:
        """SHA-256 of each labelled image."""
        return [
            hashlib.sha256(image.tobytes() + int(label).to_bytes(8, "little")).digest()
            for image, label in zip(self.images, self.labels, strict=True)
        ]

    def capped(self, unit_images: int) -> PrivateData:
        """At most so many images of each group, of each the same ones whatever else is in the data."""
        if self.groups is None:
            raise MisuseError("these images have no groups")
        kept = capped(self.groups, unit_images, self.keys())
        return PrivateData(self.images[kept], self.labels[kept], self.groups[kept])

    def digest(self) -> bytes:
        """SHA-256 of the labelled images in any order: what the client's ledger knows the data by.

        One image more or less makes other data, which no digest can tell from the same data: a stated limit.
        """
        shape = repr(self.images.shape[1:]).encode()
        return hashlib.sha256(shape + b"".join(sorted(self.keys()))).digest()


def compute_statistics(
    backbone: Backbone,
    data: PrivateData,
    task: Task,
    prompts: NDArray[np.float32] | None,
    public_map: FeatureMap | None = None,
    *,
    extract: Extract = extract_features,
    progress: Callable[[int], None] | None = None,
) -> SufficientStatistics:
    """Exact statistics of some images under some prompts, on the task's grid; FedOPAL eq. 7."""
    features = np.zeros((0, backbone.feature_dim), np.float32)
    if len(data):
        features = extract(backbone, data.images, prompts, progress=progress)
    mapped = features if public_map is None else public_map.apply(features)
    grid = feature_grid(task)
    return accumulate(grid.quantise(mapped), data.labels, len(task.classes), grid.bits)
