"""The server's side of secagg/v1: it collects messages phase by phase and adds uploads as they arrive.

Each step takes the state that the last one returned, which is then used up. `receive` takes one message of one client;
if that client is at fault it raises ClientFault and the state may be used again, as if the message had never come.

    start -> receive* close -> receive* close -> open -> receive* close -> receive* close -> receive* finish
             adverts           shares            uploads                   attestations      reveals

Memory is one vector, plus what each client's control messages take: uploads are added and forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from fedopal_secure.core import masks, messages
from fedopal_secure.core.census import Opening
from fedopal_secure.core.checks import fits
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.domains import SHARE_MESSAGE, digest
from fedopal_secure.core.errors import Blame, ClientFault, MisuseError, ProtocolError, SessionAborted
from fedopal_secure.core.graph import Graph, quorum
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context, Proposal, UploadHeader
from fedopal_secure.core.params import CENSUS, MASKED, PROTOCOL, SessionParams, check_params, session_id
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.records import Dealt, Records, Relays
from fedopal_secure.core.recovery import Rebuilder, Shown, unmask
from fedopal_secure.core.ring import U64
from fedopal_secure.core.tally import Tally, WireTally
from fedopal_secure.core.transitions import Phase, State, follow, use

# Any clamped scalar finds a key of small order: the result is zero whatever the scalar.
_PROBE = bytes(32)


@dataclass(frozen=True)
class Sum:
    """What a session ends with: the sum over the survivors, and nothing about any one of them.

    `total` is uint64, the residues of the sum, each read modulo 2**(8 * width) of its segment (or modulo the prime).
    """

    session: bytes
    total: U64
    survivors: tuple[bytes, ...]
    dropped: tuple[bytes, ...]
    threshold: int
    view: bytes
    blame: tuple[Blame, ...]
    opening: Opening | None = None


@dataclass(repr=False, eq=False)
class ServerState(State):
    """The server of one session, in one phase."""

    params: SessionParams
    session: bytes
    members: Membership
    records: Records

    @property
    def sharers(self) -> tuple[bytes, ...]:
        """The clients that have shared, in the order of their identities: those whose uploads can be unmasked."""
        return tuple(sorted(self.records.shares))


def start(
    params: SessionParams, members: Membership, key: SigningKey, tally: Tally | None = None
) -> tuple[ServerState, bytes]:
    """Open a session; the bytes are the proposal for every client, signed with the server's key.

    `tally` adds the uploads, if their payloads are not in wire form. Raises PolicyRefusal for unsound parameters,
    MisuseError for a key that is not the server's they name, or an encrypted session without a tally.
    """
    if key.identity != params.server:
        raise MisuseError("the parameters name another server than the one whose key signs them")
    proposal = messages.sign(key, messages.Proposal(params))
    return begin(proposal, members, tally), encode(proposal)


def begin(proposal: Proposal, members: Membership, tally: Tally | None = None) -> ServerState:
    """Open a session whose proposal is signed already; no other step needs the server's key.

    Raises PolicyRefusal for unsound parameters, MisuseError for a signature that is not the server's, or an encrypted
    session without a tally.
    """
    params = proposal.params
    check_params(params, params.protocol if params.protocol in MASKED else PROTOCOL)
    if params.public_context and tally is None:
        raise MisuseError("payloads of an encrypted session are not in the wire form: say how to add them")
    if not messages.is_signed(proposal):
        raise MisuseError("the proposal is not signed by the server that it names")
    records = Records(WireTally(params) if tally is None else tally)
    return ServerState(Phase.ADVERTS, params, session_id(params), members, records)


def receive(state: ServerState, sender: bytes, data: bytes) -> ServerState:
    """Take one client's message of the current phase.

    `sender` is the identity that the connection belongs to. Raises ClientFault for anything that an honest client would
    not have sent now; the message is then without effect and the state is not used up. An answer to a request of an
    earlier phase is late, which is nobody's fault: the caller, who knows what it answers, leaves it out.
    """
    follow(state, "receive")
    _RECEIVERS[state.phase](state, sender, data)
    return _next(state, "receive")


def receive_public(state: ServerState, sender: bytes, shown: bytes) -> ServerState:
    """As `receive`, of what a transcript shows of the message: no sealed shares, and of an encrypted upload no payload.

    What is not shown is not checked either, and relays can no longer be made. Raises ClientFault.
    """
    follow(state, "receive")
    if state.phase is Phase.SHARES:
        message = decode(messages.ShareMessage, shown, lambda reason: ClientFault(sender, reason))
        _take_shares(state, sender, message, None)
    elif state.phase is Phase.UPLOADS and state.params.public_context:
        header = decode(messages.UploadHeader, shown, lambda reason: ClientFault(sender, reason))
        _take_upload(state, sender, header, None)
    else:
        _RECEIVERS[state.phase](state, sender, shown)
    return _next(state, "receive")


def close(state: ServerState) -> tuple[ServerState, Mapping[bytes, bytes]]:
    """End a phase; returns for each client that can go on the bytes to send it.

    Adverts end with the roster, shares with one relay for each client, uploads with the view, attestations with the
    reveal request. Relays are put together when they are looked up, since all of them together are large. Raises
    SessionAborted if too few are left; then no share is ever asked for.
    """
    follow(state, "close")
    replies = _CLOSERS[state.phase](state)
    return _next(state, "close"), replies


def open_uploads(state: ServerState, context: Context) -> tuple[ServerState, bytes]:
    """Begin the uploads under a context; the bytes are for every sharer that survived the parent, if there is one.

    Raises MisuseError for the context of another session or parent, which every client would refuse.
    """
    follow(state, "open")
    if (context.session, context.parent) != (state.session, state.params.parent):
        raise MisuseError("the context is not of this session and the parent that its parameters name")
    state.records.parent_survivors = context.parent_survivors
    state.records.context = messages.context_hash(context)
    return _next(state, "open"), encode(context)


def finish(state: ServerState) -> Sum:
    """Remove the masks from the sum; ends the session.

    Raises SessionAborted if fewer shares than the threshold are good for some sharer, ClientFault naming a dealer
    whose shares are as committed and yet do not rebuild what it advertised. Then the state is not used up.
    """
    follow(state, "finish")
    r, rebuilder = state.records, Rebuilder(state.session, state.records.graph.threshold)
    survivors, dropped = r.lists()
    keys = {identity: advert.mask_key for identity, advert in r.adverts.items()}
    try:
        seeds = {name: rebuilder.seed(r.shares[name].read(), r.shown.get(name, ())) for name in survivors}
        mask_secrets = {
            name: rebuilder.mask_secret(r.shares[name].read(), r.shown.get(name, ()), keys[name]) for name in dropped
        }
    except ProtocolError as error:
        error.blame = tuple(rebuilder.blame)
        raise
    masked = r.tally.total()
    # Not before: the server may wait for more shares and ask again.
    use(state, "finish")

    def peers(gone: bytes) -> list[bytes]:
        return sorted((set(r.holders_of(gone)) | set(r.dealers[gone])) & r.headers.keys())

    binding = masks.Binding(state.session, r.roster, r.context)
    total = unmask(masked, state.params, seeds, mask_secrets, peers, keys, binding)
    opening = None
    if state.params.name == CENSUS:
        payloads = tuple(r.payloads[survivor] for survivor in survivors)
        opening = Opening(state.session, payloads, tuple(seeds.values()), tuple(mask_secrets.values()))
    return Sum(state.session, total, survivors, dropped, r.graph.threshold, r.view, tuple(rebuilder.blame), opening)


def signed_uploads(state: ServerState) -> tuple[tuple[UploadHeader, bytes], ...]:
    """What the survivors signed of their uploads, each with the certificate that its advert showed, in the order of
    identities: for whoever has to see that enough members uploaded. Raises MisuseError before the uploads are closed.
    """
    r = state.records
    if not r.view:
        raise MisuseError("the uploads are not closed yet")
    return tuple((r.headers[survivor], r.adverts[survivor].certificate) for survivor in r.lists()[0])


def _next(state: ServerState, event: str) -> ServerState:
    return ServerState(use(state, event), state.params, state.session, state.members, state.records)


def _require(client: bytes, holds: bool, reason: str) -> None:
    if not holds:
        raise ClientFault(client, reason)


def _enough(rule: str, have: int, need: int, what: str) -> None:
    if have < need:
        raise SessionAborted(rule, f"{have} {what}, and it takes {need}")


# Receiving.


def _receive_advert(state: ServerState, sender: bytes, data: bytes) -> None:
    advert = decode(messages.Advert, data, lambda reason: ClientFault(sender, reason))
    adverts, taken = state.records.adverts, state.records.keys
    _require(sender, advert.sender == sender, "sent another identity's advert")
    _require(sender, advert.session == state.session, "sent an advert of another session")
    _require(sender, sender not in adverts, "advertised twice")
    _require(sender, state.members.admits(sender, advert.certificate), "is not a member")
    _require(sender, messages.is_signed(advert), "sent an advert that it did not sign")
    _require(sender, len(adverts) < state.params.clients, "came after the roster was full")
    fresh = advert.mask_key != advert.seal_key and taken.isdisjoint((advert.mask_key, advert.seal_key))
    _require(sender, fresh, "advertised a public key that is in the roster already")
    for key in (advert.mask_key, advert.seal_key):
        masks.agree(masks.load(_PROBE), key, sender)
    adverts[sender] = advert
    taken.update((advert.mask_key, advert.seal_key))


def _receive_shares(state: ServerState, sender: bytes, data: bytes) -> None:
    shares = decode(messages.Shares, data, lambda reason: ClientFault(sender, reason))
    _take_shares(state, sender, shares.message, shares.ciphertexts)


def _take_shares(
    state: ServerState, sender: bytes, message: messages.ShareMessage, ciphertexts: tuple[bytes, ...] | None
) -> None:
    r = state.records
    _require(sender, message.sender == sender, "sent another identity's shares")
    _require(sender, sender in r.adverts, "shared without being in the roster")
    _require(sender, sender not in r.shares, "shared twice")
    _require(sender, (message.session, message.roster) == (state.session, r.roster), "shared for another roster")
    _require(sender, messages.is_signed(message), "sent shares that it did not sign")
    whole = fits(message, r.graph, r.places[sender])
    if ciphertexts is not None:
        hashes = tuple(messages.ciphertext_hash(ciphertext) for ciphertext in ciphertexts)
        whole = whole and hashes == message.ciphertext_hashes
    _require(sender, whole, "sent shares that do not fit the roster or its own hashes")
    r.shares[sender] = Dealt(encode(message), message.holders, ciphertexts or ())


def _receive_upload(state: ServerState, sender: bytes, data: bytes) -> None:
    upload = decode(messages.Upload, data, lambda reason: ClientFault(sender, reason))
    _take_upload(state, sender, upload.header, upload.payload)


def _take_upload(state: ServerState, sender: bytes, header: UploadHeader, payload: bytes | None) -> None:
    r, params = state.records, state.params
    _require(sender, header.sender == sender, "sent another identity's upload")
    _require(sender, sender in r.shares, "uploaded without having shared")
    _require(sender, sender not in r.headers, "uploaded twice")
    # Every client would refuse a view with such a survivor, so taking the upload would end the session.
    lawful = not params.parent or sender in r.parent_survivors
    _require(sender, lawful, "uploaded without being a survivor of the parent session")
    _require(
        sender,
        (header.session, header.roster, header.sharers, header.context)
        == (state.session, r.roster, r.sharers, r.context),
        "uploaded under another session, roster, set of sharers or context",
    )
    _require(sender, messages.is_signed(header), "sent an upload that it did not sign")
    if payload is not None:
        _require(sender, messages.payload_hash(payload) == header.payload_hash, "sent another upload than it signed")
        try:
            r.tally.add(payload)
        except ValueError as error:
            raise ClientFault(sender, f"sent {error}") from None
        if params.name == CENSUS:
            r.payloads[sender] = payload
    r.headers[sender] = header


def _receive_attestation(state: ServerState, sender: bytes, data: bytes) -> None:
    attestation = decode(messages.Attestation, data, lambda reason: ClientFault(sender, reason))
    r = state.records
    _require(sender, attestation.sender == sender, "sent another identity's attestation")
    _require(sender, sender in r.shares, "attested without having shared")
    _require(sender, sender not in r.attestations, "attested twice")
    _require(sender, (attestation.session, attestation.view) == (state.session, r.view), "attested another view")
    _require(sender, messages.is_signed(attestation), "sent an attestation that it did not sign")
    r.attestations[sender] = attestation


def _receive_reveal(state: ServerState, sender: bytes, data: bytes) -> None:
    reveal = decode(messages.Reveal, data, lambda reason: ClientFault(sender, reason))
    r = state.records
    _require(sender, reveal.sender == sender, "sent another identity's shares")
    _require(sender, sender in r.attestations, "revealed without having attested")
    _require(sender, sender not in r.revealed, "revealed twice")
    _require(sender, (reveal.session, reveal.view) == (state.session, r.view), "revealed for another view")
    _require(sender, messages.is_signed(reveal), "sent a reveal that it did not sign")
    survivors = [dealer for dealer in r.dealers[sender] if dealer in r.headers]
    dropped = [dealer for dealer in r.dealers[sender] if dealer not in r.headers]
    counts = (len(reveal.seed_shares), len(reveal.key_shares))
    expected = (len(survivors), len(dropped))
    _require(sender, counts == expected, "revealed another number of shares than was asked for")
    r.revealed.add(sender)
    for dealer, share in zip(survivors + dropped, reveal.seed_shares + reveal.key_shares, strict=True):
        place = bisect_left(r.shares[dealer].holders, r.places[sender])
        r.shown.setdefault(dealer, []).append(Shown(sender, place, share))


# Closing.


def _close_adverts(state: ServerState) -> dict[bytes, bytes]:
    r = state.records
    _enough("min_survivors", len(r.adverts), state.params.min_survivors, "advertised")
    r.identities = tuple(sorted(r.adverts))
    r.places = {identity: place for place, identity in enumerate(r.identities)}
    r.graph = Graph(len(r.identities), state.params.degree, state.params.corrupt)
    if not r.graph.sound(state.params.min_survivors):
        raise SessionAborted("degree", f"{r.graph.degree} holders are too few in a roster of {len(r.identities)}")
    roster = messages.Roster(state.session, tuple(r.adverts[identity] for identity in r.identities))
    r.roster = messages.roster_hash(roster)
    return dict.fromkeys(r.identities, encode(roster))


def _close_shares(state: ServerState) -> Mapping[bytes, bytes]:
    r = state.records
    _enough("min_survivors", len(r.shares), state.params.min_survivors, "shared")
    dealers: dict[bytes, list[bytes]] = {}
    for dealer in sorted(r.shares):
        holders = r.holders_of(dealer)
        shared = sum(holder in r.shares for holder in holders)
        _enough("threshold", shared, r.graph.threshold, f"holders of {dealer.hex()[:12]} shared")
        for holder in holders:
            dealers.setdefault(holder, []).append(dealer)
    r.dealers = dealers  # not before: a phase that could not be closed may be closed again
    sharers = tuple(
        messages.Sharer(dealer, digest(SHARE_MESSAGE, r.shares[dealer].message)) for dealer in sorted(r.shares)
    )
    r.sharers = messages.sharers_hash(sharers)
    return Relays(state.session, r, sharers)


def _close_uploads(state: ServerState) -> dict[bytes, bytes]:
    r = state.records
    _enough("min_survivors", len(r.headers), state.params.min_survivors, "uploaded")
    if r.graph.sparse:
        for survivor in r.headers:
            kept = sum(holder in r.headers for holder in r.holders_of(survivor))
            _enough("threshold", kept, r.graph.threshold, f"holders of {survivor.hex()[:12]} uploaded")
    survivors = tuple(r.headers[identity] for identity in sorted(r.headers))
    view = messages.View(state.session, r.roster, r.sharers, r.context, survivors)
    r.view = messages.view_hash(view)
    return dict.fromkeys(sorted(r.shares), encode(view))


def _close_attestations(state: ServerState) -> dict[bytes, bytes]:
    r, c = state.records, state.params.corrupt
    needed = quorum(len(r.identities), c)
    if len(r.attestations) < needed:
        detail = f"{len(r.attestations)} attested, and it takes {needed} of {len(r.identities)} members with c = {c}"
        raise SessionAborted("quorum", detail)
    signers = sorted(r.attestations)
    # No more than it takes, as every client checks each of them.
    attestations = tuple(r.attestations[signer] for signer in signers[:needed])
    request = messages.RevealRequest(state.session, r.view, attestations, *r.lists())
    return dict.fromkeys(signers, encode(request))


_RECEIVERS = {
    Phase.ADVERTS: _receive_advert,
    Phase.SHARES: _receive_shares,
    Phase.UPLOADS: _receive_upload,
    Phase.ATTESTATIONS: _receive_attestation,
    Phase.REVEALS: _receive_reveal,
}

_CLOSERS = {
    Phase.ADVERTS: _close_adverts,
    Phase.SHARES: _close_shares,
    Phase.UPLOADS: _close_uploads,
    Phase.ATTESTATIONS: _close_attestations,
}
