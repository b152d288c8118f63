"""From a configuration to what a round is about: images, task, release, public map and policy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.params import Task
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.data.datasets import Dataset, ImageSet, load_dataset
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.prompts import prompts_digest
from fedopal_secure.federation.config import PolicyConfig, PrivacySettings, SimulationConfig
from fedopal_secure.federation.heads import check_rule
from fedopal_secure.federation.policies import policy_of
from fedopal_secure.federation.secure_sum import protocol_named
from fedopal_secure.federation.vectors import feature_map_name
from fedopal_secure.model import Model
from fedopal_secure.privacy.accounting import affordable_rho, tuning_event
from fedopal_secure.privacy.calibration import Vector, calibrate, private_tuning
from fedopal_secure.privacy.release import PrivateTuning
from fedopal_secure.runtimes.parties import SeededEntropy
from fedopal_secure.solver.private import suggest_dimensions, suggest_r_share
from fedopal_secure.vision.backbone import Backbone, load_backbone
from fedopal_secure.vision.embedded import embedded_public_map


def check_settings(config: SimulationConfig) -> None:
    """Refuse, before anything is loaded, what would void the privacy that is asked for, or what nobody could solve."""
    privacy, prompts = config.privacy, config.prompts
    check_rule(config.head, noisy=privacy is not None)
    if privacy is None:
        return
    if config.min_contributors:
        raise InputError("a census sums exact presence bits, which would void the privacy: leave out min_contributors")
    if prompts.mode in ("local", "two-phase") and prompts.dp_sgd is None:
        raise InputError(
            f"prompts of mode '{prompts.mode}' move every feature of a client, so without privacy of their own they "
            "void that of the sums: take --prompts none, public:FILE or dp-sgd:CLIP"
        )
    if config.protocol == "plain" and privacy.mode == "distributed":
        raise InputError("distributed noise hides a client only inside a masked sum: take protocol 'pairwise'")


def load_network(config: SimulationConfig) -> Backbone:
    """The backbone of a simulation, on its device."""
    backbone = load_backbone(config.backbone, config.image_size, config.device)
    return backbone.compile_tuning() if config.compile else backbone


def load_images(config: SimulationConfig, backbone: Backbone) -> Dataset:
    """The images of a simulation, as its backbone wants them."""
    return load_dataset(
        config.dataset,
        seed=config.seed,
        skip_unreadable=config.skip_unreadable,
        limit=config.train_limit,
        transform=backbone.preprocess,
    )


def image_cap(config: SimulationConfig, train: ImageSet) -> int:
    """The public cap on images in all: the configured one, or the next power of two.

    Raises InputError if there are more images.
    """
    cap = config.max_images or 1 << (len(train) - 1).bit_length()
    if len(train) > cap:
        raise InputError(f"{len(train)} training images are more than max_images = {cap}: raise the cap")
    return cap


def load_public_prompts(config: SimulationConfig, backbone: Backbone) -> NDArray[np.float32] | None:
    """The prompts of mode `public`, float32 (tokens, dimension), from a released model; None in other modes.

    Raises InputError if the configuration names no model, or one without prompts, of another backbone, or (in a private
    round) whose prompts are private themselves.
    """
    prompts = config.prompts
    if prompts.mode != "public":
        return None
    if prompts.file is None:
        raise InputError("prompt mode 'public' needs a file of prompts: give --prompts public:MODEL.safetensors")
    model = Model.load(prompts.file)
    model.check_backbone(backbone)
    if model.prompts is None:
        raise InputError(f"{prompts.file}: this model has no prompts: give one that was released with prompts")
    if config.privacy is not None and model.private_prompts:
        raise InputError(
            f"{prompts.file}: its prompts were tuned on private images without privacy, and would void that of the "
            "sums: give prompts of a private round, or of public images"
        )
    return model.prompts


def load_public_map(config: SimulationConfig, max_images: int, backbone: Backbone) -> FeatureMap | None:
    """The public feature map of a private release, with the axes that are kept; None for exact sums or without a map.

    How many axes are kept is configured or follows from public numbers. Raises InputError for another backbone's map.
    """
    spec, privacy = config.features.public, config.privacy
    if spec == "auto":
        spec = "embedded" if backbone.id == "embedded" else "none"
    if privacy is None or spec == "none":
        return None
    if spec == "embedded" and backbone.id != "embedded":
        raise InputError(
            f"the packaged feature map is the embedded backbone's: make one for {backbone.id} (public-map)"
        )
    public_map = embedded_public_map() if spec == "embedded" else FeatureMap.load(Path(spec))
    if public_map.features != backbone.feature_dim:
        raise InputError(
            f"{spec}: a map of {public_map.features} features, and {backbone.id} has {backbone.feature_dim}: "
            "make one for this backbone (public-map)"
        )
    if public_map.basis is None:
        return public_map
    if config.features.dimensions is not None:
        return public_map.leading(config.features.dimensions)
    rho = total_rho(config, privacy, tuned_prompts(config, privacy))
    return public_map.leading(suggest_dimensions(max_images, rho, public_map.dimension))


def make_task(
    config: SimulationConfig,
    backbone: Backbone,
    train: ImageSet,
    *,
    max_images: int,
    public_prompts: NDArray[np.float32] | None,
    public_map: FeatureMap | None,
) -> Task:
    """What the clients are asked to sum, with the private release if one is configured; `P_init` is from the seed."""
    prompts = config.prompts
    source, tokens, tuning = SeededEntropy(config.seed, "P_init")(32), prompts.tokens, ""
    dimension = backbone.embed_dim
    if prompts.mode == "none":
        source, tokens, dimension = b"", 0, 0
    elif public_prompts is not None:
        source, tokens = prompts_digest(public_prompts), len(public_prompts)
    else:
        tuning = prompts.tuning.model_dump_json()
    task = Task(
        backbone=backbone.id,
        backbone_hash=bytes.fromhex(backbone.hash),
        preprocessing=backbone.preprocessing,
        feature_map=feature_map_name(backbone.id, public_map),
        feature_dimension=backbone.feature_dim if public_map is None else public_map.dimension,
        feature_bound=config.features.bound,
        feature_bits=config.features.bits,
        normalise=config.features.normalise,
        classes=train.classes,
        prompt_mode=prompts.mode,
        prompt_tokens=tokens,
        prompt_dimension=dimension,
        prompt_bound=prompts.bound,
        prompt_bits=prompts.bits,
        prompt_source=source,
        tuning=tuning,
        max_images=max_images,
        release="",
        min_contributors=config.min_contributors,
    )
    return msgspec.structs.replace(task, release=make_release(config, task, grouped=train.groups is not None))


def make_release(config: SimulationConfig, task: Task, *, grouped: bool) -> str:
    """The private release that the configuration asks for, as the task names it; empty for exact sums.

    `grouped`: the images come with groups. Raises InputError if they do not and a group is what is to be hidden.
    """
    privacy = config.privacy
    if privacy is None:
        return ""
    if privacy.unit == "group" and not grouped:
        raise InputError(
            f"{config.dataset} does not say which images are of one group: add group_train to the .npz, "
            "a column group to the .csv, or groups.csv with columns file,group to the folder"
        )
    prompts = tuned_prompts(config, privacy)
    rho = total_rho(config, privacy, prompts)
    return calibrate(
        Vector(
            dimension=task.feature_dimension,
            classes=len(task.classes),
            bits=task.feature_bits,
            max_images=task.max_images,
            honest=config.cohort - config.corrupt_clients,
        ),
        privacy.mode,
        privacy.epsilon,
        privacy.delta,
        r_share=privacy.r_share or suggest_r_share(task.max_images, rho),
        unit=privacy.unit,
        unit_images=privacy.unit_images,
        prompts=prompts,
    ).text()


def tuned_prompts(config: SimulationConfig, privacy: PrivacySettings) -> PrivateTuning | None:
    """How prompts are tuned on private images, with the noise that their share of epsilon takes; None if not at all."""
    if config.prompts.mode not in ("local", "two-phase") or config.prompts.dp_sgd is None:
        return None
    settings = config.prompts.dp_sgd.model_dump()
    return private_tuning(settings.pop("share") * privacy.epsilon, privacy.delta, **settings)


def total_rho(config: SimulationConfig, privacy: PrivacySettings, prompts: PrivateTuning | None) -> float:
    """What the noise in the whole sum would be worth as one release of single images: what a head can be made from.

    A group moves the sums more than an image, and local noise is every client's own.
    """
    copies = config.clients if privacy.mode == "local" else 1
    spent = () if prompts is None else (tuning_event(prompts),)
    return affordable_rho(privacy.epsilon, privacy.delta, spent) / (privacy.unit_images**2 * copies)


def make_policy(
    config: SimulationConfig,
    task: Task,
    members: Membership,
    server: bytes,
    public_context: bytes,
    file: PolicyConfig | None,
) -> Policy:
    """The policy of every simulated client: a file's, or one that agrees to what the configuration asks for.

    `server` is the identity of the simulation's server, `public_context` the hash of its key authority's (or empty).
    Raises InputError if the file names identities or keys of its own.
    """
    if file is None:
        file = PolicyConfig(
            corrupt=config.corrupt_clients,
            min_survivors=config.cohort,
            min_contributors=config.min_contributors,
            release=task.release,
            protocols=(protocol_named(config.protocol, config.masked),),
        )
    if file.identities or file.authority or file.servers or file.public_context:
        raise InputError(
            "the policy names identities or keys, and a simulation makes its own: leave out identities, authority, "
            "servers and public_context to rehearse with it"
        )
    return policy_of(file, task, members, frozenset({server}), public_context)


def resolved(config: SimulationConfig, task: Task, backbone: Backbone) -> SimulationConfig:
    """The configuration with every default that was computed written out."""
    computed = {
        "corrupt": config.corrupt_clients,
        "min_survivors": config.cohort,
        "degree": config.graph_degree,
        "max_images": task.max_images,
        "image_size": backbone.image_size,
    }
    return config.model_copy(update=computed)
