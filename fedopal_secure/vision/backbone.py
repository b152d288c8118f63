"""What every frozen vision transformer offers the method: images to tokens, tokens to one [CLS] feature.

An adapter per library (`timm_vit`) fills it in; `load_backbone` finds the adapter by name.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fedopal_secure.core.errors import InputError
from fedopal_secure.vision.preprocessing import Preprocessing
from fedopal_secure.vision.prompts import insert_prompts

KNOWN = "embedded, timm:NAME, timm:NAME@CHECKPOINT (a file, or its name within $FEDOPAL_WEIGHTS)"


class Backbone(nn.Module, ABC):
    """A frozen vision transformer: no parameter takes a gradient, and it never leaves evaluation mode.

    Attributes:
        id: the name it was loaded by, without the folder of a checkpoint: what a model file records.
        hash: hex SHA-256 over the loaded weights and all settings that fix the function; equal means equal features
            (up to the rounding of one machine and library).
        embed_dim: D, the width of the tokens.
        feature_dim: d, the length of a feature.
        preprocessing: both preprocessing steps in words, for the session parameters.
    """

    id: str
    hash: str
    embed_dim: int
    feature_dim: int

    def __init__(self, pixels: Preprocessing) -> None:
        super().__init__()
        self._pixels = pixels

    @property
    def image_size(self) -> int:
        """Side of the square images, in pixels."""
        return self._pixels.image_size

    @property
    def channels(self) -> int:
        """1 for greyscale, 3 for RGB."""
        return self._pixels.channels

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel, of pixels in [0, 1]."""
        return self._pixels.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Per channel, of pixels in [0, 1]."""
        return self._pixels.std

    @property
    def preprocessing(self) -> str:
        """Both preprocessing steps in words."""
        return str(self._pixels)

    def preprocess(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Turn uint8 (h, w) or (h, w, 3) into uint8 (image_size, image_size, channels): `Preprocessing.to_bytes`."""
        return self._pixels.to_bytes(image)

    def normalise(self, batch: NDArray[np.uint8]) -> Tensor:
        """Turn uint8 (n, s, s, channels) into float32 (n, channels, s, s), on the device of the weights."""
        return self._pixels.to_tensor(batch, next(self.parameters()).device)

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Images (n, channels, s, s) to tokens (n, 1 + L, D), [CLS] first, with positional embedding; FedOPAL eq. 4."""

    @abstractmethod
    def encode(self, tokens: Tensor) -> Tensor:
        """Tokens (n, any number, D), [CLS] first, through the frozen blocks to the [CLS] feature (n, d)."""

    def forward(self, images: Tensor, prompts: Tensor | None = None) -> Tensor:
        """Images (n, channels, s, s), and prompts (M, D) or none, to features (n, d); FedOPAL eq. 4, 5."""
        tokens = self.embed(images)
        return self.encode(tokens if prompts is None else insert_prompts(tokens, prompts))

    def freeze(self) -> Self:
        """Take the gradient from every weight and go to evaluation mode, for good."""
        self.requires_grad_(False)
        return self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: a trainer that calls `train()` on the whole must not wake dropout in here."""
        return super().train(False)


def fingerprint(state: Mapping[str, Tensor], settings: Mapping[str, object]) -> str:
    """Hex SHA-256 over every tensor (by name: type, shape, little-endian bytes) and the settings as sorted JSON."""
    digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode())
    for name in sorted(state):
        array = state[name].detach().cpu().contiguous().numpy()
        digest.update(f"\0{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def load_backbone(name: str, image_size: int | None = None) -> Backbone:
    """Load a frozen backbone by name: "embedded", "timm:NAME" or "timm:NAME@CHECKPOINT".

    `image_size` overrides the size the weights were trained at, where positional embeddings can be resampled. Raises
    InputError, in one line, for an unknown name, an unusable checkpoint or size, or weights that cannot be fetched.
    """
    # Adapters are imported when asked for, so that one library being absent does not take the others with it.
    kind, _, rest = name.partition(":")
    if name == "embedded":
        from fedopal_secure.vision.embedded import load_embedded

        return load_embedded(image_size)
    if kind == "timm" and rest:
        from fedopal_secure.vision.timm_vit import load_timm

        architecture, _, checkpoint = rest.partition("@")
        return load_timm(architecture, checkpoint or None, image_size)
    raise InputError(f"unknown backbone '{name}'; there are: {KNOWN}")
