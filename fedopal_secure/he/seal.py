"""The only module that calls TenSEAL: key generation, encryption and decryption by Microsoft SEAL.

SEAL never reads what another party wrote. Its objects are filled from residues that were checked here, under a header
that this module writes for the parameters at hand. Parameters are used only after known answers came back.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.params import MAX_CLIENTS
from fedopal_secure.core.ring import U64, Ring
from fedopal_secure.he.parameters import (
    BFV_SCHEME,
    DIGIT_BITS,
    Parameters,
    check_parameters,
    least_noise_budget,
    scale_bits,
)

_HEADER_BYTES: Final = 16


class DecryptionError(ValueError):
    """A ciphertext carries more noise than any sum of honest encryptions."""


@lru_cache(8)
def load_seal(parameters: Parameters) -> tuple[Seal, ...]:
    """SEAL under these parameters, for each key in turn, once it has given known answers.

    Raises InputError if TenSEAL is missing, if the parameters are refused, or if a known answer does not come back.
    """
    check_parameters(parameters)
    try:
        from tenseal import sealapi  # an extra, and everything else works without it
    except ImportError:
        raise InputError("encryption needs TenSEAL: pip install 'fedopal-secure[he]'") from None
    seals = tuple(Seal(sealapi, parameters, modulus) for modulus in parameters.plain_moduli or (0,))
    for seal in seals:
        seal.check_known_answer()
    return seals


class Seal:
    """One key's side of a scheme; `load_seal` makes it.

    A public key is uint64 (2, coefficient moduli, N) in NTT form, a secret key the bytes that SEAL writes, ciphertexts
    are uint64 (ciphertexts, 2, primes of q, N), in NTT form for CKKS. `plain_modulus` is 0 for CKKS.
    """

    def __init__(self, sealapi: Any, parameters: Parameters, plain_modulus: int) -> None:
        self._api, self._parameters, self._plain_modulus = sealapi, parameters, plain_modulus
        self._bfv = parameters.scheme == BFV_SCHEME
        chosen = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV if self._bfv else sealapi.SCHEME_TYPE.CKKS)
        chosen.set_poly_modulus_degree(parameters.degree)
        chosen.set_coeff_modulus([sealapi.Modulus(prime) for prime in parameters.coefficient_moduli])
        if self._bfv:
            chosen.set_plain_modulus(sealapi.Modulus(plain_modulus))
        self._context = sealapi.SEALContext(chosen, True, sealapi.SEC_LEVEL_TYPE.TC128)
        if not self._context.parameters_set():
            raise InputError(f"SEAL refuses these parameters: {self._context.parameters_error_message()}")
        # Magic number, the header's size and SEAL's version, as this SEAL writes them; and that nothing is compressed.
        self._header = _saved(sealapi.Plaintext())[:5] + bytes(3)
        self._encoder = (sealapi.BatchEncoder if self._bfv else sealapi.CKKSEncoder)(self._context)

    def generate_key(self) -> tuple[U64, bytes]:
        """A fresh public and secret key. No key for products or rotations is made: addition needs none."""
        generator, public = self._api.KeyGenerator(self._context), self._api.PublicKey()
        generator.create_public_key(public)
        return self._residues(public.data(), len(self._parameters.coefficient_moduli)), _saved(generator.secret_key())

    def encrypt(self, public: U64, integers: NDArray[Any], clients: int) -> U64:
        """Encrypt BFV residues, uint64, or CKKS digits, int64, at the scale for a sum of so many clients; any length.

        What is left of the last ciphertext is filled with zeros.
        """
        key = self._filled(self._api.PublicKey(), self._context.key_parms_id(), True, 1.0, public)
        encryptor, n = self._api.Encryptor(self._context, key), self._parameters.degree
        ciphertexts = []
        for start in range(0, len(integers), n):
            chunk = np.zeros(n, dtype=integers.dtype)
            chunk[: len(integers) - start] = integers[start : start + n]
            plain, ciphertext = self._api.Plaintext(), self._api.Ciphertext(self._context)
            if self._bfv:
                self._encoder.encode(chunk.tolist(), plain)
            else:
                slots = chunk[: n // 2] + 1j * chunk[n // 2 :]
                self._encoder.encode(slots.tolist(), self._scale(clients), plain)
            encryptor.encrypt(plain, ciphertext)
            ciphertexts.append(self._residues(ciphertext, len(self._parameters.ciphertext_moduli)))
        return np.stack(ciphertexts) if ciphertexts else self._none()

    def decrypt(self, secret: bytes, ciphertexts: U64, clients: int) -> tuple[NDArray[Any], float]:
        """Decrypt sums of so many clients' ciphertexts.

        Returns N integers for each (uint64 residues, or int64 digits), and how far from an integer the farthest was
        before it was rounded (0 for BFV). Raises DecryptionError if a BFV ciphertext has less noise budget than honest
        ones keep.
        """
        opened, farthest = [], 0.0
        with _in_memory(secret) as path:
            key = self._api.SecretKey()
            key.load(self._context, path)
        decryptor = self._api.Decryptor(self._context, key)
        for residues in ciphertexts:
            empty, plain = self._api.Ciphertext(self._context), self._api.Plaintext()
            scale = 1.0 if self._bfv else self._scale(clients)
            total = self._filled(empty, self._context.first_parms_id(), not self._bfv, scale, residues)
            if self._bfv:
                least = least_noise_budget(self._parameters, self._plain_modulus, clients)
                if decryptor.invariant_noise_budget(total) < least:
                    raise DecryptionError("a ciphertext has more noise than honest encryptions add up to")
            decryptor.decrypt(total, plain)
            if self._bfv:
                opened.append(np.array(self._encoder.decode_uint64(plain), dtype=np.uint64))
                continue
            slots = np.array(self._encoder.decode_complex(plain))
            exact = np.concatenate([slots.real, slots.imag])
            farthest = max(farthest, float(np.abs(exact - np.rint(exact)).max()))
            opened.append(np.rint(exact).astype(np.int64))
        return np.concatenate(opened) if opened else np.empty(0, np.uint64 if self._bfv else np.int64), farthest

    def check_known_answer(self) -> None:
        """Encrypt, add and decrypt under a throwaway key; raises InputError if anything but the sum comes back.

        SEAL gives wrong values and no error under some parameters, so none is trusted. The sum is as noisy as that of
        the largest cohort: for BFV one ciphertext taken MAX_CLIENTS times, for CKKS the square root of that.
        """
        parameters, (public, secret) = self._parameters, self.generate_key()
        span = self._plain_modulus or 1 << DIGIT_BITS
        spread = np.arange(parameters.degree, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) % np.uint64(span)
        spread[:4] = (0, 1, span // 2, span - 1)
        integers: NDArray[Any] = spread if self._bfv else spread.astype(np.int64) - span // 2
        doublings = (MAX_CLIENTS.bit_length() - 1) // (1 if self._bfv else 2)
        total = self.encrypt(public, integers, MAX_CLIENTS)
        for _ in range(doublings):
            for place, prime in enumerate(parameters.ciphertext_moduli):
                Ring(prime).add_into(total[:, :, place], total[:, :, place].copy())
        expected = [int(integer) << doublings for integer in integers]
        try:
            found, _ = self.decrypt(secret, total, MAX_CLIENTS)
        except DecryptionError:
            found = np.empty(0)
        if found.tolist() != ([integer % span for integer in expected] if self._bfv else expected):
            raise InputError(f"SEAL does not decrypt exactly under {parameters}: choose other parameters")

    def _scale(self, clients: int) -> float:
        return 2.0 ** scale_bits(self._parameters, clients)

    def _none(self) -> U64:
        return np.empty((0, 2, len(self._parameters.ciphertext_moduli), self._parameters.degree), dtype=np.uint64)

    def _residues(self, ciphertext: Any, primes: int) -> U64:
        count = 2 * primes * self._parameters.degree
        if (ciphertext.size(), ciphertext.coeff_modulus_size()) != (2, primes):
            raise InputError("SEAL gave a ciphertext of another shape than its parameters say: check its version")
        flat = np.fromiter(map(ciphertext.__getitem__, range(count)), np.uint64, count)
        return flat.reshape(2, primes, self._parameters.degree)

    def _filled(self, empty: Any, level: list[int], ntt: bool, scale: float, residues: U64) -> Any:
        """A SEAL ciphertext or public key at a level of the modulus chain, of residues (2, primes, N)."""
        _, primes, n = residues.shape
        # Fields of a ciphertext in SEAL 4: level, NTT form, polynomials, N, primes, scale, and BGV's correction factor.
        fields = struct.pack("<4Q?QQQdQ", *level, ntt, 2, n, primes, scale, 1)
        numbers = struct.pack("<Q", residues.size) + residues.astype("<u8").tobytes()
        body = fields + self._with_header(numbers)
        with _in_memory(self._with_header(body)) as path:
            try:
                empty.load(self._context, path)
            except (RuntimeError, ValueError) as error:  # of residues that no one has checked, a caller's fault
                raise InputError(f"SEAL refuses a ciphertext: {error}") from None
        return empty

    def _with_header(self, body: bytes) -> bytes:
        return self._header + struct.pack("<Q", _HEADER_BYTES + len(body)) + body


def _saved(thing: Any) -> bytes:
    with _in_memory(b"") as path:
        thing.save(path)
        with open(path, "rb") as file:
            return file.read()


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A path to bytes that never reach a disk: SEAL's bindings read and write files only, and some hold a secret."""
    descriptor = os.memfd_create("seal")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
