"""Which implementation of the secure sum speaks the protocol that a session names."""

from __future__ import annotations

from typing import Final

from fedopal_secure.core import checks, messages
from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import MisuseError, ServerFault
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Proposal
from fedopal_secure.core.params import BFV_MASKED, ENCRYPTED, SessionParams
from fedopal_secure.core.params import PROTOCOL as SECAGG
from fedopal_secure.core.policy import Membership, check_proposal
from fedopal_secure.federation.encrypted_sum import (
    EncryptedClient,
    EncryptedServer,
    MaskedEncryptedClient,
    MaskedEncryptedServer,
    own_context,
)
from fedopal_secure.federation.pairwise_sum import PairwiseClient, PairwiseServer
from fedopal_secure.federation.plain_sum import PlainClient, PlainServer
from fedopal_secure.federation.secure_sum import PLAIN, Participant, SumClient, SumServer
from fedopal_secure.he.messages import PublicContext

_SPOKEN: Final = (SECAGG, PLAIN, *ENCRYPTED)


def open_client(proposal: bytes, participant: Participant) -> tuple[SumClient, SessionParams]:
    """The client's side of whatever protocol the proposal names; raises PolicyRefusal for one it does not accept."""
    signed = decode(messages.Proposal, proposal, ServerFault)
    checks.proposal_is_signed(signed)
    params = signed.params
    check_proposal(participant.policy, params, params.protocol if params.protocol in _SPOKEN else SECAGG)
    if params.protocol == SECAGG:
        return PairwiseClient(participant), params
    if params.protocol == PLAIN:
        return PlainClient(params, participant), params
    context = own_context(params, participant)
    if params.protocol == BFV_MASKED:
        return MaskedEncryptedClient(params, participant, context), params
    return EncryptedClient(params, participant, context), params


def open_server(
    params: SessionParams,
    members: Membership,
    invited: tuple[bytes, ...],
    key: SigningKey,
    public_context: PublicContext | None = None,
) -> SumServer:
    """The server's side of the protocol that the parameters name; raises PolicyRefusal for unsound parameters."""
    if key.identity != params.server:
        raise MisuseError("the parameters name another server than the one whose key signs them")
    return server_of(messages.sign(key, Proposal(params)), members, invited, public_context)


def server_of(
    proposal: Proposal, members: Membership, invited: tuple[bytes, ...], public_context: PublicContext | None = None
) -> SumServer:
    """As `open_server`, of a proposal that is signed already; no other step needs the server's key."""
    protocol = proposal.params.protocol
    if protocol == PLAIN:
        return PlainServer(proposal, invited)
    if protocol not in ENCRYPTED:
        return PairwiseServer(proposal, members, invited)
    if public_context is None:
        raise MisuseError("an encrypted sum needs the key authority's public context")
    masked = protocol == BFV_MASKED
    return (MaskedEncryptedServer if masked else EncryptedServer)(proposal, members, invited, public_context)
