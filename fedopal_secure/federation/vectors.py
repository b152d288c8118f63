"""What the vector of each session holds; both sides derive it from the task, and neither trusts the other."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedopal_secure.core.codec import Message
from fedopal_secure.core.errors import MisuseError, OverflowBudgetError
from fedopal_secure.core.params import CENSUS, ENCRYPTED, PROTOCOL, Segment, SessionParams, Task
from fedopal_secure.core.shamir import Entropy
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.grid import FeatureGrid, PromptGrid
from fedopal_secure.encoding.layout import (
    COUNT_WIDTH,
    ENCRYPTED_COUNT_WIDTH,
    PRESENCE,
    PROMPTS,
    presence_segment,
    prompt_segment,
    statistics_segments,
)
from fedopal_secure.encoding.vector import pack, unpack
from fedopal_secure.privacy.noise import add_noise, noise_bounds
from fedopal_secure.privacy.release import Release, parse_release
from fedopal_secure.statistics.sums import SufficientStatistics

PROMPTS_SESSION: Final = "prompts"
STATISTICS_SESSION: Final = "statistics"
_JOINED_OR_RANDOM: Final = re.compile(r"(\+(joined|random):[0-9]+)+$")


def session_names(prompt_mode: str, min_contributors: int) -> tuple[str, ...]:
    """The sessions of a round, in order: a census if one is asked for, the prompts in two phases, the statistics."""
    census = (CENSUS,) if min_contributors else ()
    prompts = (PROMPTS_SESSION,) if prompt_mode == "two-phase" else ()
    return (*census, *prompts, STATISTICS_SESSION)


_parse_once = lru_cache(64)(parse_release)


def task_release(task: Task) -> Release | None:
    """What leaves under differential privacy, or None if exact sums leave. Raises PolicyRefusal if it is malformed."""
    return _parse_once(task.release) if task.release else None


def central_release(task: Task) -> Release | None:
    """The task's private release if it is the server that adds the noise, else None."""
    release = task_release(task)
    return None if release is None or release.adds_at_client else release


def session_segments(
    task: Task, name: str, clients: int, protocol: str = PROTOCOL, modulus: int = 0
) -> tuple[Segment, ...]:
    """The segments of a session: presence bits, prompts, statistics, or (in mode `local`) the last two in one vector.

    Summed modulo a prime, an entry is as wide as a residue. Raises OverflowBudgetError if the task's bounds, with the
    noise of so many clients, fit no width or not between -modulus / 2 and modulus / 2, and PolicyRefusal for a
    malformed release.
    """
    if name == CENSUS:
        return (presence_segment(len(task.classes), clients),)
    segments: tuple[Segment, ...] = ()
    if name == STATISTICS_SESSION:
        shape = (task.feature_dimension, len(task.classes), task.feature_bits, task.max_images)
        release = task_release(task)
        if release is not None and release.adds_at_client:
            segments = statistics_segments(*shape, noise_bounds(release, clients), release.count_scale)
        else:
            counts = ENCRYPTED_COUNT_WIDTH if protocol in ENCRYPTED else COUNT_WIDTH
            segments = statistics_segments(*shape, count_width=counts)
    if name == PROMPTS_SESSION or task.prompt_mode == "local":
        segments += (prompt_segment(task.prompt_tokens, task.prompt_dimension, task.prompt_bits, clients),)
    if not modulus:
        return segments
    wide = [segment.name for segment in segments if 2 ** (8 * segment.width + 1) > modulus]
    if wide:
        raise OverflowBudgetError(
            f"sums of {', '.join(wide)} do not fit modulo {modulus}: agree on fewer images or bits, or do without masks"
        )
    residue = (modulus.bit_length() + 7) // 8
    return tuple(replace(segment, width=residue) for segment in segments)


def feature_map_name(backbone: str, public_map: FeatureMap | None) -> str:
    """How a task names the feature of the backbone of this name, and what becomes of it before it is put on the grid.

    "cls", or the maps that the backbone's name ends in ("joined:2", "joined:2+random:2000").
    """
    found = _JOINED_OR_RANDOM.search(backbone)
    feature = found[0][1:] if found else "cls"
    return feature if public_map is None else f"{feature}, public map {public_map.digest().hex()}"


def feature_grid(task: Task) -> FeatureGrid:
    """The grid of the task's features."""
    return FeatureGrid(task.feature_dimension, task.feature_bound, task.feature_bits, task.normalise)


def prompt_grid(task: Task) -> PromptGrid:
    """The grid of the task's prompts."""
    return PromptGrid(task.prompt_bound, task.prompt_bits)


def to_vector(
    params: SessionParams,
    statistics: SufficientStatistics | None,
    prompts: NDArray[np.int64] | None,
    entropy: Entropy | None = None,
) -> NDArray[np.uint64]:
    """Statistics and prompts on the grid, as the vector of a session: uint64 (length,).

    Where the task says that clients add noise, it is drawn from `entropy`. Raises OverflowBudgetError if one client
    alone has more images than the cap on all.
    """
    arrays = {}
    if statistics is not None:
        statistics.check_budget(params.task.max_images)
        arrays = statistics.to_arrays()
        release = task_release(params.task)
        if release is not None and release.adds_at_client:
            if entropy is None:
                raise MisuseError("a private release needs entropy for its noise")
            arrays = add_noise(arrays, release, entropy)
    if prompts is not None:
        arrays[PROMPTS] = prompts.reshape(-1)
    return pack(params.segments, arrays)


def from_vector(
    params: SessionParams, total: NDArray[np.uint64]
) -> tuple[SufficientStatistics | None, NDArray[np.int64] | None]:
    """The inverse of `to_vector`, of a sum; with noise in it, counts are still on their finer grid.

    Raises OverflowBudgetError if there were more images than the cap, which noisy counts cannot tell.
    """
    task, arrays = params.task, unpack(params.segments, total)
    statistics = prompts = None
    if params.name == STATISTICS_SESSION:
        statistics = SufficientStatistics.from_arrays(arrays, task.feature_dimension, len(task.classes))
        if not task.release:  # whether a private round ends must not depend on the exact number of images
            statistics.check_budget(task.max_images)
    if PROMPTS in arrays:
        prompts = arrays[PROMPTS].reshape(task.prompt_tokens, task.prompt_dimension)
    return statistics, prompts


def presence_vector(params: SessionParams, labels: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One bit for each class: whether any of the labels is of it; the vector of a census, uint64 (classes,)."""
    present = np.isin(np.arange(len(params.task.classes)), labels).astype(np.int64)
    return pack(params.segments, {PRESENCE: present})


class PromptTotal(Message, frozen=True, tag="prompt-total"):
    """The summed prompts of a finished session, as the next one's context carries them.

    `total` is int64 (tokens, dimension) in little-endian bytes, grid units; `clients` is how many were summed.
    """

    clients: int
    total: bytes

    def mean(self, task: Task) -> NDArray[np.float32]:
        """The mean prompt, float32 (tokens, dimension); FedOPAL eq. 8. Raises OverflowBudgetError."""
        shape = (task.prompt_tokens, task.prompt_dimension)
        if self.clients < 1 or len(self.total) != 8 * shape[0] * shape[1]:
            raise OverflowBudgetError("the summed prompts do not have the shape that the task says")
        total = np.frombuffer(self.total, dtype="<i8").astype(np.int64).reshape(shape)
        return prompt_grid(task).mean(total, self.clients)
