"""Keys and streams: X25519 agreement, HKDF-SHA256, AES-256-GCM sealing, AES-256-CTR masks.

Every key is bound to the session and to the roster, and a mask key to the context as well, so that nothing derived
here fits anywhere else. A key is used for one stream or one ciphertext only, hence the constant counters and nonces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedopal_secure.core import domains
from fedopal_secure.core.errors import ClientFault
from fedopal_secure.core.ring import U64, Ring

ADD: Final = 1
SUBTRACT: Final = -1

_FIELD: Final = 2**255 - 19

# A multiple of 8 that stays in a core's cache together with the piece of the vector that it is added to.
_CHUNK: Final = 1 << 17
_ZEROS: Final = memoryview(bytes(_CHUNK))


def public_key(private: bytes) -> bytes:
    """The X25519 public key (RFC 7748) of 32 uniform bytes, which are clamped when used."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def load(private: bytes) -> X25519PrivateKey:
    """A private key ready for many agreements; loading costs as much as one of them."""
    return X25519PrivateKey.from_private_bytes(private)


def agree(private: X25519PrivateKey, public: bytes, owner: bytes) -> bytes:
    """The X25519 shared secret.

    Raises ClientFault(owner) if `public` is of small order (an all-zero result), or is not the one canonical form of
    its point: X25519 ignores the top bit, so a key with another form could be in a roster twice and look like two.
    """
    if int.from_bytes(public, "little") >= _FIELD:
        raise ClientFault(owner, "advertised a key in another than its canonical form")
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ClientFault(owner, "advertised a key of small order, which agrees on nothing secret") from None


@dataclass(frozen=True)
class Binding:
    """What every mask key of a session is bound to."""

    session: bytes
    roster: bytes
    context: bytes


def _expand(secret: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(secret)


def seal_key(shared: bytes, sender: bytes, recipient: bytes, keys: tuple[bytes, bytes], bound: bytes) -> bytes:
    """The AES-256-GCM key of one direction; `keys` are the sealing public keys of sender and recipient, in order."""
    return _expand(shared, domains.KEY_SEAL + sender + recipient + keys[0] + keys[1] + bound)


def pair_key(shared: bytes, one: tuple[bytes, bytes], other: tuple[bytes, bytes], binding: Binding) -> bytes:
    """The key of a pair's mask stream; each party is (identity, masking public key), in either order.

    Identities are part of it: a corrupt client that copies a victim's key must not get the victim's streams.
    """
    (low, low_key), (high, high_key) = sorted((one, other))
    info = low + high + low_key + high_key + binding.session + binding.roster + binding.context
    return _expand(shared, domains.KEY_PAIR + info)


def self_key(seed: bytes, identity: bytes, binding: Binding) -> bytes:
    """The key of a client's self-mask stream."""
    return _expand(seed, domains.KEY_SELF + identity + binding.session + binding.roster + binding.context)


def pair_sign(identity: bytes, peer: bytes) -> int:
    """The lower identity adds the pair's stream and the higher one subtracts it, so that they cancel."""
    return ADD if identity < peer else SUBTRACT


def seal(key: bytes, plaintext: bytes, bound: bytes) -> bytes:
    """Encrypt once under a one-time key: the nonce is constant because the key is never used again."""
    return AESGCM(key).encrypt(bytes(12), plaintext, bound)


def unseal(key: bytes, ciphertext: bytes, bound: bytes) -> bytes | None:
    """The plaintext, or None if the ciphertext is not the sender's."""
    try:
        return AESGCM(key).decrypt(bytes(12), ciphertext, bound)
    except (InvalidTag, ValueError):
        return None


def apply_stream(ring: Ring, vector: U64, key: bytes, sign: int) -> None:
    """Add the mask stream of `key` to the vector in place, or subtract it.

    The stream is the AES-256-CTR keystream from counter zero, read as little-endian 64-bit words, which the ring
    accepts or rejects in order.
    """
    keystream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    combine = ring.add_into if sign == ADD else ring.subtract_into
    buffer = bytearray(_CHUNK + 15)
    words = np.frombuffer(buffer, dtype="<u8", count=_CHUNK // 8)
    start = 0
    while start < len(vector):
        wanted = len(vector) - start
        # Whole chunks for a prime, where some words will be rejected; else no more than is wanted.
        size = _CHUNK if ring.modulus else min(_CHUNK, 8 * wanted)
        keystream.update_into(_ZEROS[:size], buffer)
        accepted = ring.accept(words[: size // 8])[:wanted]
        combine(vector[start : start + len(accepted)], accepted)
        start += len(accepted)
