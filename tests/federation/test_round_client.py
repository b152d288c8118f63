"""A client's own checks around the secure sum: what it refuses before its data is touched."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import InputError, MisuseError, OverflowBudgetError, PolicyRefusal, ServerFault
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context, Proposal, sign
from fedopal_secure.core.params import SessionParams, session_id
from fedopal_secure.federation.client import PrivateData, RoundClient
from fedopal_secure.federation.config import PromptSettings, SimulationConfig
from fedopal_secure.federation.pairwise_sum import PairwiseClient
from fedopal_secure.federation.protocols import open_client, open_server
from fedopal_secure.federation.secure_sum import Participant
from fedopal_secure.federation.state import Journal
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.vectors import PromptTotal, session_segments
from fedopal_secure.runtimes.parties import SeededEntropy
from fedopal_secure.runtimes.simulation import Simulation

CLIENT = "client-01"
STRANGER = SigningKey(b"\x01" * 32)  # a server that no policy knows


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return Simulation(SimulationConfig(train_limit=40, clients=3, prompts=PromptSettings(mode="none")))


PROMPTS = {"prompt_tokens": 2, "prompt_dimension": 224, "prompt_source": bytes(32)}


def make(
    simulation: Simulation, journal: Journal | None = None, data: PrivateData | None = None, **policy: object
) -> RoundClient:
    rules = dataclasses.replace(simulation.policy, **policy)
    participant = Participant(simulation.keys[CLIENT], b"", rules, SeededEntropy(0, CLIENT))
    held = simulation.data_of([0]) if data is None else data
    return RoundClient(participant, simulation.backbone, held, journal or Journal(), Timings(), tuning_seed=0)


def proposal(simulation: Simulation, **changes: object) -> SessionParams:
    task = simulation.task
    segments = session_segments(task, "statistics", 3)
    params = SessionParams(
        "secagg/v1", "statistics", bytes(32), simulation.server_key.identity, b"", 3, 0, 0, 3, 0, b"", segments, task
    )
    return replace(params, **changes)


def signed(simulation: Simulation, params: SessionParams) -> bytes:
    """The proposal, signed by the server that it names."""
    key = STRANGER if params.server == STRANGER.identity else simulation.server_key
    return encode(sign(key, Proposal(params)))


def join(simulation: Simulation, client: RoundClient, params: SessionParams) -> bytes:
    return client.answer("statistics", "advertise", signed(simulation, params))


def test_an_honest_proposal_is_accepted(simulation: Simulation) -> None:
    assert join(simulation, make(simulation), proposal(simulation))


def test_narrower_segments_are_refused(simulation: Simulation) -> None:
    first, *rest = session_segments(simulation.task, "statistics", 3)
    narrow = (replace(first, width=first.width - 1), *rest)
    with pytest.raises(PolicyRefusal, match="'segments'"):
        join(simulation, make(simulation), proposal(simulation, segments=narrow))


def test_a_sum_of_something_else_is_refused(simulation: Simulation) -> None:
    with pytest.raises(ServerFault):
        make(simulation).answer("prompts", "advertise", signed(simulation, proposal(simulation)))


def test_a_parent_that_it_does_not_know_is_refused(simulation: Simulation) -> None:
    with pytest.raises(ServerFault, match="does not continue"):
        join(simulation, make(simulation), proposal(simulation, parent=bytes(32)))


def test_statistics_of_two_phases_without_the_first_are_refused(simulation: Simulation) -> None:
    tuning = PromptSettings().tuning.model_dump_json()
    task = replace(simulation.task, prompt_mode="two-phase", tuning=tuning, **PROMPTS)
    for parent in (b"", bytes(32)):
        client = make(simulation, prompt_modes=frozenset({"two-phase"}))
        with pytest.raises(ServerFault, match="does not continue"):
            join(simulation, client, proposal(simulation, parent=parent, task=task))


def test_a_cap_that_was_not_agreed_is_refused_whatever_the_client_holds(simulation: Simulation) -> None:
    """Otherwise the server could lower the cap until the client refuses, and know how many images it has."""
    for cap in (1, 2, 2**20):
        task = replace(simulation.task, max_images=cap)
        params = proposal(simulation, task=task, segments=session_segments(task, "statistics", 3))
        with pytest.raises(PolicyRefusal, match="'max_images'"):
            join(simulation, make(simulation), params)
    few = dataclasses.replace(simulation.policy, max_images=1)
    participant = Participant(simulation.keys[CLIENT], b"", few, SeededEntropy(0, CLIENT))
    with pytest.raises(OverflowBudgetError, match="more images than the cap"):
        RoundClient(
            participant, simulation.backbone, simulation.data_of([0, 1, 2]), Journal(), Timings(), tuning_seed=0
        )


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"feature_map": "pixels"}, "feature_map"),
        ({"feature_dimension": 8}, "feature_dimension"),
        (
            {"prompt_mode": "local", "prompt_tokens": 2, "prompt_dimension": 224, "prompt_source": bytes(32)},
            "prompt_modes",
        ),
    ],
)
def test_a_task_that_was_not_agreed_is_refused(simulation: Simulation, changes: dict[str, object], rule: str) -> None:
    task = replace(simulation.task, **changes)
    with pytest.raises(PolicyRefusal) as caught:
        join(
            simulation,
            make(simulation),
            proposal(simulation, task=task, segments=session_segments(task, "statistics", 3)),
        )
    assert caught.value.rule == rule


@pytest.mark.parametrize("tuning", ["", "not json", '{"epochs": 5}', '{"epochs": 1000000000000}'])
def test_tuning_that_is_not_canonical_is_refused(simulation: Simulation, tuning: str) -> None:
    task = replace(simulation.task, tuning=tuning, prompt_mode="local", **PROMPTS)
    client = make(simulation, prompt_modes=frozenset({"local"}))
    with pytest.raises(PolicyRefusal, match="'tuning'"):
        join(simulation, client, proposal(simulation, task=task, segments=session_segments(task, "statistics", 3)))


def test_a_client_that_refused_has_left_and_says_nothing_more(simulation: Simulation) -> None:
    client = make(simulation)
    with pytest.raises(PolicyRefusal):
        join(simulation, client, proposal(simulation, corrupt=0, min_survivors=3, server=STRANGER.identity))
    with pytest.raises(MisuseError, match="left the round"):
        join(simulation, client, proposal(simulation))


def test_an_upload_asked_for_too_early_costs_no_grant_and_no_features(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedopal_secure.federation.client.compute_statistics", lambda *_: pytest.fail("computed"))
    journal = Journal()
    client = make(simulation, journal)
    join(simulation, client, proposal(simulation))
    context = encode(Context(session_id(proposal(simulation)), b"", b"", (), b""))
    with pytest.raises(ServerFault, match="out of order"):
        client.answer("statistics", "upload", context)
    journal.give(simulation.data_of([0]).digest(), bytes(32), "statistics", bytes(32), 1)  # the grant is still there


def test_control_without_the_early_check_the_grant_is_gone(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PairwiseClient, "begin_upload", lambda *_: None)
    journal = Journal()
    client = make(simulation, journal)
    join(simulation, client, proposal(simulation))
    with pytest.raises(MisuseError):
        client.answer("statistics", "upload", encode(Context(session_id(proposal(simulation)), b"", b"", (), b"")))
    with pytest.raises(PolicyRefusal, match="'sessions'"):
        journal.give(simulation.data_of([0]).digest(), bytes(32), "statistics", bytes(32), 1)


def test_control_a_client_that_does_not_leave_can_be_tried_again(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RoundClient, "close", lambda _: None)
    client = make(simulation)
    with pytest.raises(PolicyRefusal):
        join(simulation, client, proposal(simulation, server=STRANGER.identity))
    assert join(simulation, client, proposal(simulation))


def test_the_worst_mean_prompt_is_refused_by_default_and_control_without_the_radius(simulation: Simulation) -> None:
    task = replace(simulation.task, prompt_mode="two-phase", **PROMPTS)
    params = proposal(simulation, task=task)
    total = PromptTotal(3, np.full(2 * 224, 3 << task.prompt_bits, "<i8").tobytes())
    survivors = tuple(sorted(simulation.by_identity))
    context = Context(bytes(32), bytes(32), bytes(32), survivors, encode(total))
    with pytest.raises(PolicyRefusal, match="'prompt_radius'"):
        make(simulation)._prompts(params, context)
    swallowed = make(simulation, prompt_radius=float("inf"))._prompts(params, context)
    assert (swallowed == task.prompt_bound).all()


def test_secrets_are_erased_when_a_client_leaves(simulation: Simulation) -> None:
    client = make(simulation)
    join(simulation, client, proposal(simulation))
    state = client._sessions["statistics"].sums._state
    assert all(secret._data for secret in state.secrets())
    client.close()
    assert not any(secret._data for secret in state.secrets())


def test_the_ledger_knows_data_in_another_order_and_private_data_does_not_print(simulation: Simulation) -> None:
    data = simulation.data_of([0, 1])
    turned = PrivateData(data.images[::-1], data.labels[::-1])
    assert data.digest() == turned.digest()
    assert data.digest() != PrivateData(data.images[1:], data.labels[1:]).digest()
    assert data.digest() != PrivateData(data.images, (data.labels + 1) % 10).digest()
    assert repr(data) == "PrivateData(...)"


def test_no_images_are_refused(simulation: Simulation) -> None:
    nothing = PrivateData(np.zeros((0, 32, 32, 1), np.uint8), np.zeros(0, np.int64))
    with pytest.raises(InputError, match="no images"):
        make(simulation, data=nothing)


def test_a_second_chain_on_the_same_data_is_refused_before_the_upload(simulation: Simulation, tmp_path: Path) -> None:
    def upload(nonce: bytes, journal: Journal) -> bytes:
        params = proposal(simulation, nonce=nonce)
        server = open_server(params, simulation.members, tuple(simulation.by_identity), simulation.server_key)
        others = {
            identity: open_client(
                signed(simulation, params),
                Participant(simulation.keys[name], b"", simulation.policy, SeededEntropy(1, name)),
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
