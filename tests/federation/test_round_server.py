"""The server's side of a round: whom it may invite, and what it makes of an answer that comes too late."""

from __future__ import annotations

import pytest

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.params import PROTOCOL
from fedopal_secure.federation.config import HeadSettings
from fedopal_secure.federation.protocols import open_client
from fedopal_secure.federation.secure_sum import Participant
from fedopal_secure.federation.server import Proposal, RoundServer, SessionRecord
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript
from fedopal_secure.federation.vectors import STATISTICS_SESSION
from tests.core.harness import Federation, entropy, make


def round_server(federation: Federation, clients: int) -> RoundServer:
    params = federation.params
    proposal = Proposal(PROTOCOL, clients, params.corrupt, 0, params.min_survivors, params.task)
    return RoundServer(
        federation.host,
        federation.members,
        federation.ids,
        proposal,
        HeadSettings(),
        entropy(b"nonces"),
        Transcript(),
        Timings(),
    )


def test_no_more_are_invited_than_the_roster_takes() -> None:
    """Or whoever advertises last would be blamed for it."""
    with pytest.raises(InputError, match="5 clients are invited to a roster of 4"):
        round_server(make(5, 1), 4)


def late_advert(told_as: str) -> SessionRecord:
    """The fifth client's advert arrives when shares are being collected, as an answer of this phase."""
    federation = make(5, 1)
    server = round_server(federation, 5)
    adverts = {}
    for key in federation.keys:
        request = server.request(STATISTICS_SESSION, "advertise")[key.identity]
        client, _ = open_client(request, Participant(key, b"", federation.policy, entropy(key.identity)))
        adverts[key.identity] = client.answer("advertise", request)
    *prompt, late = federation.ids
    for identity in prompt:
        server.receive(STATISTICS_SESSION, "advertise", identity, adverts[identity])
    server.request(STATISTICS_SESSION, "share")
    server.receive(STATISTICS_SESSION, told_as, late, adverts[late])
    return server.records[STATISTICS_SESSION]


def test_a_late_answer_is_nobodys_fault() -> None:
    record = late_advert("advertise")
    assert not record.faults
    assert len(record.answered["advertise"]) == 4
    # The control: taken for an answer of the current phase, it is held against its sender.
    assert late_advert("share").faults
