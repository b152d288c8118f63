"""The messages of he/v1: the public context, an encrypted upload, and the one total that a key authority opens."""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec.structs import replace

from fedopal_secure.core.codec import Bytes32, Message, Signature, encode
from fedopal_secure.core.domains import digest
from fedopal_secure.core.identity import SigningKey, verify
from fedopal_secure.core.messages import Certificate, Proposal, UploadHeader
from fedopal_secure.he.parameters import Parameters

_PREFIX: Final = b"fedopal-secure/he/v1/"
_CONTEXT: Final = _PREFIX + b"public context\x00"
_TOTAL: Final = _PREFIX + b"total\x00"
_UNSIGNED: Final = bytes(64)

# Without masks there is no roster and there are no sharers, so a header names none.
NO_HASH: Final = bytes(32)


class PublicContext(Message, frozen=True, tag="public-context"):
    """What a key authority publishes, signed by it: parameters, and a public key for each plain modulus.

    It serves one `protocol`: a cheating server gets the key out of one masked sum, where nothing hangs on it, so masked
    sums must not share a key with others. A key is its residues modulo all coefficient moduli, as a payload has them
    modulo those of q. There is no room for a secret key, or for one to multiply or rotate ciphertexts with.
    """

    protocol: str
    parameters: Parameters
    keys: tuple[bytes, ...]
    authority: Bytes32
    signature: Signature = _UNSIGNED


class SignedUpload(Message, frozen=True):
    """What a client signed of its upload, and the certificate that admits it (or nothing)."""

    header: UploadHeader
    certificate: Certificate


class EncryptedUpload(Message, frozen=True, tag="encrypted-upload"):
    """An encrypted vector, under its signed header; the one message of a client that does not mask."""

    signed: SignedUpload
    payload: bytes


class OpenRequest(Message, frozen=True, tag="open-request"):
    """A session's total of ciphertexts, with its signed parameters and uploads, in the order of identities."""

    proposal: Proposal
    uploads: tuple[SignedUpload, ...]
    total: bytes


class OpenedTotal(Message, frozen=True, tag="opened-total"):
    """The decrypted total as a vector in wire form, signed by the authority; `total` is the hash of the ciphertexts."""

    session: Bytes32
    authority: Bytes32
    total: Bytes32
    vector: bytes
    signature: Signature = _UNSIGNED


S = TypeVar("S", PublicContext, OpenedTotal)

_LABELS: dict[type, bytes] = {
    PublicContext: _PREFIX + b"sign public context\x00",
    OpenedTotal: _PREFIX + b"sign opened total\x00",
}


def sign(key: SigningKey, message: S) -> S:
    """Return the message with the authority's signature in place."""
    return replace(message, signature=key.sign(_LABELS[type(message)], _unsigned(message)))


def is_signed(message: PublicContext | OpenedTotal) -> bool:
    """Whether the signature is the authority's."""
    return verify(message.authority, _LABELS[type(message)], _unsigned(message), message.signature)


def _unsigned(message: PublicContext | OpenedTotal) -> bytes:
    # As in secagg/v1: the signature is the last field, and zeros stand for it.
    return encode(message)[: -len(_UNSIGNED)] + _UNSIGNED


def public_context_hash(context: PublicContext) -> bytes:
    """What clients pin: SHA-256 of the canonical bytes, signature included, 32 bytes."""
    return digest(_CONTEXT, encode(context))


def total_hash(total: bytes) -> bytes:
    """The hash of a total of ciphertexts as a payload."""
    return digest(_TOTAL, total)
