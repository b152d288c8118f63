"""Every label that separates one use of a hash, a key or a signature from all others.

A label ends in a zero byte and what follows has fixed length or is canonical bytes, so two different inputs never
make the same string. A label that is not in this file is not used by the protocol.
"""

from __future__ import annotations

import hashlib
from typing import Final

_PREFIX: Final = b"fedopal-secure/secagg/v1/"

# Hashes.
SESSION: Final = _PREFIX + b"session\x00"
ROSTER: Final = _PREFIX + b"roster\x00"
SHARE_MESSAGE: Final = _PREFIX + b"share message\x00"
SHARERS: Final = _PREFIX + b"sharers\x00"
CONTEXT: Final = _PREFIX + b"context\x00"
PAYLOAD: Final = _PREFIX + b"payload\x00"
VIEW: Final = _PREFIX + b"view\x00"
SEED: Final = _PREFIX + b"seed commitment\x00"
SHARE: Final = _PREFIX + b"share commitment\x00"
CIPHERTEXT: Final = _PREFIX + b"ciphertext\x00"

# Signatures.
SIGN_CERTIFICATE: Final = _PREFIX + b"sign certificate\x00"
SIGN_PROPOSAL: Final = _PREFIX + b"sign proposal\x00"
SIGN_ADVERT: Final = _PREFIX + b"sign advert\x00"
SIGN_SHARE: Final = _PREFIX + b"sign share\x00"
SIGN_UPLOAD: Final = _PREFIX + b"sign upload\x00"
SIGN_ATTESTATION: Final = _PREFIX + b"sign attestation\x00"
SIGN_REVEAL: Final = _PREFIX + b"sign reveal\x00"

# Keys.
KEY_SEAL: Final = _PREFIX + b"key seal\x00"
KEY_PAIR: Final = _PREFIX + b"key pair mask\x00"
KEY_SELF: Final = _PREFIX + b"key self mask\x00"


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 of the label and the parts, 32 bytes; the caller sees to it that the parts are self-delimiting."""
    state = hashlib.sha256(label)
    for part in parts:
        state.update(part)
    return state.digest()
