"""What a session does with a key authority's public context: check it, encrypt under it, and add what is encrypted."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import InputError, MisuseError, PolicyRefusal
from fedopal_secure.core.params import BFV, BFV_MASKED, CKKS, Segment, SessionParams
from fedopal_secure.core.ring import U64, Ring, from_wire, to_wire
from fedopal_secure.he.ciphertext import CiphertextForm
from fedopal_secure.he.messages import PublicContext, is_signed, public_context_hash
from fedopal_secure.he.parameters import BFV_SCHEME, CKKS_SCHEME, Parameters, check_parameters, error_bound
from fedopal_secure.he.seal import load_seal

# By protocol, with what uploads are encrypted.
SCHEMES: Final = {BFV: BFV_SCHEME, BFV_MASKED: BFV_SCHEME, CKKS: CKKS_SCHEME}


def read_public_context(data: bytes) -> PublicContext:
    """Decode and check a public context. Raises InputError for anything else: other formats, weak parameters, a key
    that is none, a signature that is not the authority's."""
    context = decode(PublicContext, data, lambda reason: InputError(f"this is no public context: {reason}"))
    check_parameters(context.parameters)
    if SCHEMES.get(context.protocol) != context.parameters.scheme:
        raise InputError(f"the public context is for {context.protocol!r}, which is not encrypted with its scheme")
    if len(context.keys) != context.parameters.keys:
        raise InputError(f"the public context has {len(context.keys)} keys and not {context.parameters.keys}")
    for key in context.keys:
        _read_key(context.parameters, key)
    if not is_signed(context):
        raise InputError("the public context is not signed by the authority that it names")
    return context


def write_key(parameters: Parameters, key: U64) -> bytes:
    """A public key, uint64 (2, coefficient moduli, N), as a public context has it."""
    return to_wire(key.reshape(-1), _key_rows(parameters))


@lru_cache(8)
def _read_key(parameters: Parameters, key: bytes) -> U64:
    rows = _key_rows(parameters)
    if len(key) != sum(row.length * row.width for row in rows):
        raise InputError("the public context has a key of another length than its parameters say")
    residues = from_wire(key, rows).reshape(2, len(parameters.coefficient_moduli), parameters.degree)
    for place, prime in enumerate(parameters.coefficient_moduli):
        if not Ring(prime).contains(residues[:, place]):
            raise InputError("the public context has a key that is not made of residues modulo its moduli")
    return residues


def _key_rows(parameters: Parameters) -> tuple[Segment, ...]:
    primes = parameters.coefficient_moduli
    return tuple(Segment("", parameters.degree, (prime.bit_length() + 7) // 8, False) for prime in primes) * 2


def form_of(params: SessionParams, parameters: Parameters) -> CiphertextForm:
    """The form of a session's encrypted vectors; raises PolicyRefusal if entries do not fit the plain moduli."""
    return CiphertextForm(parameters, params.segments, params.modulus)


def session_error_bound(params: SessionParams, parameters: Parameters) -> float:
    """How far from the true integer any decrypted one may be before rounding; 0 for BFV. See `error_bound`.

    Raises PolicyRefusal if entries do not fit the plain moduli.
    """
    ciphertexts = sum(form_of(params, parameters).ciphertexts)
    if parameters.scheme == BFV_SCHEME:
        return 0.0
    # Also of the slots that hold nothing, since the authority looks at the noise in all of them.
    return error_bound(parameters, params.clients, ciphertexts * parameters.degree)


def check_session(params: SessionParams, context: PublicContext) -> None:
    """Refuse a session that is not of this context, or whose sums might not decrypt exactly; raises PolicyRefusal."""

    def require(rule: str, holds: bool, detail: str) -> None:
        if not holds:
            raise PolicyRefusal(rule, detail)

    p = context.parameters
    mine = params.public_context == public_context_hash(context)
    require("public_context", mine, "the session is under another public context than the one at hand")
    served = params.protocol == context.protocol
    require(
        "protocol", served, f"the public context is for {context.protocol!r}, and the session is {params.protocol!r}"
    )
    masked = params.protocol == BFV_MASKED
    modulus = p.plain_moduli[0] if masked else 0
    require("modulus", params.modulus == modulus, "masked vectors are summed modulo the first plain modulus")
    bound = session_error_bound(params, p)  # refuses entries that do not fit, too
    detail = f"decrypted sums of {params.clients} clients may be off by {bound:.2g}; below 1/2 they are exact"
    require("clients", bound < 0.5, detail)


def encrypt(params: SessionParams, context: PublicContext, vector: U64) -> bytes:
    """Encrypt a vector, uint64 (length,), as the payload of an upload to a session that was checked."""
    p = context.parameters
    form = form_of(params, p)
    parts = zip(load_seal(p), context.keys, form.to_slots(vector), strict=True)
    encrypted = [seal.encrypt(_read_key(p, key), part, params.clients) for seal, key, part in parts]
    return form.to_bytes(np.concatenate(encrypted))


class EncryptedTally:
    """The sum of what clients encrypted, for as many clients as the memory of one; a tally of secagg/v1, too."""

    def __init__(self, params: SessionParams, context: PublicContext) -> None:
        self._form, self._segments = form_of(params, context.parameters), params.segments
        self._sum = self._form.zeros()
        self._opened: U64 | None = None

    def add(self, payload: bytes) -> None:
        """Add one client's ciphertexts; raises ValueError if they are none."""
        self._form.add_into(self._sum, self._form.from_bytes(payload))

    def ciphertexts(self) -> bytes:
        """The sum, still encrypted, as a payload."""
        return self._form.to_bytes(self._sum)

    def open(self, vector: bytes) -> None:
        """Take the decrypted sum, in wire form; raises ValueError if it is none."""
        if len(vector) != sum(segment.length * segment.width for segment in self._segments):
            raise ValueError("a total of the wrong length")
        total = from_wire(vector, self._segments)
        if not Ring(self._form.modulus).contains(total):
            raise ValueError("entries that are not residues")
        self._opened = total

    @property
    def is_open(self) -> bool:
        """Whether the decrypted sum has come."""
        return self._opened is not None

    def total(self) -> U64:
        """The decrypted sum, uint64 (length,)."""
        if self._opened is None:
            raise MisuseError("the total is not decrypted yet")
        return self._opened.copy()
