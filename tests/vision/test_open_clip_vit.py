"""open_clip's vision towers behind the adapter compute what open_clip computes, and what is not one is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from huggingface_hub import constants
from open_clip.transform import image_transform
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from fedopal_secure.core.errors import InputError
from fedopal_secure.vision.backbone import load_backbone
from fedopal_secure.vision.open_clip_vit import OpenClipVit

TEXT = {"context_length": 4, "vocab_size": 8, "width": 16, "heads": 2, "layers": 1}
TINY = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 48, "head_width": 16, "patch_size": 8},
    "text_cfg": TEXT,
}
SIZES = [(31, 57), (57, 31), (33, 33), (200, 45), (40, 333), (64, 64)]


def save_tiny(patch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make open_clip know "tiny" and "tiny-quickgelu", and save random weights of each as NAME.safetensors."""
    torch.manual_seed(3)
    for name, quick in (("tiny", False), ("tiny-quickgelu", True)):
        patch.setitem(open_clip.factory._MODEL_CONFIGS, name, {**TINY, "quick_gelu": quick})
        save_file(open_clip.create_model(name).state_dict(), folder / f"{name}.safetensors")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two tiny architectures that open_clip knows for the while, GELU and QuickGELU, and random weights of each."""
    with pytest.MonkeyPatch.context() as patch:
        yield save_tiny(patch, tmp_path_factory.mktemp("open_clip"))


def gelu(folder: Path, suffix: str = "", image_size: int | None = None) -> OpenClipVit:
    backbone = load_backbone(f"open_clip:tiny/{folder / 'tiny.safetensors'}{suffix}", image_size)
    assert isinstance(backbone, OpenClipVit)
    return backbone


def refusal(name: str) -> str:
    with pytest.raises(InputError) as raised:
        load_backbone(name)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# ------------------------------------------------------------------------------------------- the library's own forward


@pytest.mark.parametrize("name", ["ViT-B-32-quickgelu", "ViT-B-16", "ViT-L-14"])
def test_without_prompts_the_feature_is_open_clips_own(name: str, folder: Path) -> None:
    """The real width, heads, patches and activation; three blocks instead of 12 or 24, which are all alike."""
    config = open_clip.get_model_config(name)
    torch.manual_seed(2)
    vision = {**config["vision_cfg"], "layers": 3, "image_size": 112}
    changed = {"vision_cfg": vision, "text_cfg": TEXT, "embed_dim": config["embed_dim"]}
    model = open_clip.create_model(name, pretrained_text=False, **changed).eval()
    pixels = gelu(folder)._pixels
    images = torch.randn(2, 3, 112, 112)
    with torch.no_grad():
        for projected in (True, False):
            backbone = OpenClipVit(name, model.visual, pixels, "", projected)
            expected = model.encode_image(images)
            if not projected:
                model.visual.proj, proj = None, model.visual.proj
                expected = model.encode_image(images)
                model.visual.proj = proj
            for prompts in (None, torch.zeros(0, backbone.embed_dim)):
                found = backbone(images, prompts)
                assert found.shape == (2, backbone.feature_dim)
                assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["tiny", "tiny-quickgelu"])
@pytest.mark.parametrize("suffix", ["", ":unprojected"])
def test_a_loaded_checkpoint_is_open_clips_own_model(name: str, suffix: str, folder: Path) -> None:
    path = folder / f"{name}.safetensors"
    model = open_clip.create_model(name, pretrained=str(path)).eval()
    if suffix:
        model.visual.proj = None
    images = torch.randn(3, 3, 32, 32)
    backbone = load_backbone(f"open_clip:{name}/{path}{suffix}")
    assert backbone.id == f"open_clip:{name}/{name}.safetensors{suffix or ':projected'}"
    assert backbone.feature_dim == (48 if suffix else 24)
    with torch.no_grad():
        assert (backbone(images) - model.encode_image(images)).abs().max() < 1e-5


def test_another_image_size_is_open_clips_own_resampling(folder: Path) -> None:
    path = folder / "tiny.safetensors"
    model = open_clip.create_model("tiny", pretrained=str(path), force_image_size=48).eval()
    images = torch.randn(3, 3, 48, 48)
    backbone = gelu(folder, image_size=48)
    assert backbone.hash != gelu(folder).hash
    with torch.no_grad():
        assert (backbone(images) - model.encode_image(images)).abs().max() < 1e-5
    with pytest.raises(InputError, match="multiple of its patch, 8"):
        gelu(folder, image_size=50)


@pytest.mark.parametrize("changes", [{}, {"no_ln_pre": True}, {"ls_init_value": 0.5}, {"qk_norm": True}])
def test_variants_of_the_tower(changes: dict[str, Any], folder: Path) -> None:
    vision = {**TINY["vision_cfg"], **changes}
    model = open_clip.create_model("tiny", vision_cfg=vision).eval()
    backbone = OpenClipVit("tiny", model.visual, gelu(folder)._pixels, "")
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        assert (backbone(images) - model.encode_image(images)).abs().max() < 1e-5


# ------------------------------------------------------------------------------------------------------------- prompts


def test_prompts_are_what_the_first_block_reads_after_ln_pre_and_without_position(folder: Path) -> None:
    backbone = gelu(folder)
    with torch.no_grad():  # so that the norm before the blocks is no identity
        backbone.tower.ln_pre.weight += 1.0
    prompts, images = torch.randn(3, 48), torch.randn(2, 3, 32, 32)
    read: list[torch.Tensor] = []
    hook = backbone.tower.transformer.resblocks[0].register_forward_hook(lambda _, given, __: read.append(given[0]))
    with torch.no_grad():
        backbone(images, prompts)
        backbone(images)
    hook.remove()
    with_prompts, without = read
    assert with_prompts.shape == (2, 1 + 3 + 16, 48)
    assert torch.equal(with_prompts[:, 1:4], prompts.expand(2, 3, 48))
    assert torch.equal(with_prompts[:, :1], without[:, :1])
    assert torch.equal(with_prompts[:, 4:], without[:, 1:])


def test_the_order_of_prompts_does_not_matter_and_that_of_patches_does(folder: Path) -> None:
    backbone = gelu(folder)
    prompts, images = torch.randn(3, 48), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        usual = backbone(images, prompts)
        assert torch.allclose(backbone(images, prompts.flip(0)), usual, atol=1e-5)
        assert not torch.allclose(backbone(images.flip(3), prompts), usual, atol=1e-3)
        assert not torch.allclose(backbone(images), usual, atol=1e-3)


def test_only_prompts_and_head_take_a_gradient(folder: Path) -> None:
    backbone = gelu(folder)
    prompts, head = nn.Parameter(torch.randn(3, 48)), nn.Linear(24, 2)
    head(backbone.train()(torch.randn(2, 3, 32, 32), prompts)).sum().backward()
    assert prompts.grad is not None
    assert prompts.grad.abs().min() > 0
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in backbone.parameters())


# ------------------------------------------------------------------------------------------------------- preprocessing


@pytest.mark.parametrize("resize_mode", ["shortest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", SIZES)
def test_preprocessing_is_open_clips_own(
    resize_mode: str, interpolation: str, size: tuple[int, int], folder: Path, tmp_path: Path
) -> None:
    """Said by a sidecar, as open_clip saves it, and equal to the last byte before normalisation."""
    affine = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    said = {"size": 32, "interpolation": interpolation, "resize_mode": resize_mode, **affine}
    (tmp_path / "w.safetensors").write_bytes((folder / "tiny.safetensors").read_bytes())
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY, "preprocess_cfg": said}))
    backbone = load_backbone(f"open_clip:tiny/{tmp_path / 'w.safetensors'}")
    image = np.random.default_rng(sum(size)).integers(0, 256, (*size, 3), dtype=np.uint8)
    own = image_transform(32, is_train=False, resize_mode=resize_mode, interpolation=interpolation, **affine)
    bytes_ = backbone.preprocess(image)
    resized = Image.fromarray(image)
    for step in own.transforms[:-2]:  # all but ToTensor and Normalize
        resized = step(resized)
    assert np.array_equal(bytes_, np.array(resized))
    assert (backbone.normalise(bytes_[None])[0] - own(Image.fromarray(image))).abs().max() < 1e-6


def test_a_checkpoint_alone_is_prepared_as_openais_weights(folder: Path) -> None:
    backbone = gelu(folder)
    assert backbone.mean == open_clip.OPENAI_DATASET_MEAN
    assert backbone.std == open_clip.OPENAI_DATASET_STD
    assert "shorter side to 32, longer down by Pillow bicubic" in backbone.preprocessing


# ------------------------------------------------------------------------------------------------- what the hash covers


def test_hash_sees_activation_projection_and_size_and_no_folder(folder: Path, tmp_path: Path) -> None:
    same = tmp_path / "tiny.safetensors"
    same.write_bytes((folder / "tiny.safetensors").read_bytes())
    usual = gelu(folder)
    assert load_backbone(f"open_clip:tiny/{same}").hash == usual.hash
    assert load_backbone(f"open_clip:tiny/{same}:projected").hash == usual.hash
    others = [
        load_backbone(f"open_clip:tiny-quickgelu/{same}").hash,
        gelu(folder, ":unprojected").hash,
        gelu(folder, image_size=48).hash,
    ]
    assert len({usual.hash, *others}) == 4


def test_a_tower_saved_alone_and_a_torch_file_are_the_same_weights(folder: Path, tmp_path: Path) -> None:
    model = open_clip.create_model("tiny", pretrained=str(folder / "tiny.safetensors"))
    save_file(model.visual.state_dict(), tmp_path / "tower.safetensors")
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "trained.pt")
    usual = gelu(folder).hash
    assert load_backbone(f"open_clip:tiny/{tmp_path / 'tower.safetensors'}").hash == usual
    assert load_backbone(f"open_clip:tiny/{tmp_path / 'trained.pt'}").hash == usual


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("open_clip:", "open_clip:ARCH/TAG"),
        ("open_clip:ViT-B-16", "open_clip:ARCH/FILE"),
        ("open_clip:ViT-B-61/openai", "did you mean ViT-B-16"),
        ("open_clip:ViT-B-16/openai", "use open_clip:ViT-B-16-quickgelu/openai"),
        ("open_clip:ViT-L-14/metaclip_400m:unprojected", "use open_clip:ViT-L-14-quickgelu/metaclip_400m"),
        ("open_clip:ViT-B-16-quickgelu/laion2b_s34b_b88k", "use open_clip:ViT-B-16/laion2b_s34b_b88k"),
        ("open_clip:ViT-B-16/absent.safetensors", "give an existing file"),
        ("open_clip:ViT-B-16-SigLIP/webli", "vision tower is timm's"),
        ("open_clip:ViT-L-14-CLIPA/datacomp1b", "pools by avg"),
        ("open_clip:coca_ViT-B-32/laion2b_s13b_b90k", "pools by attention"),
        ("open_clip:RN50/openai", "is a ResNet"),
    ],
)
def test_what_cannot_be_run_rightly_is_one_line_that_says_what_to_do(name: str, says: str) -> None:
    assert says in refusal(name)


def test_a_sidecar_of_the_other_activation_or_model_is_refused(folder: Path, tmp_path: Path) -> None:
    name = f"open_clip:tiny/{tmp_path / 'w.safetensors'}"
    (tmp_path / "w.safetensors").write_bytes((folder / "tiny.safetensors").read_bytes())
    beside = tmp_path / "open_clip_config.json"
    beside.write_text(json.dumps({"model_cfg": {**TINY, "quick_gelu": True}}))
    assert "use open_clip:tiny-quickgelu/w.safetensors" in refusal(name)
    beside.write_text(json.dumps({"model_cfg": {**TINY, "embed_dim": 25}}))
    assert "describes another model than tiny" in refusal(name)
    beside.write_text(json.dumps({"model_cfg": TINY, "preprocess_cfg": {"resize_mode": "longest"}}))
    assert "resized by 'longest'" in refusal(name)
    beside.write_text("{")
    assert "mend or remove it" in refusal(name)


def test_a_checkpoint_of_another_shape_or_not_finite_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    assert "does not hold the weights of ViT-S-32" in refusal(f"open_clip:ViT-S-32/{folder / 'tiny.safetensors'}")
    model = open_clip.create_model("tiny")
    model.visual.proj.data[0, 0] = torch.nan
    save_file(model.visual.state_dict(), tmp_path / "broken.safetensors")
    assert "not a finite number" in refusal(f"open_clip:tiny/{tmp_path / 'broken.safetensors'}")


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("sprung"),))


def test_a_checkpoint_that_carries_code_is_refused_and_the_code_not_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"visual.proj": _Trap()}, tmp_path / "trap.pt")
    assert "trap.pt does not hold" in refusal(f"open_clip:tiny/{tmp_path / 'trap.pt'}")
    assert not (tmp_path / "sprung").exists()
    torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "archive.pt")
    assert "save its weights as safetensors" in refusal(f"open_clip:tiny/{tmp_path / 'archive.pt'}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("open_clip:ViT-S-32/fetched", "pass a local file: open_clip:ViT-S-32/FILE.safetensors"),
        ("timm:test_vit", "pass a local file: timm:test_vit@FILE.safetensors"),
    ],
)
def test_without_a_network_the_refusal_comes_at_once_and_leaves_no_setting_behind(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    tags = {"fetched": {"hf_hub": "nobody/nothing/"}}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "ViT-S-32", tags)
    start = time.monotonic()
    assert says in refusal(name)
    assert time.monotonic() - start < 10
    assert not constants.HF_HUB_OFFLINE
