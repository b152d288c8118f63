"""Shamir's secret sharing of 32-byte secrets over the field of p = 2**256 + 297 elements (Shamir 1979).

The field is larger than the secrets, so a raw 32-byte key is one element, and an element takes 33 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fedopal_secure.core.errors import MisuseError

PRIME: Final = 2**256 + 297
SHARE_BYTES: Final = 33
SECRET_BYTES: Final = 32

Entropy = Callable[[int], bytes]


def _random_element(entropy: Entropy) -> int:
    # 257 bits at a time, rejecting what is not below p: uniform, and half of the draws are accepted.
    while True:
        element = int.from_bytes(entropy(SHARE_BYTES), "big") >> 7
        if element < PRIME:
            return element


def split(secret: bytes, threshold: int, indices: Sequence[int], entropy: Entropy) -> list[bytes]:
    """Share a 32-byte secret among holders with distinct positive indices, any `threshold` of which rebuild it.

    The polynomial's coefficients are drawn afresh from `entropy` (a function from a count to that many uniform
    bytes). Returns one 33-byte share for each index, big-endian.
    """
    if len(secret) != SECRET_BYTES:
        raise MisuseError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(indices) or len(set(indices)) != len(indices) or min(indices) < 1:
        raise MisuseError("sharing needs distinct positive indices, at least as many as the threshold")
    coefficients = [_random_element(entropy) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "big"))
    shares = []
    for index in indices:
        value = 0
        for coefficient in coefficients:
            value = (value * index + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


class Basis:
    """The Lagrange basis on some indices: turns values there into values elsewhere, for polynomials of lower degree."""

    def __init__(self, indices: Sequence[int]) -> None:
        """`indices` are distinct and positive."""
        self._indices = tuple(indices)
        self._inverses: dict[int, int] = {}
        self._weights = []
        for own in indices:
            product = 1
            for other in indices:
                if other != own:
                    product = product * (own - other) % PRIME
            self._weights.append(pow(product, -1, PRIME))

    def at(self, point: int) -> list[int]:
        """One coefficient for each index, for the value at a point that is none of them.

        The barycentric form: linear in the indices, where the textbook product is quadratic for every point.
        """
        whole = 1
        for index in self._indices:
            whole = whole * (point - index) % PRIME
        return [
            whole * weight % PRIME * self._inverse(point - index) % PRIME
            for index, weight in zip(self._indices, self._weights, strict=True)
        ]

    def _inverse(self, difference: int) -> int:
        if difference not in self._inverses:
            self._inverses[difference] = pow(difference, -1, PRIME)
        return self._inverses[difference]


class Recovery:
    """Rebuilds many secrets from the shares of one set of holders.

    The coefficients depend on the holders only, so they are computed once and a secret costs a few products.
    """

    def __init__(self, indices: Sequence[int], threshold: int) -> None:
        """`indices` are the holders whose shares are at hand, at least `threshold` of them, without repeats."""
        if len(set(indices)) != len(indices) or len(indices) < threshold:
            raise MisuseError("recovery needs shares of at least the threshold of distinct holders")
        self._threshold = threshold
        basis = Basis(indices[:threshold])
        self._at_zero = basis.at(0)
        self._at_extra = [basis.at(extra) for extra in indices[threshold:]]

    def combine(self, shares: Sequence[bytes]) -> bytes | None:
        """The secret, or None if the shares lie on no polynomial of the degree or it is not a 32-byte secret.

        `shares` are in the order of the indices. Shares beyond the threshold are checked, not ignored: otherwise a
        dealer could make the result depend on whose shares happen to be used.
        """
        values = [int.from_bytes(share, "big") for share in shares]
        if any(value >= PRIME for value in values):
            return None  # the same element in a second form: no honest dealer makes one
        base, extra = values[: self._threshold], values[self._threshold :]
        for coefficients, value in zip(self._at_extra, extra, strict=True):
            if _dot(coefficients, base) != value:
                return None
        secret = _dot(self._at_zero, base)
        return secret.to_bytes(SECRET_BYTES, "big") if secret < 2**256 else None


def _dot(coefficients: Sequence[int], values: Sequence[int]) -> int:
    return sum(c * v for c, v in zip(coefficients, values, strict=True)) % PRIME
