"""Prompt tuning at one client: cross-entropy through the frozen backbone, held near P_init (FedOPAL eq. 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.devices import full_precision, loaded, repeatable, tuning_dtype
from fedopal_secure.vision.prompts import PromptInsert


@dataclass(frozen=True)
class TuningConfig:
    """Public settings of the tuning, the same for every client; the first three defaults are the paper's.

    `tokens` is M, `epochs` E, `proximal` mu. `learning_rate` is Adam's, for the prompts and the temporary head;
    the paper names none.
    """

    tokens: int = 10
    epochs: int = 5
    proximal: float = 0.1
    learning_rate: float = 0.003
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.epochs < 0 or self.batch_size < 1:
            raise InputError(
                f"tuning with {self.tokens} tokens, {self.epochs} epochs, batches of {self.batch_size}: "
                "give at least 1 token, 0 epochs and batches of 1"
            )
        if not (0 <= self.proximal < np.inf and 0 < self.learning_rate < np.inf):
            raise InputError(
                f"tuning with proximal {self.proximal} and learning rate {self.learning_rate}: "
                "give finite numbers, the rate above 0 and the proximal term not below"
            )


def tune_prompts(
    backbone: Backbone,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    classes: int,
    initial: NDArray[np.float32],
    config: TuningConfig,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Tune prompts on one client's data and return them: float32 (M, D).

    Minimises the mean cross-entropy of a temporary linear head on the [CLS] features, plus mu/2 ||P - P_init||^2. The
    head starts at zero and is thrown away; the backbone is not changed. One image or one class is enough to run:
    there is then nothing to tell apart, and P stays close to P_init. The frozen blocks compute in `tuning_dtype` of the
    backbone's device; prompts, head, loss and optimiser are float32 everywhere. Memory does not grow with n.

    Args:
        backbone: frozen, on the device where this is to run.
        images: uint8 (n, s, s, channels), from `backbone.preprocess`.
        labels: int64 (n,), in 0 .. classes - 1.
        classes: of the session, whether this client has them or not.
        initial: P_init, float32 (M, D), the same for everyone in the session.
        config: `config.tokens` must be M.
        seed: fixes the order of the images; equal arguments give equal bits on one machine, device and library.
        progress: called after each batch with the number of images in it, n * epochs in all.

    Raises InputError for no images, labels that do not fit, or prompts of another shape; MisuseError for a backbone
    whose weights take a gradient.
    """
    check_tuning_data(backbone, images, labels, classes, initial, config.tokens)
    like = next(backbone.parameters())
    start = torch.from_numpy(initial).to(like)
    insert = PromptInsert(start)
    head = zero_head(backbone.feature_dim, classes, like)
    optimiser = torch.optim.Adam([*insert.parameters(), *head.parameters()], lr=config.learning_rate)
    rng = np.random.default_rng(seed)
    with repeatable(like.device), full_precision(like.device):
        for _ in range(config.epochs):
            order = rng.permutation(len(images))
            batches = np.split(order, range(config.batch_size, len(order), config.batch_size))
            for chosen, pixels in loaded(lambda rows: backbone.normalise(images[rows]), batches, like.device):
                with torch.no_grad():
                    tokens = backbone.embed(pixels)
                logits = head(encode_for_tuning(backbone, insert(tokens)))
                loss = F.cross_entropy(logits, torch.from_numpy(labels[chosen]).to(logits.device))
                loss = loss + config.proximal / 2 * (insert.prompts - start).square().sum()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                if progress is not None:
                    progress(len(chosen))
    return insert.prompts.detach().cpu().numpy()


def encode_for_tuning(backbone: Backbone, tokens: Tensor) -> Tensor:
    """Tokens float32 (n, any number, D) to features float32 (n, d), by frozen blocks in the device's `tuning_dtype`."""
    dtype = tuning_dtype(tokens.device)
    with torch.autocast(tokens.device.type, dtype, enabled=dtype != tokens.dtype):
        return backbone.encode_for_tuning(tokens).to(tokens.dtype)


def check_tuning_data(
    backbone: Backbone,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    classes: int,
    initial: NDArray[np.float32],
    tokens: int,
) -> None:
    """Raise InputError for no images, labels that do not fit, or prompts that are not (tokens, D).

    MisuseError for a backbone that is not frozen: its weights' gradients would take half as much time again.
    """
    if any(parameter.requires_grad for parameter in backbone.parameters()):
        raise MisuseError(f"the weights of {backbone.id} take a gradient: call its freeze() once they are loaded")
    if len(images) == 0:
        raise InputError("no images to tune prompts on: a client needs at least one image")
    if labels.shape != (len(images),) or labels.min() < 0 or labels.max() >= classes:
        raise InputError(f"{len(images)} images need as many labels, each in 0..{classes - 1}")
    if initial.shape != (tokens, backbone.embed_dim):
        raise InputError(f"prompts of shape {initial.shape}: this needs {(tokens, backbone.embed_dim)}")


def zero_head(features: int, classes: int, like: Tensor) -> nn.Linear:
    """The temporary head: maps features (n, d) to logits (n, classes), of zeros, on the device and dtype of `like`."""
    # By way of "meta", torch draws no weights from its global generator, only for us to overwrite them.
    head = nn.Linear(features, classes, device="meta", dtype=like.dtype).to_empty(device=like.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
