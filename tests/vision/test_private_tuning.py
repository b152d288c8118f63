"""Private tuning is the mechanism its accountant assumes: Poisson lots, bounded influence, the stated noise."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from opacus.optimizers import DPOptimizer
from scipy.stats import kstest
from torch import Tensor

from fedopal_secure.core.errors import InputError
from fedopal_secure.encoding.prompts import initial_prompts
from fedopal_secure.vision import private_tuning, tuning
from fedopal_secure.vision.private_tuning import (
    DpSgdConfig,
    PrivateTrainer,
    draw_lot,
    standard_normal,
    tune_prompts_privately,
)
from fedopal_secure.vision.prompts import insert_prompts
from fedopal_secure.vision.timm_vit import TimmVit
from tests.vision.conftest import CLASSES

START = initial_prompts(bytes(32), 4, 32)
CONFIG = DpSgdConfig(tokens=4, steps=6, sample_rate=0.3, noise_multiplier=1.0, clip=0.5, lot=20, proximal=0.0)
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@pytest.fixture(autouse=True)
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared here to 1e-5 would differ by a hundredth in bfloat16, which some CPUs have."""
    monkeypatch.setattr(tuning, "tuning_dtype", lambda device: torch.float32)


def entropy(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def trainer(
    backbone: TimmVit, config: DpSgdConfig = CONFIG, seed: int = 0, kind: type[PrivateTrainer] = PrivateTrainer
) -> PrivateTrainer:
    """One whose head is not zero, so that the prompts have a gradient."""
    found = kind(backbone, CLASSES, START, config, entropy(seed))
    with torch.no_grad():
        found.head.weight.copy_(torch.linspace(-1, 1, found.head.weight.numel()).view_as(found.head.weight))
        found.head.bias.copy_(torch.tensor([0.3, -0.2, 0.1]))
    return found


def gradient(of: PrivateTrainer, backbone: TimmVit, image: Images, label: int) -> list[Tensor]:
    """By plain autograd, for one image, of copies that no hook watches."""
    copies = [parameter.detach().clone().requires_grad_() for parameter in of.parameters]
    prompts, weight, bias = copies
    tokens = insert_prompts(backbone.embed(backbone.normalise(image[None])), prompts)
    loss = F.cross_entropy(F.linear(backbone.encode(tokens), weight, bias), torch.tensor([label]))
    return list(torch.autograd.grad(loss, copies))


def clipped_sum(of: PrivateTrainer, backbone: TimmVit, images: Images, labels: Labels, clip: float) -> list[Tensor]:
    """The definition, one image at a time."""
    total = [torch.zeros_like(parameter) for parameter in of.parameters]
    for image, label in zip(images, labels, strict=True):
        one = gradient(of, backbone, image, int(label))
        factor = min(1.0, clip / norm(one))
        total = [t + factor * g for t, g in zip(total, one, strict=True)]
    return total


def norm(gradients: list[Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradients]).norm())


def step(of: PrivateTrainer, images: Images, labels: Labels) -> list[Tensor]:
    """Take a step and return the gradients that Adam was given."""
    of.step(images, labels)
    return [parameter.grad for parameter in of.parameters]


# ----------------------------------------------------------------------------------- per-sample gradients


def test_per_sample_gradients_are_those_of_single_images(backbone: TimmVit, images: Images, labels: Labels) -> None:
    tried = trainer(backbone)
    tried.sample_gradients(images[:7], labels[:7])
    for i in range(7):
        expected = gradient(tried, backbone, images[i], int(labels[i]))
        assert all(norm([g]) > 1e-3 for g in expected)  # zeros would agree with anything
        for parameter, g in zip(tried.parameters, expected, strict=True):
            torch.testing.assert_close(parameter.grad_sample[i], g, atol=1e-5, rtol=1e-5)


def test_the_backbone_has_no_per_sample_gradient_and_does_not_change(
    backbone: TimmVit, images: Images, labels: Labels
) -> None:
    weights = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    tune_prompts_privately(backbone, images, labels, CLASSES, START, CONFIG, entropy(0))
    for parameter in backbone.parameters():
        assert parameter.grad is None
        assert not hasattr(parameter, "grad_sample")
    assert not any(module._forward_hooks or module._backward_hooks for module in backbone.modules())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in backbone.state_dict().items())


# ----------------------------------------------------------------------------------- one step


@pytest.mark.parametrize("count", [1, 7, 50, 0])  # 50 do not go through the backbone at once
@pytest.mark.parametrize("clip", [0.5, 100.0])
def test_without_noise_a_step_is_the_clipped_sum_over_the_nominal_lot(
    backbone: TimmVit, images: Images, labels: Labels, count: int, clip: float
) -> None:
    tried = trainer(backbone, replace(CONFIG, noise_multiplier=0.0, clip=clip))
    expected = clipped_sum(tried, backbone, images[:count], labels[:count], clip)
    for found, total in zip(step(tried, images[:count], labels[:count]), expected, strict=True):
        torch.testing.assert_close(found, total / CONFIG.lot, atol=1e-6, rtol=1e-4)


def test_noise_is_added_to_the_sum_and_divided_with_it(backbone: TimmVit, images: Images, labels: Labels) -> None:
    config = replace(CONFIG, noise_multiplier=3.0)
    tried = trainer(backbone, config, seed=8)
    expected = clipped_sum(tried, backbone, images[:7], labels[:7], config.clip)
    stream = entropy(8)
    noisy = [total + 1.5 * torch.from_numpy(standard_normal(total.shape, stream)) for total in expected]
    for found, total in zip(step(tried, images[:7], labels[:7]), noisy, strict=True):
        torch.testing.assert_close(found.double(), total / CONFIG.lot, atol=1e-6, rtol=1e-4)


def test_a_second_step_does_not_see_the_first(backbone: TimmVit, images: Images, labels: Labels) -> None:
    tried = trainer(backbone, replace(CONFIG, noise_multiplier=0.0))
    tried.step(images[:40], labels[:40])
    expected = clipped_sum(tried, backbone, images[5:9], labels[5:9], CONFIG.clip)
    for found, total in zip(step(tried, images[5:9], labels[5:9]), expected, strict=True):
        torch.testing.assert_close(found, total / CONFIG.lot, atol=1e-6, rtol=1e-4)


def test_an_empty_lot_is_a_step_of_noise_with_the_stated_deviation(
    backbone: TimmVit, images: Images, labels: Labels
) -> None:
    config = replace(CONFIG, noise_multiplier=3.0, clip=0.5, lot=7)
    tried = trainer(backbone, config)
    before = [parameter.detach().clone() for parameter in tried.parameters]
    draws = []
    for _ in range(200):
        draws.append(torch.cat([g.flatten() for g in step(tried, images[:0], labels[:0])]))
    assert all(not torch.equal(b, p) for b, p in zip(before, tried.parameters, strict=True))
    noise = torch.stack(draws).double() * config.lot / (3.0 * 0.5)
    assert noise.shape == (200, 4 * 32 + 3 * 32 + 3)
    assert abs(noise.mean()) < 5 / noise.numel() ** 0.5
    assert abs(noise.std() - 1) < 5 / (2 * noise.numel()) ** 0.5
    # every parameter by itself, and none with another or with its own past
    assert (noise.std(dim=0) - 1).abs().max() < 5 / 400**0.5
    assert torch.corrcoef(noise.T).fill_diagonal_(0).abs().max() < 6 / 200**0.5
    assert abs((noise[1:] * noise[:-1]).mean()) < 5 / noise.numel() ** 0.5


# ----------------------------------------------------------------------------------- influence of one image


def influence(backbone: TimmVit, images: Images, labels: Labels, noise_multiplier: float = 0.0) -> float:
    """How far adding the last image moves the sum of the gradients, in an otherwise equal step."""
    config = replace(CONFIG, noise_multiplier=noise_multiplier)
    with_it, without = (
        step(trainer(backbone, config), images[:count], labels[:count]) for count in (len(images), len(images) - 1)
    )
    return CONFIG.lot * norm([a - b for a, b in zip(with_it, without, strict=True)])


def unclipped(optimiser: DPOptimizer) -> None:
    """What `clip_and_accumulate` does, but for the clipping."""
    for parameter in optimiser.params:
        total = parameter.grad_sample.sum(dim=0)
        parameter.summed_grad = total if parameter.summed_grad is None else parameter.summed_grad + total


@pytest.mark.parametrize("count", [1, 6, 33])
def test_one_image_moves_the_sum_by_the_clip_at_most(
    backbone: TimmVit, images: Images, labels: Labels, count: int
) -> None:
    for first in range(5):
        chosen = slice(first, first + count)
        assert influence(backbone, images[chosen], labels[chosen]) <= CONFIG.clip * (1 + 1e-4)


def test_without_clipping_one_image_moves_it_by_more(
    backbone: TimmVit, images: Images, labels: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", unclipped)
    assert influence(backbone, images[:5], labels[:5]) > 10 * CONFIG.clip


class BrokenOnWhite(TimmVit):
    """Features that are not numbers for an all-white image, as half precision makes them."""

    def embed(self, images: Tensor) -> Tensor:
        white = images.amin(dim=(1, 2, 3), keepdim=True)[..., 0] == 1.0
        return torch.where(white, torch.nan, super().embed(images))


def test_an_image_without_finite_gradient_moves_nothing(
    backbone: TimmVit, images: Images, labels: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone.__class__ = BrokenOnWhite
    images[5] = 255
    assert influence(backbone, images[:6], labels[:6]) == 0
    monkeypatch.setattr(torch, "nan_to_num", lambda tensor: tensor)
    assert np.isnan(influence(backbone, images[:6], labels[:6]))


# ----------------------------------------------------------------------------------- the proximal term


def test_the_proximal_gradient_is_added_after_clipping_and_noise(
    backbone: TimmVit, images: Images, labels: Labels
) -> None:
    far = 3 * torch.ones(4, 32)

    def given(kind: type[PrivateTrainer], proximal: float) -> list[Tensor]:
        tried = trainer(backbone, replace(CONFIG, proximal=proximal), seed=2, kind=kind)
        with torch.no_grad():
            tried.insert.prompts += far
        return step(tried, images[:7], labels[:7])

    class Clipping(PrivateTrainer):
        """The control: the pull is part of every image's gradient."""

        def sample_gradients(self, images: Images, labels: Labels) -> None:
            super().sample_gradients(images, labels)
            self.insert.prompts.grad_sample += 10.0 * far

    free, pulled, control = given(PrivateTrainer, 0.0), given(PrivateTrainer, 10.0), given(Clipping, 0.0)
    torch.testing.assert_close(pulled[0] - free[0], 10.0 * far, rtol=1e-4, atol=1e-4)
    assert torch.equal(pulled[1], free[1])
    assert norm([control[0] - free[0]]) < 0.01 * norm([10.0 * far])
    assert not torch.allclose(control[1], free[1], rtol=0.1)


def test_the_proximal_term_holds_the_prompts(backbone: TimmVit, images: Images, labels: Labels) -> None:
    def travelled(proximal: float) -> float:
        config = replace(CONFIG, proximal=proximal, steps=30)
        tuned = tune_prompts_privately(backbone, images, labels, CLASSES, START, config, entropy(0))
        return float(np.linalg.norm(tuned - START))

    assert travelled(100.0) < 0.5 * travelled(0.0)


# ----------------------------------------------------------------------------------- lots


def test_lots_hold_each_image_independently_at_the_sample_rate() -> None:
    stream = entropy(3)
    member = np.zeros((4000, 30))
    for row in member:
        lot = draw_lot(30, 0.15, stream)
        assert list(lot) == sorted(set(lot))
        row[lot] = 1
    trials = member.size
    assert abs(member.sum() - 0.15 * trials) < 5 * (trials * 0.15 * 0.85) ** 0.5
    per_image = member.sum(axis=0)
    assert np.abs(per_image - 600).max() < 5 * (4000 * 0.15 * 0.85) ** 0.5
    # A lot of a fixed size, or drawn without independence, would have another spread.
    assert abs(member.sum(axis=1).var() / (30 * 0.15 * 0.85) - 1) < 0.15
    assert np.abs(np.corrcoef(member.T) - np.eye(30)).max() < 6 / 4000**0.5


def test_lots_at_the_ends_of_the_range() -> None:
    assert list(draw_lot(5, 1.0, lambda count: b"\xff" * count)) == [0, 1, 2, 3, 4]
    assert list(draw_lot(5, 0.5, lambda count: bytes(count))) == [0, 1, 2, 3, 4]
    assert list(draw_lot(5, 0.999, lambda count: b"\xff" * count)) == []


def test_every_step_draws_its_lot_anew_at_the_public_rate(
    backbone: TimmVit, images: Images, labels: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    lots: list[bytes] = []
    sizes: list[int] = []

    def record(self: PrivateTrainer, chosen: Images, _: Labels) -> None:
        lots.append(chosen.tobytes())
        sizes.append(len(chosen))

    monkeypatch.setattr(PrivateTrainer, "step", record)
    for count in (60, 20):  # the rate does not follow the number of images
        lots.clear()
        sizes.clear()
        config = replace(CONFIG, steps=400, sample_rate=0.1)
        tune_prompts_privately(backbone, images[:count], labels[:count], CLASSES, START, config, entropy(0))
        assert len(set(lots)) > 100
        assert abs(np.sum(sizes) - 40 * count) < 5 * (400 * count * 0.09) ** 0.5
    assert 0 in sizes  # an empty lot is a step like any other


def test_steps_are_as_many_as_agreed_even_if_no_image_is_ever_drawn(
    backbone: TimmVit, images: Images, labels: Labels
) -> None:
    counted: list[int] = []
    config = replace(CONFIG, sample_rate=1e-12)
    tuned = tune_prompts_privately(backbone, images, labels, CLASSES, START, config, entropy(0), counted.append)
    assert counted == [1] * CONFIG.steps
    assert np.abs(tuned - START).min() > 0


# ----------------------------------------------------------------------------------- noise


def test_noise_is_normal() -> None:
    variates = standard_normal((50, 1000), entropy(1))
    assert variates.shape == (50, 1000)
    assert kstest(variates.ravel(), "norm").pvalue > 0.01


def test_noise_is_finite_and_symmetric_at_the_ends() -> None:
    lowest, highest = (float(standard_normal((), lambda count, b=byte: b * count)) for byte in (b"\0", b"\xff"))
    assert lowest == -highest
    assert 8.1 < highest < 8.3


def test_noise_uses_all_of_its_entropy(backbone: TimmVit, images: Images, labels: Labels) -> None:
    """A seeded generator would ask for a few bytes once: torch's uses 32 bits of them on a CPU."""
    read: list[int] = []

    def counting(count: int) -> bytes:
        read.append(count)
        return hashlib.shake_256(len(read).to_bytes(4, "big")).digest(count)

    tune_prompts_privately(backbone, images, labels, CLASSES, START, CONFIG, counting)
    assert sum(read) == CONFIG.steps * 8 * (60 + 4 * 32 + 3 * 32 + 3)
    narrow = [torch.randn(3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1 + 2**32)]
    assert torch.equal(*narrow)  # when this fails, the reason for our own noise is gone


# ----------------------------------------------------------------------------------- the whole


def test_equal_entropy_gives_equal_bits_and_the_global_generator_has_no_part(
    backbone: TimmVit, images: Images, labels: Labels
) -> None:
    def tuned(seed: int) -> NDArray[np.float32]:
        torch.rand(1)
        np.random.rand(1)  # noqa: NPY002  # the legacy global state must not matter
        before, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        found = tune_prompts_privately(backbone, images, labels, CLASSES, START, CONFIG, entropy(seed))
        assert torch.equal(torch.get_rng_state(), before)
        assert np.array_equal(np.random.get_state()[1], numpys)  # noqa: NPY002
        return found

    assert np.array_equal(tuned(3), tuned(3))
    assert not np.array_equal(tuned(3), tuned(4))


def test_tuning_with_little_noise_lowers_the_loss(
    backbone: TimmVit, images: Images, labels: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PrivateTrainer] = []

    def keep(*arguments: object) -> PrivateTrainer:
        made.append(PrivateTrainer(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(private_tuning, "PrivateTrainer", keep)
    start = START.copy()
    config = replace(CONFIG, steps=60, noise_multiplier=0.5, learning_rate=0.1)
    tuned = tune_prompts_privately(backbone, images, labels, CLASSES, start, config, entropy(0))
    assert tuned.shape == START.shape
    assert tuned.dtype == np.float32
    assert np.array_equal(start, START)
    with torch.no_grad():
        logits = made[0].head(backbone(backbone.normalise(images), torch.from_numpy(tuned)))
        loss = float(F.cross_entropy(logits, torch.from_numpy(labels)))
    assert loss < 0.7 * np.log(CLASSES)  # that of the head at the start, times 0.7


@pytest.mark.parametrize("count", [1, 33])
def test_clients_with_one_image_or_one_class_work(backbone: TimmVit, images: Images, count: int) -> None:
    tuned = tune_prompts_privately(backbone, images[:count], np.full(count, 2), CLASSES, START, CONFIG, entropy(0))
    assert np.isfinite(tuned).all()
    assert not np.array_equal(tuned, START)


def test_nothing_is_said_to_the_user(
    backbone: TimmVit, images: Images, labels: Labels, caplog: pytest.LogCaptureFixture
) -> None:
    filters = list(warnings.filters)
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG):
        warnings.simplefilter("error")
        tune_prompts_privately(backbone, images, labels, CLASSES, START, CONFIG, entropy(0))
    assert warnings.filters == filters
    assert not caplog.records


def test_importing_leaves_the_root_logger_alone() -> None:
    """In a process of its own, since here Opacus has been imported already."""
    script = "import logging, fedopal_secure.vision.private_tuning; print(logging.root.handlers, logging.root.level)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"[] {logging.WARNING}\n", "")


def test_no_images_are_tuned_on_as_noise(backbone: TimmVit, images: Images, labels: Labels) -> None:
    """A client that has none must not differ from one that has one."""
    tuned = tune_prompts_privately(backbone, images[:0], labels[:0], CLASSES, START, CONFIG, entropy(0))
    assert tuned.shape == START.shape
    assert not np.array_equal(tuned, START)


def test_what_cannot_be_tuned_is_refused(backbone: TimmVit, images: Images, labels: Labels) -> None:
    with pytest.raises(InputError, match=r"each in 0\.\.1"):
        tune_prompts_privately(backbone, images, labels, 2, START, CONFIG, entropy(0))
    with pytest.raises(InputError, match="prompts of shape"):
        tune_prompts_privately(backbone, images, labels, CLASSES, START[:3], CONFIG, entropy(0))


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": 0}, {"steps": 0}, {"lot": 0}, {"sample_rate": 0.0}, {"sample_rate": 1.1}, {"sample_rate": float("nan")},
     {"noise_multiplier": -1.0}, {"noise_multiplier": float("inf")}, {"clip": 0.0}, {"clip": float("nan")},
     {"clip": float("inf")}, {"proximal": -1.0}, {"learning_rate": 0.0}],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="private tuning with"):
        replace(CONFIG, **wrong)
