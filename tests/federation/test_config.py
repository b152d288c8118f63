"""Configuration files: the examples are valid, rubbish is one line, and what is written runs again."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedopal_secure.core.errors import InputError
from fedopal_secure.federation.config import PolicyConfig, SimulationConfig, dump_toml, load_toml, parse_config

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_examples_are_valid_and_name_existing_fields_only() -> None:
    config = parse_config(SimulationConfig, load_toml(EXAMPLES / "simulate.toml"), "simulate.toml")
    assert config.clients == 12
    policy = parse_config(PolicyConfig, load_toml(EXAMPLES / "policy.toml"), "policy.toml")
    assert policy.sessions == 1


def test_the_resolved_configuration_says_the_same() -> None:
    config = parse_config(SimulationConfig, {"clients": 7, "alpha": float("inf"), "drop": ["upload:1"]}, "x")
    again = parse_config(SimulationConfig, tomllib.loads(dump_toml(config)), "x")
    assert again == config


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"alpha": 0}, "alpha"),
        ({"alpha": -1}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"clients": 2}, "clients"),
        ({"clients": 10**9}, "clients"),
        ({"clents": 5}, "clents"),
        ({"prompts": {"mode": "global"}}, "prompts.mode"),
        ({"prompts": {"tuning": {"learning_rate": 0}}}, "prompts.tuning.learning_rate"),
        ({"features": {"bits": 99}}, "features.bits"),
        ({"head": {"value": float("inf")}}, "head.value"),
        ({"seed": -1}, "seed"),
        ({"protocol": "telepathy"}, "protocol"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_field(values: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_config(SimulationConfig, values, "file.toml")
    assert str(caught.value).startswith(f"file.toml: '{field}'")
    assert "\n" not in str(caught.value)


def test_a_missing_or_malformed_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("clients = = 3")
    with pytest.raises(InputError, match="not valid TOML"):
        load_toml(tmp_path / "bad.toml")
