"""A round with simulated clients: real data and real protocol, with keys, masks and dropouts drawn from a seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.params import Task
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.data.datasets import Dataset, load_dataset
from fedopal_secure.data.partition import dirichlet_partition
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.layout import plain_float32_bytes
from fedopal_secure.federation.client import PrivateData, compute_statistics, prompts_digest
from fedopal_secure.federation.config import PolicyConfig, PrivacySettings, SimulationConfig, dump_toml
from fedopal_secure.federation.heads import check_ridge, check_rule, solve_exact
from fedopal_secure.federation.secure_sum import PHASES, PROTOCOLS, Participant
from fedopal_secure.federation.server import Proposal, RoundServer
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript
from fedopal_secure.federation.vectors import (
    STATISTICS_SESSION,
    feature_grid,
    feature_map_name,
    session_names,
    task_release,
)
from fedopal_secure.model import Model, evaluate
from fedopal_secure.privacy.accounting import affordable_rho, tuning_event
from fedopal_secure.privacy.calibration import Vector, calibrate, private_tuning
from fedopal_secure.privacy.release import PrivateTuning
from fedopal_secure.runtimes.dropouts import Dropouts, parse_drop
from fedopal_secure.runtimes.in_process import run_round
from fedopal_secure.runtimes.parties import SeededEntropy, Vectors, WitnessedClient
from fedopal_secure.runtimes.result import (
    Baseline,
    Environment,
    Exact,
    Prompts,
    Result,
    Ridge,
    compare_sums,
    privacy_result,
    session_result,
)
from fedopal_secure.solver.private import suggest_dimensions, suggest_r_share
from fedopal_secure.solver.ridge import RidgeHead
from fedopal_secure.vision.backbone import Backbone, load_backbone
from fedopal_secure.vision.embedded import embedded_public_map
from fedopal_secure.vision.features import Extract, extract_features
from fedopal_secure.vision.prompts import initial_prompts
from fedopal_secure.vision.tuning import TuningConfig, tune_prompts

# stage (`tuning`, `features` or `evaluation`), images gone through since the last call
Report = Callable[[str, int], None]
# by a client's name: float32 (tokens, dimension)
TunedPrompts = dict[str, NDArray[np.float32]]


def quiet(stage: str, images: int) -> None:
    """A report that nobody reads."""


@dataclass(frozen=True)
class Outcome:
    """A finished simulation.

    `pooled` is the data of the clients whose statistics are in the sum, `tuned` what each client tuned on its own.
    """

    model: Model
    result: Result
    pooled: PrivateData
    tuned: TunedPrompts


class Simulation:
    """Everything that a simulated round needs, built from a configuration; `run` runs it."""

    def __init__(
        self,
        config: SimulationConfig,
        policy: PolicyConfig | None = None,
        *,
        backbone: Backbone | None = None,
        dataset: Dataset | None = None,
        extract: Extract = extract_features,
    ) -> None:
        """Load data and backbone and share the images out. Raises InputError for anything wrong with them.

        For a caller that runs many simulations, `backbone` is loaded already, `dataset` is what `load_images` gave for
        an equal configuration, and `extract` is how features are taken.
        """
        check_settings(config)
        self.config, self._report = config, quiet
        self.names = tuple(f"client-{number:02d}" for number in range(1, config.clients + 1))
        self.protocol = PROTOCOLS[config.protocol]
        sessions, phases = session_names(config.prompts.mode, config.min_contributors), PHASES[self.protocol]
        self.drops = [parse_drop(text, sessions, phases, self.names) for text in config.drop]
        self.backbone = backbone or load_backbone(config.backbone, config.image_size)
        self.public_prompts = self._load_public_prompts()
        self.extract = extract
        self.dataset: Dataset = dataset or load_images(config, self.backbone)
        train = self.dataset.train
        self.parts = dirichlet_partition(train.labels, config.clients, config.alpha, config.seed, train.groups)
        cap = config.max_images or 1 << (len(train) - 1).bit_length()
        if len(train) > cap:
            raise InputError(f"{len(train)} training images are more than max_images = {cap}: raise the cap")
        self.public_map = load_public_map(config, cap, self.backbone)
        self.task = self._make_task(cap)
        check_ridge(config.head, self.task, config.clients)
        self.keys = {name: SigningKey(SeededEntropy(config.seed, f"{name} identity")(32)) for name in self.names}
        self.server_key = SigningKey(SeededEntropy(config.seed, "server identity")(32))
        self.by_identity = {key.identity: name for name, key in self.keys.items()}
        self.members = Membership(frozenset(key.identity for key in self.keys.values()))
        self._policy_file = policy
        self.policy = self._make_policy(policy)

    def resolved(self) -> SimulationConfig:
        """The configuration with every default that was computed written out."""
        config = self.config
        computed = {
            "corrupt": config.corrupt_clients,
            "min_survivors": config.cohort,
            "degree": config.graph_degree,
            "max_images": self.task.max_images,
            "image_size": self.backbone.image_size,
        }
        return config.model_copy(update=computed)

    def _load_public_prompts(self) -> NDArray[np.float32] | None:
        prompts = self.config.prompts
        if prompts.mode != "public":
            return None
        if prompts.file is None:
            raise InputError("prompt mode 'public' needs a file of prompts: give --prompts public:MODEL.safetensors")
        model = Model.load(prompts.file)
        model.check_backbone(self.backbone)
        if model.prompts is None:
            raise InputError(f"{prompts.file}: this model has no prompts: give one that was released with prompts")
        return model.prompts

    def _make_task(self, cap: int) -> Task:
        config, backbone, prompts = self.config, self.backbone, self.config.prompts
        source, tokens, tuning = SeededEntropy(config.seed, "P_init")(32), prompts.tokens, ""
        dimension, public_map = backbone.embed_dim, self.public_map
        if prompts.mode == "none":
            source, tokens, dimension = b"", 0, 0
        elif self.public_prompts is not None:
            source, tokens = prompts_digest(self.public_prompts), len(self.public_prompts)
        else:
            tuning = prompts.tuning.model_dump_json()
        task = Task(
            backbone=backbone.id,
            backbone_hash=bytes.fromhex(backbone.hash),
            preprocessing=backbone.preprocessing,
            feature_map=feature_map_name(public_map),
            feature_dimension=backbone.feature_dim if public_map is None else public_map.dimension,
            feature_bound=config.features.bound,
            feature_bits=config.features.bits,
            normalise=config.features.normalise,
            classes=self.dataset.train.classes,
            prompt_mode=prompts.mode,
            prompt_tokens=tokens,
            prompt_dimension=dimension,
            prompt_bound=prompts.bound,
            prompt_bits=prompts.bits,
            prompt_source=source,
            tuning=tuning,
            max_images=cap,
            release="",
            min_contributors=config.min_contributors,
        )
        return msgspec.structs.replace(task, release=self._make_release(task))

    def _make_release(self, task: Task) -> str:
        """The private release that the configuration asks for, as the task names it; empty for exact sums."""
        config, privacy = self.config, self.config.privacy
        if privacy is None:
            return ""
        if privacy.unit == "group" and self.dataset.train.groups is None:
            raise InputError(
                f"{config.dataset} does not say which images are of one group: add group_train to the .npz, or "
                "groups.csv with columns file,group to the folder"
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

    def _make_policy(self, file: PolicyConfig | None) -> Policy:
        task = self.task
        if file is None:
            file = PolicyConfig(
                corrupt=self.config.corrupt_clients,
                min_survivors=self.config.cohort,
                min_contributors=self.config.min_contributors,
                release=task.release,
                protocols=(self.protocol,),
            )
        release = task_release(task)
        if file.identities or file.authority or file.servers:
            raise InputError(
                "the policy names identities, and a simulation makes its own from the seed: leave out identities, "
                "authority and servers to rehearse with it"
            )
        return Policy(
            members=self.members,
            servers=frozenset({self.server_key.identity}),
            backbone=file.backbone or task.backbone,
            backbone_hash=task.backbone_hash if file.backbone_hash is None else bytes.fromhex(file.backbone_hash),
            preprocessing=file.preprocessing or task.preprocessing,
            classes=file.classes or task.classes,
            corrupt=file.corrupt,
            max_images=file.max_images or task.max_images,
            release=file.release,
            epsilon=file.epsilon or (release.epsilon if release and file.release else 0.0),
            delta=file.delta or (release.delta if release and file.release else 0.0),
            prompt_modes=frozenset(file.prompt_modes or (task.prompt_mode,)),
            min_survivors=file.min_survivors,
            min_contributors=file.min_contributors,
            min_threshold=file.min_threshold,
            prompt_radius=file.prompt_radius,
            sessions=file.sessions,
            protocols=frozenset(file.protocols),
        )

    def run(self, out: Path | None = None, report: Report = quiet, tuned: TunedPrompts | None = None) -> Outcome:
        """Run the round; with `out`, leave config.toml, result.json, model.safetensors and transcript/ there.

        `tuned` are prompts of an earlier simulation that differs in its mode only, so that nobody tunes them again.
        Raises InputError if `out` holds a run already, OSError if it cannot be written, and the protocol's errors if
        the round aborts.
        """
        start = time.perf_counter()
        config, seed, self._report = self.config, self.config.seed, report
        if out is not None:
            check_output(out)
            out.mkdir(parents=True, exist_ok=True)
            (out / "config.toml").write_text(dump_toml(self.resolved()), encoding="utf-8")
            if self._policy_file is not None:
                (out / "policy.toml").write_text(dump_toml(self._policy_file), encoding="utf-8")
        timings = Timings()
        transcript = Transcript(None if out is None else out / "transcript")
        server = RoundServer(
            self.server_key,
            self.members,
            tuple(key.identity for key in self.keys.values()),
            Proposal(
                self.protocol,
                config.clients,
                config.corrupt_clients,
                config.graph_degree,
                config.cohort,
                self.task,
                self.public_prompts,
                self.public_map,
            ),
            config.head,
            SeededEntropy(seed, "server"),
            transcript,
            timings,
        )
        seen: Vectors = {}
        clients = {
            self.keys[name].identity: WitnessedClient(
                seen,
                Participant(self.keys[name], b"", self.policy, SeededEntropy(seed, name)),
                self.backbone,
                self.data_of([number]),
                Journal(),
                timings,
                tuning_seed=seed * 1000 + number,
                public_prompts=self.public_prompts,
                public_map=self.public_map,
                extract=self.extract,
                tuned=(tuned or {}).get(name),
                report=self._report,
            )
            for number, name in enumerate(self.names)
        }
        model = run_round(server, clients, Dropouts(self.drops, self.by_identity, seed))
        pooled = self.pooled(self.by_identity[client] for client in server.result(STATISTICS_SESSION).survivors)
        baseline = self._baseline(model, pooled) if config.baselines else None
        result = self._result(server, model, compare_sums(server.records, seen), baseline)
        seconds = timings.seconds | {"total": time.perf_counter() - start}
        result = msgspec.structs.replace(result, timings_s=seconds)
        if out is not None:
            model.save(out / "model.safetensors")
            (out / "result.json").write_text(result.to_json() + "\n", encoding="utf-8")
        own = {self.by_identity[client]: party.tuned for client, party in clients.items() if party.tuned is not None}
        return Outcome(model, result, pooled, own)

    def with_names(self, text: str) -> str:
        """A message in which identities are replaced by the simulation's names."""
        for identity, name in self.by_identity.items():
            text = text.replace(f"client {identity.hex()[:12]}", name).replace(identity.hex()[:12], name)
        return text

    def data_of(self, clients: list[int]) -> PrivateData:
        """The pooled data of some clients, by number, in order."""
        train = self.dataset.train.subset(np.concatenate([self.parts[client] for client in clients]))
        return PrivateData(np.asarray(train.images), train.labels, train.groups)

    def _accuracy(self, head: RidgeHead, prompts: NDArray[np.float32] | None) -> float:
        """Accuracy of a head under some prompts on the test images."""
        return evaluate(self._scores(head, prompts), self.dataset.test.labels, self.dataset.test.classes).accuracy

    def _scores(self, head: RidgeHead, prompts: NDArray[np.float32] | None) -> NDArray[np.float64]:
        test = np.asarray(self.dataset.test.images)
        features = self.extract(self.backbone, test, prompts, progress=partial(self._report, "evaluation"))
        mapped = features if self.public_map is None else self.public_map.apply(features)
        return head.scores(feature_grid(self.task).normalised(mapped))

    def centralised(self, data: PrivateData, prompts: NDArray[np.float32] | None) -> RidgeHead:
        """The head that one party holding all of `data` would compute under `prompts`, without noise."""
        progress = partial(self._report, "features")
        statistics = compute_statistics(
            self.backbone, data, self.task, prompts, self.public_map, extract=self.extract, progress=progress
        )
        return solve_exact(self.task, statistics, self.config.head)

    def pooled(self, survivors: Iterable[str]) -> PrivateData:
        """The pooled data of the clients with these names."""
        chosen = set(survivors)
        return self.data_of([number for number, name in enumerate(self.names) if name in chosen])

    def compare_with_centralised(self, model: Model, pooled: PrivateData) -> tuple[float, bool]:
        """Accuracy of the head computed centrally from pooled data under the model's prompts, and whether it is the
        model's own, bit for bit."""
        head = self.centralised(pooled, model.prompts)
        identical = np.array_equal(head.weights, model.head.weights) and np.array_equal(
            head.intercept, model.head.intercept
        )
        return self._accuracy(head, model.prompts), bool(identical)

    def _baseline(self, model: Model, pooled: PrivateData) -> Baseline:
        pooled_tuning = None
        if self.config.prompts.mode in ("local", "two-phase"):
            tuned = tune_prompts(
                self.backbone,
                pooled.images,
                pooled.labels,
                len(self.task.classes),
                self.initial_prompts(),
                TuningConfig(tokens=self.task.prompt_tokens, **self.config.prompts.tuning.model_dump()),
                self.config.seed,
                partial(self._report, "tuning"),
            )
            pooled_tuning = self._accuracy(self.centralised(pooled, tuned), tuned)
        centralised, identical = self.compare_with_centralised(model, pooled)
        return Baseline(
            no_prompt=self._accuracy(self.centralised(pooled, None), None),
            centralised=centralised,
            pooled_tuning=pooled_tuning,
            head_identical=identical,
        )

    def initial_prompts(self) -> NDArray[np.float32]:
        """P_init of this round, float32 (tokens, dimension)."""
        return initial_prompts(self.task.prompt_source, self.task.prompt_tokens, self.task.prompt_dimension)

    def _result(
        self,
        server: RoundServer,
        model: Model,
        exact: Exact,
        baseline: Baseline | None,
    ) -> Result:
        test, task = self.dataset.test, self.task
        evaluation = evaluate(self._scores(model.head, model.prompts), test.labels, test.classes)
        distance = None
        if model.prompts is not None and task.prompt_mode != "public":
            distance = float(np.linalg.norm(model.prompts - self.initial_prompts()))
        uploaded = 0 if task.prompt_mode in ("none", "public") else task.prompt_tokens * task.prompt_dimension
        shape = (task.feature_dimension, len(task.classes), uploaded)
        return Result(
            accuracy=evaluation.accuracy,
            accuracy_top5=evaluation.accuracy_top5,
            test_images=len(test),
            train_images=len(self.dataset.train),
            skipped_images=len(self.dataset.skipped),
            clients=self.config.clients,
            sessions=[session_result(record, self.by_identity) for record in server.records.values()],
            plain_float32_bytes=plain_float32_bytes(*shape),
            plain_float32_triangle_bytes=plain_float32_bytes(*shape, triangle=True),
            exact=exact,
            baseline=baseline,
            ridge=Ridge(model.head.rule, model.head.ridge),
            prompts=Prompts(task.prompt_mode, task.prompt_tokens, distance),
            privacy=privacy_result(task, len(server.result(STATISTICS_SESSION).survivors)),
            transcript=model.transcript,
            timings_s={},
            environment=Environment.here(),
        )


def load_images(config: SimulationConfig, backbone: Backbone) -> Dataset:
    """The images of a simulation, as its backbone wants them."""
    return load_dataset(
        config.dataset,
        seed=config.seed,
        skip_unreadable=config.skip_unreadable,
        limit=config.train_limit,
        transform=backbone.preprocess,
    )


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


def check_output(out: Path) -> None:
    """Raise InputError unless a run can be left in this folder; nothing is made yet."""
    left = [name for name in ("result.json", "config.toml", "model.safetensors", "transcript") if (out / name).exists()]
    if "result.json" in left:
        raise InputError(f"{out} already holds a run: choose another folder with --out")
    if left:
        raise InputError(f"{out} already holds a run that did not finish: delete it, or choose another with --out")


def simulate(
    config: SimulationConfig,
    out: Path | None = None,
    policy: PolicyConfig | None = None,
    report: Report = quiet,
) -> Outcome:
    """Run one simulated round; see `Simulation`."""
    if out is not None:
        check_output(out)
    return Simulation(config, policy).run(out, report)


def work(simulation: Simulation) -> dict[str, int]:
    """How many images each stage of a run goes through, for progress bars."""
    config = simulation.config
    train, test = len(simulation.dataset.train), len(simulation.dataset.test)
    tunes = config.prompts.mode in ("local", "two-phase")
    dp_sgd = config.prompts.dp_sgd if config.privacy is not None else None
    # How many images DP-SGD goes through is private, so it tells its steps.
    of_clients = train * config.prompts.tuning.epochs if dp_sgd is None else config.clients * dp_sgd.steps
    pooled = train * config.prompts.tuning.epochs * int(config.baselines)
    return {
        "tuning": of_clients + pooled if tunes else 0,
        "features": train * (1 + config.baselines * (2 + int(tunes))),
        "evaluation": test * (1 + config.baselines * (2 + int(tunes))),
    }
