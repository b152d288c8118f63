"""What is accepted as parameters, and that noise stays within what is claimed of it."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.params import MAX_CLIENTS
from fedopal_secure.core.ring import is_prime
from fedopal_secure.he import parameters as module
from fedopal_secure.he.parameters import (
    BFV,
    CKKS,
    SECURE_BITS,
    check_parameters,
    error_bound,
    fresh_noise,
    least_noise_budget,
    scale_bits,
    sum_is_exact,
)


def primes(bits, count, degree=4096):
    found, candidate = [], (1 << bits) - (1 << bits) % (2 * degree) + 1 - 2 * degree
    while len(found) < count:
        if is_prime(candidate):
            found.append(candidate)
        candidate -= 2 * degree
    return tuple(found)


@pytest.mark.parametrize("parameters", [BFV, CKKS], ids=["bfv", "ckks"])
def test_defaults_are_accepted_and_secure(parameters):
    check_parameters(parameters)
    assert math.prod(parameters.coefficient_moduli).bit_length() <= SECURE_BITS[parameters.degree]


REFUSED = {
    "another scheme": (replace(BFV, scheme="bgv"), "neither"),
    "a degree outside the table": (replace(BFV, degree=512), "degree 512"),
    "too many bits": (replace(BFV, coefficient_moduli=(*primes(40, 2), primes(31, 1)[0])), "128-bit security"),
    "degree too small for the bits": (replace(CKKS, degree=2048), "128-bit security"),
    "no prime": (
        replace(BFV, coefficient_moduli=(BFV.coefficient_moduli[0], 2**40 - 1, BFV.coefficient_moduli[2])),
        "prime",
    ),
    "a prime without an NTT": (
        replace(BFV, coefficient_moduli=(1099511627689, *BFV.coefficient_moduli[1:])),
        "1 modulo",
    ),
    "a modulus twice": (
        replace(BFV, coefficient_moduli=BFV.coefficient_moduli[:1] * 2 + BFV.coefficient_moduli[2:]),
        "twice",
    ),
    "a modulus above what SEAL takes": (replace(BFV, coefficient_moduli=(primes(62, 1)[0], primes(20, 1)[0])), "below"),
    "one coefficient modulus": (replace(BFV, coefficient_moduli=BFV.coefficient_moduli[:1]), "two coefficient"),
    "no plain modulus": (replace(BFV, plain_moduli=()), "needs a plain"),
    "a plain modulus that does not batch": (replace(BFV, plain_moduli=(65539,)), "1 modulo"),
    "a plain modulus that is too large": (replace(BFV, plain_moduli=primes(52, 1)), "more than 50 bits"),
    "noise that may pass the margin": (replace(BFV, coefficient_moduli=(*primes(36, 2), primes(29, 1)[0])), "wrongly"),
    "plain moduli in CKKS": (replace(CKKS, plain_moduli=BFV.plain_moduli), "no plain"),
    "a CKKS scale that is too small": (
        replace(CKKS, coefficient_moduli=(*primes(20, 2), primes(28, 1)[0])),
        "neighbours",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    parameters, reason = REFUSED[name]
    with pytest.raises(InputError, match=reason):
        check_parameters(parameters)


def test_the_security_table_is_what_stops_weak_parameters(monkeypatch):
    weak, _ = REFUSED["too many bits"]
    monkeypatch.setitem(module.SECURE_BITS, 4096, 200)
    check_parameters(weak)


def test_bfv_bears_the_largest_cohort():
    assert all(sum_is_exact(BFV, t, MAX_CLIENTS) for t in BFV.plain_moduli)
    # By hand: q / 4t is 2**28, and one honest ciphertext has at most 21 * 8193 / P + 4097 / 2 + 1/2.
    assert 2049 <= fresh_noise(BFV) + 1 / 2 < 2050
    assert least_noise_budget(BFV, BFV.plain_moduli[0], MAX_CLIENTS) >= 1
    assert not sum_is_exact(BFV, BFV.plain_moduli[0], 2**28 // 2049 + 1)


def test_ckks_scale_leaves_room_for_the_sum():
    for clients in (3, 100, MAX_CLIENTS):
        largest = math.sqrt(2) * clients * 2**23 * 2.0 ** scale_bits(CKKS, clients)
        assert largest < CKKS.q / 2 <= 4 * largest


def test_ckks_error_bound_grows_with_clients_and_digits():
    assert error_bound(CKKS, 12, 4096) < error_bound(CKKS, 100, 4096) < error_bound(CKKS, 100, 400_000)
    assert error_bound(CKKS, 2**13, 400_000) < 0.5 < error_bound(CKKS, 2**14, 400_000)
