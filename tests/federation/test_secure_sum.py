"""The common interface: a client that was too slow to upload still helps to end the session; order is the server's."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import PolicyRefusal, ServerFault
from fedopal_secure.core.messages import Context, Proposal, sign
from fedopal_secure.federation.pairwise_sum import PairwiseClient
from fedopal_secure.federation.protocols import open_client, open_server
from fedopal_secure.federation.secure_sum import PLAIN, Participant
from tests.core.harness import Federation, make


def start(federation: Federation) -> tuple[object, dict[bytes, PairwiseClient]]:
    server = open_server(federation.params, federation.members, federation.ids, federation.host)
    clients = {
        key.identity: PairwiseClient(Participant(key, b"", federation.policy, os.urandom)) for key in federation.keys
    }
    return server, clients


def exchange(server: object, clients: dict[bytes, PairwiseClient], phase: str) -> None:
    for identity, request in server.request(phase).items():
        if answer := clients[identity].answer(phase, request):
            server.receive(identity, answer)


def test_a_late_client_attests_and_reveals_and_is_not_in_the_sum() -> None:
    federation = make(5, 1)
    server, clients = start(federation)
    for phase in ("advertise", "share", "hold"):
        exchange(server, clients, phase)
    late, vectors = federation.ids[2], federation.vectors()
    for identity, request in server.request("upload", Context(server.session, b"", b"", (), b"")).items():
        clients[identity].begin_upload(request, None)
        if identity != late:
            server.receive(identity, clients[identity].upload(vectors[identity]))
    # Its help is needed: one more is lost before it reveals, and the threshold is four.
    gone = federation.ids[4]
    exchange(server, clients, "attest")
    for identity, request in server.request("reveal").items():
        if identity != gone:
            server.receive(identity, clients[identity].answer("reveal", request))
    result = server.finish()
    assert late not in result.survivors
    assert gone in result.survivors
    assert result.threshold == 4


@pytest.mark.parametrize("phase", ["share", "hold", "attest", "reveal"])
def test_a_server_that_starts_in_the_middle_is_at_fault(phase: str) -> None:
    _, clients = start(make(4))
    with pytest.raises(ServerFault, match="out of order"):
        next(iter(clients.values())).answer(phase, b"")


def test_a_client_does_not_speak_plain_unless_its_policy_says_so() -> None:
    federation = make(4)
    proposal = encode(sign(federation.host, Proposal(replace(federation.params, protocol=PLAIN))))
    with pytest.raises(PolicyRefusal, match="'protocols'"):
        open_client(proposal, Participant(federation.keys[0], b"", federation.policy, os.urandom))


def test_control_the_plain_protocol_shows_the_server_every_vector() -> None:
    federation = make(4)
    params = replace(federation.params, protocol=PLAIN)
    policy = dataclasses.replace(federation.policy, protocols=frozenset({PLAIN}))
    proposal = encode(sign(federation.host, Proposal(params)))
    client, _ = open_client(proposal, Participant(federation.keys[0], b"", policy, os.urandom))
    server = open_server(params, federation.members, federation.ids, federation.host)
    context = server.request("upload", Context(server.session, b"", b"", (), b""))[federation.ids[0]]
    client.begin_upload(context, None)
    vector = np.arange(params.length, dtype=np.uint64)
    assert vector[0:5].astype("<u8").view(np.uint8).reshape(-1, 8)[:, :3].tobytes() in client.upload(vector)
