"""Which simulated clients disappear, and when: the `--drop` option."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedopal_secure.core.errors import InputError
from fedopal_secure.federation.vectors import STATISTICS_SESSION


@dataclass(frozen=True)
class Drop:
    """Before answering `phase` of `session`, these clients (by name), or `count` of those asked, disappear."""

    session: str
    phase: str
    count: int
    names: tuple[str, ...]


def parse_drop(text: str, sessions: Sequence[str], phases: Sequence[str], names: Sequence[str]) -> Drop:
    """Read `[SESSION.]PHASE:COUNT` or `[SESSION.]PHASE:ID,ID`; raises InputError that lists what exists."""
    where, _, who = text.partition(":")
    session, _, phase = where.rpartition(".")
    session = session or STATISTICS_SESSION
    if session not in sessions:
        raise InputError(f"--drop {text}: there is no session '{session}' in this round: {', '.join(sessions)}")
    if phase not in phases:
        raise InputError(f"--drop {text}: there is no phase '{phase}' in this protocol: {', '.join(phases)}")
    if who.isdecimal():
        return Drop(session, phase, int(who), ())
    chosen = tuple(name.strip() for name in who.split(","))
    for name in chosen:
        if name not in names:
            raise InputError(f"--drop {text}: '{name}' is no count and no client: {names[0]} to {names[-1]} exist")
    return Drop(session, phase, 0, chosen)


class Dropouts:
    """The plan of a simulation, as the runtime asks for it."""

    def __init__(self, drops: Iterable[Drop], names: Mapping[bytes, str], seed: int) -> None:
        """`names` maps identities to names; the seed chooses where only a count is given."""
        self._drops, self._names = tuple(drops), names
        self._random = np.random.default_rng([seed, 0xD0])

    def __call__(self, session: str, phase: str, asked: Sequence[bytes]) -> list[bytes]:
        """Those of `asked` who disappear now. Raises InputError if fewer are left than are to go."""
        left = sorted(asked, key=self._names.__getitem__)
        gone: list[bytes] = []
        for drop in self._drops:
            if (drop.session, drop.phase) != (session, phase):
                continue
            gone += [client for client in left if self._names[client] in drop.names and client not in gone]
            rest = [client for client in left if client not in gone]
            if drop.count > len(rest):
                raise InputError(f"{drop.count} clients are to drop before '{phase}', and only {len(rest)} are left")
            gone += [rest[index] for index in sorted(self._random.choice(len(rest), drop.count, replace=False))]
        return gone
