"""Features other than [CLS], by a suffix of the backbone's name: joined tokens and layers, random features of those.

Both are fixed before anyone looks at an image, so whatever is summed of them is as exact and as private as of [CLS].
`docs/accuracy.md` compares them. A map counts as a part of the backbone: it is in the name, and in the hash.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from fedopal_secure.core.errors import InputError
from fedopal_secure.vision.backbone import Backbone, fingerprint

MAX_FEATURES: Final = 2**14  # an upload has d^2 / 2 numbers: a gigabyte
_NAME: Final = re.compile(r"(joined|random):([1-9][0-9]{0,5})")


class _Mapped(Backbone):
    """A backbone with another `encode`; `inner` does the rest."""

    def __init__(self, inner: Backbone, suffix: str, feature_dim: int) -> None:
        if feature_dim > MAX_FEATURES:
            raise InputError(
                f"'+{suffix}' makes {feature_dim} features, and {MAX_FEATURES} are the most: ask for fewer"
            )
        super().__init__(inner.pixels)
        self.inner = inner
        self.id = f"{inner.id}+{suffix}"
        self.hash = fingerprint({}, {"backbone": inner.hash, "features": suffix})
        self.embed_dim, self.feature_dim = inner.embed_dim, feature_dim
        self.depth, self.patch_count = inner.depth, inner.patch_count

    def embed(self, images: Tensor) -> Tensor:
        """See `Backbone.embed`."""
        return self.inner.embed(images)

    def layers(self, tokens: Tensor, count: int) -> list[Tensor]:
        """See `Backbone.layers`."""
        return self.inner.layers(tokens, count)


class JoinedTokens(_Mapped):
    """[CLS] and the mean patch token of each of the last `count` blocks, each scaled to length 1; d = 2 count d_CLS.

    Scaled apart, because the grid scales only the whole, and what is long in one block would drown the others.
    """

    def __init__(self, inner: Backbone, count: int) -> None:
        """Raises InputError if the backbone does not have so many blocks."""
        if count > inner.depth:
            raise InputError(f"'+joined:{count}' wants {count} blocks, and {inner.id} has {inner.depth}: ask for fewer")
        super().__init__(inner, f"joined:{count}", 2 * count * inner.feature_dim)
        self._count = count
        self.freeze()

    def encode(self, tokens: Tensor) -> Tensor:
        """See `Backbone.encode`. Prompts and registers are in no mean: the patches are the last tokens."""
        blocks = [
            nn.functional.normalize(token, dim=1)
            for layer in self.inner.layers(tokens, self._count)
            for token in (layer[:, 0], layer[:, -self.patch_count :].mean(dim=1))
        ]
        return torch.cat(blocks, dim=1)


class RandomFeatures(_Mapped):
    """`count` random features max(0, A f / |f|) of the feature f beneath it (Cho and Saul 2009, degree 1).

    A, (count, d), has independent entries of mean 0 and variance 1, read off a SHAKE-256 stream of the backbone's hash:
    everyone has the same, and nobody has chosen it.
    """

    directions: Tensor

    def __init__(self, inner: Backbone, count: int) -> None:
        super().__init__(inner, f"random:{count}", count)
        label = f"fedopal-secure/random-features/v1|{inner.hash}|{count}".encode()
        stream = hashlib.shake_256(label).digest(4 * count * inner.feature_dim)
        signed = (np.frombuffer(stream, "<u4") >> 8).astype(np.float64) / 2**23 - 1  # uniform: its variance is 1/3
        matrix = (signed * np.sqrt(3.0)).astype(np.float32).reshape(count, inner.feature_dim)
        self.register_buffer("directions", torch.from_numpy(matrix), persistent=False)
        self.freeze()

    def encode(self, tokens: Tensor) -> Tensor:
        """See `Backbone.encode`."""
        unit = nn.functional.normalize(self.inner.encode(tokens), dim=1)
        return nn.functional.relu(nn.functional.linear(unit, self.directions))


def split_name(name: str) -> tuple[str, list[str]]:
    """ "BACKBONE+MAP+MAP" to the backbone's own name and the maps, innermost first."""
    own, *maps = name.split("+")
    while maps and not maps[0].startswith(("joined", "random")):  # a plus in the name of a checkpoint
        own = f"{own}+{maps.pop(0)}"
    return own, maps


def with_maps(backbone: Backbone, maps: list[str]) -> Backbone:
    """A backbone with maps put on it in order. Raises InputError for one that does not exist or does not fit."""
    for place, text in enumerate(maps):
        found = _NAME.fullmatch(text)
        if found is None or (found[1] == "joined" and place):
            raise InputError(
                f"no features '+{'+'.join(maps)}': a backbone's name may end in +joined:LAYERS, +random:COUNT, "
                "or the first and then the second"
            )
        backbone = (JoinedTokens if found[1] == "joined" else RandomFeatures)(backbone, int(found[2]))
    return backbone
