"""Tuning moves prompts and nothing else, lowers the loss, is held by its proximal term, and repeats by seed."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.encoding.prompts import initial_prompts
from fedopal_secure.vision.timm_vit import TimmVit
from fedopal_secure.vision.tuning import TuningConfig, tune_prompts
from tests.vision.conftest import CLASSES

START = initial_prompts(bytes(32), 4, 32)
CONFIG = TuningConfig(tokens=4, epochs=8, batch_size=16)


def probe_loss(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64], prompts: NDArray[np.float32]
) -> float:
    """Cross-entropy of the best linear head on the features, found from zero by a fixed number of full-batch steps."""
    features = backbone(backbone.normalise(images), torch.from_numpy(prompts))
    head = torch.nn.Linear(features.shape[1], CLASSES)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimiser = torch.optim.SGD(head.parameters(), lr=0.05)
    for _ in range(30):
        loss = F.cross_entropy(head(features), torch.from_numpy(labels))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()


def test_tuning_makes_features_easier_to_tell_apart(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> None:
    tuned = tune_prompts(backbone, images, labels, CLASSES, START, CONFIG, seed=0)
    assert tuned.shape == START.shape
    assert tuned.dtype == np.float32
    before = probe_loss(backbone, images, labels, START)
    assert probe_loss(backbone, images, labels, tuned) < 0.9 * before


def test_only_prompts_move(backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    weights = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    start = START.copy()
    tuned = tune_prompts(backbone, images, labels, CLASSES, start, CONFIG, seed=0)
    assert np.array_equal(start, START)
    assert not np.array_equal(tuned, START)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in backbone.state_dict().items())
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> None:
    def tuned(seed: int) -> NDArray[np.float32]:
        torch.rand(1)  # the global generator moves on between the runs, and must not matter
        return tune_prompts(backbone, images, labels, CLASSES, START, CONFIG, seed)

    assert np.array_equal(tuned(3), tuned(3))
    assert not np.array_equal(tuned(3), tuned(4))


def test_the_proximal_term_pulls_to_the_start(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> None:
    def travelled(proximal: float) -> float:
        config = replace(CONFIG, proximal=proximal, learning_rate=1e-3, epochs=20)
        tuned = tune_prompts(backbone, images, labels, CLASSES, START, config, seed=0)
        return float(np.linalg.norm(tuned - START))

    free, held, pinned = travelled(0.0), travelled(1.0), travelled(1e6)
    assert free > held > pinned
    assert pinned < 0.1 * free


@pytest.mark.parametrize("count", [1, 2, 33])
def test_clients_with_one_image_or_one_class_work(backbone: TimmVit, images: NDArray[np.uint8], count: int) -> None:
    tuned = tune_prompts(backbone, images[:count], np.full(count, 2), CLASSES, START, CONFIG, seed=0)
    assert np.isfinite(tuned).all()


def test_progress_counts_every_image_of_every_epoch(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> None:
    counted: list[int] = []
    tune_prompts(backbone, images, labels, CLASSES, START, replace(CONFIG, epochs=2), 0, counted.append)
    assert counted == [16, 16, 16, 12] * 2


def test_what_cannot_be_tuned_is_refused(
    backbone: TimmVit, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> None:
    with pytest.raises(InputError, match="at least one image"):
        tune_prompts(backbone, images[:0], labels[:0], CLASSES, START, CONFIG, seed=0)
    with pytest.raises(InputError, match=r"each in 0\.\.1"):
        tune_prompts(backbone, images, labels, 2, START, CONFIG, seed=0)
    with pytest.raises(InputError, match="60 images need as many labels"):
        tune_prompts(backbone, images, labels[:5], CLASSES, START, CONFIG, seed=0)
    with pytest.raises(InputError, match="prompts of shape"):
        tune_prompts(backbone, images, labels, CLASSES, START[:3], CONFIG, seed=0)


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": 0}, {"epochs": -1}, {"batch_size": 0}, {"proximal": -1.0}, {"proximal": float("nan")},
     {"learning_rate": 0.0}, {"learning_rate": float("inf")}],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="tuning with"):
        TuningConfig(**wrong)


# ----------------------------------------------------------------------------------- the starting point


def test_initial_prompts_follow_their_description() -> None:
    seed = bytes(range(32))
    found = initial_prompts(seed, 2, 3, std=0.5)
    stream = hashlib.shake_256(b"fedopal-secure/initial-prompts/v1" + seed).digest(24)
    words = [int.from_bytes(stream[4 * i : 4 * i + 4], "little") for i in range(6)]
    expected = [((word // 256) / 2**23 - 1) * 3**0.5 * 0.5 for word in words]
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-6)


def test_initial_prompts_have_their_spread_and_differ_by_seed() -> None:
    first, second = (initial_prompts(bytes([i]) * 32, 10, 768) for i in (0, 1))
    assert first.dtype == np.float32
    assert abs(first.mean()) < 0.001  # 4.4 standard errors
    assert abs(first.std() - 0.02) < 0.0005  # 4.9 standard errors
    assert not np.array_equal(first, second)


def test_initial_prompts_refuse_a_short_seed_and_an_empty_shape() -> None:
    with pytest.raises(MisuseError, match="give 32"):
        initial_prompts(b"short", 10, 8)
    with pytest.raises(MisuseError, match="at least 1"):
        initial_prompts(bytes(32), 0, 8)
