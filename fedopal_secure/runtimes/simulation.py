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
from fedopal_secure.encoding.layout import plain_float32_bytes
from fedopal_secure.federation.client import PrivateData, compute_statistics, prompts_digest
from fedopal_secure.federation.config import PolicyConfig, SimulationConfig, dump_toml
from fedopal_secure.federation.secure_sum import PHASES, PROTOCOLS, Participant
from fedopal_secure.federation.server import Proposal, RoundServer
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript
from fedopal_secure.federation.vectors import STATISTICS_SESSION, feature_grid, session_names
from fedopal_secure.model import Model, evaluate
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
    session_result,
)
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.ridge import RidgeHead, solve_ridge
from fedopal_secure.vision.backbone import load_backbone
from fedopal_secure.vision.features import extract_features
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

    def __init__(self, config: SimulationConfig, policy: PolicyConfig | None = None) -> None:
        """Load data and backbone and share the images out. Raises InputError for anything wrong with them."""
        self.config, self._report = config, quiet
        self.names = tuple(f"client-{number:02d}" for number in range(1, config.clients + 1))
        self.protocol = PROTOCOLS[config.protocol]
        sessions, phases = session_names(config.prompts.mode, config.min_contributors), PHASES[self.protocol]
        self.drops = [parse_drop(text, sessions, phases, self.names) for text in config.drop]
        self.backbone = load_backbone(config.backbone, config.image_size)
        self.public_prompts = self._load_public_prompts()
        self.dataset: Dataset = load_dataset(
            config.dataset,
            seed=config.seed,
            skip_unreadable=config.skip_unreadable,
            limit=config.train_limit,
            transform=self.backbone.preprocess,
        )
        train = self.dataset.train
        self.parts = dirichlet_partition(train.labels, config.clients, config.alpha, config.seed)
        cap = config.max_images or 1 << (len(train) - 1).bit_length()
        if len(train) > cap:
            raise InputError(f"{len(train)} training images are more than max_images = {cap}: raise the cap")
        self.task = self._make_task(cap)
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
        dimension = backbone.embed_dim
        if prompts.mode == "none":
            source, tokens, dimension = b"", 0, 0
        elif self.public_prompts is not None:
            source, tokens = prompts_digest(self.public_prompts), len(self.public_prompts)
        else:
            tuning = prompts.tuning.model_dump_json()
        return Task(
            backbone=backbone.id,
            backbone_hash=bytes.fromhex(backbone.hash),
            preprocessing=backbone.preprocessing,
            feature_map="cls",
            feature_dimension=backbone.feature_dim,
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

    def _make_policy(self, file: PolicyConfig | None) -> Policy:
        task = self.task
        if file is None:
            file = PolicyConfig(
                corrupt=self.config.corrupt_clients,
                min_survivors=self.config.cohort,
                min_contributors=self.config.min_contributors,
                protocols=(self.protocol,),
            )
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
        return PrivateData(np.asarray(train.images), train.labels)

    def _accuracy(self, head: RidgeHead, prompts: NDArray[np.float32] | None) -> float:
        """Accuracy of a head under some prompts on the test images."""
        return evaluate(self._scores(head, prompts), self.dataset.test.labels, self.dataset.test.classes).accuracy

    def _scores(self, head: RidgeHead, prompts: NDArray[np.float32] | None) -> NDArray[np.float64]:
        test = np.asarray(self.dataset.test.images)
        features = extract_features(self.backbone, test, prompts, progress=partial(self._report, "evaluation"))
        return head.scores(feature_grid(self.task).normalised(features))

    def centralised(self, data: PrivateData, prompts: NDArray[np.float32] | None) -> RidgeHead:
        """The head that one party holding all of `data` would compute under `prompts`."""
        progress = partial(self._report, "features")
        statistics = compute_statistics(self.backbone, data, self.task, prompts, progress)
        moments = Moments.from_statistics(statistics, feature_grid(self.task))
        return solve_ridge(moments, self.config.head.rule, self.config.head.value, intercept=self.config.head.intercept)

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
            privacy=None,
            transcript=model.transcript,
            timings_s={},
            environment=Environment.here(),
        )


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
    rounds = 1 + int(config.baselines)
    return {
        "tuning": rounds * train * config.prompts.tuning.epochs if tunes else 0,
        "features": train * (1 + config.baselines * (2 + int(tunes))),
        "evaluation": test * (1 + config.baselines * (2 + int(tunes))),
    }
