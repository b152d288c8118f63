"""Adapter for open_clip: the vision tower of any of its CLIP models that ends in a class token."""

from __future__ import annotations

import dataclasses
import difflib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import open_clip
import torch
from open_clip.model import CLIPVisionCfg, _build_vision_tower, resize_pos_embed
from open_clip.pretrained import download_pretrained, get_pretrained_cfg, list_pretrained_tags_by_model
from open_clip.transform import PreprocessCfg, merge_preprocess_dict
from open_clip.transformer import VisionTransformer
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

PROJECTED: Final = ":projected"
UNPROJECTED: Final = ":unprojected"
QUICK: Final = "-quickgelu"
# What open_clip itself saves beside weights that it sends to a hub.
SIDECAR: Final = "open_clip_config.json"


@dataclasses.dataclass(frozen=True)
class _Source:
    """Where weights come from, and how their images were prepared."""

    name: str  # the tag, or the file without its folder
    path: Path | None  # None: to be fetched
    preprocessing: dict[str, Any]  # in open_clip's words, as far as it is known


class OpenClipVit(Backbone):
    """A vision tower of open_clip. The feature is CLIP's image embedding, or if not `projected` what precedes it."""

    def __init__(
        self, name: str, tower: VisionTransformer, pixels: Preprocessing, weights_hash: str, projected: bool = True
    ) -> None:
        """Wrap a tower that already has its weights and its image size; `weights_hash` is what was loaded."""
        super().__init__(pixels)
        self.id = name
        self.tower = tower
        self.projected = projected
        width, output = tower.proj.shape
        self.embed_dim, self.feature_dim = width, output if projected else width
        self.depth, self.patch_count = len(tower.transformer.resblocks), len(tower.positional_embedding) - 1
        settings = {"preprocessing": str(pixels), "projected": projected, **_settings(tower)}
        self.hash = fingerprint({}, {"weights": weights_hash, **settings})
        self.freeze()

    def embed(self, images: Tensor) -> Tensor:
        """See `Backbone.embed`. `ln_pre` comes before the prompts, which are thus what the first block reads."""
        patches = self.tower.conv1(images).flatten(2).transpose(1, 2)
        first = self.tower.class_embedding.expand(len(images), 1, -1)
        return self.tower.ln_pre(torch.cat([first, patches], dim=1) + self.tower.positional_embedding)

    def encode(self, tokens: Tensor) -> Tensor:
        """See `Backbone.encode`."""
        feature = self.tower.ln_post(self.tower.transformer(tokens)[:, 0])
        return feature @ self.tower.proj if self.projected else feature

    def layers(self, tokens: Tensor, count: int) -> list[Tensor]:
        """See `Backbone.layers`."""
        after = []
        for block in self.tower.transformer.resblocks:
            tokens = block(tokens)
            after.append(tokens)
        normed = [self.tower.ln_post(layer) for layer in after[-count:]]
        return [layer @ self.tower.proj for layer in normed] if self.projected else normed


def load_open_clip(name: str, image_size: int | None) -> OpenClipVit:
    """Load "ARCH/TAG" or "ARCH/CHECKPOINT" of open_clip, the vision tower alone, with or without ":unprojected".

    A checkpoint (.safetensors, or a state dict as .pt or .bin) holds the whole CLIP model or its vision tower. The
    positional embedding is resampled if `image_size` differs from the architecture's own. Raises InputError.
    """
    projected = not name.endswith(UNPROJECTED)
    architecture, _, weights = name.removesuffix(PROJECTED).removesuffix(UNPROJECTED).partition("/")
    if not weights:
        raise InputError(f"'open_clip:{name}' names no weights: give open_clip:ARCH/TAG or open_clip:ARCH/FILE")
    config = _architecture(architecture)
    source = _source(architecture, config, weights)
    own_size = CLIPVisionCfg(**config["vision_cfg"]).image_size
    pixels = _pixels(architecture, own_size, source.preprocessing)
    path = source.path or _fetch(architecture, source.name)
    # open_clip's own builder, because it fixes what a configuration leaves out; the text tower is not needed.
    tower = _build_vision_tower(config["embed_dim"], config["vision_cfg"], config.get("quick_gelu", False))
    state = read_checkpoint(path, architecture)
    visual = {key.removeprefix("visual."): tensor for key, tensor in state.items() if key.startswith("visual.")}
    fill(tower, visual or state, path, architecture)
    # Hashed before resampling, whose last bits depend on the machine.
    weights_hash = fingerprint(tower.state_dict(), {})
    patch = tower.patch_size[0]
    size = own_size if image_size is None else image_size
    if size < patch or size % patch:
        raise InputError(f"image size {size} does not suit {architecture}: give a multiple of its patch, {patch}")
    if size != own_size:
        _resample(tower, size)
    full_name = f"open_clip:{architecture}/{source.name}{PROJECTED if projected else UNPROJECTED}"
    return OpenClipVit(full_name, tower, dataclasses.replace(pixels, image_size=size), weights_hash, projected)


def _architecture(architecture: str) -> dict[str, Any]:
    """open_clip's configuration of the name. Raises InputError, in one line, for one that the adapter cannot run."""
    config: dict[str, Any] | None = (
        open_clip.get_model_config(architecture) if architecture in open_clip.list_models() else None
    )
    if config is None:
        close = difflib.get_close_matches(architecture, open_clip.list_models(), n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; see open_clip.list_models()"
        raise InputError(f"open_clip has no architecture '{architecture}'{hint}")
    tower = CLIPVisionCfg(**config["vision_cfg"])
    reason = ""
    if tower.timm_model_name:
        reason = f"its vision tower is timm's {tower.timm_model_name}"
    elif not isinstance(tower.layers, int):
        reason = "its vision tower is a ResNet"
    elif tower.attentional_pool or tower.pool_type != "tok":
        reason = f"it pools by {'attention' if tower.attentional_pool else tower.pool_type}"
    if reason:
        raise InputError(f"open_clip's {architecture} is not a vision transformer that ends in a class token: {reason}")
    return config


def _source(architecture: str, config: dict[str, Any], weights: str) -> _Source:
    """A tag of the architecture, else a file. Raises InputError, before any download, for weights unfit for it."""
    quick = config.get("quick_gelu", False)
    record = get_pretrained_cfg(architecture, weights)
    other = architecture.removesuffix(QUICK) if architecture.endswith(QUICK) else architecture + QUICK
    path = None if record else find_checkpoint(weights)
    if path is not None:
        return _Source(path.name, path, _sidecar(path, architecture, config))
    # open_clip lists a tag under both activations or under its own alone.
    record = record or get_pretrained_cfg(other, weights)
    if not record:
        tags = list_pretrained_tags_by_model(architecture)
        raise InputError(
            f"no weights '{weights}' for open_clip's {architecture}: give an existing file, its name within "
            f"$FEDOPAL_WEIGHTS, or a tag ({', '.join(tags[:4]) or 'it has none'}{', ...' if len(tags) > 4 else ''})"
        )
    _check_activation(architecture, quick, record.get("quick_gelu", False), weights)
    return _Source(weights.lower().replace("-", "_"), None, record)


def _check_activation(architecture: str, has_quick: bool, needs_quick: bool, weights: str) -> None:
    """Weights run with the other activation give features that are wrong, and look right."""
    if has_quick == needs_quick:
        return
    right = architecture + QUICK if needs_quick else architecture.removesuffix(QUICK)
    known = right != architecture and right in open_clip.list_models()
    raise InputError(
        f"the weights {weights} were trained with {_word(needs_quick)}, and {architecture} has {_word(has_quick)}: "
        + (f"use open_clip:{right}/{weights}" if known else "open_clip has no such architecture with the right one")
    )


def _word(quick: bool) -> str:
    return "QuickGELU" if quick else "GELU"


def _sidecar(path: Path, architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """What the file that open_clip saves beside its weights says of preprocessing; {} if there is none.

    Raises InputError, in one line, if it is of another architecture or activation.
    """
    beside = path.parent / SIDECAR
    if not beside.is_file():
        return {}
    try:
        saved = json.loads(beside.read_bytes())
        model, preprocessing = saved["model_cfg"], saved.get("preprocess_cfg") or {}
        quick = bool(model.get("quick_gelu", False))
        tower = CLIPVisionCfg(**model["vision_cfg"])
        same = (model["embed_dim"], tower) == (config["embed_dim"], CLIPVisionCfg(**config["vision_cfg"]))
        known = merge_preprocess_dict(PreprocessCfg(), preprocessing)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"cannot read {beside}, which should be what open_clip saves: mend or remove it") from error
    if not same:
        raise InputError(f"{beside} describes another model than {architecture}: give that one, or move the file away")
    _check_activation(architecture, config.get("quick_gelu", False), quick, path.name)
    return known


def _fetch(architecture: str, tag: str) -> Path:
    try:
        with offline_if_unreachable():
            return Path(download_pretrained(get_pretrained_cfg(architecture, tag)))
    # A download fails in as many ways as there are networks and hubs.
    except Exception as error:
        raise InputError(
            f"cannot fetch the weights {tag} of {architecture} ({type(error).__name__}); "
            f"pass a local file: open_clip:{architecture}/FILE.safetensors"
        ) from error


def _pixels(architecture: str, size: int, said: dict[str, Any]) -> Preprocessing:
    """How open_clip prepares images for these weights; where nothing is said, as for OpenAI's."""
    known = PreprocessCfg(**merge_preprocess_dict(PreprocessCfg(), said))
    if known.resize_mode not in ("shortest", "squash"):
        raise InputError(f"{architecture} wants images resized by '{known.resize_mode}', which this program cannot")
    return Preprocessing(
        size,
        tuple(known.mean),
        tuple(known.std),
        "bilinear" if known.interpolation == "bilinear" else "bicubic",
        squash=known.resize_mode == "squash",
    )


def _resample(tower: VisionTransformer, size: int) -> None:
    """Make the positional embedding one of `size` pixels, as open_clip does for a tower built at that size."""
    side = size // tower.patch_size[0]
    tower.image_size, tower.grid_size = (size, size), (side, side)
    state = {"visual.positional_embedding": tower.positional_embedding.data}
    resize_pos_embed(state, SimpleNamespace(visual=tower))
    tower.positional_embedding = nn.Parameter(state["visual.positional_embedding"])


def _settings(tower: VisionTransformer) -> dict[str, object]:
    """What the function depends on beyond the weights and their shapes."""
    first = tower.transformer.resblocks[0]
    return {
        "family": "open_clip.VisionTransformer",
        "image_size": list(tower.image_size),
        "patch_size": list(tower.patch_size),
        "heads": first.attn.num_heads,
        "block": type(first).__name__,
        "activation": str(first.mlp.gelu),
        "norm_eps": first.ln_1.eps,
        "ln_pre": not isinstance(tower.ln_pre, nn.Identity),
        "pooling": "class token",
        "prompts": "read by the first block: after ln_pre, after [CLS]",
    }
