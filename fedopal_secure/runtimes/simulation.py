"""A round with simulated clients: real data and real protocol, with keys, masks and dropouts drawn from a seed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.params import ENCRYPTED
from fedopal_secure.core.policy import Membership
from fedopal_secure.data.datasets import Dataset
from fedopal_secure.data.partition import dirichlet_partition
from fedopal_secure.encoding.layout import plain_float32_bytes
from fedopal_secure.encoding.prompts import initial_prompts
from fedopal_secure.federation.client import Report
from fedopal_secure.federation.config import PolicyConfig, SimulationConfig, dump_toml
from fedopal_secure.federation.heads import check_ridge
from fedopal_secure.federation.policies import file_of
from fedopal_secure.federation.private_data import PrivateData
from fedopal_secure.federation.secure_sum import OPEN, PHASES, Participant, protocol_named
from fedopal_secure.federation.server import Proposal, RoundServer
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript
from fedopal_secure.federation.vectors import STATISTICS_SESSION, session_names
from fedopal_secure.he.authority import AuthorityPolicy, SecretKeys, generate
from fedopal_secure.he.messages import public_context_hash
from fedopal_secure.model import Model, evaluate
from fedopal_secure.runtimes import baselines, setup
from fedopal_secure.runtimes.dropouts import Dropouts, parse_drop
from fedopal_secure.runtimes.in_process import run_round
from fedopal_secure.runtimes.parties import SeededEntropy, TimedAuthority, Vectors, WitnessedClient
from fedopal_secure.runtimes.result import (
    Baseline,
    Environment,
    Exact,
    Prompts,
    Result,
    Ridge,
    compare_sums,
    encryption_result,
    privacy_result,
    session_result,
)
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.devices import tuning_dtype
from fedopal_secure.vision.features import Extract, extract_features

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

        For a caller that runs many simulations, `backbone` is loaded already, `dataset` is what `setup.load_images`
        gave for an equal configuration, and `extract` is how features are taken.
        """
        setup.check_settings(config)
        self.config, self._policy_file = config, policy
        self.names = tuple(f"client-{number:02d}" for number in range(1, config.clients + 1))
        self.protocol = protocol_named(config.protocol, config.masked)
        sessions = session_names(config.prompts.mode, config.min_contributors)
        phases = [phase for phase in PHASES[self.protocol] if phase != OPEN]  # in that one no client is asked
        self.drops = [parse_drop(text, sessions, phases, self.names) for text in config.drop]
        self.backbone = backbone or setup.load_network(config)
        self.public_prompts = setup.load_public_prompts(config, self.backbone)
        self.extract = extract
        self.dataset: Dataset = dataset or setup.load_images(config, self.backbone)
        train = self.dataset.train
        self.parts = dirichlet_partition(train.labels, config.clients, config.alpha, config.seed, train.groups)
        cap = setup.image_cap(config, train)
        self.public_map = setup.load_public_map(config, cap, self.backbone)
        self.task = setup.make_task(
            config,
            self.backbone,
            train,
            max_images=cap,
            public_prompts=self.public_prompts,
            public_map=self.public_map,
        )
        check_ridge(config.head, self.task, config.clients)
        self.keys = {name: SigningKey(SeededEntropy(config.seed, f"{name} identity")(32)) for name in self.names}
        self.server_key = SigningKey(SeededEntropy(config.seed, "server identity")(32))
        self.by_identity = {key.identity: name for name, key in self.keys.items()}
        self.members = Membership(frozenset(key.identity for key in self.keys.values()))
        self.secrets: SecretKeys | None = None
        self.authority_key = SigningKey(SeededEntropy(config.seed, "key authority identity")(32))
        if self.protocol in ENCRYPTED:
            self.secrets = generate(self.protocol, self.authority_key)
        pinned = b"" if self.secrets is None else public_context_hash(self.secrets.context)
        self.policy = setup.make_policy(config, self.task, self.members, self.server_key.identity, pinned, policy)
        self._centre = baselines.Centre(
            backbone=self.backbone,
            task=self.task,
            public_map=self.public_map,
            extract=extract,
            head=config.head,
            test=self.dataset.test,
            report=quiet,
        )

    def run(self, out: Path | None = None, report: Report = quiet, tuned: TunedPrompts | None = None) -> Outcome:
        """Run the round; with `out`, leave config.toml, trust.toml, result.json, model.safetensors and
        transcript/ there.

        `tuned` are prompts of an earlier simulation that differs in its mode only, so that nobody tunes them again.
        Raises InputError if `out` holds a run already, OSError if it cannot be written, and the protocol's errors if
        the round aborts.
        """
        start = time.perf_counter()
        config, timings = self.config, Timings()
        self._centre = dataclasses.replace(self._centre, report=report)
        if out is not None:
            self._write_settings(out)
        server = self._server(Transcript(None if out is None else out / "transcript"), timings)
        seen: Vectors = {}
        clients = {
            self.keys[name].identity: self._client(number, seen, timings, report, (tuned or {}).get(name))
            for number, name in enumerate(self.names)
        }
        authority = self._authority(timings)
        model = run_round(server, clients, Dropouts(self.drops, self.by_identity, config.seed), authority)
        pooled = self.pooled(self.by_identity[client] for client in server.result(STATISTICS_SESSION).survivors)
        baseline = None
        if config.baselines:
            baseline = baselines.baseline(self._centre, model, pooled, config.prompts.tuning, config.seed)
        result = self._result(server, model, compare_sums(server.records, seen), baseline, authority)
        seconds = timings.seconds | {"total": time.perf_counter() - start}
        result = msgspec.structs.replace(result, timings_s=seconds)
        if out is not None:
            model.save(out / "model.safetensors")
            (out / "result.json").write_text(result.to_json() + "\n", encoding="utf-8")
        own = {self.by_identity[client]: party.tuned for client, party in clients.items() if party.tuned is not None}
        return Outcome(model, result, pooled, own)

    def _write_settings(self, out: Path) -> None:
        check_output(out)
        out.mkdir(parents=True, exist_ok=True)
        resolved = setup.resolved(self.config, self.task, self.backbone)
        (out / "config.toml").write_text(dump_toml(resolved), encoding="utf-8")
        if self._policy_file is not None:
            (out / "policy.toml").write_text(dump_toml(self._policy_file), encoding="utf-8")
        identities = {name: key.identity for name, key in self.keys.items()}
        trust = file_of(self.policy, identities, {"server": self.server_key.identity})
        (out / "trust.toml").write_text(dump_toml(trust), encoding="utf-8")

    def _server(self, transcript: Transcript, timings: Timings) -> RoundServer:
        config = self.config
        proposal = Proposal(
            protocol=self.protocol,
            clients=config.clients,
            corrupt=config.corrupt_clients,
            degree=config.graph_degree,
            min_survivors=config.cohort,
            task=self.task,
            public_prompts=self.public_prompts,
            public_map=self.public_map,
            public_context=None if self.secrets is None else self.secrets.context,
        )
        return RoundServer(
            key=self.server_key,
            members=self.members,
            invited=tuple(key.identity for key in self.keys.values()),
            proposal=proposal,
            head=config.head,
            entropy=SeededEntropy(config.seed, "server"),
            transcript=transcript,
            timings=timings,
        )

    def _authority(self, timings: Timings) -> TimedAuthority | None:
        if self.secrets is None:
            return None
        config = self.config
        servers = frozenset({self.server_key.identity})
        policy = AuthorityPolicy(self.members, servers, config.corrupt_clients, config.cohort)
        return TimedAuthority(timings, self.authority_key, self.secrets, policy)

    def _client(
        self, number: int, seen: Vectors, timings: Timings, report: Report, tuned: NDArray[np.float32] | None
    ) -> WitnessedClient:
        name, seed = self.names[number], self.config.seed
        return WitnessedClient(
            seen,
            Participant(
                self.keys[name],
                b"",
                self.policy,
                SeededEntropy(seed, name),
                None if self.secrets is None else self.secrets.context,
            ),
            backbone=self.backbone,
            data=self.data_of([number]),
            journal=Journal(),
            timings=timings,
            tuning_seed=seed * 1000 + number,
            public_prompts=self.public_prompts,
            public_map=self.public_map,
            extract=self.extract,
            tuned=tuned,
            report=report,
        )

    def _result(
        self,
        server: RoundServer,
        model: Model,
        exact: Exact,
        baseline: Baseline | None,
        authority: TimedAuthority | None,
    ) -> Result:
        test, task = self.dataset.test, self.task
        evaluation = evaluate(self._centre.scores(model.head, model.prompts), test.labels, test.classes)
        tuned = task.prompt_mode in ("local", "two-phase")
        precision = str(tuning_dtype(self.backbone.device)).removeprefix("torch.") if tuned else None
        distance = None
        if model.prompts is not None and task.prompt_mode != "public":
            initial = initial_prompts(task.prompt_source, task.prompt_tokens, task.prompt_dimension)
            distance = float(np.linalg.norm(model.prompts - initial))
        uploaded = 0 if task.prompt_mode in ("none", "public") else task.prompt_tokens * task.prompt_dimension
        shape = (task.feature_dimension, len(task.classes), uploaded)
        return Result(
            accuracy=evaluation.accuracy,
            accuracy_top5=evaluation.accuracy_top5,
            test_images=len(test),
            train_images=len(self.dataset.train),
            skipped_images=len(self.dataset.skipped),
            clients=self.config.clients,
            sessions=[
                session_result(record, self.by_identity, encryption_result(record, authority))
                for record in server.records.values()
            ],
            plain_float32_bytes=plain_float32_bytes(*shape),
            plain_float32_triangle_bytes=plain_float32_bytes(*shape, triangle=True),
            exact=exact,
            baseline=baseline,
            ridge=Ridge(model.head.rule, model.head.ridge),
            prompts=Prompts(task.prompt_mode, task.prompt_tokens, distance, precision),
            privacy=privacy_result(task, len(server.result(STATISTICS_SESSION).survivors)),
            transcript=model.transcript,
            timings_s={},
            environment=Environment.here(self.backbone.device),
        )

    def with_names(self, text: str) -> str:
        """A message in which identities are replaced by the simulation's names."""
        for identity, name in self.by_identity.items():
            text = text.replace(f"client {identity.hex()[:12]}", name).replace(identity.hex()[:12], name)
        return text

    def data_of(self, clients: list[int]) -> PrivateData:
        """The pooled data of some clients, by number, in order."""
        train = self.dataset.train.subset(np.concatenate([self.parts[client] for client in clients]))
        return PrivateData(np.asarray(train.images), train.labels, train.groups)

    def pooled(self, survivors: Iterable[str]) -> PrivateData:
        """The pooled data of the clients with these names."""
        chosen = set(survivors)
        return self.data_of([number for number, name in enumerate(self.names) if name in chosen])

    def compare_with_centralised(self, model: Model, pooled: PrivateData) -> tuple[float, bool]:
        """Accuracy of the head computed centrally from pooled data under the model's prompts, and whether it is the
        model's own, bit for bit."""
        return baselines.compare_with_centralised(self._centre, model, pooled)


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


def check_output(out: Path) -> None:
    """Raise InputError unless a run can be left in this folder; nothing is made yet."""
    left = [name for name in ("result.json", "config.toml", "model.safetensors", "transcript") if (out / name).exists()]
    if "result.json" in left:
        raise InputError(f"{out} already holds a run: choose another folder with --out")
    if left:
        raise InputError(f"{out} already holds a run that did not finish: delete it, or choose another with --out")


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
