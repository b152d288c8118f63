"""Key files: only the owner reads them, none is overwritten, and nothing secret is printed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedopal_secure.core.errors import InputError
from fedopal_secure.federation.keys import create_key, load_key


def test_a_key_is_written_once_for_its_owner_only(tmp_path: Path) -> None:
    path, identity = create_key(tmp_path / "keys", "hospital-a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = load_key(path)
    assert key.identity == identity
    assert key.sign(b"label", b"x").hex() not in repr(key)
    with pytest.raises(InputError, match="never overwritten"):
        create_key(tmp_path / "keys", "hospital-a")


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden"])
def test_a_name_that_is_a_path_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        create_key(tmp_path, name)


def test_other_files_are_no_keys(tmp_path: Path) -> None:
    (tmp_path / "x.key").write_text("rubbish")
    with pytest.raises(InputError, match="not an Ed25519"):
        load_key(tmp_path / "x.key")
    with pytest.raises(InputError, match="cannot be read"):
        load_key(tmp_path / "missing.key")
