"""The point from which every client starts to tune its prompts, and the name of prompts that are public."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import MisuseError


def initial_prompts(seed: bytes, tokens: int, dimension: int, std: float = 0.02) -> NDArray[np.float32]:
    """P_init of FedOPAL eq. 6: float32 (tokens, dimension), uniform with mean 0 and standard deviation `std`.

    Every client must start from the same point, so that averaging prompts makes sense. The numbers are read off a
    SHAKE-256 stream of the session's seed (32 bytes) with exact arithmetic only: they are the same on any machine and
    with any version of any library, which a generator of normal variates does not promise.
    """
    if len(seed) != 32:
        raise MisuseError(f"a prompt seed of {len(seed)} bytes: give 32")
    if tokens < 1 or dimension < 1:
        raise MisuseError(f"prompts of shape ({tokens}, {dimension}): both must be at least 1")
    stream = hashlib.shake_256(b"fedopal-secure/initial-prompts/v1" + seed).digest(4 * tokens * dimension)
    # 24 bits are what a float32 in [-1, 1) holds exactly; a uniform on it has variance 1/3.
    signed = (np.frombuffer(stream, "<u4") >> 8).astype(np.float64) / 2**23 - 1
    prompts: NDArray[np.float32] = (signed * (std * np.sqrt(3.0))).astype(np.float32).reshape(tokens, dimension)
    return prompts


def prompts_digest(prompts: NDArray[np.float32]) -> bytes:
    """SHA-256 of public prompts, float32 (tokens, dimension), as the task names them."""
    return hashlib.sha256(repr(prompts.shape).encode() + prompts.astype("<f4").tobytes()).digest()
