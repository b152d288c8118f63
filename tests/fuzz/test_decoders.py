"""Fuzzing of everything that reads bytes of somebody else: only typed errors, no hang, no huge allocation.

Hypothesis breaks real messages and files (`mutations.py`) and gives them to their readers (`targets.py`). What a
reader takes must be canonical, or be what it was once it is written out again. Every input that ever got another
exception out of a reader, and some that are meant to, is a file in `corpus/TARGET/`, which is replayed first.

FUZZ_EXAMPLES=100000 makes a long run; the default takes seconds.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedopal_secure.core.errors import FedopalError
from tests.fuzz.mutations import broken
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
ON_DISK = ("journal", "model", "transcript", "key", "simulation", "policy")
STATM = Path("/proc/self/statm")
SECONDS, MEMORY = 20.0, 1 << 30  # far more than any input here may take, far less than what a huge length asks for


@contextmanager
def bounded() -> Iterator[None]:
    """Memory for this process to grow by a little, so that a huge allocation is a MemoryError; and a time limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if STATM.exists():  # Linux tells how much there is already
        pages = int(STATM.read_text(encoding="ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    start = time.perf_counter()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert time.perf_counter() - start < SECONDS


def survives(target: str, data: bytes) -> None:
    """Give bytes to a reader; a FedopalError is what it may raise, in one line."""
    try:
        with bounded():
            TARGETS[target].read(data)
    except FedopalError as error:
        assert "\n" not in str(error)


CASES = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*.bin"))


@pytest.mark.parametrize("case", CASES)
def test_corpus(case: str) -> None:
    survives(case.split("/")[0], (CORPUS / case).read_bytes())


def test_the_corpus_is_there() -> None:
    assert {case.split("/")[0] for case in CASES} <= TARGETS.keys()
    assert len(CASES) >= 20


@pytest.mark.parametrize("target", TARGETS)
def test_real_inputs_are_read(target: str) -> None:
    """Otherwise the fuzzer would start from what is refused anyway."""
    read = 0
    for data in TARGETS[target].seeds():
        try:
            TARGETS[target].read(data)
            read += 1
        except FedopalError:
            continue
    assert read


@pytest.mark.parametrize("target", TARGETS)
def test_fuzzed_inputs(target: str) -> None:
    chosen = TARGETS[target]
    seeds = chosen.seeds()

    @settings(max_examples=EXAMPLES // (3 if target in ON_DISK else 1), suppress_health_check=list(HealthCheck))
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        survives(target, data.draw(broken(seeds, chosen.packed)))

    fuzz()
