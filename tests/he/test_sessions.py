"""Encrypted sessions from end to end: exact sums of whoever uploaded, and what the server refuses of others."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import ClientFault, MisuseError, PolicyRefusal, SessionAborted
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import Segment
from fedopal_secure.federation.protocols import open_client, open_server
from fedopal_secure.he import context as context_module
from fedopal_secure.he.messages import EncryptedUpload, OpenedTotal, sign
from tests.core.harness import make
from tests.he.harness import AUTHORITY, Encrypted, Session, encrypted, secrets_of

pytest.importorskip("tenseal", reason="missing tool: TenSEAL, of the extra `he`")

every_kind = pytest.mark.parametrize("kind", ["bfv", "masked", "ckks"])
unmasked = pytest.mark.parametrize("kind", ["bfv", "ckks"])


@every_kind
def test_the_sum_of_all_is_exact(kind):
    setting = encrypted(kind, corrupt=1, clients=5)
    session = Session(setting)
    result = session.finish(setting.authority().open_total(session.to_open(setting.federation.ids)))
    assert np.array_equal(result.total, setting.expected(setting.federation.ids))
    assert result.survivors == setting.federation.ids


@unmasked
def test_any_subset_opens_to_its_sum_without_further_messages(kind):
    setting = encrypted(kind)
    for size in (3, 4):
        for uploading in itertools.combinations(setting.federation.ids, size):
            session = Session(encrypted(kind, nonce=bytes(31) + bytes([size])))
            opened = setting.authority().open_total(session.to_open(uploading))
            result = session.finish(opened)
            assert np.array_equal(result.total, setting.expected(uploading))
            assert result.dropped == tuple(sorted(set(setting.federation.ids) - set(uploading)))


def test_masked_dropouts_are_recovered_as_in_secagg():
    setting = encrypted("masked", clients=6, corrupt=1)
    uploading = setting.federation.ids[:4]
    session = Session(setting)
    result = session.finish(setting.authority().open_total(session.to_open(uploading)))
    assert np.array_equal(result.total, setting.expected(uploading))
    assert result.survivors == uploading


@pytest.mark.parametrize("kind", ["bfv", "ckks"])
def test_wide_entries_and_odd_lengths(kind):
    parts = (Segment("a", 1, 8, False), Segment("b", 4097, 7, True), Segment("c", 2, 1, True))
    setting = encrypted(kind, parts=parts)
    values = {
        identity: np.concatenate([[2**61], np.full(4097, (-1) ** place * 2**50), [-3, 3]]).astype(np.int64)
        for place, identity in enumerate(setting.federation.ids)
    }

    class Wide(Encrypted):
        def vectors(self):
            return {identity: vector.view(np.uint64) for identity, vector in values.items()}

    wide = Wide(setting.federation, setting.secrets)
    session = Session(wide)
    result = session.finish(wide.authority().open_total(session.to_open(wide.federation.ids)))
    assert np.array_equal(result.total, wide.expected(wide.federation.ids))


@unmasked
def test_too_few_uploads_are_not_even_sent_to_the_authority(kind):
    session = Session(encrypted(kind))
    with pytest.raises(SessionAborted, match="min_survivors"):
        session.to_open(session.setting.federation.ids[:2])


@every_kind
def test_without_the_authority_there_is_no_sum(kind):
    setting = encrypted(kind)
    session = Session(setting)
    session.to_open(setting.federation.ids)
    with pytest.raises(SessionAborted, match="not opened"):
        session.server.finish()


@every_kind
def test_what_an_authority_may_not_answer(kind):
    setting = encrypted(kind)
    session = Session(setting)
    opened = decode(OpenedTotal, setting.authority().open_total(session.to_open(setting.federation.ids)), MisuseError)
    wrong = {
        "another total": sign(AUTHORITY, replace(opened, total=bytes(32))),
        "did not sign": replace(opened, vector=bytes(len(opened.vector))),
        "wrong length": sign(AUTHORITY, replace(opened, vector=opened.vector[:-1])),
    }
    if kind == "masked":
        wrong["not residues"] = sign(AUTHORITY, replace(opened, vector=b"\xff" * len(opened.vector)))
    for words, message in wrong.items():
        with pytest.raises(ClientFault, match=words):
            session.server.receive(AUTHORITY.identity, encode(message))
    with pytest.raises(ClientFault, match="another total"):
        session.server.receive(setting.federation.ids[0], encode(opened))
    session.server.receive(AUTHORITY.identity, encode(opened))
    with pytest.raises(ClientFault, match="second time"):
        session.server.receive(AUTHORITY.identity, encode(opened))
    assert np.array_equal(session.server.finish().total, setting.expected(setting.federation.ids))


# What the server refuses of a client, after which the sum is still that of the others.


def uploads_of(kind):
    """A server that waits for uploads, and one upload that it would take."""
    setting = encrypted(kind)
    session = Session(setting)
    context = Context(session.server.session, b"", b"", (), b"")
    key = setting.federation.keys[0]
    (proposal, *_) = session.server.request("join").values()
    client, _ = open_client(proposal, setting.participant(key))
    client.begin_upload(session.server.request("upload", context)[key.identity], None)
    upload = client.upload(setting.vectors()[key.identity])
    return session.server, key.identity, decode(EncryptedUpload, upload, MisuseError)


@unmasked
def test_an_upload_that_is_not_the_clients_own_is_refused(kind):
    server, sender, upload = uploads_of(kind)
    header, other = upload.signed.header, secrets_of("bfv").context.authority
    cases = {
        "another identity": (other, upload),
        "another identity, session": (sender, replace_header(upload, session=bytes(32))),
        "identity, session or context": (sender, replace_header(upload, context=bytes(32))),
        "did not sign": (sender, replace(upload, payload=bytes([upload.payload[0] ^ 1]) + upload.payload[1:])),
        "that it did not sign": (sender, replace_header(upload, signature=bytes(64))),
        "not a valid": (sender, None),
    }
    for words, (who, message) in cases.items():
        with pytest.raises(ClientFault, match=words):
            server.receive(who, b"\x00" if message is None else encode(message))
    server.receive(sender, encode(upload))
    with pytest.raises(ClientFault, match="twice"):
        server.receive(sender, encode(upload))
    assert header.sender == sender


def replace_header(upload, **changes):
    return replace(upload, signed=replace(upload.signed, header=replace(upload.signed.header, **changes)))


# What a client refuses before it sends anything.


@every_kind
def test_a_client_without_the_context_or_with_another_refuses(kind):
    setting = encrypted(kind)
    session = Session(setting)
    proposal = next(iter(session.server.request(session.phases[0]).values()))
    participant = setting.participant(setting.federation.keys[0])
    other = secrets_of(kind, 1)
    wrong_scheme = secrets_of("ckks" if kind != "ckks" else "bfv")
    for loaded, words in (
        (None, "loaded no"),
        (other.context, "another public"),
        (wrong_scheme.context, "another public"),
    ):
        with pytest.raises(PolicyRefusal, match=words):
            open_client(proposal, dataclasses.replace(participant, public_context=loaded))


@every_kind
def test_a_context_that_the_policy_does_not_pin_is_refused(kind):
    setting = encrypted(kind)
    session = Session(setting)
    proposal = next(iter(session.server.request(session.phases[0]).values()))
    participant = setting.participant(setting.federation.keys[0])
    unpinned = dataclasses.replace(participant.policy, public_context=bytes(32))
    with pytest.raises(PolicyRefusal, match="'public_context'"):
        open_client(proposal, dataclasses.replace(participant, policy=unpinned))


def test_too_many_clients_for_ckks_are_refused_and_the_error_would_be_there(monkeypatch):
    setting = encrypted("ckks", clients=4)
    many = replace(setting.federation.params, clients=2**14, degree=100)
    with pytest.raises(PolicyRefusal, match="below 1/2"):
        context_module.check_session(many, setting.secrets.context)
    monkeypatch.setattr(context_module, "error_bound", lambda *_: 0.4)
    context_module.check_session(many, setting.secrets.context)


def test_a_server_without_a_context_is_told():
    federation = encrypted("bfv").federation
    with pytest.raises(MisuseError, match="public context"):
        open_server(federation.params, federation.members, federation.ids, federation.host)


def test_memory_of_the_server_does_not_grow_with_clients():
    setting = encrypted("bfv", clients=12)
    session = Session(setting)
    session.to_open(setting.federation.ids)
    tally = session.server._total.tally
    assert tally._sum.nbytes == 2 * 2 * 2 * 4096 * 8  # two ciphertexts of two polynomials modulo two primes
    assert all(not hasattr(upload, "payload") for upload in session.server._uploads.values())


def test_a_session_of_secagg_names_no_context():
    federation = make(4)
    params = replace(federation.params, public_context=bytes(32))
    with pytest.raises(PolicyRefusal, match="'public_context'"):
        open_server(params, federation.members, federation.ids, federation.host)
