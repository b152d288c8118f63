"""Masks and keys: streams that differ where they must and cancel where they must, and uploads alone.

Statistics use fixed entropy, so they pass or fail for good. With fresh entropy each would fail with the probability
stated beside it although all is well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import chi2

from fedopal_secure.core import domains, masks, messages
from fedopal_secure.core.masks import ADD, SUBTRACT, Binding
from fedopal_secure.core.ring import U64, Ring, from_wire
from tests.core.harness import PRIMES, fork, make, read, run, seed, segments

BINDING = Binding(seed("session"), seed("roster"), seed("context"))


def stream(key: bytes, length: int, modulus: int = 0, sign: int = ADD) -> U64:
    vector = np.zeros(length, dtype=np.uint64)
    masks.apply_stream(Ring(modulus), vector, key, sign)
    return vector


# Labels and words. Known answers of the primitives are in tests/vectors.


def test_labels_differ_and_none_begins_another():
    labels = [value for name, value in vars(domains).items() if name.isupper() and not name.startswith("_")]
    assert len(labels) == 20
    assert all(label.endswith(b"\0") and label.count(b"\0") == 1 for label in labels)
    assert len(set(labels)) == len(labels)
    assert domains.digest(domains.VIEW, b"x") != domains.digest(domains.SEED, b"x")
    assert domains.digest(domains.VIEW, b"x", b"y") == domains.digest(domains.VIEW, b"xy")


# Streams.


@pytest.mark.parametrize("modulus", [0, 3, 251, *PRIMES])
@pytest.mark.parametrize("length", [1, 2, 16_383, 16_384, 16_385, 50_001])
def test_a_stream_is_the_keystream_cut_into_words(modulus, length):
    """Against a slow reading of the definition, over the borders of the blocks in which it is made."""
    key = seed("key")
    octets = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 3 * length + 800))
    words = np.frombuffer(octets, dtype="<u8").tolist()
    if modulus:
        cut = (1 << modulus.bit_length()) - 1
        words = [word & cut for word in words if word & cut < modulus]
    assert stream(key, length, modulus).tolist() == words[:length]


@pytest.mark.parametrize("modulus", [0, 251, PRIMES[1]])
def test_subtracting_takes_off_what_adding_puts_on(modulus):
    federation = make(3, parts=segments((30_000, 8)), modulus=modulus)
    for vector in federation.vectors().values():
        masked = vector.copy()
        masks.apply_stream(Ring(modulus), masked, seed("key"), ADD)
        assert (masked != vector).mean() > 0.99
        masks.apply_stream(Ring(modulus), masked, seed("key"), SUBTRACT)
        np.testing.assert_array_equal(masked, vector)


def pair_of(one: int, other: int, binding: Binding = BINDING) -> bytes:
    """The key of a pair's stream as client `one` computes it."""
    secrets = [seed("mask", one), seed("mask", other)]
    publics = [masks.public_key(secret) for secret in secrets]
    shared = masks.agree(masks.load(secrets[0]), publics[1], b"")
    return masks.pair_key(shared, (seed("id", one), publics[0]), (seed("id", other), publics[1]), binding)


@pytest.mark.parametrize("modulus", [0, 251, PRIMES[0]])
def test_pair_streams_cancel(modulus):
    """Over all pairs of five clients."""
    total = np.zeros(1000, dtype=np.uint64)
    for one, other in itertools.permutations(range(5), 2):
        sign = masks.pair_sign(seed("id", one), seed("id", other))
        masks.apply_stream(Ring(modulus), total, pair_of(one, other), sign)
    assert not total.any()


def test_keys_differ_in_everything_that_they_are_bound_to():
    """The same secret under another session, roster, context, identity, key or label is another stream."""
    shared, one, other = seed("shared"), (seed("a"), seed("A")), (seed("b"), seed("B"))
    bindings = [BINDING, *(replace(BINDING, **{name: bytes(32)}) for name in ("session", "roster", "context"))]
    keys = [masks.pair_key(shared, one, other, binding) for binding in bindings]
    keys += [masks.self_key(shared, seed("a"), binding) for binding in bindings]
    keys += [
        masks.self_key(seed("other"), seed("a"), BINDING),
        masks.self_key(shared, seed("b"), BINDING),
        masks.pair_key(seed("other"), one, other, BINDING),
        masks.pair_key(shared, (seed("c"), seed("A")), other, BINDING),
        masks.pair_key(shared, (seed("a"), seed("C")), other, BINDING),
        masks.pair_key(shared, one, (seed("c"), seed("B")), BINDING),
        masks.pair_key(shared, one, (seed("b"), seed("C")), BINDING),
    ]
    ids, publics = (seed("a"), seed("b")), (seed("A"), seed("B"))
    keys += [
        masks.seal_key(shared, *ids, publics, b"bound"),
        masks.seal_key(shared, *ids[::-1], publics[::-1], b"bound"),  # the other direction
        masks.seal_key(shared, *ids[::-1], publics, b"bound"),
        masks.seal_key(shared, *ids, publics, b"other"),
        masks.seal_key(shared, *ids, (seed("A"), seed("C")), b"bound"),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)
    assert masks.pair_key(shared, one, other, BINDING) == masks.pair_key(shared, other, one, BINDING)


def test_a_copied_key_does_not_give_the_victims_streams():
    """A client that advertises the victim's own masking key would cancel its masks, were ids not in the info."""
    shared, victim_key, peer_key = seed("shared"), seed("V"), seed("P")
    peer = (seed("peer"), peer_key)
    assert masks.pair_key(shared, (seed("victim"), victim_key), peer, BINDING) != masks.pair_key(
        shared, (seed("thief"), victim_key), peer, BINDING
    )


@pytest.mark.parametrize("bit", [0, 1, 100, 254, 255])
def test_one_flipped_seed_bit_changes_half_of_the_stream(bit):
    """Of 640,000 bits half differ, within five standard deviations (false-alarm rate 6e-7 each)."""
    start = seed("self")
    flipped = (int.from_bytes(start, "big") ^ 1 << bit).to_bytes(32, "big")
    one, other = (stream(masks.self_key(s, seed("id"), BINDING), 10_000) for s in (start, flipped))
    differing = int(np.bitwise_count(one ^ other).sum())
    assert abs(differing - 320_000) < 5 * math.sqrt(640_000) / 2


def looks_uniform(counts: np.ndarray, false_alarm: float = 1e-6) -> bool:
    """Pearson's chi-square test against the uniform distribution."""
    expected = counts.sum() / len(counts)
    return bool(((counts - expected) ** 2 / expected).sum() < chi2.isf(false_alarm, len(counts) - 1))


@pytest.mark.parametrize("modulus", [3, 11, 251])
def test_masks_are_uniform_on_a_small_ring(modulus):
    """One chi-square for each ring, self and pair streams alike; false-alarm rate 1e-6 each."""
    for key in (masks.self_key(seed("self"), seed("id"), BINDING), pair_of(0, 1)):
        assert looks_uniform(np.bincount(stream(key, 200_000, modulus).astype(np.int64), minlength=modulus))


def test_reduced_words_would_not_be_uniform(monkeypatch):
    """The control: `Ring.accept` replaced by a reduction."""
    monkeypatch.setattr(Ring, "accept", lambda self, words: (words & np.uint64(255)) % np.uint64(self.modulus))
    counts = np.bincount(stream(seed("key"), 200_000, 251).astype(np.int64), minlength=251)
    assert not looks_uniform(counts)


def test_every_byte_of_a_mask_is_uniform():
    """Eight chi-squares over the bytes of 64-bit words; false-alarm rate 1e-6 each."""
    octets = stream(seed("key"), 100_000).view(np.uint8).reshape(-1, 8)
    for place in range(8):
        assert looks_uniform(np.bincount(octets[:, place], minlength=256))


# An upload alone.

PARTS = segments((4000, 1), (4000, 3), (4000, 5), (4000, 8))


def plain_vectors() -> dict[bytes, U64]:
    """Vectors as real ones are: small integers, which fill few of a segment's bytes."""
    federation = make(4, parts=PARTS)
    draws = np.random.default_rng(5)
    return {i: draws.integers(0, 100, federation.params.length).astype(np.uint64) for i in federation.ids}


def uploads() -> tuple[U64, U64, list[bytes]]:
    """(plaintext, payload as residues, keys of its masks in order: self, then each peer) of one client's upload."""
    federation = make(4, parts=PARTS)
    victim = federation.ids[1]
    vectors = plain_vectors()
    member = run(federation, vectors=vectors, stop="attest").members[victim]
    state = member.state
    result = run(federation, vectors=vectors)
    payload = read(messages.Upload, result.sent("upload")[victim]).payload
    room, mask_secret = state.room, masks.load(state.mask_secret.expose())
    binding = Binding(state.setup.session, room.hash, state.header.context)
    publics = {advert.sender: advert.mask_key for advert in room.roster.adverts}
    keys = [masks.self_key(state.seed.expose(), victim, binding)]
    for peer in federation.ids:
        if peer != victim:
            shared = masks.agree(mask_secret, publics[peer], peer)
            keys.append(masks.pair_key(shared, (victim, publics[victim]), (peer, publics[peer]), binding))
    return vectors[victim], from_wire(payload, PARTS), keys


def strip(masked: U64, keys: list[bytes], *, but: int) -> U64:
    """What a coalition sees that knows every mask of the victim but one."""
    federation = make(4, parts=PARTS)
    victim = federation.ids[1]
    signs = [ADD, *(masks.pair_sign(victim, peer) for peer in federation.ids if peer != victim)]
    seen = masked.copy()
    for place, (key, sign) in enumerate(zip(keys, signs, strict=True)):
        if place != but:
            masks.apply_stream(Ring(0), seen, key, -sign)
    return seen


def leaks(plain: U64, seen: U64) -> list[bool]:
    """Segment by segment, whether what is seen correlates with the plaintext or is not uniform in its top byte.

    Correlation beyond five standard deviations of independent data (false-alarm rate 6e-7), and a chi-square over the
    256 values of the most significant byte (1e-6).
    """
    found, start = [], 0
    for part in PARTS:
        rows = slice(start, start + part.length)
        start += part.length
        entries = seen[rows] & np.uint64(256**part.width - 1) if part.width < 8 else seen[rows]
        correlation = np.corrcoef(plain[rows].astype(float), entries.astype(float))[0, 1]
        top = (entries >> np.uint64(8 * part.width - 8)).astype(np.int64)
        found.append(
            abs(correlation) > 5 / math.sqrt(part.length) or not looks_uniform(np.bincount(top, minlength=256))
        )
    return found


def test_an_upload_alone_looks_uniform():
    plain, masked, _ = uploads()
    assert leaks(plain, masked) == [False] * 4


def test_an_upload_without_masks_does_not(monkeypatch):
    """The control: `apply_stream` does nothing, and every segment gives itself away."""
    monkeypatch.setattr(masks, "apply_stream", lambda *_: None)
    plain, masked, _ = uploads()
    assert leaks(plain, masked) == [True] * 4
    np.testing.assert_array_equal(masked, plain)


@pytest.mark.parametrize("unknown", range(4))
def test_one_unknown_mask_is_enough(unknown):
    """Who knows all masks but one, whichever, sees uniform words: the other clients, or the server after recovery."""
    plain, masked, keys = uploads()
    assert leaks(plain, strip(masked, keys, but=unknown)) == [False] * 4
    # And nothing else hides the vector: with the last one it is there.
    everything = strip(masked, keys, but=-1)
    wire = np.concatenate([np.full(part.length, 256**part.width - 1, dtype=np.uint64) for part in PARTS])
    np.testing.assert_array_equal(everything & wire, plain)


LEFT_OUT: list[tuple[int, str]] = [(0, "self_key"), (1, "pair_key"), (2, "pair_key"), (3, "pair_key")]


@pytest.mark.parametrize(("unknown", "function"), LEFT_OUT)
def test_a_mask_left_out_hands_the_vector_to_who_knows_the_others(unknown, function, monkeypatch):
    """The control, with one named function replaced: its masks have a key that everybody knows.

    Without self masks, the other clients together unmask the victim; without pair masks, the server does when it
    rebuilds the victim's seed. Here the attacker knows all masks but the one left out.
    """
    honest: Callable[..., bytes] = getattr(masks, function)
    monkeypatch.setattr(masks, function, lambda *args: bytes(32))
    plain, masked, keys = uploads()
    known = [bytes(32) if place == unknown else key for place, key in enumerate(keys)]
    seen = strip(masked, known, but=-1)
    assert leaks(plain, seen) == [True] * 4
    monkeypatch.setattr(masks, function, honest)
    plain, masked, keys = uploads()
    known = [bytes(32) if place == unknown else key for place, key in enumerate(keys)]
    assert leaks(plain, strip(masked, known, but=-1)) == [False] * 4


def test_two_uploads_of_one_vector_have_nothing_in_common():
    """The same people, the same data, another session: another stream for everyone."""
    federation = make(4, parts=PARTS)
    payloads = []
    for session in (federation, federation.child(b"")):
        result = run(session, vectors=plain_vectors())
        payloads.append(read(messages.Upload, result.sent("upload")[federation.ids[1]]).payload)
    one, other = (np.frombuffer(payload, dtype=np.uint8) for payload in payloads)
    same = int((one == other).sum())
    # A byte agrees once in 256 times; five standard deviations, false-alarm rate 6e-7.
    assert abs(same - len(one) / 256) < 5 * math.sqrt(len(one) / 256)


def test_the_fork_of_the_harness_shares_nothing():
    """Tests that attack a copy must not use up the original."""
    state = run(make(4), stop="attest").members[make(4).ids[0]].state
    copy = fork(state)
    copy.seed.erase()
    assert len(state.seed.expose()) == 32
