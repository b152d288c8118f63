"""Two rounds with clients that compute their own vectors: widths in which a sum wraps, and a mean prompt as a trap.

The clients are the library's `RoundClient`s on a backbone of four lines, whose features can be worked out by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import FedopalError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import PROTOCOL, SessionParams, Task
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.core.ring import U64
from fedopal_secure.core.server import Sum
from fedopal_secure.federation.client import PrivateData, RoundClient, compute_statistics
from fedopal_secure.federation.config import TuningSettings
from fedopal_secure.federation.protocols import open_server
from fedopal_secure.federation.secure_sum import PHASES, UPLOAD, Participant
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.vectors import PromptTotal, from_vector, session_segments, to_vector
from fedopal_secure.statistics.sums import accumulate
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.preprocessing import Preprocessing
from tests.attacks.catalogue import Attack, Outcome, suite, words
from tests.core.harness import TASK, entropy, seed

VICTIM = "the victim's vector"


class Gate(Backbone):
    """Four pixels to five features: a constant, and what of each pixel is above a threshold, a fifth of the prompt."""

    def __init__(self) -> None:
        super().__init__(Preprocessing(2, (0.0,), (1.0,), "bilinear"))
        self.id, self.hash, self.embed_dim, self.feature_dim = "gate", "ab" * 32, 4, 5
        self.scale = nn.Parameter(torch.ones(1))
        self.freeze()

    def embed(self, images: Tensor) -> Tensor:
        pixels = images.reshape(len(images), 1, 4)
        return torch.cat([torch.zeros_like(pixels), pixels], dim=1)

    def encode(self, tokens: Tensor) -> Tensor:
        gate = tokens[:, 1:-1].sum(dim=1) / 5
        return torch.cat([self.scale.expand(len(tokens), 1), torch.relu(tokens[:, -1] - gate)], dim=1)


GATE = Gate()
GATE_TASK = replace(
    TASK,
    backbone=GATE.id,
    backbone_hash=bytes.fromhex(GATE.hash),
    preprocessing=GATE.preprocessing,
    feature_dimension=GATE.feature_dim,
    max_images=16,
)
TWO_PHASE = replace(
    GATE_TASK,
    prompt_mode="two-phase",
    prompt_tokens=1,
    prompt_dimension=GATE.embed_dim,
    prompt_bound=4.0,
    prompt_source=bytes(32),
    tuning=TuningSettings().model_dump_json(),
)
BRIGHT, DARK = (250, 255, 0, 230), ((10, 20, 30, 40), (90, 3, 120, 200), (0, 0, 7, 180))


def one_image(pixels: tuple[int, ...], label: int) -> PrivateData:
    return PrivateData(np.array(pixels, np.uint8).reshape(1, 2, 2, 1), np.array([label]))


class Round:
    """Four clients with one image each, the first of them the victim, and a server that carries bytes by hand."""

    def __init__(self, work: Task) -> None:
        self.task, self.host = work, SigningKey(seed("gate server"))
        keys = sorted((SigningKey(seed("gate", number)) for number in range(4)), key=lambda key: key.identity)
        self.members, self.invited = Membership(frozenset(key.identity for key in keys)), [k.identity for k in keys]
        policy = Policy(
            self.members,
            frozenset({self.host.identity}),
            work.backbone,
            work.backbone_hash,
            work.preprocessing,
            work.classes,
            0,
            work.max_images,
        )
        self.data = [one_image(BRIGHT, 1), *(one_image(pixels, number % 2) for number, pixels in enumerate(DARK))]
        self.clients = {
            key.identity: RoundClient(
                Participant(key, b"", policy, entropy(seed("gate", key.identity))),
                GATE,
                data,
                Journal(),
                Timings(),
                tuning_seed=0,
                tuned=np.zeros((1, 4), np.float32),
            )
            for key, data in zip(keys, self.data, strict=True)
        }

    def params(self, name: str, parent: bytes = b"", **changes: Any) -> SessionParams:
        segments = session_segments(self.task, name, 4)
        nonce, server = seed("gate", name), self.host.identity
        made = SessionParams(PROTOCOL, name, nonce, server, parent, 4, 0, 0, 3, 0, b"", segments, self.task)
        return replace(made, **changes)

    def sum(self, params: SessionParams, context: Callable[[bytes], Context]) -> Sum:
        """One session from end to end; `context` makes what uploads are under, from the session's id."""
        server = open_server(params, self.members, tuple(self.invited), self.host)
        for phase in PHASES[PROTOCOL]:
            requests = server.request(phase, context(server.session) if phase == UPLOAD else None)
            for client, request in requests.items():
                answer = self.clients[client].answer(params.name, phase, request)
                if answer:
                    server.receive(client, answer)
        return server.finish()

    def vector(self, params: SessionParams, client: int, prompts: NDArray[np.float32] | None) -> U64:
        """What a client computes, for comparison."""
        return to_vector(params, compute_statistics(GATE, self.data[client], self.task, prompts), None)


def no_parent(session: bytes) -> Context:
    return Context(session, b"", b"", (), b"")


def sum_that_wraps() -> Outcome:
    """Each client's own statistics fit into the narrower width, the sum does not."""
    run = Round(GATE_TASK)
    first, *rest = session_segments(GATE_TASK, "statistics", 4)
    params = run.params("statistics", segments=(replace(first, width=first.width - 1), *rest))
    try:
        result = run.sum(params, no_parent)
    except FedopalError as error:
        return Outcome(False, words(error))
    accepted, _ = from_vector(params, result.total)
    true, _ = from_vector(
        run.params("statistics"), np.sum([run.vector(params, client, None) for client in range(4)], axis=0)
    )
    if accepted is None or true is None:
        raise TypeError("a session that sums no statistics")
    wrong = not np.array_equal(accepted.r.diagonal(), true.r.diagonal())
    return Outcome(wrong, "the diagonal of R is not the sum of the clients', and nobody objects")


def mean_prompt_as_a_trap() -> Outcome:
    """Under the server's prompt every image but the victim's becomes the same constant.

    What is left of R outside the constant is the victim's alone: a square root gives its feature, and C its class.
    """
    run = Round(TWO_PHASE)
    trap = PromptTotal(4, np.full(4, 4 << TWO_PHASE.prompt_bits, "<i8").tobytes())
    try:
        before = run.sum(run.params("prompts"), no_parent)
        params = run.params("statistics", before.session)
        result = run.sum(
            params, lambda session: Context(session, before.session, before.view, before.survivors, encode(trap))
        )
    except FedopalError as error:
        return Outcome(False, words(error))
    summed, _ = from_vector(params, result.total)
    if summed is None:
        raise TypeError("a session that sums no statistics")
    bright = np.array([math.isqrt(int(square)) for square in summed.r.diagonal()[1:]])
    shown = int(np.argmax(bright))
    feature = np.array([summed.r[0, 1 + shown] // bright[shown], *bright])
    label = np.flatnonzero(summed.c[1 + shown])
    guess = to_vector(params, accumulate(feature[None], label, 2, TWO_PHASE.feature_bits), None)
    plain = run.vector(params, 0, trap.mean(TWO_PHASE))
    return Outcome(np.array_equal(guess, plain), "the victim's image and class, read off the sum: its whole vector")


test_defended, test_control = suite(
    Attack(
        6,
        "a width in which the sum wraps",
        "a wrong sum",
        sum_that_wraps,
        "federation.client.RoundClient._check_task",
        "'segments'",
    ),
    Attack(
        6,
        "a mean prompt that leaves a trace of the victim only",
        VICTIM,
        mean_prompt_as_a_trap,
        "federation.client.check_radius",
        "'prompt_radius'",
    ),
)
