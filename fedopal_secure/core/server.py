"""The server's side of secagg/v1: it collects messages phase by phase and adds uploads as they arrive.

Each step takes the state that the last one returned, which is then used up. `receive` takes one message of one client;
if that client is at fault it raises ClientFault and the state may be used again, as if the message had never come.

    start -> receive* close -> receive* close -> open -> receive* close -> receive* close -> receive* finish
             adverts           shares            uploads                   attestations      reveals

Memory is one vector, plus what each client's control messages take: uploads are added and forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedopal_secure.core import masks, messages
from fedopal_secure.core.checks import fits
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import Blame, ClientFault, MisuseError, ProtocolError, SessionAborted
from fedopal_secure.core.graph import has_quorum, threshold
from fedopal_secure.core.messages import KEY_SHARE, SEED_SHARE, Context
from fedopal_secure.core.params import SessionParams, check_params, session_id
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.ring import U64, Ring, from_wire, reduce_to_width
from fedopal_secure.core.shamir import Recovery
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


@dataclass
class _Records:
    """What has been collected; it moves from state to state."""

    adverts: dict[bytes, messages.Advert] = field(default_factory=dict)
    shares: dict[bytes, messages.Shares] = field(default_factory=dict)
    headers: dict[bytes, messages.UploadHeader] = field(default_factory=dict)
    attestations: dict[bytes, messages.Attestation] = field(default_factory=dict)
    reveals: dict[bytes, messages.Reveal] = field(default_factory=dict)
    total: U64 = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    roster: bytes = b""
    sharers: bytes = b""
    context: bytes = b""
    view: bytes = b""
    parent_survivors: tuple[bytes, ...] = ()
    identities: tuple[bytes, ...] = ()
    threshold: int = 0


@dataclass(repr=False, eq=False)
class ServerState(State):
    """The server of one session, in one phase."""

    params: SessionParams
    session: bytes
    members: Membership
    records: _Records

    @property
    def sharers(self) -> tuple[bytes, ...]:
        """The clients that have shared, in the order of their identities: those whose uploads can be unmasked."""
        return tuple(sorted(self.records.shares))


def start(params: SessionParams, members: Membership) -> tuple[ServerState, bytes]:
    """Open a session; the bytes are the proposal for every client. Raises PolicyRefusal for unsound parameters."""
    check_params(params)
    return ServerState(Phase.ADVERTS, params, session_id(params), members, _Records()), encode(params)


def receive(state: ServerState, sender: bytes, data: bytes) -> ServerState:
    """Take one client's message of the current phase.

    `sender` is the identity that the connection belongs to. Raises ClientFault for anything that an honest client
    would not have sent now; the message is then without effect and the state is not used up.
    """
    follow(state, "receive")
    _RECEIVERS[state.phase](state, sender, data)
    return _next(state, "receive")


def close(state: ServerState) -> tuple[ServerState, dict[bytes, bytes]]:
    """End a phase; returns for each client that can go on the bytes to send it.

    Adverts end with the roster, shares with one relay for each client, uploads with the view, attestations with the
    reveal request. Raises SessionAborted if too few are left; then no share is ever asked for.
    """
    follow(state, "close")
    replies = _CLOSERS[state.phase](state)
    return _next(state, "close"), replies


def open_uploads(state: ServerState, context: Context) -> tuple[ServerState, bytes]:
    """Begin the uploads under a context; the bytes are for every sharer.

    Raises MisuseError for the context of another session or parent, which every client would refuse.
    """
    follow(state, "open")
    if (context.session, context.parent) != (state.session, state.params.parent):
        raise MisuseError("the context is not of this session and the parent that its parameters name")
    state.records.parent_survivors = context.parent_survivors
    state.records.context = messages.context_hash(context)
    state.records.total = np.zeros(state.params.length, dtype=np.uint64)
    return _next(state, "open"), encode(context)


def finish(state: ServerState) -> Sum:
    """Remove the masks from the sum; ends the session.

    Raises SessionAborted if fewer shares than the threshold are good for some sharer, ClientFault naming a dealer
    whose shares are as committed and yet do not rebuild what it advertised.
    """
    follow(state, "finish")
    # Before the state is used up: the server may wait for more and ask again.
    _enough("threshold", len(state.records.reveals), state.records.threshold, "revealed")
    use(state, "finish")
    rebuild = _Rebuilder(state)
    try:
        total = _unmask(state, rebuild)
    except ProtocolError as error:
        error.blame = tuple(rebuild.blame)
        raise
    r = state.records
    return Sum(state.session, total, *_view_lists(r), r.threshold, r.view, tuple(rebuild.blame))


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
    adverts = state.records.adverts
    taken = {key for other in adverts.values() for key in (other.mask_key, other.seal_key)}
    _require(sender, advert.sender == sender, "sent another identity's advert")
    _require(sender, advert.session == state.session, "sent an advert of another session")
    _require(sender, sender not in adverts, "advertised twice")
    _require(sender, state.members.admits(sender, advert.certificate), "is not a member")
    _require(sender, messages.is_signed(advert), "sent an advert that it did not sign")
    _require(sender, len(adverts) < state.params.clients, "came after the roster was full")
    fresh = advert.mask_key != advert.seal_key and taken.isdisjoint((advert.mask_key, advert.seal_key))
    _require(sender, fresh, "advertised a public key that is in the roster already")
    for key in (advert.mask_key, advert.seal_key):
        masks.agree(_PROBE, key, sender)
    adverts[sender] = advert


def _receive_shares(state: ServerState, sender: bytes, data: bytes) -> None:
    shares = decode(messages.Shares, data, lambda reason: ClientFault(sender, reason))
    message, r = shares.message, state.records
    _require(sender, message.sender == sender, "sent another identity's shares")
    _require(sender, sender in r.adverts, "shared without being in the roster")
    _require(sender, sender not in r.shares, "shared twice")
    _require(sender, (message.session, message.roster) == (state.session, r.roster), "shared for another roster")
    _require(sender, messages.is_signed(message), "sent shares that it did not sign")
    hashes = tuple(messages.ciphertext_hash(ciphertext) for ciphertext in shares.ciphertexts)
    whole = fits(message, len(r.identities)) and hashes == message.ciphertext_hashes
    _require(sender, whole, "sent shares that do not fit the roster or its own hashes")
    r.shares[sender] = shares


def _receive_upload(state: ServerState, sender: bytes, data: bytes) -> None:
    upload = decode(messages.Upload, data, lambda reason: ClientFault(sender, reason))
    header, r, params = upload.header, state.records, state.params
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
    _require(sender, len(upload.payload) == params.upload_bytes, "sent an upload of the wrong length")
    _require(sender, messages.payload_hash(upload.payload) == header.payload_hash, "sent another upload than it signed")
    ring = Ring(params.modulus)
    vector = from_wire(upload.payload, params.segments)
    _require(sender, ring.contains(vector), "sent entries that are not residues")
    ring.add_into(r.total, vector)
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
    _require(sender, sender not in r.reveals, "revealed twice")
    _require(sender, (reveal.session, reveal.view) == (state.session, r.view), "revealed for another view")
    _require(sender, messages.is_signed(reveal), "sent a reveal that it did not sign")
    counts = (len(reveal.seed_shares), len(reveal.key_shares))
    expected = (len(r.headers), len(r.shares) - len(r.headers))
    _require(sender, counts == expected, "revealed another number of shares than was asked for")
    r.reveals[sender] = reveal


# Closing.


def _close_adverts(state: ServerState) -> dict[bytes, bytes]:
    r = state.records
    _enough("min_survivors", len(r.adverts), state.params.min_survivors, "advertised")
    r.identities = tuple(sorted(r.adverts))
    r.threshold = threshold(len(r.identities), state.params.corrupt)
    roster = messages.Roster(state.session, tuple(r.adverts[identity] for identity in r.identities))
    r.roster = messages.roster_hash(roster)
    return dict.fromkeys(r.identities, encode(roster))


def _close_shares(state: ServerState) -> dict[bytes, bytes]:
    r = state.records
    dealers = [r.shares[identity] for identity in sorted(r.shares)]
    _enough("threshold", len(dealers), r.threshold, "shared")
    _enough("min_survivors", len(dealers), state.params.min_survivors, "shared")
    r.sharers = messages.sharers_hash([shares.message for shares in dealers])
    relays = {}
    for position, identity in enumerate(r.identities):
        if identity in r.shares:
            dealt = tuple(messages.Relayed(shares.message, shares.ciphertexts[position]) for shares in dealers)
            relays[identity] = encode(messages.Relay(state.session, dealt))
    return relays


def _close_uploads(state: ServerState) -> dict[bytes, bytes]:
    r = state.records
    _enough("min_survivors", len(r.headers), state.params.min_survivors, "uploaded")
    survivors = tuple(r.headers[identity] for identity in sorted(r.headers))
    view = messages.View(state.session, r.roster, r.sharers, r.context, survivors)
    r.view = messages.view_hash(view)
    return dict.fromkeys(sorted(r.shares), encode(view))


def _close_attestations(state: ServerState) -> dict[bytes, bytes]:
    r, c = state.records, state.params.corrupt
    if not has_quorum(len(r.attestations), len(r.identities), c):
        detail = f"{len(r.attestations)} attested, and it takes more than half of {len(r.identities)} members + c = {c}"
        raise SessionAborted("quorum", detail)
    signers = sorted(r.attestations)
    attestations = tuple(r.attestations[signer] for signer in signers)
    request = messages.RevealRequest(state.session, r.view, attestations, *_view_lists(r))
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


def _view_lists(records: _Records) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    survivors = tuple(sorted(records.headers))
    return survivors, tuple(sorted(records.shares.keys() - records.headers.keys()))


# Recovery.


def _unmask(state: ServerState, rebuild: _Rebuilder) -> U64:
    r, params = state.records, state.params
    ring = Ring(params.modulus)
    survivors, dropped = _view_lists(r)
    binding = masks.Binding(state.session, r.roster, r.context)
    for position, survivor in enumerate(survivors):
        seed = rebuild.seed(survivor, position)
        masks.apply_stream(ring, r.total, masks.self_key(seed, survivor, binding), masks.SUBTRACT)
    keys = {identity: advert.mask_key for identity, advert in r.adverts.items()}
    for position, gone in enumerate(dropped):
        mask_secret = rebuild.mask_secret(gone, position)
        for survivor in survivors:
            shared = masks.agree(mask_secret, keys[survivor], survivor)
            stream = masks.pair_key(shared, (gone, keys[gone]), (survivor, keys[survivor]), binding)
            # The survivor's upload holds the stream with the survivor's sign; take it off again.
            masks.apply_stream(ring, r.total, stream, -masks.pair_sign(survivor, gone))
    return r.total if params.modulus else reduce_to_width(r.total, params.segments)


class _Rebuilder:
    """Rebuilds dealers' secrets from what holders revealed, and says who is at fault where that fails."""

    def __init__(self, state: ServerState) -> None:
        self._session, self._records = state.session, state.records
        self._holders = [(place, h) for place, h in enumerate(state.records.identities) if h in state.records.reveals]
        self._recoveries: dict[tuple[int, ...], Recovery] = {}
        self.blame: list[Blame] = []

    def seed(self, dealer: bytes, position: int) -> bytes:
        """A survivor's self-mask seed."""
        message = self._records.shares[dealer].message
        shown = [
            (place, holder, self._records.reveals[holder].seed_shares[position]) for place, holder in self._holders
        ]
        seed = self._combine(dealer, SEED_SHARE, message.seed_commitments, shown)
        if seed is None or messages.seed_hash(seed) != message.seed_hash:
            raise ClientFault(dealer, "dealt shares that do not rebuild the self-mask seed it committed to")
        return seed

    def mask_secret(self, dealer: bytes, position: int) -> bytes:
        """A dropped client's masking key."""
        message = self._records.shares[dealer].message
        shown = [(place, holder, self._records.reveals[holder].key_shares[position]) for place, holder in self._holders]
        secret = self._combine(dealer, KEY_SHARE, message.key_commitments, shown)
        if secret is None or masks.public_key(secret) != self._records.adverts[dealer].mask_key:
            raise ClientFault(dealer, "dealt shares that do not rebuild the masking key it advertised")
        return secret

    def _combine(
        self, dealer: bytes, kind: bytes, commitments: tuple[bytes, ...], shown: list[tuple[int, bytes, bytes]]
    ) -> bytes | None:
        good: dict[int, bytes] = {}
        for place, holder, share in shown:
            if not share:
                self.blame.append(Blame(dealer, "the holder says that its share did not open or match", holder))
            elif messages.share_commitment(self._session, dealer, place + 1, kind, share) == commitments[place]:
                good[place + 1] = share
            else:
                self.blame.append(Blame(holder, f"revealed a share that {dealer.hex()[:12]} did not commit to"))
        indices = tuple(good)
        _enough("threshold", len(indices), self._records.threshold, f"good shares of {dealer.hex()[:12]}")
        if indices not in self._recoveries:
            self._recoveries[indices] = Recovery(indices, self._records.threshold)
        return self._recoveries[indices].combine(list(good.values()))
