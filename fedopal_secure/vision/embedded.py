"""The small vision transformer that ships inside the package, so that a first run downloads nothing.

It was trained on rendered letters and no digit (`tools/pretrain_embedded.py`), which makes it public pre-training:
the digits of the demonstration are new to it.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Final

import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer

from fedopal_secure.core.errors import InputError
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.vision.backbone import fingerprint
from fedopal_secure.vision.preprocessing import Preprocessing
from fedopal_secure.vision.timm_vit import TimmVit

IMAGE_SIZE: Final = 32
WEIGHTS: Final = files("fedopal_secure.vision") / "weights" / "embedded.safetensors"
PUBLIC_MAP: Final = files("fedopal_secure.vision") / "weights" / "embedded-public.safetensors"
PIXELS: Final = Preprocessing(IMAGE_SIZE, mean=(0.5,), std=(0.5,), interpolation="bilinear")


def embedded_architecture() -> VisionTransformer:
    """The network without its weights: 32 x 32 grey images, 16 patches, 1.2 million parameters, features of 224."""
    return VisionTransformer(
        img_size=IMAGE_SIZE,
        patch_size=8,
        in_chans=1,
        num_classes=0,
        embed_dim=224,
        depth=3,
        num_heads=4,
        mlp_ratio=2.0,
    )


def embedded_state() -> dict[str, torch.Tensor]:
    """The packaged weights, stored as fp16 and returned as fp32, by the parameter names of timm."""
    with as_file(WEIGHTS) as path:
        return {name: tensor.float() for name, tensor in load_file(path).items()}


def load_embedded(image_size: int | None = None) -> TimmVit:
    """The embedded backbone; it reads images of 32 x 32 and no other size (InputError)."""
    if image_size not in (None, IMAGE_SIZE):
        raise InputError(f"the embedded backbone reads {IMAGE_SIZE} x {IMAGE_SIZE} images, not {image_size}")
    state = embedded_state()
    vit = embedded_architecture()
    vit.load_state_dict(state)
    return TimmVit("embedded", vit, PIXELS, fingerprint(state, {}))


def embedded_public_map() -> FeatureMap:
    """The packaged map of this backbone's features, learnt from the letters that it was trained on."""
    with as_file(PUBLIC_MAP) as path:
        return FeatureMap.load(path)
