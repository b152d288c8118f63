"""BFV and CKKS as in a textbook: keys, encryption, addition and decryption, with entropy as an argument.

The middle layer of the reference; ring.py is below it, reference.py above. Sections (§) are those of spec.md. A
polynomial is a list of N coefficients; a key or ciphertext is two polynomials, each as a list of residues for each of
its primes: key[polynomial][prime][coefficient].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from protocols.he.v1 import ring

Entropy = Callable[[int], bytes]
Polynomial = Sequence[int]
Pair = tuple[tuple[tuple[int, ...], ...], ...]


# Sampling, §12.2. The distributions are part of the security argument, how bytes become samples is not.


def ternary(entropy: Entropy, n: int) -> list[int]:
    """Uniform in {-1, 0, 1}: a byte modulo 3, less 1; 255 is skipped."""
    found: list[int] = []
    while len(found) < n:
        found += [byte % 3 - 1 for byte in entropy(n - len(found)) if byte < 255]
    return found


def errors(entropy: Entropy, n: int) -> list[int]:
    """Centred binomial in [-21, 21]: of 6 bytes, least significant first, bits 0 to 20 less bits 21 to 41."""
    drawn, ones = entropy(6 * n), 2**21 - 1
    words = [int.from_bytes(drawn[6 * i : 6 * i + 6], "little") for i in range(n)]
    return [(word & ones).bit_count() - (word >> 21 & ones).bit_count() for word in words]


def uniform(entropy: Entropy, n: int, prime: int) -> list[int]:
    """Uniform residues: words of 8 bytes, least significant first, cut to the prime's bits, skipped unless below it."""
    found: list[int] = []
    while len(found) < n:
        drawn, ones = entropy(8 * (n - len(found))), 2 ** prime.bit_length() - 1
        words = [int.from_bytes(drawn[i : i + 8], "little") & ones for i in range(0, len(drawn), 8)]
        found += [word for word in words if word < prime]
    return found


# Remainders of one large integer.


def remainders(polynomial: Polynomial, primes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """A polynomial with integer coefficients as its residues modulo each prime."""
    return tuple(tuple(c % prime for c in polynomial) for prime in primes)


def combined(residues: Sequence[Polynomial], primes: Sequence[int]) -> list[int]:
    """The polynomial with these residues, coefficients from 0 to the product of the primes less 1."""
    whole = math.prod(primes)
    parts = [whole // prime * pow(whole // prime, -1, prime) for prime in primes]
    return [sum(c * part for c, part in zip(row, parts, strict=True)) % whole for row in zip(*residues, strict=True)]


def centred(values: Sequence[int], modulus: int) -> list[int]:
    """The residues nearest to zero of an odd modulus."""
    return [(value + modulus // 2) % modulus - modulus // 2 for value in values]


# Keys, §4.


def make_key(p: Any, entropy: Entropy) -> tuple[Pair, list[int]]:
    """A public key in NTT form and its secret key, a ternary polynomial: pk = (-(a s + e), a), §4.1."""
    secret, error = ternary(entropy, p.degree), errors(entropy, p.degree)
    second = tuple(tuple(uniform(entropy, p.degree, prime)) for prime in p.coefficient_moduli)
    first = []
    for row, prime in zip(second, p.coefficient_moduli, strict=True):
        noisy = [
            -(c + e) % prime for c, e in zip(ring.product(ring.from_ntt(row, prime), secret, prime), error, strict=True)
        ]
        first.append(tuple(ring.to_ntt(noisy, prime)))
    return (tuple(first), second), secret


def key_error(p: Any, public: Pair, secret: Polynomial) -> list[int] | None:
    """pk0 + pk1 s, if it is the same small polynomial modulo every coefficient modulus, else nothing, §4.1."""
    found = []
    for first, second, prime in zip(*public, p.coefficient_moduli, strict=True):
        a, b = ring.from_ntt(second, prime), ring.from_ntt(first, prime)
        relation = [(x + y) % prime for x, y in zip(b, ring.product(a, secret, prime), strict=True)]
        found.append(centred(relation, prime))
    small = all(abs(c) <= 21 for c in found[0])
    return found[0] if small and all(other == found[0] for other in found) else None


# Encryption, §5.4.


def encrypt_zero(p: Any, public: Pair, entropy: Entropy) -> list[list[int]]:
    """Two polynomials modulo q with c0 + c1 s = v: pk u + e modulo all coefficient moduli, divided by P and rounded."""
    primes, q = p.coefficient_moduli, math.prod(p.coefficient_moduli[:-1])
    mask, found = ternary(entropy, p.degree), []
    for half in public:
        noise = errors(entropy, p.degree)
        rows = []
        for row, prime in zip(half, primes, strict=True):
            hidden = ring.product(ring.from_ntt(row, prime), mask, prime)
            rows.append([(c + e) % prime for c, e in zip(hidden, noise, strict=True)])
        found.append([(c + primes[-1] // 2) // primes[-1] % q for c in combined(rows, primes)])
    return found


def encrypt_bfv(p: Any, modulus: int, public: Pair, slots: Sequence[int], entropy: Entropy) -> Pair:
    """N residues modulo the plain modulus in one ciphertext, coefficients modulo the primes of q."""
    primes = p.coefficient_moduli[:-1]
    q, (first, second) = math.prod(primes), encrypt_zero(p, public, entropy)
    message = [(2 * q * m + modulus) // (2 * modulus) for m in ring.from_slots(slots, modulus)]
    return remainders([a + b for a, b in zip(first, message, strict=True)], primes), remainders(second, primes)


def encrypt_ckks(p: Any, scale_bits: int, public: Pair, digits: Sequence[int], entropy: Entropy) -> Pair:
    """N digits in one ciphertext, in NTT form: N/2 real parts, then N/2 imaginary parts."""
    primes, half = p.coefficient_moduli[:-1], p.degree // 2
    first, second = encrypt_zero(p, public, entropy)
    message = ring.from_complex_slots(list(zip(digits[:half], digits[half:], strict=True)), scale_bits)
    pair = [a + b for a, b in zip(first, message, strict=True)], second
    return tuple(tuple(tuple(ring.to_ntt(c, prime)) for prime in primes) for c in pair)


# Addition, §7.2.


def add(a: Pair, b: Pair, primes: Sequence[int]) -> Pair:
    """The sum of two ciphertexts, residue by residue."""
    return tuple(
        tuple(
            tuple((x + y) % prime for x, y in zip(r, s, strict=True))
            for r, s, prime in zip(one, other, primes, strict=True)
        )
        for one, other in zip(a, b, strict=True)
    )


# Decryption, §5.5 and §5.6.


def phase(p: Any, secret: Polynomial, ciphertext: Pair, *, ntt: bool) -> list[int]:
    """c0 + c1 s modulo q, coefficients nearest to zero."""
    primes, rows = p.coefficient_moduli[:-1], []
    for first, second, prime in zip(*ciphertext, primes, strict=True):
        c0, c1 = (ring.from_ntt(row, prime) if ntt else row for row in (first, second))
        rows.append([(x + y) % prime for x, y in zip(c0, ring.product(c1, secret, prime), strict=True)])
    return centred(combined(rows, primes), math.prod(primes))


def decrypt_bfv(p: Any, modulus: int, secret: Polynomial, ciphertext: Pair) -> tuple[list[int], int]:
    """The residues in the slots, and W of §5.5: the largest coefficient of t (c0 + c1 s) modulo q."""
    q, opened = math.prod(p.coefficient_moduli[:-1]), phase(p, secret, ciphertext, ntt=False)
    message = [(2 * modulus * c + q) // (2 * q) % modulus for c in opened]
    noise = centred([modulus * c % q for c in opened], q)
    return ring.to_slots(message, modulus), max(map(abs, noise))


def decrypt_ckks(p: Any, scale_bits: int, secret: Polynomial, ciphertext: Pair) -> tuple[list[int], Fraction]:
    """The digits nearest to what the slots hold, and how far from an integer the farthest was."""
    slots, unit = ring.to_complex_slots(phase(p, secret, ciphertext, ntt=True)), 1 << ring.FRACTION + scale_bits
    parts = [real for real, _ in slots] + [imaginary for _, imaginary in slots]
    digits = [(2 * part + unit) // (2 * unit) for part in parts]
    farthest = max(abs(part - digit * unit) for part, digit in zip(parts, digits, strict=True))
    return digits, Fraction(farthest, unit)
