"""Joined tokens and random features: what they are made of, that they stay exact, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from fedopal_secure.core.errors import InputError, MisuseError, PolicyRefusal
from fedopal_secure.federation.config import PromptSettings, SimulationConfig, TuningSettings
from fedopal_secure.federation.vectors import feature_map_name
from fedopal_secure.model import Model
from fedopal_secure.runtimes.simulation import Simulation
from fedopal_secure.vision.backbone import Backbone, load_backbone
from fedopal_secure.vision.feature_maps import MAX_FEATURES, split_name
from fedopal_secure.vision.features import extract_features
from fedopal_secure.vision.timm_vit import TimmVit
from tests.vision.test_open_clip_vit import save_tiny

IMAGES = np.random.default_rng(7).integers(0, 256, (50, 32, 32, 1), dtype=np.uint8)


def unit(tokens: torch.Tensor) -> torch.Tensor:
    return tokens / tokens.norm(dim=-1, keepdim=True)


def tiny_clip(folder: Path, suffix: str) -> Backbone:
    return load_backbone(f"open_clip:tiny/{folder / 'tiny.safetensors'}{suffix}")


@torch.inference_mode()
def test_joined_tokens_are_cls_and_the_mean_patch_of_each_block() -> None:
    """Against timm's own intermediate layers, with prompts, which belong to no mean."""
    plain, joined = load_backbone("embedded"), load_backbone("embedded+joined:2")
    assert isinstance(plain, TimmVit)
    pixels, prompts = plain.normalise(IMAGES[:5]), torch.randn(3, 224, generator=torch.Generator().manual_seed(1))
    layers = plain.vit.forward_intermediates(
        pixels, indices=[1, 2], norm=True, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )
    expected = torch.cat(
        [block for patches, prefix in layers for block in (unit(prefix[:, 0]), unit(patches.mean(1)))], 1
    )
    assert joined.feature_dim == expected.shape[1] == 4 * 224
    torch.testing.assert_close(joined(pixels), expected)
    prompted = joined(pixels, prompts)
    torch.testing.assert_close(prompted[:, 448:672], unit(plain(pixels, prompts)))
    after = plain.vit.norm(
        plain.vit.blocks(torch.cat([(t := plain.embed(pixels))[:, :1], prompts.expand(5, -1, -1), t[:, 1:]], 1))
    )
    torch.testing.assert_close(prompted[:, 672:], unit(after[:, 4:].mean(1)))


@torch.inference_mode()
@pytest.mark.parametrize("projection", ["", ":unprojected"])
def test_the_last_layer_of_a_clip_tower_gives_its_own_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, projection: str
) -> None:
    """Through the norm and, where there is one, the projection."""
    folder = save_tiny(monkeypatch, tmp_path)
    plain, joined = tiny_clip(folder, projection), tiny_clip(folder, f"{projection}+joined:2")
    pixels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    assert (joined.depth, joined.patch_count, joined.feature_dim) == (2, 16, 4 * plain.feature_dim)
    d = plain.feature_dim
    torch.testing.assert_close(joined(pixels)[:, 2 * d : 3 * d], unit(plain(pixels)))
    means = plain.layers(plain.embed(pixels), 1)[0][:, 1:].mean(1)
    torch.testing.assert_close(joined(pixels)[:, 3 * d :], unit(means))


@torch.inference_mode()
def test_random_features_have_random_directions_and_are_the_same_for_everyone() -> None:
    """Mean 0, variance 1, no two alike; another count or backbone has others."""
    one, again = load_backbone("embedded+random:300"), load_backbone("embedded+random:300")
    matrix = one.directions
    assert isinstance(matrix, torch.Tensor)
    assert torch.equal(matrix, again.directions)  # type: ignore[arg-type]
    assert abs(matrix.mean()) < 0.02
    assert matrix.var() == pytest.approx(1, abs=0.02)
    assert not torch.allclose(matrix[:200], load_backbone("embedded+random:200").directions)  # type: ignore[arg-type]
    pixels = one.normalise(IMAGES[:5])
    expected = nn.functional.relu(unit(load_backbone("embedded")(pixels)) @ matrix.T)
    torch.testing.assert_close(one(pixels), expected)


@pytest.mark.parametrize("suffix", ["+joined:1", "+joined:3", "+random:64", "+joined:2+random:90"])
def test_a_feature_depends_on_its_image_alone(suffix: str) -> None:
    """Bit for bit: the sums over clients must be the sums over the pooled data."""
    backbone = load_backbone(f"embedded{suffix}")
    features = extract_features(backbone, IMAGES)
    assert features.shape == (50, backbone.feature_dim)
    assert np.array_equal(features[13:20], extract_features(backbone, IMAGES[13:20]))


def test_a_map_is_in_the_name_and_in_the_hash() -> None:
    """Whoever agrees to a backbone by either has agreed to its features."""
    names = ["embedded", "embedded+joined:1", "embedded+joined:2", "embedded+random:9", "embedded+joined:1+random:9"]
    loaded = [load_backbone(name) for name in names]
    assert [backbone.id for backbone in loaded] == names
    assert len({backbone.hash for backbone in loaded}) == len(names)
    assert not any(parameter.requires_grad for backbone in loaded for parameter in backbone.parameters())
    assert [feature_map_name(name, None) for name in names] == [
        "cls",
        "joined:1",
        "joined:2",
        "random:9",
        "joined:1+random:9",
    ]
    assert feature_map_name("timm:vit@a+joined.bin", None) == "cls"


def test_a_plus_in_the_name_of_a_checkpoint_is_no_map() -> None:
    """Such files exist."""
    assert split_name("timm:vit@in1k+in21k.bin+joined:2") == ("timm:vit@in1k+in21k.bin", ["joined:2"])


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("+joined:4", "has 3: ask for fewer"),
        ("+joined:0", "may end in"),
        ("+joined", "may end in"),
        ("+random:-1", "may end in"),
        ("+random:5+joined:2", "may end in"),
        ("+joined:1+joined:2", "may end in"),
        (f"+random:{MAX_FEATURES + 1}", "are the most"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(suffix: str, message: str) -> None:
    """In one line that says what to ask for."""
    with pytest.raises(InputError, match=message) as raised:
        load_backbone(f"embedded{suffix}")
    assert "\n" not in str(raised.value)


def test_an_adapter_without_layers_says_so() -> None:
    """What a new adapter gets for nothing."""
    with pytest.raises(MisuseError, match="Half does not give"):
        Backbone.layers(type("Half", (), {})(), torch.zeros(1), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("mode", ["none", "two-phase"])
def test_a_round_gives_the_centralised_head_bit_for_bit(alpha: float, mode: str, tmp_path: Path) -> None:
    """Whatever the label skew; and the released file asks for the same features again."""
    prompts = PromptSettings(mode=mode, tokens=2, tuning=TuningSettings(epochs=1))
    simulation = Simulation(
        SimulationConfig(backbone="embedded+joined:2", clients=3, alpha=alpha, train_limit=120, prompts=prompts)
    )
    assert simulation.task.feature_map == "joined:2"
    outcome = simulation.run()
    assert outcome.result.exact is not None
    assert outcome.result.exact.max_abs_difference == 0
    accuracy, identical = simulation.compare_with_centralised(outcome.model, outcome.pooled)
    assert identical
    assert accuracy == outcome.result.accuracy
    outcome.model.save(tmp_path / "model.safetensors")
    released = Model.load(tmp_path / "model.safetensors")
    assert released.load_backbone().id == "embedded+joined:2"
    with pytest.raises(InputError, match=r"made on backbone 'embedded\+joined:2'"):
        released.check_backbone(load_backbone("embedded"))


def test_a_client_refuses_a_task_that_names_other_features_than_its_own() -> None:
    """The name of the map is a promise of its own, beside the hash."""
    simulation = Simulation(SimulationConfig(backbone="embedded+joined:1", clients=3, train_limit=30))
    simulation.task = replace(simulation.task, feature_map="cls")
    with pytest.raises(PolicyRefusal, match="'feature_map'"):
        simulation.run()
