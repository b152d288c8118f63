"""Run the server of a round again on what its transcript shows of the clients' answers, and compare every word of it.

Everything a server says is a function of what clients have sent it, so a replay finds whatever it made up. Beside that
it asks of each message what an honest client with the auditor's policy asks of it.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedopal_secure.audit.proposals import ProposedRound, Wrong, require
from fedopal_secure.core import checks, messages
from fedopal_secure.core.census import Census
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import ClientFault, InputError, ProtocolError, SessionAborted
from fedopal_secure.core.params import CENSUS, SessionParams
from fedopal_secure.core.policy import cohort, roster_graph
from fedopal_secure.core.server import Sum
from fedopal_secure.encoding.feature_map import FeatureMap
from fedopal_secure.encoding.layout import COUNTS
from fedopal_secure.encoding.prompts import initial_prompts, prompts_digest
from fedopal_secure.federation.config import HeadSettings, parse_config
from fedopal_secure.federation.encrypted_sum import EncryptedServer, MaskedEncryptedServer
from fedopal_secure.federation.heads import WITH_VALUE, check_rule, exact_moments, solve_at
from fedopal_secure.federation.release import RELEASE, Release, make_model, unpack_noisy
from fedopal_secure.federation.round_sums import RoundSums
from fedopal_secure.federation.rules import check_radius
from fedopal_secure.federation.secure_sum import OPEN, PLAIN, RECORDED, SILENT, UPLOAD
from fedopal_secure.federation.transcript import LATE, PUBLIC_CONTEXT, REFUSED, SERVER, Entry, public_request
from fedopal_secure.federation.vectors import STATISTICS_SESSION, central_release, feature_map_name
from fedopal_secure.he.messages import OpenRequest
from fedopal_secure.model import Model
from fedopal_secure.privacy.noise import noise_bounds
from fedopal_secure.solver.ridge import rounding
from fedopal_secure.statistics.sums import SufficientStatistics

# Relative: another BLAS, or another number of its threads, changes the last digits of a head. Where R is so near to
# singular that rounding alone changes more, that is allowed.
TOLERANCE: Final = 1e-6
# Of the criterion of cross-validation: where it is flat, rounding moves its minimum by orders of magnitude.
FLAT: Final = 1e-3

_REQUESTS: Final[dict[str, Any]] = {
    "share": messages.Roster,
    UPLOAD: messages.Context,
    "attest": messages.View,
    "reveal": messages.RevealRequest,
    OPEN: OpenRequest,
}


class Replay:
    """A round as its transcript shows it; `step` takes entry after entry and raises Wrong at the first bad one."""

    def __init__(self, proposed: ProposedRound) -> None:
        self._proposed, self.policy = proposed, proposed.policy
        self.sums = RoundSums(proposed.proposals, proposed.policy.members, proposed.invited, proposed.public_context)
        self._names = {server.session.hex(): name for name, server in self.sums.servers.items()}
        self._asked: dict[str, list[str]] = {name: [] for name in self.sums.sessions}
        self.results: dict[str, Sum] = {}
        self.unread = {LATE: 0, REFUSED: 0}  # answers of which there is the hash only
        self.model: Model | None = None
        self.difference = 0.0  # between the released head and the one computed here, relative

    def step(self, entry: Entry) -> None:
        """Take the next entry."""
        require(self.model is None, "comes after the release")
        if entry.phase == PUBLIC_CONTEXT:
            known = self._proposed.public_context
            expected = known is not None and entry.number == 0 and entry.body == encode(known)
            require(expected and entry.sender == SERVER, "is a public context where none belongs")
            require(entry.session == next(iter(self._names)), "is filed under another session")
            return
        name = self._names.get(entry.session)
        if name is None:
            raise Wrong("is of a session that was never proposed")
        if entry.sender != SERVER:
            self._answer(name, entry)
        elif entry.phase == RELEASE:
            self._release(name, entry)
        else:
            self._request(name, entry)

    @property
    def terms(self) -> SessionParams:
        """The parameters of the first session: what all sessions have in common."""
        return self._params(self.sums.sessions[0])

    def _params(self, name: str) -> SessionParams:
        return self.sums.servers[name].params

    def where(self) -> str:
        """How far the round came, in words."""
        begun = [name for name, asked in self._asked.items() if asked]
        if not begun:
            return "nothing was asked"
        name = max(begun, key=lambda one: (len(self._asked[one]), self.sums.sessions.index(one)))
        return f"the last request was {self._asked[name][-1]!r} of the session {name!r}"

    # What the server asked.

    def _request(self, name: str, entry: Entry) -> None:
        asked, phases = self._asked[name], RECORDED[self._params(name).protocol]
        require(phases[len(asked) : len(asked) + 1] == (entry.phase,), f"asks for {entry.phase!r} out of order")
        try:
            ours = self._ask(name, entry)
        except SessionAborted as error:
            raise Wrong(f"goes on where the session had to end: {error}") from None
        if ours != entry.body:
            raise Wrong(_difference(entry.phase, ours, entry.body))
        asked.append(entry.phase)
        try:
            self._check_request(name, entry)
        except ProtocolError as error:
            raise Wrong(f"asks what no client with this policy answers: {error}") from None

    def _ask(self, name: str, entry: Entry) -> bytes:
        """What the server had to say, as a transcript shows it."""
        if entry.phase == UPLOAD:
            place = self.sums.sessions.index(name)
            if place:
                self._finish(self.sums.sessions[place - 1])
            if "hold" in self.sums.phases:
                self.sums.request(name, "hold")
        requests = self.sums.request(name, entry.phase)
        require(bool(requests), f"asks for {entry.phase!r} where nobody is left to answer")
        ours = public_request(entry.phase, next(iter(requests.values())))
        if entry.phase != OPEN:
            return ours
        # The ciphertexts are not shown, so the hash of their total is taken as it stands.
        told = decode(OpenRequest, entry.body, Wrong)
        server = self.sums.servers[name]
        if isinstance(server, EncryptedServer | MaskedEncryptedServer):
            server.believe_total(told.total)
        return encode(replace(decode(OpenRequest, ours, Wrong), total=told.total))

    def _check_request(self, name: str, entry: Entry) -> None:
        """Ask what an honest client asks that the replay does not settle; raises the client's own errors."""
        params, task = self._params(name), self.sums.task
        match entry.phase:
            case "share":
                roster_graph(self.policy, params, len(decode(messages.Roster, entry.body, Wrong).adverts))
            case "upload":
                self._check_census(name, None)
                if name == STATISTICS_SESSION and task.prompt_mode == "two-phase":
                    mean, initial = self.sums.prompts(None), (task.prompt_tokens, task.prompt_dimension)
                    if mean is not None:
                        check_radius(mean, initial_prompts(task.prompt_source, *initial), self.policy.prompt_radius)
            case "attest":
                survivors = [header.sender for header in decode(messages.View, entry.body, Wrong).survivors]
                self._check_cohort(name, len(survivors))
                self._check_census(name, survivors)
            case "open":
                self._check_cohort(name, len(decode(OpenRequest, entry.body, Wrong).uploads))

    def _check_cohort(self, name: str, survivors: int) -> None:
        checks.cohort_is_reached(survivors, cohort(self.policy, self._params(name)))

    def _check_census(self, name: str, survivors: list[bytes] | None) -> None:
        params = self._params(name)
        if name == CENSUS:
            return
        taken = self.results.get(CENSUS)
        census = None if taken is None else Census(taken.survivors, tuple(int(count) for count in taken.total))
        minimum = max(self.policy.min_contributors, params.task.min_contributors)
        checks.census_allows(census, minimum, params.corrupt, survivors)

    def _finish(self, name: str) -> Sum:
        if name in self.results:
            return self.results[name]
        complete = RECORDED[self._params(name).protocol]
        require(tuple(self._asked[name]) == complete, f"comes before the session '{name}' is at its end")
        try:
            result = self.results[name] = self.sums.finish(name)
            self.sums.check(name)
            self._check_cohort(name, len(result.survivors))
        except ClientFault as fault:
            raise Wrong(f"goes on after a fault: {fault.reason}", fault.client.hex(), SERVER) from None
        except ProtocolError as error:
            raise Wrong(f"goes on where the session had to end: {error}") from None
        return result

    # What clients answered.

    def _answer(self, name: str, entry: Entry) -> None:
        sender = b""
        with suppress(ValueError):
            sender = bytes.fromhex(entry.sender)
        require(len(sender) == 32 and sender.hex() == entry.sender, "is from nobody: its sender is no identity")
        asked = self._asked[name]
        require(bool(asked), "comes before the session was proposed")
        if entry.phase in self.unread:
            require(len(entry.body) == 32, "is not the hash of an answer that was not taken")
            self.unread[entry.phase] += 1
            return
        now = asked[-1] == entry.phase and entry.phase not in SILENT and name not in self.results
        require(now, f"answers {entry.phase!r} out of order")
        if self.terms.protocol == PLAIN and self.policy.members.authority is None:
            # Without a certificate on it, an upload of plain cannot show more than a listed identity.
            require(sender in self.policy.members.identities, "is an upload of somebody who is not a member")
        try:
            self.sums.servers[name].receive_public(sender, entry.body)
        except ClientFault as fault:
            raise Wrong(f"from {sender.hex()[:12]}, had to be refused: {fault.reason}") from None

    # What came of it.

    def _release(self, name: str, entry: Entry) -> None:
        require(name == STATISTICS_SESSION, "releases a model before the last session")
        summed, task = self._finish(name), self.sums.task
        release = decode(Release, entry.body, Wrong)
        require(release.session == summed.session, "releases the model of another session")
        require(release.rule in WITH_VALUE or release.value == 0, "gives a lambda to a rule that finds its own")
        try:
            model = Model.from_bytes(release.model, "the model in it")
            facts = {"kind": release.kind, "rule": release.rule, "value": release.value, "intercept": release.intercept}
            bare = model.by("", "", "").to_bytes()
            require(bare == release.model, "has a model that is not written as one is, or says where it comes from")
            head = parse_config(HeadSettings, facts, "its settings of the head")
            check_rule(head, noisy=bool(task.release))
            prompts, public_map = self._public(model)
            statistics = self._statistics(release)
            made = make_model(task, statistics, len(summed.survivors), head, prompts, public_map)
            self.difference = self._compare(model, made, statistics, head)
        except InputError as error:
            raise Wrong(str(error)) from None
        self.model = model

    def _public(self, model: Model) -> tuple[NDArray[np.float32] | None, FeatureMap | None]:
        """The prompts and the feature map; public ones are taken from the model and checked by their hash."""
        task = self.sums.task
        feature_map = feature_map_name(task.backbone, model.public_map)
        require(feature_map == task.feature_map, "has another feature map than was agreed")
        if task.prompt_mode != "public":
            return self.sums.prompts(None), model.public_map
        known = model.prompts is not None and prompts_digest(model.prompts) == task.prompt_source
        require(known, "has other prompts than the public ones that were agreed")
        return model.prompts, model.public_map

    def _statistics(self, release: Release) -> SufficientStatistics:
        """What the head was made of: the sums, in mode `central` with a noise that is no larger than it can be."""
        exact, agreed = self.sums.statistics(), central_release(self.sums.task)
        if agreed is None:
            require(not release.noisy, "adds noise that nobody agreed to")
            return exact
        arrays = exact.to_arrays()
        noisy, bounds = unpack_noisy(release.noisy, arrays, self.sums.task), noise_bounds(agreed, 1)
        for name, array in noisy.to_arrays().items():
            scale = agreed.count_scale if name == COUNTS else 1
            noise = array - arrays[name] * scale
            largest = max(int(noise.max(initial=0)), -int(noise.min(initial=0)))
            require(largest <= bounds.get(name, 0), f"has noise of {largest} in {name}, more than it can be")
        return noisy

    def _compare(self, told: Model, made: Model, statistics: SufficientStatistics, head: HeadSettings) -> float:
        """How far a released head is from the one made here, relative to that; raises Wrong if it is another model."""
        if told.digest() == made.digest():
            return 0.0
        require(dataclasses.replace(told, head=made.head).digest() == made.digest(), "is not the model of these sums")
        require(told.head.rule == made.head.rule, "has a head of another rule than it says")
        right, allowed = made.head, TOLERANCE
        if not self.sums.task.release:
            moments = exact_moments(self.sums.task, statistics)
            if right.rule == "gcv":
                right, excess = solve_at(moments, head, told.head.ridge)
                require(excess <= FLAT, f"has lambda {told.head.ridge:.3g}, which cross-validation does not choose")
            allowed = max(TOLERANCE, rounding(moments, right.ridge, intercept=head.intercept))
        pairs = (
            (told.head.weights, right.weights),
            (told.head.intercept, right.intercept),
            (np.array(told.head.ridge), np.array(right.ridge)),
        )
        far = [float(np.linalg.norm(a - b)) / (float(np.linalg.norm(b)) or 1.0) for a, b in pairs]
        require(all(one <= allowed for one in far), f"has a head that the sums do not give: off by {max(far):.2g}")
        return max(far)


def _difference(phase: str, ours: bytes, theirs: bytes) -> str:
    """What of a request is not as the messages before it give."""
    kind = _REQUESTS.get(phase)
    if kind is not None:
        with suppress(Wrong):
            told, right = decode(kind, theirs, Wrong), decode(kind, ours, Wrong)
            fields = [name for name in kind.__struct_fields__ if getattr(told, name) != getattr(right, name)]
            return f"is not what the messages before it give: {', '.join(fields)}"
    return "is not what the messages before it give"
