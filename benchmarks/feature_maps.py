"""Compares features and heads on folds of the training images; the test images are not looked at.

python -m benchmarks.feature_maps dtd10 --backbone timm:NAME@FILE --image-size 56
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.report import console, environment, progress_bar
from fedopal_secure.core.errors import InputError
from fedopal_secure.data.datasets import load_dataset
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.encoding.layout import statistics_segments
from fedopal_secure.solver import gcv
from fedopal_secure.solver.lda import solve_lda
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.ridge import normalised, solve_ridge
from fedopal_secure.statistics.sums import accumulate
from fedopal_secure.vision.backbone import load_backbone
from fedopal_secure.vision.feature_cache import FeatureCache

HELP = (
    "Compare feature maps and heads on one data set by cross-validation within its training images: accuracy, and the "
    "bytes that a client uploads. Every fold goes over the integer grid, as in a round; lambda is by GCV."
)
MAPS = ("cls", "joined:1", "joined:2", "joined:3", "random:1500", "joined:2+random:2000")
HEADS = ("ridge", "ridge-normalised", "lda")
BITS = 12


@dataclass
class Found:
    """What one feature map gave: per head, the accuracy in percent of every seed, a mean over folds."""

    feature_map: str
    dimension: int
    upload_bytes: int
    accuracy: dict[str, list[float]]

    def row(self, first: Found) -> list[str]:
        """For the table; the difference is to the first map with the same head, paired by seed."""
        cells = [self.feature_map, f"{self.dimension:,}", f"{self.upload_bytes / 1e6:.1f}"]
        for head, values in self.accuracy.items():
            difference = np.subtract(values, first.accuracy[head])
            cells.append(f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f} ({np.mean(difference):+.1f})")
        return cells


def folds(images: int, seed: int, count: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Training and held-out rows of each fold."""
    parts = np.array_split(np.random.default_rng(seed).permutation(images), count)
    return [(np.concatenate(parts[:i] + parts[i + 1 :]), parts[i]) for i in range(count)]


def fold_accuracy(
    features: NDArray[np.float32], labels: NDArray[np.int64], classes: int, fold: tuple[NDArray[np.int64], ...]
) -> dict[str, float]:
    """Accuracy in percent of each head, made of the first rows' exact sums, on the second rows."""
    train, held = fold
    grid = FeatureGrid(features.shape[1], bits=BITS)
    sums = accumulate(grid.quantise(features[train]), labels[train], classes, grid.bits)
    moments = Moments.from_statistics(sums, grid)
    ridge = solve_ridge(moments, "gcv")
    heads = (ridge, normalised(ridge), solve_lda(moments, "fixed", ridge.ridge))
    unit = grid.normalised(features[held])
    return {
        name: 100 * float((head.scores(unit).argmax(axis=1) == labels[held]).mean())
        for name, head in zip(HEADS, heads, strict=True)
    }


def main(
    dataset: Annotated[str, typer.Argument(help="As `fedopal-secure simulate --dataset`.")],
    backbone: Annotated[str, typer.Option(help="As `fedopal-secure simulate --backbone`, without a map.")] = "embedded",
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, pixels.")] = None,
    feature_map: Annotated[
        list[str] | None, typer.Option("--map", help="A map to compare, repeatable; the first is the reference.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=2, help="How often to draw the folds.")] = 3,
    fold_count: Annotated[int, typer.Option("--folds", min=2, help="Folds of each draw.")] = 3,
    limit: Annotated[int | None, typer.Option(help="Use so many training images.")] = None,
    cache: Annotated[Path, typer.Option(help="Folder to keep features in.")] = Path("runs/feature_maps"),
    least_freedom: Annotated[
        float, typer.Option(min=0, max=1, help="Of the rows, what GCV must leave; 0 takes the bound away.")
    ] = gcv.LEAST_FREEDOM,
    out: Annotated[Path | None, typer.Option(help="Write what was found as JSON.")] = None,
) -> None:
    """Compare them; the text for people is in HELP."""
    gcv.LEAST_FREEDOM = least_freedom
    screen, where, chosen = console(), environment(), feature_map or list(MAPS)
    suffixes = ["" if name == "cls" else f"+{name}" for name in chosen]
    try:
        networks = [load_backbone(backbone + suffix, image_size) for suffix in suffixes]
        images = load_dataset(dataset, seed=0, limit=limit, transform=networks[0].preprocess).train
    except InputError as error:
        raise SystemExit(f"feature_maps: {error}") from None
    pixels, labels, classes = np.asarray(images.images), images.labels, len(images.classes)
    extract, found = FeatureCache(cache), list[Found]()
    with progress_bar(screen) as bar:
        for name, network in zip(chosen, networks, strict=True):
            task = bar.add_task(f"{name}: features", total=len(pixels))
            features = extract(network, pixels, progress=lambda count, task=task: bar.advance(task, count))
            bar.update(task, description=f"{name}: heads", completed=0, total=seeds * fold_count)
            accuracy: dict[str, list[float]] = {head: [] for head in HEADS}
            for seed in range(seeds):
                scored = []
                for fold in folds(len(labels), seed, fold_count):
                    scored.append(fold_accuracy(features, labels, classes, fold))
                    bar.advance(task)
                for head in HEADS:
                    accuracy[head].append(float(np.mean([fold_scores[head] for fold_scores in scored])))
            segments = statistics_segments(network.feature_dim, classes, BITS, len(labels))
            upload = sum(segment.length * segment.width for segment in segments)
            found.append(Found(name, network.feature_dim, upload, accuracy))
    title = f"{dataset}: {len(labels):,} training images, {fold_count} folds, {seeds} seeds; mean ± sd over seeds"
    table = Table(title=f"{title} (difference to {chosen[0]})")
    for column in ("features", "d", "upload MB", *HEADS):
        table.add_column(column, justify="left" if column == "features" else "right")
    for one in found:
        table.add_row(*one.row(found[0]))
    screen.print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {"environment": where, "dataset": dataset, "found": [vars(one) for one in found]}
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
