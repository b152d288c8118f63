"""The cache gives what `extract_features` gives, bit for bit, and takes the feature of an image once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedopal_secure.vision import feature_cache
from fedopal_secure.vision.backbone import Backbone, load_backbone
from fedopal_secure.vision.feature_cache import FeatureCache
from fedopal_secure.vision.features import extract_features
from fedopal_secure.vision.timm_vit import TimmVit


def some_prompts(backbone: Backbone, seed: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.5, (10, backbone.embed_dim)).astype(np.float32)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images the backbone was shown in each call."""
    counts: list[int] = []

    def counting(
        backbone: Backbone,
        images: NDArray[np.uint8],
        prompts: NDArray[np.float32] | None = None,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        counts.append(len(images))
        return extract_features(backbone, images, prompts, progress=progress)

    monkeypatch.setattr(feature_cache, "extract_features", counting)
    return counts


@pytest.mark.parametrize("with_prompts", [False, True])
def test_cached_features_are_those_of_extract_features_bit_for_bit(with_prompts: bool, tmp_path: Path) -> None:
    backbone = load_backbone("embedded", None)
    size = backbone.image_size
    images = np.random.default_rng(2).integers(0, 256, (100, size, size, backbone.channels), dtype=np.uint8)
    prompts = some_prompts(backbone) if with_prompts else None
    expected = extract_features(backbone, images, prompts)
    first = FeatureCache(tmp_path)
    for part in np.split(np.random.default_rng(4).permutation(100), [1, 30, 63]):  # as clients of any size
        assert np.array_equal(first(backbone, images[part], prompts), expected[part])
    for cache in (first, FeatureCache(tmp_path)):  # from memory, and from the file
        found = cache(backbone, images, prompts)
        assert found.dtype == np.float32
        assert np.array_equal(found, expected)


def test_an_image_is_shown_to_the_backbone_once(
    backbone: TimmVit, images: NDArray[np.uint8], tmp_path: Path, taken: list[int]
) -> None:
    cache = FeatureCache(tmp_path)
    cache(backbone, images[:20])
    cache(backbone, images[[5, 30, 30, 7]])
    FeatureCache(tmp_path)(backbone, images[:20])
    assert taken == [20, 1]


def test_other_prompts_and_another_backbone_have_features_of_their_own(
    backbone: TimmVit, images: NDArray[np.uint8], tmp_path: Path, taken: list[int]
) -> None:
    cache = FeatureCache(tmp_path)
    plain, first, second = (
        cache(backbone, images, prompts) for prompts in (None, some_prompts(backbone), some_prompts(backbone, 4))
    )
    assert not np.array_equal(plain, first)
    assert not np.array_equal(first, second)
    backbone.hash = "1" * 64
    cache(backbone, images)
    assert taken == [60] * 4


@pytest.mark.parametrize("damage", ["nothing in it", "cut short", "a changed byte", "another shape"])
def test_a_damaged_file_is_made_again(
    damage: str, backbone: TimmVit, images: NDArray[np.uint8], tmp_path: Path, taken: list[int]
) -> None:
    expected = FeatureCache(tmp_path)(backbone, images)
    [file] = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "nothing in it":
        file.write_bytes(b"")
    elif damage == "cut short":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "a changed byte":
        content[content.index(expected[7].tobytes())] ^= 1
        file.write_bytes(content)
    else:
        np.savez(file, keys=np.zeros((60, 32), np.uint8), features=expected[:, :5])
    assert np.array_equal(FeatureCache(tmp_path)(backbone, images), expected)
    assert taken == [60, 60]


def test_a_cache_that_was_stopped_keeps_what_it_had(
    backbone: TimmVit, images: NDArray[np.uint8], tmp_path: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cache, "_KEPT_EVERY", 25)

    def stop(_: int) -> None:
        if len(taken) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FeatureCache(tmp_path)(backbone, images, progress=stop)
    taken.clear()
    assert np.array_equal(FeatureCache(tmp_path)(backbone, images), extract_features(backbone, images))
    assert taken == [10]


def test_progress_counts_every_image(backbone: TimmVit, images: NDArray[np.uint8], tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)
    cache(backbone, images[:20])
    counted: list[int] = []
    cache(backbone, images, progress=counted.append)
    assert sum(counted) == 60
