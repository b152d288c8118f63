"""Make the packaged feature map of the embedded backbone from rendered letters, and from no digit.

    python tools/embedded_public.py

It needs the packages that `pretrain_embedded.py` names, whose letters it draws: 8,000 drawings, each by a hand of its
own. Their features are the public images of the demonstration: centre, axes and second moment come from them. Equal
packages and machine give an equal file; three minutes on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pretrain_embedded import SEED, draw_all, handwrite

from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.vision.embedded import IMAGE_SIZE, WEIGHTS, load_embedded
from fedopal_secure.vision.features import extract_features

DRAWINGS = 8000
DIMENSIONS = 128  # what the noise of some thousand images allows, and a small file
BATCH = 500


def draw_letters() -> NDArray[np.uint8]:
    """Images uint8 (8000, 32, 32, 1), as the backbone's preprocessing makes them."""
    glyphs = draw_all()
    generator = torch.Generator().manual_seed(SEED + 2)
    chosen = np.random.default_rng(SEED + 2).permutation(len(glyphs.label))[:DRAWINGS]
    batches = [
        handwrite(torch.from_numpy(glyphs.fields[chosen[start : start + BATCH]]), generator)
        for start in range(0, len(chosen), BATCH)
    ]
    images = (torch.cat(batches).numpy() * 255).round().astype(np.uint8)
    return images.reshape(-1, IMAGE_SIZE, IMAGE_SIZE, 1)


def main() -> None:
    """Draw, take the features, keep what the map needs of them."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=Path(str(WEIGHTS)).with_name("embedded-public.safetensors"))
    chosen = options.parse_args()
    torch.set_num_threads(1)
    letters = draw_letters()
    public_map = FeatureMap.from_public_features(extract_features(load_embedded(), letters), DIMENSIONS)
    public_map.save(chosen.out)
    print(f"{chosen.out}: {len(letters)} letters, {public_map.dimension} axes, digest {public_map.digest().hex()}")


if __name__ == "__main__":
    main()
