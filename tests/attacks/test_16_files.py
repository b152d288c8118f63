"""Secrets in what a program writes: a log of all that it holds, and the pickles of a reporter of crashes.

Whoever reads such files of t clients has enough shares to rebuild the secrets of the others too. Every state that a
client is in is logged with all that is in it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from unittest import mock

import pytest

from fedopal_secure.core.errors import MisuseError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.secret import Secret
from fedopal_secure.core.transitions import State
from tests.attacks.catalogue import Attack, Outcome, suite, words
from tests.core.harness import PHASES, fork, make, run

FEDERATION = make(5, 1)
KEY = FEDERATION.keys[0]


@cache
def _states() -> tuple[Any, ...]:
    return tuple(run(FEDERATION, stop=stop).members[KEY.identity].state for stop in PHASES[1:])


def states() -> list[Any]:
    """Those of one client, while they hold secrets."""
    return [fork(state) for state in _states()]


def log_of(things: list[Any]) -> str:
    written = io.StringIO()
    log = logging.Logger("everything")
    log.addHandler(logging.StreamHandler(written))
    for thing in things:
        log.debug("%s, or %r", thing, thing)
    return written.getvalue()


def found(secrets: list[bytes], text: str) -> Outcome:
    """Whether all stand in a text, in hexadecimal or as Python writes bytes."""
    standing = sum(data.hex() in text or repr(data)[2:-1] in text for data in secrets)
    if not standing:
        return Outcome(False, "nobody refuses, and no secret is in the log")
    return Outcome(standing == len(secrets), f"what is secret, {standing} times, as Python writes bytes")


def logged_whole() -> Outcome:
    """The states themselves."""
    held = states()
    return found([secret.expose() for state in held for secret in state.secrets()], log_of(held))


def logged_in_parts() -> Outcome:
    """What is in the states."""
    held = states()
    return found([secret.expose() for state in held for secret in state.secrets()], log_of([vars(s) for s in held]))


def logged_key() -> Outcome:
    """The identity's key, which outlives the session."""
    return found([KEY._key.private_bytes_raw()], log_of([state.setup for state in states()]))


def pickled() -> Outcome:
    held = [secret for state in states() for secret in state.secrets()]
    try:
        restored = [pickle.loads(pickle.dumps(secret)).expose() for secret in held]
    except MisuseError as error:
        return Outcome(False, words(error))
    return Outcome(restored == [secret.expose() for secret in held], f"what is secret, {len(held)} times, in a file")


def with_its_bytes(secret: Secret) -> str:
    return f"Secret({secret.expose()!r})"


def with_its_seed(key: SigningKey) -> str:
    return f"SigningKey({key._key.private_bytes_raw()!r})"


def with_its_fields(state: State) -> str:
    return f"{type(state).__name__}({vars(state)})"


SECRETS, NONE = "the secrets of a session", "no secret is in the log"

test_defended, test_control = suite(
    Attack(
        16,
        "a log of all that a client holds",
        SECRETS,
        logged_in_parts,
        "core.secret.Secret.__repr__",
        NONE,
        with_its_bytes,
    ),
    Attack(
        16,
        "a log of what a client fixed before the session",
        "the key of an identity",
        logged_key,
        "core.identity.SigningKey.__repr__",
        NONE,
        with_its_seed,
    ),
    Attack(
        16,
        "a reporter of crashes pickles what a client holds",
        SECRETS,
        pickled,
        "core.secret.Secret.__reduce__",
        "a secret is never pickled or copied",
        object.__reduce__,
    ),
)

REMOVED: Mapping[Any, Callable[..., str]] = {Secret: with_its_bytes, State: with_its_fields}


@pytest.mark.parametrize(
    ("removed", "told"),
    [((), NONE), ((Secret,), NONE), ((State,), NONE), ((Secret, State), "what is secret, 34 times")],
)
def test_a_log_of_states_meets_two_defences(removed: tuple[type, ...], told: str) -> None:
    """A state shows its phase only, and a secret its length only."""
    with contextlib.ExitStack() as stack:
        for owner in removed:
            stack.enter_context(mock.patch.object(owner, "__repr__", REMOVED[owner]))
        outcome = logged_whole()
    assert outcome.won == (len(removed) == len(REMOVED))
    assert told in outcome.told
