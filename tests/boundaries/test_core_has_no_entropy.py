"""core draws no randomness, reads no clock, calls no operating system: the linter says so; these are its controls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def banned(code, where):
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--output-format", "concise"]
    return subprocess.run(
        [*command, "--stdin-filename", where, "-"], input=code, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout


@pytest.mark.parametrize(
    "code",
    [
        "import random\n",
        "import secrets\n",
        "import os\n",
        "from os import urandom\n",
        "import os.path\n",
        "import time\n",
        "import numpy.random\n",
        "from numpy.random import default_rng\n",
        "import numpy as np\n\nx = np.random.default_rng(0)\n",
    ],
)
def test_banned_in_core_and_only_there(code):
    assert "TID251" in banned(code, "fedopal_secure/core/any.py")
    assert "TID251" not in banned(code, "fedopal_secure/data/any.py")


def test_core_obeys():
    command = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "fedopal_secure/core"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
