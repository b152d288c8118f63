"""Saves the features of a data set, for the benchmarks that start from features.

python -m benchmarks.features digits --out digits.npz
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedopal_secure.data.datasets import load_dataset
from fedopal_secure.vision.backbone import load_backbone
from fedopal_secure.vision.feature_cache import FeatureCache

HELP = "Save the [CLS] features of all training and test images of a data set, without prompts."


def main(
    dataset: Annotated[str, typer.Argument(help="As `fedopal-secure simulate --dataset`.")],
    out: Annotated[Path, typer.Option(help="The .npz file to write.")],
    backbone: Annotated[str, typer.Option(help="As `fedopal-secure simulate --backbone`.")] = "embedded",
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, pixels.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Feature cache, such as FOLDER/features of a sweep.")] = None,
) -> None:
    """Save them; the text for people is in HELP."""
    network = load_backbone(backbone, image_size)
    images = load_dataset(dataset, seed=0, transform=network.preprocess)
    extract = FeatureCache(cache or out.with_suffix(".cache"))
    saved = {}
    for name, part in (("train", images.train), ("test", images.test)):
        saved[name], saved[f"{name}_labels"] = extract(network, np.asarray(part.images)), part.labels
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out, **saved)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
