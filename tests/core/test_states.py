"""States: each event only in its phase, each state only once, each secret gone when the session is."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from fedopal_secure.core import client, server
from fedopal_secure.core.errors import FedopalError, MisuseError, PolicyRefusal, ServerFault
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.secret import Secret
from fedopal_secure.core.transitions import CLIENT, SERVER, Phase, State, follow, use
from tests.core.harness import PHASES, Letter, Run, entropy, fork, make, run

N, C = 5, 1
VICTIM = make(N, C).ids[1]


def honest(stop: str | None = None, **options: Any) -> Run:
    return run(make(N, C), stop=stop, **options)


# The table.


@cache
def full() -> Run:
    """A whole session, for the messages that an honest party sends."""
    return honest()


def client_states() -> dict[Phase, Any]:
    """One live state of the victim for each phase."""
    return {phase: fork(state) for phase, state in _client_states().items()}


def server_states() -> dict[Phase, Any]:
    """One live server state for each phase, in which nothing of that phase has been heard."""
    return {phase: fork(state) for phase, state in _server_states().items()}


@cache
def _client_states() -> dict[Phase, Any]:
    seen: dict[Phase, Any] = {}
    for stop in (*PHASES[1:], None):
        state = honest(stop).members[VICTIM].state
        seen[state.phase] = state
    holds_only = honest("attest", late=[VICTIM]).members[VICTIM].state
    return seen | {holds_only.phase: holds_only}


@cache
def _server_states() -> dict[Phase, Any]:
    seen = {state.phase: state for state in (honest(stop).state for stop in PHASES)}
    set_up = honest("upload").state
    opened, _ = server.open_uploads(fork(set_up), Context(set_up.session, b"", b"", (), b""))
    last = honest("reveal")
    # `finish` returns the sum and no state: what follows it is the state that it used up.
    end = fork(last.state)
    end.phase = Phase.SUMMED
    return seen | {set_up.phase: set_up, opened.phase: opened, Phase.SUMMED: end}


def client_events() -> dict[str, Callable[[Any], Any]]:
    """Each event with what an honest server would send for it."""

    def down(step: str) -> bytes:
        return full().sent(step, up=False)[VICTIM]

    vector = full().members[VICTIM].vector

    def attest(state: Any) -> Any:
        late = getattr(state, "header", None) is None
        return client.attest(state, down("attest"), down("upload") if late else None)

    return {
        "share": lambda state: client.share(state, down("share"), entropy(b"again")),
        "hold": lambda state: client.hold(state, down("hold")),
        "upload": lambda state: client.upload(state, vector, down("upload"), None),
        "attest": attest,
        "reveal": lambda state: client.reveal(state, down("reveal")),
    }


def server_events(phase: Phase) -> dict[str, Callable[[Any], Any]]:
    context = Context(full().state.session, b"", b"", (), b"")
    steps = {
        Phase.ADVERTS: "advertise",
        Phase.SHARES: "share",
        Phase.UPLOADS: "upload",
        Phase.ATTESTATIONS: "attest",
        Phase.REVEALS: "reveal",
    }
    data = full().sent(steps.get(phase, "reveal"))[VICTIM]
    return {
        "receive": lambda state: server.receive(state, VICTIM, data),
        "close": server.close,
        "open": lambda state: server.open_uploads(state, context),
        "finish": server.finish,
    }


def test_the_tables_name_every_phase_and_every_function():
    assert set(CLIENT) | set(SERVER) == set(Phase)
    assert not set(CLIENT) & set(SERVER)
    assert {event for row in CLIENT.values() for event in row} == set(client_events())
    assert {event for row in SERVER.values() for event in row} == set(server_events(Phase.ADVERTS))
    assert set(client_states()) == set(CLIENT)
    assert set(server_states()) == set(SERVER)


@pytest.mark.parametrize("event", ["share", "hold", "upload", "attest", "reveal"])
@pytest.mark.parametrize("phase", CLIENT)
def test_client_events_follow_the_table(phase, event):
    """In the table: the next state is of that phase. Not in it: MisuseError, and the state can still be used."""
    state = client_states()[phase]
    attempt = client_events()[event]
    if event not in CLIENT[phase]:
        with pytest.raises(MisuseError, match="cannot follow"):
            attempt(state)
        assert not state.used
        assert all(secret._data for secret in state.secrets())
        return
    try:
        following = attempt(state)
    except ServerFault:
        # A view in which it uploaded, shown to one that went from `hold` to `attest`.
        assert (phase, event) == (Phase.READY, "attest")
        return
    assert (following[0] if isinstance(following, tuple) else following).phase == CLIENT[phase][event]


@pytest.mark.parametrize("event", ["receive", "close", "open", "finish"])
@pytest.mark.parametrize("phase", SERVER)
def test_server_events_follow_the_table(phase, event):
    state = server_states()[phase]
    attempt = server_events(phase)[event]
    if event not in SERVER[phase]:
        before = vars(fork(state.records))
        with pytest.raises(MisuseError, match="cannot follow"):
            attempt(state)
        assert not state.used
        np.testing.assert_array_equal(before.pop("tally").total(), state.records.tally.total())
        assert {name: getattr(state.records, name) for name in before} == before
        return
    try:
        following = attempt(state)
    except FedopalError as error:
        # The states are taken at the start of a phase, where too few have been heard to close or finish it.
        assert event in ("close", "finish"), error
        assert not isinstance(error, MisuseError)
        return
    if event != "finish":
        assert (following[0] if isinstance(following, tuple) else following).phase == SERVER[phase][event]


def test_client_and_server_events_do_not_mix():
    with pytest.raises(MisuseError):
        server.receive(client_states()[Phase.READY], VICTIM, b"")
    for attempt in client_events().values():
        with pytest.raises(MisuseError):
            attempt(server_states()[Phase.UPLOADS])


def test_the_message_says_what_is_allowed():
    with pytest.raises(MisuseError, match="'upload' cannot follow while shared; allowed: 'hold'"):
        follow(State(Phase.SHARED), "upload")
    with pytest.raises(MisuseError, match="allowed: nothing"):
        follow(State(Phase.REVEALED), "reveal")


# Once.


@pytest.mark.parametrize("event", ["share", "hold", "upload", "attest", "reveal"])
def test_a_client_state_is_used_once(event):
    before = next(state for state in full().members[VICTIM].states if event in CLIENT[state.phase])
    assert before.used
    with pytest.raises(MisuseError, match="has been used"):
        client_events()[event](before)


def test_a_server_state_is_used_once():
    result = honest("share")
    following = server.receive(result.state, VICTIM, full().sent("share")[VICTIM])
    for attempt in (lambda: server.receive(result.state, VICTIM, b""), lambda: server.close(result.state)):
        with pytest.raises(MisuseError, match="has been used"):
            attempt()
    assert not following.used
    with pytest.raises(MisuseError, match="has been used"):
        server.finish(full().state)


def test_a_fault_does_not_use_up_the_server_state():
    state = honest("share").state
    with pytest.raises(FedopalError):
        server.receive(state, VICTIM, b"")
    assert not state.used
    server.receive(state, VICTIM, full().sent("share")[VICTIM])


def test_use_marks_before_anything_else():
    state = State(Phase.SHARED)
    assert repr(state) == "State(shared)"
    assert use(state, "hold") == Phase.READY
    assert repr(state) == "State(shared, used)"


def test_a_vector_that_does_not_fit_does_not_end_the_session():
    """It is our caller's mistake, found before the state is used."""
    result = honest("attest", late=[VICTIM])
    member = result.members[VICTIM]
    context = result.sent("upload", up=False)[make(N, C).ids[0]]
    for wrong in (member.vector[:-1], member.vector.astype(np.int64), member.vector.reshape(1, -1)):
        with pytest.raises(MisuseError, match="7 residues"):
            client.upload(member.state, wrong, context, None)
    client.upload(member.state, member.vector, context, None)
    prime = run(make(N, C, modulus=251), stop="attest", late=[VICTIM]).members[VICTIM]
    with pytest.raises(MisuseError, match="residues"):
        client.upload(prime.state, np.full(7, 251, dtype=np.uint64), b"", None)


def test_a_context_is_checked_only_where_an_upload_is_due():
    states = client_states()
    context = full().sent("upload", up=False)[VICTIM]
    client.check_context(states[Phase.READY], context, None)
    client.check_context(states[Phase.READY], context, None)  # it does not use the state up
    for phase in (Phase.SHARED, Phase.UPLOADED, Phase.ATTESTED, Phase.REVEALED):
        with pytest.raises(MisuseError, match="'upload' cannot follow"):
            client.check_context(states[phase], context, None)
    states[Phase.READY].used = True
    with pytest.raises(MisuseError, match="has been used"):
        client.check_context(states[Phase.READY], context, None)


def test_upload_leaves_the_callers_vector_alone():
    result = honest("attest")
    vector = result.members[VICTIM].vector
    np.testing.assert_array_equal(vector, make(N, C).vectors()[VICTIM])


def test_the_context_is_given_once():
    uploaded = honest("attest").members[VICTIM].state
    ready = honest("attest", late=[VICTIM]).members[VICTIM].state
    with pytest.raises(MisuseError, match="context is given once"):
        client.attest(uploaded, b"", b"")
    with pytest.raises(MisuseError, match="context is given once"):
        client.attest(ready, b"", None)
    assert not uploaded.used
    assert not ready.used


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickle.dumps])
def test_states_and_secrets_are_never_copied(clone):
    things = [*client_states().values(), *server_states().values(), Secret(bytes(32)), SigningKey(bytes(32))]
    for thing in things:
        with pytest.raises(MisuseError, match="never pickled or copied"):
            clone(thing)


# Secrets.


def secrets_of(result: Run) -> Iterator[Secret]:
    for member in result.members.values():
        for state in member.states:
            yield from state.secrets()


def test_secrets_are_erased_when_all_is_said():
    result = honest()
    assert result.sum is not None
    secrets = list(secrets_of(result))
    assert len(secrets) > 50
    for secret in secrets:
        with pytest.raises(MisuseError, match="erased"):
            secret.expose()
        assert repr(secret) == "Secret(0 bytes)"


def test_own_secrets_are_erased_once_they_have_served():
    holding = honest("upload").members[VICTIM].state
    shared = next(s for s in honest("upload").members[VICTIM].states if s.phase == Phase.ADVERTISED)
    assert len(shared.seal_secret.expose()) == 32
    result = honest("attest")
    states = {state.phase: state for state in result.members[VICTIM].states}
    assert not states[Phase.SHARED].seal_secret._data
    assert len(states[Phase.SHARED].agreed) == N - 1
    assert not any(agreed._data for agreed in states[Phase.SHARED].agreed.values())
    assert states[Phase.READY].seed._data
    result = honest("reveal")
    states = {state.phase: state for state in result.members[VICTIM].states}
    assert not states[Phase.UPLOADED].seed._data
    assert not states[Phase.UPLOADED].mask_secret._data
    assert all(held.seed_share._data for held in states[Phase.ATTESTED].held.values())
    assert holding.phase == Phase.SHARED


@pytest.mark.parametrize("step", ["share", "hold", "upload", "attest", "reveal"])
def test_secrets_are_erased_when_a_step_fails(step):
    def tamper(letter: Letter) -> bytes:
        return b"" if (letter.step, letter.client, letter.up) == (step, VICTIM, False) else letter.data

    result = honest(tamper=tamper)
    member = result.members[VICTIM]
    assert isinstance(member.error, ServerFault)
    assert member.state.used
    assert not any(secret._data for state in member.states for secret in state.secrets())


def test_abandon_erases_and_uses_up():
    for state in client_states().values():
        client.abandon(state)
        assert not any(secret._data for secret in state.secrets())
        with pytest.raises(MisuseError, match="has been used"):
            follow(state, "share")


def test_refusing_a_proposal_sends_nothing_and_draws_no_entropy():
    federation = make(N, C)
    _, proposal = server.start(federation.params, federation.members, federation.host)
    drawn: list[int] = []
    with pytest.raises(PolicyRefusal):
        client.advertise(
            proposal, make(N, C, servers=frozenset()).policy, federation.keys[0], b"", lambda n: drawn.append(n) or b""
        )
    assert not drawn


def test_secrets_never_print():
    """Neither a secret nor its hex stands in the text of anything that holds it, nor in an error about it."""
    for state in client_states().values():
        for secret in state.secrets():
            data = secret.expose()
            told = " ".join(map(repr, (secret, state, vars(state).get("held"), state.setup, [secret])))
            assert data.hex() not in told
            assert repr(data)[2:-1] not in told
            assert f"Secret({len(data)} bytes)" in told
    assert make(3).keys[0].identity.hex()[:12] in repr(make(3).keys[0])
    assert repr(SigningKey(bytes(32))).startswith("SigningKey(")


def test_each_client_has_its_own_keys_and_fresh_ones_in_each_session():
    first = {bytes(s.expose()) for s in secrets_of(honest("share"))}
    assert len(first) == 3 * N  # two private keys and a seed
    again = run(make(N, C).child(b""), stop="share")
    assert not first & {bytes(s.expose()) for s in secrets_of(again)}
