"""The server's side of a round: it proposes the sessions, collects answers, and solves for the released model.

It knows nothing of images or of the backbone beyond its name and hash, and runs without torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import (
    Blame,
    ClientFault,
    InputError,
    MisuseError,
    OverflowBudgetError,
    ProtocolError,
    SessionAborted,
)
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import BFV_MASKED, CENSUS, SessionParams, Task
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.server import Sum
from fedopal_secure.core.shamir import Entropy
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.federation.config import HeadSettings
from fedopal_secure.federation.heads import solve_head
from fedopal_secure.federation.protocols import open_server
from fedopal_secure.federation.secure_sum import PHASES, SILENT, UPLOAD, SumServer
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript, public_part, public_request
from fedopal_secure.federation.vectors import (
    PROMPTS_SESSION,
    STATISTICS_SESSION,
    PromptTotal,
    feature_grid,
    from_vector,
    session_names,
    session_segments,
    task_release,
)
from fedopal_secure.he.messages import PublicContext, public_context_hash
from fedopal_secure.model import Model
from fedopal_secure.privacy.noise import add_noise
from fedopal_secure.statistics.sums import SufficientStatistics


@dataclass(frozen=True)
class Proposal:
    """What the server fixes before a round. `protocol` is the name that goes into the session parameters."""

    protocol: str
    clients: int
    corrupt: int
    degree: int
    min_survivors: int
    task: Task
    public_prompts: NDArray[np.float32] | None = None
    public_map: FeatureMap | None = None
    public_context: PublicContext | None = None

    @property
    def modulus(self) -> int:
        """What vectors are summed modulo: 0 for 2**64, or where masks are encrypted the plain modulus."""
        if self.protocol != BFV_MASKED or self.public_context is None:
            return 0
        return next(iter(self.public_context.parameters.plain_moduli), 0)


@dataclass
class SessionRecord:
    """What the server notes of one session: bytes and answers by phase, who was at fault, and the sum."""

    params: SessionParams
    requested: dict[str, dict[bytes, int]] = field(default_factory=dict)
    answered: dict[str, dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))
    faults: list[Blame] = field(default_factory=list)
    result: Sum | None = None

    def dropped(self) -> dict[str, tuple[bytes, ...]]:
        """For each phase that asks for an answer, the clients of whom none was accepted, each where it first failed."""
        lost: dict[str, tuple[bytes, ...]] = {}
        gone: set[bytes] = set()
        for phase, asked in self.requested.items():
            missing = asked.keys() - self.answered[phase].keys() - gone
            if missing and phase not in SILENT:
                lost[phase] = tuple(sorted(missing))
                gone |= missing
        return lost


class RoundServer:
    """One round, from the proposal to the released model."""

    def __init__(
        self,
        key: SigningKey,
        members: Membership,
        invited: tuple[bytes, ...],
        proposal: Proposal,
        head: HeadSettings,
        entropy: Entropy,
        transcript: Transcript,
        timings: Timings,
    ) -> None:
        """`invited` are the identities to propose to; `entropy` gives nonces, and in mode `central` the noise.

        Raises InputError if more are invited than the roster takes.
        """
        if len(invited) > proposal.clients:
            raise InputError(f"{len(invited)} clients are invited to a roster of {proposal.clients}: raise `clients`")
        self._proposal, self._head = proposal, head
        self._transcript, self._timings = transcript, timings
        self._entropy = entropy
        self._statistics: SufficientStatistics | None = None
        self.sessions = session_names(proposal.task.prompt_mode, proposal.task.min_contributors)
        self.phases = PHASES[proposal.protocol]
        self.records: dict[str, SessionRecord] = {}
        self._sums: dict[str, SumServer] = {}
        parent, context = b"", proposal.public_context
        for name in self.sessions:
            params = SessionParams(
                proposal.protocol,
                name,
                entropy(32),
                key.identity,
                parent,
                proposal.clients,
                proposal.corrupt,
                proposal.degree,
                proposal.min_survivors,
                proposal.modulus,
                b"" if context is None else public_context_hash(context),
                session_segments(proposal.task, name, proposal.clients, proposal.protocol, proposal.modulus),
                proposal.task,
            )
            self._sums[name] = open_server(params, members, invited, key, context)
            self.records[name] = SessionRecord(params)
            parent = self._sums[name].session

    def request(self, session: str, phase: str) -> Mapping[bytes, bytes]:
        """End the phase before and return this phase's request for each client that is to answer it.

        Raises SessionAborted, naming the rule, if too few are left.
        """
        server, record = self._sums[session], self.records[session]
        context = self._context(session) if phase == UPLOAD else None
        requests = server.request(phase, context)
        if context is not None and context.parent:
            requests = {client: body for client, body in requests.items() if client in context.parent_survivors}
        if phase != "hold" and requests:
            shown = public_request(phase, next(iter(requests.values())))
            self._transcript.record(server.session, phase, "server", shown)
        record.requested[phase] = {client: len(body) for client, body in requests.items()}
        return requests

    def receive(self, session: str, phase: str, client: bytes, answer: bytes) -> None:
        """Take a client's answer; one that is at fault is noted and has no effect, one that is late has none."""
        server, record = self._sums[session], self.records[session]
        if phase != next(reversed(record.requested)):
            return
        try:
            with self._timings.stage("aggregate"):
                server.receive(client, answer)
        except ClientFault as fault:
            record.faults.append(Blame(fault.client, fault.reason))
            return
        self._transcript.record(server.session, phase, client.hex(), public_part(record.params.protocol, phase, answer))
        record.answered[phase][client] = len(answer)

    def finish(self, session: str) -> None:
        """End a session with its sum. Raises SessionAborted, or ClientFault naming a dealer that cheated."""
        record = self.records[session]
        try:
            with self._timings.stage("unmask"):
                result = self._sums[session].finish()
        except ProtocolError as error:
            record.faults += error.blame
            raise
        record.result = result
        record.faults += result.blame
        if session == CENSUS:
            self._check_contributors(record.params, result)
            return
        try:
            statistics, _ = from_vector(record.params, result.total)
        except OverflowBudgetError as error:
            raise SessionAborted("max_images", str(error)) from None
        if statistics is not None:
            # Here and once: solved twice under fresh noise, the same sums would be released twice.
            self._statistics = self._with_noise(statistics)

    def result(self, session: str) -> Sum:
        """The sum of a finished session."""
        result = self.records[session].result
        if result is None:
            raise MisuseError(f"the session '{session}' is not finished")
        return result

    def _check_contributors(self, params: SessionParams, census: Sum) -> None:
        """Stop here rather than have every client refuse; each of them makes this check of its own."""
        least = params.task.min_contributors + params.corrupt
        few = [name for name, count in zip(params.task.classes, census.total, strict=True) if count < least]
        if few:
            detail = f"fewer than {least} clients hold images of {', '.join(few)}, and c = {params.corrupt} may lie"
            raise SessionAborted("min_contributors", detail)

    def _context(self, session: str) -> Context:
        server = self._sums[session]
        if not server.params.parent:
            return Context(server.session, b"", b"", (), b"")
        name = self.sessions[self.sessions.index(session) - 1]
        before = self.result(name)
        payload = encode(before.opening if name == CENSUS else self._prompt_total(name))
        return Context(server.session, before.session, before.view, before.survivors, payload)

    def _prompt_total(self, session: str) -> PromptTotal:
        result = self.result(session)
        _, prompts = from_vector(self.records[session].params, result.total)
        if prompts is None:
            raise MisuseError(f"the session '{session}' sums no prompts")
        return PromptTotal(len(result.survivors), prompts.astype("<i8").tobytes())

    def prompts(self) -> NDArray[np.float32] | None:
        """The released prompts, float32 (tokens, dimension): the mean of the survivors' (FedOPAL eq. 8), or public."""
        mode = self._proposal.task.prompt_mode
        if mode == "none":
            return None
        if mode == "public":
            return self._proposal.public_prompts
        summed = PROMPTS_SESSION if mode == "two-phase" else STATISTICS_SESSION
        return self._prompt_total(summed).mean(self._proposal.task)

    def statistics(self) -> SufficientStatistics:
        """The summed statistics of the survivors, on the integer grid, as they are released: with noise if private."""
        if self._statistics is None:
            raise MisuseError("the statistics are not summed yet")
        return self._statistics

    def _with_noise(self, statistics: SufficientStatistics) -> SufficientStatistics:
        """In mode `central`, the sums with the server's own noise; else as they are."""
        task = self._proposal.task
        release = task_release(task)
        if release is None or release.adds_at_client:
            return statistics
        noisy = add_noise(statistics.to_arrays(), release, self._entropy)
        return SufficientStatistics.from_arrays(noisy, task.feature_dimension, len(task.classes))

    def release(self) -> Model:
        """Solve for the head (FedOPAL eq. 9) and put the model together."""
        task, public_map = self._proposal.task, self._proposal.public_map
        clients = len(self.result(STATISTICS_SESSION).survivors)
        with self._timings.stage("solve"):
            solved = solve_head(task, self.statistics(), clients, self._head, public_map)
        return Model(
            solved,
            self.prompts(),
            task.classes,
            task.backbone,
            task.backbone_hash,
            task.preprocessing,
            feature_grid(task),
            self._transcript.head,
            public_map,
            task.prompt_mode in ("local", "two-phase") and not task.release,
        )
