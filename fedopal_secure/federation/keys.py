"""Long-term keys on disk: PKCS #8 PEM files that only their owner can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey


def create_key(folder: Path, name: str) -> tuple[Path, bytes]:
    """Write a fresh key to `folder/name.key` with mode 0600; returns the path and the identity (32 bytes).

    Raises InputError rather than overwrite a key.
    """
    if not name or name != Path(name).name or name.startswith("."):
        raise InputError(f"'{name}' cannot be the name of a key file: give letters, digits and dashes")
    path = folder / f"{name}.key"
    private = secrets.token_bytes(32)
    pem = Ed25519PrivateKey.from_private_bytes(private).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(path, pem)
    return path, SigningKey(private).identity


def write_private(path: Path, content: bytes) -> None:
    """Write a secret to a new file with mode 0600, and see it to the disk; raises InputError rather than overwrite."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InputError(f"{path} exists already: choose another name, a key is never overwritten") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def load_key(path: Path) -> SigningKey:
    """Read a key that `create_key` wrote; raises InputError if the file is something else."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): give a file that `keys new` wrote") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path}: not an Ed25519 private key: give a file that `keys new` wrote")
    return SigningKey(key.private_bytes_raw())
