"""Read a policy file into a `Policy` for a task, and write a `Policy` as a file."""

from __future__ import annotations

from collections.abc import Mapping

from fedopal_secure.core.params import Task
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.federation.config import PolicyConfig
from fedopal_secure.federation.vectors import task_release


def policy_of(
    file: PolicyConfig, task: Task, members: Membership, servers: frozenset[bytes], public_context: bytes
) -> Policy:
    """The policy that a file describes, for a task: the identities are given apart, and may come from elsewhere.

    `public_context` is the hash of the key authority's, or empty. What the file does not pin is as the task has it,
    except for limits and the release.
    """
    release = task_release(task) if file.release else None
    return Policy(
        members=members,
        servers=servers,
        backbone=file.backbone or task.backbone,
        backbone_hash=task.backbone_hash if file.backbone_hash is None else bytes.fromhex(file.backbone_hash),
        preprocessing=file.preprocessing or task.preprocessing,
        classes=file.classes or task.classes,
        corrupt=file.corrupt,
        max_images=file.max_images or task.max_images,
        release=file.release,
        epsilon=file.epsilon or (release.epsilon if release else 0.0),
        delta=file.delta or (release.delta if release else 0.0),
        prompt_modes=frozenset(file.prompt_modes or (task.prompt_mode,)),
        min_survivors=file.min_survivors,
        min_contributors=file.min_contributors,
        min_threshold=file.min_threshold,
        prompt_radius=file.prompt_radius,
        sessions=file.sessions,
        protocols=frozenset(file.protocols),
        public_context=public_context,
    )


def named_members(file: PolicyConfig) -> Membership:
    """Whom the file admits."""
    authority = None if file.authority is None else bytes.fromhex(file.authority)
    return Membership(frozenset(map(bytes.fromhex, file.identities.values())), authority)


def file_of(policy: Policy, identities: Mapping[str, bytes], servers: Mapping[str, bytes]) -> PolicyConfig:
    """The file of a policy, complete, with the names by which people call its identities and servers."""
    return PolicyConfig(
        identities={name: identity.hex() for name, identity in identities.items()},
        authority=None if policy.members.authority is None else policy.members.authority.hex(),
        servers={name: identity.hex() for name, identity in servers.items()},
        backbone=policy.backbone,
        backbone_hash=policy.backbone_hash.hex(),
        preprocessing=policy.preprocessing,
        classes=policy.classes,
        corrupt=policy.corrupt,
        min_survivors=policy.min_survivors,
        min_threshold=policy.min_threshold,
        max_images=policy.max_images,
        release=policy.release,
        epsilon=policy.epsilon,
        delta=policy.delta,
        prompt_modes=tuple(sorted(policy.prompt_modes)),  # type: ignore[arg-type]  # a policy holds any text
        prompt_radius=policy.prompt_radius,
        min_contributors=policy.min_contributors,
        sessions=policy.sessions,
        protocols=tuple(sorted(policy.protocols)),
        public_context=policy.public_context.hex() or None,
    )
