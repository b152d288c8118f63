"""Visual prompt tokens: where they are inserted."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
