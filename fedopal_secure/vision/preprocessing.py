"""From a decoded image to the tensor a backbone reads, in two steps that any client can repeat exactly.

The first ends in uint8, which is what is kept in memory and what the session parameters pin; the second is a fixed
affine map of those bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedopal_secure.core.errors import InputError

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocessing:
    """What a backbone was trained to see: square images of `image_size` pixels and `len(mean)` channels (1 or 3).

    Attributes:
        image_size: side of the square that is kept, pixels.
        mean: per channel, of pixels in [0, 1].
        std: per channel, of pixels in [0, 1].
        interpolation: Pillow's filter.
        crop_pct: the square's side over the side that the image is resized to; below 1 a border is cut away.
        squash: resize both sides to the same length, whatever the shape; else the shorter one, and the longer with it.
    """

    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation
    crop_pct: float = 1.0
    squash: bool = False

    @property
    def channels(self) -> int:
        """1 for greyscale, 3 for RGB."""
        return len(self.mean)

    def __str__(self) -> str:
        """All that has to be known to repeat it, for the session parameters."""
        colour = "grey (ITU-R 601)" if self.channels == 1 else "RGB"
        sides = f"both sides to {self.resized_to}" if self.squash else f"shorter side to {self.resized_to}, longer down"
        return (
            f"{colour}; {sides} by Pillow {self.interpolation}; "
            f"centre {self.image_size}x{self.image_size}; uint8; x/255, mean {list(self.mean)}, std {list(self.std)}"
        )

    @property
    def resized_to(self) -> int:
        """The side, in pixels, that an image is resized to before its centre is kept."""
        return math.floor(self.image_size / self.crop_pct)

    def to_bytes(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Turn one image uint8 (h, w) or (h, w, 3) into uint8 (image_size, image_size, channels).

        The shorter side (with `squash`, each) is resized to `resized_to` and the centre is kept, to the byte as
        torchvision's Resize and CenterCrop do it, which open_clip and timm evaluate with. Raises InputError for any
        other shape or type, or an image with an empty side.
        """
        grey = image.ndim == 2
        if image.dtype != np.uint8 or not (grey or (image.ndim == 3 and image.shape[2] == 3)) or image.size == 0:
            raise InputError(f"an image of shape {image.shape} and type {image.dtype}: give uint8 (h, w) or (h, w, 3)")
        picture = Image.fromarray(image).convert("L" if self.channels == 1 else "RGB")
        side, size, target = min(picture.size), self.image_size, self.resized_to
        # torchvision's rounding: the longer side down, the corner of the crop half to even.
        width, height = (target if self.squash else int(target * length / side) for length in picture.size)
        picture = picture.resize((width, height), Image.Resampling[self.interpolation.upper()])
        left, top = round((width - size) / 2), round((height - size) / 2)
        cropped = picture.crop((left, top, left + size, top + size))
        return np.array(cropped, dtype=np.uint8).reshape(size, size, self.channels)

    def to_tensor(self, batch: NDArray[np.uint8], device: torch.device | str = "cpu") -> Tensor:
        """Turn uint8 (n, image_size, image_size, channels) into float32 (n, channels, image_size, image_size).

        Raises InputError if the batch did not come from `to_bytes`.
        """
        expected = (self.image_size, self.image_size, self.channels)
        if batch.dtype != np.uint8 or batch.shape[1:] != expected:
            raise InputError(
                f"images of shape {batch.shape[1:]} and type {batch.dtype}: preprocess to uint8 {expected}"
            )
        place = torch.device(device)
        if place.type == "cuda":
            # Bytes are a quarter of what there is to move, and from pinned memory nobody waits for it.
            here = torch.from_numpy(np.ascontiguousarray(batch)).pin_memory().to(place, non_blocking=True)
            pixels = here.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format) / 255
        else:
            pixels = torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2), np.float32)).to(place) / 255
        return (pixels - self._column(self.mean, pixels)) / self._column(self.std, pixels)

    @staticmethod
    def _column(values: tuple[float, ...], like: Any) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(1, -1, 1, 1)
