"""A whole simulated round on a few images with each kind of backbone, from a file of random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from fedopal_secure.federation.config import PromptSettings, SimulationConfig, TuningSettings
from fedopal_secure.model import Model
from fedopal_secure.runtimes.simulation import simulate
from tests.vision.test_open_clip_vit import save_tiny

# What is asked for after the library's name, and the side of the images.
TIMM = {
    "vit_small_patch14_dinov2": 28,
    "deit_tiny_patch16_224": 32,
    "vit_tiny_patch16_224": 32,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of odd-sized pictures, dark and bright."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(6)
    for name, least in (("bright", 130), ("dark", 0)):
        (root / name).mkdir()
        for i in range(15):
            Image.fromarray(rng.integers(least, least + 120, (20 + i, 31, 3), dtype=np.uint8)).save(
                root / name / f"{i}.png"
            )
    return root


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDOPAL_WEIGHTS", str(tmp_path))
    return tmp_path


def whole_round(folder: Path, backbone: str, image_size: int | None, out: Path, mode: str = "none") -> None:
    prompts = PromptSettings(mode=mode, tokens=2, tuning=TuningSettings(epochs=1))
    outcome = simulate(
        SimulationConfig(dataset=str(folder), backbone=backbone, image_size=image_size, clients=3, prompts=prompts),
        out=out,
    )
    assert outcome.result.exact.sum_equals_plain_sum
    assert outcome.result.accuracy > 0.8  # brightness shows through any weights
    # The released file says which backbone to load, and it is the same one again.
    released = Model.load(out / "model.safetensors")
    assert released.backbone.startswith(backbone)
    assert released.load_backbone(image_size).hash == released.backbone_hash.hex()


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str, folder: Path, weights: Path) -> None:
    torch.manual_seed(7)
    vit = timm.create_model(name, num_classes=0)
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    save_file({key: tensor.half() for key, tensor in vit.state_dict().items()}, weights / "random.safetensors")
    whole_round(folder, f"timm:{name}@random.safetensors", TIMM[name], weights / "run")


@pytest.mark.parametrize("name", ["tiny", "tiny-quickgelu"])
def test_open_clip(name: str, folder: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(monkeypatch, weights)
    whole_round(folder, f"open_clip:{name}/{name}.safetensors", None, weights / "run", mode="local")


def test_embedded(folder: Path, tmp_path: Path) -> None:
    whole_round(folder, "embedded", None, tmp_path / "run")
