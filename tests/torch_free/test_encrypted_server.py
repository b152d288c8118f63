"""The server of encrypted sums needs no TenSEAL: it adds residues, and sees neither a key nor a plaintext."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedopal_secure.core import messages
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.params import CKKS, Segment, SessionParams
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.ring import to_wire
from fedopal_secure.federation.protocols import open_server
from fedopal_secure.federation.secure_sum import OPEN, UPLOAD
from fedopal_secure.he import messages as he
from fedopal_secure.he import parameters
from fedopal_secure.he.context import form_of, write_key
from fedopal_secure.he.seal import load_seal
from tests.torch_free.test_server_side import task

SEGMENTS = (Segment("x", 5000, 5, True),)
AUTHORITY, SERVER = SigningKey(b"\1" * 32), SigningKey(b"\2" * 32)
CLIENTS = sorted((SigningKey(bytes([number]) * 32) for number in range(3, 6)), key=lambda key: key.identity)


def test_it_adds_and_asks_and_takes_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)  # importing it raises ImportError
    load_seal.cache_clear()
    with pytest.raises(InputError, match="needs TenSEAL"):
        load_seal(parameters.CKKS)
    p = parameters.CKKS
    key = np.zeros((2, len(p.coefficient_moduli), p.degree), np.uint64)
    context = he.sign(AUTHORITY, he.PublicContext(CKKS, p, (write_key(p, key),), AUTHORITY.identity))
    pinned, identity = he.public_context_hash(context), SERVER.identity
    params = SessionParams(CKKS, "statistics", bytes(32), identity, b"", 3, 0, 0, 3, 0, pinned, SEGMENTS, task())
    members = Membership(frozenset(client.identity for client in CLIENTS))
    server = open_server(params, members, tuple(sorted(members.identities)), SERVER, context)
    server.request("join")
    request = server.request(UPLOAD, messages.Context(server.session, b"", b"", (), b""))[CLIENTS[0].identity]
    bound = messages.context_hash(decode(messages.Context, request, MisuseError))
    form, rng, expected = form_of(params, p), np.random.default_rng(0), 0
    for client in CLIENTS:
        residues = rng.integers(0, min(p.ciphertext_moduli), form.zeros().shape, dtype=np.uint64)
        payload = form.to_bytes(residues)
        told = (he.NO_HASH, he.NO_HASH, bound, messages.payload_hash(payload))
        header = messages.sign(client, messages.UploadHeader(server.session, client.identity, *told))
        server.receive(client.identity, encode(he.EncryptedUpload(he.SignedUpload(header, b""), payload)))
        expected = expected + residues.astype(object)
    ((asked, request),) = server.request(OPEN).items()
    total = form.from_bytes(decode(he.OpenRequest, request, MisuseError).total)
    for place, prime in enumerate(p.ciphertext_moduli):
        assert np.array_equal(total[:, :, place], (expected[:, :, place] % prime).astype(np.uint64))
    vector = np.arange(5000, dtype=np.uint64)
    answer = he.OpenedTotal(server.session, asked, he.total_hash(form.to_bytes(total)), to_wire(vector, SEGMENTS))
    server.receive(asked, encode(he.sign(AUTHORITY, answer)))
    assert np.array_equal(server.finish().total, vector)
