"""Long-term Ed25519 identities (RFC 8032), and certificates by which an authority admits one.

The public key, 32 bytes, is the identity. Names are for people and stay local: no protocol message carries one.
"""

from __future__ import annotations

from typing import NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedopal_secure.core import domains
from fedopal_secure.core.errors import MisuseError


class SigningKey:
    """A participant's long-term private key; `identity` is its public half."""

    __slots__ = ("_key", "identity")

    def __init__(self, private: bytes) -> None:
        """`private` is the 32-byte seed of RFC 8032."""
        if len(private) != 32:
            raise MisuseError(f"an Ed25519 private key has 32 bytes, not {len(private)}")
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.identity: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, label: bytes, data: bytes) -> bytes:
        """Sign `data` for one purpose; 64 bytes."""
        return self._key.sign(label + data)

    def certify(self, identity: bytes) -> bytes:
        """As an authority, admit an identity; 64 bytes."""
        return self.sign(domains.SIGN_CERTIFICATE, identity)

    def __repr__(self) -> str:
        return f"SigningKey({self.identity.hex()[:12]})"

    def __reduce__(self) -> NoReturn:
        raise MisuseError("a private key is never pickled or copied")


def verify(identity: bytes, label: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` is `identity`'s on `data` for this purpose; a malformed key or signature is a plain no."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, label + data)
    except (InvalidSignature, ValueError):
        return False
    return True


def verify_certificate(authority: bytes, identity: bytes, certificate: bytes) -> bool:
    """Whether the authority admitted the identity."""
    return verify(authority, domains.SIGN_CERTIFICATE, identity, certificate)
