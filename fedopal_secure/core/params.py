"""What a session is about: every public parameter that is known before it starts, and the rules that hold for all.

The session id is the hash of these parameters, and it enters every key and every signature. So two parties that
disagree on anything here cannot complete a session together.
"""

from __future__ import annotations

from typing import Final

from fedopal_secure.core import domains
from fedopal_secure.core.codec import Bytes32, Message, encode
from fedopal_secure.core.errors import PolicyRefusal
from fedopal_secure.core.graph import COMPLETE_UP_TO, MAX_DEGREE
from fedopal_secure.core.ring import is_prime

PROTOCOL: Final = "secagg/v1"
BFV: Final = "bfv/v1"
BFV_MASKED: Final = "bfv-masked/v1"
CKKS: Final = "ckks/v1"
ENCRYPTED: Final = (BFV, BFV_MASKED, CKKS)  # uploads are encrypted under a key authority's public context
MASKED: Final = (PROTOCOL, BFV_MASKED)  # those that take the steps of client.py and server.py
MAX_CLIENTS: Final = 2**14
MAX_LENGTH: Final = 2**32
MIN_BOUND: Final = 2.0**-64  # of features and prompts: scale factors and their squares are ordinary float64
MAX_BOUND: Final = 2.0**64
CENSUS: Final = "census"
PROMPT_MODES: Final = ("none", "public", "local", "two-phase")


class Segment(Message, frozen=True):
    """A named run of entries of the vector.

    `length` entries go on the wire as `width` bytes each; `signed` says how the sum is read back.
    """

    name: str
    length: int
    width: int
    signed: bool


class Task(Message, frozen=True):
    """What the vector means: the model, the integer grid and the bounds that the widths were derived from.

    `prompt_source` is the 32-byte seed of P_init, or the SHA-256 of the public prompts, or empty without prompts.
    `tuning` describes how clients tune (FedOPAL eq. 6). `release` describes the differential privacy of what leaves;
    it is empty when exact sums leave. With `min_contributors` above 0 a census comes first, and no statistic is summed
    unless every class has that many honest contributors.
    """

    backbone: str
    backbone_hash: Bytes32
    preprocessing: str
    feature_map: str
    feature_dimension: int
    feature_bound: float
    feature_bits: int
    normalise: bool
    classes: tuple[str, ...]
    prompt_mode: str
    prompt_tokens: int
    prompt_dimension: int
    prompt_bound: float
    prompt_bits: int
    prompt_source: bytes
    tuning: str
    max_images: int
    release: str
    min_contributors: int


class SessionParams(Message, frozen=True, tag="session"):
    """All public parameters of one secure sum.

    `name` says what is summed (`census`, `prompts`, `statistics`). `clients` caps the roster and `corrupt` is the
    number c of corrupt clients that the session tolerates; neither changes with the roster. `degree` is how many
    holders each client draws, 0 on the complete graph. `modulus` is 0 for 2**64 or a prime below 2**63.
    `public_context` is the SHA-256 of the key authority's public context under which uploads are encrypted, or empty.
    `parent` is the id of the session that this one continues, or empty.
    """

    protocol: str
    name: str
    nonce: Bytes32
    server: Bytes32
    parent: bytes
    clients: int
    corrupt: int
    degree: int
    min_survivors: int
    modulus: int
    public_context: bytes
    segments: tuple[Segment, ...]
    task: Task

    @property
    def length(self) -> int:
        """Entries of the whole vector."""
        return sum(segment.length for segment in self.segments)

    @property
    def upload_bytes(self) -> int:
        """Bytes of one upload's payload in the plain wire form."""
        return sum(segment.length * segment.width for segment in self.segments)


def session_id(params: SessionParams) -> bytes:
    """SHA-256 of the canonical bytes, 32 bytes."""
    return domains.digest(domains.SESSION, encode(params))


def least_cohort(corrupt: int) -> int:
    """Fewest survivors whose sum says nothing of one honest client even to `corrupt` clients: max(3, c + 2)."""
    return max(3, corrupt + 2)


def check_params(params: SessionParams, protocol: str = PROTOCOL) -> None:
    """Refuse parameters that no policy can make safe; raises PolicyRefusal with the rule's name.

    `protocol` is the one that the caller is about to speak.
    """

    def require(rule: str, holds: bool, detail: str) -> None:
        if not holds:
            raise PolicyRefusal(rule, detail)

    p, task = params, params.task
    require("protocol", p.protocol == protocol, f"protocol {p.protocol!r} is not {protocol!r}")
    require("name", bool(p.name), "the session has no name")
    require("parent", len(p.parent) in (0, 32), "the parent is neither empty nor a session id")
    require("clients", 3 <= p.clients <= MAX_CLIENTS, f"{p.clients} clients; 3 to {MAX_CLIENTS} are possible")
    require("corrupt", 0 <= p.corrupt < p.clients, f"{p.corrupt} corrupt of {p.clients} clients")
    least = least_cohort(p.corrupt)
    require(
        "min_survivors",
        least <= p.min_survivors <= p.clients,
        f"{p.min_survivors} survivors proposed; with c = {p.corrupt} it takes {least} to {p.clients}",
    )
    sparse = p.clients > COMPLETE_UP_TO and protocol in MASKED  # without masks there is no graph
    least, most = (1, MAX_DEGREE) if sparse else (0, 0)
    require(
        "degree", least <= p.degree <= most, f"degree {p.degree} of {p.clients} clients; {least} to {most} is allowed"
    )
    prime = p.modulus != 0
    require("modulus", not prime or (2 < p.modulus < 2**63 and is_prime(p.modulus)), "neither 2^64 nor a prime < 2^63")
    prime_width = (p.modulus.bit_length() + 7) // 8
    # A masked vector is encrypted as residues of the plain modulus, one that is not masked as integers.
    require("modulus", protocol != BFV_MASKED or prime, "masks inside an encryption are modulo a prime")
    require("modulus", protocol not in (BFV, CKKS) or not prime, "vectors that are encrypted unmasked are modulo 2^64")
    encrypted = protocol in ENCRYPTED
    context_bytes = 32 if encrypted else 0
    require("public_context", len(p.public_context) == context_bytes, f"it takes a hash of {context_bytes} bytes")
    require("segments", bool(p.segments), "there is nothing to sum")
    require("segments", len({s.name for s in p.segments}) == len(p.segments), "a name occurs twice")
    for s in p.segments:
        require("segments", 1 <= s.length <= MAX_LENGTH, f"{s.name!r} has {s.length} entries")
        require("segments", 1 <= s.width <= 8, f"{s.name!r} is {s.width} bytes wide; 1 to 8 are possible")
        require("segments", not prime or s.width == prime_width, f"{s.name!r} is not as wide as the prime modulus")
    require("segments", p.length <= MAX_LENGTH, f"{p.length} entries in all")
    require("classes", len(task.classes) >= 2, "a classifier needs two classes")
    require("classes", len(set(task.classes)) == len(task.classes), "a class is named twice")
    require("feature_dimension", 2 <= task.feature_dimension <= 2**16, f"{task.feature_dimension}")
    require("feature_bits", 1 <= task.feature_bits <= 24, f"{task.feature_bits} bits; 1 to 24 are possible")
    # Rounding moves a feature by sqrt(d)/2 grid units at most, and something must be left of 2**bits.
    require("feature_bits", 4 ** (task.feature_bits + 1) > task.feature_dimension, "too few for the dimension")
    require("feature_bound", MIN_BOUND <= task.feature_bound <= MAX_BOUND, f"{task.feature_bound}")
    require("max_images", 1 <= task.max_images <= 2**40, f"{task.max_images} images")
    contributors = task.min_contributors
    require("min_contributors", 0 <= contributors <= p.clients, f"{contributors} contributors of {p.clients} clients")
    census = contributors > 0
    require("min_contributors", not (census and task.release), "exact presence bits would void the private release")
    require("min_contributors", not (census and sparse), "a census needs the complete graph, so at most 256 clients")
    require("min_contributors", not census or protocol == PROTOCOL, "only masked sums can be re-checked by clients")
    require("min_contributors", census or p.name != CENSUS, "a census has no minimum to check")
    require("parent", p.name != CENSUS or not p.parent, "a census comes first and continues no session")
    require("parent", not census or p.name == CENSUS or bool(p.parent), "a session after a census names its parent")
    require("prompt_mode", task.prompt_mode in PROMPT_MODES, f"{task.prompt_mode!r} is not one of {PROMPT_MODES}")
    require("prompt_bits", 1 <= task.prompt_bits <= 32, f"{task.prompt_bits} bits; 1 to 32 are possible")
    require("prompt_bound", MIN_BOUND <= task.prompt_bound <= MAX_BOUND, f"{task.prompt_bound}")
    if task.prompt_mode == "none":
        empty = (task.prompt_tokens, task.prompt_dimension, task.prompt_source, task.tuning) == (0, 0, b"", "")
        require("prompts", empty, "mode 'none' has no prompts")
    else:
        require("prompts", 1 <= task.prompt_tokens <= 2**12, f"{task.prompt_tokens} tokens")
        require("prompts", 1 <= task.prompt_dimension <= 2**16, f"dimension {task.prompt_dimension}")
        require("prompts", len(task.prompt_source) == 32, "the source of the prompts is not 32 bytes")
