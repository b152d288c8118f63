"""Who holds which image: the Dirichlet partition by which the literature makes clients differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.groups import majority

# Beyond this the sampler overflows, and its draws equal 1/clients to the last bit long before.
_EQUAL_SHARES = 1e100


def dirichlet_partition(
    labels: ArrayLike, clients: int, alpha: float, seed: int, groups: ArrayLike | None = None
) -> list[NDArray[np.int64]]:
    """Split the images over clients, class by class, in proportions drawn from Dir(alpha).

    For each class the shares of the clients are one draw from the symmetric Dirichlet distribution, and the class's
    images, in random order, are cut at the cumulative shares (Hsu et al. 2019, arXiv:1909.06335, by class; the
    partition of FedOPAL section IV-A2). Small alpha gives each class to few clients; `math.inf` gives equal shares.

    A client for which the draw leaves nothing receives one random image of whichever client has the most at that
    moment (the first of equals), in order of the clients. So everybody holds at least one image, and the draw is
    otherwise as published.

    With groups, all of this is done with groups in place of images, since a privacy unit (a patient) must be whole at
    one client: a group, in ascending order, has the class of most of its images, the smallest of equals; every client
    holds at least one group; and who has the most is who has the most groups.

    Args:
        labels: int (n,), the class of each image.
        clients: number of clients, 1 to n.
        alpha: concentration, > 0; infinity is allowed.
        seed: non-negative; the same arguments always give the same partition.
        groups: int (n,), the group of each image, where images may not be parted from others of their group.

    Returns:
        One ascending int64 array of image indices per client; together they hold every index exactly once.

    Raises:
        InputError: labels or groups that are not a vector of integers, or not equally many; alpha that is not
            positive; fewer images, or groups, than clients.
    """
    classes = _integers("labels", labels)
    unit = np.arange(classes.size)  # of each image, the number of what is handed out whole: itself, or its group
    if groups is not None:
        of_images = _integers("groups", groups)
        if of_images.shape != classes.shape:
            raise InputError(f"{of_images.size} groups for {classes.size} images: give the group of each image")
        unit = np.unique(of_images, return_inverse=True)[1]
        classes = majority(classes.astype(np.int64), unit)
    if math.isnan(alpha) or alpha <= 0:
        raise InputError(f"alpha is {alpha}: give a number above 0 (small is skewed, inf is even)")
    if clients < 1:
        raise InputError(f"{clients} clients: give at least 1")
    if clients > classes.size:
        kind = "images" if groups is None else "groups"
        raise InputError(f"{clients} clients but only {classes.size} {kind}: give each client at least one")
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
    owner = np.empty(classes.size, dtype=np.int64)
    for client, holding in enumerate(holdings):
        owner[holding] = client
    return [np.flatnonzero(owner[unit] == client) for client in range(clients)]


def _integers(what: str, values: ArrayLike) -> NDArray[Any]:
    vector = np.asarray(values)
    if vector.ndim != 1 or not (vector.size == 0 or np.issubdtype(vector.dtype, np.integer)):
        raise InputError(f"{what} must be a vector of integers, not {vector.dtype} of shape {vector.shape}")
    return vector
