"""A client's side of secagg/v1: five messages out, and every check that it makes before it sends one.

Each step takes the state that the last one returned, and bytes from the server; it returns a new state and bytes for
the server. A step that raises ends the session: its state is used up and its secrets are erased.

    advertise -> share -> hold -> upload -> attest -> reveal

`hold` sends nothing. A client whose upload came too late may go from `hold` to `attest`, and never upload afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from fedopal_secure.core import checks, masks, messages
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import MisuseError, ServerFault
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import KEY_SHARE, SEED_SHARE, Advert, Context, ShareMessage, UploadHeader
from fedopal_secure.core.params import SessionParams, session_id
from fedopal_secure.core.policy import Policy, check_proposal, cohort, roster_threshold
from fedopal_secure.core.ring import U64, Ring, to_wire
from fedopal_secure.core.secret import Secret
from fedopal_secure.core.shamir import SHARE_BYTES, Entropy, split
from fedopal_secure.core.states import (
    Advertised,
    Attested,
    ClientState,
    Held,
    Holding,
    ParentView,
    Revealed,
    Room,
    Setup,
    Shared,
    abandon,
)
from fedopal_secure.core.transitions import Phase, follow, use


@contextmanager
def _step(state: ClientState, event: str) -> Iterator[Phase]:
    phase = use(state, event)
    try:
        yield phase
    except BaseException:
        abandon(state)
        raise


def advertise(
    params: bytes, policy: Policy, key: SigningKey, certificate: bytes, entropy: Entropy
) -> tuple[Advertised, bytes]:
    """Check the proposed parameters against the policy and make this session's keys.

    Returns the state and an Advert. Raises PolicyRefusal or ServerFault, and then nothing has been sent.
    """
    proposal = decode(SessionParams, params, ServerFault)
    check_proposal(policy, proposal)
    session = session_id(proposal)
    mask_secret, seal_secret = Secret(entropy(32)), Secret(entropy(32))
    advert = messages.sign(
        key,
        Advert(
            session,
            key.identity,
            masks.public_key(mask_secret.expose()),
            masks.public_key(seal_secret.expose()),
            certificate,
        ),
    )
    setup = Setup(proposal, session, policy, key)
    return Advertised(Phase.ADVERTISED, setup, mask_secret, seal_secret, advert), encode(advert)


def share(state: Advertised, roster_bytes: bytes, entropy: Entropy) -> tuple[Shared, bytes]:
    """Accept the roster and deal shares of the masking key and of a fresh self-mask seed to everyone in it.

    Returns the state and Shares. Raises ServerFault, PolicyRefusal, or ClientFault for a key of small order.
    """
    with _step(state, "share") as phase:
        setup, own = state.setup, state.advert
        room = _enter(state, roster_bytes)
        adverts, seed = room.roster.adverts, Secret(entropy(32))
        indices = range(1, len(adverts) + 1)
        key_shares = split(state.mask_secret.expose(), room.threshold, indices, entropy)
        seed_shares = split(seed.expose(), room.threshold, indices, entropy)
        bound = setup.session + room.hash
        ciphertexts = []
        for advert, key_share, seed_share in zip(adverts, key_shares, seed_shares, strict=True):
            if advert.sender == own.sender:
                ciphertexts.append(b"")
                own_held = Held(Secret(key_share), Secret(seed_share))
                continue
            shared = masks.agree(state.seal_secret.expose(), advert.seal_key, advert.sender)
            keys = (own.seal_key, advert.seal_key)
            sealing = masks.seal_key(shared, own.sender, advert.sender, keys, bound)
            ciphertexts.append(masks.seal(sealing, key_share + seed_share, bound))

        def commit(kind: bytes, shares: Sequence[bytes]) -> tuple[bytes, ...]:
            return tuple(
                messages.share_commitment(setup.session, own.sender, index, kind, dealt)
                for index, dealt in zip(indices, shares, strict=True)
            )

        message = messages.sign(
            setup.key,
            ShareMessage(
                setup.session,
                own.sender,
                room.hash,
                messages.seed_hash(seed.expose()),
                tuple(range(len(adverts))),
                commit(KEY_SHARE, key_shares),
                commit(SEED_SHARE, seed_shares),
                tuple(messages.ciphertext_hash(ciphertext) for ciphertext in ciphertexts),
            ),
        )
        sent = encode(messages.Shares(message, tuple(ciphertexts)))
        return Shared(phase, setup, state.mask_secret, state.seal_secret, seed, room, message, own_held), sent


def _enter(state: Advertised, roster_bytes: bytes) -> Room:
    setup = state.setup
    roster = decode(messages.Roster, roster_bytes, ServerFault)
    checks.roster_is_ours(roster, setup.session, setup.params.clients)
    checks.roster_is_ordered(roster)
    checks.roster_shows_own_advert(roster, state.advert)
    checks.roster_admits_only_members(roster, setup.policy.members)
    checks.roster_is_signed(roster, setup.session)
    checks.roster_repeats_no_key(roster)
    t = roster_threshold(setup.policy, setup.params, len(roster.adverts))
    identities = tuple(advert.sender for advert in roster.adverts)
    return Room(roster, messages.roster_hash(roster), identities, t)


def hold(state: Shared, relay_bytes: bytes) -> Holding:
    """Accept the list of sharers and open the shares dealt to this client.

    A signed message whose ciphertext does not open or match its commitments is a dispute: the session goes on, and
    this client will reveal nothing for that dealer. Raises ServerFault if the relay itself is at fault.
    """
    with _step(state, "hold") as phase:
        setup, room = state.setup, state.room
        relay = decode(messages.Relay, relay_bytes, ServerFault)
        position = room.identities.index(setup.key.identity)
        checks.relay_is_ours(relay, setup.session, room.identities)
        checks.relay_shows_own_message(relay, state.own)
        checks.relayed_messages_are_signed(relay, setup.session, room.hash)
        checks.relayed_messages_fit(relay, len(room.identities))
        checks.relayed_ciphertexts_are_the_dealers(relay, position)
        checks.enough_shared(relay, room.threshold)
        held: dict[bytes, Held | None] = {}
        for dealt in relay.dealers:
            own = dealt.message.sender == setup.key.identity
            held[dealt.message.sender] = state.own_held if own else _open(state, dealt, position)
        state.seal_secret.erase()
        return Holding(
            phase,
            setup,
            state.mask_secret,
            state.seed,
            room,
            tuple(held),
            messages.sharers_hash([dealt.message for dealt in relay.dealers]),
            held,
        )


def _open(state: Shared, dealt: messages.Relayed, position: int) -> Held | None:
    setup, room, message = state.setup, state.room, dealt.message
    dealer = room.roster.adverts[room.identities.index(message.sender)]
    own = room.roster.adverts[position]
    bound = setup.session + room.hash
    shared = masks.agree(state.seal_secret.expose(), dealer.seal_key, dealer.sender)
    sealing = masks.seal_key(shared, dealer.sender, own.sender, (dealer.seal_key, own.seal_key), bound)
    plaintext = masks.unseal(sealing, dealt.ciphertext, bound)
    if plaintext is None or len(plaintext) != 2 * SHARE_BYTES:
        return None
    key_share, seed_share = plaintext[:SHARE_BYTES], plaintext[SHARE_BYTES:]
    for kind, opened, commitments in (
        (KEY_SHARE, key_share, message.key_commitments),
        (SEED_SHARE, seed_share, message.seed_commitments),
    ):
        commitment = messages.share_commitment(setup.session, message.sender, position + 1, kind, opened)
        if commitment != commitments[position]:
            return None
    return Held(Secret(key_share), Secret(seed_share))


def check_context(state: Holding, context_bytes: bytes, parent: ParentView | None) -> None:
    """Check a request to upload before anything is computed for it; the state is not used up.

    Raises ServerFault if the context is not of this session and parent, MisuseError if no upload is due.
    """
    follow(state, "upload")
    _accept_context(state.setup, context_bytes, parent)


def upload(state: Holding, vector: U64, context_bytes: bytes, parent: ParentView | None) -> tuple[Holding, bytes]:
    """Mask this client's vector and sign for it.

    `vector` is uint64, one residue for each entry of the segments; it is not changed. `parent` is what the client
    attested in the session that this one continues, None if it continues none. Returns the state and an Upload.
    Raises ServerFault if the context is not that parent's, MisuseError for a vector that does not fit.
    """
    follow(state, "upload")
    setup, params = state.setup, state.setup.params
    ring = Ring(params.modulus)
    if vector.dtype != np.uint64 or vector.shape != (params.length,) or not ring.contains(vector):
        raise MisuseError(f"the vector is not {params.length} residues as uint64")
    with _step(state, "upload") as phase:
        identity, room = setup.key.identity, state.room
        context = _accept_context(setup, context_bytes, parent)
        binding = masks.Binding(setup.session, room.hash, messages.context_hash(context))
        masked = vector.copy()
        masks.apply_stream(ring, masked, masks.self_key(state.seed.expose(), identity, binding), masks.ADD)
        keys = {advert.sender: advert.mask_key for advert in room.roster.adverts}
        for peer in state.sharers:
            if peer != identity:
                shared = masks.agree(state.mask_secret.expose(), keys[peer], peer)
                stream = masks.pair_key(shared, (identity, keys[identity]), (peer, keys[peer]), binding)
                masks.apply_stream(ring, masked, stream, masks.pair_sign(identity, peer))
        payload = to_wire(masked, params.segments)
        header = messages.sign(
            setup.key,
            UploadHeader(
                setup.session,
                identity,
                room.hash,
                state.sharers_hash,
                binding.context,
                messages.payload_hash(payload),
            ),
        )
        uploaded = Holding(
            phase,
            setup,
            state.mask_secret,
            state.seed,
            room,
            state.sharers,
            state.sharers_hash,
            state.held,
            context,
            header,
        )
        return uploaded, encode(messages.Upload(header, payload))


def _accept_context(setup: Setup, context_bytes: bytes, parent: ParentView | None) -> Context:
    context = decode(Context, context_bytes, ServerFault)
    checks.context_is_ours(context, setup.session, setup.params.parent)
    checks.context_shows_own_parent_view(context, parent)
    return context


def attest(
    state: Holding, view_bytes: bytes, context_bytes: bytes | None = None, parent: ParentView | None = None
) -> tuple[Attested, bytes]:
    """Check the server's view of the uploads and sign it: the only view that this client will ever sign.

    A client that did not upload passes the context and parent here instead. Returns the state and an Attestation.
    Raises ServerFault, or PolicyRefusal if the cohort is too small.
    """
    follow(state, "attest")
    if (state.header is None) == (context_bytes is None):
        raise MisuseError("the context is given once: at upload, or at attest by a client that did not upload")
    with _step(state, "attest") as phase:
        setup, room = state.setup, state.room
        context = state.context or _accept_context(setup, context_bytes or b"", parent)
        view = decode(messages.View, view_bytes, ServerFault)
        checks.view_is_ours(view, setup.session, room.hash, state.sharers_hash, messages.context_hash(context))
        checks.survivors_are_distinct_sharers(view, state.sharers)
        checks.survivors_headers_match(view)
        checks.survivors_headers_are_signed(view)
        checks.view_treats_us_right(view, setup.key.identity, state.header)
        checks.cohort_is_reached(view, cohort(setup.policy, setup.params))
        checks.survivors_are_the_parents(view, setup.params.parent, context)
        hashed = messages.view_hash(view)
        attestation = messages.sign(setup.key, messages.Attestation(setup.session, setup.key.identity, hashed))
        # Own masks are of no further use: what this client still has to say is about the others' shares.
        state.mask_secret.erase()
        state.seed.erase()
        survivors = tuple(header.sender for header in view.survivors)
        return Attested(phase, setup, room, state.sharers, state.held, hashed, survivors), encode(attestation)


def reveal(state: Attested, request_bytes: bytes) -> tuple[Revealed, bytes]:
    """Release one kind of share for each sharer, once a quorum stands behind the view that this client signed.

    Returns the final state, whose secrets are erased, and a Reveal. Raises ServerFault.
    """
    with _step(state, "reveal") as phase:
        setup = state.setup
        request = decode(messages.RevealRequest, request_bytes, ServerFault)
        dropped = tuple(sharer for sharer in state.sharers if sharer not in state.survivors)
        checks.request_is_for_own_view(request, setup.session, state.view_hash)
        checks.attestations_are_of_distinct_members(request, state.room.identities)
        checks.attestations_are_signed(request, setup.session, state.view_hash)
        checks.quorum_is_reached(request, len(state.room.identities), setup.params.corrupt)
        checks.lists_are_the_views(request, state.survivors, dropped)

        def shares(dealers: Sequence[bytes], kind: bytes) -> Iterator[bytes]:
            for dealer in dealers:
                held = state.held[dealer]
                if held is None:
                    yield b""
                else:
                    yield (held.seed_share if kind == SEED_SHARE else held.key_share).expose()

        answer = messages.Reveal(
            setup.session,
            setup.key.identity,
            state.view_hash,
            tuple(shares(request.survivors, SEED_SHARE)),
            tuple(shares(request.dropped, KEY_SHARE)),
        )
        sent = encode(messages.sign(setup.key, answer))
        abandon(state)
        return Revealed(phase, setup, ParentView(setup.session, state.view_hash, state.survivors)), sent
