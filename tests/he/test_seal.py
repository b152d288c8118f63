"""Encryption by SEAL: exact sums in both schemes, noise within its bound, and known answers that can fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.params import MAX_CLIENTS, Segment
from fedopal_secure.he import seal as module
from fedopal_secure.he.ciphertext import CiphertextForm
from fedopal_secure.he.parameters import (
    BFV,
    CKKS,
    DEFAULTS,
    error_bound,
    fresh_noise,
    least_noise_budget,
    scale_bits,
)
from fedopal_secure.he.seal import DecryptionError, Seal, load_seal

sealapi = pytest.importorskip("tenseal.sealapi", reason="missing tool: TenSEAL, of the extra `he`")
SEGMENTS = (Segment("a", 5000, 6, True), Segment("b", 10, 8, False))


def vectors(count, seed=0):
    rng = np.random.default_rng(seed)
    share = 2**47 // count
    return [
        np.concatenate(
            [rng.integers(-share, share, 5000).view(np.uint64), rng.integers(0, 2**40, 10).astype(np.uint64)]
        )
        for _ in range(count)
    ]


class Keyed:
    """A scheme with a key of its own."""

    def __init__(self, parameters, clients):
        self.seals, self.clients = load_seal(parameters), clients
        self.pairs = [seal.generate_key() for seal in self.seals]
        self.form = CiphertextForm(parameters, SEGMENTS, 0)

    def encrypt(self, vector):
        parts = zip(self.seals, self.pairs, self.form.to_slots(vector), strict=True)
        return np.concatenate([seal.encrypt(public, part, self.clients) for seal, (public, _), part in parts])

    def open(self, total):
        groups = zip(self.seals, self.pairs, self.form.by_key(total), strict=True)
        opened = [seal.decrypt(secret, group, self.clients) for seal, (_, secret), group in groups]
        return self.form.from_slots([part for part, _ in opened]), max(error for _, error in opened)


@pytest.fixture(params=["bfv", "ckks"])
def keyed(request):
    return Keyed(DEFAULTS[request.param], 5)


def test_any_subset_of_uploads_opens_to_its_sum(keyed):
    plain = vectors(5)
    encrypted = [keyed.encrypt(vector) for vector in plain]
    bound = error_bound(CKKS, 5, keyed.form.slots[0])
    for chosen in range(1, 2**5):
        total, expected = keyed.form.zeros(), np.zeros(5010, np.uint64)
        for place in range(5):
            if chosen >> place & 1:
                keyed.form.add_into(total, keyed.form.from_bytes(keyed.form.to_bytes(encrypted[place])))
                expected += plain[place]
        opened, error = keyed.open(total)
        mask = np.uint64(2**48 - 1)
        assert np.array_equal(opened[:5000], expected[:5000] & mask)
        assert np.array_equal(opened[5000:], expected[5000:])
        assert error <= bound


def test_our_addition_is_seals(keyed):
    one, other = (keyed.encrypt(vector) for vector in vectors(2))
    total = one.copy()
    keyed.form.add_into(total, other)
    seal, ntt = keyed.seals[0], keyed.form.parameters.scheme == "ckks"
    scale = 2.0 ** scale_bits(CKKS, 5) if ntt else 1.0

    def loaded(residues):
        return seal._filled(sealapi.Ciphertext(seal._context), seal._context.first_parms_id(), ntt, scale, residues)

    added = sealapi.Ciphertext(seal._context)
    sealapi.Evaluator(seal._context).add(loaded(one[0]), loaded(other[0]), added)
    assert np.array_equal(seal._residues(added, 2), total[0])


def test_ciphertexts_differ_each_time(keyed):
    vector = vectors(1)[0]
    assert not np.array_equal(keyed.encrypt(vector), keyed.encrypt(vector))


def test_bfv_noise_keeps_to_its_bound():
    seal = load_seal(BFV)[0]
    public, secret = seal.generate_key()
    key = sealapi.SecretKey()
    with module._in_memory(secret) as path:
        key.load(seal._context, path)
    decryptor = sealapi.Decryptor(seal._context, key)
    least = least_noise_budget(BFV, BFV.plain_moduli[0], 1)
    for residues in seal.encrypt(public, np.arange(40_000, dtype=np.uint64), 1):
        empty = sealapi.Ciphertext(seal._context)
        filled = seal._filled(empty, seal._context.first_parms_id(), False, 1.0, residues)
        assert decryptor.invariant_noise_budget(filled) >= least
    assert fresh_noise(BFV) < 2050


def test_too_much_noise_is_refused():
    seal = load_seal(BFV)[0]
    _, secret = seal.generate_key()
    other, _ = seal.generate_key()
    foreign = seal.encrypt(other, np.arange(10, dtype=np.uint64), 3)
    with pytest.raises(DecryptionError):
        seal.decrypt(secret, foreign, 3)


@pytest.mark.parametrize("clients", [3, 100, 2**13])
def test_ckks_errors_keep_to_their_bound(clients):
    # As many clients as noise: the noise of independent ciphertexts adds up like the root of their number.
    seal, copies = load_seal(CKKS)[0], max(1, int(clients**0.5))
    public, secret = seal.generate_key()
    digits = np.random.default_rng(0).integers(-(2**23), 2**23, 4096)
    total = seal.encrypt(public, digits, clients)
    form = CiphertextForm(CKKS, (Segment("x", 4096, 3, True),), 0)
    once = total.copy()
    for _ in range(copies - 1):
        form.add_into(total, once)
    opened, error = seal.decrypt(secret, total, clients)
    assert np.array_equal(opened, copies * digits)
    assert 0 < error <= error_bound(CKKS, clients, 4096)


def test_largest_totals_of_the_largest_cohort_do_not_wrap():
    seal = load_seal(BFV)[0]
    public, secret = seal.generate_key()
    t = BFV.plain_moduli[0]
    values = np.array([t // 2, t // 2 + 1, t - 1, 1], dtype=np.uint64)
    total = seal.encrypt(public, values, MAX_CLIENTS)
    opened, _ = seal.decrypt(secret, total, MAX_CLIENTS)
    assert opened[:4].tolist() == values.tolist()
    assert not opened[4:].any()


@pytest.mark.parametrize("parameters", [BFV, CKKS], ids=["bfv", "ckks"])
def test_a_known_answer_that_does_not_come_back_is_refused(parameters, monkeypatch):
    seal = Seal(sealapi, parameters, parameters.plain_moduli[0] if parameters.plain_moduli else 0)
    seal.check_known_answer()
    decrypt = Seal.decrypt

    def off_by_one(self, secret, ciphertexts, clients):
        opened, error = decrypt(self, secret, ciphertexts, clients)
        opened[17] += 1
        return opened, error

    monkeypatch.setattr(Seal, "decrypt", off_by_one)
    with pytest.raises(InputError, match="exactly"):
        seal.check_known_answer()


def test_parameters_that_decrypt_wrongly_are_found_by_the_known_answer(monkeypatch):
    # A plain modulus that leaves no room for noise: SEAL takes it and raises nothing.
    narrow = replace(BFV, coefficient_moduli=BFV.coefficient_moduli[:1] + BFV.coefficient_moduli[2:])
    seal = Seal(sealapi, narrow, 786433)
    monkeypatch.setattr(module, "least_noise_budget", lambda *_: 0)
    with pytest.raises(InputError, match="exactly"):
        seal.check_known_answer()


def test_parameters_are_checked_before_they_are_loaded():
    with pytest.raises(InputError, match="128-bit"):
        load_seal(replace(CKKS, degree=2048))


def test_missing_tenseal_is_one_line(monkeypatch):
    import builtins

    real = builtins.__import__
    monkeypatch.setattr(
        builtins,
        "__import__",
        lambda name, *rest: (_ for _ in ()).throw(ImportError()) if name == "tenseal" else real(name, *rest),
    )
    load_seal.cache_clear()
    with pytest.raises(InputError, match="fedopal-secure\\[he\\]"):
        load_seal(BFV)


def test_nothing_of_a_secret_key_reaches_a_disk():
    # SEAL's bindings read and write files only; those are made in memory and closed.
    with module._in_memory(b"secret") as path:
        assert path.startswith("/proc/self/fd/")
        assert Path(path).read_bytes() == b"secret"
