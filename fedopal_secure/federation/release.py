"""What a round ends with: the classifier, made of its sums, and the entry of the transcript that says how.

Everything here is a function of public things, so that whoever holds a transcript makes the same classifier again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.codec import Bytes32, Message
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.params import Task
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.federation.config import HeadSettings
from fedopal_secure.federation.heads import solve_head
from fedopal_secure.federation.vectors import feature_grid
from fedopal_secure.model import Model
from fedopal_secure.statistics.sums import SufficientStatistics

RELEASE = "release"


class Release(Message, frozen=True, tag="release"):
    """The last entry of a transcript: how the head was made of the sum of `session`, and the model in full.

    `kind`, `rule`, `value` (0 for a rule that finds lambda) and `intercept` are the server's `HeadSettings`. `noisy` is
    empty, or in mode `central` the sums with the server's noise that the head was made of: int64, little-endian, R, C
    and counts as `to_arrays` has them. `model` is the file without what says where it comes from, which is not known
    before this entry is written.
    """

    session: Bytes32
    kind: str
    rule: str
    value: float
    intercept: bool
    noisy: bytes
    model: bytes


def make_model(
    task: Task,
    statistics: SufficientStatistics,
    survivors: int,
    head: HeadSettings,
    prompts: NDArray[np.float32] | None,
    public_map: FeatureMap | None,
) -> Model:
    """Solve for the head (FedOPAL eq. 9) of what was summed over so many survivors, and put the model together."""
    return Model(
        head=solve_head(task, statistics, survivors, head, public_map),
        prompts=prompts,
        classes=task.classes,
        backbone=task.backbone,
        backbone_hash=task.backbone_hash,
        preprocessing=task.preprocessing,
        grid=feature_grid(task),
        public_map=public_map,
        private_prompts=task.prompt_mode in ("local", "two-phase") and not task.release,
    )


def pack_noisy(statistics: SufficientStatistics) -> bytes:
    """Statistics in grid units as `Release.noisy` has them: int64, little-endian."""
    return b"".join(array.astype("<i8").tobytes() for array in statistics.to_arrays().values())


def unpack_noisy(data: bytes, like: Mapping[str, NDArray[np.int64]], task: Task) -> SufficientStatistics:
    """The inverse of `pack_noisy`, in the shapes of `like`; raises InputError for another length."""
    if len(data) != 8 * sum(len(array) for array in like.values()):
        raise InputError("the sums with noise are not as long as the sums without")
    values, arrays, place = np.frombuffer(data, "<i8").astype(np.int64), {}, 0
    for name, array in like.items():
        arrays[name] = values[place : place + len(array)]
        place += len(array)
    return SufficientStatistics.from_arrays(arrays, task.feature_dimension, len(task.classes))
