"""The feature pass: one [CLS] feature per image, by the frozen backbone and the released prompts (FedOPAL eq. 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedopal_secure.core.errors import InputError
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.devices import full_precision, loaded

BATCH_SIZE: Final = 32


class Extract(Protocol):
    """How features are taken: `extract_features`, or a cache in front of it."""

    def __call__(
        self,
        backbone: Backbone,
        images: NDArray[np.uint8],
        prompts: NDArray[np.float32] | None = None,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Features float32 (n, d); see `extract_features`."""
        ...


@torch.inference_mode()
def extract_features(
    backbone: Backbone,
    images: NDArray[np.uint8],
    prompts: NDArray[np.float32] | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Features float32 (n, d) of preprocessed images uint8 (n, s, s, channels), with prompts (M, D) or none.

    The feature of an image depends on that image, not on its place among the others: the sums over clients must be
    the sums over the pooled data to the last bit. Matrix kernels may choose another code path, and so another
    rounding, for another number of rows. Therefore every batch has `batch_size` images, the last one filled up with
    black ones whose features are dropped. That makes features bit-identical for any split of the images on one
    machine, device, number of threads and library, for one `batch_size`; a test checks it where it runs. They are
    computed in float32, whatever precision the caller has switched on for itself, where the backbone's weights are.

    `progress` is called after each batch with the number of images in it. Raises InputError for no images, or images
    that the backbone's `preprocess` did not make.
    """
    if len(images) == 0:
        raise InputError("no images to take features of: a client needs at least one image")
    like = next(backbone.parameters())
    inserted = None if prompts is None else torch.from_numpy(prompts).to(like)
    features = np.empty((len(images), backbone.feature_dim), np.float32)

    def load(start: int) -> Tensor:
        part = images[start : start + batch_size]
        batch = np.zeros((batch_size, *images.shape[1:]), images.dtype)
        batch[: len(part)] = part
        return backbone.normalise(batch)

    with full_precision(like.device):
        for start, pixels in loaded(load, range(0, len(images), batch_size), like.device):
            count = min(batch_size, len(images) - start)
            features[start : start + count] = backbone(pixels, inserted)[:count].cpu().numpy()
            if progress is not None:
                progress(count)
    return features
