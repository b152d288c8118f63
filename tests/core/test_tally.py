"""The core never assumes how a masked vector travels: a session over a toy packing sums and recovers all the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core import client, server
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import ClientFault, MisuseError, PolicyRefusal
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context, Proposal, Upload, is_signed, payload_hash, sign
from fedopal_secure.core.params import BFV, BFV_MASKED, CKKS, check_params
from fedopal_secure.core.policy import Membership, check_proposal
from fedopal_secure.core.ring import Ring
from fedopal_secure.core.tally import WireTally, wire
from tests.core.harness import PRIMES, Federation, Member, make, run, seed

PIN = b"\x07" * 32


def encrypted(clients: int = 5, corrupt: int = 1, protocol: str = BFV_MASKED) -> Federation:
    modulus = PRIMES[0] if protocol == BFV_MASKED else 0
    federation = make(
        clients, corrupt, modulus=modulus, protocols=frozenset({protocol}), public_context=PIN, start="tally"
    )
    params = replace(federation.params, protocol=protocol, public_context=PIN)
    return dataclasses.replace(federation, params=params)


def pack(masked):
    """Big-endian and turned round: nothing like the wire form."""
    return masked[::-1].astype(">u8").tobytes()


class ToyTally:
    """The sum of what `pack` packs."""

    def __init__(self, params):
        self.sum, self.ring = np.zeros(params.length, np.uint64), Ring(params.modulus)

    def add(self, payload):
        if len(payload) != 8 * len(self.sum):
            raise ValueError("no toy")
        self.ring.add_into(self.sum, np.frombuffer(payload, ">u8")[::-1].astype(np.uint64))

    def total(self):
        return self.sum.copy()


def play(federation, gone=()):
    """A session in which `gone` never upload: the server's state when only `finish` is left, and what went before."""
    params, vectors = federation.params, federation.vectors()
    state, proposal = server.start(params, federation.members, federation.host, ToyTally(params))
    clients = {}
    for key in federation.keys:
        entropy = federation.entropy("client", key.identity)
        clients[key.identity], advert = client.advertise(
            proposal, federation.policy, key, b"", entropy, params.protocol
        )
        state = server.receive(state, key.identity, advert)
    state, requests = server.close(state)
    for identity, request in requests.items():
        clients[identity], sent = client.share(clients[identity], request, federation.entropy("share", identity))
        state = server.receive(state, identity, sent)
    state, requests = server.close(state)
    for identity, request in requests.items():
        clients[identity] = client.hold(clients[identity], request)
    state, request = server.open_uploads(state, Context(state.session, b"", b"", (), b""))
    for identity in federation.ids:
        if identity not in gone:
            clients[identity], sent = client.upload(clients[identity], vectors[identity], request, None, pack)
            state = server.receive(state, identity, sent)
    state, requests = server.close(state)
    for identity, view in requests.items():
        if identity not in gone:
            clients[identity], sent = client.attest(clients[identity], view)
            state = server.receive(state, identity, sent)
    state, requests = server.close(state)
    for identity, request in requests.items():
        clients[identity], sent = client.reveal(clients[identity], request)
        state = server.receive(state, identity, sent)
    return state


@pytest.mark.parametrize("lost", [0, 1])
def test_a_session_over_another_packing(lost):
    federation = encrypted()
    gone = federation.ids[:lost]
    state = play(federation, gone)
    survivors = federation.ids[lost:]
    assert [header.sender for header, _ in server.signed_uploads(state)] == list(survivors)
    result = server.finish(state)
    expected = sum(federation.vectors()[identity].astype(object) for identity in survivors) % PRIMES[0]
    assert np.array_equal(result.total, expected.astype(np.uint64))


def test_only_finish_asks_for_the_total_and_may_be_called_again_while_it_is_not_open(monkeypatch):
    def not_open(_):
        raise MisuseError("the total is not open")

    with monkeypatch.context() as patch:
        patch.setattr(ToyTally, "total", not_open)
        state = play(encrypted())
        with pytest.raises(MisuseError, match="not open"):
            server.finish(state)
    before = state.records.tally.total()
    assert server.finish(state).total.any()
    assert np.array_equal(state.records.tally.total(), before)


def test_a_tally_is_used_even_if_it_looks_empty():
    class Sized(ToyTally):
        def __len__(self):
            return 0

    federation = encrypted()
    given = Sized(federation.params)
    state, _ = server.start(federation.params, federation.members, federation.host, given)
    assert state.records.tally is given


def test_signed_uploads_are_the_survivors_with_their_certificates():
    authority = SigningKey(seed("authority"))
    members, federation = Membership(authority=authority.identity), make(4)
    policy = dataclasses.replace(federation.policy, members=members)
    federation = dataclasses.replace(federation, members=members, policy=policy)

    class Certified(Member):
        def advertise(self, proposal):
            certificate = authority.certify(self.identity)
            self.state, sent = client.advertise(proposal, policy, self.key, certificate, self.entropy)
            return sent

    kinds, late = dict.fromkeys(federation.ids, Certified), federation.ids[1:2]
    for stop in ("attest", "reveal", None):
        shown = server.signed_uploads(run(federation, kinds=kinds, late=late, order=1, stop=stop).state)
        expected = [(i, authority.certify(i)) for i in federation.ids if i not in late]
        assert [(header.sender, certificate) for header, certificate in shown] == expected
        assert all(is_signed(header) for header, _ in shown)
    for stop in ("share", "upload"):
        with pytest.raises(MisuseError, match="not closed"):
            server.signed_uploads(run(federation, kinds=kinds, stop=stop).state)


def test_a_tally_that_refuses_is_the_clients_fault_and_the_header_covers_the_payload():
    federation = encrypted(3, 0)
    params, key = federation.params, federation.keys[0]
    state, proposal = server.start(params, federation.members, federation.host, ToyTally(params))
    states = {}
    for each in federation.keys:
        entropy = federation.entropy(each.identity)
        states[each.identity], sent = client.advertise(proposal, federation.policy, each, b"", entropy, BFV_MASKED)
        state = server.receive(state, each.identity, sent)
    for step in ("share", "hold"):
        state, requests = server.close(state)
        for identity, request in requests.items():
            if step == "hold":
                states[identity] = client.hold(states[identity], request)
                continue
            states[identity], sent = client.share(states[identity], request, federation.entropy(identity, 1))
            state = server.receive(state, identity, sent)
    state, request = server.open_uploads(state, Context(state.session, b"", b"", (), b""))
    with pytest.raises(MisuseError, match="not closed"):
        server.signed_uploads(state)
    vector = federation.vectors()[key.identity]
    _, sent = client.upload(states[key.identity], vector, request, None, lambda masked: pack(masked)[:-1])
    upload = decode(Upload, sent, MisuseError)
    assert upload.header.payload_hash == payload_hash(upload.payload)
    with pytest.raises(ClientFault, match="sent no toy"):
        server.receive(state, key.identity, sent)
    with pytest.raises(ClientFault, match="another upload than it signed"):
        server.receive(state, key.identity, encode(replace(upload, payload=upload.payload + b"\0")))


def test_the_wire_tally_adds_what_wire_packs_and_nothing_else():
    for modulus in (0, *PRIMES):
        federation = make(4, modulus=modulus)
        tally, params = WireTally(federation.params), federation.params
        for vector in federation.vectors().values():
            tally.add(wire(params)(vector))
        before = tally.total()
        with pytest.raises(ValueError, match="wrong length"):
            tally.add(bytes(params.upload_bytes + 1))
        if modulus:
            with pytest.raises(ValueError, match="not residues"):
                tally.add(b"\xff" * params.upload_bytes)
        tally.total()[:] = 0  # the caller's own array
        assert np.array_equal(tally.total(), before)


def test_the_core_speaks_masked_protocols_only():
    federation = encrypted(protocol=BFV)
    proposal = encode(sign(federation.host, Proposal(federation.params)))
    with pytest.raises(MisuseError, match="not spoken here"):
        client.advertise(proposal, federation.policy, federation.keys[0], b"", federation.entropy(0), BFV)
    with pytest.raises(PolicyRefusal, match="'protocol'"):
        server.start(federation.params, federation.members, federation.host)


def test_an_encrypted_session_never_falls_back_to_the_wire_form(monkeypatch):
    federation = encrypted(3, 0)
    with pytest.raises(MisuseError, match="say how to add"):
        server.start(federation.params, federation.members, federation.host)
    tried = []
    upload = client.upload

    def without_packing(state, vector, context, parent, pack):
        with pytest.raises(MisuseError, match="say how to pack"):
            upload(state, vector, context, parent)
        tried.append(state.used)
        return upload(state, vector, context, parent, pack)

    monkeypatch.setattr(client, "upload", without_packing)
    server.finish(play(federation))
    assert tried == [False] * 3


def test_a_client_that_speaks_secagg_refuses_masks_inside_an_encryption():
    federation = encrypted()
    proposal = encode(sign(federation.host, Proposal(federation.params)))
    with pytest.raises(PolicyRefusal, match="'protocol'"):
        client.advertise(proposal, federation.policy, federation.keys[0], b"", federation.entropy(0))


@pytest.mark.parametrize("protocol", [BFV, BFV_MASKED, CKKS])
def test_rules_of_encrypted_sessions(protocol):
    params = encrypted(protocol=protocol).params
    check_params(params, protocol)
    for pin in (b"", bytes(31)):
        with pytest.raises(PolicyRefusal, match="'public_context'"):
            check_params(replace(params, public_context=pin), protocol)
    with pytest.raises(PolicyRefusal, match="'modulus'"):
        check_params(replace(params, modulus=0 if params.modulus else PRIMES[0]), protocol)
    with pytest.raises(PolicyRefusal, match="'min_contributors'"):
        task = replace(params.task, min_contributors=1)
        check_params(replace(params, task=task, name="census"), protocol)


def test_a_policy_pins_the_context_and_may_allow_masks_without_encryption():
    federation = encrypted()
    check_proposal(federation.policy, federation.params, BFV_MASKED)
    other = replace(federation.params, public_context=bytes(32))
    with pytest.raises(PolicyRefusal, match="'public_context'"):
        check_proposal(federation.policy, other, BFV_MASKED)
    plain = make(4, public_context=PIN)
    check_proposal(plain.policy, plain.params)
