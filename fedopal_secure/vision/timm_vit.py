"""Adapter for timm's VisionTransformer: any of its models that ends in a class token."""

from __future__ import annotations

import difflib
from typing import Final

import timm
import torch
from timm.data import resolve_data_config
from timm.models import is_model_in_modules
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from fedopal_secure.core.errors import InputError
from fedopal_secure.vision.backbone import (
    Backbone,
    fill,
    find_checkpoint,
    fingerprint,
    offline_if_unreachable,
    read_checkpoint,
)
from fedopal_secure.vision.preprocessing import Preprocessing

MODULES: Final = ("vision_transformer", "deit")


class TimmVit(Backbone):
    """A VisionTransformer of timm with its classifier removed. Register tokens stay behind the inserted prompts."""

    def __init__(self, name: str, vit: VisionTransformer, pixels: Preprocessing, weights_hash: str) -> None:
        """Wrap a network that already has its weights and its image size; `weights_hash` is what was loaded."""
        super().__init__(pixels)
        self.id = name
        self.vit = vit
        self.embed_dim = self.feature_dim = vit.embed_dim
        self.depth, self.patch_count = len(vit.blocks), vit.patch_embed.num_patches
        self.hash = fingerprint({}, {"weights": weights_hash, "preprocessing": str(pixels), **_settings(vit)})
        self.freeze()

    def embed(self, images: Tensor) -> Tensor:
        """See `Backbone.embed`. A norm before the blocks (CLIP's) comes before prompts, which are what blocks read."""
        # The method is private, but the models differ in it (registers, positions of [CLS]) and it decides that for us.
        return self.vit.norm_pre(self.vit._pos_embed(self.vit.patch_embed(images)))

    def encode(self, tokens: Tensor) -> Tensor:
        """See `Backbone.encode`."""
        return self.vit.fc_norm(self.vit.norm(self.vit.blocks(tokens)[:, 0]))

    def layers(self, tokens: Tensor, count: int) -> list[Tensor]:
        """See `Backbone.layers`."""
        after = []
        for block in self.vit.blocks:
            tokens = block(tokens)
            after.append(tokens)
        return [self.vit.fc_norm(self.vit.norm(layer)) for layer in after[-count:]]


def load_timm(architecture: str, checkpoint: str | None, image_size: int | None) -> TimmVit:
    """Load timm's `architecture` with the weights of a checkpoint (.safetensors or .pth), else timm's pretrained ones.

    The positional embedding is resampled if `image_size` differs from the architecture's own. Raises InputError.
    """
    _check_architecture(architecture)
    name = f"timm:{architecture}"
    if checkpoint is None:
        vit = _pretrained(architecture)
    else:
        path = find_checkpoint(checkpoint)
        if path is None:
            raise InputError(f"no checkpoint {checkpoint}: give an existing file, or its name within $FEDOPAL_WEIGHTS")
        vit = timm.create_model(architecture, num_classes=0)
        state = read_checkpoint(path, architecture)
        kept = {key: tensor for key, tensor in state.items() if not key.startswith("head.")}
        fill(vit, kept, path, architecture)
        name = f"{name}@{path.name}"
    # Hashed before resampling, whose last bits depend on the machine.
    weights_hash = fingerprint(vit.state_dict(), {})
    own_size, patch = vit.patch_embed.img_size[0], vit.patch_embed.patch_size[0]
    size = own_size if image_size is None else image_size
    if size < patch or size % patch:
        raise InputError(f"image size {size} does not suit {architecture}: give a multiple of its patch, {patch}")
    if size != own_size:
        vit.set_input_size(img_size=(size, size))
    return TimmVit(name, vit, _pixels(vit, size), weights_hash)


def _check_architecture(architecture: str) -> None:
    """Raise InputError, in one line, for what the adapter would run wrongly, before anything is fetched."""
    if not timm.is_model(architecture):
        close = difflib.get_close_matches(architecture, timm.list_models(module=list(MODULES)), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; see timm.list_models('vit_*')"
        raise InputError(f"timm has no model '{architecture}'{hint}")
    refusal = f"timm's {architecture} is not a plain vision transformer that ends in a class token"
    if not is_model_in_modules(architecture, MODULES):
        raise InputError(refusal)
    with torch.device("meta"):  # its shape alone
        vit = timm.create_model(architecture, num_classes=0)
    if type(vit) is not VisionTransformer:
        raise InputError(f"{refusal}: it is a {type(vit).__name__}")
    if not vit.has_class_token or vit.global_pool != "token":
        raise InputError(f"{refusal}: it pools by '{vit.global_pool}'")
    if any(type(block) is not Block for block in vit.blocks):
        raise InputError(f"{refusal}: its blocks are of another kind")
    mode = vit.pretrained_cfg.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise InputError(f"timm's {architecture} wants images cropped by '{mode}', which this program cannot")
    # timm's only trace of the activation that weights were trained with.
    native = any("natively QuickGELU" in note for note in vit.pretrained_cfg.get("notes") or ())
    if native and _activation(vit) != "QuickGELU":
        right = architecture.replace("_clip_", "_clip_quickgelu_")
        raise InputError(
            f"the weights of {architecture} were trained with QuickGELU, and it has GELU: use timm:{right}"
        )


def _pretrained(architecture: str) -> VisionTransformer:
    try:
        with offline_if_unreachable():
            return timm.create_model(architecture, pretrained=True, num_classes=0)
    # A download fails in as many ways as there are networks and hubs.
    except Exception as error:
        raise InputError(
            f"cannot fetch the weights of {architecture} ({type(error).__name__}); "
            f"pass a local file: timm:{architecture}@FILE.safetensors"
        ) from error


def _pixels(vit: VisionTransformer, size: int) -> Preprocessing:
    """How timm prepares images for these weights when it evaluates them."""
    config = resolve_data_config(pretrained_cfg=vit.pretrained_cfg)
    return Preprocessing(
        size,
        tuple(config["mean"]),
        tuple(config["std"]),
        "bilinear" if config["interpolation"] == "bilinear" else "bicubic",
        crop_pct=config["crop_pct"],
        squash=config["crop_mode"] == "squash",
    )


def _activation(vit: VisionTransformer) -> str:
    act: nn.Module = vit.blocks[0].mlp.act
    return type(act).__name__


def _settings(vit: VisionTransformer) -> dict[str, object]:
    """What the function depends on beyond the weights and their shapes."""
    first = vit.blocks[0]
    return {
        "family": "timm.VisionTransformer",
        "image_size": list(vit.patch_embed.img_size),
        "patch_size": list(vit.patch_embed.patch_size),
        "heads": first.attn.num_heads,
        "activation": _activation(vit),
        "norm": type(first.norm1).__name__,
        "norm_eps": first.norm1.eps,
        "registers": vit.num_reg_tokens,
        "position_on_prefix": not vit.no_embed_class,
        "pooling": "class token",
        "prompts": "read by the first block: after norm_pre, after [CLS], before registers",
    }
