"""Adapter for timm's VisionTransformer: any of its models that ends in a class token."""

from __future__ import annotations

import difflib
import os
import pickle
from pathlib import Path

import timm
import torch
from safetensors import SafetensorError
from timm.models import load_state_dict
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from fedopal_secure.core.errors import InputError
from fedopal_secure.vision.backbone import Backbone, fingerprint
from fedopal_secure.vision.preprocessing import Preprocessing


class TimmVit(Backbone):
    """A VisionTransformer of timm with its classifier removed. Register tokens stay behind the inserted prompts."""

    def __init__(self, name: str, vit: VisionTransformer, pixels: Preprocessing, weights_hash: str) -> None:
        """Wrap a network that already has its weights and its image size; `weights_hash` is what was loaded."""
        super().__init__(pixels)
        self.id = name
        self.vit = vit
        self.embed_dim = self.feature_dim = vit.embed_dim
        self.hash = fingerprint({}, {"weights": weights_hash, "preprocessing": str(pixels), **_settings(vit)})
        self.freeze()

    def embed(self, images: Tensor) -> Tensor:
        """See `Backbone.embed`. A norm before the blocks (CLIP's) comes before prompts, which are what blocks read."""
        # The method is private, but the models differ in it (registers, positions of [CLS]) and it decides that for us.
        return self.vit.norm_pre(self.vit._pos_embed(self.vit.patch_embed(images)))

    def encode(self, tokens: Tensor) -> Tensor:
        """See `Backbone.encode`."""
        return self.vit.norm(self.vit.blocks(tokens)[:, 0])


def load_timm(architecture: str, checkpoint: str | None, image_size: int | None) -> TimmVit:
    """Load timm's `architecture` with the weights of a checkpoint (.safetensors or .pth), else timm's pretrained ones.

    The positional embedding is resampled if `image_size` differs from the architecture's own. Raises InputError.
    """
    vit = _create(architecture, pretrained=checkpoint is None)
    name = f"timm:{architecture}"
    if checkpoint is not None:
        path = _find(checkpoint)
        _load(vit, architecture, path)
        name = f"{name}@{path.name}"
    # Hashed before resampling, whose last bits depend on the machine.
    weights_hash = fingerprint(vit.state_dict(), {})
    own_size, patch = vit.patch_embed.img_size[0], vit.patch_embed.patch_size[0]
    size = own_size if image_size is None else image_size
    if size < patch or size % patch:
        raise InputError(f"image size {size} does not suit {architecture}: give a multiple of its patch, {patch}")
    if size != own_size:
        vit.set_input_size(img_size=(size, size))
    trained_on = vit.pretrained_cfg
    interpolation = "bilinear" if trained_on.get("interpolation") == "bilinear" else "bicubic"
    return TimmVit(
        name, vit, Preprocessing(size, tuple(trained_on["mean"]), tuple(trained_on["std"]), interpolation), weights_hash
    )


def _create(architecture: str, pretrained: bool) -> VisionTransformer:
    if not timm.is_model(architecture):
        close = difflib.get_close_matches(architecture, timm.list_models("vit_*"), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; see timm.list_models('vit_*')"
        raise InputError(f"timm has no model '{architecture}'{hint}")
    try:
        model = timm.create_model(architecture, pretrained=pretrained, num_classes=0)
    # A download fails in as many ways as there are networks and hubs.
    except Exception as error:
        if not pretrained:
            raise
        raise InputError(
            f"cannot fetch the weights of {architecture} ({type(error).__name__}); "
            f"pass a local file: timm:{architecture}@FILE.safetensors"
        ) from error
    if type(model) is not VisionTransformer or not model.has_class_token or model.global_pool != "token":
        raise InputError(f"timm's {architecture} is not a plain vision transformer that ends in a class token")
    return model


def _find(checkpoint: str) -> Path:
    """The file itself, else the file of that name in $FEDOPAL_WEIGHTS."""
    folder = os.environ.get("FEDOPAL_WEIGHTS")
    places = [Path(checkpoint), *([Path(folder) / checkpoint] if folder else [])]
    for place in places:
        if place.is_file():
            return place
    raise InputError(f"no checkpoint {checkpoint}: give an existing file, or its name within $FEDOPAL_WEIGHTS")


def _load(vit: VisionTransformer, architecture: str, path: Path) -> None:
    try:
        state = load_state_dict(str(path), use_ema=False, weights_only=True)
        state = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
        vit.load_state_dict(state)
    except (RuntimeError, OSError, EOFError, AttributeError, SafetensorError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"checkpoint {path.name} does not hold the weights of {architecture}: {reason}") from error
    if not all(bool(torch.isfinite(tensor).all()) for tensor in vit.state_dict().values()):
        raise InputError(f"checkpoint {path.name} holds a weight that is not a finite number")


def _settings(vit: VisionTransformer) -> dict[str, object]:
    """What the function depends on beyond the weights and their shapes."""
    first = vit.blocks[0]
    return {
        "family": "timm.VisionTransformer",
        "image_size": list(vit.patch_embed.img_size),
        "patch_size": list(vit.patch_embed.patch_size),
        "heads": first.attn.num_heads,
        "activation": type(first.mlp.act).__name__,
        "norm_eps": first.norm1.eps,
        "registers": vit.num_reg_tokens,
        "position_on_prefix": not vit.no_embed_class,
    }
