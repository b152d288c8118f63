"""The census: how many clients hold images of each class, summed before any statistic and re-checked by every client.

A class that one client alone holds is exposed by the sum. So a policy may ask for a session over presence bits first,
whose sum the clients do not take on the server's word: the server opens it, and each client computes it again.

That holds against a server that lies, and against c clients that each claim classes they do not hold. It does not hold
against a client that uploads more than one for a class: a masked sum cannot show that every term was a bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedopal_secure.core import checks, masks, messages
from fedopal_secure.core.codec import Bytes32, Message, decode
from fedopal_secure.core.errors import ServerFault
from fedopal_secure.core.params import SessionParams
from fedopal_secure.core.recovery import unmask
from fedopal_secure.core.ring import Ring, from_wire


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
    checks.opening_fits(opening, view.session, len(survivors), len(dropped))
    checks.opening_payloads_are_signed(opening, headers, params.upload_bytes)
    checks.opening_seeds_are_the_dealers(opening, [witness.seed_hashes[survivor] for survivor in survivors])
    checks.opening_mask_secrets_are_the_dealers(opening, [mask_keys[gone] for gone in dropped])
    ring, total = Ring(params.modulus), np.zeros(params.length, dtype=np.uint64)
    for payload in opening.payloads:
        masked = from_wire(payload, params.segments)
        checks.opening_shows_residues(masked, ring)
        ring.add_into(total, masked)
    total = unmask(
        total,
        params,
        dict(zip(survivors, opening.seeds, strict=True)),
        dict(zip(dropped, opening.mask_secrets, strict=True)),
        lambda gone: survivors,
        mask_keys,
        masks.Binding(view.session, witness.roster_hash, view.context),
    )
    return Census(survivors, tuple(int(count) for count in total))
