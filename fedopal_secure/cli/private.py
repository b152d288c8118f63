"""The commands that prepare a private round: the plan of its release, and a feature map from public images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedopal_secure.cli.common import DEVICE_HELP, errors, new_console, progress
from fedopal_secure.core.errors import InputError
from fedopal_secure.federation.config import SimulationConfig, load_toml, parse_config


def privacy(
    config: Annotated[Path, typer.Argument(help="A TOML file, as examples/simulate.toml, with a [privacy] table.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the release as JSON and nothing else.")] = False,
) -> None:
    """Plan a private release: the noise on each segment, what it claims, and the line that goes into a policy."""
    with errors():
        settings = parse_config(SimulationConfig, load_toml(config), str(config))
        if settings.max_images is None:
            # A simulation takes the next power of two of what there is, which would tell clients' images to the others.
            raise InputError(f"{config}: give max_images: the cap on images is public, and no image may decide it")
        from fedopal_secure.federation.vectors import task_release
        from fedopal_secure.privacy.release import total_sigma
        from fedopal_secure.runtimes.simulation import Simulation

        task = Simulation(settings).task
        release = task_release(task)
        if release is None:
            raise InputError(f"{config}: there is nothing private to plan: add [privacy] with a finite epsilon")
        if as_json:
            print(task.release)
            return
        console = new_console()
        table = Table(
            "segment", "entries", "one unit moves it by", "sigma of each", "sigma counted on", title="grid units"
        )
        counted = total_sigma(release, release.contributors)
        for segment in release.segments:
            moved, total = f"{segment.squared_sensitivity**0.5:,.0f}", f"{counted[segment.name]:,.0f}"
            table.add_row(segment.name, f"{segment.length:,}", moved, f"{segment.sigma:,}", total)
        console.print(table)
        console.print(
            f"({release.epsilon:.4g}, {release.delta:g})-differential privacy, {release.mode}, counting on "
            f"{release.contributors} honest contributor{'s' * (release.contributors > 1)} of noise"
        )
        console.print("the lines of a policy that agrees to this release, once, and to no other:")
        print(f"release = '{task.release}'\nepsilon = {release.epsilon!r}\ndelta = {release.delta!r}")


def public_map(
    images: Annotated[str, typer.Argument(help="PUBLIC images, of which no client holds any: as --dataset.")],
    out: Annotated[Path, typer.Option(help="The file to write, .safetensors; every client needs it.")],
    backbone: Annotated[str, typer.Option(help="'embedded' or 'timm:NAME[@CHECKPOINT]'.")] = "embedded",
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, pixels.")] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    dimensions: Annotated[int | None, typer.Option(help="Keep this many principal axes; default: all.")] = None,
    limit: Annotated[int, typer.Option(min=2, help="Use this many of the training images at most.")] = 2000,
) -> None:
    """Learn a feature map from public images: features that are centred and projected lose less under noise."""
    with errors():
        import numpy as np

        from fedopal_secure.data.datasets import load_dataset
        from fedopal_secure.encoding.feature_map import FeatureMap
        from fedopal_secure.vision.backbone import load_backbone
        from fedopal_secure.vision.features import extract_features

        if out.exists():
            raise InputError(f"{out} exists already: choose another file with --out")
        network = load_backbone(backbone, image_size, device)
        public = load_dataset(images, seed=0, limit=limit, transform=network.preprocess).train
        with progress({"features": len(public)}) as report:
            taken = lambda done: report("features", done)  # noqa: E731
            features = extract_features(network, np.asarray(public.images), progress=taken)
        FeatureMap.from_public_features(features, dimensions).save(out)
        print(f"{out} holds the map of {len(public)} images: use it with --public-map", file=sys.stderr)
