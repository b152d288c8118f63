"""In CI a skip for a missing tool fails the run; elsewhere, and for any other reason, it stays a skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
FILES = {
    "test_call.py": "import pytest\n\ndef test_it():\n    pytest.skip('missing tool: chromium')\n",
    "test_module.py": "import pytest\n\npytest.importorskip('no_such_module')\n",
    "test_mark.py": "import pytest\n\n@pytest.mark.skip(reason='missing tool: tmux')\ndef test_it():\n    pass\n",
    "test_data.py": "import pytest\n\ndef test_it():\n    pytest.skip('no data set here')\n",
}


def run(tmp_path, ci, *options):
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    environment = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | ({"CI": "true"} if ci else {})
    command = [sys.executable, "-m", "pytest", "-rsfE", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    return subprocess.run(
        [*command, *options, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "worker"])
def test_missing_tool_fails_in_ci(tmp_path, options):
    result = run(tmp_path, True, *options)
    assert result.returncode == 1, result.stdout
    # A mark skips in the setup of its test, and a module before there is one: pytest calls those errors.
    assert "1 failed, 1 skipped, 2 errors" in result.stdout and "no data set here" in result.stdout, result.stdout


def test_missing_tool_is_a_skip_elsewhere(tmp_path):
    result = run(tmp_path, False)
    assert "4 skipped" in result.stdout and "failed" not in result.stdout, result.stdout
