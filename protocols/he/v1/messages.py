"""What he/v1 is made of besides polynomials: records, hashes, signatures, parameters, public contexts.

Sections (§) are those of spec.md. Canonical bytes and errors are those of the reference of secagg/v1, from whose
primitives.py they come.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocols.he.v1.scheme import Pair
from protocols.secagg.v1 import primitives
from protocols.secagg.v1.primitives import Failure, encode, is_prime, require


class InputError(Failure):
    """A file of the local party is not what it should be."""


# Records, §3. Their registry is this page's own: that of secagg/v1 lists the records of secagg/v1.

RECORDS: dict[str, Any] = {}


def record(name: str, tag: str, fields: str) -> Any:
    """Define a structure from `field:type` pairs."""
    pairs = [pair.split(":") for pair in fields.split()]
    kind = namedtuple(name, [field for field, _ in pairs])  # type: ignore[misc]
    primitives.TYPES[kind] = (tag, [type_ for _, type_ in pairs])
    RECORDS[name] = kind
    return kind


Parameters = record("Parameters", "he-parameters", "scheme:str degree:int coefficient_moduli:int* plain_moduli:int*")
PublicContext = record(
    "PublicContext", "public-context", "protocol:str parameters:Parameters keys:bytes* authority:32 signature:64"
)
SignedUpload = record("SignedUpload", "", "header:Header certificate:..64")
EncryptedUpload = record("EncryptedUpload", "encrypted-upload", "signed:SignedUpload payload:bytes")
OpenRequest = record("OpenRequest", "open-request", "proposal:Proposal uploads:SignedUpload* total:bytes")
OpenedTotal = record("OpenedTotal", "opened-total", "session:32 authority:32 total:32 vector:bytes signature:64")


def build(type_: str, value: Any) -> Any:
    """A parsed value as one of a field's type, §3."""
    if type_.endswith("*") and type_[:-1] in RECORDS and isinstance(value, list):
        return tuple(build(type_[:-1], item) for item in value)
    if type_ not in RECORDS:
        return primitives.build(type_, value)
    kind = RECORDS[type_]
    tag, fields = primitives.TYPES[kind]
    if not isinstance(value, list) or (tag and value[:1] != [tag]):
        raise ValueError(type_)
    return kind(*(build(*pair) for pair in zip(fields, value[bool(tag) :], strict=True)))


def decode(kind: Any, data: bytes, fault: Callable[[str], Failure]) -> Any:
    """The record of which these are the canonical bytes, §3."""
    try:
        value, end = primitives.parse(data)
        message = build(kind.__name__, value)
        canonical = end == len(data) and encode(message) == data
    except (ValueError, RecursionError):
        canonical = False
    require(canonical, fault, "encoding")
    return message


# Hashes and signatures, §3.


def label(use: str) -> bytes:
    """A label of §3.2."""
    return b"fedopal-secure/he/v1/" + use.encode() + b"\0"


def digest(use: str, data: bytes) -> bytes:
    """H(label, data), §3.2."""
    return hashlib.sha256(label(use) + data).digest()


def sign(signing_key: bytes, kind: Any, *fields: Any) -> Any:
    """A message signed by the authority, §3.2."""
    unsigned = kind(*fields, bytes(64))
    signature = Ed25519PrivateKey.from_private_bytes(signing_key).sign(label(SIGN[kind]) + encode(unsigned))
    return unsigned._replace(signature=signature)


def is_signed(m: Any) -> bool:
    """Whether a message is signed by the authority that it names, §3.2."""
    signed = label(SIGN[type(m)]) + encode(m._replace(signature=bytes(64)))
    try:
        Ed25519PublicKey.from_public_bytes(m.authority).verify(m.signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


SIGN = {PublicContext: "sign public context", OpenedTotal: "sign opened total"}


def context_hash(context: Any) -> bytes:
    """What clients pin, §3.2."""
    return digest("public context", encode(context))


# Parameters, §2.

SECURE_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
MAX_CLIENTS = 2**14
SCHEMES = {"bfv/v1": "bfv", "bfv-masked/v1": "bfv", "ckks/v1": "ckks"}
BFV = Parameters("bfv", 4096, (1099511390209, 1099511480321, 1032193), (1125899906826241, 1125899906629633))
CKKS = Parameters("ckks", 4096, (4294475777, 4294828033, 268369921), ())


def q_of(p: Any) -> int:
    """The modulus of ciphertexts, §2.1."""
    return math.prod(p.coefficient_moduli[:-1])


def rules(p: Any) -> Iterator[tuple[str, bool]]:
    """The checks of §2.2 in order."""
    primes = p.coefficient_moduli + p.plain_moduli
    yield "scheme", p.scheme in ("bfv", "ckks")
    yield "degree", p.degree in SECURE_BITS
    yield "count", len(p.coefficient_moduli) >= 2
    yield "prime", all(2 < m < 2**60 and m % (2 * p.degree) == 1 and is_prime(m) for m in primes)
    yield "twice", len(set(primes)) == len(primes)
    yield "security", math.prod(p.coefficient_moduli).bit_length() <= SECURE_BITS[p.degree]
    if p.scheme == "ckks":
        yield "plain", not p.plain_moduli
        yield "error", error_bound(p, 3, p.degree) < 0.5
    else:
        yield "plain", len(p.plain_moduli) > 0
        for t in p.plain_moduli:
            yield "plain_bits", t.bit_length() <= 50
            yield "noise", 4 * t * sum_noise(p, MAX_CLIENTS) <= q_of(p)


def check_parameters(p: Any) -> None:
    """Refuse by the first check that does not hold, §2.2."""
    for rule, holds in rules(p):
        require(holds, InputError, f"parameters.{rule}")


def sum_noise(p: Any, clients: int) -> Fraction:
    """The largest coefficient of the noise in a sum of honest BFV ciphertexts, §2.3."""
    fresh = Fraction(21 * (2 * p.degree + 1), p.coefficient_moduli[-1]) + Fraction(p.degree + 1, 2)
    return clients * (fresh + Fraction(1, 2))


def least_budget(p: Any, t: int, clients: int) -> int:
    """The noise budget that such a sum keeps for certain, §2.3."""
    ratio = q_of(p) / (2 * t * sum_noise(p, clients))
    return max(0, math.floor(ratio).bit_length() - 1)


def scale_bits(p: Any, clients: int) -> int:
    """log2 of the CKKS scale, §2.4."""
    return max(0, (2 * q_of(p) // (3 * clients * 2**24)).bit_length() - 1)


def error_bound(p: Any, clients: int, digits: int) -> float:
    """How far from the true digit any of a CKKS sum may be, but for 2^-40, §2.5."""
    n, special = p.degree, p.coefficient_moduli[-1]

    def tail(count: int) -> float:
        return math.sqrt(2 * (math.log(count) + 42 * math.log(2)))

    s2, e2 = tail(n) ** 2 * 2 * n / 3, tail(n) ** 2 * 10.5 * n
    scaled = (10.5 + 10.5 * s2 + 2 / 3 * e2) / special**2
    sigma2 = n / 2 * clients * (scaled + (1 + s2) / 4 + 1 / 4)
    rounding = math.sqrt(n) * clients * 2**23 * (13.4 * math.log2(n) + 8) * 2**-53
    return tail(digits) * math.sqrt(sigma2) / 2 ** scale_bits(p, clients) + rounding


# Public contexts, §4.2.


def row_bytes(prime: int) -> int:
    """Bytes of one residue, §7.1."""
    return (prime.bit_length() + 7) // 8


def pack(residues: Pair, primes: Sequence[int]) -> bytes:
    """A key or a ciphertext as bytes, §7.1."""
    return b"".join(
        b"".join(c.to_bytes(row_bytes(prime), "little") for c in row)
        for polynomial in residues
        for row, prime in zip(polynomial, primes, strict=True)
    )


def unpack(data: bytes, degree: int, primes: Sequence[int], fault: Callable[[], Failure]) -> Pair:
    """The inverse, of bytes of the right length; `fault` is raised for what is no residue."""
    at, found = 0, []
    for _ in range(2):
        rows = []
        for prime in primes:
            size = row_bytes(prime)
            row = tuple(int.from_bytes(data[at + size * i : at + size * (i + 1)], "little") for i in range(degree))
            require(max(row) < prime, fault)
            rows.append(row)
            at += size * degree
        found.append(tuple(rows))
    return tuple(found)


def pair_bytes(degree: int, primes: Sequence[int]) -> int:
    """Bytes of a key or a ciphertext, §7.1."""
    return 2 * degree * sum(map(row_bytes, primes))


@functools.cache
def read_key(p: Any, data: bytes) -> Pair:
    """A public key of a context, §4.2."""
    require(len(data) == pair_bytes(p.degree, p.coefficient_moduli), InputError, "context.key")
    return unpack(data, p.degree, p.coefficient_moduli, lambda: InputError("context.residue"))


def read_context(data: bytes) -> Any:
    """Decode and check a public context, §4.2."""
    context = decode(PublicContext, data, InputError)
    check_parameters(context.parameters)
    require(SCHEMES.get(context.protocol) == context.parameters.scheme, InputError, "context.protocol")
    require(len(context.keys) == max(1, len(context.parameters.plain_moduli)), InputError, "context.keys")
    for key in context.keys:
        read_key(context.parameters, key)
    require(is_signed(context), InputError, "context.signature")
    return context
