"""Shamir's secret sharing of 32-byte secrets over the field of p = 2**256 + 297 elements (Shamir 1979).

The field is larger than the secrets, so a raw 32-byte key is one element, and an element takes 33 bytes.
"""

from __future__ import annotations

import itertools
import math
import operator
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


class Recovery:
    """Rebuilds many secrets from the shares of one set of holders.

    What depends on the holders only is computed once, and a secret then costs a few products.
    """

    def __init__(self, indices: Sequence[int], threshold: int) -> None:
        """`indices` are the holders whose shares are at hand, at least `threshold` of them, without repeats."""
        if len(set(indices)) != len(indices) or len(indices) < threshold:
            raise MisuseError("recovery needs shares of at least the threshold of distinct holders")
        # Lagrange: value at 0 = sum of v_i * prod(x_j / (x_j - x_i)), over all indices, not only `threshold` of them.
        denominators = [math.prod(own - other for other in indices if other != own) % PRIME for own in indices]
        weights = _inverses(denominators)
        away = math.prod(-index for index in indices) % PRIME
        inverses = _inverses([-index % PRIME for index in indices])
        self._at_zero = [away * inverse * weight % PRIME for inverse, weight in zip(inverses, weights, strict=True)]
        # Values lie on a polynomial of degree below t if and only if sum of v_i * w_i * x_i**r is 0 for r < n - t (the
        # dual of a Reed-Solomon code).
        self._checks = []
        for _ in range(len(indices) - threshold):
            self._checks.append(weights)
            weights = [weight * index % PRIME for weight, index in zip(weights, indices, strict=True)]

    def combine(self, shares: Sequence[bytes]) -> bytes | None:
        """The secret, or None if the shares lie on no polynomial of the degree or it is not a 32-byte secret.

        `shares` are in the order of the indices. Shares beyond the threshold are checked, not ignored: otherwise a
        dealer could make the result depend on whose shares happen to be used.
        """
        values = [int.from_bytes(share, "big") for share in shares]
        if any(value >= PRIME for value in values):
            return None  # the same element in a second form: no honest dealer makes one
        if any(_dot(check, values) for check in self._checks):
            return None
        secret = _dot(self._at_zero, values)
        return secret.to_bytes(SECRET_BYTES, "big") if secret < 2**256 else None


def _dot(coefficients: Sequence[int], values: Sequence[int]) -> int:
    total: int = sum(map(operator.mul, coefficients, values))
    return total % PRIME


def _inverses(elements: Sequence[int]) -> list[int]:
    # Montgomery's trick: one inversion and three products for each.
    products = list(itertools.accumulate(elements, lambda product, element: product * element % PRIME))
    inverse, inverses = pow(products[-1], -1, PRIME), []
    for before, element in zip([*products[-2::-1], 1], reversed(elements), strict=True):
        inverses.append(inverse * before % PRIME)
        inverse = inverse * element % PRIME
    return inverses[::-1]
