"""Which parameters of BFV and CKKS are accepted: 128-bit security, and sums that decrypt exactly, both by calculation.

All noise is that of honest encryptions under SEAL's distributions: secret and ephemeral polynomials have coefficients
in {-1, 0, 1}, errors are centred binomial in [-21, 21]. Encryption happens modulo all coefficient moduli and is then
divided by the last one, P, and rounded, so what a fresh ciphertext carries modulo q is

    v = (e1 - e u + e2 s) / P + r0 + r1 s,        |r0|, |r1| <= 1/2 in every coefficient.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from fedopal_secure.core.codec import Message
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.params import MAX_CLIENTS
from fedopal_secure.core.ring import is_prime

BFV_SCHEME: Final = "bfv"
CKKS_SCHEME: Final = "ckks"

# Bits of the product of all coefficient moduli for 128-bit classical security with a ternary secret, by degree:
# Albrecht et al., Homomorphic Encryption Security Standard (HomomorphicEncryption.org, 2018), table 1.
SECURE_BITS: Final = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}

DIGIT_BITS: Final = 24  # of the signed digits in which CKKS carries integers
FAILURE_BITS: Final = 40  # a bound that is not certain fails with probability 2**-40 at most, over a whole vector

_ERROR_BOUND: Final = 21
_ERROR_VARIANCE: Final = 10.5
_MAX_PLAIN_BITS: Final = 50
_MAX_PRIME_BITS: Final = 60  # SEAL's own limit
_UNIT: Final = 2.0**-53  # roundoff of float64


class Parameters(Message, frozen=True, tag="he-parameters"):
    """Parameters of one scheme.

    `degree` is N. The last of the primes `coefficient_moduli` is P, which only encryption uses; q is the product of the
    others. BFV has one key for each of the primes `plain_moduli` (t), CKKS has none of them and one key.
    """

    scheme: str
    degree: int
    coefficient_moduli: tuple[int, ...]
    plain_moduli: tuple[int, ...]

    @property
    def ciphertext_moduli(self) -> tuple[int, ...]:
        """The primes whose product is q."""
        return self.coefficient_moduli[:-1]

    @property
    def q(self) -> int:
        """The modulus of ciphertexts."""
        return math.prod(self.ciphertext_moduli)

    @property
    def modulus_bits(self) -> int:
        """Bits of the product of all coefficient moduli, which security depends on."""
        return math.prod(self.coefficient_moduli).bit_length()

    @property
    def keys(self) -> int:
        """How many key pairs there are."""
        return max(1, len(self.plain_moduli))


# Ciphertexts of 2 * 80 bits for each of 4096 entries, sums of 50 bits each: 20 bytes an entry.
BFV: Final = Parameters(BFV_SCHEME, 4096, (1099511390209, 1099511480321, 1032193), (1125899906826241, 1125899906629633))
# Ciphertexts of 2 * 64 bits for each of 4096 digits.
CKKS: Final = Parameters(CKKS_SCHEME, 4096, (4294475777, 4294828033, 268369921), ())

DEFAULTS: Final = {BFV_SCHEME: BFV, CKKS_SCHEME: CKKS}


def check_parameters(parameters: Parameters) -> None:
    """Refuse weak parameters, and those under which honest sums might not decrypt exactly; raises InputError."""

    def require(holds: bool, detail: str) -> None:
        if not holds:
            raise InputError(f"these encryption parameters are refused: {detail}")

    p = parameters
    require(p.scheme in DEFAULTS, f"scheme {p.scheme!r} is neither 'bfv' nor 'ckks'")
    require(p.degree in SECURE_BITS, f"degree {p.degree} is none of {', '.join(map(str, SECURE_BITS))}")
    require(len(p.coefficient_moduli) >= 2, "it takes two coefficient moduli, as the last one is for encryption only")
    for prime in (*p.coefficient_moduli, *p.plain_moduli):
        ntt = 2 < prime < 2**_MAX_PRIME_BITS and prime % (2 * p.degree) == 1 and is_prime(prime)
        require(ntt, f"{prime} is not a prime below 2^{_MAX_PRIME_BITS} and 1 modulo {2 * p.degree}")
    primes = (*p.coefficient_moduli, *p.plain_moduli)
    require(len(set(primes)) == len(primes), "a modulus occurs twice")
    limit = SECURE_BITS[p.degree]
    require(
        p.modulus_bits <= limit,
        f"{p.modulus_bits} bits of coefficient moduli; 128-bit security at degree {p.degree} allows {limit}",
    )
    if p.scheme == CKKS_SCHEME:
        require(not p.plain_moduli, "CKKS has no plain modulus")
        require(error_bound(p, 3, p.degree) < 0.5, "three encrypted integers cannot be told from their neighbours")
        return
    require(bool(p.plain_moduli), "BFV needs a plain modulus")
    for t in p.plain_moduli:
        require(t.bit_length() <= _MAX_PLAIN_BITS, f"the plain modulus {t} has more than {_MAX_PLAIN_BITS} bits")
        require(sum_is_exact(p, t, MAX_CLIENTS), f"a sum of {MAX_CLIENTS} ciphertexts modulo {t} might decrypt wrongly")


def fresh_noise(parameters: Parameters) -> Fraction:
    """Largest magnitude of a coefficient of v, for any honest encryption: certain, not just likely."""
    n, special = parameters.degree, parameters.coefficient_moduli[-1]
    return Fraction(_ERROR_BOUND * (2 * n + 1), special) + Fraction(n + 1, 2)


def sum_noise(parameters: Parameters, clients: int) -> Fraction:
    """Largest magnitude of a coefficient of the noise in a sum of BFV ciphertexts; certain for honest ones.

    Each adds the rounding of q m / t, which is 1/2 at most, to v.
    """
    return clients * (fresh_noise(parameters) + Fraction(1, 2))


def sum_is_exact(parameters: Parameters, plain_modulus: int, clients: int) -> bool:
    """Whether the noise of so many honest BFV ciphertexts stays below q / 4t, half of what decryption bears."""
    return 4 * plain_modulus * sum_noise(parameters, clients) <= parameters.q


def least_noise_budget(parameters: Parameters, plain_modulus: int, clients: int) -> int:
    """The noise budget, in whole bits, that a sum of so many honest BFV ciphertexts keeps for certain."""
    ratio = parameters.q / (2 * plain_modulus * sum_noise(parameters, clients))
    return max(0, math.floor(math.log2(ratio)))


def scale_bits(parameters: Parameters, clients: int) -> int:
    """log2 of the CKKS scale: the largest at which sums of so many clients' digits cannot wrap modulo q.

    A complex slot of the sum is at most sqrt(2) * clients * 2**23, a coefficient of its polynomial is no larger, and it
    must stay below q / 2 with the noise; 3/2 stands for sqrt(2) and that noise. Not below 0.
    """
    return max(0, (2 * parameters.q // (3 * clients << DIGIT_BITS)).bit_length() - 1)


def error_bound(parameters: Parameters, clients: int, digits: int) -> float:
    """Bound of |decrypted - true| over `digits` slots of a CKKS sum, failing with probability 2**-40 at most.

    Noise: real and imaginary part of a polynomial with independent centred coefficients, at a root of X**N + 1, are
    sub-Gaussian with N/2 times the coefficients' variance proxy. Proxies: 2/3 for ternary, 10.5 for errors, 1/4 for
    anything in [-1/2, 1/2] (Hoeffding); that the roundings r0, r1 are centred and independent is RLWE's
    pseudorandomness. Floating point: one FFT each way, at its worst case (Higham 2002, theorem 24.2), not at random.
    """
    n, special, k = parameters.degree, float(parameters.coefficient_moduli[-1]), clients
    # Half of the failure for the sizes of key and key error at the N roots, half for the noise given the key. A modulus
    # bounded by two parts of sqrt(2) / 2 each leaves room to spare: he/v1 section 2.5 proves 2**-76.
    key_tail = _tail(n)
    secret = key_tail * math.sqrt(2 * n / 3)
    key_error = key_tail * math.sqrt(2 * n * _ERROR_VARIANCE / 2)
    encryption = (_ERROR_VARIANCE * (1 + secret**2) + 2 / 3 * key_error**2) / special**2
    proxy = n / 2 * k * (encryption + 1 / 4 * (1 + secret**2) + 1 / 4)
    noise = _tail(digits) * math.sqrt(proxy) / 2.0 ** scale_bits(parameters, clients)
    fft = math.log2(n) * 6.7 * _UNIT
    floats = math.sqrt(n) * k * 2.0 ** (DIGIT_BITS - 1) * (2 * fft + 8 * _UNIT)
    return noise + floats


def _tail(count: int) -> float:
    """How many standard deviations none of `count` sub-Gaussians passes, except with probability 2**-41."""
    return math.sqrt(2 * math.log(2 * count * 2.0 ** (FAILURE_BITS + 1)))
