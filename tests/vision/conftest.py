"""Tiny vision transformers with random weights, so that tests take seconds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from timm.models.vision_transformer import VisionTransformer

from fedopal_secure.vision.preprocessing import Preprocessing
from fedopal_secure.vision.timm_vit import TimmVit

CLASSES = 3


def tiny_vit(**changes: object) -> VisionTransformer:
    """Two blocks of width 32 over four patches of a 16 x 16 grey image."""
    torch.manual_seed(1)
    shape = {"img_size": 16, "patch_size": 8, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 2}
    vit = VisionTransformer(**{**shape, "num_classes": 0, **changes})
    with torch.no_grad():
        for parameter in vit.parameters():  # timm starts some at zero, where a test would see nothing
            parameter += 0.3 * torch.randn_like(parameter)
    return vit


@pytest.fixture
def vit() -> VisionTransformer:
    """The bare network of timm."""
    return tiny_vit()


@pytest.fixture
def backbone(vit: VisionTransformer) -> TimmVit:
    """The same network behind the adapter."""
    return TimmVit("tiny", vit, Preprocessing(16, (0.5,), (0.5,), "bilinear"), "0" * 64)


@pytest.fixture
def images() -> NDArray[np.uint8]:
    """Sixty grey images, uint8 (60, 16, 16, 1): class 0 bright above, 1 bright below, 2 bright left."""
    rng = np.random.default_rng(5)
    pictures = rng.integers(0, 90, (60, 16, 16, 1), dtype=np.uint8)
    pictures[0::3, :8] += 120
    pictures[1::3, 8:] += 120
    pictures[2::3, :, :8] += 120
    return pictures


@pytest.fixture
def labels() -> NDArray[np.int64]:
    """The class of each of `images`."""
    return np.arange(60, dtype=np.int64) % CLASSES
