"""The server side imports and runs where every import of torch fails; a control shows that the block holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

# What an aggregator needs. Packages stand for all of their modules.
SERVER_SIDE = (
    "fedopal_secure.core",
    "fedopal_secure.encoding",
    "fedopal_secure.statistics",
    "fedopal_secure.solver",
    "fedopal_secure.model",
    "fedopal_secure.federation.server",
)

BLOCK = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "timm", "open_clip", "PIL", "mlxtend", "sklearn"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())

def import_all(name):
    module = importlib.import_module(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", ()), name + "."):
        import_all(found.name)
"""

SERVER_WORK = """
import numpy as np
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.encoding.layout import statistics_segments
from fedopal_secure.encoding.vector import pack, unpack
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.ridge import solve_ridge
from fedopal_secure.statistics.sums import SufficientStatistics, accumulate

rng = np.random.default_rng(0)
labels = np.arange(60) % 3
features = rng.normal(size=(60, 8)) + 4 * np.eye(3, 8)[labels]
grid = FeatureGrid(dimension=8)
segments = statistics_segments(8, 3, grid.bits, max_images=1000)
total = np.zeros(sum(segment.length for segment in segments), dtype=np.uint64)
for part in np.array_split(np.arange(60), 4):
    total += pack(segments, accumulate(grid.quantise(features[part]), labels[part], 3, grid.bits).to_arrays())
statistics = SufficientStatistics.from_arrays(unpack(segments, total), 8, 3)
head = solve_ridge(Moments.from_statistics(statistics, grid))
print(float(np.mean(np.argmax(head.scores(grid.normalised(features)), axis=1) == labels)))
"""


def run(code):
    return subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", SERVER_SIDE)
def test_imports(package):
    result = run(f"import_all({package!r})\nprint('torch' in sys.modules)")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "False\n"


def test_sums_become_a_head():
    result = run(SERVER_WORK)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) > 0.95


@pytest.mark.parametrize("code", ["import torch", "import timm.models", "import_all('fedopal_secure.data')"])
def test_control_the_block_holds(code):
    result = run(code)
    assert result.returncode != 0 and "is blocked" in result.stderr
