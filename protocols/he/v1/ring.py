"""Polynomials modulo X^N + 1: products and values at roots, modulo a prime and, for CKKS, over the complex numbers.

The lowest layer of the reference. Sections (§) are those of spec.md. Nothing here is constant in time. Complex numbers
are pairs of integers with `FRACTION` bits after the point, so results are the same on every machine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

FRACTION = 128
Complex = tuple[int, int]


@functools.cache
def least_root(prime: int, order: int) -> int:
    """The least primitive root of unity of an order, a power of two, modulo a prime, §5.1."""
    found = next(
        root
        for root in (pow(base, (prime - 1) // order, prime) for base in range(2, prime))
        if pow(root, order // 2, prime) == prime - 1
    )
    square, powers = found * found % prime, [found]
    while len(powers) < order // 2:  # the primitive roots are the odd powers of any one of them
        powers.append(powers[-1] * square % prime)
    return min(powers)


@functools.cache
def powers_of(root: int, prime: int, count: int) -> list[int]:
    """1, root, root^2, ..."""
    found = [1]
    while len(found) < count:
        found.append(found[-1] * root % prime)
    return found


def dft(values: list[Any], roots: list[Any], turn: Callable[[Any, Any], Any], fold: Callable[[Any, Any], Any]) -> Any:
    """Σ_j values[j] root^(ij) for each i; `roots` are root^0, root^1, ...; `fold` gives a sum and a difference."""
    if len(values) == 1:
        return values
    even = dft(values[::2], roots[::2], turn, fold)
    odd = dft(values[1::2], roots[::2], turn, fold)
    both = [fold(e, turn(w, o)) for e, w, o in zip(even, roots, odd, strict=False)]
    return [added for added, _ in both] + [subtracted for _, subtracted in both]


def values_at_roots(polynomial: Sequence[int], prime: int) -> list[int]:
    """The values at psi, psi^3, psi^5, ... for the least primitive 2N-th root psi, §5.1."""
    n = len(polynomial)
    psi = least_root(prime, 2 * n)
    turned = [c * w % prime for c, w in zip(polynomial, powers_of(psi, prime, n), strict=True)]
    found: list[int] = dft(
        turned,
        powers_of(psi * psi % prime, prime, n),
        lambda w, o: w * o % prime,
        lambda e, o: ((e + o) % prime, (e - o) % prime),
    )
    return found


def from_values(values: Sequence[int], prime: int) -> list[int]:
    """The inverse of `values_at_roots`."""
    n = len(values)
    psi = least_root(prime, 2 * n)
    back = pow(psi, -1, prime)
    found = dft(
        list(values),
        powers_of(back * back % prime, prime, n),
        lambda w, o: w * o % prime,
        lambda e, o: ((e + o) % prime, (e - o) % prime),
    )
    share = pow(n, -1, prime)
    return [c * share % prime * w % prime for c, w in zip(found, powers_of(back, prime, n), strict=True)]


def product(a: Sequence[int], b: Sequence[int], prime: int) -> list[int]:
    """a b modulo X^N + 1 and a prime, coefficients from 0 to prime - 1; fast if those of one factor are near zero.

    One product of large integers (Kronecker): nothing is built on the roots that the rest of the page is about.
    """
    n, bound = len(a), len(a) * max(1, *map(abs, a)) * max(1, *map(abs, b))
    size = (bound.bit_length() + 8) // 8

    def packed(polynomial: Sequence[int]) -> int:
        signs = [b"".join(max(0, s * c).to_bytes(size, "little") for c in polynomial) for s in (1, -1)]
        return int.from_bytes(signs[0], "little") - int.from_bytes(signs[1], "little")

    # Half of the span is added to every term, so that none is negative, and then taken off again.
    half = 1 << 8 * size - 1
    middle = int.from_bytes(half.to_bytes(size, "little") * (2 * n), "little")
    wide = (packed(a) * packed(b) + middle).to_bytes(2 * n * size, "little")
    terms = [int.from_bytes(wide[i : i + size], "little") - half for i in range(0, 2 * n * size, size)]
    return [(low - high) % prime for low, high in zip(terms[:n], terms[n:], strict=True)]


@functools.cache
def bit_reversed(n: int) -> list[int]:
    """i with its bits in the opposite order, for each i below n, a power of two."""
    bits = n.bit_length() - 1
    return [int(format(i, f"0{bits}b")[::-1], 2) if bits else 0 for i in range(n)]


def to_ntt(polynomial: Sequence[int], prime: int) -> list[int]:
    """NTT form, §5.1: entry i is the value at psi^(2j + 1), where j is i with its bits in the opposite order."""
    values = values_at_roots([c % prime for c in polynomial], prime)
    return [values[j] for j in bit_reversed(len(values))]


@functools.lru_cache(64)
def from_ntt(entries: tuple[int, ...], prime: int) -> list[int]:
    """The inverse of `to_ntt`."""
    return from_values([entries[j] for j in bit_reversed(len(entries))], prime)


@functools.cache
def slot_exponents(n: int) -> list[int]:
    """The odd exponent of the root that slot 0, 1, ... belongs to: 3^i, then -3^i, modulo 2N, §5.2."""
    half = [pow(3, i, 2 * n) for i in range(n // 2)]
    return half + [2 * n - exponent for exponent in half]


def to_slots(polynomial: Sequence[int], modulus: int) -> list[int]:
    """The residues in the slots of a BFV plaintext, §5.2."""
    values = values_at_roots(polynomial, modulus)
    return [values[exponent // 2] for exponent in slot_exponents(len(values))]


def from_slots(slots: Sequence[int], modulus: int) -> list[int]:
    """The BFV plaintext, N coefficients, with these residues in its slots, §5.2."""
    values = [0] * len(slots)
    for slot, exponent in zip(slots, slot_exponents(len(slots)), strict=True):
        values[exponent // 2] = slot
    return from_values(values, modulus)


# Complex numbers, for CKKS.


def complex_product(a: Complex, b: Complex) -> Complex:
    """a b."""
    return (a[0] * b[0] - a[1] * b[1]) >> FRACTION, (a[0] * b[1] + a[1] * b[0]) >> FRACTION


def _fold(a: Complex, b: Complex) -> tuple[Complex, Complex]:
    return (a[0] + b[0], a[1] + b[1]), (a[0] - b[0], a[1] - b[1])


@functools.cache
def complex_powers(order: int) -> list[Complex]:
    """The powers of exp(2 pi i / order), order a power of two and 4 at least, by halving a right angle."""
    one = 1 << FRACTION
    root, known = (0, one), 4
    while known < order:  # cos(x/2) = sqrt((1 + cos x) / 2), sin(x/2) likewise
        cosine = math.isqrt((one + root[0]) << (FRACTION - 1))
        root, known = (cosine, math.isqrt((one - root[0]) << (FRACTION - 1))), 2 * known
    found = [(one, 0)]
    while len(found) < order:
        found.append(complex_product(found[-1], root))
    return found


def to_complex_slots(polynomial: Sequence[int]) -> list[Complex]:
    """The values at the roots of slots 0 to N/2 - 1; those of the other slots are their conjugates, §5.3."""
    n = len(polynomial)
    powers = complex_powers(2 * n)
    turned = [(c * w[0], c * w[1]) for c, w in zip(polynomial, powers, strict=False)]
    values = dft(turned, powers[::2], complex_product, _fold)
    return [values[exponent // 2] for exponent in slot_exponents(n)[: n // 2]]


def from_complex_slots(slots: Sequence[tuple[int, int]], scale_bits: int) -> list[int]:
    """The polynomial nearest to 2^scale_bits times that of these Gaussian integers, §5.3; halves are rounded up."""
    n = 2 * len(slots)
    powers = complex_powers(2 * n)
    values: list[Complex] = [(0, 0)] * n
    for (real, imaginary), exponent in zip(slots, slot_exponents(n), strict=False):
        values[exponent // 2] = real << FRACTION, imaginary << FRACTION
        values[n - 1 - exponent // 2] = real << FRACTION, -imaginary << FRACTION
    back = [powers[-2 * j % (2 * n)] for j in range(n)]
    sums = dft(values, back, complex_product, _fold)
    turned = [complex_product(value, powers[-j % (2 * n)])[0] for j, value in enumerate(sums)]
    return [((c << scale_bits) + (n << FRACTION) // 2) // (n << FRACTION) for c in turned]
