"""Who holds which image: the Dirichlet partition by which the literature makes clients differ."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedopal_secure.core.errors import InputError

# Beyond this the sampler overflows, and its draws equal 1/clients to the last bit long before.
_EQUAL_SHARES = 1e100


def dirichlet_partition(labels: ArrayLike, clients: int, alpha: float, seed: int) -> list[NDArray[np.int64]]:
    """Split the images over clients, class by class, in proportions drawn from Dir(alpha).

    For each class the shares of the clients are one draw from the symmetric Dirichlet distribution, and the class's
    images, in random order, are cut at the cumulative shares (Hsu et al. 2019, arXiv:1909.06335, by class; the
    partition of FedOPAL section IV-A2). Small alpha gives each class to few clients; `math.inf` gives equal shares.

    A client for which the draw leaves nothing receives one random image of whichever client has the most at that
    moment (the first of equals), in order of the clients. So everybody holds at least one image, and the draw is
    otherwise as published.

    Args:
        labels: int (n,), the class of each image.
        clients: number of clients, 1 to n.
        alpha: concentration, > 0; infinity is allowed.
        seed: non-negative; the same arguments always give the same partition.

    Returns:
        One ascending int64 array of image indices per client; together they hold every index exactly once.

    Raises:
        InputError: labels that are not a vector of integers, alpha that is not positive, fewer images than clients.
    """
    classes = np.asarray(labels)
    if classes.ndim != 1 or not (classes.size == 0 or np.issubdtype(classes.dtype, np.integer)):
        raise InputError(f"labels must be a vector of integers, not {classes.dtype} of shape {classes.shape}")
    if math.isnan(alpha) or alpha <= 0:
        raise InputError(f"alpha is {alpha}: give a number above 0 (small is skewed, inf is even)")
    if clients < 1:
        raise InputError(f"{clients} clients: give at least 1")
    if clients > classes.size:
        raise InputError(f"{clients} clients but only {classes.size} images: give each client at least one")
    if seed < 0:
        raise InputError(f"the seed is {seed}: give 0 or more")

    rng = np.random.default_rng(seed)
    holdings: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(classes):
        members = rng.permutation(np.flatnonzero(classes == label))
        shares = rng.dirichlet(np.full(clients, alpha)) if alpha < _EQUAL_SHARES else np.full(clients, 1 / clients)
        cuts = (np.cumsum(shares)[:-1] * members.size).astype(np.int64)
        # Cutting rounds in favour of some positions; a fresh order per class keeps that from adding up.
        for client, part in zip(rng.permutation(clients), np.split(members, cuts), strict=True):
            holdings[client].extend(part.tolist())
    for holding in holdings:
        if not holding:
            richest = max(holdings, key=len)
            holding.append(richest.pop(int(rng.integers(len(richest)))))
    return [np.sort(np.array(holding, dtype=np.int64)) for holding in holdings]
