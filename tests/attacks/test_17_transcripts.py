"""17. A transcript that a stranger holds, and memory that leaks after the round is over.

The sealing keys of t holders come to light later. Whoever has sealed shares then opens them, and finds every vector.
They were sent to the server; what leaves it is the transcript, and the shares must not be in that.
"""

from __future__ import annotations

import numpy as np

from fedopal_secure.core import masks, messages
from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.graph import Graph
from fedopal_secure.core.params import PROTOCOL
from fedopal_secure.core.ring import Ring, from_wire, reduce_to_width
from fedopal_secure.core.shamir import Recovery
from fedopal_secure.encoding.layout import statistics_segments
from fedopal_secure.federation.config import HeadSettings
from fedopal_secure.federation.pairwise_sum import PairwiseClient
from fedopal_secure.federation.secure_sum import UPLOAD, Participant
from fedopal_secure.federation.server import Proposal, RoundServer
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript
from tests.attacks.catalogue import Attack, Outcome, suite
from tests.core.harness import TASK, make

CLIENTS, CORRUPT = 5, 1
Bodies = dict[tuple[str, str], bytes]  # by phase and sender


class Kept(Transcript):
    """A transcript, as its holder reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: Bodies = {}

    def record(self, session: bytes, phase: str, sender: str, body: bytes) -> None:
        super().record(session, phase, sender, body)
        self.bodies[phase, sender] = body


def play() -> Outcome:
    parts = statistics_segments(TASK.feature_dimension, len(TASK.classes), TASK.feature_bits, TASK.max_images)
    federation, kept = make(CLIENTS, corrupt=CORRUPT, parts=parts), Kept()
    host = RoundServer(
        federation.host,
        federation.members,
        federation.ids,
        Proposal(PROTOCOL, CLIENTS, CORRUPT, 0, 3, TASK),
        HeadSettings(),
        federation.entropy("server"),
        kept,
        Timings(),
    )
    clients = {
        key.identity: PairwiseClient(Participant(key, b"", federation.policy, federation.entropy(key.identity)))
        for key in federation.keys
    }
    params = host.records["statistics"].params
    vectors = {
        identity: np.random.default_rng(number).integers(0, 50, params.length, dtype=np.uint64)
        for number, identity in enumerate(federation.ids)
    }
    threshold = Graph(CLIENTS, 0, CORRUPT).threshold
    leaked: dict[bytes, bytes] = {}
    for phase in host.phases:
        for identity, request in host.request("statistics", phase).items():
            party = clients[identity]
            if phase == UPLOAD:
                party.begin_upload(request, None)
                answer = party.upload(vectors[identity])
            else:
                answer = party.answer(phase, request)
            if phase == "share" and identity in federation.ids[1 : 1 + threshold]:
                leaked[identity] = party._state.seal_secret.expose()  # type: ignore[union-attr]
            if answer:
                host.receive("statistics", phase, identity, answer)
    victim = federation.ids[0]
    read = read_vector(kept.bodies, victim, leaked, threshold)
    if read is None:
        return Outcome(False, "the transcript has the signed hashes of the victim's shares, and not the shares")
    won = bool(np.array_equal(read, vectors[victim]))
    return Outcome(
        won, f"the victim's vector, with the sealing keys of {threshold} holders" if won else "another vector"
    )


def read_vector(bodies: Bodies, victim: bytes, leaked: dict[bytes, bytes], threshold: int) -> np.ndarray | None:
    """A survivor's vector from a transcript and leaked sealing keys; None if there are no sealed shares in it."""
    try:
        dealt = decode(messages.Shares, bodies["share", victim.hex()], InputError)
    except InputError:
        return None
    roster = decode(messages.Roster, bodies["share", "server"], InputError)
    adverts = {advert.sender: advert for advert in roster.adverts}
    places = sorted(adverts)
    bound, own = roster.session + messages.roster_hash(roster), adverts[victim]
    indices, key_shares, seed_shares = [], [], []
    for holder, private in leaked.items():
        keys = (own.seal_key, adverts[holder].seal_key)
        shared = masks.agree(masks.load(private), own.seal_key, victim)
        sealing = masks.seal_key(shared, victim, holder, keys, bound)
        place = dealt.message.holders.index(places.index(holder))
        opened = masks.unseal(sealing, dealt.ciphertexts[place], bound)
        assert opened is not None
        indices.append(places.index(holder) + 1)
        key_shares.append(opened[: len(opened) // 2])
        seed_shares.append(opened[len(opened) // 2 :])
    recovery = Recovery(tuple(indices), threshold)
    mask_secret, seed = recovery.combine(key_shares), recovery.combine(seed_shares)
    assert mask_secret is not None
    assert seed is not None
    context = decode(messages.Context, bodies[UPLOAD, "server"], InputError)
    binding = masks.Binding(roster.session, messages.roster_hash(roster), messages.context_hash(context))
    params = decode(messages.Proposal, bodies["advertise", "server"], InputError).params
    vector = from_wire(decode(messages.Upload, bodies[UPLOAD, victim.hex()], InputError).payload, params.segments)
    ring, private_key = Ring(params.modulus), masks.load(mask_secret)
    masks.apply_stream(ring, vector, masks.self_key(seed, victim, binding), masks.SUBTRACT)
    for peer in places:
        if peer != victim:
            theirs = (peer, adverts[peer].mask_key)
            shared = masks.agree(private_key, theirs[1], peer)
            stream = masks.pair_key(shared, (victim, own.mask_key), theirs, binding)
            masks.apply_stream(ring, vector, stream, -masks.pair_sign(victim, peer))
    return reduce_to_width(vector, params.segments)


test_defended, test_control = suite(
    Attack(
        17,
        "sealing keys that leak after the round, and its transcript",
        "a survivor's vector",
        play,
        "federation.server.public_part",
        "and not the shares",
        instead=lambda protocol, phase, body: body,
    )
)
