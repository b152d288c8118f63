"""Checks of a round beyond the policy: claimed privacy, segments, tuning, spending, prompt radius.

They need neither data nor network: clients ask them, and auditors again. All raise PolicyRefusal with the rule's name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from pydantic import ValidationError

from fedopal_secure.core.errors import OverflowBudgetError, PolicyRefusal
from fedopal_secure.core.params import SessionParams, Task
from fedopal_secure.core.policy import Policy
from fedopal_secure.federation.config import TuningSettings
from fedopal_secure.federation.secure_sum import PLAIN
from fedopal_secure.federation.vectors import session_segments, task_release
from fedopal_secure.privacy.accounting import check_claim, check_limit
from fedopal_secure.privacy.release import check_release, parse_release


def check_task(params: SessionParams, groups: bool = True) -> None:
    """Refuse a task whose privacy is not as claimed, whose segments are not as its bounds, or whose tuning is none.

    `groups` says whether the images come in groups.
    """
    task = params.task
    check_privacy(params, groups)
    try:
        segments = session_segments(task, params.name, params.clients, params.protocol, params.modulus)
    except OverflowBudgetError as error:
        raise PolicyRefusal("segments", str(error)) from None
    if params.segments != segments:
        raise PolicyRefusal("segments", "the segments are not those that the task's bounds give")
    if task.prompt_mode in ("local", "two-phase"):
        parse_tuning(task)


def check_privacy(params: SessionParams, groups: bool) -> None:
    """Compute the claimed privacy again from what would leave; the server is not trusted to state it."""
    task, release = params.task, task_release(params.task)
    if release is None:
        return
    if params.protocol == PLAIN and release.mode != "local":
        # Distributed noise would be too thin, and the hash of exact uploads would be in the released model.
        detail = f"mode '{release.mode}' hides a client inside a masked sum only, and this protocol masks none"
        raise PolicyRefusal("release", detail)
    honest = params.min_survivors - params.corrupt
    shape = (task.feature_dimension, len(task.classes), task.feature_bits)
    check_release(release, *shape, task.prompt_mode, task.max_images, honest)
    check_claim(release)
    if release.unit == "group" and not groups:
        raise PolicyRefusal("release", "the unit is a group, and this client's images have no group column")


def check_spending(policy: Policy, release: str, others: Sequence[str]) -> None:
    """Refuse a release (empty: exact sums) that takes what has left a journal past the policy's limit.

    `others` are what left it in other chains, as `Journal.released` has them. Exact sums and private ones of the same
    images cannot both leave: the exact ones would void the claim. For the same reason what was trusted to a server
    (mode `central`) stays apart from what is kept from it, and claims for single images from claims for groups. Raises
    PolicyRefusal.
    """
    if not release:
        if any(others):
            raise PolicyRefusal("release", "exact sums would void the private releases of this journal's data")
        return
    if not all(others):
        raise PolicyRefusal("release", "exact sums of this journal's data have left, so no privacy can be claimed")
    releases = [parse_release(text) for text in (*others, release)]
    if len({(one.unit, one.mode == "central") for one in releases}) > 1:
        detail = "releases of this journal's data had another unit, or trusted the server otherwise, and do not add up"
        raise PolicyRefusal("release", detail)
    if not policy.delta < 1 / policy.max_images:
        raise PolicyRefusal("delta", f"the policy's delta of {policy.delta:g} is not below 1/{policy.max_images}")
    check_limit(releases, policy.epsilon, policy.delta)


def check_radius(mean: NDArray[np.float32], initial: NDArray[np.float32], radius: float) -> None:
    """Refuse a mean prompt, float32 (tokens, dimension), that is farther from P_init than honest tuning goes.

    The server could otherwise choose prompts under which features tell more of an image than of its class.
    """
    distance = float(np.linalg.norm(mean - initial))
    if not distance <= radius:  # NaN fails too
        raise PolicyRefusal("prompt_radius", f"the mean prompt is {distance:.3g} away from P_init")


def parse_tuning(task: Task) -> TuningSettings:
    """The task's tuning settings; raises PolicyRefusal if they are none, or not in the one form that they have."""
    try:
        settings = TuningSettings.model_validate_json(task.tuning)
    except ValidationError:
        raise PolicyRefusal("tuning", "the tuning settings are not valid") from None
    if settings.model_dump_json() != task.tuning:
        raise PolicyRefusal("tuning", "the tuning settings are not in their canonical form")
    return settings


def agreed(params: SessionParams) -> SessionParams:
    """What all sessions of a chain have in common."""
    return replace(params, name="", nonce=bytes(32), parent=b"", segments=())
