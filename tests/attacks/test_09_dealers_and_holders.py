"""Dealers who deal wrongly and holders who show something else: a wrong sum, or blame on somebody honest.

Shares are checked when they are dealt (do they open to what the dealer committed to), when they are shown (is this what
the dealer committed to) and when they are put together (is this the secret that the dealer committed to). So whoever
cheats is named, and where other shares suffice the round goes on. The server is honest here. A survivor can spoil the
sum by its own vector in any case; that a dealer who dropped out cannot is what these checks are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedopal_secure.core import client, masks, messages, shamir
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import Blame, ClientFault, ServerFault
from fedopal_secure.core.messages import KEY_SHARE, Advert, Relayed, ShareMessage
from fedopal_secure.core.recovery import Rebuilder, Shown
from fedopal_secure.core.secret import Secret
from fedopal_secure.core.shamir import SHARE_BYTES, Entropy
from fedopal_secure.core.states import Held, Shared
from tests.attacks.catalogue import Attack, Outcome, always, suite, unless, words
from tests.core.harness import Member, Run, forge, make, read, run, seed

N, C = 6, 1  # t = 4
IDS = make(N, C).ids
CHEAT, VICTIM = IDS[2], IDS[4]
ORDER = 5  # in this order the server hears the victim's advert before the cheat's


# Who cheats.


class Dealer(Member):
    """Deals wrongly: `deal` is in place of `shamir.split`, for the masking key first and for the seed second."""

    def share(self, roster: bytes) -> bytes:
        kinds = iter(("key", "seed"))
        with mock.patch.object(client, "split", lambda *rest: self.deal(next(kinds), *rest)):
            return super().share(roster)

    def deal(self, kind: str, secret: bytes, threshold: int, indices: Sequence[int], entropy: Entropy) -> list[bytes]:
        """Other secrets than its own, of both kinds."""
        return shamir.split(seed("another secret", kind), threshold, indices, entropy)


class OffPolynomial(Dealer):
    """The last holder's shares lie elsewhere; its commitments match them."""

    def deal(self, kind: str, secret: bytes, threshold: int, indices: Sequence[int], entropy: Entropy) -> list[bytes]:
        return [*shamir.split(secret, threshold, indices, entropy)[:-1], bytes(SHARE_BYTES)]


class FramingDealer(Member):
    """Seals other shares for the victim than it commits to."""

    def share(self, roster: bytes) -> bytes:
        seal, places = masks.seal, iter([identity for identity in IDS if identity != self.identity])

        def sealed(key: bytes, plaintext: bytes, bound: bytes) -> bytes:
            return seal(key, bytes(len(plaintext)) if next(places) == VICTIM else plaintext, bound)

        with mock.patch.object(masks, "seal", sealed):
            return super().share(roster)


class OtherHashes(Member):
    """Signs another hash of the victim's ciphertext than it has."""

    def share(self, roster: bytes) -> bytes:
        shares = read(messages.Shares, super().share(roster))
        hashes = list(shares.message.ciphertext_hashes)
        hashes[IDS.index(VICTIM)] = bytes(32)
        self.state.own = forge(self.key, shares.message, ciphertext_hashes=tuple(hashes))
        return encode(messages.Shares(self.state.own, shares.ciphertexts))


class CopiedKey(Member):
    """Advertises the victim's sealing key as its own; its message comes last, and the victim's key is known."""

    def advertise(self, proposal: bytes) -> bytes:
        advert = read(Advert, super().advertise(proposal))
        victim = next(key for key in self.federation.keys if key.identity == VICTIM)
        known = read(Advert, Member(self.federation, victim, self.vector).advertise(proposal))
        self.state.advert = forge(self.key, advert, seal_key=known.seal_key)
        return encode(self.state.advert)


class FramingHolder(Member):
    """Shows another share of the victim's seed than it was dealt, and everyone else's as they are."""

    def reveal(self, request: bytes) -> bytes:
        reveal = read(messages.Reveal, super().reveal(request))
        shares = list(reveal.seed_shares)
        shares[IDS.index(VICTIM)] = bytes(SHARE_BYTES)
        return encode(forge(self.key, reveal, seed_shares=tuple(shares)))


# What comes of it.


def ended(result: Run) -> str:
    """How a round ended, in words."""
    if result.error is not None:
        named = isinstance(result.error, ClientFault) and result.error.client == CHEAT
        return f"the round ends{' and names the one who cheated' if named else ''}: {words(result.error)}"
    blame = result.sum.blame if result.sum is not None else ()
    if not blame:
        return "the sum is right, and nobody is named"
    whom = "an honest client is named"
    if all(item.client == CHEAT for item in blame):
        disputed = any(item.holder for item in blame)
        whom = "a dispute names the dealer and the holder" if disputed else "the one who cheated is named"
    return f"the sum is right, and {whom}: {blame[0].reason}"


def wrong_sum(kind: type[Member], *gone: bytes) -> Callable[[], Outcome]:
    """The server takes for the sum what is not the sum over its survivors; `gone` are lost before their upload."""

    def play() -> Outcome:
        result = run(make(N, C), kinds={CHEAT: kind}, drops={"upload": gone})
        if result.sum is not None and not np.array_equal(result.sum.total, result.plain_sum(result.sum.survivors)):
            return Outcome(True, "a wrong sum, and nobody is named")
        return Outcome(False, told_without_names(ended(result)))

    return play


def blamed(kind: type[Member]) -> Callable[[], Outcome]:
    """Somebody honest is named as the one who cheated; in a dispute either of two may be."""

    def play() -> Outcome:
        result = run(make(N, C), kinds={CHEAT: kind})
        blame = [*(result.sum.blame if result.sum is not None else result.error.blame if result.error else ())]
        if isinstance(result.error, ClientFault):
            blame.append(Blame(result.error.client, result.error.reason))
        for item in blame:
            if CHEAT not in (item.client, item.holder):
                return Outcome(True, told_without_names(f"an honest client is named: it {item.reason}"))
        return Outcome(False, told_without_names(ended(result)))

    return play


def server_blamed(kind: type[Member]) -> Callable[[], Outcome]:
    """Honest clients take for the server's fault what the cheat sent and the server passed on."""

    def play() -> Outcome:
        result = run(make(N, C), kinds={CHEAT: kind}, order=ORDER)
        blaming = [error for who, error in result.refusals.items() if who != CHEAT and isinstance(error, ServerFault)]
        if blaming:
            return Outcome(True, told_without_names(f"blame on the server: {words(blaming[0])}"))
        fault = result.faults.get(CHEAT)
        refused = "" if fault is None else f"; refused by the server: {words(fault)}"
        return Outcome(False, told_without_names(ended(result)) + refused)

    return play


def unnamed() -> Outcome:
    """Everyone's share is shown, one lies off the polynomial, and whether that counts depends on who is heard first."""
    results = [run(make(N, C), kinds={CHEAT: OffPolynomial}, order=order) for order in range(4)]
    if {result.error is None for result in results} == {True, False}:
        return Outcome(True, "the dealer is named or not, as the order of messages has it")
    return Outcome(False, told_without_names(ended(results[0])))


def told_without_names(told: str) -> str:
    """Identities are left out also where they stand in a reason."""
    return words(Exception(told)).removeprefix("Exception: ")


# The controls.


def any_mask_secret(self: Rebuilder, message: ShareMessage, shown: Any, mask_key: bytes) -> bytes:
    """`Rebuilder.mask_secret` that does not ask whether the secret belongs to the advertised key."""
    return self._combine(message, KEY_SHARE, message.key_commitments, shown) or bytes(32)


def open_anything(state: Shared, dealt: Relayed, dealer: Advert, private: X25519PrivateKey) -> Held | None:
    """`client._open` that does not compare the shares with their commitments."""
    room, message = state.room, dealt.message
    own, bound = room.roster.adverts[room.position], state.setup.session + room.hash
    keys = (dealer.seal_key, own.seal_key)
    shared = masks.agree(private, dealer.seal_key, dealer.sender)
    key = masks.seal_key(shared, message.sender, own.sender, keys, bound)
    plaintext = masks.unseal(key, dealt.ciphertext, bound) or b""
    return Held(Secret(plaintext[:SHARE_BYTES]), Secret(plaintext[SHARE_BYTES:]))


def only_as_many_as_it_takes(self: shamir.Recovery, indices: Sequence[int], threshold: int) -> None:
    """`Recovery` that leaves shares beyond the threshold alone."""
    _RECOVERY_INIT(self, indices[:threshold], threshold)


_RECOVERY_INIT = shamir.Recovery.__init__


WRONG, FRAMED, SERVER_FRAMED = "a wrong sum", "an honest client is blamed", "the honest server is blamed"
UNFIT, TAKEN = "sent shares that do not fit the roster or its own hashes", "a public key that is in the roster already"

test_defended, test_control = suite(
    Attack(
        9,
        "a survivor dealt shares of another seed",
        WRONG,
        wrong_sum(Dealer),
        "core.messages.seed_hash",
        "names the one who cheated: ClientFault: client …: dealt shares that do not rebuild the self-mask seed",
        always(bytes(32)),
    ),
    Attack(
        9,
        "a client that dropped out dealt shares of another masking key",
        WRONG,
        wrong_sum(Dealer, CHEAT),
        "core.recovery.Rebuilder.mask_secret",
        "names the one who cheated: ClientFault: client …: dealt shares that do not rebuild the masking key",
        any_mask_secret,
    ),
    Attack(
        9,
        "a holder shows another share than it was dealt",
        FRAMED,
        blamed(FramingHolder),
        "core.messages.share_commitment",
        "the sum is right, and the one who cheated is named: revealed a share that … did not commit to",
        always(bytes(32)),
    ),
    Attack(
        9,
        "a dealer seals another share than it commits to",
        FRAMED,
        blamed(FramingDealer),
        "core.client._open",
        "the sum is right, and a dispute names the dealer and the holder: the holder says that its share did not open",
        open_anything,
    ),
    Attack(
        9,
        "a dealer signs another hash than its ciphertext has",
        SERVER_FRAMED,
        server_blamed(OtherHashes),
        "core.server._require",
        f"the sum is right, and nobody is named; refused by the server: ClientFault: client …: {UNFIT}",
        unless(UNFIT),
    ),
    Attack(
        9,
        "a client advertises another's public key",
        SERVER_FRAMED,
        server_blamed(CopiedKey),
        "core.server._require",
        f"the sum is right, and nobody is named; refused by the server: ClientFault: client …: advertised {TAKEN}",
        unless(f"advertised {TAKEN}"),
    ),
    Attack(
        9,
        "a dealer's shares do not lie on one polynomial",
        "a bad dealer goes unnamed",
        unnamed,
        "core.shamir.Recovery.__init__",
        "names the one who cheated: ClientFault: client …: dealt shares that do not rebuild the self-mask seed",
        only_as_many_as_it_takes,
    ),
)


def test_a_survivor_can_spoil_the_sum_by_its_own_vector_in_any_case() -> None:
    """The stated limit: masks of a key that it did not advertise are as good as a vector of noise."""

    class Forger(Member):
        def advertise(self, proposal: bytes) -> bytes:
            advert = read(Advert, super().advertise(proposal))
            self.state.advert = forge(self.key, advert, mask_key=masks.public_key(seed("not its own")))
            return encode(self.state.advert)

    assert wrong_sum(Forger)().won
    # But a dealer who is not in the sum has no say in it.
    assert not wrong_sum(Forger, CHEAT)().won


def shown_by(result: Run, dealer: bytes) -> list[Shown]:
    shown: list[Shown] = result.state.records.shown[dealer]
    return shown


def test_the_framed_holder_did_show_what_it_was_dealt() -> None:
    """In the control of the framing dealer the victim is blamed for the very share that it opened."""
    attack = Attack(9, "", FRAMED, blamed(FramingDealer), "core.client._open", "", open_anything)
    with attack.without_defence():
        result = run(make(N, C), kinds={CHEAT: FramingDealer})
    assert [item.holder for item in shown_by(result, CHEAT) if item.share == bytes(SHARE_BYTES)] == [VICTIM]
    assert result.sum is not None
    assert [item.client for item in result.sum.blame] == [VICTIM]
