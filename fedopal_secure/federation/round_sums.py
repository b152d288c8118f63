"""The sums of one round, session by session: what each begins with and what it ends with.

The server runs it on what clients send, and whoever checks a transcript runs it again on what that shows. It needs no
key, draws nothing, and says nothing of its own: every request is a function of what came before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import MisuseError, OverflowBudgetError, SessionAborted
from fedopal_secure.core.messages import Context, Proposal
from fedopal_secure.core.params import CENSUS
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.server import Sum
from fedopal_secure.federation.protocols import server_of
from fedopal_secure.federation.secure_sum import PHASES, UPLOAD, SumServer
from fedopal_secure.federation.vectors import (
    PROMPTS_SESSION,
    STATISTICS_SESSION,
    PromptTotal,
    from_vector,
)
from fedopal_secure.he.messages import PublicContext
from fedopal_secure.statistics.sums import SufficientStatistics


class RoundSums:
    """The sessions of a round, by what they sum: `census`, `prompts`, `statistics`."""

    def __init__(
        self,
        proposals: Sequence[Proposal],
        members: Membership,
        invited: tuple[bytes, ...],
        public_context: PublicContext | None = None,
    ) -> None:
        """`proposals` are signed and in order, each the parent of the next; `invited` are the identities to ask."""
        self.servers: dict[str, SumServer] = {
            proposal.params.name: server_of(proposal, members, invited, public_context) for proposal in proposals
        }
        self.sessions = tuple(self.servers)
        last = proposals[-1].params
        self.task, self.phases = last.task, PHASES[last.protocol]
        self._results: dict[str, Sum] = {}

    def request(self, session: str, phase: str) -> Mapping[bytes, bytes]:
        """End the phase before and return this phase's request for each client that is to answer it.

        Raises SessionAborted, naming the rule, if too few are left.
        """
        context = self._context(session) if phase == UPLOAD else None
        requests = self.servers[session].request(phase, context)
        if context is not None and context.parent:
            return {client: body for client, body in requests.items() if client in context.parent_survivors}
        return requests

    def finish(self, session: str) -> Sum:
        """End a session with its sum, yet to be checked. Raises SessionAborted, or ClientFault naming a dealer."""
        result = self._results[session] = self.servers[session].finish()
        return result

    def check(self, session: str) -> None:
        """Raise SessionAborted if the round cannot go on with the sum of a session."""
        server, result = self.servers[session], self.result(session)
        task, c = server.params.task, server.params.corrupt
        if session == CENSUS:
            # Stop here rather than have every client refuse; each of them makes this check of its own.
            least = task.min_contributors + c
            few = [name for name, count in zip(task.classes, result.total, strict=True) if count < least]
            if few:
                detail = f"fewer than {least} clients hold images of {', '.join(few)}, and c = {c} may lie"
                raise SessionAborted("min_contributors", detail)
            return
        try:
            from_vector(server.params, result.total)
        except OverflowBudgetError as error:
            raise SessionAborted("max_images", str(error)) from None

    def result(self, session: str) -> Sum:
        """The sum of a finished session."""
        if session not in self._results:
            raise MisuseError(f"the session '{session}' is not finished")
        return self._results[session]

    def statistics(self) -> SufficientStatistics:
        """The summed statistics of the survivors, on the integer grid, with whatever noise clients put in."""
        statistics, _ = from_vector(self.servers[STATISTICS_SESSION].params, self.result(STATISTICS_SESSION).total)
        if statistics is None:
            raise MisuseError("the session sums no statistics")
        return statistics

    def prompts(self, public: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        """The prompts, float32 (tokens, dimension): the survivors' mean (FedOPAL eq. 8), public ones, or None."""
        mode = self.task.prompt_mode
        if mode in ("none", "public"):
            return public if mode == "public" else None
        summed = PROMPTS_SESSION if mode == "two-phase" else STATISTICS_SESSION
        return self._prompt_total(summed).mean(self.task)

    def _context(self, session: str) -> Context:
        server = self.servers[session]
        if not server.params.parent:
            return Context(server.session, b"", b"", (), b"")
        name = self.sessions[self.sessions.index(session) - 1]
        before = self.result(name)
        payload = encode(before.opening if name == CENSUS else self._prompt_total(name))
        return Context(server.session, before.session, before.view, before.survivors, payload)

    def _prompt_total(self, session: str) -> PromptTotal:
        result = self.result(session)
        _, prompts = from_vector(self.servers[session].params, result.total)
        if prompts is None:
            raise MisuseError(f"the session '{session}' sums no prompts")
        return PromptTotal(len(result.survivors), prompts.astype("<i8").tobytes())
