"""Visual prompt tokens: where they are inserted, and the point from which every client starts to tune them."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedopal_secure.core.errors import MisuseError


def insert_prompts(tokens: Tensor, prompts: Tensor) -> Tensor:
    """Put prompts (M, D) between [CLS] and patches of tokens (n, 1 + L, D), giving (n, 1 + M + L, D); FedOPAL eq. 5.

    The tokens already carry their positional embedding (eq. 4) and the prompts get none: a prompt has no place.
    """
    shared = prompts.expand(len(tokens), *prompts.shape)
    return torch.cat([tokens[:, :1], shared, tokens[:, 1:]], dim=1)


class PromptInsert(nn.Module):
    """The one trainable part in front of the frozen blocks: `prompts` (M, D), inserted into every image's tokens.

    It is a leaf module that owns its parameter, so that per-sample gradients can be registered for it.
    """

    def __init__(self, initial: Tensor) -> None:
        super().__init__()
        self.prompts = nn.Parameter(initial.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (n, 1 + L, D) with the prompts inserted: (n, 1 + M + L, D)."""
        return insert_prompts(tokens, self.prompts)


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
    return (signed * (std * np.sqrt(3.0))).astype(np.float32).reshape(tokens, dimension)
