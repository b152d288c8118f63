"""Who holds whose shares: each number against an enumeration of what it counts, or an exact sum of fractions.

The formulas here are written anew and not shared with the code; where the numbers are small enough, whole graphs are
enumerated and nothing is taken from a formula at all.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from fedopal_secure.core import graph
from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.core.graph import (
    COMPLETE_UP_TO,
    LEAST_SHARE,
    MAX_DEGREE,
    Graph,
    corrupt_holders,
    dropout_bits,
    least_degree,
    partial_sum_bits,
    quorum,
    threshold,
)
from tests.core.harness import entropy, seed

# Chi-square beyond its mean by this many standard deviations: false-alarm rate below 1e-6 for the degrees used here.
FAR = 6.0


def at_least(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """P[at least `least` of `drawn` are marked], one draw after the other without putting back."""
    chances = {0: Fraction(1)}
    for taken in range(drawn):
        following: dict[int, Fraction] = {}
        for hit, chance in chances.items():
            hits = Fraction(marked - hit, population - taken)
            following[hit + 1] = following.get(hit + 1, Fraction(0)) + chance * hits
            following[hit] = following.get(hit, Fraction(0)) + chance * (1 - hits)
        chances = {hit: chance for hit, chance in following.items() if chance}
    return sum((chance for hit, chance in chances.items() if hit >= least), Fraction(0))


def log2(value: Fraction) -> float:
    """Of any positive fraction, however small."""
    shift = value.numerator.bit_length() - value.denominator.bit_length()
    return shift + math.log2(value / Fraction(2) ** shift)


# Threshold and quorum.


@pytest.mark.parametrize("holders", range(1, 13))
def test_the_threshold_is_the_least_that_keeps_both_secrets_from_being_rebuilt(holders):
    """Each honest holder gives one kind of share, whichever the server makes it; a corrupt one gives both."""
    for corrupt in range(holders):
        honest = holders - corrupt
        both = max(min(keys, honest - keys) + corrupt for keys in range(honest + 1))
        assert threshold(holders, corrupt) == both + 1


@pytest.mark.parametrize("roster", range(1, 13))
def test_the_quorum_is_the_least_that_no_two_views_reach(roster):
    """Each honest client signs one of two views, and a corrupt one signs both."""
    for corrupt in range(roster):
        honest = roster - corrupt
        second = max(min(first, honest - first) + corrupt for first in range(honest + 1))
        assert quorum(roster, corrupt) == second + 1


def test_the_complete_graph():
    complete = Graph(12, 0, 2)
    assert (complete.sparse, complete.holders, complete.threshold, complete.sound(12)) == (False, 12, 8, True)
    assert complete.draw(3, entropy(b"")) == tuple(range(12))


def test_a_sparse_graph():
    sparse = Graph(300, 112, 60)
    assert (sparse.sparse, sparse.holders, sparse.sound(62)) == (True, 113, True)
    assert sparse.threshold == (113 + corrupt_holders(300, 112, 60)) // 2 + 1


# Corrupt holders.


def drawn_sets(roster: int, degree: int) -> Iterator[tuple[int, ...]]:
    """Every choice of holders of member 0 of a roster, each as probable as the other."""
    return itertools.combinations(range(1, roster), degree)


@pytest.mark.parametrize("bits", [0, 1, 2, 3, 5, 8])
def test_corrupt_holders_by_enumeration(bits, monkeypatch):
    """With a bound that small numbers can reach; the corrupt clients are the first ones after member 0."""
    monkeypatch.setattr(graph, "_HOLDER_BITS", bits)
    seen = set()
    for roster, degree in itertools.product((3, 6, 9, 12), (1, 2, 4, 6)):
        for corrupt in range(roster - 1) if degree < roster else ():
            sights = Counter(sum(holder <= corrupt for holder in drawn) for drawn in drawn_sets(roster, degree))
            total = sum(sights.values())
            least = next(
                most
                for most in range(degree + 1)
                if Fraction(roster * sum(n for count, n in sights.items() if count > most), total)
                <= Fraction(1, 2**bits)
            )
            assert corrupt_holders.__wrapped__(roster, degree, corrupt) == least
            seen.add((least, min(degree, corrupt)))
    if bits <= 5:
        assert any(least < most for least, most in seen)  # not merely the worst case everywhere


@pytest.mark.parametrize(
    ("roster", "degree", "corrupt"), [(257, 95, 51), (300, 40, 0), (300, 112, 60), (300, 200, 5), (1000, 60, 10)]
)
def test_corrupt_holders_by_fractions(roster, degree, corrupt):
    most, bound = corrupt_holders(roster, degree, corrupt), Fraction(1, 2**100)
    assert roster * at_least(roster - 1, corrupt, degree, most + 1) <= bound
    if most:
        assert roster * at_least(roster - 1, corrupt, degree, most) > bound


def test_more_corrupt_clients_are_never_fewer_corrupt_holders():
    for degree in (20, 95):
        found = [corrupt_holders(257, degree, corrupt) for corrupt in range(0, 200, 7)]
        assert found == sorted(found)
        assert found[0] == 0
        assert found[-1] <= degree


# Partial sums.


def exact_partial(roster: int, degree: int, corrupt: int, least: int) -> Fraction:
    """The bound itself: sum over the sizes of a set of honest survivors that could be split off."""
    honest, t = roster - corrupt, threshold(degree + 1, corrupt_holders(roster, degree, corrupt))
    total = Fraction(0)
    for size in range(1, honest):
        if size >= least:
            break
        total += math.comb(honest, size) * at_least(roster - 1, size - 1 + corrupt, degree, t - 1) ** size
    return total


@pytest.mark.parametrize("roster", [9, 14, 30])
def test_partial_sum_bits_by_fractions(roster):
    some = 0
    for degree in sorted({1, 2, 4, roster // 2, roster - 1}):
        for corrupt in sorted({0, 1, roster // 5, roster // 2}):
            for least in (2, (roster - corrupt + 2) // 3, roster // 2):
                exact = exact_partial(roster, degree, corrupt, least)
                bits = partial_sum_bits(roster, degree, corrupt, least)
                if exact:
                    assert bits == pytest.approx(log2(exact), abs=1e-8)
                    some += 1
                else:
                    assert bits == -math.inf
    assert some >= 3


@pytest.mark.parametrize(("roster", "degree", "corrupt"), [(257, 60, 20), (300, 30, 60)])
def test_partial_sum_bits_of_large_rosters(roster, degree, corrupt):
    least = math.ceil(LEAST_SHARE * (roster - corrupt))
    exact = log2(exact_partial(roster, degree, corrupt, least))
    assert partial_sum_bits(roster, degree, corrupt, least) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("roster", "degree", "corrupt"), [(7, 1, 0), (6, 2, 2), (7, 3, 3), (8, 1, 1)])
@pytest.mark.parametrize("least", [2, 3])
def test_partial_sum_bits_by_enumeration(roster, degree, corrupt, least):
    """All graphs of a few clients: how many sets of honest ones could be unmasked apart from the others, on average.

    The expected number is the bound, and the chance that there is one at all is no more.
    """
    honest, t = roster - corrupt, threshold(degree + 1, corrupt_holders(roster, degree, corrupt))
    choices = []  # for each honest client its draws, as bit masks over the roster; the corrupt are the last ones
    for own in range(honest):
        others = [other for other in range(roster) if other != own]
        choices.append(np.array([sum(1 << i for i in drawn) for drawn in itertools.combinations(others, degree)]))
    sets = [
        members for size in range(1, honest) if size < least for members in itertools.combinations(range(honest), size)
    ]
    split = np.zeros([len(draws) for draws in choices], dtype=np.int32)
    for members in sets:
        inside = sum(1 << i for i in (*members, *range(honest, roster)))
        apart = np.ones([1] * honest, dtype=bool)
        for member in members:
            kept = np.bitwise_count(choices[member] & inside) >= t - 1
            apart = apart & kept.reshape([-1 if axis == member else 1 for axis in range(honest)])
        split += apart
    bits = partial_sum_bits(roster, degree, corrupt, least)
    assert 2.0**bits == pytest.approx(split.mean(), rel=1e-9)
    assert (split > 0).mean() <= split.mean()


def test_twice_the_holders_are_safer():
    for corrupt in (0, 30, 60):
        found = [partial_sum_bits(300, degree, corrupt, (302 - corrupt) // 3) for degree in (10, 20, 40, 80, 160)]
        assert found == sorted(found, reverse=True)
        assert found[-1] < -1000


def test_more_corrupt_clients_under_the_same_threshold_are_less_safe():
    """Before all holders may be corrupt, more corrupt clients mean a higher threshold, which may well be safer."""
    assert {corrupt_holders(300, 40, corrupt) for corrupt in range(70, 200, 10)} == {40}
    found = [partial_sum_bits(300, 40, corrupt, (302 - corrupt) // 3) for corrupt in range(70, 200, 10)]
    assert found == sorted(found)
    assert found[0] < -40 < found[-1]


def test_a_weak_graph_is_not_sound():
    assert partial_sum_bits(300, 8, 60, 80) > -40
    assert not Graph(300, 8, 60).sound(62)
    assert Graph(300, 112, 60).sound(62)
    assert not Graph(12, 12, 0).sound(3)  # only eleven others
    assert Graph(12, 11, 0).sound(3)
    # As many corrupt holders as not: no number of shares keeps the two kinds apart.
    assert Graph(12, 6, 6).threshold == 7
    assert not Graph(12, 6, 7).sound(9)


# Leaving.


def fails(roster: int, degree: int, corrupt: int, dropped: int, *, gone: bool) -> Fraction:
    """P[a dealer keeps fewer than t holders]; one that is gone itself has lost its own share as well."""
    t = threshold(degree + 1, corrupt_holders(roster, degree, corrupt))
    own, away = (0, dropped - 1) if gone else (1, dropped)
    return at_least(roster - 1, away, degree, degree + own - t + 1)


@pytest.mark.parametrize(("roster", "degree", "corrupt", "dropped"), [(8, 4, 1, 3), (9, 5, 2, 2), (7, 3, 0, 4)])
def test_who_loses_too_many_holders_by_enumeration(roster, degree, corrupt, dropped):
    """The chance for one dealer that stays, and for one that goes, over all of its draws."""
    t = threshold(degree + 1, corrupt_holders(roster, degree, corrupt))
    for gone in (False, True):
        leaves = set(range(roster - dropped, roster))
        leaves = leaves ^ {0, roster - 1} if gone else leaves
        lost = [sum(holder not in leaves for holder in (0, *drawn)) < t for drawn in drawn_sets(roster, degree)]
        assert fails(roster, degree, corrupt, dropped, gone=gone) == Fraction(sum(lost), len(lost))


@pytest.mark.parametrize(
    ("roster", "degree", "corrupt", "dropped"),
    [(8, 4, 1, 3), (30, 10, 3, 8), (257, 95, 51, 25), (300, 112, 60, 30), (300, 112, 60, 90)],
)
def test_dropout_bits_bound_the_chance_that_a_secret_is_lost(roster, degree, corrupt, dropped):
    """Over all dealers, those that stay and those that go; and not by more than a factor of two for nothing."""
    stay = (roster - dropped) * fails(roster, degree, corrupt, dropped, gone=False)
    go = dropped * fails(roster, degree, corrupt, dropped, gone=True)
    exact = log2(stay + go)
    assert exact - 1e-9 <= dropout_bits(roster, degree, corrupt, dropped) <= exact + 1


def test_nobody_leaves():
    assert dropout_bits(300, 112, 60, 0) == -math.inf
    # Fewer leave than anybody can spare.
    assert dropout_bits(300, 112, 60, 5) == -math.inf


def test_more_that_leave_are_never_less_risk():
    found = [dropout_bits(300, 112, 60, dropped) for dropped in range(0, 200, 10)]
    assert found == sorted(found)


@pytest.mark.parametrize("more", [2, 60])
@pytest.mark.parametrize(("roster", "corrupt", "dropped"), [(257, 51, 25), (300, 0, 0), (300, 10, 60), (400, 80, 40)])
def test_the_least_degree_is_the_first_that_serves(roster, corrupt, dropped, more):
    cohort = corrupt + more

    def serves(degree: int) -> bool:
        return Graph(roster, degree, corrupt).sound(cohort) and dropout_bits(roster, degree, corrupt, dropped) <= -20

    found = least_degree(roster, corrupt, dropped, cohort)
    assert serves(found)
    assert not any(serves(degree) for degree in range(1, found))


def test_the_least_degree_at_the_edges():
    assert least_degree(COMPLETE_UP_TO, 51, 25, 53) == 0
    assert 0 < least_degree(COMPLETE_UP_TO + 1, 51, 25, 53) < COMPLETE_UP_TO
    for corrupt, dropped in ((300, 0), (60, 299), (150, 150)):
        with pytest.raises(InputError, match=f"bears {corrupt} corrupt ones and {dropped} that leave"):
            least_degree(300, corrupt, dropped, 53)
    assert least_degree(2000, 400, 200, 53) < MAX_DEGREE


# The draw.


def far_from(counts: list[int], expected: float) -> bool:
    """Whether a chi-square says that the counts are not all around `expected`."""
    chi = sum((count - expected) ** 2 / expected for count in counts)
    freedom = len(counts) - 1
    return chi > freedom + FAR * math.sqrt(2 * freedom)


@pytest.mark.parametrize("position", [0, 2, 5])
def test_every_choice_of_holders_is_as_probable_as_the_other(position):
    """All choices of 2 out of 5 others, from fixed entropy."""
    source, rounds = entropy(seed("draw", position)), 20_000
    seen = Counter(Graph(6, 2, 0).draw(position, source) for _ in range(rounds))
    others = [other for other in range(6) if other != position]
    assert set(seen) == {tuple(sorted((*pair, position))) for pair in itertools.combinations(others, 2)}
    assert not far_from(list(seen.values()), rounds / len(seen))


def test_every_pair_is_held_as_often_as_the_other():
    """In a roster of 300: how often each member is drawn by one client, and how often next to a neighbour."""
    sparse, source, rounds = Graph(300, 20, 0), entropy(seed("many")), 3000
    drawn = [sparse.draw(17, source) for _ in range(rounds)]
    assert all(len(holders) == 21 and list(holders) == sorted(set(holders)) and 17 in holders for holders in drawn)
    counts = Counter(holder for holders in drawn for holder in holders if holder != 17)
    assert set(counts) == set(range(300)) - {17}
    # Draws without putting back vary less than the chi-square allows for, so this alarms even more rarely.
    assert not far_from(list(counts.values()), rounds * 20 / 299)


def test_a_draw_that_shuns_a_member_is_noticed():
    """The control: a draw that takes the word modulo the roster and skips itself hits its successor twice as often."""

    def skewed(position: int, source) -> tuple[int, ...]:
        chosen = {position}
        while len(chosen) <= 2:
            drawn = int.from_bytes(source(8), "big") % 6
            chosen.add(drawn if drawn != position else (drawn + 1) % 6)
        return tuple(sorted(chosen))

    source, rounds = entropy(seed("skewed")), 20_000
    seen = Counter(skewed(2, source) for _ in range(rounds))
    assert far_from(list(seen.values()), rounds / len(seen))


def test_uneven_words_are_drawn_again():
    """The highest words have no complete set of remainders; and the order of words is the order of members."""

    def draw(*words: int) -> tuple[int, ...]:
        stream = iter(words)
        drawn = Graph(300, 1, 0).draw(100, lambda count: next(stream).to_bytes(count, "big"))
        assert next(stream, None) is None
        return drawn

    end = 2**64 - 2**64 % 299
    assert draw(0) == (0, 100)
    assert draw(99) == (99, 100)
    assert draw(100) == (100, 101)
    assert draw(298) == (100, 299)
    assert draw(299) == (0, 100)
    assert draw(end - 1) == (100, 299)
    assert draw(end, 5) == (5, 100)
    assert draw(2**64 - 1, end + 1, 7) == (7, 100)


def test_a_member_that_is_chosen_already_is_drawn_again():
    stream = iter([3, 3, 302, 4])
    assert Graph(300, 2, 0).draw(0, lambda count: next(stream).to_bytes(count, "big")) == (0, 4, 5)


def test_everybody_else_can_be_drawn():
    assert Graph(6, 5, 0).draw(1, entropy(b"")) == tuple(range(6))


@pytest.mark.parametrize(("roster", "degree"), [(6, 6), (6, 7), (1, 1)])
def test_more_holders_than_there_are(roster, degree):
    with pytest.raises(MisuseError, match="no"):
        Graph(roster, degree, 0).draw(0, entropy(b""))
