"""The messages of secagg/v1: frozen structures, their signatures and their hashes.

Client to server: Advert, Shares, Upload, Attestation, Reveal. Server to client: Proposal, Roster, Relay, Context, View,
RevealRequest.

A *dealer* shares its secrets with its *holders*. A *sharer* is a dealer whom the server heard in time, a *survivor* a
sharer whose upload it heard in time, and the other sharers are *dropped*. Two *peers* mask with each other.

A signature covers a label and the message's canonical bytes with 64 zero bytes as its signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from fedopal_secure.core import domains
from fedopal_secure.core.codec import Bytes32, Message, Signature, encode
from fedopal_secure.core.identity import SigningKey, verify
from fedopal_secure.core.params import SessionParams

_UNSIGNED = bytes(64)

Share = Annotated[bytes, msgspec.Meta(max_length=33)]
# Two shares of 33 bytes and the tag of AES-256-GCM.
Ciphertext = Annotated[bytes, msgspec.Meta(max_length=82)]
Certificate = Annotated[bytes, msgspec.Meta(max_length=64)]


class Proposal(Message, frozen=True, tag="proposal"):
    """The parameters of a session, signed by the server that they name."""

    params: SessionParams
    signature: Signature = _UNSIGNED

    @property
    def sender(self) -> bytes:
        """The server."""
        return self.params.server


class Advert(Message, frozen=True, tag="advert"):
    """A client's X25519 public keys for this session, and the certificate that admits it (or nothing)."""

    session: Bytes32
    sender: Bytes32
    mask_key: Bytes32
    seal_key: Bytes32
    certificate: Certificate
    signature: Signature = _UNSIGNED


class Roster(Message, frozen=True, tag="roster"):
    """Everyone who advertised, in the order of their identities."""

    session: Bytes32
    adverts: tuple[Advert, ...]


class ShareMessage(Message, frozen=True, tag="share"):
    """What a dealer commits to.

    `holders` are roster positions in ascending order; the other tuples follow it: commitments to the share of the
    masking key and of the self-mask seed, and the hash of the ciphertext that carries both.
    """

    session: Bytes32
    sender: Bytes32
    roster: Bytes32
    seed_hash: Bytes32
    holders: tuple[int, ...]
    key_commitments: tuple[Bytes32, ...]
    seed_commitments: tuple[Bytes32, ...]
    ciphertext_hashes: tuple[Bytes32, ...]
    signature: Signature = _UNSIGNED


class Shares(Message, frozen=True, tag="shares"):
    """A dealer's signed message and its ciphertexts, one for each of its holders; its own place is empty."""

    message: ShareMessage
    ciphertexts: tuple[Ciphertext, ...]


class Relayed(Message, frozen=True):
    """One dealer's signed message and the ciphertext for the client that reads it."""

    message: ShareMessage
    ciphertext: Ciphertext


class Sharer(Message, frozen=True):
    """Someone who shared, and the hash of its share message."""

    identity: Bytes32
    message: Bytes32


class Relay(Message, frozen=True, tag="relay"):
    """Everyone who shared, and in full those who dealt to the client that reads it; both in order of identities."""

    session: Bytes32
    sharers: tuple[Sharer, ...]
    dealers: tuple[Relayed, ...]


class Context(Message, frozen=True, tag="context"):
    """What is known only when uploads begin: the parent's view and survivors, and what it ended with.

    `payload` is the opening of a census, the summed prompts of two phases, or empty.
    """

    session: Bytes32
    parent: bytes
    parent_view: bytes
    parent_survivors: tuple[Bytes32, ...]
    payload: bytes


class UploadHeader(Message, frozen=True, tag="header"):
    """What a client signs about its upload."""

    session: Bytes32
    sender: Bytes32
    roster: Bytes32
    sharers: Bytes32
    context: Bytes32
    payload_hash: Bytes32
    signature: Signature = _UNSIGNED


class Upload(Message, frozen=True, tag="upload"):
    """A masked vector, in wire form or as its protocol packs it, under its signed header."""

    header: UploadHeader
    payload: bytes


class View(Message, frozen=True, tag="view"):
    """What the server claims about the uploads: the survivors' headers in the order of their identities."""

    session: Bytes32
    roster: Bytes32
    sharers: Bytes32
    context: Bytes32
    survivors: tuple[UploadHeader, ...]


class Attestation(Message, frozen=True, tag="attestation"):
    """A client's signature on the one view that it accepts."""

    session: Bytes32
    sender: Bytes32
    view: Bytes32
    signature: Signature = _UNSIGNED


class RevealRequest(Message, frozen=True, tag="reveal-request"):
    """A quorum of attestations, and the two lists for which shares are asked."""

    session: Bytes32
    view: Bytes32
    attestations: tuple[Attestation, ...]
    survivors: tuple[Bytes32, ...]
    dropped: tuple[Bytes32, ...]


class Reveal(Message, frozen=True, tag="reveal"):
    """Shares of survivors' seeds and of dropped clients' masking keys, of those who dealt to the sender, in the order
    of the request; empty means none.

    An empty share says that the dealer's ciphertext did not open or match: a dispute between dealer and holder.
    """

    session: Bytes32
    sender: Bytes32
    view: Bytes32
    seed_shares: tuple[Share, ...]
    key_shares: tuple[Share, ...]
    signature: Signature = _UNSIGNED


Signed = Proposal | Advert | ShareMessage | UploadHeader | Attestation | Reveal
S = TypeVar("S", Proposal, Advert, ShareMessage, UploadHeader, Attestation, Reveal)

_LABELS: dict[type, bytes] = {
    Proposal: domains.SIGN_PROPOSAL,
    Advert: domains.SIGN_ADVERT,
    ShareMessage: domains.SIGN_SHARE,
    UploadHeader: domains.SIGN_UPLOAD,
    Attestation: domains.SIGN_ATTESTATION,
    Reveal: domains.SIGN_REVEAL,
}


def sign(key: SigningKey, message: S) -> S:
    """Return the message with the sender's signature in place."""
    return replace(message, signature=key.sign(_LABELS[type(message)], _unsigned(message)))


def is_signed(message: Signed) -> bool:
    """Whether the signature is the sender's."""
    return verify(message.sender, _LABELS[type(message)], _unsigned(message), message.signature)


def _unsigned(message: Signed) -> bytes:
    # The signature is the last field of every signed message, so its 64 bytes are the last ones.
    return encode(message)[: -len(_UNSIGNED)] + _UNSIGNED


def roster_hash(roster: Roster) -> bytes:
    """H(roster): the hash of its canonical bytes, adverts and signatures included."""
    return domains.digest(domains.ROSTER, encode(roster))


def share_message_hash(message: ShareMessage) -> bytes:
    """H(share message): the hash of its canonical bytes, signature included."""
    return domains.digest(domains.SHARE_MESSAGE, encode(message))


def sharers_hash(sharers: Sequence[Sharer]) -> bytes:
    """H(sharers): the hash of (identity, H(share message)) in the order of identities."""
    return domains.digest(domains.SHARERS, *(part for sharer in sharers for part in (sharer.identity, sharer.message)))


def context_hash(context: Context) -> bytes:
    """H(context): the hash of its canonical bytes."""
    return domains.digest(domains.CONTEXT, encode(context))


def view_hash(view: View) -> bytes:
    """H(view): the hash of its canonical bytes, which hold every survivor's signed header."""
    return domains.digest(domains.VIEW, encode(view))


def payload_hash(payload: bytes) -> bytes:
    """The hash of an upload's payload, as it travels."""
    return domains.digest(domains.PAYLOAD, payload)


def ciphertext_hash(ciphertext: bytes) -> bytes:
    """The hash under which a dealer signs a sealed pair of shares."""
    return domains.digest(domains.CIPHERTEXT, ciphertext)


def seed_hash(seed: bytes) -> bytes:
    """A dealer's commitment to its self-mask seed (32 uniform bytes, so a plain hash hides it)."""
    return domains.digest(domains.SEED, seed)


KEY_SHARE, SEED_SHARE = b"\x01", b"\x02"


def share_commitment(session: bytes, dealer: bytes, index: int, kind: bytes, share: bytes) -> bytes:
    """A dealer's commitment to one holder's share; whoever has fewer than t shares has 256 bits to guess."""
    return domains.digest(domains.SHARE, session, dealer, index.to_bytes(4, "big"), kind, share)
