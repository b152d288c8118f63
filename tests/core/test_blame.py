"""Cheating dealers and holders: the right party is named, and the round goes on where it can.

Each cheat is a client that really does it over the bytes; the rest of the session is honest.
"""

from __future__ import annotations

from unittest import mock

import msgspec
import numpy as np
import pytest

from fedopal_secure.core import client, masks, messages, recovery, shamir
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import Blame, ClientFault, ServerFault, SessionAborted
from tests.core.harness import Letter, Member, Run, forge, make, read, run, seed

N, C = 6, 1  # t = 4
FIELD = 2**255 - 19


def cheat() -> bytes:
    """The one who cheats: neither the first nor the last of the roster."""
    return make(N, C).ids[2]


def session(kind: type[Member], **options: object) -> Run:
    return run(make(N, C), kinds={cheat(): kind}, **options)


def assert_sum(result: Run, survivors: tuple[bytes, ...], blame: set[Blame] = frozenset()) -> None:
    assert result.error is None
    assert result.sum.survivors == survivors
    np.testing.assert_array_equal(result.sum.total, result.plain_sum(survivors))
    assert {(b.client, b.holder) for b in result.sum.blame} == {(b.client, b.holder) for b in blame}


def assert_fault(result: Run, culprit: bytes, words: str) -> None:
    """The session ended, naming this client."""
    assert isinstance(result.error, ClientFault), result.error
    assert result.error.client == culprit
    assert words in str(result.error)
    assert result.sum is None


# Dealers. `split` is called for the masking key first and for the seed second.


class Dealer(Member):
    """Deals wrongly: `deal` is in place of `shamir.split`."""

    def share(self, roster: bytes) -> bytes:
        calls = iter(("key", "seed"))
        with mock.patch.object(client, "split", lambda *args: self.deal(next(calls), *args)):
            return super().share(roster)

    def deal(self, what, secret, threshold, indices, entropy):
        raise NotImplementedError


class WrongKey(Dealer):
    def deal(self, what, secret, threshold, indices, entropy):
        return shamir.split(seed("other") if what == "key" else secret, threshold, indices, entropy)


class WrongSeed(Dealer):
    def deal(self, what, secret, threshold, indices, entropy):
        return shamir.split(seed("other") if what == "seed" else secret, threshold, indices, entropy)


class OffPolynomial(Dealer):
    """The last holder's shares lie elsewhere; its commitments match them."""

    def deal(self, what, secret, threshold, indices, entropy):
        shares = shamir.split(secret, threshold, indices, entropy)
        return [*shares[:-1], bytes(33)]


class TooLarge(Dealer):
    """A seed of 2**256 is no 32-byte string."""

    def deal(self, what, secret, threshold, indices, entropy):
        shares = shamir.split(bytes(32) if what == "seed" else secret, threshold, indices, entropy)
        if what == "seed":
            return [((int.from_bytes(s, "big") + 2**256) % shamir.PRIME).to_bytes(33, "big") for s in shares]
        return shares


class OtherForm(Dealer):
    """The first holder's shares are p too large: the same element, with other bytes."""

    def deal(self, what, secret, threshold, indices, entropy):
        first, *rest = shamir.split(secret, threshold, indices, entropy)
        return [(int.from_bytes(first, "big") + shamir.PRIME).to_bytes(33, "big"), *rest]


@pytest.mark.parametrize("kind", [WrongSeed, TooLarge, OffPolynomial, OtherForm])
def test_a_surviving_dealer_of_bad_seed_shares_is_named(kind):
    assert_fault(session(kind), cheat(), "do not rebuild the self-mask seed it committed to")


@pytest.mark.parametrize("kind", [WrongKey, OffPolynomial, OtherForm])
def test_a_dropped_dealer_of_bad_key_shares_is_named(kind):
    result = session(kind, drops={"upload": [cheat()]})
    assert_fault(result, cheat(), "do not rebuild the masking key it advertised")


def test_bad_shares_that_nobody_needs_do_no_harm():
    ids = make(N, C).ids
    assert_sum(session(WrongKey), ids)
    others = tuple(i for i in ids if i != cheat())
    assert_sum(session(WrongSeed, drops={"upload": [cheat()]}), others)
    # The one bad share is at a holder that leaves.
    assert_sum(session(OffPolynomial, drops={"reveal": ids[-1:]}), ids)


def test_a_share_off_the_polynomial_is_found_whoever_reveals():
    """With exactly t shares there is no extra one to check; the rebuilt seed is then not the one committed to."""
    ids = make(N, C).ids
    for gone in (ids[:2], ids[3:5], (ids[0], ids[4])):
        result = session(OffPolynomial, drops={"reveal": gone})
        assert len(result.sent("reveal")) == result.state.records.graph.threshold
        assert_fault(result, cheat(), "seed")


def test_without_the_check_of_extra_shares_a_dealer_decides_whose_shares_count(monkeypatch):
    """The control: shares beyond the threshold ignored, the same cheat passes or not as the server pleases."""

    class Hasty(shamir.Recovery):
        """Uses the shares of the first holders of the roster, whoever else revealed."""

        def __init__(self, indices, threshold):
            self.first = sorted(range(len(indices)), key=indices.__getitem__)[:threshold]
            super().__init__([indices[place] for place in self.first], threshold)

        def combine(self, shares):
            return super().combine([shares[place] for place in self.first])

    monkeypatch.setattr(recovery, "Recovery", Hasty)
    assert session(OffPolynomial).sum is not None
    assert_fault(session(OffPolynomial, drops={"reveal": make(N, C).ids[:2]}), cheat(), "seed")


class Garbage(Member):
    """Signs a ciphertext for the first holder that does not open."""

    victims = 1

    def change(self, place: int, ciphertext: bytes) -> bytes:
        return bytes(len(ciphertext))

    def share(self, roster: bytes) -> bytes:
        shares = read(messages.Shares, super().share(roster))
        ciphertexts = tuple(
            self.change(place, text) if place < self.victims else text for place, text in enumerate(shares.ciphertexts)
        )
        hashes = tuple(messages.ciphertext_hash(text) for text in ciphertexts)
        message = forge(self.key, shares.message, ciphertext_hashes=hashes)
        self.state.own = message
        return encode(messages.Shares(message, ciphertexts))


class Empty(Garbage):
    def change(self, place, ciphertext):
        return b""


class MuchGarbage(Garbage):
    victims = 6


class Mismatch(Member):
    """The shares that the first holder opens are not those committed to."""

    def share(self, roster: bytes) -> bytes:
        seal = masks.seal
        calls = iter(range(N))

        def wrong(key, plaintext, bound):
            return seal(key, self.spoil(plaintext) if next(calls) == 0 else plaintext, bound)

        with mock.patch.object(masks, "seal", wrong):
            return super().share(roster)

    def spoil(self, plaintext: bytes) -> bytes:
        return bytes(33) + plaintext[33:]


class SeedMismatch(Mismatch):
    def spoil(self, plaintext):
        return plaintext[:33] + bytes(33)


class ShortShares(Mismatch):
    def spoil(self, plaintext):
        return plaintext[:-1]


@pytest.mark.parametrize("kind", [Garbage, Empty, Mismatch, SeedMismatch, ShortShares])
@pytest.mark.parametrize("survives", [True, False])
def test_a_dispute_is_reported_and_the_round_goes_on(kind, survives):
    ids = make(N, C).ids
    result = session(kind, drops={} if survives else {"upload": [cheat()]})
    holding = next(s for s in result.members[ids[0]].states if isinstance(s, client.Holding))
    assert holding.disputes == (cheat(),)
    survivors = ids if survives else tuple(i for i in ids if i != cheat())
    assert_sum(result, survivors, {Blame(cheat(), "", ids[0])})
    assert not result.refusals


def test_a_dealer_in_dispute_with_too_many_ends_the_round_and_is_named():
    result = session(MuchGarbage)
    assert isinstance(result.error, SessionAborted)
    assert result.error.rule == "threshold"
    assert cheat().hex()[:12] in str(result.error)


def test_a_ciphertext_that_is_too_long_is_refused_on_arrival():
    class Long(Garbage):
        def change(self, place, ciphertext):
            return bytes(83)

    result = session(Long)
    assert isinstance(result.faults[cheat()], ClientFault)
    assert_sum(result, tuple(i for i in make(N, C).ids if i != cheat()))


# Holders.


class WrongHolder(Member):
    """Reveals shares that its dealers did not commit to."""

    share_shown = bytes(33)

    def reveal(self, request: bytes) -> bytes:
        reveal = read(messages.Reveal, super().reveal(request))
        seeds, keys = ((self.share_shown,) * len(s) for s in (reveal.seed_shares, reveal.key_shares))
        return encode(forge(self.key, reveal, seed_shares=seeds, key_shares=keys))


class ShortHolder(WrongHolder):
    share_shown = b"\x01"


class SilentHolder(WrongHolder):
    share_shown = b""


@pytest.mark.parametrize("kind", [WrongHolder, ShortHolder])
def test_a_holder_of_wrong_shares_is_named_and_the_others_suffice(kind):
    ids = make(N, C).ids
    result = session(kind, drops={"upload": ids[:1]})
    assert_sum(result, ids[1:], {Blame(cheat(), "")})
    assert len(result.sum.blame) == N


def test_a_holder_that_claims_disputes_is_reported_with_every_dealer():
    ids = make(N, C).ids
    assert_sum(session(SilentHolder), ids, {Blame(i, "", cheat()) for i in ids})


def test_bad_holders_beyond_the_spare_ones_end_the_round():
    ids = make(N, C).ids
    result = run(make(N, C), kinds=dict.fromkeys(ids[:3], WrongHolder))
    assert isinstance(result.error, SessionAborted)
    assert result.error.rule == "threshold"
    assert {blame.client for blame in result.error.blame} == set(ids[:3])


def test_a_wrong_share_that_is_not_checked_makes_an_honest_dealer_look_guilty(monkeypatch):
    """The control: with commitments that say nothing, one bad holder ends the round and another is blamed."""
    monkeypatch.setattr(messages, "share_commitment", lambda *_: bytes(32))
    result = session(WrongHolder)
    assert isinstance(result.error, ClientFault)
    assert result.error.client != cheat()


# Keys.

SMALL_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    FIELD - 1,
    FIELD,
    FIELD + 1,
    # X25519 ignores the top bit.
    2**255,
    2**255 + 1,
    2**255 + FIELD - 1,
]


def advertising(**keys: bytes) -> type[Member]:
    """A member that advertises other keys than it has."""

    class Forger(Member):
        def advertise(self, proposal: bytes) -> bytes:
            advert = read(messages.Advert, super().advertise(proposal))
            forged = forge(self.key, advert, **keys)
            self.state.advert = forged
            return encode(forged)

    return Forger


def corrupt_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lets any key into the roster; clients check for themselves."""
    agree = masks.agree

    def lenient(private, public, owner):
        return bytes(32) if private.private_bytes_raw() == bytes(32) else agree(private, public, owner)

    monkeypatch.setattr(masks, "agree", lenient)


@pytest.mark.parametrize("point", SMALL_ORDER)
@pytest.mark.parametrize("which", ["mask_key", "seal_key"])
def test_keys_of_small_order_are_refused_by_the_server(point, which):
    forger = advertising(**{which: point.to_bytes(32, "little")})
    result = session(forger)
    assert result.faults[cheat()].client == cheat()
    assert_sum(result, tuple(i for i in make(N, C).ids if i != cheat()))


@pytest.mark.parametrize("point", SMALL_ORDER)
@pytest.mark.parametrize("which", ["mask_key", "seal_key"])
def test_keys_of_small_order_are_refused_by_every_client(point, which, monkeypatch):
    corrupt_server(monkeypatch)
    result = session(advertising(**{which: point.to_bytes(32, "little")}))
    assert not result.faults
    honest = [i for i in result.members if i != cheat()]
    assert all(isinstance(result.refusals[i], ClientFault) for i in honest)
    assert all(result.refusals[i].client == cheat() for i in honest)
    assert isinstance(result.error, SessionAborted)
    assert not result.sent("reveal")
    if which == "seal_key":
        assert not any(i in result.sent("share") for i in honest)


def keys_of(identity: bytes) -> messages.Advert:
    return read(messages.Advert, run(make(N, C)).sent("advertise")[identity])


@pytest.mark.parametrize("which", ["mask_key", "seal_key"])
def test_a_copied_key_is_refused_by_the_server(which):
    """Whoever comes second; the victim is served first here, as its keys are not known before."""
    victim = make(N, C).ids[0]
    copied = keys_of(victim).mask_key
    for order in range(20):
        result = session(advertising(**{which: copied}), order=order)
        [(named, fault)] = result.faults.items()
        assert isinstance(fault, ClientFault)
        assert "public key" in str(fault)
        if named == cheat():
            break
    assert named == cheat()
    assert_sum(result, tuple(i for i in make(N, C).ids if i != cheat()))


def test_one_key_in_both_roles_is_refused():
    mask_key = keys_of(cheat()).mask_key
    assert cheat() in session(advertising(seal_key=mask_key)).faults


@pytest.mark.parametrize("which", ["mask_key", "seal_key"])
def test_a_copied_key_in_the_roster_is_refused_by_clients(which):
    result = with_roster_forged(**{which: keys_of(make(N, C).ids[0]).mask_key})
    assert set(result.refusals) == set(result.members)
    assert all(isinstance(error, ServerFault) for error in result.refusals.values())
    assert not any(i in result.sent("share") for i in result.members)


def test_without_that_check_a_copied_key_goes_into_the_roster(monkeypatch):
    """The control. What then keeps the streams apart is the identities in their keys (tests/core/test_masks.py)."""
    monkeypatch.setattr("fedopal_secure.core.checks.roster_repeats_no_key", lambda roster: None)
    result = with_roster_forged(mask_key=keys_of(make(N, C).ids[0]).mask_key)
    assert set(result.refusals) == {cheat()}  # which finds that this is not the advert that it sent


def test_a_copied_key_in_another_form_is_refused(monkeypatch):
    """X25519 ignores the top bit, so the same masking key has a second form, which no comparison of bytes finds."""
    victim = keys_of(make(N, C).ids[0]).mask_key
    alias = advertising(mask_key=victim[:31] + bytes([victim[31] | 0x80]))
    assert "canonical" in str(session(alias).faults[cheat()])
    corrupt_server(monkeypatch)
    result = session(alias)
    honest = [i for i in result.members if i != cheat()]
    assert all(result.refusals[i].client == cheat() for i in honest)
    assert not any(i in result.sent("upload") for i in honest)


def with_roster_forged(**keys: bytes) -> Run:
    """Cheat and server collude: its advert in everybody's roster has other keys, signed by it."""
    federation = make(N, C)
    key = next(k for k in federation.keys if k.identity == cheat())

    def tamper(letter: Letter) -> bytes:
        if letter.step == "share" and not letter.up:
            roster = read(messages.Roster, letter.data)
            adverts = tuple(forge(key, a, **keys) if a.sender == cheat() else a for a in roster.adverts)
            return encode(msgspec.structs.replace(roster, adverts=adverts))
        return letter.data

    return run(federation, tamper=tamper)


def test_an_identity_twice_is_refused_by_the_server():
    federation = make(N, C)

    def tamper(letter: Letter) -> bytes:
        if letter.step == "advertise" and letter.up and letter.client == federation.ids[1]:
            return first
        return letter.data

    first = run(federation).sent("advertise")[federation.ids[0]]
    result = run(federation, tamper=tamper)
    assert "another identity's advert" in str(result.faults[federation.ids[1]])
    assert_sum(result, (federation.ids[0], *federation.ids[2:]))
