"""The server's side of a round: it proposes the sessions, collects answers, and solves for the released model.

It knows nothing of images or of the backbone beyond its name and hash, and runs without torch.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core import messages
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import Blame, ClientFault, InputError, MisuseError, ProtocolError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.params import BFV_MASKED, SessionParams, Task, session_id
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.server import Sum
from fedopal_secure.core.shamir import Entropy
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.federation.config import HeadSettings
from fedopal_secure.federation.heads import WITH_VALUE
from fedopal_secure.federation.release import RELEASE, Release, make_model, pack_noisy
from fedopal_secure.federation.round_sums import RoundSums
from fedopal_secure.federation.secure_sum import RECORDED, SILENT
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import (
    LATE,
    PUBLIC_CONTEXT,
    REFUSED,
    SERVER,
    Transcript,
    public_part,
    public_request,
)
from fedopal_secure.federation.vectors import STATISTICS_SESSION, central_release, session_names, session_segments
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

    @cached_property
    def session(self) -> bytes:
        """The session's id."""
        return session_id(self.params)

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
        self._key, self._proposal, self._head = key, proposal, head
        self._transcript, self._timings = transcript, timings
        self._entropy = entropy
        self._statistics: SufficientStatistics | None = None
        signed = _propose(proposal, key, entropy)
        self._sums = RoundSums(signed, members, invited, proposal.public_context)
        self.sessions, self.phases = self._sums.sessions, self._sums.phases
        self.records = {one.params.name: SessionRecord(one.params) for one in signed}
        if proposal.public_context is not None:
            shown = encode(proposal.public_context)
            transcript.record(session_id(signed[0].params), PUBLIC_CONTEXT, SERVER, shown)

    def request(self, session: str, phase: str) -> Mapping[bytes, bytes]:
        """End the phase before and return this phase's request for each client that is to answer it.

        Raises SessionAborted, naming the rule, if too few are left.
        """
        record = self.records[session]
        requests = self._sums.request(session, phase)
        if phase in RECORDED[record.params.protocol] and requests:
            shown = public_request(phase, next(iter(requests.values())))
            self._transcript.record(record.session, phase, SERVER, shown)
        record.requested[phase] = {client: len(body) for client, body in requests.items()}
        return requests

    def receive(self, session: str, phase: str, client: bytes, answer: bytes) -> None:
        """Take a client's answer; one that is at fault is noted and has no effect, one that is late has none."""
        server, record = self._sums.servers[session], self.records[session]

        def note(how: str, shown: bytes) -> None:
            self._transcript.record(record.session, how, client.hex(), shown)

        if phase != next(reversed(record.requested)) or record.result is not None:
            note(LATE, hashlib.sha256(answer).digest())
            return
        try:
            with self._timings.stage("aggregate"):
                server.receive(client, answer)
        except ClientFault as fault:
            record.faults.append(Blame(fault.client, fault.reason))
            note(REFUSED, hashlib.sha256(answer).digest())
            return
        note(phase, public_part(record.params.protocol, phase, answer))
        record.answered[phase][client] = len(answer)

    def finish(self, session: str) -> None:
        """End a session with its sum. Raises SessionAborted, or ClientFault naming a dealer that cheated."""
        record = self.records[session]
        try:
            with self._timings.stage("unmask"):
                result = self._sums.finish(session)
        except ProtocolError as error:
            record.faults += error.blame
            raise
        record.result = result
        record.faults += result.blame
        self._sums.check(session)
        if session == STATISTICS_SESSION:
            # Here and once: solved twice under fresh noise, the same sums would be released twice.
            self._statistics = self._with_noise(self._sums.statistics())

    def result(self, session: str) -> Sum:
        """The sum of a finished session."""
        return self._sums.result(session)

    def statistics(self) -> SufficientStatistics:
        """The summed statistics of the survivors, on the integer grid, as they are released: with noise if private."""
        if self._statistics is None:
            raise MisuseError("the statistics are not summed yet")
        return self._statistics

    def _with_noise(self, statistics: SufficientStatistics) -> SufficientStatistics:
        """In mode `central`, the sums with the server's own noise; else as they are."""
        task, release = self._sums.task, central_release(self._sums.task)
        if release is None:
            return statistics
        noisy = add_noise(statistics.to_arrays(), release, self._entropy)
        return SufficientStatistics.from_arrays(noisy, task.feature_dimension, len(task.classes))

    def release(self) -> Model:
        """Solve for the head, end the transcript with it, and sign both: the signature is on the model, too."""
        proposal, task, head = self._proposal, self._sums.task, self._head
        summed = self.result(STATISTICS_SESSION)
        with self._timings.stage("solve"):
            prompts = self._sums.prompts(proposal.public_prompts)
            statistics = self.statistics()
            model = make_model(task, statistics, len(summed.survivors), head, prompts, proposal.public_map)
        noisy = b"" if central_release(task) is None else pack_noisy(statistics)
        value = head.value if head.rule in WITH_VALUE else 0.0
        last = Release(summed.session, head.kind, head.rule, value, head.intercept, noisy, model.to_bytes())
        self._transcript.record(summed.session, RELEASE, SERVER, encode(last))
        signed = model.signed(self._key, self._transcript.head)
        self._transcript.sign(signed)
        return signed


def _propose(proposal: Proposal, key: SigningKey, entropy: Entropy) -> tuple[messages.Proposal, ...]:
    """The signed proposals of a round's sessions, each the parent of the next."""
    signed: list[messages.Proposal] = []
    context, task = proposal.public_context, proposal.task
    for name in session_names(task.prompt_mode, task.min_contributors):
        params = SessionParams(
            proposal.protocol,
            name,
            entropy(32),
            key.identity,
            session_id(signed[-1].params) if signed else b"",
            proposal.clients,
            proposal.corrupt,
            proposal.degree,
            proposal.min_survivors,
            proposal.modulus,
            b"" if context is None else public_context_hash(context),
            session_segments(task, name, proposal.clients, proposal.protocol, proposal.modulus),
            task,
        )
        signed.append(messages.sign(key, messages.Proposal(params)))
    return tuple(signed)
