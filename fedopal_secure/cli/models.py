"""The commands that use a released model: predict and evaluate."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedopal_secure.cli.common import DEVICE_HELP, errors, new_console, progress
from fedopal_secure.core.errors import InputError

if TYPE_CHECKING:
    from fedopal_secure.model import Model

TRUST_HELP = "Refuse a model that the server with this identity (64 hex digits) did not sign."


def _check_trust(model: Model, identity: str | None) -> None:
    if identity is None:
        return
    if re.fullmatch("[0-9a-f]{64}", identity) is None:
        raise InputError(
            f"--trust {identity!r}: give the server's identity, 64 hex digits (trust.toml of a run has it)"
        )
    model.check_signed_by(bytes.fromhex(identity))


def predict(
    model: Annotated[Path, typer.Argument(help="model.safetensors of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, as in the round.")] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    trust: Annotated[str | None, typer.Option(metavar="IDENTITY", help=TRUST_HELP)] = None,
) -> None:
    """Classify images: CSV with file, label and score on standard output."""
    with errors():
        from fedopal_secure.data.images import read_image
        from fedopal_secure.data.sources import find_images
        from fedopal_secure.model import Model

        released = Model.load(model)
        _check_trust(released, trust)
        files = [file for path in images for file in (find_images(path) if path.is_dir() else [path])]
        if not files:
            raise InputError(f"{images[0]} has no images: give image files or a folder of them")
        backbone = released.load_backbone(image_size, device)
        prepared = [backbone.preprocess(read_image(file)) for file in files]
        import numpy as np

        with progress({"prediction": len(files)}) as report:
            scores = released.scores(backbone, np.stack(prepared), lambda done: report("prediction", done))
        rows = csv.writer(sys.stdout, lineterminator="\n")
        rows.writerow(("file", "label", "score"))
        for file, row in zip(files, scores, strict=True):
            best = int(row.argmax())
            rows.writerow((file, released.classes[best], f"{row[best]:.6f}"))


def evaluate(
    model: Annotated[Path, typer.Argument(help="model.safetensors of a run.")],
    folder: Annotated[str, typer.Argument(help="Labelled images: CLASS/*, test/CLASS/*, FILE.csv, .npz or .tar.")],
    image_size: Annotated[int | None, typer.Option(help="Side of the backbone's input, as in the round.")] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    trust: Annotated[str | None, typer.Option(metavar="IDENTITY", help=TRUST_HELP)] = None,
    skip_unreadable: Annotated[bool, typer.Option(help="Skip and count unreadable images.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Measure a model on labelled images: accuracy, recall of each class, AUC."""
    with errors():
        import numpy as np

        from fedopal_secure.data.datasets import load_labelled
        from fedopal_secure.model import Model
        from fedopal_secure.model import evaluate as measure

        released = Model.load(model)
        _check_trust(released, trust)
        backbone = released.load_backbone(image_size, device)
        labelled, skipped = load_labelled(
            folder, released.classes, skip_unreadable=skip_unreadable, transform=backbone.preprocess
        )
        with progress({"evaluation": len(labelled)}) as report:
            scores = released.scores(backbone, np.asarray(labelled.images), lambda done: report("evaluation", done))
        found = measure(scores, labelled.labels, released.classes)
        if as_json:
            print(json.dumps(asdict(found) | {"skipped_images": len(skipped)}, indent=2))
            return
        table = Table("class", "recall")
        for name, recall in found.recall.items():
            table.add_row(name, "no images" if recall is None else f"{recall:.2%}")
        console = new_console()
        console.print(table)
        top5 = "" if found.accuracy_top5 is None else f", top-5 {found.accuracy_top5:.2%}"
        auc = "" if found.auc is None else f", AUC {found.auc:.4f}"
        console.print(f"accuracy {found.accuracy:.2%}{top5}{auc} on {found.images} images")
        if skipped:
            console.print(f"{len(skipped)} unreadable images were skipped")
