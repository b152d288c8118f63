"""How a vector becomes ciphertexts, and ciphertexts a payload: packing, encryption, addition.

Sections (§) are those of spec.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from protocols.he.v1 import messages as m
from protocols.he.v1 import scheme
from protocols.he.v1.scheme import Entropy, Pair
from protocols.secagg.v1.primitives import Failure, MisuseError, PolicyRefusal, require

# Packing, §6.


def moduli_for(width: int, moduli: Sequence[int]) -> int:
    """How many of the plain moduli carry an entry of that many bytes, §6.1."""
    for count in range(1, len(moduli) + 1):
        if math.prod(moduli[:count]) > 2 ** (8 * width + 1):
            return count
    raise PolicyRefusal("segments")


def digits_of(width: int) -> int:
    """How many digits an entry of that many bytes has, §6.2."""
    return (8 * width + 23) // 24


def signed_value(entry: int, width: int) -> int:
    """The integer nearest to zero with the low `width` bytes of an entry."""
    low = entry % 256**width
    return low - 256**width if 2 * low >= 256**width else low


def parts_of(vector: Sequence[int], segments: Sequence[Any]) -> Iterator[tuple[Any, Sequence[int]]]:
    """Each segment with its entries."""
    at = 0
    for s in segments:
        yield s, vector[at : at + s.length]
        at += s.length


def slots_of(p: Any, params: Any) -> list[int]:
    """How many integers a vector becomes under each key, §6."""
    if params.modulus:
        return [sum(s.length for s in params.segments)] + [0] * (len(p.plain_moduli) - 1)
    if p.scheme == "bfv":
        needed = [(s.length, moduli_for(s.width, p.plain_moduli)) for s in params.segments]
        return [sum(length for length, count in needed if count > i) for i in range(len(p.plain_moduli))]
    return [sum(s.length * digits_of(s.width) for s in params.segments)]


def to_slots(vector: Sequence[int], p: Any, params: Any) -> list[list[int]]:
    """What is encrypted under each key, §6."""
    if params.modulus:
        return [list(vector)] + [[] for _ in p.plain_moduli[1:]]
    found: list[list[int]] = [[] for _ in p.plain_moduli or "1"]
    for s, entries in parts_of(vector, params.segments):
        if p.scheme == "bfv":
            values = [signed_value(e, s.width) if s.signed else e % 256**s.width for e in entries]
            for i in range(moduli_for(s.width, p.plain_moduli)):
                found[i] += [value % p.plain_moduli[i] for value in values]
            continue
        values = [signed_value(e, s.width) for e in entries]
        for _ in range(digits_of(s.width)):
            digits = [(value + 2**23) % 2**24 - 2**23 for value in values]
            found[0] += digits
            values = [signed_value(value - digit, 8) >> 24 for value, digit in zip(values, digits, strict=True)]
    return found


def from_slots(parts: Sequence[Sequence[int]], p: Any, params: Any) -> list[int]:
    """A vector from what was decrypted under each key, each entry below 2^(8 width), §6; the rest is ignored."""
    if params.modulus:
        return list(parts[0][: sum(s.length for s in params.segments)])
    read, found = [0] * len(parts), []
    for s in params.segments:
        count = moduli_for(s.width, p.plain_moduli) if p.scheme == "bfv" else digits_of(s.width)
        rows = []
        for i in range(count):
            key = i if p.scheme == "bfv" else 0
            rows.append(parts[key][read[key] : read[key] + s.length])
            read[key] += s.length
        if p.scheme == "bfv":
            moduli = p.plain_moduli[:count]
            values = scheme.centred(scheme.combined(rows, moduli), math.prod(moduli))
        else:
            values = [sum(digit << 24 * i for i, digit in enumerate(digits)) for digits in zip(*rows, strict=True)]
        found += [value % 256**s.width for value in values]
    return found


# Ciphertexts, §7.


def ciphertexts_of(p: Any, params: Any) -> list[int]:
    """How many ciphertexts a vector becomes under each key, §7.1."""
    return [-(-slots // p.degree) for slots in slots_of(p, params)]


def to_payload(ciphertexts: Sequence[Pair], p: Any) -> bytes:
    """Ciphertexts as a payload, §7.1."""
    return b"".join(m.pack(c, p.coefficient_moduli[:-1]) for c in ciphertexts)


def from_payload(data: bytes, p: Any, params: Any, fault: Callable[[str], Failure], what: str) -> list[Pair]:
    """A payload as ciphertexts, §7.1."""
    primes, count = p.coefficient_moduli[:-1], sum(ciphertexts_of(p, params))
    size = m.pair_bytes(p.degree, primes)
    require(len(data) == count * size, fault, f"{what}.length")

    def wrong() -> Failure:
        return fault(f"{what}.residue")

    return [m.unpack(data[i * size : (i + 1) * size], p.degree, primes, wrong) for i in range(count)]


def encrypt(vector: Sequence[int], params: Any, context: Any, entropy: Entropy) -> bytes:
    """A vector as the payload of an upload, §5.4 and §7.1; what is left of a ciphertext is filled with zeros."""
    p, found = context.parameters, []
    scale = m.scale_bits(p, params.clients)
    for place, part in enumerate(to_slots(vector, p, params)):
        public = m.read_key(p, context.keys[place])
        for at in range(0, len(part), p.degree):
            filled = part[at : at + p.degree] + [0] * max(0, at + p.degree - len(part))
            if p.scheme == "bfv":
                found.append(scheme.encrypt_bfv(p, p.plain_moduli[place], public, filled, entropy))
            else:
                found.append(scheme.encrypt_ckks(p, scale, public, filled, entropy))
    return to_payload(found, p)


def add_payloads(payloads: Sequence[bytes], p: Any, params: Any) -> bytes:
    """The payload of a sum, §7.2."""
    read = [from_payload(data, p, params, MisuseError, "total") for data in payloads]
    primes = p.coefficient_moduli[:-1]
    total = read[0]
    for other in read[1:]:
        total = [scheme.add(a, b, primes) for a, b in zip(total, other, strict=True)]
    return to_payload(total, p)
