"""A client's side of a round: tunes prompts, takes features, puts exact sums on the grid, and answers the server.

Images and labels never leave this object; what leaves goes through `Participant.policy` and the secure sum first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import InputError, MisuseError, OverflowBudgetError, PolicyRefusal, ServerFault
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import CENSUS, SessionParams, Task, session_id
from fedopal_secure.core.states import ParentView
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.prompts import initial_prompts, prompts_digest
from fedopal_secure.federation.private_data import PrivateData, compute_statistics
from fedopal_secure.federation.protocols import open_client
from fedopal_secure.federation.rules import agreed, check_radius, check_spending, check_task, parse_tuning
from fedopal_secure.federation.secure_sum import UPLOAD, Participant, SumClient
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.vectors import (
    PROMPTS_SESSION,
    STATISTICS_SESSION,
    PromptTotal,
    feature_map_name,
    presence_vector,
    prompt_grid,
    session_names,
    task_release,
    to_vector,
)
from fedopal_secure.privacy.noise import Keystream
from fedopal_secure.vision.backbone import Backbone
from fedopal_secure.vision.features import Extract, extract_features
from fedopal_secure.vision.tuning import TuningConfig, tune_prompts

Report = Callable[[str, int], None]


@dataclass(repr=False)
class JoinedSession:
    """A session that this client takes part in; `chain` is the id of the first session of its chain."""

    params: SessionParams
    id: bytes
    sums: SumClient
    chain: bytes


class RoundClient:
    """One client in one round. Sessions are told apart by what they sum: `census`, `prompts` or `statistics`."""

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
        public_map: FeatureMap | None = None,
        extract: Extract = extract_features,
        tuned: NDArray[np.float32] | None = None,
        report: Report | None = None,
    ) -> None:
        """`public_map` is the feature map that this client has loaded, and `extract` how it takes features. `tuned` are
        prompts that this client has tuned already, on the same data and from the same P_init.

        `report` is called with a stage (`tuning` or `features`) and how many more images it has gone through.
        Raises InputError if there are no images and their number is no secret, or if a label is none of the policy's
        classes; OverflowBudgetError if there are more images than the policy's cap.
        """
        if not len(data) and not participant.policy.release:
            raise InputError("a client has no images: leave it out or give it some")
        if len(data) and not 0 <= data.labels.min() <= data.labels.max() < len(participant.policy.classes):
            raise InputError(f"a client has a label that is none of 0 to {len(participant.policy.classes) - 1}")
        # Here and not when a session is proposed: whether a client refuses must not depend on what it holds.
        if len(data.labels) > participant.policy.max_images:
            raise OverflowBudgetError(
                f"a client has more images than the cap of {participant.policy.max_images}: agree on a larger cap"
            )
        self._me, self._backbone, self._data, self._journal = participant, backbone, data, journal
        self._timings, self._tuning_seed, self._public_prompts = timings, tuning_seed, public_prompts
        self._public_map, self._extract = public_map, extract
        self._report = report
        self._tuning_entropy: Keystream | None = None
        self._noise_entropy: Keystream | None = None
        self._sessions: dict[str, JoinedSession] = {}
        self._views: dict[bytes, ParentView] = {}
        self._left = False
        self.tuned, self._brought_prompts = tuned, tuned is not None

    def answer(self, session: str, phase: str, request: bytes) -> bytes:
        """Answer one request of the server; empty where the phase only informs.

        Raises PolicyRefusal, ServerFault or MisuseError, and has then left the round: it answers nothing any more, so a
        server cannot try what the client would accept.
        """
        if self._left:
            raise MisuseError("this client has left the round")
        try:
            answer = self._answer(session, phase, request)
            # Written before the answer leaves: a client that is restarted must not answer twice.
            self._journal.answer(self._sessions[session].id, phase)
        except BaseException:
            self.close()
            raise
        return answer

    def close(self) -> None:
        """Leave the round and erase the secrets of all its sessions; may be called at any time, and twice."""
        self._left = True
        for session in self._sessions.values():
            session.sums.close()

    def _answer(self, session: str, phase: str, request: bytes) -> bytes:
        if session not in self._sessions:
            return self._join(session, request, phase)
        current = self._sessions[session]
        if phase == UPLOAD:
            return self._upload(current, request)
        with self._timings.stage("protect"):
            answer = current.sums.answer(phase, request)
        if current.sums.view is not None:
            self._views[current.id] = current.sums.view
        return answer

    def tune(self) -> None:
        """Tune the prompts on this client's images, if the mode asks for it; needs a proposal, and no other client."""
        if self.tuned is not None or not self._sessions:
            return
        task = next(iter(self._sessions.values())).params.task
        if task.prompt_mode not in ("local", "two-phase"):
            return
        settings, release, entropy = parse_tuning(task), task_release(task), self._tuning_entropy
        arguments = (
            self._backbone,
            self._data.images,
            self._data.labels,
            len(task.classes),
            self._initial(task),
        )
        progress = self._progress("tuning")
        with self._timings.stage("tuning"):
            if release is None:
                config = TuningConfig(
                    tokens=task.prompt_tokens,
                    epochs=settings.epochs,
                    proximal=settings.proximal,
                    learning_rate=settings.learning_rate,
                    batch_size=settings.batch_size,
                )
                tuned = tune_prompts(*arguments, config, self._tuning_seed, progress)
            elif release.prompts is not None and entropy is not None:
                # Here, because Opacus takes seconds to import.
                from fedopal_secure.vision.private_tuning import DpSgdConfig, tune_prompts_privately

                private = DpSgdConfig(
                    tokens=task.prompt_tokens,
                    proximal=settings.proximal,
                    learning_rate=settings.learning_rate,
                    **msgspec.structs.asdict(release.prompts),
                )
                tuned = tune_prompts_privately(*arguments, private, entropy, progress)
            else:
                raise MisuseError("these prompts may not be tuned on private images")
        self.tuned = np.clip(tuned, -task.prompt_bound, task.prompt_bound)

    def _join(self, session: str, proposal: bytes, phase: str) -> bytes:
        sums, params = open_client(proposal, self._me)
        if params.name != session:
            raise ServerFault(f"the proposal is for a sum of {params.name!r}, not of {session!r}")
        self._check_task(params)
        joined = JoinedSession(params, session_id(params), sums, self._chain(params))
        check_spending(self._me.policy, params.task.release, self._journal.released(besides=joined.chain))
        if params.task.release and self._brought_prompts:
            raise MisuseError("prompts that were tuned elsewhere have no place in a private release")
        if params.task.release and self._tuning_entropy is None:
            # Drawn now: tuning runs beside the protocol, and two threads must not share a generator; and a simulation
            # has the same noise whatever protocol draws from its seed afterwards.
            self._tuning_entropy, self._noise_entropy = Keystream(self._me.entropy(32)), Keystream(self._me.entropy(32))
        self._sessions[session] = joined
        with self._timings.stage("protect"):
            return sums.answer(phase, proposal)

    def _check_task(self, params: SessionParams) -> None:
        """Refuse what the policy does not pin and this client could not compute; its data plays no part in it."""
        task, backbone = params.task, self._backbone

        def require(rule: str, holds: bool, detail: str) -> None:
            if not holds:
                raise PolicyRefusal(rule, detail)

        named = (task.backbone, task.backbone_hash, task.preprocessing)
        mine = (backbone.id, bytes.fromhex(backbone.hash), backbone.preprocessing)
        require("backbone", named == mine, "the proposed backbone is not the one that this client has loaded")
        own_map = self._public_map
        known = task.feature_map == feature_map_name(backbone.id, own_map)
        require("feature_map", known, f"feature map {task.feature_map!r} is not the one that this client has loaded")
        dimension = backbone.feature_dim if own_map is None else own_map.dimension
        require("feature_dimension", task.feature_dimension == dimension, f"{task.feature_dimension}")
        check_task(params, self._data.groups is not None)
        if task.prompt_mode != "none":
            require("prompts", task.prompt_dimension == backbone.embed_dim, f"dimension {task.prompt_dimension}")
        if task.prompt_mode == "public":
            known = None if self._public_prompts is None else prompts_digest(self._public_prompts)
            require("prompts", known == task.prompt_source, "the public prompts are not those that this client loaded")

    def _chain(self, params: SessionParams) -> bytes:
        """The id of the first session of the chain that a proposal belongs to; raises ServerFault if it fits none."""
        names = session_names(params.task.prompt_mode, params.task.min_contributors)
        if params.name not in names:
            raise ServerFault(f"there is no sum of {params.name!r} with prompts of mode {params.task.prompt_mode!r}")
        place = names.index(params.name)
        before = self._sessions.get(names[place - 1]) if place else None
        if params.parent != (before.id if before else b"") or bool(place) != bool(before):
            raise ServerFault("the session does not continue the one that this client knows")
        if before and agreed(params) != agreed(before.params):
            raise ServerFault("the session's parameters are not those of the session that it continues")
        return before.chain if before else session_id(params)

    def _upload(self, session: JoinedSession, context_bytes: bytes) -> bytes:
        session.sums.begin_upload(context_bytes, self._views.get(session.params.parent))
        vector = self._vector(session, decode(Context, context_bytes, ServerFault))
        task = session.params.task
        self._journal.give(
            # What this client answers under differential privacy must not depend on which data it holds.
            b"" if task.release else self._data.digest(),
            session.chain,
            session.params.name,
            session.id,
            self._me.policy.sessions,
            task.release,
            partial(check_spending, self._me.policy, task.release),
        )
        with self._timings.stage("protect"):
            return session.sums.upload(vector)

    def _vector(self, session: JoinedSession, context: Context) -> NDArray[np.uint64]:
        """This client's contribution to a session, in the clear: uint64, as long as the session's segments."""
        params, task = session.params, session.params.task
        self._check_payload(params, context)
        if params.name == CENSUS:
            return presence_vector(params, self._data.labels)
        prompts = self._prompts(params, context)
        statistics = None
        if params.name == STATISTICS_SESSION:
            with self._timings.stage("features"):
                release = task_release(task)
                grouped = release is not None and release.unit == "group"
                data = self._data.capped(release.unit_images) if grouped else self._data
                statistics = compute_statistics(
                    self._backbone,
                    data,
                    task,
                    prompts,
                    self._public_map,
                    extract=self._extract,
                    progress=self._progress("features"),
                )
        summed = prompts if params.name == PROMPTS_SESSION or task.prompt_mode == "local" else None
        points = None if summed is None else prompt_grid(task).quantise(summed)
        return to_vector(params, statistics, points, self._noise_entropy)

    def _check_payload(self, params: SessionParams, context: Context) -> None:
        """Refuse a context that carries something for which this session has no use."""
        before = self._views.get(params.parent)
        is_opening = before is not None and before.witness is not None  # which the session has checked
        is_mean = params.name == STATISTICS_SESSION and params.task.prompt_mode == "two-phase"
        if context.payload and not is_opening and not is_mean:
            raise ServerFault("the context carries something that this session has no use for")

    def _prompts(self, params: SessionParams, context: Context) -> NDArray[np.float32] | None:
        """The prompts under which this session's features are taken (or which it sums)."""
        task = params.task
        if params.name == STATISTICS_SESSION and task.prompt_mode == "two-phase":
            total = decode(PromptTotal, context.payload, ServerFault)
            if total.clients != len(context.parent_survivors):
                raise ServerFault("the mean prompt is not over the survivors of the parent session")
            try:
                mean = total.mean(task)
            except OverflowBudgetError as error:
                raise ServerFault(str(error)) from None
            check_radius(mean, self._initial(task), self._me.policy.prompt_radius)
            return mean
        if task.prompt_mode == "none":
            return None
        if task.prompt_mode == "public":
            return self._public_prompts
        if self.tuned is None:
            raise MisuseError("the prompts have not been tuned yet")
        return self.tuned

    def _progress(self, stage: str) -> Callable[[int], None] | None:
        return None if self._report is None else partial(self._report, stage)

    def _initial(self, task: Task) -> NDArray[np.float32]:
        """P_init, the same for everyone: it comes from the task's seed."""
        return initial_prompts(task.prompt_source, task.prompt_tokens, task.prompt_dimension)
