"""What the code does differently from device to device: precision of the tuning, order of its sums, loading of images.

A backbone says by its weights where it runs; `load_backbone` puts them there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import torch
from torch import Tensor

from fedopal_secure.core.errors import InputError

Item = TypeVar("Item")

_CPUINFO: Final = Path("/proc/cpuinfo")
_BF16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86, x86, ARM


def device_named(name: str) -> torch.device:
    """ "auto" is CUDA where there is one and else the CPU; "cpu", "cuda" and "cuda:N" are what they say.

    Raises InputError for another name, or a device that is not there.
    """
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", 0) if there else torch.device("cpu")
    kind, _, number = name.partition(":")
    if name == "cpu" or (kind == "cuda" and (number.isdecimal() or name == "cuda") and int(number or 0) < there):
        return torch.device(kind, *([int(number or 0)] if kind == "cuda" else []))
    if kind == "cuda" and not there:
        raise InputError(f"no device '{name}': torch sees no CUDA here; take 'cpu' or 'auto'")
    known = "auto, cpu" + "".join(f", cuda:{one}" for one in range(there))
    raise InputError(f"no device '{name}': there are {known}")


def tuning_dtype(device: torch.device) -> torch.dtype:
    """In what the frozen blocks compute while prompts are tuned: bfloat16 where the hardware has it, else float32.

    Fixed by the hardware, and not by a trial of which is faster, so that equal arguments give equal bits. Where
    bfloat16 is only emulated it is several times slower than float32.
    """
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = device.type == "cpu" and bool(cpu_flags() & _BF16_FLAGS)
    return torch.bfloat16 if native else torch.float32


@cache
def cpu_flags() -> frozenset[str]:
    """What the processor can do, in the words of Linux; empty on other systems, which have no such file."""
    try:
        lines = _CPUINFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":") for line in lines)
    # Of the first processor: they are all alike in this.
    flags = next((flags for name, _, flags in named if name.strip().lower() in ("flags", "features")), "")
    return frozenset(flags.split())


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """On CUDA, have torch choose kernels that add in a fixed order; elsewhere it does so anyway.

    Only a warning where there is no such kernel, since whether the result repeats is not worth a failed round.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute in float32 throughout, whatever the caller has switched on: no autocast, and no TF32 on CUDA."""
    with torch.autocast(device.type, enabled=False):
        if device.type != "cuda":
            yield
            return
        matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, convolution.allow_tf32
        matmul.allow_tf32 = convolution.allow_tf32 = False
        try:
            yield
        finally:
            matmul.allow_tf32, convolution.allow_tf32 = before


def loaded(
    load: Callable[[Item], Tensor], items: Iterable[Item], device: torch.device
) -> Iterator[tuple[Item, Tensor]]:
    """Each item with `load(item)`, a tensor on the device, in order.

    On CUDA the next one is loaded, by a thread and in a stream of its own, while the caller computes with this one.
    On a CPU there is nothing to hide: loading takes a few thousandths of the time, of the same cores.
    """
    if device.type != "cuda":
        for item in items:
            yield item, load(item)
        return
    stream = torch.cuda.Stream(device)

    def ahead(item: Item) -> tuple[Item, Tensor, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            tensor = load(item)
            return item, tensor, stream.record_event()

    def ready(future: Future[tuple[Item, Tensor, torch.cuda.Event]]) -> tuple[Item, Tensor]:
        item, tensor, event = future.result()
        here = torch.cuda.current_stream(device)
        here.wait_event(event)
        tensor.record_stream(here)  # its memory must not be used again before what we enqueue here has read it
        return item, tensor

    with ThreadPoolExecutor(1) as worker:
        waiting: deque[Future[tuple[Item, Tensor, torch.cuda.Event]]] = deque()
        for item in items:
            waiting.append(worker.submit(ahead, item))
            if len(waiting) > 1:
                yield ready(waiting.popleft())
        while waiting:
            yield ready(waiting.popleft())
