"""Features on disk, so that many runs over the same images take them once; for experiments, never for a client."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.features import extract_features

_KEPT_EVERY: Final = 1024  # images between two writes: what a killed run loses at most


class FeatureCache:
    """A folder with one file per backbone and prompts: the feature of every image seen, by the image's SHA-256.

    Called like `extract_features`, and equal to it bit for bit, because the feature of an image depends on that image
    alone. A file that cannot be read is made again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[bytes, NDArray[np.float32]]] = {}

    def __call__(
        self,
        backbone: Backbone,
        images: NDArray[np.uint8],
        prompts: NDArray[np.float32] | None = None,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Features float32 (n, d) of preprocessed images uint8 (n, s, s, channels), known ones from the cache."""
        name = _name(backbone, prompts)
        if name not in self._known:
            self._known[name] = self._load(name, backbone.feature_dim)
        known = self._known[name]
        keys = [hashlib.sha256(image.tobytes()).digest() for image in images]
        missing = list({key: row for row, key in enumerate(keys) if key not in known}.values())
        if progress is not None:
            progress(len(images) - len(missing))
        for start in range(0, len(missing), _KEPT_EVERY):
            rows = missing[start : start + _KEPT_EVERY]
            fresh = extract_features(backbone, images[rows], prompts, progress=progress)
            known |= {keys[row]: feature for row, feature in zip(rows, fresh, strict=True)}
            self._save(name, known)
        return np.stack([known[key] for key in keys])

    def _load(self, name: str, dimension: int) -> dict[bytes, NDArray[np.float32]]:
        try:
            with np.load(self._folder / f"{name}.npz", allow_pickle=False) as file:
                keys, features = file["keys"], file["features"]
        except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, BadZipFile):
            return {}
        if keys.shape != (len(features), 32) or features.shape[1:] != (dimension,) or features.dtype != np.float32:
            return {}
        return {key.tobytes(): feature for key, feature in zip(keys, features, strict=True)}

    def _save(self, name: str, known: dict[bytes, NDArray[np.float32]]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f"{name}.unfinished.npz"
        keys = np.frombuffer(b"".join(known), np.uint8).reshape(-1, 32)
        np.savez(unfinished, keys=keys, features=np.stack(list(known.values())))
        unfinished.replace(self._folder / f"{name}.npz")  # whoever is killed half-way leaves the old file


def _name(backbone: Backbone, prompts: NDArray[np.float32] | None) -> str:
    digest = hashlib.sha256(backbone.hash.encode())
    if prompts is not None:
        digest.update(repr(prompts.shape).encode() + prompts.astype("<f4").tobytes())
    return digest.hexdigest()[:32]
