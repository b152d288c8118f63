"""Flower's SecAgg+ driven in process: the peer that our secure aggregation is measured beside.

What runs is Flower's own code: the client modifier `secaggplus_mod` once per client and stage, and the stage methods of
`SecAggPlusWorkflow` for the server. Between the two, every message content passes through Flower's protobuf form.

What the clocks hold: a client's time is the modifier call, a server's time is the stage method without the waiting for
replies. Protobuf, transport, training and the strategy are outside both: the strategy here only picks up the mean.

What is set: Flower's default clipping (±8), quantisation (2²²) and modulus (2³²); every client has the full weight; the
threshold is ours for the same number of holders. Clients drop after they have shared their keys and before they upload.

    python -m benchmarks.flower_peer --length 2000 --clients 10 --dropouts 1
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.compat.common.recorddict_compat import fitres_to_recorddict, parameters_to_arrayrecord
    from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
    from flwr.server import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
    from flwr.server.workflow.constant import Key as WorkflowKey
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
    from flwr.supercore.task_identity import TaskIdentity
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "flwr":
        raise
    raise ModuleNotFoundError("the peer needs the package flwr: pip install flwr==1.42.0", name="flwr") from None

# Both are read off pseudo_rand_gen in flwr 1.42, which seeds numpy.random.RandomState with a 32-bit integer.
PRG = "MT19937 (numpy.random.RandomState)"
SEED_BITS = 32

DEVIATION = 0.1  # of every value of every client
WEIGHT = 1  # of every client, and the largest allowed: the weight then costs no precision
STAGES = (Stage.SETUP, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK)


@dataclasses.dataclass(frozen=True)
class PeerResult:
    """One round: seconds and bytes by Flower's stage names; a client's are the mean over those who took part."""

    client_seconds: dict[str, float]
    client_total: float
    server_seconds: dict[str, float]
    server_total: float
    sent_bytes: dict[str, int]  # protobuf content of a client's reply
    upload_bytes: int  # of these, the masked vector's message
    max_error: float  # largest |sum over the survivors, as recovered, less the true one|
    mean_max_error: float  # the same for the mean, which is what Flower hands on
    shares: int  # holders of a client's secret, itself included
    threshold: int
    survivors: int
    prg: str
    seed_bits: int


def threshold_for(holders: int) -> int:
    """Our threshold when at most a fifth of the holders is corrupt."""
    return (holders + holders // 5) // 2 + 1


def run(length: int, clients: int, dropouts: int, *, neighbours: int | None = None, seed: int = 0) -> PeerResult:
    """Run one round and return its costs and its error.

    `neighbours` counts the holders of a client's shares, itself included, as Flower's `num_shares` does; None is the
    full graph. Flower needs an odd number on a sparse graph; the full graph works with any number of clients. The seed
    fixes values, dropouts, Flower's graph and its rounding, through the process-wide generators that it draws from.
    """
    shares = clients if neighbours is None else neighbours
    if clients < 3 or not 3 <= shares <= clients:
        raise ValueError(f"{clients} clients and {shares} holders: at least 3 holders, and no more than the clients")
    if shares < clients and shares % 2 == 0:
        raise ValueError(f"neighbours is {shares}: Flower needs an odd number below the number of clients")
    threshold = threshold_for(shares)
    if not 0 <= dropouts <= clients - threshold:
        raise ValueError(f"{dropouts} dropouts of {clients} leave fewer than the threshold of {threshold}")

    generator = np.random.default_rng(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  Flower's stochastic rounding draws from it
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Message asks for the three

    node_ids = [int(node) for node in generator.integers(2, 2**62, size=clients)]
    dropped = set(node_ids[:dropouts])
    nodes = [_Node(node, (seed, index), length) for index, node in enumerate(node_ids)]
    true_sum = sum((node.vector() for node in nodes if node.node_id not in dropped), start=np.zeros(length))

    grid = _Grid({node.node_id: node for node in nodes}, dropped)
    strategy = _MeanOnly(node_ids)
    workflow = SecAggPlusWorkflow(shares, threshold, max_weight=float(WEIGHT))
    server_seconds = _serve(workflow, grid, _server_context(strategy))
    if strategy.mean is None:
        raise RuntimeError("Flower's workflow recovered no mean")
    survivors = clients - dropouts
    client_seconds = {stage: float(np.mean(grid.seconds[stage])) for stage in STAGES}
    sent_bytes = {stage: round(float(np.mean(grid.sent[stage]))) for stage in STAGES}
    return PeerResult(
        client_seconds=client_seconds,
        client_total=sum(client_seconds.values()),
        server_seconds=server_seconds,
        server_total=sum(server_seconds.values()),
        sent_bytes=sent_bytes,
        upload_bytes=sent_bytes[Stage.COLLECT_MASKED_VECTORS],
        max_error=float(np.max(np.abs(strategy.mean * survivors - true_sum))),
        mean_max_error=float(np.max(np.abs(strategy.mean - true_sum / survivors))),
        shares=shares,
        threshold=threshold,
        survivors=survivors,
        prg=PRG,
        seed_bits=SEED_BITS,
    )


class _Node:
    """One client: its context, where the modifier keeps its state, and its vector, drawn when asked for."""

    def __init__(self, node_id: int, seed: tuple[int, int], length: int) -> None:
        self.node_id = node_id
        self.seed = seed
        self.length = length
        self.context = Context(run_id=1, node_id=node_id, node_config={}, state=RecordDict(), run_config={})

    def vector(self) -> NDArray[np.float64]:
        """Return the client's values, the same at every call."""
        return np.random.default_rng(self.seed).normal(0.0, DEVIATION, self.length)

    def answer(self, message: Message, stage: str) -> tuple[Message, float]:
        """Return the modifier's reply and the seconds it took."""
        trained = RecordDict()
        if stage == Stage.COLLECT_MASKED_VECTORS:
            parameters = ndarrays_to_parameters([self.vector()])
            trained = fitres_to_recorddict(FitRes(Status(Code.OK, ""), parameters, WEIGHT, {}), keep_input=True)

        def app(request: Message, _: Context) -> Message:
            return Message(trained, reply_to=request)

        start = time.perf_counter()
        reply = secaggplus_mod(message, self.context, app)
        return reply, time.perf_counter() - start


class _Grid:
    """Carries messages as Flower's transport does, and records what the clients' answers cost."""

    def __init__(self, nodes: dict[int, _Node], dropped: set[int]) -> None:
        self.nodes = nodes
        self.dropped = dropped
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.sent: dict[str, list[int]] = defaultdict(list)
        self.waited = 0.0

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return the replies of the nodes that have not dropped, at once: the time-out is never reached."""
        start = time.perf_counter()
        replies = []
        for message in messages:
            _through_protobuf(message)
            stage = str(message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE])
            node_id = message.metadata.dst_node_id
            if node_id in self.dropped and stage in (Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK):
                continue
            reply, seconds = self.nodes[node_id].answer(message, stage)
            self.seconds[stage].append(seconds)
            self.sent[stage].append(_through_protobuf(reply))
            replies.append(reply)
        self.waited += time.perf_counter() - start
        return replies


def _through_protobuf(message: Message) -> int:
    """Replace the content by what the other side would decode, and return its size in bytes.

    Also needed for correctness: the workflow puts one content into many messages, and the modifier changes it.
    """
    encoded = recorddict_to_proto(message.content).SerializeToString()
    message.content = recorddict_from_proto(ProtoRecordDict.FromString(encoded))
    return len(encoded)


class _MeanOnly:
    """The least strategy that the workflow accepts: everybody takes part, and the mean is picked up."""

    def __init__(self, node_ids: list[int]) -> None:
        self.node_ids = node_ids
        self.mean: NDArray[np.float64] | None = None

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[Any, FitIns]]:
        """Ask every client."""
        return [(SimpleNamespace(node_id=node), FitIns(parameters, {})) for node in self.node_ids]

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        """Keep the mean, which the workflow has put into every result."""
        self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


def _server_context(strategy: _MeanOnly) -> LegacyContext:
    """Return the server's context in round 1, with a model of a single value: the way down is not measured."""
    state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})})
    state.array_records[MAIN_PARAMS_RECORD] = parameters_to_arrayrecord(ndarrays_to_parameters([np.zeros(1)]), True)
    context = Context(run_id=1, node_id=1, node_config={}, state=state, run_config={})
    return LegacyContext(context, strategy=strategy)  # type: ignore[arg-type, unused-ignore]


def _serve(workflow: SecAggPlusWorkflow, grid: _Grid, context: LegacyContext) -> dict[str, float]:
    """Run the workflow's stages in order and return the server's seconds in each, without the clients' answers."""
    stages: dict[str, Callable[[Any, LegacyContext, WorkflowState], bool]] = {
        Stage.SETUP: workflow.setup_stage,
        Stage.SHARE_KEYS: workflow.share_keys_stage,
        Stage.COLLECT_MASKED_VECTORS: workflow.collect_masked_vectors_stage,
        Stage.UNMASK: workflow.unmask_stage,
    }
    state = WorkflowState()
    seconds: dict[str, float] = {}
    for name, stage in stages.items():
        waited, start = grid.waited, time.perf_counter()
        if not stage(grid, context, state):
            raise RuntimeError(f"Flower's workflow stopped in its stage {name!r}: too few active holders")
        seconds[name] = time.perf_counter() - start - (grid.waited - waited)
    return seconds


def main() -> None:
    """Print one result as JSON."""
    parser = argparse.ArgumentParser(description="Costs of one round of Flower's SecAgg+, in process.")
    parser.add_argument("--length", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--dropouts", type=int, default=1)
    parser.add_argument("--neighbours", type=int, help="holders of a client's shares, itself included; all by default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(dataclasses.asdict(run(**vars(options))), indent=2))


if __name__ == "__main__":
    main()
