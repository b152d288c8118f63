"""A client's side of secagg/v1: five messages out, and every check that it makes before it sends one.

Each step takes the state that the last one returned, and bytes from the server; it returns a new state and bytes for
the server. A step that raises ends the session: its state is used up and its secrets are erased.

    advertise -> share -> hold -> upload -> attest -> reveal

`hold` sends nothing. A client whose upload came too late may go from `hold` to `attest`, and never upload afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedopal_secure.core import checks, masks, messages
from fedopal_secure.core.census import Census, Witness, recheck
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import MisuseError, ServerFault
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import KEY_SHARE, SEED_SHARE, Advert, Context, ShareMessage, UploadHeader
from fedopal_secure.core.params import CENSUS, MASKED, PROTOCOL, session_id
from fedopal_secure.core.policy import Policy, check_proposal, cohort, roster_graph
from fedopal_secure.core.ring import U64, Ring
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
from fedopal_secure.core.tally import Pack, wire
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
    proposal_bytes: bytes,
    policy: Policy,
    key: SigningKey,
    certificate: bytes,
    entropy: Entropy,
    protocol: str = PROTOCOL,
) -> tuple[Advertised, bytes]:
    """Check the proposed parameters against the policy and make this session's secrets.

    `proposal_bytes` are a Proposal, `protocol` is the one of MASKED that the caller speaks. Returns the state and an
    Advert. Raises PolicyRefusal or ServerFault, and then nothing has been sent.
    """
    if protocol not in MASKED:
        raise MisuseError(f"{protocol!r} is not spoken here, only {' and '.join(MASKED)}")
    proposal = decode(messages.Proposal, proposal_bytes, ServerFault)
    checks.proposal_is_signed(proposal)
    params = proposal.params
    check_proposal(policy, params, protocol)
    session = session_id(params)
    mask_secret, seal_secret, seed = Secret(entropy(32)), Secret(entropy(32)), Secret(entropy(32))
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
    setup = Setup(params, session, policy, key)
    return Advertised(Phase.ADVERTISED, setup, mask_secret, seal_secret, seed, advert), encode(advert)


def share(state: Advertised, roster_bytes: bytes, entropy: Entropy) -> tuple[Shared, bytes]:
    """Accept the roster and deal shares of the masking key and of the self-mask seed to this client's holders.

    On a sparse graph the holders are drawn here, after the roster is fixed. Returns the state and Shares. Raises
    ServerFault, PolicyRefusal, or ClientFault for a key of small order.
    """
    with _step(state, "share") as phase:
        setup, own = state.setup, state.advert
        room = _enter(state, roster_bytes)
        positions = room.graph.draw(room.position, entropy)
        adverts = [room.roster.adverts[position] for position in positions]
        checks.adverts_are_signed(adverts, setup.session)
        indices = [position + 1 for position in positions]
        key_shares = split(state.mask_secret.expose(), room.graph.threshold, indices, entropy)
        seed_shares = split(state.seed.expose(), room.graph.threshold, indices, entropy)
        bound, private = setup.session + room.hash, masks.load(state.seal_secret.expose())
        ciphertexts, agreed = [], {}
        for advert, key_share, seed_share in zip(adverts, key_shares, seed_shares, strict=True):
            if advert.sender == own.sender:
                ciphertexts.append(b"")
                own_held = Held(Secret(key_share), Secret(seed_share))
                continue
            shared = masks.agree(private, advert.seal_key, advert.sender)
            agreed[advert.sender] = Secret(shared)
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
                messages.seed_hash(state.seed.expose()),
                positions,
                commit(KEY_SHARE, key_shares),
                commit(SEED_SHARE, seed_shares),
                tuple(messages.ciphertext_hash(ciphertext) for ciphertext in ciphertexts),
            ),
        )
        sent = encode(messages.Shares(message, tuple(ciphertexts)))
        holders = tuple(advert.sender for advert in adverts)
        dealt = Shared(
            phase, setup, state.mask_secret, state.seal_secret, state.seed, room, message, own_held, holders, agreed
        )
        return dealt, sent


def _enter(state: Advertised, roster_bytes: bytes) -> Room:
    setup = state.setup
    roster = decode(messages.Roster, roster_bytes, ServerFault)
    checks.roster_is_ours(roster, setup.session, setup.params.clients)
    checks.roster_is_ordered(roster)
    checks.roster_shows_own_advert(roster, state.advert)
    checks.roster_admits_only_members(roster, setup.policy.members)
    checks.roster_repeats_no_key(roster)
    graph = roster_graph(setup.policy, setup.params, len(roster.adverts))
    identities = tuple(advert.sender for advert in roster.adverts)
    return Room(roster, messages.roster_hash(roster), identities, identities.index(state.advert.sender), graph)


def hold(state: Shared, relay_bytes: bytes) -> Holding:
    """Accept the list of sharers and open the shares dealt to this client.

    A signed message whose ciphertext does not open or match its commitments is a dispute: the session goes on, and
    this client will reveal nothing for that dealer. Raises ServerFault if the relay itself is at fault, ClientFault for
    a dealer's key of small order.
    """
    with _step(state, "hold") as phase:
        setup, room = state.setup, state.room
        relay = decode(messages.Relay, relay_bytes, ServerFault)
        places = {identity: place for place, identity in enumerate(room.identities)}
        checks.relay_is_ours(relay, setup.session, room.identities)
        checks.dealers_are_sharers(relay)
        checks.relay_shows_own_message(relay, state.own)
        checks.relayed_messages_are_signed(relay, setup.session, room.hash)
        checks.relayed_messages_fit(relay, room.graph, places, room.position)
        checks.relay_is_complete(relay, room.graph)
        checks.relayed_ciphertexts_are_the_dealers(relay, room.position)
        checks.enough_shared(relay, state.holders, room.graph.threshold)
        dealt = {dealer.message.sender: dealer.message for dealer in relay.dealers}
        adverts = [room.roster.adverts[places[dealer]] for dealer in dealt if dealer not in state.holders]
        checks.adverts_are_signed(adverts, setup.session)
        private = masks.load(state.seal_secret.expose())
        held: dict[bytes, Held | None] = {setup.key.identity: state.own_held}
        for dealer in relay.dealers:
            if dealer.message.sender != setup.key.identity:
                advert = room.roster.adverts[places[dealer.message.sender]]
                held[dealer.message.sender] = _open(state, dealer, advert, private)
        sharers = tuple(sharer.identity for sharer in relay.sharers)
        peers = (dealt.keys() | set(state.holders)) & set(sharers) - {setup.key.identity}
        state.seal_secret.erase()
        for secret in state.agreed.values():
            secret.erase()
        return Holding(
            phase,
            setup,
            state.mask_secret,
            state.seed,
            room,
            sharers,
            messages.sharers_hash(relay.sharers),
            tuple(sorted(peers)),
            dealt,
            held,
        )


def _open(state: Shared, dealt: messages.Relayed, dealer: Advert, private: X25519PrivateKey) -> Held | None:
    setup, room, message = state.setup, state.room, dealt.message
    own, place = room.roster.adverts[room.position], message.holders.index(room.position)
    bound = setup.session + room.hash
    if dealer.sender in state.agreed:
        shared = state.agreed[dealer.sender].expose()
    else:
        shared = masks.agree(private, dealer.seal_key, dealer.sender)
    sealing = masks.seal_key(shared, dealer.sender, own.sender, (dealer.seal_key, own.seal_key), bound)
    plaintext = masks.unseal(sealing, dealt.ciphertext, bound)
    if plaintext is None or len(plaintext) != 2 * SHARE_BYTES:
        return None
    key_share, seed_share = plaintext[:SHARE_BYTES], plaintext[SHARE_BYTES:]
    for kind, opened, commitments in (
        (KEY_SHARE, key_share, message.key_commitments),
        (SEED_SHARE, seed_share, message.seed_commitments),
    ):
        commitment = messages.share_commitment(setup.session, message.sender, room.position + 1, kind, opened)
        if commitment != commitments[place]:
            return None
    return Held(Secret(key_share), Secret(seed_share))


def check_context(state: Holding, context_bytes: bytes, parent: ParentView | None) -> None:
    """Check a request to upload before anything is computed for it; the state is not used up.

    Raises ServerFault if the context is not of this session and parent, PolicyRefusal if a census found too few
    contributors, MisuseError if no upload is due.
    """
    follow(state, "upload")
    context, _ = _accept_context(state.setup, context_bytes, parent)
    checks.we_survived_the_parent(context, state.setup.key.identity)


def upload(
    state: Holding, vector: U64, context_bytes: bytes, parent: ParentView | None, pack: Pack | None = None
) -> tuple[Holding, bytes]:
    """Mask this client's vector and sign for it.

    `vector` is uint64, one residue for each entry of the segments; it is not changed. `parent` is what the client
    attested in the session that this one continues, None if it continues none. `pack` makes the payload of the masked
    vector, if it is not to be the wire form. Returns the state and an Upload.
    Raises ServerFault if the context is not that parent's, PolicyRefusal if a census found too few contributors,
    MisuseError for a vector that does not fit.
    """
    follow(state, "upload")
    setup, params = state.setup, state.setup.params
    ring = Ring(params.modulus)
    if params.public_context and pack is None:
        raise MisuseError("the payload of an encrypted session is not the wire form: say how to pack it")
    if vector.dtype != np.uint64 or vector.shape != (params.length,) or not ring.contains(vector):
        raise MisuseError(f"the vector is not {params.length} residues as uint64")
    with _step(state, "upload") as phase:
        identity, room = setup.key.identity, state.room
        context, census = _accept_context(setup, context_bytes, parent)
        checks.we_survived_the_parent(context, identity)
        binding = masks.Binding(setup.session, room.hash, messages.context_hash(context))
        masked = vector.copy()
        masks.apply_stream(ring, masked, masks.self_key(state.seed.expose(), identity, binding), masks.ADD)
        keys = {advert.sender: advert.mask_key for advert in room.roster.adverts}
        private = masks.load(state.mask_secret.expose())
        for peer in state.peers:
            shared = masks.agree(private, keys[peer], peer)
            stream = masks.pair_key(shared, (identity, keys[identity]), (peer, keys[peer]), binding)
            masks.apply_stream(ring, masked, stream, masks.pair_sign(identity, peer))
        payload = (pack or wire(params))(masked)
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
        uploaded = replace(state, phase=phase, context=context, census=census, header=header)
        return uploaded, encode(messages.Upload(header, payload))


def _accept_context(setup: Setup, context_bytes: bytes, parent: ParentView | None) -> tuple[Context, Census | None]:
    params, context = setup.params, decode(Context, context_bytes, ServerFault)
    checks.context_is_ours(context, setup.session, params.parent)
    checks.context_shows_own_parent_view(context, parent)
    census = None
    if parent is not None:
        census = parent.census if parent.witness is None else recheck(parent.witness, context.payload)
    if params.name != CENSUS:
        checks.census_allows(census, params.task.min_contributors, params.corrupt, None)
    return context, census


def attest(
    state: Holding, view_bytes: bytes, context_bytes: bytes | None = None, parent: ParentView | None = None
) -> tuple[Attested, bytes]:
    """Check the server's view of the uploads and sign it: the only view that this client will ever sign.

    A client that did not upload passes the context and parent here instead. Returns the state and an Attestation.
    Raises ServerFault, PolicyRefusal if the cohort is too small or a class has lost too many contributors, and
    MisuseError if the context is given twice or never.
    """
    follow(state, "attest")
    if (state.header is None) == (context_bytes is None):
        raise MisuseError("the context is given once: at upload, or at attest by a client that did not upload")
    with _step(state, "attest") as phase:
        setup, params, room = state.setup, state.setup.params, state.room
        if state.context is None:
            context, census = _accept_context(setup, context_bytes or b"", parent)
        else:
            context, census = state.context, state.census
        view = decode(messages.View, view_bytes, ServerFault)
        checks.view_is_ours(view, setup.session, room.hash, state.sharers_hash, messages.context_hash(context))
        checks.survivors_are_distinct_sharers(view, state.sharers)
        checks.survivors_headers_match(view)
        checks.survivors_headers_are_signed(view)
        checks.view_treats_us_right(view, setup.key.identity, state.header)
        checks.cohort_is_reached(len(view.survivors), cohort(setup.policy, params))
        checks.survivors_are_the_parents(view, params.parent, context)
        survivors = tuple(header.sender for header in view.survivors)
        if room.graph.sparse:
            holders = {dealer: message.holders for dealer, message in state.dealt.items()}
            checks.survivors_keep_holders(view, room.identities, holders, room.graph.threshold)
        if params.name != CENSUS:
            checks.census_allows(census, params.task.min_contributors, params.corrupt, survivors)
        hashed = messages.view_hash(view)
        attestation = messages.sign(setup.key, messages.Attestation(setup.session, setup.key.identity, hashed))
        # Own masks are of no further use: what this client still has to say is about the others' shares.
        state.mask_secret.erase()
        state.seed.erase()
        witness = None
        if params.name == CENSUS:
            seed_hashes = {dealer: message.seed_hash for dealer, message in state.dealt.items()}
            witness = Witness(params, room.roster, room.hash, seed_hashes, view)
        signed = ParentView(setup.session, hashed, survivors, witness, census)
        return Attested(phase, setup, room, state.sharers, state.held, signed), encode(attestation)


def reveal(state: Attested, request_bytes: bytes) -> tuple[Revealed, bytes]:
    """Release one kind of share for each sharer, once a quorum stands behind the view that this client signed.

    Returns the final state, whose secrets are erased, and a Reveal. Raises ServerFault.
    """
    with _step(state, "reveal") as phase:
        setup = state.setup
        request = decode(messages.RevealRequest, request_bytes, ServerFault)
        view, survivors = state.view.view, state.view.survivors
        dropped = tuple(sorted(set(state.sharers) - set(survivors)))
        checks.request_is_for_own_view(request, setup.session, view)
        checks.attestations_are_of_distinct_members(request, state.room.identities)
        checks.attestations_are_signed(request, setup.session, view)
        checks.quorum_is_reached(request, len(state.room.identities), setup.params.corrupt)
        checks.lists_are_the_views(request, survivors, dropped)

        def shares(dealers: Sequence[bytes], kind: bytes) -> Iterator[bytes]:
            for dealer in dealers:
                if dealer in state.held:
                    held = state.held[dealer]
                    share = None if held is None else held.seed_share if kind == SEED_SHARE else held.key_share
                    yield b"" if share is None else share.expose()

        answer = messages.Reveal(
            setup.session,
            setup.key.identity,
            view,
            tuple(shares(request.survivors, SEED_SHARE)),
            tuple(shares(request.dropped, KEY_SHARE)),
        )
        sent = encode(messages.sign(setup.key, answer))
        abandon(state)
        return Revealed(phase, setup, state.view), sent
