"""The key authority's commands, and rounds under encryption from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedopal_secure.cli import app
from fedopal_secure.federation.keys import load_key
from fedopal_secure.federation.stored_authority import load_public_context
from fedopal_secure.he.messages import public_context_hash
from tests.he import harness

pytest.importorskip("tenseal", reason="missing tool: TenSEAL, of the extra `he`")

ROUND = ("simulate", "--clients", 4, "--train-limit", 60)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def fails(words: str, *arguments: object, code: int = 2) -> None:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    assert words in done.output
    assert "Traceback" not in done.output
    assert done.output.strip().count("\n") == 0


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    run("keys", "new", "authority", "--folder", tmp_path)
    run("he", "keygen", tmp_path / "keys", "--key", tmp_path / "authority.key")
    return tmp_path


def test_keygen_prints_the_line_that_clients_pin(tmp_path: Path) -> None:
    run("keys", "new", "authority", "--folder", tmp_path)
    printed = run("he", "keygen", tmp_path / "ckks", "--key", tmp_path / "authority.key", "--protocol", "ckks")
    context = load_public_context(tmp_path / "ckks")
    assert f'public_context = "{public_context_hash(context).hex()}"' in printed
    assert context.authority == load_key(tmp_path / "authority.key").identity
    shown = run("he", "show", tmp_path / "ckks" / "public.context")
    assert "ckks of degree 4096, 92 of 109 bits" in shown
    assert context.authority.hex() in shown
    secret = (tmp_path / "ckks" / "secret.keys").read_bytes()
    assert secret[60:76].hex() not in printed + shown


def test_decrypt_opens_once(authority: Path) -> None:
    key, folder = load_key(authority / "authority.key"), authority / "keys"
    setting = harness.with_context(harness.encrypted("bfv"), load_public_context(folder))
    request = authority / "request"
    request.write_bytes(harness.Session(setting).to_open(setting.federation.ids))
    names = "\n".join(f'h{place} = "{identity.hex()}"' for place, identity in enumerate(setting.federation.ids))
    policy = authority / "policy.toml"
    host = setting.federation.host.identity.hex()
    policy.write_text(f'corrupt = 0\n[identities]\n{names}\n[servers]\nhost = "{host}"\n', encoding="utf-8")
    command = ("he", "decrypt", folder, request, "--key", authority / "authority.key", "--policy", policy, "--out")
    assert "opened the total" in run(*command, authority / "answer")
    assert (authority / "answer").stat().st_size > 0
    fails("answer exists already", *command, authority / "answer")
    fails("no second one", *command, authority / "again", code=3)
    assert key.identity == load_public_context(folder).authority


def test_wrong_input(authority: Path) -> None:
    key, folder = authority / "authority.key", authority / "keys"
    fails("never overwritten", "he", "keygen", folder, "--key", key)
    fails("no protocol 'bgv'", "he", "keygen", authority / "new", "--key", key, "--protocol", "bgv")
    fails("nothing is encrypted", "he", "keygen", authority / "new", "--key", key, "--protocol", "plain")
    fails("not an Ed25519", "he", "keygen", authority / "new", "--key", folder / "public.context")
    fails("no public context", "he", "show", folder / "secret.keys")
    fails("cannot be read", "he", "show", authority / "nowhere")
    (authority / "empty.toml").write_text("corrupt = 0\n", encoding="utf-8")
    common = ("--key", key, "--policy", authority / "empty.toml", "--out", authority / "answer")
    fails("name the servers", "he", "decrypt", folder, folder / "public.context", *common)
    run("keys", "new", "other", "--folder", authority)
    host = '[servers]\nhost = "' + "00" * 32 + '"\n[identities]\na = "' + "11" * 32 + '"\n'
    (authority / "empty.toml").write_text("corrupt = 0\n" + host, encoding="utf-8")
    fails("not a valid openrequest", "he", "decrypt", folder, folder / "public.context", *common, code=3)
    fails(
        "another key", "he", "decrypt", folder, folder / "public.context", "--key", authority / "other.key", *common[2:]
    )
    assert not (authority / "answer").exists()


def test_a_round_says_under_what_it_was_encrypted() -> None:
    printed = run(*ROUND, "--protocol", "ckks")
    assert "proven below" in printed
    found = json.loads(run(*ROUND, "--protocol", "bfv", "--masked", "--json"))
    assert found["sessions"][0]["protocol"] == "bfv-masked/v1"
    assert found["exact"]["max_abs_difference"] == 0
    fails("no phase 'open'", *ROUND, "--protocol", "bfv", "--drop", "open:1")
    fails("'masked' goes with protocol 'bfv'", *ROUND, "--protocol", "ckks", "--masked")
