"""timm's models by name behind the adapter: same features, same preprocessing, prompts in place, the rest refused."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision import transforms

from fedopal_secure.core.errors import InputError
from fedopal_secure.vision.backbone import load_backbone
from fedopal_secure.vision.preprocessing import Preprocessing
from fedopal_secure.vision.timm_vit import TimmVit, _pixels

SIZES = [(31, 57), (57, 31), (33, 33), (200, 45), (40, 333), (64, 64)]
# At their own width and patch, on small images, and with a few of their blocks, which are all alike.
SHAPES = {
    "vit_small_patch14_dinov2": {"img_size": 56, "depth": 4},
    "vit_small_patch14_reg4_dinov2": {"img_size": 56, "depth": 2},
    "deit_tiny_patch16_224": {"img_size": 64, "depth": 4},
    "deit3_small_patch16_224": {"img_size": 64, "depth": 2},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 4},
    "vit_base_patch32_clip_quickgelu_224": {"img_size": 64, "depth": 2},
    "vit_base_patch16_clip_224": {"img_size": 64, "depth": 2},
}


def random_vit(name: str, seed: int = 4, **changes: object) -> VisionTransformer:
    """A model of timm with random weights; some of them timm starts at zero, where a test would see nothing."""
    torch.manual_seed(seed)
    vit = timm.create_model(name, num_classes=0, **changes).eval()
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return vit


def wrap(vit: VisionTransformer) -> TimmVit:
    return TimmVit("test", vit, _pixels(vit, vit.patch_embed.img_size[0]), "")


@pytest.mark.parametrize("name", SHAPES)
def test_without_prompts_the_feature_is_timms_own(name: str) -> None:
    vit = random_vit(name, **SHAPES[name])
    backbone = wrap(vit)
    images = torch.randn(3, 3, backbone.image_size, backbone.image_size)
    with torch.no_grad():
        expected = vit.forward_head(vit.forward_features(images), pre_logits=True)
        for prompts in (None, torch.zeros(0, backbone.embed_dim)):
            assert (backbone(images, prompts) - expected).abs().max() < 1e-5


def test_the_embedded_backbones_feature_is_timms_own() -> None:
    backbone = load_backbone("embedded")
    images = torch.randn(3, 1, 32, 32)
    with torch.no_grad():
        expected = backbone.vit.forward_head(backbone.vit.forward_features(images), pre_logits=True)
        for prompts in (None, torch.zeros(0, backbone.embed_dim)):
            assert (backbone(images, prompts) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["vit_small_patch14_reg4_dinov2", "vit_base_patch16_clip_224"])
def test_the_first_block_reads_class_token_then_prompts_then_the_rest(name: str) -> None:
    """Registers stay behind the prompts, and the norm that CLIP has before its blocks does not touch them."""
    vit = random_vit(name, img_size=56 if "14" in name else 64, depth=1)
    backbone, prompts = wrap(vit), torch.randn(3, vit.embed_dim)
    images = torch.randn(2, 3, backbone.image_size, backbone.image_size)
    read: list[torch.Tensor] = []
    hook = vit.blocks[0].register_forward_hook(lambda _, given, __: read.append(given[0]))
    with torch.no_grad():
        usual = backbone(images, prompts)
        vit.forward_features(images)
        assert torch.allclose(backbone(images, prompts.flip(0)), usual, atol=1e-5)  # a prompt has no place
        assert not torch.allclose(backbone(images.flip(3), prompts), usual, atol=1e-3)  # a patch has
    hook.remove()
    with_prompts, without = read[:2]
    assert torch.equal(with_prompts[:, 1:4], prompts.expand(2, 3, -1))
    assert torch.equal(torch.cat([with_prompts[:, :1], with_prompts[:, 4:]], dim=1), without)


def test_only_prompts_and_head_take_a_gradient() -> None:
    backbone = wrap(random_vit("vit_small_patch14_reg4_dinov2", img_size=56, depth=2))
    prompts, head = nn.Parameter(torch.randn(3, 384)), nn.Linear(384, 2)
    head(backbone.train()(torch.randn(2, 3, 56, 56), prompts)).sum().backward()
    assert prompts.grad is not None
    assert prompts.grad.abs().max() > 0
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in backbone.parameters())


# ------------------------------------------------------------------------------------------------------- preprocessing


@pytest.mark.parametrize(
    ("name", "crop"),
    [
        ("vit_tiny_patch16_224", "shorter side to 71"),  # 0.9 of it is kept
        ("vit_small_patch14_dinov2", "shorter side to 64"),
        ("vit_base_patch16_224_miil", "shorter side to 73"),  # 0.875, bilinear
        ("vit_base_patch16_clip_384", "both sides to 64"),
    ],
)
def test_preprocessing_is_timms_own(name: str, crop: str) -> None:
    """To the last byte before normalisation, for square, long and odd-sided images."""
    with torch.device("meta"):
        vit = timm.create_model(name, num_classes=0)
    pixels = _pixels(vit, 64)
    assert crop in str(pixels)
    own = create_transform(**resolve_data_config({"input_size": (3, 64, 64)}, model=vit), is_training=False)
    for size in SIZES:
        image = np.random.default_rng(sum(size)).integers(0, 256, (*size, 3), dtype=np.uint8)
        resized = Image.fromarray(image)
        for step in own.transforms[:-2]:  # all but ToTensor and Normalize
            resized = step(resized)
        found = pixels.to_bytes(image)
        assert np.array_equal(found, np.array(resized))
        assert (pixels.to_tensor(found[None])[0] - own(Image.fromarray(image))).abs().max() < 1e-6


@pytest.mark.parametrize("size", SIZES)
def test_the_embedded_backbones_preprocessing_is_torchvisions(size: tuple[int, int]) -> None:
    image = np.random.default_rng(sum(size)).integers(0, 256, size, dtype=np.uint8)
    resize = transforms.Resize(32, transforms.InterpolationMode.BILINEAR)
    expected = transforms.Compose([resize, transforms.CenterCrop(32)])(Image.fromarray(image))
    assert np.array_equal(load_backbone("embedded").preprocess(image)[..., 0], np.array(expected))


def test_what_is_cut_away_is_said_and_hashed() -> None:
    vit = random_vit("vit_tiny_patch16_224", img_size=64, depth=1)
    whole, cut, squashed = (
        TimmVit("test", vit, Preprocessing(64, (0.5,) * 3, (0.5,) * 3, "bicubic", crop_pct, squash), "")
        for crop_pct, squash in ((1.0, False), (0.9, False), (1.0, True))
    )
    assert len({whole.preprocessing, cut.preprocessing, squashed.preprocessing}) == 3
    assert len({whole.hash, cut.hash, squashed.hash}) == 3


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("deit_tiny_distilled_patch16_224", "it is a VisionTransformerDistilled"),
        ("vit_base_patch16_siglip_224", "it pools by 'map'"),
        ("vit_medium_patch16_gap_240", "it pools by 'avg'"),
        ("vit_tiny_r_s16_p8_224", "not a plain vision transformer"),
        ("vit_small_patch16_18x2_224", "its blocks are of another kind"),
        ("swin_tiny_patch4_window7_224", "not a plain vision transformer"),
        ("vit_base_patch32_clip_224.openai", "use timm:vit_base_patch32_clip_quickgelu_224.openai"),
        ("deit_tiny_patch16_225", "did you mean deit_tiny_patch16_224"),
    ],
)
@pytest.mark.parametrize("weights", ["", "@absent.safetensors"])
def test_what_cannot_be_run_rightly_is_refused_before_any_download(name: str, says: str, weights: str) -> None:
    with pytest.raises(InputError) as raised:
        load_backbone(f"timm:{name}{weights}")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_weights_and_variant_that_share_an_activation_pass() -> None:
    with pytest.raises(InputError, match=r"no checkpoint absent\.safetensors"):
        load_backbone("timm:vit_base_patch32_clip_quickgelu_224.openai@absent.safetensors")
