"""The census: how many clients hold images of each class, summed before any statistic and re-checked by every client.

A class that one client alone holds is exposed by the sum. So a policy may ask for a session over presence bits first,
whose sum the clients do not take on the server's word: the server opens it, and each client computes it again.

That holds against a server that lies, and against c clients that each claim classes they do not hold. It does not hold
against a client that uploads more than one for a class: a masked sum cannot show that every term was a bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedopal_secure.core import masks, messages, recovery
from fedopal_secure.core.codec import Bytes32, Message, decode
from fedopal_secure.core.errors import ServerFault
from fedopal_secure.core.params import SessionParams
from fedopal_secure.core.ring import Ring, from_wire, reduce_to_width


class Opening(Message, frozen=True, tag="opening"):
    """What turns the signed messages of a finished session on the complete graph into its sum.

    Masked payloads and self-mask seeds of the survivors, and masking keys of the other sharers, each in the order of
    identities. A survivor's masks with the other survivors stay on its payload, so this says no more than the sum does.
    """

    session: Bytes32
    payloads: tuple[bytes, ...]
    seeds: tuple[Bytes32, ...]
    mask_secrets: tuple[Bytes32, ...]


@dataclass(frozen=True)
class Census:
    """Who took part in a census, and how many of them hold images of each class."""

    survivors: tuple[bytes, ...]
    contributors: tuple[int, ...]


@dataclass(frozen=True)
class Witness:
    """What a client keeps of a census that it attested, to check the opening against: all of it was signed."""

    params: SessionParams
    roster: messages.Roster
    roster_hash: bytes
    seed_hashes: dict[bytes, bytes]
    view: messages.View


def recheck(witness: Witness, opening_bytes: bytes) -> Census:
    """Compute the sum of a census again from its opening. Raises ServerFault if the opening is not of what was signed.

    A payload is the one whose hash its sender signed, a seed the one that its dealer committed to, a masking key one
    that gives the advertised public key; so whatever opening passes, the sum is the same.
    """
    opening = decode(Opening, opening_bytes, ServerFault)
    params, view, mask_keys = witness.params, witness.view, {a.sender: a.mask_key for a in witness.roster.adverts}
    headers = view.survivors
    survivors = tuple(header.sender for header in headers)
    dropped = sorted(witness.seed_hashes.keys() - set(survivors))
    opening_fits(opening, view.session, len(survivors), len(dropped))
    payloads_are_signed(opening, headers, params.upload_bytes)
    seeds_are_the_dealers(opening, [witness.seed_hashes[survivor] for survivor in survivors])
    mask_secrets_are_the_dealers(opening, [mask_keys[gone] for gone in dropped])
    ring, binding = Ring(params.modulus), masks.Binding(view.session, witness.roster_hash, view.context)
    total = np.zeros(params.length, dtype=np.uint64)
    for payload in opening.payloads:
        masked = from_wire(payload, params.segments)
        _require(ring.contains(masked), "shows an upload with entries that are not residues")
        ring.add_into(total, masked)
    for survivor, seed in zip(survivors, opening.seeds, strict=True):
        recovery.remove_self_mask(ring, total, seed, survivor, binding)
    for gone, mask_secret in zip(dropped, opening.mask_secrets, strict=True):
        recovery.remove_pair_masks(ring, total, mask_secret, gone, survivors, mask_keys, binding)
    if not params.modulus:
        total = reduce_to_width(total, params.segments)
    return Census(survivors, tuple(int(count) for count in total))


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ServerFault(f"the opening of the census {reason}")


def opening_fits(opening: Opening, session: bytes, survivors: int, dropped: int) -> None:
    """It is of this session, with one entry for each survivor and each sharer that dropped out."""
    counts = (len(opening.payloads), len(opening.seeds), len(opening.mask_secrets))
    fits = opening.session == session and counts == (survivors, survivors, dropped)
    _require(fits, "is not of the view that was attested")


def payloads_are_signed(opening: Opening, headers: tuple[messages.UploadHeader, ...], size: int) -> None:
    """Every payload is the one whose hash its sender signed."""
    for payload, header in zip(opening.payloads, headers, strict=True):
        signed = messages.payload_hash(payload) == header.payload_hash and len(payload) == size
        _require(signed, f"shows another upload of {header.sender.hex()[:12]} than it signed")


def seeds_are_the_dealers(opening: Opening, hashes: list[bytes]) -> None:
    """Every seed is the one that its dealer committed to."""
    for seed, hashed in zip(opening.seeds, hashes, strict=True):
        _require(messages.seed_hash(seed) == hashed, "shows a seed that its dealer did not commit to")


def mask_secrets_are_the_dealers(opening: Opening, keys: list[bytes]) -> None:
    """Every masking key is the one that was advertised."""
    for secret, key in zip(opening.mask_secrets, keys, strict=True):
        _require(masks.public_key(secret) == key, "shows a masking key that was not advertised")
