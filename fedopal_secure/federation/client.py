"""A client's side of a round: tunes prompts, takes features, puts exact sums on the grid, and answers the server.

Images and labels never leave this object; what leaves goes through `Participant.policy` and the secure sum first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.client import ParentView
from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import InputError, MisuseError, OverflowBudgetError, PolicyRefusal, ServerFault
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import SessionParams, Task, session_id
from fedopal_secure.federation.config import TuningSettings
from fedopal_secure.federation.secure_sum import UPLOAD, Participant, SumClient, open_client
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.vectors import (
    PROMPTS_SESSION,
    STATISTICS_SESSION,
    PromptTotal,
    feature_grid,
    prompt_grid,
    session_names,
    session_segments,
    to_vector,
)
from fedopal_secure.statistics.sums import SufficientStatistics, accumulate
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.features import extract_features
from fedopal_secure.vision.prompts import initial_prompts
from fedopal_secure.vision.tuning import TuningConfig, tune_prompts

Witness = Callable[[bytes, bytes, NDArray[np.uint64]], None]
Report = Callable[[str, int], None]


@dataclass(frozen=True)
class PrivateData:
    """A client's images as the backbone wants them, uint8 (n, size, size, channels), and labels, int64 (n,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def digest(self) -> bytes:
        """SHA-256 of images and labels: what the client's ledger knows the data by."""
        shape = repr((self.images.shape, self.labels.shape)).encode()
        parts = shape + self.images.tobytes() + self.labels.astype("<i8").tobytes()
        return hashlib.sha256(parts).digest()


def compute_statistics(
    backbone: Backbone,
    data: PrivateData,
    task: Task,
    prompts: NDArray[np.float32] | None,
    progress: Callable[[int], None] | None = None,
) -> SufficientStatistics:
    """Exact statistics of some images under some prompts, on the task's grid; FedOPAL eq. 7."""
    features = extract_features(backbone, data.images, prompts, progress=progress)
    grid = feature_grid(task)
    return accumulate(grid.quantise(features), data.labels, len(task.classes), grid.bits)


@dataclass
class _Session:
    params: SessionParams
    id: bytes
    sums: SumClient
    chain: bytes


class RoundClient:
    """One client in one round. Sessions are told apart by what they sum: `prompts` or `statistics`."""

    def __init__(
        self,
        participant: Participant,
        backbone: Backbone,
        data: PrivateData,
        journal: Journal,
        timings: Timings,
        *,
        tuning_seed: int,
        public_prompts: NDArray[np.float32] | None = None,
        tuned: NDArray[np.float32] | None = None,
        witness: Witness | None = None,
        report: Report | None = None,
    ) -> None:
        """`tuned` are prompts that this client has tuned already, on the same data and from the same P_init.

        `witness` is shown each vector before it is masked: a simulation compares sums with it, nobody else may.

        `report` is called with a stage (`tuning` or `features`) and how many more images it has gone through.
        Raises InputError if there are no images.
        """
        if not len(data.labels):
            raise InputError("a client has no images: leave it out or give it some")
        self._me, self._backbone, self._data, self._journal = participant, backbone, data, journal
        self._timings, self._tuning_seed, self._public_prompts = timings, tuning_seed, public_prompts
        self._witness, self._report = witness, report
        self._sessions: dict[str, _Session] = {}
        self._views: dict[bytes, ParentView] = {}
        self.tuned = tuned

    def answer(self, session: str, phase: str, request: bytes) -> bytes:
        """Answer one request of the server; raises PolicyRefusal, ServerFault or MisuseError, and then says nothing."""
        if session not in self._sessions:
            answer = self._join(session, request, phase)
        elif phase == UPLOAD:
            answer = self._upload(self._sessions[session], request)
        else:
            with self._timings.stage("protect"):
                answer = self._sessions[session].sums.answer(phase, request)
        current = self._sessions[session]
        if current.sums.view is not None:
            self._views[current.id] = current.sums.view
        # Written before the answer leaves: a client that is restarted must not answer twice.
        self._journal.answer(current.id, phase)
        return answer

    def tune(self) -> None:
        """Tune the prompts on this client's images, if the mode asks for it; needs a proposal, and no other client."""
        if self.tuned is not None or not self._sessions:
            return
        task = next(iter(self._sessions.values())).params.task
        if task.prompt_mode not in ("local", "two-phase"):
            return
        settings = TuningSettings.model_validate_json(task.tuning)
        with self._timings.stage("tuning"):
            tuned = tune_prompts(
                self._backbone,
                self._data.images,
                self._data.labels,
                len(task.classes),
                self._initial(task),
                TuningConfig(
                    tokens=task.prompt_tokens,
                    epochs=settings.epochs,
                    proximal=settings.proximal,
                    learning_rate=settings.learning_rate,
                    batch_size=settings.batch_size,
                ),
                self._tuning_seed,
                self._progress("tuning"),
            )
        self.tuned = np.clip(tuned, -task.prompt_bound, task.prompt_bound)

    def _join(self, session: str, proposal: bytes, phase: str) -> bytes:
        sums, params = open_client(proposal, self._me)
        task, backbone = params.task, self._backbone
        if params.name != session:
            raise ServerFault(f"the proposal is for a sum of {params.name!r}, not of {session!r}")
        mine = (backbone.id, bytes.fromhex(backbone.hash), backbone.preprocessing)
        if (task.backbone, task.backbone_hash, task.preprocessing) != mine:
            raise PolicyRefusal("backbone", "the proposed backbone is not the one that this client has loaded")
        if params.segments != session_segments(task, params.name, params.clients):
            raise PolicyRefusal("segments", "the segments are not those that the task's bounds give")
        if task.prompt_mode == "public":
            known = None if self._public_prompts is None else prompts_digest(self._public_prompts)
            if known != task.prompt_source:
                raise PolicyRefusal("prompts", "the public prompts are not those that this client has loaded")
        if len(self._data.labels) > task.max_images:
            raise OverflowBudgetError(
                f"{len(self._data.labels)} images are more than the cap of {task.max_images}: agree on a larger cap"
            )
        self._sessions[session] = _Session(params, session_id(params), sums, self._chain(params))
        with self._timings.stage("protect"):
            return sums.answer(phase, proposal)

    def _chain(self, params: SessionParams) -> bytes:
        """The id of the first session of the chain that a proposal belongs to; raises ServerFault if it fits none."""
        names = session_names(params.task.prompt_mode)
        if params.name not in names:
            raise ServerFault(f"there is no sum of {params.name!r} with prompts of mode {params.task.prompt_mode!r}")
        place = names.index(params.name)
        before = self._sessions.get(names[place - 1]) if place else None
        if params.parent != (before.id if before else b"") or bool(place) != bool(before):
            raise ServerFault("the session does not continue the one that this client knows")
        if before and params.task != before.params.task:
            raise ServerFault("the session's task is not that of the session that it continues")
        return before.chain if before else session_id(params)

    def _upload(self, session: _Session, context_bytes: bytes) -> bytes:
        params, task = session.params, session.params.task
        context = decode(Context, context_bytes, ServerFault)
        prompts = self._prompts(params, context)
        statistics = None
        if params.name == STATISTICS_SESSION:
            with self._timings.stage("features"):
                statistics = compute_statistics(self._backbone, self._data, task, prompts, self._progress("features"))
        summed = prompts if params.name == PROMPTS_SESSION or task.prompt_mode == "local" else None
        points = None if summed is None else prompt_grid(task).quantise(summed)
        vector = to_vector(params, statistics, points)
        self._journal.give(self._data.digest(), session.chain, params.name, session.id, self._me.policy.sessions)
        if self._witness is not None:
            self._witness(session.id, self._me.key.identity, vector)
        with self._timings.stage("protect"):
            return session.sums.upload(vector, context_bytes, self._views.get(params.parent))

    def _prompts(self, params: SessionParams, context: Context) -> NDArray[np.float32] | None:
        """The prompts under which this session's features are taken (or which it sums)."""
        task = params.task
        if task.prompt_mode == "none":
            return None
        if task.prompt_mode == "public":
            return self._public_prompts
        if params.name == STATISTICS_SESSION and task.prompt_mode == "two-phase":
            total = decode(PromptTotal, context.payload, ServerFault)
            if total.clients != len(context.parent_survivors):
                raise ServerFault("the mean prompt is not over the survivors of the parent session")
            mean = total.mean(task)
            distance = float(np.linalg.norm(mean - self._initial(task)))
            if not distance <= self._me.policy.prompt_radius:
                raise PolicyRefusal("prompt_radius", f"the mean prompt is {distance:.3g} away from P_init")
            return mean
        if self.tuned is None:
            raise MisuseError("the prompts have not been tuned yet")
        return self.tuned

    def _progress(self, stage: str) -> Callable[[int], None] | None:
        return None if self._report is None else partial(self._report, stage)

    def _initial(self, task: Task) -> NDArray[np.float32]:
        """P_init, the same for everyone: it comes from the task's seed."""
        return initial_prompts(task.prompt_source, task.prompt_tokens, task.prompt_dimension)


def prompts_digest(prompts: NDArray[np.float32]) -> bytes:
    """SHA-256 of public prompts, float32 (tokens, dimension), as the task names them."""
    return hashlib.sha256(repr(prompts.shape).encode() + prompts.astype("<f4").tobytes()).digest()
