"""What `result.json` says of a run."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.params import Task, session_id
from fedopal_secure.encoding.vector import unpack
from fedopal_secure.federation.secure_sum import OPEN, SILENT, UPLOAD
from fedopal_secure.federation.server import SessionRecord
from fedopal_secure.federation.vectors import task_release
from fedopal_secure.he.authority import KeyAuthority
from fedopal_secure.he.context import session_error_bound
from fedopal_secure.he.messages import public_context_hash
from fedopal_secure.he.parameters import SECURE_BITS
from fedopal_secure.privacy.accounting import ACCOUNTANT, tuning_epsilon
from fedopal_secure.privacy.release import noise_terms, total_sigma, zcdp

if TYPE_CHECKING:
    import torch


class SessionResult(msgspec.Struct, frozen=True):
    """One secure sum. Bytes are those of the client that moved most; names are the simulation's.

    `setup_bytes_per_client` counts both directions of the phases before the upload, `closing_bytes_per_client` of those
    after it, `upload_bytes_per_client` the upload with its header. `widths` are bytes per entry of each segment, and
    `rounds` how many answers a client owes at most.
    """

    name: str
    protocol: str
    survivors: list[str]
    dropped: dict[str, list[str]]
    faults: list[str]
    threshold: int
    cohort: int
    corrupt: int
    degree: int
    setup_bytes_per_client: int
    upload_bytes_per_client: int
    closing_bytes_per_client: int
    widths: dict[str, int]
    rounds: int
    encryption: Encryption | None


class Encryption(msgspec.Struct, frozen=True):
    """Under what a session's uploads were encrypted.

    `public_context` is the hash that clients pin; `ciphertext_bits` are those of q and `modulus_bits` those of all
    coefficient moduli, of which 128-bit security at this `degree` allows `secure_bits`. No decrypted entry is farther
    from its integer than `error_bound`, except with probability 2**-40; `largest_error` is what the key authority saw,
    which nobody else is told (only a simulation can know). `opening_bytes` went to the authority and back.
    """

    scheme: str
    public_context: str
    degree: int
    ciphertext_bits: int
    modulus_bits: int
    secure_bits: int
    error_bound: float
    largest_error: float
    opening_bytes: int


class Exact(msgspec.Struct, frozen=True):
    """Whether the sums are those of the survivors' vectors; only a simulation can know."""

    sum_equals_plain_sum: bool
    max_abs_difference: int


class Baseline(msgspec.Struct, frozen=True):
    """Accuracies on the same test images, from the pooled data of those who uploaded.

    `no_prompt`: no prompts. `centralised`: the released prompts; `head_identical` says whether its head is the
    released one bit for bit. `pooled_tuning`: prompts tuned on the pooled data.
    """

    no_prompt: float
    centralised: float
    pooled_tuning: float | None
    head_identical: bool


class Ridge(msgspec.Struct, frozen=True):
    """The lambda that was used, and the rule that chose it."""

    rule: str
    value: float


class Prompts(msgspec.Struct, frozen=True):
    """How the prompts came about; `distance` is |P - P_init| of what was released.

    `precision` is the type in which the frozen blocks computed while prompts were tuned; None if none were.
    """

    mode: str
    tokens: int
    distance: float | None
    precision: str | None


class Privacy(msgspec.Struct, frozen=True):
    """What is claimed of the release, and the noise that holds it.

    `mode` says who adds the noise: each client for the sum (`distributed`), each for itself (`local`), or the server
    (`central`, where the claim is not against the server). One `unit`, of at most `unit_images` images, added or
    removed is hidden up to (`epsilon`, `delta`) by `accountant`. `sigma` is the standard deviation of the noise that
    the claim counts on, by segment, in grid units; `realised` is by how much the noise in this sum was larger, since
    more clients survived. `prompts_epsilon` is what the prompts alone spent. `simulated`: the noise came from a seed,
    and whoever has the seed can take it off.
    """

    mechanism: str
    mode: str
    unit: str
    unit_images: int
    relation: str
    epsilon: float
    delta: float
    rho: float
    contributors: int
    sigma: dict[str, float]
    realised: float
    prompts_epsilon: float | None
    accountant: str
    simulated: bool


class Environment(msgspec.Struct, frozen=True):
    """What the run ran on; `gpu` is None if the backbone was not on one."""

    python: str
    torch: str | None
    numpy: str
    cpu: str
    gpu: str | None
    version: str

    @classmethod
    def here(cls, device: torch.device) -> Environment:
        """This process's environment, with the backbone on `device`."""
        import torch

        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        return cls(platform.python_version(), str(torch.__version__), np.__version__, _cpu(), gpu, own_version())


class Result(msgspec.Struct, frozen=True):
    """The whole of `result.json`."""

    accuracy: float
    accuracy_top5: float | None
    test_images: int
    train_images: int
    skipped_images: int
    clients: int
    sessions: list[SessionResult]
    plain_float32_bytes: int
    plain_float32_triangle_bytes: int
    exact: Exact | None
    baseline: Baseline | None
    ridge: Ridge = msgspec.field(name="lambda")
    prompts: Prompts
    privacy: Privacy | None
    transcript: str
    timings_s: dict[str, float]
    environment: Environment

    def to_json(self) -> str:
        """The file's text."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


def session_result(
    record: SessionRecord, names: Mapping[bytes, str], encryption: Encryption | None = None
) -> SessionResult:
    """Sum up what the server noted of a finished session; `names` maps clients' identities to names."""
    params, result = record.params, record.result
    phases = [phase for phase in record.requested if phase != OPEN]  # that one is the key authority's
    at = phases.index(UPLOAD)

    def most(directions: list[Mapping[str, Mapping[bytes, int]]], chosen: list[str]) -> int:
        moved = dict.fromkeys(names, 0)
        for direction in directions:
            for phase in chosen:
                for client, size in direction.get(phase, {}).items():
                    moved[client] += size
        return max(moved.values())

    return SessionResult(
        name=params.name,
        protocol=params.protocol,
        survivors=sorted(names[client] for client in result.survivors) if result else [],
        dropped={phase: [names[client] for client in lost] for phase, lost in record.dropped().items()},
        faults=[f"{names.get(blame.client, blame.client.hex()[:12])}: {blame.reason}" for blame in record.faults],
        threshold=result.threshold if result else 0,
        cohort=params.min_survivors,
        corrupt=params.corrupt,
        degree=params.degree,
        setup_bytes_per_client=most([record.requested, record.answered], phases[:at]),
        upload_bytes_per_client=most([record.answered], [UPLOAD]),
        closing_bytes_per_client=most([record.requested, record.answered], phases[at + 1 :]),
        widths={segment.name: segment.width for segment in params.segments},
        rounds=sum(phase not in SILENT for phase in phases),
        encryption=encryption,
    )


def encryption_result(record: SessionRecord, authority: KeyAuthority | None) -> Encryption | None:
    """Under what a session's uploads were encrypted; None if they were not."""
    if authority is None:
        return None
    context, session = authority.public_context, session_id(record.params)
    p = context.parameters
    return Encryption(
        scheme=p.scheme,
        public_context=public_context_hash(context).hex(),
        degree=p.degree,
        ciphertext_bits=p.q.bit_length(),
        modulus_bits=p.modulus_bits,
        secure_bits=SECURE_BITS[p.degree],
        error_bound=session_error_bound(record.params, p),
        largest_error=authority.largest_error.get(session, 0.0),
        opening_bytes=sum(sum(moved.get(OPEN, {}).values()) for moved in (record.requested, record.answered)),
    )


def privacy_result(task: Task, survivors: int) -> Privacy | None:
    """What the task's release claims; None if exact sums left."""
    release = task_release(task)
    if release is None:
        return None
    return Privacy(
        mechanism=release.mechanism,
        mode=release.mode,
        unit=release.unit,
        unit_images=release.unit_images,
        relation=release.relation,
        epsilon=release.epsilon,
        delta=release.delta,
        rho=zcdp(release),
        contributors=release.contributors,
        sigma=total_sigma(release, release.contributors),
        realised=math.sqrt(noise_terms(release, survivors) / release.contributors),
        prompts_epsilon=None if release.prompts is None else tuning_epsilon(release.prompts, release.delta),
        accountant=ACCOUNTANT,
        simulated=True,
    )


def compare_sums(
    records: Mapping[str, SessionRecord], vectors: Mapping[tuple[bytes, bytes], NDArray[np.uint64]]
) -> Exact:
    """Compare every session's sum with the sum of its survivors' vectors; `vectors` by session id and identity."""
    worst = 0
    for record in records.values():
        if record.result is None:
            continue
        plain = np.zeros(record.params.length, dtype=np.uint64)
        for client in record.result.survivors:
            plain += vectors[record.result.session, client]
        expected, found = (unpack(record.params.segments, vector) for vector in (plain, record.result.total))
        for name, values in expected.items():
            wrong = np.flatnonzero(values != found[name])
            # Python integers, because the difference of two int64 may not be one.
            worst = max([worst, *(abs(int(values[i]) - int(found[name][i])) for i in wrong)])
    return Exact(worst == 0, worst)


def own_version() -> str:
    """The version of this package, or "unknown" where it is not installed."""
    try:
        return version("fedopal-secure")
    except PackageNotFoundError:
        return "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
