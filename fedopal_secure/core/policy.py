"""A client's own rules: what it must see before it takes part. The server is never trusted to choose them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedopal_secure.core.errors import PolicyRefusal
from fedopal_secure.core.graph import Graph
from fedopal_secure.core.identity import verify_certificate
from fedopal_secure.core.params import PROMPT_MODES, PROTOCOL, SessionParams, check_params, least_cohort


@dataclass(frozen=True)
class Membership:
    """Which identities may take part: those listed, and those that the authority certified.

    With an authority, resistance to sybils is the authority's word and no longer ours.
    """

    identities: frozenset[bytes] = frozenset()
    authority: bytes | None = None

    def admits(self, identity: bytes, certificate: bytes) -> bool:
        """Whether an identity, with the certificate that it shows (or none), may take part."""
        if identity in self.identities:
            return True
        return self.authority is not None and verify_certificate(self.authority, identity, certificate)


@dataclass(frozen=True)
class Policy:
    """What a client agreed to. Every comparison is against the client's own copy of these values.

    `servers` are the identities whose signed proposals it accepts.
    `corrupt` is the number of corrupt clients it assumes at most, `max_images` the image cap of the whole federation,
    `prompt_radius` the largest norm of a mean prompt's distance from P_init, `prompt_modes` the ways of tuning that it
    takes part in, `sessions` how many chains of sessions it grants on the same data, `min_contributors` how many honest
    clients must hold images of each class (0: it asks for no census), counting c clients as lying by one each.
    `release` is the differentially private release that it agreed to (empty: exact sums), and `epsilon` at `delta` what
    all such releases from its journal may add up to (0: none). `public_context` is the SHA-256 of the key authority's
    public context that it pins (empty: it encrypts under none).
    """

    members: Membership
    servers: frozenset[bytes]
    backbone: str
    backbone_hash: bytes
    preprocessing: str
    classes: tuple[str, ...]
    corrupt: int
    max_images: int
    release: str = ""
    epsilon: float = 0.0
    delta: float = 0.0
    min_survivors: int = 3
    min_threshold: int = 2
    prompt_radius: float = 5.0
    prompt_modes: frozenset[str] = frozenset(PROMPT_MODES)
    sessions: int = 1
    min_contributors: int = 0
    protocols: frozenset[str] = field(default_factory=lambda: frozenset({PROTOCOL}))
    public_context: bytes = b""


def check_proposal(policy: Policy, params: SessionParams, protocol: str = PROTOCOL) -> None:
    """Refuse a session before anything is sent; raises PolicyRefusal with the name of the rule."""

    def require(rule: str, holds: bool, detail: str) -> None:
        if not holds:
            raise PolicyRefusal(rule, detail)

    task = params.task
    require("protocols", params.protocol in policy.protocols, f"protocol {params.protocol!r} is not accepted")
    check_params(params, protocol)
    require("servers", params.server in policy.servers, f"server {params.server.hex()[:12]} is not known")
    require("corrupt", params.corrupt >= policy.corrupt, f"c = {params.corrupt} is below {policy.corrupt}")
    require(
        "min_survivors",
        params.min_survivors >= policy.min_survivors,
        f"a cohort of {params.min_survivors} is below {policy.min_survivors}",
    )
    t = Graph(params.clients, params.degree, params.corrupt).threshold  # of a full roster; a smaller one may have less
    require("min_threshold", t >= policy.min_threshold, f"threshold {t} is below {policy.min_threshold}")
    require("backbone", task.backbone == policy.backbone, f"{task.backbone!r} is not {policy.backbone!r}")
    require("backbone_hash", task.backbone_hash == policy.backbone_hash, "the backbone's weights are not those agreed")
    require("preprocessing", task.preprocessing == policy.preprocessing, "the preprocessing is not the one agreed")
    require("classes", task.classes == policy.classes, "the class list is not the one agreed")
    # Equal, not at most: a server that may lower the cap can ask whether a client holds more images than that.
    require("max_images", task.max_images == policy.max_images, f"{task.max_images} is not {policy.max_images}")
    require("prompt_modes", task.prompt_mode in policy.prompt_modes, f"mode {task.prompt_mode!r} is not accepted")
    require("release", task.release == policy.release, "the release is not the one agreed")
    pinned = params.public_context in (b"", policy.public_context)
    require("public_context", pinned, "uploads would be encrypted under another public context than the one pinned")
    require(
        "min_contributors",
        task.min_contributors >= policy.min_contributors,
        f"{task.min_contributors} contributors to each class are below {policy.min_contributors}",
    )


def cohort(policy: Policy, params: SessionParams) -> int:
    """Fewest survivors that this client lets into a sum."""
    return max(least_cohort(params.corrupt), params.min_survivors, policy.min_survivors)


def roster_graph(policy: Policy, params: SessionParams, roster: int) -> Graph:
    """The graph of a roster of this size; raises PolicyRefusal if the policy or the roster forbids it."""
    needed = cohort(policy, params)
    if roster < needed:
        raise PolicyRefusal("min_survivors", f"a roster of {roster} cannot give a cohort of {needed}")
    graph = Graph(roster, params.degree, params.corrupt)
    if not graph.sound(needed):
        detail = f"{graph.degree} holders are too few for a cohort of {needed} in a roster of {roster}"
        raise PolicyRefusal("degree", detail)
    if graph.threshold < policy.min_threshold:
        raise PolicyRefusal("min_threshold", f"threshold {graph.threshold} is below {policy.min_threshold}")
    return graph
