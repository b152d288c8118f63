"""Prompt tuning whose result is differentially private: DP-SGD on FedOPAL eq. 6, with Opacus (Abadi et al. 2016).

The unit of privacy is one image, added or removed. What an accountant has to know is in `DpSgdConfig`: `steps` times a
Gaussian mechanism with `noise_multiplier`, on Poisson samples of `sample_rate`. That bound covers every iterate of
prompts and temporary head. It is a bound on values in exact arithmetic: the noise is added in floating point, whose
rounding is not accounted for, and the time a tuning takes depends on the number of images.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor, nn

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.shamir import Entropy
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.prompts import PromptInsert
from fedopal_secure.vision.tuning import check_tuning_data, encode_for_tuning, zero_head

# Importing Opacus gives the root logger a handler, which is for the application to do: what it adds is taken off again.
_handlers = logging.root.handlers[:]
from opacus.grad_sample import GradSampleHooks, register_grad_sampler  # noqa: E402
from opacus.optimizers import DPOptimizer  # noqa: E402

logging.root.handlers[:] = _handlers

_CHUNK: Final = 32  # images of a lot that go through the backbone at once: bounds the memory, changes nothing else


@dataclass(frozen=True, kw_only=True)
class DpSgdConfig:
    """Public settings of the private tuning, the same for every client.

    None of them may be computed from a client's images, nor from how many it has.

    `tokens` is M, `proximal` mu. Each image is in the lot of each of the `steps` with probability `sample_rate`.
    `clip` bounds the norm of one image's gradient by prompts and temporary head together, and the noise on the sum of
    those has a standard deviation of noise_multiplier * clip; a multiplier of 0 is no privacy. The noisy sum is divided
    by `lot`, a nominal number of images, which sets how much the data weigh against the proximal term.
    `learning_rate` is Adam's.
    """

    tokens: int = 10
    steps: int
    sample_rate: float
    noise_multiplier: float
    clip: float = 1.0
    lot: int
    proximal: float = 0.1
    learning_rate: float = 0.003

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.steps < 1 or self.lot < 1:
            raise InputError(
                f"private tuning with {self.tokens} tokens, {self.steps} steps and a lot of {self.lot}: "
                "give at least 1 of each"
            )
        if not 0 < self.sample_rate <= 1:  # NaN fails too, here and below
            raise InputError(f"private tuning with sample rate {self.sample_rate}: give a probability above 0")
        if not (0 <= self.noise_multiplier < np.inf and 0 < self.clip < np.inf):
            raise InputError(
                f"private tuning with noise multiplier {self.noise_multiplier} and clip {self.clip}: "
                "give finite numbers, the clip above 0 and the multiplier not below"
            )
        if not (0 <= self.proximal < np.inf and 0 < self.learning_rate < np.inf):
            raise InputError(
                f"private tuning with proximal {self.proximal} and learning rate {self.learning_rate}: "
                "give finite numbers, the rate above 0 and the proximal term not below"
            )


def tune_prompts_privately(
    backbone: Backbone,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    classes: int,
    initial: NDArray[np.float32],
    config: DpSgdConfig,
    entropy: Entropy,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Tune prompts on one client's data with DP-SGD and return them: float32 (M, D).

    The objective, the head and the limits are those of `tuning.tune_prompts`; the proximal gradient depends on no data
    and is added to the noisy gradient. A step whose lot is empty is made of noise, and is made.

    Args:
        backbone: frozen.
        images: uint8 (n, s, s, channels), from `backbone.preprocess`.
        labels: int64 (n,), in 0 .. classes - 1.
        classes: of the session, whether this client has them or not.
        initial: P_init, float32 (M, D), public, the same for everyone in the session.
        config: `config.tokens` must be M.
        entropy: a cryptographically secure source; the lots and all noise are read from it. Equal bytes give equal
            bits of the result on one machine, device and library.
        progress: called after each step with 1, `config.steps` in all, so that it says nothing about the data.

    Raises InputError for labels that do not fit, or prompts of another shape. No images are an empty lot in every step.
    """
    if len(images):  # none is a client like any other: that it has none must not show
        check_tuning_data(backbone, images, labels, classes, initial, config.tokens)
    trainer = PrivateTrainer(backbone, classes, initial, config, entropy)
    for _ in range(config.steps):
        lot = draw_lot(len(images), config.sample_rate, entropy)
        trainer.step(images[lot], labels[lot])
        if progress is not None:
            progress(1)
    return trainer.insert.prompts.detach().cpu().numpy()


class PrivateTrainer:
    """Prompts, temporary head and optimiser of one private tuning.

    Per-sample gradients are taken at `insert` and `head` only. The backbone is called between the two and has no hook,
    so that it costs what it costs in plain tuning.
    """

    def __init__(
        self, backbone: Backbone, classes: int, initial: NDArray[np.float32], config: DpSgdConfig, entropy: Entropy
    ) -> None:
        like = next(backbone.parameters())
        self._backbone = backbone
        self._start = torch.from_numpy(initial).to(like)
        self._proximal = config.proximal
        self.insert = PromptInsert(self._start)
        self.head = zero_head(backbone.feature_dim, classes, like)
        self.parameters = [*self.insert.parameters(), *self.head.parameters()]
        # The hooks are told how we reduce the loss of a chunk, the optimiser whether to divide by the lot.
        GradSampleHooks(nn.ModuleList([self.insert, self.head]), loss_reduction="sum")
        self._optimiser = _EntropicOptimiser(
            torch.optim.Adam(self.parameters, lr=config.learning_rate),
            noise_multiplier=config.noise_multiplier,
            max_grad_norm=config.clip,
            expected_batch_size=config.lot,
            loss_reduction="mean",
        )
        self._optimiser.entropy = entropy
        # Opacus calls this once the gradient is clipped, noisy and divided, just before Adam sees it.
        self._optimiser.attach_step_hook(self._add_proximal_gradient)

    def step(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        """One step of DP-SGD on this lot: uint8 (any number, s, s, channels) and int64, as many; none is a lot too."""
        for first in range(0, max(len(images), 1), _CHUNK):
            after = first + _CHUNK
            self._optimiser.zero_grad()
            self.sample_gradients(images[first:after], labels[first:after])
            if after < len(images):
                self._optimiser.signal_skip_step()  # clip and add up, no more
            self._optimiser.step()

    def sample_gradients(self, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        """Leave each image's gradient of its own cross-entropy at every parameter: `grad_sample`, (n, *shape)."""
        if len(images) == 0:  # not every backbone takes an empty batch
            for parameter in self.parameters:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]
            return
        with torch.no_grad():
            tokens = self._backbone.embed(self._backbone.normalise(images))
        # A module hook warns where no input takes a gradient, though it works.
        logits = self.head(encode_for_tuning(self._backbone, self.insert(tokens.requires_grad_())))
        loss = F.cross_entropy(logits, torch.from_numpy(labels).to(logits.device), reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self.parameters:
            # Clipping does not bound NaN, and one image could show itself that way.
            parameter.grad_sample = torch.nan_to_num(parameter.grad_sample)  # type: ignore[attr-defined]

    def _add_proximal_gradient(self, _: Any) -> None:
        prompts = self.insert.prompts
        noisy: Any = prompts.grad
        prompts.grad = noisy + self._proximal * (prompts.detach() - self._start)


class _EntropicOptimiser(DPOptimizer):  # type: ignore[misc]  # Opacus is untyped
    """Opacus' optimiser with its Gaussian noise made from `entropy`.

    A seeded torch generator will not do: on the CPU it uses 32 bits of its seed, which can be searched.
    """

    entropy: Entropy

    def add_noise(self) -> None:
        """Put the sum of the clipped gradients plus noise into `grad`; it is divided by the lot afterwards."""
        std = self.noise_multiplier * self.max_grad_norm
        for parameter in self.params:
            noise = std * standard_normal(parameter.shape, self.entropy)
            parameter.grad = parameter.summed_grad + torch.from_numpy(noise).to(parameter)


def draw_lot(count: int, sample_rate: float, entropy: Entropy) -> NDArray[np.int64]:
    """Which of `count` images are in a lot, ascending: each independently with probability `sample_rate` (- 2**-53).

    Never with more, which the accountant would not have counted.
    """
    words = np.frombuffer(entropy(8 * count), "<u8")
    return np.flatnonzero((words >> 11) < np.uint64(math.floor(sample_rate * 2**53)))


def standard_normal(shape: tuple[int, ...], entropy: Entropy) -> NDArray[np.float64]:
    """Independent standard normal variates, float64 of this shape, by inversion; the tails end at 8.2."""
    words = np.frombuffer(entropy(8 * int(np.prod(shape))), "<u8")
    # Midpoints of 2**52 equal cells: symmetric, and never 0 or 1.
    variates: NDArray[np.float64] = ndtri(((words >> 12) + 0.5) * 2.0**-52)
    return variates.reshape(shape)


def _prompt_grad_sample(module: PromptInsert, _: list[Tensor], backprops: Tensor) -> dict[nn.Parameter, Tensor]:
    """Every image gets its own copy of the prompts, so its gradient is what flows back to their places."""
    return {module.prompts: backprops[:, 1 : 1 + len(module.prompts)]}


register_grad_sampler(PromptInsert)(_prompt_grad_sample)
