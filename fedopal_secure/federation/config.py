"""The configuration files of a round: what the server proposes, and what a client's policy allows.

Every field can be written in TOML under the same name (`examples/simulate.toml`, `examples/policy.toml`). An unknown
field, or a value outside its range, is an error in one line.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.graph import least_degree
from fedopal_secure.core.params import MAX_CLIENTS, least_cohort
from fedopal_secure.privacy.release import LEAST_SAMPLE_RATE, Mode, Unit

Count = Annotated[int, Field(ge=1)]
Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
PromptMode = Literal["none", "public", "local", "two-phase"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TuningSettings(_Section):
    """How each client tunes its prompts (FedOPAL eq. 6; the defaults are the paper's, which names no learning rate)."""

    epochs: Annotated[int, Field(ge=0, le=1000, description="passes over the client's images, E")] = 5
    proximal: Annotated[float, Field(ge=0, allow_inf_nan=False, description="mu, weight of |P - P_init|^2 / 2")] = 0.1
    learning_rate: Annotated[float, Field(gt=0, le=10, description="of Adam")] = 3e-3
    batch_size: Annotated[Count, Field(description="images in a step")] = 32


class DpSgdSettings(_Section):
    """DP-SGD for prompts that are tuned on private images; all of it is public, and the same for every client."""

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False, description="bound of one image's gradient; no default")]
    sample_rate: Annotated[
        float, Field(ge=LEAST_SAMPLE_RATE, le=1, description="chance of an image to be in a step's lot")
    ] = 0.1
    steps: Annotated[int, Field(ge=1, le=10000, description="number of steps")] = 50
    lot: Annotated[Count, Field(description="nominal images in a lot; the noisy sum is divided by it")] = 32
    share: Annotated[float, Field(gt=0, lt=1, description="part of epsilon that the prompts may take")] = 0.5


class PromptSettings(_Section):
    """Visual prompts (FedOPAL eq. 4, 5, 8)."""

    mode: Annotated[PromptMode, Field(description="none, public, local (the paper) or two-phase")] = "none"
    file: Annotated[Path | None, Field(description="the public prompts of mode 'public': a released model")] = None
    tokens: Annotated[Count, Field(description="number of prompt tokens, M")] = 10
    bound: Annotated[float, Field(gt=0, le=2**16, description="largest magnitude of an entry")] = 4.0
    bits: Annotated[int, Field(ge=1, le=32, description="bits of the integer grid")] = 24
    tuning: TuningSettings = TuningSettings()
    dp_sgd: Annotated[DpSgdSettings | None, Field(description="how they are tuned if the release is private")] = None


class FeatureSettings(_Section):
    """The integer grid of the features."""

    bound: Annotated[float, Field(gt=0, le=2**16, description="norm that features are scaled or clipped to")] = 1.0
    bits: Annotated[int, Field(ge=1, le=24, description="bits of the integer grid")] = 12
    normalise: Annotated[bool, Field(description="scale every feature to the bound; else clip to it")] = True
    public: Annotated[
        str,
        Field(description="map learnt from public images, for noisy sums: 'embedded', FILE, 'none'; auto: packaged"),
    ] = "auto"
    dimensions: Annotated[
        Count | None, Field(description="axes of that map to keep; default: as many as the noise allows")
    ] = None


class PrivacySettings(_Section):
    """Differential privacy of what leaves: one unit, added or removed, is hidden up to (epsilon, delta)."""

    mode: Annotated[
        Mode,
        Field(
            description="distributed: clients' noise adds up; central: the server adds it; local: each is on its own"
        ),
    ] = "distributed"
    epsilon: Annotated[float, Field(gt=0, description="inf: exact sums, no privacy")]
    delta: Annotated[float, Field(gt=0, lt=1, description="below one over max_images")] = 1e-5
    unit: Annotated[Unit, Field(description="what is hidden; groups come with the data")] = "image"
    unit_images: Annotated[Count, Field(description="images of one group that are used at most")] = 1
    r_share: Annotated[
        float | None, Field(gt=0, lt=1, description="R's part of the privacy of R and C; default: by public numbers")
    ] = None


class HeadSettings(_Section):
    """The head: ridge regression (FedOPAL eq. 9), or another that comes of the same sums."""

    kind: Annotated[
        Literal["ridge", "ridge-normalised", "lda"],
        Field(description="ridge; with weights of length 1 for each class; or Gaussians with one covariance"),
    ] = "ridge"
    rule: Annotated[
        Literal["auto", "gcv", "fixed", "relative", "private-ridge", "class-mean"],
        Field(description="auto: gcv on exact sums, on noisy ones by the noise; fixed, relative: lambda from `value`"),
    ] = "auto"
    value: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="lambda, or ('relative') lambda over R's mean diagonal")
    ] = 1e-6
    intercept: Annotated[bool, Field(description="a free intercept; the paper has none")] = True


class SimulationConfig(_Section):
    """A whole round in one process: the data, how it is split, who drops out, and what the server proposes."""

    dataset: Annotated[
        str,
        Field(description="'digits', a folder, FILE.csv, .npz or .tar, torchvision:NAME, or a name in $FEDOPAL_DATA"),
    ] = "digits"
    train_limit: Annotated[Count | None, Field(description="use only this many training images")] = None
    skip_unreadable: Annotated[bool, Field(description="skip and count unreadable images")] = False
    backbone: Annotated[str, Field(description="'embedded', 'timm:NAME[@FILE]' or 'open_clip:ARCH/TAG-or-FILE'")] = (
        "embedded"
    )
    image_size: Annotated[
        int | None, Field(ge=1, le=4096, description="side of the input in pixels; default: the backbone's")
    ] = None
    device: Annotated[
        str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto (CUDA if there is one), cpu, cuda or cuda:N")
    ] = "auto"
    compile: Annotated[bool, Field(description="tune with the blocks compiled by torch; takes a minute first")] = False
    clients: Annotated[int, Field(ge=3, le=MAX_CLIENTS, description="above 256 on a sparse graph")] = 12
    corrupt: Annotated[int | None, Field(ge=0, description="corrupt clients tolerated, c; default: clients / 5")] = None
    min_survivors: Annotated[int | None, Field(ge=3, description="least cohort; default: max(3, c + 2)")] = None
    degree: Annotated[
        int | None, Field(ge=0, description="holders that each client draws; default: 0 up to 256 clients, else enough")
    ] = None
    min_contributors: Annotated[
        int, Field(ge=0, description="honest contributors that each class needs; above 0 a census comes first")
    ] = 0
    alpha: Annotated[float, Field(gt=0, description="Dirichlet concentration; small is skewed, inf is even")] = 0.1
    protocol: Annotated[Literal["pairwise", "plain", "bfv", "ckks"], Field(description="how vectors are summed")] = (
        "pairwise"
    )
    masked: Annotated[bool, Field(description="with protocol 'bfv': vectors are masked, too")] = False
    max_images: Annotated[Count | None, Field(description="public cap on images in all; default: next power of 2")] = (
        None
    )
    drop: Annotated[tuple[str, ...], Field(description="[SESSION.]PHASE:COUNT or [SESSION.]PHASE:ID,ID")] = ()
    seed: Annotated[int, Field(ge=0, description="of the data split, tuning, keys and masks")] = 0
    baselines: Annotated[bool, Field(description="also compute the baselines, for comparison")] = False
    prompts: PromptSettings = PromptSettings()
    features: FeatureSettings = FeatureSettings()
    head: HeadSettings = HeadSettings()
    privacy: Annotated[PrivacySettings | None, Field(description="absent: exact sums leave")] = None

    @field_validator("privacy")
    @classmethod
    def _without_a_bound_there_is_none(cls, privacy: PrivacySettings | None) -> PrivacySettings | None:
        return None if privacy is None or math.isinf(privacy.epsilon) else privacy

    @field_validator("alpha")
    @classmethod
    def _alpha_is_a_number(cls, alpha: float) -> float:
        if alpha != alpha:
            raise ValueError("must be a number above 0")
        return alpha

    @property
    def corrupt_clients(self) -> int:
        """c, with its default."""
        return self.clients // 5 if self.corrupt is None else self.corrupt

    @property
    def cohort(self) -> int:
        """The least cohort, with its default."""
        return least_cohort(self.corrupt_clients) if self.min_survivors is None else self.min_survivors

    @property
    def graph_degree(self) -> int:
        """The degree of the graph, which only masks need; the default bears a tenth of the clients leaving."""
        if self.degree is not None:
            return self.degree
        if self.protocol != "pairwise" and not self.masked:
            return 0
        return least_degree(self.clients, self.corrupt_clients, self.clients // 10, self.cohort)


class PolicyConfig(_Section):
    """A client's own policy.

    In a simulation what is left out is what the simulation proposes, except for the limits and the release, whose
    defaults hold (epsilon and delta are then those of one such release); the identities are made from its seed, so a
    file that names some is refused there.
    """

    identities: Annotated[dict[str, Hex32], Field(description="name = Ed25519 public key in hex")] = {}
    authority: Annotated[Hex32 | None, Field(description="public key whose certificates admit identities")] = None
    servers: Annotated[dict[str, Hex32], Field(description="name = Ed25519 public key in hex")] = {}
    backbone: str | None = None
    backbone_hash: Annotated[Hex32 | None, Field(description="SHA-256, as `model.safetensors` records it")] = None
    preprocessing: str | None = None
    classes: tuple[str, ...] | None = None
    corrupt: Annotated[int, Field(ge=0, description="corrupt clients assumed at most, c")]
    min_survivors: Annotated[int, Field(ge=3, description="least cohort")] = 3
    min_threshold: Annotated[int, Field(ge=2, description="least threshold of the secret sharing")] = 2
    max_images: Annotated[Count | None, Field(description="the cap on images in all that was agreed")] = None
    release: Annotated[
        str,
        Field(description="the private release that was agreed, as `fedopal-secure privacy` prints it; empty: none"),
    ] = ""
    epsilon: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="what all private releases of my data may add up to")
    ] = 0.0
    delta: Annotated[float, Field(ge=0, lt=1, description="at which delta that epsilon is meant")] = 0.0
    prompt_modes: Annotated[tuple[PromptMode, ...] | None, Field(description="modes that are accepted")] = None
    prompt_radius: Annotated[float, Field(gt=0, description="largest distance of a mean prompt from P_init")] = 5.0
    min_contributors: Annotated[
        int, Field(ge=0, description="honest contributors that each class needs, taken in a census; 0: no census")
    ] = 0
    sessions: Annotated[
        Count, Field(description="how many chains of sessions may use the same data; private ones: any data of mine")
    ] = 1
    protocols: Annotated[tuple[str, ...], Field(description="protocols that are accepted")] = ("secagg/v1",)
    public_context: Annotated[
        Hex32 | None, Field(description="hash of the key authority's public context, as `he keygen` prints it")
    ] = None


Config = TypeVar("Config", bound=_Section)


def parse_config(kind: type[Config], values: dict[str, Any], source: str) -> Config:
    """Check plain values against a model; raises InputError in one line that names the field."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the configuration"
        raise InputError(f"{source}: {where!r}: {first['msg']}") from None


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raises InputError if it is missing or malformed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): give a TOML file") from None
    except (ValueError, RecursionError) as error:  # also what is no UTF-8, an endless number, brackets without end
        raise InputError(f"{path}: not valid TOML: {error}") from None


def dump_toml(config: _Section) -> str:
    """The configuration as TOML, complete, so that it runs again; fields that are unset are left out."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
