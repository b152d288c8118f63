"""Prompt tuning beside a plain loop and beside its limit, in one run; and the memory of both passes over the images.

python -m benchmarks.tuning --json tuning.json
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from unittest import mock

import numpy as np
import timm
import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.report import Measure, console, environment, print_measures, progress_bar, write_json
from benchmarks.server_process import resident
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.encoding.prompts import initial_prompts
from fedopal_secure.statistics.sums import accumulate
from fedopal_secure.vision import tuning
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.devices import tuning_dtype
from fedopal_secure.vision.features import extract_features
from fedopal_secure.vision.preprocessing import Preprocessing
from fedopal_secure.vision.prompts import PromptInsert
from fedopal_secure.vision.timm_vit import TimmVit

ARCHITECTURE, SIZE, BATCH, BATCHES, REPEATS, CLASSES, TOKENS = "vit_small_patch14_dinov2", 112, 32, 1, 5, 10, 10
QUICK_ARCHITECTURE, QUICK_SIZE, QUICK_BATCH, QUICK_REPEATS = "vit_tiny_patch16_224", 32, 4, 2
MEMORY_IMAGES, QUICK_MEMORY_IMAGES = (64, 256), (8, 32)

# What is promised at the full size: over a plain loop in float32, and of the limit at the same precision. At every
# size: the peak of memory with four times as many images over that with the fewer.
FASTER = {torch.float32: 1.35, torch.bfloat16: 1.8}
OF_LIMIT = 0.8
GROWTH = 1.02

HELP = """Measure prompt tuning beside a plain loop and beside its limit, and the memory of tuning and of statistics.

The network has random weights. The plain loop tunes the same prompts in float32, with a gradient left on for every
weight. The limit does no more than it must: images on the device and normalised beforehand, forward through all of the
network, and the gradient of activations; no loss, no optimiser. Both precisions are measured on every machine, whether
or not it has bfloat16, and the one that tuning takes by itself is marked; one that is only emulated runs once.

The variants run in turn, several times, a batch each; a ratio is the median of those within one turn, which other work
on the machine disturbs least. Seconds are the clock's.

Memory is the most that a process of its own was given (VmHWM of Linux) less the bytes of its images, which it holds
throughout. glibc is told to give freed blocks of 64 KiB or more back at once (MALLOC_MMAP_THRESHOLD_); otherwise the
peak shows what it keeps for later, which wanders by a tenth from run to run. The statistics pass takes features, rounds
them to the grid and sums them. On a device other than the CPU nothing is said of memory.
"""


@dataclass(frozen=True)
class Speed:
    """Medians of one precision: images in a second, and ratios within a turn."""

    dtype: str
    chosen: bool
    ours: float
    plain: float
    limit: float
    faster: float
    of_limit: float


@dataclass(frozen=True)
class Memory:
    """Peak bytes of a pass over so many images, less the bytes of the images."""

    what: str
    images: tuple[int, int]
    peak: tuple[int, int]

    @property
    def growth(self) -> float:
        """The peak with more images over that with fewer."""
        return self.peak[1] / self.peak[0]


@dataclass(frozen=True)
class Bench:
    """The sizes of a run."""

    architecture: str = ARCHITECTURE
    size: int = SIZE
    batch: int = BATCH
    repeats: int = REPEATS
    memory_images: tuple[int, int] = MEMORY_IMAGES
    device: str = "cpu"

    def backbone(self) -> Backbone:
        """The network with random weights, on the device."""
        torch.manual_seed(0)
        vit = timm.create_model(self.architecture, pretrained=False, num_classes=0, img_size=self.size)
        pixels = Preprocessing(self.size, (0.5,) * 3, (0.5,) * 3, "bicubic")
        return TimmVit(f"timm:{self.architecture}", vit, pixels, "random").to(self.device)

    def data(self, count: int) -> tuple[Any, Any]:
        """Random images and labels."""
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (count, self.size, self.size, 3), dtype=np.uint8)
        return images, rng.integers(0, CLASSES, count)


def tune(backbone: Backbone, images: Any, labels: Any, batch: int) -> None:
    """What a client runs: one epoch."""
    start = initial_prompts(bytes(32), TOKENS, backbone.embed_dim)
    config = tuning.TuningConfig(tokens=TOKENS, epochs=1, batch_size=batch)
    tuning.tune_prompts(backbone, images, labels, CLASSES, start, config, seed=0)


def plain_loop(backbone: Backbone, images: Any, labels: Any, batch: int) -> None:
    """What one writes first: everything takes a gradient, and the optimiser gets the prompts and the head."""
    device = next(backbone.parameters()).device
    start = torch.from_numpy(initial_prompts(bytes(32), TOKENS, backbone.embed_dim)).to(device)
    insert, head = PromptInsert(start), nn.Linear(backbone.feature_dim, CLASSES).to(device)
    optimiser = torch.optim.Adam([*insert.parameters(), *head.parameters()], lr=0.003)
    backbone.requires_grad_(True)
    for first in range(0, len(images), batch):
        logits = head(backbone.encode(insert(backbone.embed(backbone.normalise(images[first : first + batch])))))
        loss = F.cross_entropy(logits, torch.from_numpy(labels[first : first + batch]).to(device))
        loss = loss + 0.05 * (insert.prompts - start).square().sum()
        optimiser.zero_grad()
        backbone.zero_grad()
        loss.backward()
        optimiser.step()
    backbone.zero_grad()
    backbone.requires_grad_(False)
    insert.prompts.detach().cpu()  # waits for the device


def at_the_limit(backbone: Backbone, ready: list[torch.Tensor], dtype: torch.dtype) -> None:
    """Forward and the gradient of activations, of images that are where they are needed."""
    device = ready[0].device
    insert = PromptInsert(torch.from_numpy(initial_prompts(bytes(32), TOKENS, backbone.embed_dim)).to(device))
    for pixels in ready:
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            with torch.no_grad():
                tokens = backbone.embed(pixels)
            features = backbone.encode(insert(tokens))
        features.backward(torch.ones_like(features))
    insert.prompts.detach().cpu()


def seconds(work: Callable[[], None]) -> float:
    """Of the clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_speed(bench: Bench, bar: Any) -> list[Speed]:
    """Both precisions, all variants in turn; `bar` shows how far it is."""
    backbone = bench.backbone()
    images, labels = bench.data(BATCHES * bench.batch)
    ready = [backbone.normalise(images[first : first + bench.batch]) for first in range(0, len(images), bench.batch)]

    def ours(dtype: torch.dtype) -> None:
        with mock.patch.object(tuning, "tuning_dtype", lambda device: dtype):
            tune(backbone, images, labels, bench.batch)

    variants: dict[Any, Callable[[], None]] = {"plain": lambda: plain_loop(backbone, images, labels, bench.batch)}
    for dtype in FASTER:
        variants[dtype, "ours"] = lambda dtype=dtype: ours(dtype)
        variants[dtype, "limit"] = lambda dtype=dtype: at_the_limit(backbone, ready, dtype)
    chosen = tuning_dtype(torch.device(bench.device))
    emulated = {name for name in variants if name[0] is torch.bfloat16} if chosen is torch.float32 else set()
    for name in variants.keys() - emulated:
        variants[name]()  # memory that is touched for the first time
    found: dict[Any, list[float]] = {name: [] for name in variants}
    for turn in bar.track(range(bench.repeats), description="plain loop, tuning, limit"):
        for name, work in variants.items():
            if turn == 0 or name not in emulated:
                found[name].append(seconds(work))

    def ratio(above: Any, below: Any) -> float:
        return median(a / b for a, b in zip(found[above], found[below], strict=False))

    def rate(name: Any) -> float:
        return len(images) / median(found[name])

    return [
        Speed(
            dtype=str(dtype).removeprefix("torch."),
            chosen=dtype == chosen,
            ours=rate((dtype, "ours")),
            plain=rate("plain"),
            limit=rate((dtype, "limit")),
            faster=ratio("plain", (dtype, "ours")),
            of_limit=ratio((dtype, "limit"), (dtype, "ours")),
        )
        for dtype in FASTER
    ]


def peak(what: str, bench: Bench, count: int, answer: Any) -> None:
    """Make one pass over so many images, in this process, and say the most memory it had beside them."""
    backbone = bench.backbone()
    images, labels = bench.data(count)
    if what == "tuning":
        tune(backbone, images, labels, bench.batch)
    else:
        grid = FeatureGrid(backbone.feature_dim)
        accumulate(grid.quantise(extract_features(backbone, images)), labels, CLASSES, grid.bits)
    answer.send(resident()[1] - images.nbytes)


def measure_memory(bench: Bench, bar: Any) -> list[Memory]:
    """Both passes, each in a process of its own for each number of images."""
    spawn = multiprocessing.get_context("spawn")
    runs = [(what, count) for what in ("tuning", "statistics") for count in bench.memory_images]
    peaks = []
    for what, count in bar.track(runs, description="memory"):
        here, there = spawn.Pipe()
        process = spawn.Process(target=peak, args=(what, bench, count, there))
        with mock.patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_="65536"):  # read by glibc when a process starts
            process.start()
        there.close()
        with suppress(EOFError):  # it has said why on the standard error
            peaks.append(here.recv())
        process.join()
        if process.exitcode:
            raise typer.Exit(1)
    few, many = bench.memory_images
    return [
        Memory("tuning", (few, many), (peaks[0], peaks[1])),
        Memory("statistics", (few, many), (peaks[2], peaks[3])),
    ]


def judge(bench: Bench, speeds: list[Speed], memories: list[Memory]) -> list[Measure]:
    """What was promised of this size."""
    measures = [
        Measure(f"memory of {memory.what}, {memory.images[1]} images over {memory.images[0]}", memory.growth, GROWTH)
        for memory in memories
    ]
    if bench.architecture == QUICK_ARCHITECTURE:
        return measures
    for speed in speeds:
        target = FASTER[getattr(torch, speed.dtype)]
        measures.append(Measure(f"{speed.dtype}: faster than the plain loop", speed.faster, target, True, "times"))
        measures.append(Measure(f"{speed.dtype}: of the limit", speed.of_limit, OF_LIMIT, True))
    return measures


def print_speeds(screen: Console, bench: Bench, speeds: list[Speed]) -> None:
    """The numbers behind the ratios."""
    threads = f", {torch.get_num_threads()} threads" if bench.device == "cpu" else ""
    table = Table(title=f"{bench.architecture}, {bench.size} px, batches of {bench.batch}, {bench.device}{threads}")
    for name in ("tuning in", "images/s", "plain loop, float32", "limit", "times faster", "of the limit", ""):
        table.add_column(name, justify="right")
    for speed in speeds:
        rates = (f"{speed.ours:.1f}", f"{speed.plain:.1f}", f"{speed.limit:.1f}")
        ratios = (f"{speed.faster:.2f}", f"{speed.of_limit:.2f}")
        table.add_row(speed.dtype, *rates, *ratios, "chosen here" if speed.chosen else "")
    screen.print(table)


def print_memory(screen: Console, memories: list[Memory]) -> None:
    """Both passes."""
    table = Table(title="Peak memory of a process less its images")
    for name in ("", "images", "MB", "images", "MB"):
        table.add_column(name, justify="right" if name else "left")
    for memory in memories:
        parts = zip(memory.images, memory.peak, strict=True)
        table.add_row(memory.what, *(text for count, size in parts for text in (f"{count:,}", f"{size / 1e6:.1f}")))
    screen.print(table)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A tiny network: seconds, to see it work.")] = False,
    architecture: Annotated[str, typer.Option(help="A vision transformer of timm.")] = ARCHITECTURE,
    size: Annotated[int, typer.Option(min=1, help="Side of the images in pixels.")] = SIZE,
    device: Annotated[str, typer.Option(help="Where it runs: cpu, cuda.")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers here.")] = None,
) -> None:
    """Run it; the text for people is in HELP."""
    screen = console()
    where = environment() | {"torch": torch.__version__, "threads": torch.get_num_threads()}
    bench = (
        Bench(QUICK_ARCHITECTURE, QUICK_SIZE, QUICK_BATCH, QUICK_REPEATS, QUICK_MEMORY_IMAGES, device)
        if quick
        else Bench(architecture, size, device=device)
    )
    with progress_bar(screen) as bar:
        speeds = measure_speed(bench, bar)
        memories = measure_memory(bench, bar) if device == "cpu" else []
    measures = judge(bench, speeds, memories)
    print_speeds(screen, bench, speeds)
    if memories:
        print_memory(screen, memories)
    print_measures(screen, measures)
    if json_file is not None:
        found = {
            "bench": asdict(bench),
            "speeds": [asdict(speed) for speed in speeds],
            "memory": [asdict(memory) | {"growth": memory.growth} for memory in memories],
        }
        write_json(json_file, {"environment": where} | found | {"measures": [one.as_dict() for one in measures]})


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
