"""What makes a party simulated: entropy from a seed, and parties that let themselves be watched."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.messages import Context
from fedopal_secure.federation.client import JoinedSession, RoundClient
from fedopal_secure.federation.secure_sum import Participant
from fedopal_secure.federation.timings import Timings
from fedopal_secure.he.authority import KeyAuthority

# by session id and identity: uint64 (length,)
Vectors = dict[tuple[bytes, bytes], NDArray[np.uint64]]


class SeededEntropy:
    """Reproducible bytes for simulated keys and masks: SHAKE-256 of a seed, an owner and a counter."""

    def __init__(self, seed: int, owner: str) -> None:
        self._prefix = f"fedopal-secure simulated entropy|{seed}|{owner}|".encode()
        self._counter = 0

    def __call__(self, count: int) -> bytes:
        """The next `count` bytes."""
        self._counter += 1
        return hashlib.shake_256(self._prefix + self._counter.to_bytes(8, "big")).digest(count)


class TimedAuthority(KeyAuthority):
    """A key authority whose work is timed."""

    def __init__(self, timings: Timings, *rest: Any) -> None:
        super().__init__(*rest)
        self._timings = timings

    def open_total(self, request_bytes: bytes) -> bytes:
        """See `KeyAuthority.open_total`."""
        with self._timings.stage("open"):
            return super().open_total(request_bytes)


class WitnessedClient(RoundClient):
    """A client that also writes down what it contributes, so that sums can be compared; only a simulation has it."""

    def __init__(self, seen: Vectors, participant: Participant, *rest: Any, **options: Any) -> None:
        super().__init__(participant, *rest, **options)
        self._seen, self._identity = seen, participant.key.identity

    def _vector(self, session: JoinedSession, context: Context) -> NDArray[np.uint64]:
        vector = super()._vector(session, context)
        self._seen[session.id, self._identity] = vector
        return vector
