"""Who shares with whom, and the numbers that follow: holders, threshold, quorum, and what a sparse graph risks.

On the complete graph everyone in the roster holds a share of everyone's secrets, its own included. On a sparse graph
each client draws its holders (Bell et al. 2020, algorithm 3: the neighbours it chose itself), and holds its own share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.core.shamir import Entropy

# Up to here the graph is complete.
COMPLETE_UP_TO: Final = 256
# Far beyond what 2**14 clients need; it keeps a proposal from costing a client minutes of arithmetic.
MAX_DEGREE: Final = 1024

# On a sparse graph: some client has more corrupt holders than assumed with probability 2**-100 at most; the server
# learns a sum over fewer than this share of the honest clients with probability 2**-40; and a round that loses as many
# clients as planned fails with probability 2**-20.
LEAST_SHARE: Final = Fraction(1, 3)
_HOLDER_BITS: Final = 100
_PARTIAL_BITS: Final = 40
_DROPOUT_BITS: Final = 20


def threshold(holders: int, corrupt: int) -> int:
    """Shares that rebuild a secret: floor((holders + c) / 2) + 1.

    Honest holders release one kind of share for a client and corrupt ones both, so t shares of each kind would take
    2t <= (holders - c) + 2c. One more than half of that keeps the self-mask and the masking key from both being
    rebuilt (Bonawitz et al. 2017, section 6.2).
    """
    return (holders + corrupt) // 2 + 1


def quorum(roster: int, corrupt: int) -> int:
    """Signatures that make a view the only one: more than (roster + c) / 2, as honest clients sign once."""
    return (roster + corrupt) // 2 + 1


@dataclass(frozen=True)
class Graph:
    """The graph of one roster; `degree` is how many holders each client draws, 0 for the complete graph."""

    roster: int
    degree: int
    corrupt: int

    @property
    def sparse(self) -> bool:
        """Whether clients draw their holders."""
        return self.degree > 0

    @property
    def holders(self) -> int:
        """Holders of every client's secrets, itself among them."""
        return self.degree + 1 if self.sparse else self.roster

    @cached_property
    def threshold(self) -> int:
        """Shares that rebuild a secret."""
        if not self.sparse:
            return threshold(self.holders, self.corrupt)
        return threshold(self.holders, corrupt_holders(self.roster, self.degree, self.corrupt))

    def sound(self, cohort: int) -> bool:
        """Whether no sum comes out over too few clients: always if complete; see `partial_sum_bits` if sparse.

        Too few are less than LEAST_SHARE of the honest clients, or fewer than a cohort has besides c corrupt ones.
        """
        if not self.sparse:
            return True
        least = max(math.ceil(LEAST_SHARE * (self.roster - self.corrupt)), cohort - self.corrupt)
        fits = self.degree < self.roster and self.threshold <= self.holders
        return fits and partial_sum_bits(self.roster, self.degree, self.corrupt, least) <= -_PARTIAL_BITS

    def draw(self, position: int, entropy: Entropy) -> tuple[int, ...]:
        """The holders of the client at a roster position: ascending positions, its own among them.

        Uniform among all choices: 8 bytes at a time, big-endian, reduced modulo the other members after rejecting the
        uneven rest, and drawn again while the member is chosen already.
        """
        if not self.sparse:
            return tuple(range(self.roster))
        others = self.roster - 1
        if not 0 < self.degree <= others:
            raise MisuseError(f"a roster of {self.roster} has no {self.degree} other members to draw")
        chosen = {position}
        while len(chosen) <= self.degree:
            word = int.from_bytes(entropy(8), "big")
            if word < 2**64 - 2**64 % others:
                drawn = word % others
                chosen.add(drawn + (drawn >= position))
        return tuple(sorted(chosen))


@cache
def corrupt_holders(roster: int, degree: int, corrupt: int) -> int:
    """c_max: the least number that no honest client's corrupt holders exceed, except with probability 2**-100.

    A hypergeometric tail, times the size of the roster, in exact integers: every party must find the same number.
    """
    everything = math.comb(roster - 1, degree)
    tail = 0
    for count in range(min(degree, corrupt), 0, -1):
        tail += math.comb(corrupt, count) * math.comb(roster - 1 - corrupt, degree - count)
        if roster * tail << _HOLDER_BITS > everything:
            return count
    return 0


@cache
def partial_sum_bits(roster: int, degree: int, corrupt: int, least: int) -> float:
    """log2 of a bound on the chance that some partial sum is over fewer than `least` honest clients.

    Survivors keep t of their holders (each survivor's holders see to that). So if the server could unmask a set S of
    honest survivors apart from the other honest ones, each member of S would have drawn at least t - 1 of its holders
    from the rest of S and the corrupt clients. The bound adds that up over all sets of fewer than `least` of the h
    honest clients: sum over s of C(h, s) * P[Hypergeometric(n - 1, s - 1 + c, k) >= t - 1]**s.
    """
    honest = roster - corrupt
    t = threshold(degree + 1, corrupt_holders(roster, degree, corrupt))
    factorial = np.cumsum(np.log2(np.maximum(np.arange(roster + 1, dtype=np.float64), 1)))

    def choose(n: int, k: NDArray[np.int64] | int) -> NDArray[np.float64]:
        return np.asarray(factorial[n] - factorial[k] - factorial[n - k], dtype=np.float64)

    total = -math.inf
    for size in range(1, min(least, honest + 1)):
        inside = size - 1 + corrupt
        outside = roster - 1 - inside
        drawn = np.arange(max(t - 1, degree - outside), min(degree, inside) + 1)
        if drawn.size:
            ways = np.logaddexp2.reduce(choose(inside, drawn) + choose(outside, degree - drawn))
            tail = min(0.0, float(ways - choose(roster - 1, degree)))
            total = float(np.logaddexp2(total, choose(honest, size) + size * tail))
    return total


def dropout_bits(roster: int, degree: int, corrupt: int, dropped: int) -> float:
    """log2 of a bound on the chance that some client loses so many holders that its secrets cannot be rebuilt.

    `dropped` clients leave, whoever they are. A client that stays bears the loss of k + 1 - t of its k drawn holders;
    one that leaves takes its own share along and bears one less.
    """
    spare = degree + 1 - threshold(degree + 1, corrupt_holders(roster, degree, corrupt))

    def fails(away: int, bears: int) -> int:
        return sum(
            math.comb(away, lost) * math.comb(roster - 1 - away, degree - lost)
            for lost in range(bears + 1, min(degree, away) + 1)
        )

    ways = (roster - dropped) * fails(dropped, spare) + dropped * fails(dropped - 1, spare - 1)
    return math.log2(ways) - math.log2(math.comb(roster - 1, degree)) if ways else -math.inf


def least_degree(roster: int, corrupt: int, dropped: int, cohort: int) -> int:
    """The smallest degree that is sound for a cohort and bears `dropped` clients leaving, but for 2**-20.

    0 up to 256 clients, where the graph is complete.

    Raises InputError if no degree is.
    """
    if roster <= COMPLETE_UP_TO:
        return 0
    for degree in range(1, min(roster, MAX_DEGREE + 1)) if corrupt < roster else ():
        if dropout_bits(roster, degree, corrupt, dropped) > -_DROPOUT_BITS:
            continue
        if Graph(roster, degree, corrupt).sound(cohort):
            return degree
    raise InputError(f"no graph of {roster} clients bears {corrupt} corrupt ones and {dropped} that leave")
