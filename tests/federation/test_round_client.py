"""A client's own checks around the secure sum: what it refuses before its data is touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import InputError, OverflowBudgetError, PolicyRefusal, ServerFault
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import SessionParams
from fedopal_secure.federation.client import PrivateData, RoundClient
from fedopal_secure.federation.config import PromptSettings, SimulationConfig
from fedopal_secure.federation.secure_sum import Participant, open_client, open_server
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.vectors import PromptTotal, session_segments
from fedopal_secure.runtimes.simulation import SeededEntropy, Simulation

CLIENT = "client-01"


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return Simulation(SimulationConfig(train_limit=40, clients=3, prompts=PromptSettings(mode="none")))


def make(simulation: Simulation, journal: Journal | None = None, data: PrivateData | None = None) -> RoundClient:
    participant = Participant(simulation.keys[CLIENT], b"", simulation.policy, SeededEntropy(0, CLIENT))
    held = simulation.data_of([0]) if data is None else data
    return RoundClient(participant, simulation.backbone, held, journal or Journal(), Timings(), tuning_seed=0)


def proposal(simulation: Simulation, **changes: object) -> SessionParams:
    task = simulation.task
    segments = session_segments(task, "statistics", 3)
    params = SessionParams(
        "secagg/v1", "statistics", bytes(32), simulation.server_key.identity, b"", 3, 0, 3, 0, segments, task
    )
    return replace(params, **changes)


def join(client: RoundClient, params: SessionParams) -> bytes:
    return client.answer("statistics", "advertise", encode(params))


def test_an_honest_proposal_is_accepted(simulation: Simulation) -> None:
    assert join(make(simulation), proposal(simulation))


def test_narrower_segments_are_refused(simulation: Simulation) -> None:
    first, *rest = session_segments(simulation.task, "statistics", 3)
    narrow = (replace(first, width=first.width - 1), *rest)
    with pytest.raises(PolicyRefusal, match="'segments'"):
        join(make(simulation), proposal(simulation, segments=narrow))


def test_a_sum_of_something_else_is_refused(simulation: Simulation) -> None:
    with pytest.raises(ServerFault):
        make(simulation).answer("prompts", "advertise", encode(proposal(simulation)))


def test_a_parent_that_it_does_not_know_is_refused(simulation: Simulation) -> None:
    with pytest.raises(ServerFault, match="does not continue"):
        join(make(simulation), proposal(simulation, parent=bytes(32)))


def test_statistics_of_two_phases_without_the_first_are_refused(simulation: Simulation) -> None:
    task = replace(
        simulation.task, prompt_mode="two-phase", prompt_tokens=2, prompt_dimension=3, prompt_source=bytes(32)
    )
    for parent in (b"", bytes(32)):
        with pytest.raises(ServerFault, match="does not continue"):
            join(make(simulation), proposal(simulation, parent=parent, task=task))


def test_more_images_than_the_cap_are_refused(simulation: Simulation) -> None:
    task = replace(simulation.task, max_images=1)
    params = proposal(simulation, task=task, segments=session_segments(task, "statistics", 3))
    many = simulation.data_of([0, 1, 2])
    with pytest.raises(OverflowBudgetError, match="more than the cap"):
        join(make(simulation, data=many), params)


def test_no_images_are_refused(simulation: Simulation) -> None:
    nothing = PrivateData(np.zeros((0, 32, 32, 1), np.uint8), np.zeros(0, np.int64))
    with pytest.raises(InputError, match="no images"):
        make(simulation, data=nothing)


def test_a_second_chain_on_the_same_data_is_refused_before_the_upload(simulation: Simulation, tmp_path: Path) -> None:
    def upload(nonce: bytes, journal: Journal) -> bytes:
        params = proposal(simulation, nonce=nonce)
        server = open_server(params, simulation.members, tuple(simulation.by_identity))
        others = {
            identity: open_client(
                encode(params), Participant(simulation.keys[name], b"", simulation.policy, SeededEntropy(1, name))
            )[0]
            for identity, name in simulation.by_identity.items()
            if name != CLIENT
        }
        me, own = make(simulation, journal), simulation.keys[CLIENT].identity
        for phase in ("advertise", "share", "hold"):
            for identity, request in server.request(phase).items():
                if identity == own:
                    answer = me.answer("statistics", phase, request)
                else:
                    answer = others[identity].answer(phase, request)
                if answer:
                    server.receive(identity, answer)
        requests = server.request("upload", Context(server.session, b"", b"", (), b""))
        return me.answer("statistics", "upload", requests[own])

    journal = Journal(tmp_path / "journal.db")
    assert upload(bytes(32), journal)
    with pytest.raises(PolicyRefusal, match="'sessions'"):
        upload(b"\x01" * 32, journal)
    # Control: with a ledger that remembers nothing, the second sum gets the same data.
    assert upload(b"\x02" * 32, Journal())


def test_a_prompt_total_of_the_wrong_shape_or_size_is_an_error(simulation: Simulation) -> None:
    task = replace(simulation.task, prompt_mode="local", prompt_tokens=2, prompt_dimension=3)
    with pytest.raises(OverflowBudgetError):
        PromptTotal(3, bytes(5)).mean(task)
    with pytest.raises(OverflowBudgetError):
        PromptTotal(0, bytes(48)).mean(task)
    with pytest.raises(OverflowBudgetError):
        PromptTotal(1, np.full(6, 2**40, "<i8").tobytes()).mean(task)
