"""Prompts by DP-SGD, and a reader of them who knows the one image that a client may or may not have.

It tunes without noise itself, once with the image and once without, and looks how far along the difference of the two
what it is shown lies. In many runs of either kind its best guess must not be right more often than epsilon allows: then
the true rate of hits less that of false alarms is at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1). Seeds are fixed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedopal_secure.core.shamir import Entropy
from fedopal_secure.privacy.accounting import least_noise_multiplier
from fedopal_secure.vision.private_tuning import DpSgdConfig, PrivateTrainer, tune_prompts_privately
from tests.attacks.catalogue import Attack, Outcome, suite
from tests.attacks.private_rounds import BACKBONE, DELTA, EPSILON, SIDE, some_images
from tests.core.harness import TASK, entropy, seed

RUNS = 50  # with the image, and as many without
ALLOWED = (math.exp(EPSILON) - 1 + 2 * DELTA) / (math.exp(EPSILON) + 1)
CHANCE = 1.63 * math.sqrt(2 / RUNS)  # what a guess of no worth exceeds in one such test of a hundred (Smirnov)
THE_IMAGE = some_images("known to the reader", count=1)
START = np.zeros((1, SIDE**2), np.float32)

Shown = Callable[[int, DpSgdConfig, Entropy], NDArray[np.float32]]


def settings(steps: int, sample_rate: float) -> DpSgdConfig:
    """The least noise that keeps the agreed epsilon; a small learning rate, so that all gradients are nearly alike."""
    noise = least_noise_multiplier(EPSILON, DELTA, sample_rate, steps)
    return DpSgdConfig(
        tokens=1, steps=steps, sample_rate=sample_rate, noise_multiplier=noise, lot=1, proximal=0.0, learning_rate=0.01
    )


def prompts(images: int, config: DpSgdConfig, source: Entropy) -> NDArray[np.float32]:
    """What leaves the client, which has the image or none."""
    chosen = THE_IMAGE.images[:images], THE_IMAGE.labels[:images]
    return tune_prompts_privately(BACKBONE, *chosen, len(TASK.classes), START, config, source).ravel()


def steps(images: int, config: DpSgdConfig, source: Entropy) -> NDArray[np.float32]:
    """The sum of what all steps were given: the accountant reckons with somebody who sees each of them."""
    seen, step = list[NDArray[np.float32]](), PrivateTrainer.step

    def watched(self: PrivateTrainer, *lot: NDArray[np.generic]) -> None:
        step(self, *lot)  # type: ignore[arg-type]
        seen.append(np.concatenate([np.ravel(np.asarray(parameter.grad)) for parameter in self.parameters]))

    with mock.patch.object(PrivateTrainer, "step", watched):
        prompts(images, config, source)
    return np.asarray(np.sum(seen, axis=0))


def told_apart(shown: Shown, config: DpSgdConfig) -> Callable[[], Outcome]:
    def play() -> Outcome:
        clean = dataclasses.replace(config, noise_multiplier=0.0, sample_rate=1.0)
        without, with_it = (shown(images, clean, entropy(seed("reader"))) for images in (0, 1))
        direction = with_it - without
        found = [
            [shown(images, config, entropy(seed("tuning", images, run))) @ direction for run in range(RUNS)]
            for images in (0, 1)
        ]
        advantage = stats.ks_2samp(*found).statistic
        if advantage > ALLOWED + CHANCE:
            return Outcome(True, f"whether the client has the image, more surely than epsilon {EPSILON:g} allows")
        return Outcome(False, f"nobody refuses, and no guess is surer than epsilon {EPSILON:g} allows")

    return play


def no_noise(shape: tuple[int, ...], source: Entropy) -> NDArray[np.float64]:
    return np.zeros(shape)


def everything(count: int, sample_rate: float, source: Entropy) -> NDArray[np.int64]:
    return np.arange(count)


GOAL, NO_SURER = "whether a client has an image", "no guess is surer"

test_defended, test_control = suite(
    Attack(
        13,
        "an image told from the prompts that were tuned on it",
        GOAL,
        told_apart(prompts, settings(steps=4, sample_rate=1.0)),
        "vision.private_tuning.standard_normal",
        NO_SURER,
        no_noise,
    ),
    Attack(
        13,
        "an image told from all steps of a tuning that takes few images into each",
        GOAL,
        told_apart(steps, settings(steps=50, sample_rate=0.02)),
        "vision.private_tuning.draw_lot",
        NO_SURER,
        everything,
    ),
)
