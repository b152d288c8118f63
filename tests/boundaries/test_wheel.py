"""The wheel holds every file of the package: the weights of the embedded backbone too, which are no Python."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_wheel_is_the_package(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "fedopal_secure").rglob("*")
        if path.is_file() and not path.relative_to(ROOT).parts[-2].startswith((".", "__pycache__"))
    }
    assert {name for name in packed if name.startswith("fedopal_secure/")} == files
    assert any(name.endswith("/licenses/LICENSE") for name in packed)
