"""Noise on integer sums: what each client adds before it masks, or a trusted server after it has the sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedopal_secure.core.shamir import Entropy
from fedopal_secure.encoding.layout import COUNTS
from fedopal_secure.privacy.gaussian import discrete_gaussian, tail_bound
from fedopal_secure.privacy.release import Release


def add_noise(
    arrays: Mapping[str, NDArray[np.int64]], release: Release, entropy: Entropy
) -> dict[str, NDArray[np.int64]]:
    """The arrays of `SufficientStatistics.to_arrays` as one contributor of noise releases them: int64 (length,) each.

    Counts are put on their finer grid first. `entropy` must be a cryptographic generator, and its bytes are used for
    nothing else: who knows them takes the noise off.
    """
    scaled = dict(arrays) | {COUNTS: arrays[COUNTS] * release.count_scale}
    for segment in release.segments:
        scaled[segment.name] = scaled[segment.name] + discrete_gaussian(segment.sigma, segment.length, entropy)
    return scaled


def noise_bounds(release: Release, contributors: int) -> dict[str, int]:
    """By segment, what the noise in a sum of at most so many contributors does not exceed, grid units.

    The chance that it does anywhere is at most 2**-40 for all segments together.
    """
    entries = sum(segment.length for segment in release.segments)
    return {segment.name: tail_bound(segment.sigma, contributors, entries) for segment in release.segments}


class Keystream:
    """Entropy of its own for what runs beside the protocol: the AES-256-CTR keystream of a 32-byte secret."""

    def __init__(self, secret: bytes) -> None:
        self._stream = Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor()

    def __repr__(self) -> str:
        return "Keystream(...)"

    def __call__(self, count: int) -> bytes:
        """The next `count` bytes."""
        return self._stream.update(bytes(count))
