"""The primitives give the answers that their standards print, and so do our functions that add nothing to them.

The answers are in protocols/primitives/vectors. Each is checked against `cryptography`, then against `core` wherever it
fits what `core` fixes (a zero nonce, no salt, a counter from zero).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedopal_secure.core import masks
from fedopal_secure.core.errors import ClientFault
from fedopal_secure.core.identity import SigningKey, verify
from fedopal_secure.core.ring import Ring

VECTORS = Path(__file__).parents[2] / "protocols" / "primitives" / "vectors"
COUNTS = {"aes256_ctr": 1, "aes256_gcm": 4, "ed25519": 5, "hkdf_sha256": 3, "x25519": 5}

Vector = dict[str, Any]
hexed = bytes.fromhex


def load(name: str, kind: str | None = None) -> list[Any]:
    """The vectors of one file, or those of one kind, as test parameters named after the standard's own numbering."""
    document = json.loads((VECTORS / f"{name}.json").read_text())
    return [pytest.param(v, id=v["id"]) for v in document["vectors"] if v.get("kind") == kind]


def x25519(scalar: bytes, point: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(scalar).exchange(X25519PublicKey.from_public_bytes(point))


def agree(scalar: bytes, point: bytes) -> bytes:
    """The same by our own function."""
    return masks.agree(masks.load(scalar), point, b"owner")


def keystream(key: bytes, counter: bytes, length: int) -> bytes:
    """CTR by its definition: the block cipher applied to the counter, the counter plus one, and so on mod 2**128."""
    start = int.from_bytes(counter, "big")
    blocks = b"".join(((start + i) % 2**128).to_bytes(16, "big") for i in range(-(-length // 16)))
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)[:length]


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def test_the_files_are_all_here_and_canonical() -> None:
    """A vector that was dropped, or a file that no test reads, would go unnoticed."""
    assert {path.stem for path in VECTORS.iterdir()} == set(COUNTS)
    for name, count in COUNTS.items():
        text = (VECTORS / f"{name}.json").read_text()
        document = json.loads(text)
        assert set(document) == {"source", "vectors"}
        assert text == json.dumps(document, indent=2, sort_keys=True) + "\n"
        assert len({vector["id"] for vector in document["vectors"]}) == len(document["vectors"]) == count


# X25519.


@pytest.mark.parametrize("vector", load("x25519", "function"))
def test_x25519(vector: Vector) -> None:
    """The second vector's point has the top bit set. X25519 ignores the bit; we refuse such a key."""
    scalar, point = hexed(vector["scalar"]), hexed(vector["point"])
    assert x25519(scalar, point).hex() == vector["result"]
    if point[-1] & 128:
        with pytest.raises(ClientFault, match="canonical") as caught:
            agree(scalar, point)
        assert caught.value.client == b"owner"
        point = point[:-1] + bytes([point[-1] & 127])
    assert agree(scalar, point).hex() == vector["result"]


@pytest.mark.parametrize("vector", load("x25519", "iterated"))
def test_x25519_iterated(vector: Vector) -> None:
    """Each result is the next scalar, and each scalar the next point."""
    for function in (x25519, agree):
        scalar = point = hexed(vector["start"])
        for _ in range(vector["iterations"]):
            scalar, point = function(scalar, point), scalar
        assert scalar.hex() == vector["result"]


@pytest.mark.parametrize("vector", load("x25519", "agreement"))
def test_x25519_agreement(vector: Vector) -> None:
    for one, other in (("one", "other"), ("other", "one")):
        private, public = hexed(vector[f"{one}_private"]), vector[f"{one}_public"]
        peer = hexed(vector[f"{other}_public"])
        assert X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw().hex() == public
        assert x25519(private, peer).hex() == vector["shared"]
        assert masks.public_key(private).hex() == public
        assert agree(private, peer).hex() == vector["shared"]


# Ed25519.


@pytest.mark.parametrize("vector", load("ed25519"))
def test_ed25519(vector: Vector) -> None:
    """Ours signs label and data one after the other, so every cut of the message has the same signature."""
    private, public, message, signature = (hexed(vector[k]) for k in ("private", "public", "message", "signature"))
    theirs = Ed25519PrivateKey.from_private_bytes(private)
    assert theirs.public_key().public_bytes_raw() == public
    assert theirs.sign(message) == signature
    Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    ours = SigningKey(private)
    assert ours.identity == public
    for cut in {0, len(message) // 2, len(message)}:
        assert ours.sign(message[:cut], message[cut:]) == signature
        assert verify(public, message[:cut], message[cut:], signature)


@pytest.mark.parametrize("vector", load("ed25519"))
def test_ed25519_refuses(vector: Vector) -> None:
    """Another message, and one flipped bit in either half of the signature."""
    public, message, signature = (hexed(vector[k]) for k in ("public", "message", "signature"))
    cases = [(message + b"\0", signature)]
    cases += [(message, signature[:at] + bytes([signature[at] ^ 1]) + signature[at + 1 :]) for at in (0, 32)]
    for other_message, other_signature in cases:
        with pytest.raises(InvalidSignature):
            Ed25519PublicKey.from_public_bytes(public).verify(other_signature, other_message)
        assert not verify(public, b"", other_message, other_signature)


# HKDF-SHA256.


@pytest.mark.parametrize("vector", load("hkdf_sha256"))
def test_hkdf(vector: Vector) -> None:
    """Ours has no salt and 32 bytes; a shorter output is the beginning of a longer one, so A.3 fits it."""
    secret, salt, info = (hexed(vector[k]) for k in ("secret", "salt", "info"))
    extract = hmac.HMAC(salt or bytes(32), hashes.SHA256())
    extract.update(secret)
    assert extract.finalize().hex() == vector["extracted"]
    derive = HKDF(algorithm=hashes.SHA256(), length=vector["length"], salt=salt, info=info)
    assert derive.derive(secret).hex() == vector["result"]
    if not salt:
        assert masks._expand(secret, info).hex() == vector["result"][:64]


# AES-256-CTR.


@pytest.mark.parametrize("vector", load("aes256_ctr"))
def test_ctr(vector: Vector) -> None:
    """The library, and the definition by which our own streams are judged below."""
    key, counter, plaintext = (hexed(vector[k]) for k in ("key", "counter", "plaintext"))
    encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
    assert (encryptor.update(plaintext) + encryptor.finalize()).hex() == vector["ciphertext"]
    assert xor(plaintext, keystream(key, counter, len(plaintext))).hex() == vector["ciphertext"]


@pytest.mark.parametrize("length", [1, 2, 3, 8, 16_384, 16_385, 40_000])
@pytest.mark.parametrize("vector", load("aes256_ctr"))
def test_a_mask_is_the_keystream_from_counter_zero(vector: Vector, length: int) -> None:
    """In the ring modulo 2**64, read as little-endian words; over the borders of the blocks in which it is made."""
    key = hexed(vector["key"])
    expected = keystream(key, bytes(16), 8 * length)
    mask = np.zeros(length, dtype=np.uint64)
    masks.apply_stream(Ring(0), mask, key, masks.ADD)
    assert mask.tolist() == [int.from_bytes(expected[at : at + 8], "little") for at in range(0, 8 * length, 8)]
    masks.apply_stream(Ring(0), mask, key, masks.SUBTRACT)
    assert not mask.any()


def test_a_mask_holds_blocks_that_a_standard_prints() -> None:
    """GCM encrypts counter 1 into case 13's tag (nothing else is in it) and counter 2 into case 14's ciphertext."""
    thirteen, fourteen = (parameter.values[0] for parameter in load("aes256_gcm")[:2])
    mask = np.zeros(6, dtype=np.uint64)
    masks.apply_stream(Ring(0), mask, hexed(thirteen["key"]), masks.ADD)
    assert mask.astype("<u8").tobytes()[16:].hex() == thirteen["tag"] + fourteen["ciphertext"]


# AES-256-GCM.


@pytest.mark.parametrize("vector", load("aes256_gcm"))
def test_gcm(vector: Vector) -> None:
    """Ours has the nonce zero, as cases 13 and 14 have it; with the others' inputs it is as the library's."""
    key, nonce, plaintext, associated = (hexed(vector[k]) for k in ("key", "nonce", "plaintext", "associated"))
    sealed = vector["ciphertext"] + vector["tag"]
    assert AESGCM(key).encrypt(nonce, plaintext, associated).hex() == sealed
    assert AESGCM(key).decrypt(nonce, hexed(sealed), associated) == plaintext
    ours = masks.seal(key, plaintext, associated)
    assert ours == AESGCM(key).encrypt(bytes(12), plaintext, associated)
    assert any(nonce) or ours.hex() == sealed
    assert masks.unseal(key, ours, associated) == plaintext


@pytest.mark.parametrize("vector", load("aes256_gcm"))
def test_gcm_refuses(vector: Vector) -> None:
    """Any flipped bit of ciphertext or tag, cut or added bytes, other associated data, another key."""
    key, nonce, associated = (hexed(vector[k]) for k in ("key", "nonce", "associated"))
    sealed = hexed(vector["ciphertext"] + vector["tag"])
    cases = [(key, xor(sealed, (1 << bit).to_bytes(len(sealed), "big")), associated) for bit in range(8 * len(sealed))]
    cases += [(key, sealed[:-1], associated), (key, sealed + b"\0", associated), (key, b"", associated)]
    cases += [(key, sealed, associated + b"\0"), (xor(key, b"\1" * 32), sealed, associated)]
    for other_key, other_sealed, other_associated in cases:
        with pytest.raises(InvalidTag):
            AESGCM(other_key).decrypt(nonce, other_sealed, other_associated)
        if not any(nonce):
            assert masks.unseal(other_key, other_sealed, other_associated) is None
