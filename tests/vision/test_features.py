"""A feature depends on its image alone: the same bits whatever the split over clients, the position or the batch."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.vision.backbone import Backbone, load_backbone
from fedopal_secure.vision.features import extract_features
from fedopal_secure.vision.timm_vit import TimmVit


def pictures(backbone: Backbone, count: int) -> NDArray[np.uint8]:
    size = backbone.image_size
    return np.random.default_rng(2).integers(0, 256, (count, size, size, backbone.channels), dtype=np.uint8)


def some_prompts(backbone: Backbone) -> NDArray[np.float32]:
    return np.random.default_rng(3).normal(0, 0.5, (10, backbone.embed_dim)).astype(np.float32)


@pytest.mark.parametrize("with_prompts", [False, True])
def test_features_are_bit_identical_for_any_split_and_order(with_prompts: bool) -> None:
    backbone = load_backbone("embedded", None)
    images = pictures(backbone, 100)
    prompts = some_prompts(backbone) if with_prompts else None
    pooled = extract_features(backbone, images, prompts)
    rng = np.random.default_rng(4)
    for clients in (2, 7, 25):
        order = rng.permutation(len(images))
        cuts = np.sort(rng.choice(np.arange(1, len(images)), clients - 1, replace=False))
        for share in np.split(order, cuts):
            assert np.array_equal(extract_features(backbone, images[share], prompts), pooled[share])


def test_a_feature_is_the_same_at_every_position_and_with_any_batch_mates() -> None:
    backbone = load_backbone("embedded", None)
    images = pictures(backbone, 64)
    alone = extract_features(backbone, images[:1])
    rng = np.random.default_rng(6)
    for position in range(32):
        batch = images[rng.integers(1, 64, 32)]
        batch[position] = images[0]
        assert np.array_equal(extract_features(backbone, batch)[position], alone[0])


def test_features_are_those_of_the_backbone(backbone: TimmVit, images: NDArray[np.uint8]) -> None:
    features = extract_features(backbone, images)
    assert features.dtype == np.float32
    assert features.shape == (60, 32)
    np.testing.assert_allclose(features, backbone(backbone.normalise(images)).numpy(), atol=1e-5)


def test_prompts_change_features(backbone: TimmVit, images: NDArray[np.uint8]) -> None:
    prompted = extract_features(backbone, images, some_prompts(backbone))
    assert np.abs(prompted - extract_features(backbone, images)).max() > 0.01


def test_progress_counts_images_and_no_images_are_refused(backbone: TimmVit, images: NDArray[np.uint8]) -> None:
    counted: list[int] = []
    extract_features(backbone, images, batch_size=25, progress=counted.append)
    assert counted == [25, 25, 10]
    with pytest.raises(InputError, match="at least one image"):
        extract_features(backbone, images[:0])
