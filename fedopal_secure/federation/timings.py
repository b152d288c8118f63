"""Where the time of a round goes, in seconds, added up over everyone who takes part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

STAGES: Final = ("tuning", "features", "protect", "aggregate", "open", "unmask", "solve")


class Timings:
    """A stopwatch for each stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a `with` block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
