"""Encrypted sums: what the error or the noise of a decryption tells of the key, if it comes out.

CKKS is approximate, and its error is a linear function of the key; in BFV a total with enough noise is rounded wrongly,
or not, as the key has it. Every play ends with an upload of another session, read with the key that was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from fedopal_secure.core.params import Segment
from fedopal_secure.core.ring import U64
from fedopal_secure.he.parameters import CKKS, least_noise_budget, scale_bits
from protocols.he.v1 import ring, scheme
from tests.attacks.catalogue import Attack, Outcome, always, suite
from tests.attacks.encrypted_sessions import (
    DEGREE,
    WIDE,
    CheatingServer,
    Key,
    Refused,
    forged,
    is_key,
    opened_plaintext,
    played,
    session,
    stolen_key,
)
from tests.he.harness import secrets_of

pytest.importorskip("tenseal", reason="missing tool: TenSEAL, of the extra `he`")


@pytest.fixture(autouse=True, scope="module")
def known_answers() -> None:
    """Keys are made, and known answers checked, before anything is taken away."""
    for kind in ("bfv", "ckks"):
        secrets_of(kind)


# Answers that are not rounded, as CKKS gives them (Li and Micciancio 2020). The data are public: somebody tries out
# a round, under the authority's key. The server knows the sum, so all that it learns is the error.

FRACTIONS = scale_bits(CKKS, 4)  # bits after the point that carry the error
DIGITS = (Segment("x", DEGREE, 3, True),)  # one digit an entry


def trial(name: str) -> CheatingServer:
    return CheatingServer(session("ckks", name, DIGITS, limit=50)).collect()


class Unrounded(np.ndarray[Any, np.dtype[np.float64]]):
    """Decrypted values of an authority that answers in fixed point, of which an entry of 3 bytes keeps the fraction."""

    def astype(self, kind: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        return np.floor(self.view(np.ndarray) * 2.0**FRACTIONS + 0.5).astype(kind)


def not_rounding(values: NDArray[np.float64]) -> Any:
    """In place of `np.rint`."""
    return values.view(Unrounded)


def digits(vector: U64) -> list[int]:
    """Entries of 3 bytes as signed integers."""
    return [(int(entry) + 2**23) % 2**24 - 2**23 for entry in vector]


def polynomial(slots: list[int]) -> list[int]:
    """The polynomial with integer coefficients that is nearest to having these integers in its slots."""
    half = len(slots) // 2
    return ring.from_complex_slots(list(zip(slots[:half], slots[half:], strict=True)), 0)


def key_from_errors(server: CheatingServer, total: U64) -> Key | None:
    """s = (m + e - c0) / c1, at every root of X**N + 1 modulo each prime of q; None if it is no key."""
    known = digits(server.setting.expected(server.ids))
    noisy = polynomial([(v << FRACTIONS) + e for v, e in zip(known, digits(server.open(total)), strict=True)])
    keys = []
    for place, prime in enumerate(server.context.parameters.ciphertext_moduli):
        c0, c1 = (row.tolist() for row in total[0, :, place])
        values = zip(ring.to_ntt(noisy, prime), c0, c1, strict=True)
        quotients = tuple((m - a) * pow(b, -1, prime) % prime for m, a, b in values)
        keys.append(scheme.centred(ring.from_ntt(quotients, prime), prime))
    return keys[0] if is_key(keys[0]) and keys[0] == keys[1] else None


def unrounded_answers() -> Outcome:
    earlier, server = CheatingServer(session("ckks", "yesterday")).collect(), trial("today")
    key = key_from_errors(server, server.total(server.ids))
    found = None if key is None else earlier.read(key, earlier.victim)
    return earlier.outcome(found, "the answer is the sum and says nothing more: no key fits it", KEY_AND_VECTOR)


def test_a_rounded_answer_depends_on_the_sum_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two encryptions of the same vectors: the same answer. It is the rounding that makes it so."""

    def answers() -> list[U64]:
        servers = [trial(name) for name in ("one", "two")]
        return [server.open(server.total(server.ids)) for server in servers]

    one, two = answers()
    assert np.array_equal(one, two)
    monkeypatch.setattr(np, "rint", not_rounding)
    one, two = answers()
    assert np.count_nonzero(one == two) < DEGREE // 100


# Totals with too much noise: how a wrong rounding comes out tells of the key.

KEY_AND_VECTOR = "the key, and with it a client's vector of another session, every entry"


def wrong_roundings_of_bfv() -> Outcome:
    """c0 + c1 s on the edge of a rounding: one up where s has 1. Another session tells where it has -1."""
    earlier = CheatingServer(session("bfv", "yesterday")).collect()
    p, step = earlier.context.parameters, 2**20
    edge = p.q // (2 * p.plain_moduli[0]) - step // 2
    signs = []
    for name, times in (("up", 1), ("down", -1)):
        server = CheatingServer(session("bfv", name, WIDE), earlier.authority).collect()
        signs.append(opened_plaintext(server, forged(server, dict.fromkeys(range(DEGREE), edge), {0: times * step})))
    key = [one - minus_one for one, minus_one in zip(*signs, strict=True)]
    return earlier.outcome(earlier.read(key, earlier.victim) if is_key(key) else None, got=KEY_AND_VECTOR)


def wrong_roundings_of_ckks() -> Outcome:
    """(0, 2**8 scale) decrypts to 2**8 s at complex roots, which are no integers; the nearest ones will do."""
    earlier = CheatingServer(session("ckks", "yesterday")).collect()
    server = CheatingServer(session("ckks", "today", DIGITS, limit=50), earlier.authority).collect()
    opened = digits(server.open(forged(server, {}, {0: 2 ** (FRACTIONS + 8)})))
    key = [(coefficient + 2**7) >> 8 for coefficient in polynomial(opened)]
    return earlier.outcome(earlier.read(key, earlier.victim) if is_key(key) else None, got=KEY_AND_VECTOR)


COEFFICIENTS = 16


def refusals_of_one_session() -> Outcome:
    """Each total has just as much noise as is answered, and one more where the key has 1 (or -1): refused or not."""
    server = CheatingServer(session("bfv")).collect()
    p, t = server.context.parameters, server.context.parameters.plain_moduli[0]
    answered = 2 ** (p.q.bit_length() - 1 - least_noise_budget(p, t, server.params.clients))
    most = (answered - 1) // t

    def too_noisy(place: int, times: int) -> bool:
        """Whether coefficient `place` of the key is `times`: c1 is that times X**-place."""
        turn = {0: times} if place == 0 else {DEGREE - place: -times}
        try:
            server.open(forged(server, {0: most}, turn))
        except Refused as refused:
            if "more noise" not in str(refused):
                raise
            return True
        return False

    told = [too_noisy(place, 1) - too_noisy(place, -1) for place in range(COEFFICIENTS)]
    won = told == stolen_key("bfv")[:COEFFICIENTS]
    return Outcome(won, f"{COEFFICIENTS} coefficients of the key, two refusals or answers for each")


@pytest.mark.parametrize("attack", [wrong_roundings_of_bfv, wrong_roundings_of_ckks])
def test_a_total_that_is_too_noisy_uses_its_session_up(attack: Callable[[], Outcome]) -> None:
    """So that a refusal, too, is had once a session."""
    servers: list[CheatingServer] = []
    with mock.patch.object(CheatingServer, "open", _noting(servers)):
        assert "more noise" in played(attack)().told
    server = servers[-1]
    with pytest.raises(Refused, match="no second one"):
        server.open(server.total(server.ids))


def _noting(servers: list[CheatingServer]) -> Callable[..., U64]:
    opened = CheatingServer.open

    def open_(server: CheatingServer, *arguments: Any) -> U64:
        servers.append(server)
        return opened(server, *arguments)

    return open_


KEY, NOISE = "the key", "more noise than honest encryptions add up to"

test_defended, test_control = suite(
    Attack(
        14,
        "the key out of answers that are not rounded (ckks)",
        KEY,
        played(unrounded_answers),
        "he.seal.np.rint",
        "no key fits it",
        not_rounding,
    ),
    Attack(
        14,
        "the key out of wrong roundings (bfv)",
        KEY,
        played(wrong_roundings_of_bfv),
        "he.seal.least_noise_budget",
        NOISE,
        always(0),
    ),
    Attack(
        14,
        "the key out of wrong roundings (ckks)",
        KEY,
        played(wrong_roundings_of_ckks),
        "he.authority.session_error_bound",
        NOISE,
        always(math.inf),
    ),
    Attack(
        14,
        "the key out of refusals in one session (bfv)",
        f"{COEFFICIENTS} coefficients of the key",
        played(refusals_of_one_session),
        "he.authority.KeyAuthority.use_up",
        "no second one",
        always(True),
    ),
)
