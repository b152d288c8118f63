"""What every frozen vision transformer offers the method: images to tokens, tokens to one feature, [CLS] if no other.

An adapter per library (`timm_vit`, `open_clip_vit`) fills it in; `load_backbone` finds the adapter by name. What the
adapters share about weights is here too: the fingerprint, and the ways to a local file and to a hub.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import ssl
import urllib.error
import urllib.request
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.vision.devices import device_named
from fedopal_secure.vision.preprocessing import Preprocessing
from fedopal_secure.vision.prompts import insert_prompts

KNOWN: Final = (
    "embedded, timm:NAME, timm:NAME@CHECKPOINT, open_clip:ARCH/TAG, open_clip:ARCH/CHECKPOINT "
    "(a checkpoint is a file, or its name within $FEDOPAL_WEIGHTS), and behind it +joined:LAYERS, +random:COUNT or both"
)
HUB_TIMEOUT_S: Final = 5.0


class Backbone(nn.Module, ABC):
    """A frozen vision transformer: no parameter takes a gradient, and it never leaves evaluation mode.

    Attributes:
        id: the name it was loaded by, without the folder of a checkpoint: what a model file records.
        hash: hex SHA-256 over the loaded weights and all settings that fix the function; equal means equal features
            (up to the rounding of one machine and library).
        embed_dim: D, the width of the tokens.
        feature_dim: d, the length of a feature.
        depth: the number of blocks.
        patch_count: L, the number of patch tokens, which are the last ones.
        preprocessing: both preprocessing steps in words, for the session parameters.
    """

    id: str
    hash: str
    embed_dim: int
    feature_dim: int
    depth: int = 0  # an adapter that leaves it has no feature but its own
    patch_count: int = 0

    def __init__(self, pixels: Preprocessing) -> None:
        super().__init__()
        self._pixels = pixels
        self._compiled: Callable[[Tensor], Tensor] | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are, and so where everything is computed."""
        return next(self.parameters()).device

    @property
    def pixels(self) -> Preprocessing:
        """Both preprocessing steps."""
        return self._pixels

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
        return self._pixels.to_tensor(batch, self.device)

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Images (n, channels, s, s) to tokens (n, 1 + L, D), [CLS] first, with positional embedding; FedOPAL eq. 4."""

    @abstractmethod
    def encode(self, tokens: Tensor) -> Tensor:
        """Tokens (n, any number, D), [CLS] first, through the frozen blocks to the feature (n, d)."""

    def layers(self, tokens: Tensor, count: int) -> list[Tensor]:
        """Tokens as `encode` takes them, to all tokens after each of the last `count` blocks, the last block's last.

        Every one goes through the norm, and the projection if there is one, that `encode` puts [CLS] through.
        """
        raise MisuseError(f"{type(self).__name__} does not give the tokens of its blocks")

    def forward(self, images: Tensor, prompts: Tensor | None = None) -> Tensor:
        """Images (n, channels, s, s), and prompts (M, D) or none, to features (n, d); FedOPAL eq. 4, 5."""
        tokens = self.embed(images)
        return self.encode(tokens if prompts is None else insert_prompts(tokens, prompts))

    def encode_for_tuning(self, tokens: Tensor) -> Tensor:
        """As `encode`, by compiled blocks after `compile_tuning`."""
        if self._compiled is None:
            return self.encode(tokens)
        try:
            return self._compiled(tokens)
        except RuntimeError as error:
            inside = getattr(error, "inner_exception", None)  # of a compiler's failure, and of nothing else
            if inside is None:
                raise
            reason = " ".join(str(inside).split())[:160]
            raise InputError(f"torch cannot compile the backbone here ({reason}): tune without --compile") from error

    def compile_tuning(self) -> Self:
        """Have torch compile the blocks for the tuning. Features do not change: only `encode` makes those."""
        self._compiled = torch.compile(self.encode)
        return self

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


def find_checkpoint(checkpoint: str) -> Path | None:
    """The file itself, else the file of that name in $FEDOPAL_WEIGHTS, else None."""
    folder = os.environ.get("FEDOPAL_WEIGHTS")
    places = [Path(checkpoint), *([Path(folder) / checkpoint] if folder else [])]
    return next((place for place in places if place.is_file()), None)


def read_checkpoint(path: Path, architecture: str) -> dict[str, Tensor]:
    """Tensors by name from a file of safetensors, or of `torch.save` read as weights only: no code in it is run.

    A state dict that a trainer has wrapped ("state_dict", "model", names that begin with "module.") is unwrapped.
    Raises InputError, in one line, for a file that holds anything else, a TorchScript archive included.
    """
    try:
        if path.suffix == ".safetensors":
            loaded: object = load_file(path)
        else:
            with warnings.catch_warnings(action="ignore"):  # what it warns of is refused below
                loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        if "TorchScript" in str(error):
            raise InputError(
                f"checkpoint {path.name} is a TorchScript archive, which carries code: save its weights as safetensors"
            ) from error
        raise misfit(path, architecture, error) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not all(isinstance(tensor, Tensor) for tensor in loaded.values()):
        raise misfit(path, architecture, "it is no table of tensors by name")
    return {str(name).removeprefix("module."): tensor for name, tensor in loaded.items()}


def fill(module: nn.Module, state: Mapping[str, Tensor], path: Path, architecture: str) -> None:
    """Load exactly `state`, every tensor of it finite, into a module. Raises InputError, in one line, if it cannot."""
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise misfit(path, architecture, error) from error
    if not all(bool(torch.isfinite(tensor).all()) for tensor in module.state_dict().values()):
        raise InputError(f"checkpoint {path.name} holds a weight that is not a finite number")


def misfit(path: Path, architecture: str, reason: object) -> InputError:
    """The error for a checkpoint that is not one of `architecture`."""
    return InputError(
        f"checkpoint {path.name} does not hold the weights of {architecture}: {' '.join(str(reason).split())[:160]}"
    )


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """While inside, a hub that does not answer counts as offline: its cache is used, or an error comes at once.

    huggingface_hub tries a hub six times with growing pauses, for every file name that may exist: a minute.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or _answers(constants.ENDPOINT):
        yield
        return
    # What the documented environment variable of this name sets, which is read only when the library is imported.
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(url: str) -> bool:
    """Whether anything answers at `url` within `HUB_TIMEOUT_S`, through the proxies of the environment."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=HUB_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # The hub's client has certificates of its own, and may trust what the system's do not.
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError, HTTPException):
        return False
    return True


def load_backbone(name: str, image_size: int | None = None, device: str = "auto") -> Backbone:
    """Load a frozen backbone by name: "embedded", "timm:NAME[@CHECKPOINT]" or "open_clip:ARCH/TAG-or-CHECKPOINT".

    The name may end in "+joined:LAYERS", "+random:COUNT" or both: features other than [CLS] (`feature_maps`).

    `image_size` overrides the size the weights were trained at, where positional embeddings can be resampled; `device`
    is as `device_named` takes it. Raises InputError, in one line, for an unknown name or device, an unusable checkpoint
    or size, or weights that cannot be fetched.
    """
    place = device_named(device)  # before anything is fetched
    from fedopal_secure.vision.feature_maps import split_name, with_maps

    own, maps = split_name(name)
    return with_maps(_load(own, image_size), maps).to(place)


def _load(name: str, image_size: int | None) -> Backbone:
    # Adapters are imported when asked for, so that one library being absent does not take the others with it.
    kind, _, rest = name.partition(":")
    if name == "embedded":
        from fedopal_secure.vision.embedded import load_embedded

        return load_embedded(image_size)
    if kind == "timm" and rest:
        from fedopal_secure.vision.timm_vit import load_timm

        architecture, _, checkpoint = rest.partition("@")
        return load_timm(architecture, checkpoint or None, image_size)
    if kind == "open_clip" and rest:
        from fedopal_secure.vision.open_clip_vit import load_open_clip

        return load_open_clip(rest, image_size)
    raise InputError(f"unknown backbone '{name}'; there are: {KNOWN}")
