"""The adapter computes what timm computes, stays frozen, and has a fingerprint that sees every change."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from numpy.typing import NDArray
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from fedopal_secure.core.errors import InputError
from fedopal_secure.vision.backbone import fingerprint, load_backbone
from fedopal_secure.vision.preprocessing import Preprocessing
from fedopal_secure.vision.prompts import PromptInsert
from fedopal_secure.vision.timm_vit import TimmVit
from tests.vision.conftest import tiny_vit

PIXELS = Preprocessing(16, (0.5,), (0.5,), "bilinear")
VARIANTS = {
    "plain": {},
    "registers": {"reg_tokens": 2, "no_embed_class": True},
    "pre-norm": {"pre_norm": True},
    "layer scale": {"init_values": 0.5},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_without_prompts_the_feature_is_timms_own_class_token(changes: dict[str, object]) -> None:
    vit = tiny_vit(**changes).eval()
    images = torch.randn(5, 1, 16, 16)
    expected = vit.forward_features(images)[:, 0]
    found = TimmVit("tiny", vit, PIXELS, "")(images)
    assert (found - expected).abs().max() < 1e-5


def test_prompts_sit_between_class_token_and_patches_without_position(backbone: TimmVit) -> None:
    prompts = torch.randn(3, 32)
    images = torch.randn(4, 1, 16, 16)
    tokens = backbone.embed(images)
    longer = PromptInsert(prompts)(tokens)
    assert longer.shape == (4, 1 + 3 + 4, 32)
    assert torch.equal(longer[:, 0], tokens[:, 0])
    assert torch.equal(longer[:, 1:4], prompts.expand(4, 3, 32))
    assert torch.equal(longer[:, 4:], tokens[:, 1:])
    assert torch.equal(backbone(images, prompts), backbone.encode(longer))


def test_patches_keep_the_positional_embedding_of_a_sequence_without_prompts(backbone: TimmVit) -> None:
    images = torch.randn(2, 1, 16, 16)
    placed = backbone.vit.patch_embed(images) + backbone.vit.pos_embed[:, 1:]
    assert torch.allclose(backbone.embed(images)[:, 1:], placed, atol=1e-6)


def test_weights_take_no_gradient_and_dropout_stays_asleep() -> None:
    backbone = TimmVit("tiny", tiny_vit(proj_drop_rate=0.5), PIXELS, "")
    backbone.train()
    images = torch.randn(2, 1, 16, 16)
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    assert torch.equal(backbone(images), backbone(images))
    assert not backbone(images).requires_grad


def test_fingerprint_is_the_hash_of_what_its_docstring_lists() -> None:
    state = {"b": torch.tensor([[1.0, 2.0]]), "a": torch.tensor([3], dtype=torch.int64)}
    listed = b'{"heads": 2}' + b"\0a <i8 (1,)\0" + struct.pack("<q", 3) + b"\0b <f4 (1, 2)\0" + struct.pack("<2f", 1, 2)
    assert fingerprint(state, {"heads": 2}) == hashlib.sha256(listed).hexdigest()


def test_fingerprint_does_not_depend_on_order_and_sees_every_change() -> None:
    state = {"a": torch.ones(2, 3), "b": torch.zeros(4)}
    same = fingerprint(dict(reversed(state.items())), {"y": 2, "x": 1})
    assert fingerprint(state, {"x": 1, "y": 2}) == same
    others = [
        fingerprint(state, {"x": 1, "y": 3}),
        fingerprint({**state, "b": torch.tensor([0.0, 0.0, 0.0, 1e-40])}, {"x": 1, "y": 2}),
        fingerprint({**state, "a": torch.ones(3, 2)}, {"x": 1, "y": 2}),
        fingerprint({"a": state["a"], "c": state["b"]}, {"x": 1, "y": 2}),
    ]
    assert len({same, *others}) == 5


def test_hash_sees_heads_and_preprocessing_which_no_weight_shows(vit: VisionTransformer) -> None:
    original = TimmVit("tiny", vit, PIXELS, "").hash
    assert TimmVit("renamed", vit, PIXELS, "").hash == original
    assert TimmVit("tiny", vit, Preprocessing(16, (0.4,), (0.5,), "bilinear"), "").hash != original
    assert TimmVit("tiny", vit, PIXELS, "1").hash != original
    assert TimmVit("tiny", tiny_vit(num_heads=4), PIXELS, "").hash != original


def test_embedded_backbone_loads_and_keeps_to_its_budget() -> None:
    backbone = load_backbone("embedded", None)
    again = load_backbone("embedded", 32)
    assert (backbone.id, backbone.image_size, backbone.channels) == ("embedded", 32, 1)
    assert backbone.hash == again.hash
    assert 1e6 < sum(parameter.numel() for parameter in backbone.parameters()) < 2e6
    picture = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)
    feature = backbone(backbone.normalise(backbone.preprocess(picture)[None]))
    assert feature.shape == (1, backbone.feature_dim)
    assert torch.isfinite(feature).all()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("resnet", "there are: embedded, timm:"),
        ("timm:", "there are: embedded, timm:"),
        ("timm:vit_tiny_patch16_225", "did you mean vit_tiny_patch16_224"),
        ("timm:resnet18@absent.safetensors", "not a plain vision transformer"),
        ("timm:deit_tiny_distilled_patch16_224@absent.safetensors", "not a plain vision transformer"),
        ("timm:vit_tiny_patch16_224@absent.safetensors", "FEDOPAL_WEIGHTS"),
    ],
)
def test_a_backbone_that_cannot_be_had_is_one_line_that_says_what_to_do(name: str, says: str) -> None:
    with pytest.raises(InputError) as raised:
        load_backbone(name, None)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_embedded_backbone_refuses_another_size() -> None:
    with pytest.raises(InputError, match="32 x 32"):
        load_backbone("embedded", 64)


def test_failed_download_says_how_to_pass_a_local_file(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def offline(*names: str, pretrained: bool = False, **settings: object) -> object:
        if pretrained:
            raise OSError("no route to host\nsecond line")
        return create(*names, **settings)

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="timm:vit_tiny_patch16_224@FILE") as raised:
        load_backbone("timm:vit_tiny_patch16_224", None)
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A half-precision checkpoint of timm's smallest ViT, with random weights and its classifier."""
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=7)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, path)
    return path


def test_checkpoint_is_found_by_path_and_by_name_and_its_folder_is_forgotten(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDOPAL_WEIGHTS", str(checkpoint.parent))
    by_path = load_backbone(f"timm:test_vit@{checkpoint}", None)
    by_name = load_backbone("timm:test_vit@small.safetensors", None)
    assert by_path.id == by_name.id == "timm:test_vit@small.safetensors"
    assert by_path.hash == by_name.hash


def test_another_image_size_resamples_positions_and_changes_the_hash(checkpoint: Path) -> None:
    usual = load_backbone(f"timm:test_vit@{checkpoint}", None)
    smaller = load_backbone(f"timm:test_vit@{checkpoint}", 96)
    assert smaller.image_size == 96
    assert smaller.hash != usual.hash
    assert smaller.embed(torch.zeros(1, 3, 96, 96)).shape == (1, 1 + (96 // 16) ** 2, smaller.embed_dim)
    with pytest.raises(InputError, match="multiple of its patch, 16"):
        load_backbone(f"timm:test_vit@{checkpoint}", 100)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x08" + b"\0" * 7 + b"{}      "])
@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_a_broken_checkpoint_is_refused_by_name(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"broken.{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match="broken"):
        load_backbone(f"timm:test_vit@{path}", None)


def test_a_checkpoint_with_infinite_weights_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=0)
    state = model.state_dict()
    state["norm.bias"] = state["norm.bias"] + torch.inf
    save_file(state, tmp_path / "infinite.safetensors")
    with pytest.raises(InputError, match="not a finite number"):
        load_backbone(f"timm:test_vit@{tmp_path / 'infinite.safetensors'}", None)


def test_the_pretrained_vit_s14_loads_at_112_pixels() -> None:
    folder = os.environ.get("FEDOPAL_WEIGHTS")
    name = "vits14_imgfocus.fp16.safetensors"
    if not folder or not (Path(folder) / name).is_file():
        pytest.skip(f"needs {name} in $FEDOPAL_WEIGHTS")
    backbone = load_backbone(f"timm:vit_small_patch14_dinov2@{name}", 112)
    assert (backbone.image_size, backbone.channels, backbone.embed_dim) == (112, 3, 384)
    picture = np.zeros((120, 200), np.uint8)
    picture[40:80, 60:140] = 255
    assert backbone(backbone.normalise(backbone.preprocess(picture)[None])).isfinite().all()


# --------------------------------------------------------------------------------------- preprocessing


def test_preprocessing_keeps_the_centre_of_the_longer_side() -> None:
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 10:20] = 200
    assert np.array_equal(Preprocessing(10, (0.5,), (0.5,), "bicubic").to_bytes(wide), np.full((10, 10, 1), 200))


@pytest.mark.parametrize("shape", [(1, 1), (7, 300), (300, 7), (16, 16), (31, 33, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_preprocessing_takes_any_shape(shape: tuple[int, ...], channels: int) -> None:
    pixels = Preprocessing(16, (0.5,) * channels, (0.2,) * channels, "bilinear")
    found = pixels.to_bytes(np.full(shape, 51, np.uint8))
    assert np.array_equal(found, np.full((16, 16, channels), 51))
    assert torch.allclose(pixels.to_tensor(found[None]), torch.full((1, channels, 16, 16), -1.5), atol=1e-6)


def test_grey_is_the_weighted_sum_of_colours() -> None:
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 100
    assert Preprocessing(4, (0.5,), (0.5,), "bilinear").to_bytes(red)[0, 0, 0] == 30  # 0.299 * 100, rounded


@pytest.mark.parametrize(
    "image", [np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4)), np.zeros((0, 4), np.uint8), np.zeros(4, np.uint8)]
)
def test_preprocessing_refuses_what_is_no_image(image: NDArray[np.uint8]) -> None:
    with pytest.raises(InputError, match=r"\(h, w\)"):
        PIXELS.to_bytes(image)


def test_a_batch_that_was_not_preprocessed_is_refused() -> None:
    with pytest.raises(InputError, match="preprocess to uint8"):
        PIXELS.to_tensor(np.zeros((2, 28, 28, 1), np.uint8))
