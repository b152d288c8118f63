"""A public map of features, fixed before any private image is looked at: centring, and a projection onto few axes.

Centred features use the ball better: without their common mean, the same noise hides less of what tells classes apart.
Fewer axes take less noise. Both come from public images, so that the sensitivity of the sums stays what it is.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.encoding.grid import MAX_FEATURE_BITS, FeatureGrid

FORMAT: Final = "fedopal-secure/feature-map/v1"
WHITENING: Final = 0.25  # chosen by experiment: benchmarks/private_solvers.py compares
_LEAST_VARIANCE: Final = 1e-9  # of the largest: an axis below it is rounding
_BLOCK_ROWS: Final = 256  # keeps a block of rows in the processor's cache


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """z = (feature - centre) @ basis, which `FeatureGrid` then puts on the ball.

    `centre`: float32 (D,). `basis`: float32 (D, k), or None for the identity (k = D). `second_moment`: float64 (k, k),
    the mean of h h^T over the public features h on the unit sphere; times the number of images it is a first guess
    of R. Raises MisuseError if the arrays do not fit together.
    """

    centre: NDArray[np.float32]
    basis: NDArray[np.float32] | None
    second_moment: NDArray[np.float64]

    def __post_init__(self) -> None:
        if not _fits(self.centre, self.basis, self.second_moment):
            raise MisuseError("centre float32 (D,), basis float32 (D, k) or None, second moment float64 (k, k)")

    @property
    def features(self) -> int:
        """The dimension D of what is mapped."""
        return len(self.centre)

    @property
    def dimension(self) -> int:
        """The dimension k of what comes out."""
        return len(self.second_moment)

    @classmethod
    def from_public_features(
        cls, features: NDArray[Any], dimensions: int | None = None, whitening: float = WHITENING
    ) -> FeatureMap:
        """Centre on the mean of public features (n, D), and keep their leading principal axes.

        `dimensions` of them, or all that the features span (a layer norm before them takes one away). Each axis is
        divided by its public variance to the power of `whitening`: 0 leaves the shape of the cloud, 1/2 makes it round.
        The scale is such that mapped public features have a root mean square norm of 1. The last bits of the basis
        depend on the machine, as eigenvectors do: compute a map once and share its file. Raises InputError if the
        features do not have that many dimensions.
        """
        public = np.asarray(features, dtype=np.float64)
        if public.ndim != 2 or not public.shape[1] or len(public) < 2 or not np.isfinite(public).all():
            raise InputError("a feature map needs two or more public features: give a finite array (n, D)")
        if not 0 <= whitening <= 0.5:
            raise InputError(f"whitening {whitening}: give 0 (none) to 0.5 (full)")
        mean = public.mean(axis=0)
        variances, axes = np.linalg.eigh((public - mean).T @ (public - mean) / len(public))
        variances, axes = variances[::-1], axes[:, ::-1]
        spanned = int((variances > _LEAST_VARIANCE * variances[0]).sum()) if variances[0] > 0 else 0
        kept = spanned if dimensions is None else dimensions
        if not 1 <= kept <= spanned:
            raise InputError(f"{kept} dimensions of public features that span {spanned}: give fewer or more images")
        # The sign of an eigenvector is arbitrary: the largest entry is made positive.
        signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(len(axes))])
        scale = variances[:kept] ** -whitening
        scale /= math.sqrt(float(variances[:kept] @ np.square(scale)))
        centre = mean.astype(np.float32)
        basis = (axes * signs)[:, :kept] * scale
        return cls._with_moment(public, centre, np.ascontiguousarray(basis, dtype=np.float32))

    @classmethod
    def centring(cls, features: NDArray[Any]) -> FeatureMap:
        """Centre on the mean of public features (n, D), and change nothing else."""
        public = np.asarray(features, dtype=np.float64)
        if public.ndim != 2 or not public.size or not np.isfinite(public).all():
            raise InputError("a feature map needs public features: give a finite array (n, D)")
        return cls._with_moment(public, public.mean(axis=0).astype(np.float32), None)

    @classmethod
    def _with_moment(
        cls, public: NDArray[np.float64], centre: NDArray[np.float32], basis: NDArray[np.float32] | None
    ) -> FeatureMap:
        mapped = _apply(public, centre, basis)
        unit = FeatureGrid(mapped.shape[1], bits=MAX_FEATURE_BITS).normalised(mapped)
        moment = unit.T @ unit / len(unit)
        return cls(centre, basis, (moment + moment.T) / 2)

    def leading(self, dimensions: int) -> FeatureMap:
        """The map onto the first `dimensions` axes of this one. Its second moment is cut and scaled to trace 1.

        Raises InputError if there are not that many.
        """
        if self.basis is None or not 1 <= dimensions <= self.dimension:
            at_most = 0 if self.basis is None else self.dimension
            raise InputError(f"{dimensions} dimensions of a feature map that has {at_most} axes to choose from")
        cut = self.second_moment[:dimensions, :dimensions]
        trace = float(np.trace(cut))
        basis = np.ascontiguousarray(self.basis[:, :dimensions])
        return FeatureMap(self.centre, basis, cut / trace if trace > 0 else cut.copy())

    def apply(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Features (n, D), any real dtype -> mapped features, float64 (n, k), not yet normalised.

        Each row depends on that row alone, bit for bit, on any machine: single float64 multiplications and additions
        in a fixed order, where a matrix product would choose its order by the number of rows. Raises InputError
        naming the first row that is not finite, MisuseError for a wrong shape.
        """
        f = np.asarray(features, dtype=np.float64)
        if f.ndim != 2 or f.shape[1] != self.features:
            raise MisuseError(f"features of shape {f.shape}: (n, {self.features}) is expected")
        finite = np.isfinite(f).all(axis=1)
        if not finite.all():
            row = int(np.argmin(finite))
            raise InputError(f"features of row {row} are not finite: leave that image out or check the backbone")
        return _apply(f, self.centre, self.basis)

    def digest(self) -> bytes:
        """SHA-256, 32 bytes, of the shapes and the little-endian bytes of all that the map consists of."""
        state = hashlib.sha256(FORMAT.encode() + b"\0")
        state.update(np.array([self.features, self.dimension, self.basis is not None], "<u8").tobytes())
        for array, dtype in ((self.centre, "<f4"), (self.basis, "<f4"), (self.second_moment, "<f8")):
            if array is not None:
                state.update(np.ascontiguousarray(array, dtype).tobytes())
        return state.digest()

    def save(self, path: Path) -> None:
        """Write a safetensors file: tensors `centre`, `second_moment` and, where there is one, `basis`."""
        tensors: dict[str, NDArray[Any]] = {"centre": self.centre, "second_moment": self.second_moment}
        if self.basis is not None:
            tensors["basis"] = self.basis
        path.write_bytes(save({name: np.ascontiguousarray(t) for name, t in tensors.items()}, {"format": FORMAT}))

    @classmethod
    def load(cls, path: Path) -> FeatureMap:
        """Read a file that `save` wrote; raises InputError if it is something else."""
        try:
            with safe_open(path, "numpy") as file:
                known = (file.metadata() or {}).get("format") == FORMAT
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror or 'no such file'}): give a feature map"
            ) from None
        except SafetensorError:
            raise InputError(f"{path}: not a feature map: give a file that FeatureMap.save wrote") from None
        centre, moment = tensors.get("centre"), tensors.get("second_moment")
        basis = tensors.get("basis")
        if not known or centre is None or moment is None or not _fits(centre, basis, moment):
            raise InputError(f"{path}: not a feature map: give a file that FeatureMap.save wrote")
        return cls(centre, basis, moment)


def _apply(
    features: NDArray[np.float64], centre: NDArray[np.float32], basis: NDArray[np.float32] | None
) -> NDArray[np.float64]:
    """The map itself; overflow gives infinities, which the grid refuses."""
    with np.errstate(over="ignore", invalid="ignore"):
        if basis is None:
            return features - centre
        mapped = np.zeros((len(features), basis.shape[1]))
        wide = basis.astype(np.float64)
        for start in range(0, len(features), _BLOCK_ROWS):
            # One contiguous row for each input coordinate of the block.
            deviations = np.ascontiguousarray((features[start : start + _BLOCK_ROWS] - centre).T)
            block = mapped[start : start + _BLOCK_ROWS]
            for coordinate, axis in zip(deviations, wide, strict=True):
                block += coordinate[:, None] * axis
    return mapped


def _fits(centre: Any, basis: Any, moment: Any) -> bool:
    """Whether types and shapes are those of a map, every entry is finite and the second moment symmetric."""
    arrays = [centre, moment] + ([] if basis is None else [basis])
    if not all(isinstance(array, np.ndarray) and np.isfinite(array).all() for array in arrays):
        return False
    width = moment.shape[0] if moment.ndim == 2 else 0
    return (
        centre.dtype == np.float32
        and moment.dtype == np.float64
        and centre.ndim == 1
        and moment.shape == (width, width)
        and width > 0
        and np.array_equal(moment, moment.T)
        and (centre.shape == (width,) if basis is None else basis.dtype == np.float32)
        and (basis is None or basis.shape == (len(centre), width))
    )
