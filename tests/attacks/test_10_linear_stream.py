"""A mask from a linear generator is continued by whoever knows the plaintext under a part of it. Ours is not.

A client's vector has long runs of entries that can be guessed: the sums of classes that it does not have are zero.
There the upload shows the masks. If these come from a generator that is linear over GF(2), as the Mersenne Twister is,
their low bits follow a recurrence; the attacker finds it and takes the masks' low bits off all other entries.

That a client adds many masks does not help. The low bit of a sum or difference modulo a power of two is the XOR of the
low bits, and Mersenne Twisters of all seeds share one recurrence of length 19,937. So does every second word of one,
since over GF(2) squaring maps the roots of a polynomial to its roots.

Statistics use fixed entropy, so they pass or fail for good.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from fedopal_secure.core import masks, messages
from fedopal_secure.core.masks import ADD
from fedopal_secure.core.ring import U64, Ring, from_wire
from tests.attacks.berlekamp_massey import predict, shortest_recurrence
from tests.attacks.catalogue import Attack, Outcome, suite
from tests.core.harness import make, read, run, seed, segments

COMPLEXITY = 19_937  # of the low bit of MT19937, whose state has as many bits
KNOWN, SECRET = 40_000, 12_000


def mersenne_stream(ring: Ring, vector: U64, key: bytes, sign: int) -> None:
    """What `masks.apply_stream` must not be: the same, with words from MT19937. Modulo 2**64 only."""
    octets = np.random.RandomState(np.frombuffer(key, dtype="<u4")).bytes(8 * len(vector))
    combine = ring.add_into if sign == ADD else ring.subtract_into
    combine(vector, np.frombuffer(octets, dtype="<u8"))


def low_bits(entries: U64) -> list[int]:
    return [int(bit) for bit in entries & np.uint64(1)]


def uncovered_low_bits(masked: U64, known: U64) -> list[int]:
    """The attack itself: a guess at the low bit of every entry after the known ones, which are the first.

    `masked`: uint64, all entries of an upload; `known`: uint64, the plaintext of the first ones. Higher bits are not
    looked at, since carries make those of a sum nonlinear.
    """
    mask = low_bits(masked[: len(known)] ^ known)
    return [a ^ b for a, b in zip(low_bits(masked[len(known) :]), predict(mask, len(masked) - len(known)), strict=True)]


def linear_stream_attack(clients: int = 4, *, start: object = 0) -> tuple[int, int]:
    """Attack one upload of an honest session, and count how many of the secret low bits the attacker got right.

    The session runs the real client up to its upload, with whatever `masks.apply_stream` is at the time; patch it with
    `mersenne_stream` for the control. The victim's vector is 40,000 zeros, which the attacker knows, then 12,000 random
    entries, which it does not. One self mask and one mask for each of the other `clients` cover it. Another `start`
    means other people, keys and data.

    Returns (hits, total): total / 2 hits, give or take sqrt(total) / 2, are chance.
    """
    parts = segments((KNOWN + SECRET, 3))
    federation = make(clients, start=start, parts=parts)
    victim = federation.ids[1]
    vectors = federation.vectors()
    vectors[victim][:KNOWN] = 0
    result = run(federation, vectors=vectors, stop="attest")
    masked = from_wire(read(messages.Upload, result.sent("upload")[victim]).payload, parts)
    guesses = uncovered_low_bits(masked, np.zeros(KNOWN, dtype=np.uint64))
    hits = sum(a == b for a, b in zip(guesses, low_bits(vectors[victim][KNOWN:]), strict=True))
    return hits, len(guesses)


def is_chance(hits: int, total: int) -> bool:
    """Within five standard deviations of a fair coin; with fresh entropy, false-alarm rate 6e-7."""
    return abs(hits - total / 2) < 5 * math.sqrt(total) / 2


# The attack.


def play(clients: int) -> Callable[[], Outcome]:
    """The attack, as the catalogue wants it."""

    def attack() -> Outcome:
        hits, total = linear_stream_attack(clients)
        told = f"{hits:,} of {total:,} unknown low bits guessed right"
        return Outcome(hits == total, f"{told}, which is chance" if is_chance(hits, total) else told)

    return attack


test_defended, test_control = suite(
    *(
        Attack(
            10,
            f"continue the mask of an upload from its known part, {clients} clients",
            "the low bits of the victim's entries",
            play(clients),
            "core.masks.apply_stream",
            "which is chance",
            mersenne_stream,
        )
        for clients in (3, 6)
    )
)


def mask_bits(function: Callable[[Ring, U64, bytes, int], None], count: int, streams: int) -> list[int]:
    """The low bits of a sum of streams."""
    mask = np.zeros(count, dtype=np.uint64)
    for number in range(streams):
        function(Ring(0), mask, seed("key", number), ADD)
    return low_bits(mask)


@pytest.mark.parametrize("streams", [1, 5])
def test_linear_complexity(streams: int) -> None:
    """A sum of Mersenne Twisters is as simple as one; our masks need half of their own length, as random bits do.

    That of n random bits, n even, is farther from n / 2 than 12 with probability 2**-25: of all sequences of n bits,
    2**min(2 * n - 2 * L, 2 * L - 1) have complexity L > 0.
    """
    assert shortest_recurrence(mask_bits(mersenne_stream, KNOWN, streams)).length == COMPLEXITY
    assert abs(shortest_recurrence(mask_bits(masks.apply_stream, KNOWN, streams)).length - KNOWN / 2) <= 12


# The tool.


def test_a_recurrence_from_the_literature() -> None:
    """Example 6.33 of the Handbook of Applied Cryptography: 1 + x**3 + x**5, and length 5."""
    assert shortest_recurrence([0, 0, 1, 1, 0, 1, 1, 1, 0]) == (5, 0b101001)


def brute_complexity(bits: list[int]) -> int:
    """The least length of a recurrence that holds, by trying them all."""
    for length in range(len(bits) + 1):
        for taps in range(1 << length):
            if all(
                bits[i] == sum(taps >> j & bits[i - 1 - j] for j in range(length)) % 2 for i in range(length, len(bits))
            ):
                return length
    raise AssertionError("any n bits have a recurrence of length n")


def test_recurrences_of_all_short_sequences() -> None:
    """All sequences of up to eight bits, against a search; and the recurrence found does hold."""
    for count in range(9):
        found = []
        for number in range(1 << count):
            bits = [number >> i & 1 for i in range(count)]
            length, taps = shortest_recurrence(bits)
            assert length == brute_complexity(bits)
            found.append(length)
            assert taps & 1
            assert taps.bit_length() <= length + 1
            for i in range(length, count):
                assert sum(taps >> j & bits[i - j] for j in range(length + 1)) % 2 == 0
        counts = [1] + [2 ** min(2 * count - 2 * length, 2 * length - 1) for length in range(1, count + 1)]
        assert [found.count(length) for length in range(count + 1)] == counts


@pytest.mark.parametrize("lag", [1, 2, 31, 61])
def test_predict(lag: int) -> None:
    """s[i] = s[i - 1] + s[i - lag], from 2 * lag bits that are not all zero."""
    bits = [0] * (lag - 1) + [1]
    while len(bits) < 500:
        bits.append((bits[-1] + bits[-lag]) % 2 if lag > 1 else bits[-1])
    assert predict(bits[: 2 * lag], 500 - 2 * lag) == bits[2 * lag :]


def test_predict_from_nothing_and_from_zeros() -> None:
    assert predict([], 3) == [0, 0, 0]
    assert predict([0] * 10, 3) == [0, 0, 0]
