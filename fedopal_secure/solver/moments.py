"""The moments of the pooled features, read back from exact integer sums; every head is computed from these alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.statistics.sums import SufficientStatistics


@dataclass(frozen=True, eq=False)
class Moments:
    """R = sum of h h^T, C = sum of h y^T (FedOPAL eq. 7) and class counts, for features h as `FeatureGrid.normalised`.

    `r`: float64 (d, d), units of h squared. `c`: float64 (d, classes), units of h. `counts`: int64 (classes,).
    They are the moments of the rounded features, so R has about n / (12 scale**2) more on its diagonal than unrounded
    ones would give: ridges below that change little.
    """

    r: NDArray[np.float64]
    c: NDArray[np.float64]
    counts: NDArray[np.int64]

    @classmethod
    def from_statistics(cls, statistics: SufficientStatistics, grid: FeatureGrid) -> Moments:
        """Divide out the scale of the grid. Raises InputError if there are no images."""
        if len(statistics.r) != grid.dimension:
            raise MisuseError(f"statistics of dimension {len(statistics.r)} and a grid of {grid.dimension}")
        if statistics.images < 1:
            raise InputError("there are no images in the sums, so there is nothing to solve")
        # Not scale**2: that calls pow, which need not round correctly, so that R could differ between machines.
        return cls(statistics.r / (grid.scale * grid.scale), statistics.c / grid.scale, statistics.counts)

    @property
    def images(self) -> int:
        """Number of images n."""
        return sum(self.counts.tolist())

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean feature, float64 (d,): every image is in one class, so the sum of h is C 1."""
        mean: NDArray[np.float64] = self.c.sum(axis=1) / self.images
        return mean

    @property
    def class_means(self) -> NDArray[np.float64]:
        """Mean feature of each class, float64 (d, classes); zero for a class without images."""
        return self.c / np.maximum(self.counts, 1)

    @property
    def class_shares(self) -> NDArray[np.float64]:
        """Share of the images in each class, float64 (classes,); the mean of y."""
        return self.counts / self.images

    def centred_r(self) -> NDArray[np.float64]:
        """Sum of (h - mean)(h - mean)^T, float64 (d, d)."""
        mean = self.mean
        return self.r - self.images * np.outer(mean, mean)

    def centred_c(self) -> NDArray[np.float64]:
        """Sum of (h - mean)(y - mean y)^T, float64 (d, classes)."""
        return self.c - np.outer(self.mean, self.counts)
