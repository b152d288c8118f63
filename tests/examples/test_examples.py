"""Every example runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_program(program: Path) -> None:
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_configuration_and_policy_together(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedopal_secure.cli", "simulate", str(EXAMPLES / "simulate.toml")]
    options = ["--policy", str(EXAMPLES / "policy.toml"), "--train-limit", "200", "--out", str(tmp_path / "run")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "differ from the plain sums by 0" in done.stdout


def test_the_trust_file_reads() -> None:
    from fedopal_secure.federation.config import PolicyConfig, load_toml, parse_config

    trust = parse_config(PolicyConfig, load_toml(EXAMPLES / "trust.toml"), "trust.toml")
    assert len(set(trust.identities.values())) == 4
    assert trust.servers
