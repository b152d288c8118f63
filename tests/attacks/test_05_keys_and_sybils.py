"""A roster that the server made up: its own keys in other people's names, invented people, one person many times.

Whoever fills all places but one in a roster holds the shares of the one that is left, and takes its masks off. The
policy says who may be there, and signatures that each one's keys are its own. Where two checks stop the same attack,
`test_two_defences` shows that either of them is enough and that nothing else is in the way. With a certificate
authority it is the authority that keeps invented people out; the last test says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedopal_secure.core import client, domains, masks, messages
from fedopal_secure.core.codec import encode
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Advert, Relay, Relayed, Roster, ShareMessage, Sharer
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.ring import U64, Ring, from_wire, reduce_to_width
from fedopal_secure.core.shamir import SHARE_BYTES
from tests.attacks.catalogue import Attack, Outcome, always, nothing, suite
from tests.attacks.cheating import KEY, SEED, CheatingServer, prepared
from tests.core.harness import Federation, Member, forge, make, seed

N, C = 6, 1  # t = 4, and a quorum is 4
VECTOR = "the victim's vector"


# Invented people.


class Certified(Member):
    """A client that shows a certificate."""

    authority: SigningKey

    def advertise(self, proposal: bytes) -> bytes:
        certificate = self.authority.certify(self.identity)
        self.state, sent = client.advertise(proposal, self.federation.policy, self.key, certificate, self.entropy)
        return sent


def certified_by(authority: SigningKey, base: type[Member] = Certified) -> type[Member]:
    return type("Certified", (base,), {"authority": authority})


class Sybil(Certified):
    """An invented person: the library's client, with a policy that knows everyone who was invented."""

    def __init__(self, federation: Federation, *rest: Any) -> None:
        everyone = Membership(frozenset(federation.ids))
        super().__init__(replace(federation, policy=replace(federation.policy, members=everyone)), *rest)


REAL, FALSE = SigningKey(seed("the authority")), SigningKey(seed("another authority"))


def invented_people(members: Membership | None = None, authority: SigningKey = FALSE) -> Outcome:
    """One real client, whose policy has these `members` (None: the real ones by name), among N - 1 invented ones."""
    real, invented = make(N, C), make(N, C, start="invented")
    victim = real.keys[0]
    keys = tuple(sorted((victim, *invented.keys[1:]), key=lambda key: key.identity))
    policy = real.policy if members is None else replace(real.policy, members=members)
    sybils = {key.identity: certified_by(authority, Sybil) for key in keys if key is not victim}
    server = prepared(
        replace(real, keys=keys, policy=policy),
        corrupt=sybils.keys(),
        kinds={victim.identity: certified_by(REAL), **sybils},
    )
    return server.outcome(victim.identity)


# The server's keys.


class ReadingServer(CheatingServer):
    """A server that knows secrets which belong to sealing keys in the roster; `seals` has them by position."""

    seals: Mapping[int, Callable[[bytes], bytes]]

    def known_shares(self, dealer: bytes, kind: str) -> dict[int, bytes]:
        """Whatever was sealed to a key of ours."""
        room = next(state.room for state in self.members[dealer].states if hasattr(state, "room"))
        # What the dealer itself advertised, whatever the roster shows in its place.
        own, bound, found = self.adverts[dealer].seal_key, self.session + room.hash, {}
        for position, agree in self.seals.items():
            reader = room.roster.adverts[position]
            key = masks.seal_key(agree(own), dealer, reader.sender, (own, reader.seal_key), bound)
            shares = masks.unseal(key, self.shares[dealer].ciphertexts[position], bound)
            if shares is not None:
                found[position + 1] = shares[:SHARE_BYTES] if kind == KEY else shares[SHARE_BYTES:]
        return found

    def fill(self, places: Mapping[int, Advert], signers: Mapping[bytes, SigningKey]) -> Roster:
        """Put keys of ours into these places of the roster, signed by those whose signing keys we have."""
        adverts, seals = dict(enumerate(self.roster().adverts)), {}
        for position, advert in places.items():
            secret = seed("sealing key", position)
            keys = {
                "mask_key": masks.public_key(seed("masking key", position)),
                "seal_key": masks.public_key(secret),
            }
            signer = signers.get(advert.sender)
            adverts[position] = (
                msgspec.structs.replace(advert, **keys) if signer is None else forge(signer, advert, **keys)
            )
            private = masks.load(secret)
            seals[position] = lambda public, private=private, owner=advert.sender: masks.agree(private, public, owner)
        self.seals = seals
        return Roster(self.session, tuple(adverts[position] for position in sorted(adverts)))

    def dealt_by(self, sender: bytes, roster: Roster, signers: Mapping[bytes, SigningKey]) -> Relayed:
        """A share message that fits this roster and says nothing; the reader will find that it opens to nothing."""
        count = len(roster.adverts)
        blank = (bytes(32),) * count
        hashes = (messages.ciphertext_hash(b""),) * count
        hashed = messages.roster_hash(roster)
        message = ShareMessage(self.session, sender, hashed, bytes(32), tuple(range(count)), blank, blank, hashes)
        return Relayed(messages.sign(signers[sender], message) if sender in signers else message, b"")


def surrounded(server: ReadingServer, roster: Roster, victim: bytes, signers: Mapping[bytes, SigningKey]) -> Outcome:
    """The victim alone gets this roster, and is told that everyone in it shared."""
    server.share([victim], roster)
    if victim in server.shares:
        own = server.shares[victim].message
        others = sorted({advert.sender for advert in roster.adverts} - {victim})
        dealers = [server.dealt_by(sender, roster, signers) for sender in others]
        dealers = sorted((*dealers, Relayed(own, b"")), key=lambda dealt: dealt.message.sender)
        sharers = [Sharer(dealt.message.sender, messages.share_message_hash(dealt.message)) for dealt in dealers]
        server.ask(victim, "hold", encode(Relay(server.session, tuple(sharers), tuple(dealers))))
        server.upload([victim])
    return server.outcome(victim)


def the_servers_keys() -> Outcome:
    """All entries but the victim's keep their names and get the server's keys."""
    server = ReadingServer(make(N, C))
    server.advertise()
    victim = server.ids[0]
    roster = server.fill(dict(enumerate(server.roster().adverts[1:], 1)), {})
    return surrounded(server, roster, victim, {})


def one_identity_many_times() -> Outcome:
    """One corrupt client of the policy takes all places but the victim's, with other keys in each."""
    federation = make(N, C)
    server = ReadingServer(federation, corrupt=federation.ids[-1:])
    server.advertise()
    victim, corrupt = server.ids[0], server.ids[-1]
    signers = {corrupt: federation.keys[-1]}
    roster = server.fill(dict.fromkeys(range(1, N), server.adverts[corrupt]), signers)
    return surrounded(server, roster, victim, signers)


def everyones_own_entry() -> Outcome:
    """One roster for all, in which every key, the reader's own too, is the server's."""
    server = ReadingServer(make(N, C))
    server.advertise()
    server.share(roster=server.fill(dict(enumerate(server.roster().adverts)), {}))
    server.hold()
    server.upload()
    return server.outcome(server.ids[0])


# Keys that are somebody else's, or nobody's.


def with_keys(server: CheatingServer, clients: Mapping[bytes, Mapping[str, bytes]]) -> None:
    """Let these clients advertise other public keys than they have, under their own signature."""
    signers = {key.identity: key for key in server.federation.keys}
    for identity, keys in clients.items():
        advert = forge(signers[identity], server.adverts[identity], **keys)
        server.adverts[identity] = server.members[identity].state.advert = advert


def take_off(server: CheatingServer, victim: bytes, secret: bytes, shared: Mapping[bytes, bytes]) -> U64:
    """The victim's upload without its self-mask, and without its masks with those whose shared secret is known."""
    state = next(state for state in reversed(server.members[victim].states) if hasattr(state, "room"))
    upload, params = server.uploads[victim], server.federation.params
    ring, vector, header = Ring(params.modulus), from_wire(upload.payload, params.segments), upload.header
    binding = masks.Binding(header.session, header.roster, header.context)
    masks.apply_stream(ring, vector, masks.self_key(secret, victim, binding), masks.SUBTRACT)
    keys = {advert.sender: advert.mask_key for advert in state.room.roster.adverts}
    for peer, agreed in shared.items():
        stream = masks.pair_key(agreed, (victim, keys[victim]), (peer, keys[peer]), binding)
        masks.apply_stream(ring, vector, stream, -masks.pair_sign(victim, peer))
    return reduce_to_width(vector, params.segments)


def after_an_honest_end(server: CheatingServer, victim: bytes, shared: Mapping[bytes, bytes]) -> Outcome:
    """Go on honestly, so that the victim's self-mask may be removed, and see what that leaves of its upload."""
    for step in ("share", "hold", "upload", "attest", "reveal"):
        if len(server.refused) < len(server.ids):
            getattr(server, step)()
    secret = server.rebuild(victim, SEED) if server.reveals else None
    if secret is None:
        return server.refusal(victim)
    plain = reduce_to_width(server.members[victim].vector, server.federation.params.segments)
    if np.array_equal(take_off(server, victim, secret, shared), plain):
        return Outcome(True, "the victim's vector, every entry")
    return server.refusal(victim)


FIELD = 2**255 - 19
SMALL_ORDER = [point.to_bytes(32, "little") for point in (0, 1, FIELD - 1)]


def agree_on_anything(private: X25519PrivateKey, public: bytes, owner: bytes) -> bytes:
    """`masks.agree` without its checks."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return bytes(32)


def masking_keys_of_small_order() -> Outcome:
    """Everyone else's device makes masking keys that agree on zero with whatever key; nobody is corrupt."""
    server = prepared(make(4), "advertise")
    victim, *others = server.ids
    with_keys(server, {peer: {"mask_key": point} for peer, point in zip(others, SMALL_ORDER, strict=True)})
    return after_an_honest_end(server, victim, dict.fromkeys(others, bytes(32)))


def sealing_keys_of_small_order() -> Outcome:
    """The same for sealing keys: whoever sees the ciphertexts reads the victim's shares."""
    server = ReadingServer(make(4))
    server.advertise()
    victim, *others = server.ids
    with_keys(server, {peer: {"seal_key": point} for peer, point in zip(others, SMALL_ORDER, strict=True)})
    server.seals = dict.fromkeys(range(1, 4), always(bytes(32)))
    server.share()
    if victim in server.shares:
        server.hold()
        server.upload()
    return server.outcome(victim)


def copied(alias: bool) -> Callable[[], Outcome]:
    """A corrupt client advertises its neighbour's masking key, and stands on the victim's other side.

    Were a stream to depend on the shared secret alone, the victim would add it for one and subtract it for the other.
    An alias is the same key with the top bit set, which X25519 ignores.
    """

    def play() -> Outcome:
        server = prepared(make(3, 1), "advertise", corrupt=make(3, 1).ids[2:])
        below, victim, above = server.ids
        key = server.adverts[below].mask_key
        with_keys(server, {above: {"mask_key": key[:31] + bytes([key[31] | 0x80]) if alias else key}})
        return after_an_honest_end(server, victim, {})

    return play


def pair_key_of_the_secret_alone(
    shared: bytes, one: tuple[bytes, bytes], other: tuple[bytes, bytes], binding: masks.Binding
) -> bytes:
    """`masks.pair_key` that leaves out who the two are."""
    return masks._expand(shared, domains.KEY_PAIR + binding.session + binding.roster + binding.context)


# Somebody else's name on the proposal.


def impostor() -> Outcome:
    """A stranger proposes in the name of the server that the policies know, and runs an honest session."""
    federation = replace(make(N, C), host=SigningKey(seed("impostor")))
    server = CheatingServer(federation)
    for step in ("advertise", "share", "hold", "upload", "attest", "reveal"):
        if len(server.refused) < N:
            getattr(server, step)()
    if not server.reveals:
        return server.refusal(server.ids[0])
    segments, total = federation.params.segments, np.zeros(federation.params.length, dtype=np.uint64)
    for survivor in server.ids:
        # Masks of pairs cancel in the sum, so it does not matter that they stay on here.
        total += take_off(server, survivor, server.rebuild(survivor, SEED) or b"", {})
    plain = np.stack([member.vector for member in server.members.values()]).sum(axis=0)
    exact = np.array_equal(reduce_to_width(total, segments), reduce_to_width(plain, segments))
    return Outcome(exact, f"the sum over {N} clients, for a stranger")


test_defended, test_control = suite(
    Attack(
        5,
        "invented people in every other place",
        VECTOR,
        invented_people,
        "core.checks.roster_admits_only_members",
        "in the roster and unknown to the policy",
    ),
    Attack(
        5,
        "invented people with certificates of another authority",
        VECTOR,
        lambda: invented_people(Membership(authority=REAL.identity)),
        "core.policy.verify_certificate",
        "in the roster and unknown to the policy",
        always(True),
    ),
    Attack(
        5,
        "the server's keys in everyone else's name",
        VECTOR,
        the_servers_keys,
        "core.messages.is_signed",
        "is not signed for this session",
        always(True),
    ),
    Attack(
        5,
        "masking keys of small order, made by broken devices",
        VECTOR,
        masking_keys_of_small_order,
        "core.masks.agree",
        "advertised a key of small order",
        agree_on_anything,
    ),
    Attack(
        5,
        "sealing keys of small order, made by broken devices",
        VECTOR,
        sealing_keys_of_small_order,
        "core.masks.agree",
        "advertised a key of small order",
        agree_on_anything,
    ),
    Attack(
        5,
        "a proposal in another server's name",
        "the sum, for a stranger",
        impostor,
        "core.checks.proposal_is_signed",
        "the proposal is not signed by the server that it names",
    ),
)


SIGNED = ("core.checks.adverts_are_signed", nothing)
PAIR_KEY = ("core.masks.pair_key", pair_key_of_the_secret_alone)


@pytest.mark.parametrize(
    ("play", "defences"),
    [
        pytest.param(
            the_servers_keys,
            # Peers would have to sign their share messages for a roster in which their own keys are wrong.
            [SIGNED, ("core.checks.relayed_messages_are_signed", nothing)],
            id="the server's keys in everyone else's name",
        ),
        pytest.param(
            everyones_own_entry,
            # A client looks for its own advert, and checks its signature like that of any other holder.
            [SIGNED, ("core.checks.roster_shows_own_advert", nothing)],
            id="the server's keys in every entry, the reader's too",
        ),
        pytest.param(
            one_identity_many_times,
            # Whoever takes so many places leaves too few others to reach the threshold.
            [("core.checks.roster_is_ordered", nothing), ("core.checks.enough_shared", nothing)],
            id="one identity in every other place",
        ),
        pytest.param(
            copied(alias=False),
            [("core.checks.roster_repeats_no_key", nothing), PAIR_KEY],
            id="a copied masking key",
        ),
        pytest.param(
            copied(alias=True),
            [("core.masks.agree", agree_on_anything), PAIR_KEY],
            id="a copied masking key in another form",
        ),
    ],
)
def test_two_defences(play: Callable[[], Outcome], defences: list[tuple[str, Callable[..., Any]]]) -> None:
    """Only without both of them the victim's vector comes out."""
    for removed in itertools.chain.from_iterable(itertools.combinations(defences, count) for count in range(3)):
        with ExitStack() as stack:
            for defence, instead in removed:
                attack = Attack(5, "", VECTOR, play, defence, "", instead)
                stack.enter_context(attack.without_defence())
            outcome = play()
        assert outcome.won == (len(removed) == 2), (removed, outcome)


def test_an_authority_that_certifies_invented_people_is_believed() -> None:
    """The assumption that comes with an authority: nothing of ours keeps out whom it admits."""
    assert invented_people(Membership(authority=REAL.identity), authority=REAL).won
