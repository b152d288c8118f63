"""How a transcript begins: the proposals of its sessions, under the auditor's policy, before anything is replayed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedopal_secure.core import messages
from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import FedopalError, InputError, ProtocolError
from fedopal_secure.core.params import ENCRYPTED, session_id
from fedopal_secure.core.policy import Policy, check_proposal
from fedopal_secure.federation.config import PolicyConfig
from fedopal_secure.federation.policies import named_members, policy_of
from fedopal_secure.federation.rules import agreed, check_spending, check_task
from fedopal_secure.federation.secure_sum import OPEN, PHASES
from fedopal_secure.federation.transcript import PUBLIC_CONTEXT, SERVER, BrokenTranscript, Entry
from fedopal_secure.federation.vectors import session_names
from fedopal_secure.he.context import check_session, read_public_context
from fedopal_secure.he.messages import PublicContext

_FIRST = frozenset(phases[0] for phases in PHASES.values())


class Wrong(FedopalError):
    """What is wrong with an entry, and who answers for it: `server`, which it is by itself, or identities in hex."""

    def __init__(self, reason: str, *blame: str, number: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.blame, self.number = reason, blame or (SERVER,), number


def require(holds: bool, reason: str) -> None:
    """Raise Wrong, with the server to blame, unless something holds."""
    if not holds:
        raise Wrong(reason)


@dataclass(frozen=True)
class ProposedRound:
    """The sessions of a round as proposed, what the auditor holds against them, and who may have been asked."""

    proposals: tuple[messages.Proposal, ...]
    policy: Policy
    public_context: PublicContext | None
    invited: tuple[bytes, ...]


class Prelude:
    """What `read_proposals` needs of a transcript, gathered as its entries go by; `head` is the last one's."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Stops, without an error, where the chain is broken: replayed, it breaks there again."""
        self.proposals: dict[str, tuple[int, bytes]] = {}
        self.context: tuple[int, bytes] | None = None
        self.senders: set[bytes] = set()
        self.count, self.head = 0, ""
        self.broken: BrokenTranscript | None = None
        try:
            for entry in entries:
                self._add(entry)
        except BrokenTranscript as broken:
            self.head, self.broken = "", broken

    def _add(self, entry: Entry) -> None:
        self.count, self.head = self.count + 1, entry.head
        if entry.phase == OPEN:
            return  # between the server and the key authority
        if entry.sender == SERVER:
            if entry.phase in _FIRST:
                self.proposals.setdefault(entry.session, (entry.number, entry.body))
            elif entry.phase == PUBLIC_CONTEXT and self.context is None:
                self.context = (entry.number, entry.body)
            return
        try:
            self.senders.add(bytes.fromhex(entry.sender))
        except ValueError:
            return  # the replay says so, at its place


def read_proposals(prelude: Prelude, trust: PolicyConfig) -> ProposedRound:
    """Check the proposals as every client with this policy did, and their chain; raises Wrong with the entry's number.

    Raises InputError for a policy that names no server, nobody to take part, or somebody twice.
    """
    servers, members = frozenset(map(bytes.fromhex, trust.servers.values())), named_members(trust)
    if len(members.identities) < len(trust.identities):
        raise InputError("the trust file gives one identity two names: each client has one of its own")
    if not servers or not (members.identities or members.authority):
        raise InputError("the trust file names no server, or nobody who may take part: give `servers` and `identities`")
    proposals: list[messages.Proposal] = []
    number, policy, context = None, None, None
    try:
        if prelude.context is not None:
            number = prelude.context[0]
            context = read_public_context(prelude.context[1])
        for session, (number, body) in prelude.proposals.items():  # noqa: B007  (named in the error)
            proposal = decode(messages.Proposal, body, Wrong)
            pinned = b"" if trust.public_context is None else bytes.fromhex(trust.public_context)
            policy = policy_of(trust, proposal.params.task, members, servers, pinned)
            _check(proposal, session, proposals, policy, context)
            proposals.append(proposal)
    except Wrong as wrong:
        raise Wrong(wrong.reason, *wrong.blame, number=number) from None
    except ProtocolError as error:
        raise Wrong(
            f"proposes what no client with this policy takes part in, or the trust file is of another round: {error}",
            number=number,
        ) from None
    except InputError as error:
        raise Wrong(str(error), number=number) from None
    if policy is None:
        raise Wrong("there is no proposal in it")
    names = session_names(proposals[0].params.task.prompt_mode, proposals[0].params.task.min_contributors)
    missing = names[len(proposals) :]
    if missing:
        raise Wrong(f"there is no proposal of the session '{missing[0]}' in it")
    if prelude.broken is not None and not prelude.senders:
        raise prelude.broken
    # Who was invited is in no message: those whom the policy lists, or where an authority admits them, who spoke.
    invited = members.identities if members.authority is None else members.identities | prelude.senders
    return ProposedRound(tuple(proposals), policy, context, tuple(sorted(invited)))


def _check(
    proposal: messages.Proposal,
    session: str,
    before: list[messages.Proposal],
    policy: Policy,
    context: PublicContext | None,
) -> None:
    params = proposal.params
    require(messages.is_signed(proposal), "is a proposal that the server it names did not sign")
    require(session_id(params).hex() == session, "is a proposal filed under another session")
    require(params.protocol in PHASES, f"proposes a protocol {params.protocol!r} that there is not")
    check_proposal(policy, params, params.protocol)
    check_task(params)
    check_spending(policy, params.task.release, ())
    names = session_names(params.task.prompt_mode, params.task.min_contributors)
    require(names[len(before) : len(before) + 1] == (params.name,), f"proposes a session {params.name!r} out of order")
    parent = session_id(before[-1].params) if before else b""
    require(params.parent == parent, "proposes a session that does not continue the one before it")
    require(
        not before or agreed(params) == agreed(before[0].params), "proposes a session on other terms than the first"
    )
    if params.protocol in ENCRYPTED:
        require(context is not None, "proposes an encrypted session, and there is no public context before it")
        if context is not None:
            check_session(params, context)
