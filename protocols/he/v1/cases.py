"""The contexts and sessions that the vectors record, and the edges of packing and of parameters."""

from __future__ import annotations

import hashlib
import itertools
from functools import cache
from types import SimpleNamespace
from typing import Any

from protocols.he.v1 import messages, packing, scheme
from protocols.he.v1.messages import Parameters
from protocols.secagg.v1 import cases as secagg
from protocols.secagg.v1 import sessions
from protocols.secagg.v1.primitives import Segment, identity_of

Vector = dict[str, Any]
BFV_ONE = Parameters("bfv", 4096, (68719403009, 68719230977, 68719206401), (1099511480321,))
CONTEXTS = {
    "bfv": ("two plain moduli of 50 bits: the defaults of BFV", "bfv/v1", messages.BFV),
    "bfv_one": ("one plain modulus of 40 bits", "bfv/v1", BFV_ONE),
    "bfv_other": ("the defaults of BFV with keys of another authority", "bfv/v1", messages.BFV),
    "masked": ("the defaults of BFV, for masked sums", "bfv-masked/v1", messages.BFV),
    "ckks": ("the defaults of CKKS", "ckks/v1", messages.CKKS),
}


def authority_key(name: str) -> bytes:
    """The signing key of the authority of a context."""
    return sessions.shake(f"he/{name}/authority key", 32)


@cache
def context(name: str) -> tuple[Any, list[list[int]]]:
    """A public context and its secret keys, spec.md §12.2."""
    _, protocol, p = CONTEXTS[name]
    pairs = [scheme.make_key(p, sessions.entropy(f"he/{name}/key {i}")) for i in range(max(1, len(p.plain_moduli)))]
    keys = tuple(messages.pack(public, p.coefficient_moduli) for public, _ in pairs)
    key = authority_key(name)
    signed = messages.sign(key, messages.PublicContext, protocol, p, keys, identity_of(key))
    return signed, [secret for _, secret in pairs]


def parameters_to_json(p: Any) -> Vector:
    """Parameters as an object; moduli are decimal strings."""
    moduli = {name: [str(prime) for prime in getattr(p, name)] for name in ("coefficient_moduli", "plain_moduli")}
    return {"scheme": p.scheme, "degree": p.degree} | moduli


def parameters_from_json(fields: Vector) -> Any:
    """The inverse of `parameters_to_json`."""
    moduli = (tuple(map(int, fields[name])) for name in ("coefficient_moduli", "plain_moduli"))
    return Parameters(fields["scheme"], fields["degree"], *moduli)


# Sessions.


@cache
def honest() -> dict[str, Vector]:
    """Name -> input of every session, in the form of secagg/v1 §14.2, with the context's name."""
    wide = Segment("x", 5, 5, True), Segment("n", 2, 8, False), Segment("w", 3, 7, True)
    narrow = Segment("x", 6, 4, True), Segment("n", 2, 3, False)
    prime = (Segment("x", 8, 7, True),)
    t = messages.BFV.plain_moduli[0]
    return {
        "bfv_two_moduli": session("entries of 7 and 8 bytes take a second plain modulus", "bfv/v1", "bfv", wide),
        "bfv_one_modulus": session("entries that fit one plain modulus", "bfv/v1", "bfv_one", narrow, authority=True),
        "ckks": session("digits to base 2^24, one to three for an entry", "ckks/v1", "ckks", (*wide, narrow[1])),
        "bfv_masked": session("masks inside the encryption; one of four is gone before it uploads", "bfv-masked/v1",
            "masked", prime, clients=4, modulus=t, gone={"upload": [1]}),
    }  # fmt: skip


def session(
    claim: str, protocol: str, of: str, segments: tuple[Any, ...], clients: int = 3, modulus: int = 0, **more: Any
) -> Vector:
    """One session; each client's entries are drawn so that the sum keeps to the widths."""
    name = f"he/{protocol}/{of}"
    segments = tuple(s._replace(name=f"{s.name}{i}") for i, s in enumerate(segments))
    vectors = [[entry % (modulus or 2**64) for entry in drawn(f"{name}/{i}", segments)] for i in range(clients)]
    pinned = messages.context_hash(context(of)[0])
    changes = {"protocol": protocol, "modulus": modulus, "public_context": pinned, "segments": segments}
    vector = secagg.session(claim, name, clients, 0, vectors=vectors, **changes, **more)
    vector["policy"]["protocols"] = [protocol]
    return vector | {"public_context_of": of}


def drawn(name: str, segments: tuple[Any, ...]) -> list[int]:
    """Entries within a quarter of the widths; the first two of each segment are the extreme ones."""
    found = []
    for number, s in enumerate(segments):
        span = 2 ** (8 * s.width - 2) if s.width < 8 or s.signed else 2**60
        low = -span // 2 if s.signed else 0
        stream = sessions.shake(f"{name}/{number}", 8 * s.length)
        words = [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(s.length)]
        found += [low, low + span - 1, *(low + word % span for word in words[2:])]
    return found


# Packing, spec.md §6.


def packings() -> list[Vector]:
    """Edge values of every width and signedness under both schemes; the vector that comes back is the same."""
    rows = []
    for p, width, signed in itertools.product((messages.BFV, messages.CKKS), range(1, 9), (False, True)):
        top = 2 ** (8 * width - signed)
        values = [0, 1, top - 1, top // 2, -top, -1] if signed else [0, 1, top - 1, top // 2, top - 2, 255]
        rows.append(packed(p, [Segment("x", len(values), width, signed)], values))
    digits = [2**23 - 1, 2**23, 2**24 - 1, 2**24, 2**47 - 1, 2**47, -(2**23), -(2**23) - 1]
    rows.append(packed(messages.CKKS, [Segment("x", len(digits), 8, True)], digits))
    two = [Segment("x", 2, 8, True), Segment("y", 3, 2, False), Segment("z", 2, 7, False)]
    rows += [packed(p, two, [-5, 6, 7, 8, 9, 2**55, 2**54 + 1]) for p in (messages.BFV, messages.CKKS)]
    return rows


def packed(p: Any, segments: list[Any], values: list[int]) -> Vector:
    """A vector, and what is encrypted of it."""
    params = SimpleNamespace(segments=segments, modulus=0)
    slots = packing.to_slots([value % 2**64 for value in values], p, params)
    back = packing.from_slots(slots, p, params)
    widths = [s.width for s in segments for _ in range(s.length)]
    if back != [value % 256**width for value, width in zip(values, widths, strict=True)]:
        raise SystemExit(f"{values} do not come back")
    return {
        "scheme": p.scheme,
        "plain_moduli": [str(t) for t in p.plain_moduli],
        "segments": [s._asdict() for s in segments],
        "vector": [str(value % 2**64) for value in values],
        "slots": [[str(slot) for slot in part] for part in slots],
    }


# Parameters, spec.md §2.

MERSENNE = 2**31 - 1
CARMICHAEL = 422311 * 844621 * 1266931  # passes Fermat's test to every base that is prime to it


def parameter_sets() -> list[tuple[str, Any, str]]:
    """(claim, parameters, the check that fails or nothing)."""
    b, c = messages.BFV, messages.CKKS
    q, t = b.coefficient_moduli, b.plain_moduli
    # Primes that are 1 modulo 2N, at the edges.
    big = next(v for v in range(2**60 - 2**60 % 8192 + 1, 0, -8192) if v < 2**60 and messages.is_prime(v))
    over = next(v for v in range(2**60 + 1, 2**61, 8192) if messages.is_prime(v))
    wide = next(v for v in range(2**50 + 1, 2**51, 8192) if messages.is_prime(v))
    small = next(v for v in range(8193, 2**20, 8192) if messages.is_prime(v))
    return [
        ("the defaults of BFV", b, ""),
        ("the defaults of CKKS", c, ""),
        ("one plain modulus", BFV_ONE, ""),
        ("the largest prime there is", c._replace(coefficient_moduli=(big, q[2])), ""),
        ("a scheme that is neither", b._replace(scheme="bgv"), "scheme"),
        ("no scheme", b._replace(scheme=""), "scheme"),
        ("a degree that the table lacks", b._replace(degree=512), "degree"),
        ("a degree that is no power of two", b._replace(degree=4095), "degree"),
        ("one coefficient modulus", b._replace(coefficient_moduli=q[:1]), "count"),
        ("no coefficient moduli", b._replace(coefficient_moduli=()), "count"),
        ("a composite coefficient modulus", b._replace(coefficient_moduli=(q[0], 8192 * 2 + 1, q[2])), "prime"),
        ("a Carmichael number that is 1 modulo 2N", c._replace(coefficient_moduli=(q[0], CARMICHAEL)), "prime"),
        ("a prime that is not 1 modulo 2N", b._replace(coefficient_moduli=(q[0], MERSENNE, q[2])), "prime"),
        ("an even modulus", b._replace(coefficient_moduli=(q[0], 2**29, q[2])), "prime"),
        ("a prime above 2^60", c._replace(coefficient_moduli=(over, q[2])), "prime"),
        ("a composite plain modulus", b._replace(plain_moduli=(t[0], t[1] + 8192)), "prime"),
        ("a coefficient modulus twice", b._replace(coefficient_moduli=(q[0], q[0], q[2])), "twice"),
        ("a plain modulus twice", b._replace(plain_moduli=(t[0], t[0])), "twice"),
        ("a plain modulus that is a coefficient modulus", b._replace(plain_moduli=(q[2],)), "twice"),
        (
            "110 bits of coefficient moduli at degree 4096",
            b._replace(coefficient_moduli=(*q[:2], 536903681)),
            "security",
        ),
        ("100 bits of coefficient moduli at degree 2048", b._replace(degree=2048), "security"),
        ("a plain modulus with CKKS", c._replace(plain_moduli=t), "plain"),
        ("no plain modulus with BFV", b._replace(plain_moduli=()), "plain"),
        ("a scale that leaves no room", c._replace(coefficient_moduli=(q[2], small)), "error"),
        ("a plain modulus of 51 bits", b._replace(plain_moduli=(wide,)), "plain_bits"),
        ("q too small for the largest cohort", b._replace(coefficient_moduli=(q[0], q[2], q[1])), "noise"),
        ("a small P", b._replace(coefficient_moduli=(*q[:2], small)), ""),
    ]


def sha(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
