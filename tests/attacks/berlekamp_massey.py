"""Berlekamp-Massey over GF(2): the shortest linear recurrence of a bit sequence, and what it says comes next.

Massey, Shift-register synthesis and BCH decoding (1969). Bit vectors are Python integers, so one step on a recurrence
of 20,000 bits is a few operations on 2.5 kB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Recurrence(NamedTuple):
    """The sum over j of taps[j] * bits[i - j] is 0 in GF(2) for every i >= length; bit j of `taps`, and taps[0] = 1."""

    length: int
    taps: int


def shortest_recurrence(bits: Sequence[int]) -> Recurrence:
    """The shortest linear recurrence of all `bits`; its length is their linear complexity.

    A sequence of complexity L is determined by any 2 * L bits of it in a row. Random bits have one of about half
    their number.
    """
    backwards = _backwards(bits)
    # `older` served until the length last grew, and failed first at bit `broke`.
    taps, older, length, broke = 1, 1, 0, -1
    for i in range(len(bits)):
        # Bit j of the shifted integer is bits[i - j].
        if not (taps & (backwards >> (len(bits) - 1 - i))).bit_count() & 1:
            continue
        previous = taps
        taps ^= older << (i - broke)
        if 2 * length <= i:
            length, older, broke = i + 1 - length, previous, i
    return Recurrence(length, taps)


def predict(known_bits: Sequence[int], count: int) -> list[int]:
    """The `count` bits that follow if the shortest recurrence of the known ones goes on."""
    length, taps = shortest_recurrence(known_bits)
    if not length:
        return [0] * count
    # Bit j of the window is the bit j + 1 places back.
    taps, all_ones, predicted = taps >> 1, (1 << length) - 1, []
    window = _backwards(known_bits) & all_ones
    for _ in range(count):
        bit = (taps & window).bit_count() & 1
        window = (window << 1 | bit) & all_ones
        predicted.append(bit)
    return predicted


def _backwards(bits: Sequence[int]) -> int:
    """The last bit is the lowest."""
    return int("0" + "".join("1" if bit else "0" for bit in bits), 2)
