"""An exhaustive walk: every order in which messages can arrive and one client can leave, for four clients with c = 1.

After sharing one client may drop out at any moment; any message may be late, and the server may end any phase at any
time. Worlds that hold exactly the same are visited once. `make test-exhaustive` runs the whole walk; `make test` runs
it for three clients of whom none may drop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from fedopal_secure.core.errors import SessionAborted
from tests.core.harness import make
from tests.stateful.world import World


def futures(world: World, drops: int) -> Iterator[World]:
    """Every world that one event leads to. Set-up is complete before anybody drops or the server loses patience."""
    setting_up = world.step in ("advertise", "share")
    for client in world.waiting():
        then = world.fork()
        then.deliver_request(client)
        yield then
    for client, step in world.answers:
        then = world.fork()
        taken = then.deliver_answer(client, step)
        assert taken == (step == world.step), "an answer counts in its own phase and in no other"
        yield then
    if not setting_up and len(world.gone) < drops:
        for client in world.ids:
            if client not in world.gone:
                then = world.fork()
                then.drop(client)
                yield then
    if not setting_up or len(world.heard.get(world.step, ())) == len(world.ids):
        then = world.fork()
        then.close()
        yield then


def walk(clients: int, corrupt: int, drops: int) -> Counter[str]:
    """Visit everything and check it; returns how many worlds there were and how they ended."""
    start = World(make(clients, corrupt), forks=True)
    seen, left, found = {start.fingerprint()}, [start], Counter[str]()
    while left:
        world = left.pop()
        found["worlds"] += 1
        world.check()
        if world.over:
            assert isinstance(world.error, SessionAborted | None), world.error
            found["sums" if world.error is None else f"aborted: {world.error.rule}"] += 1
            if world.patient:
                assert world.error is None, "the server waited for everyone, and it did not end with a sum"
                assert not world.refused
                found["patient sums"] += 1
            continue
        for then in futures(world, drops):
            found["events"] += 1
            mark = then.fingerprint()
            if mark not in seen:
                seen.add(mark)
                left.append(then)
    return found


def test_three_clients() -> None:
    found = walk(3, 0, drops=0)
    assert found["sums"] > 0
    assert found["patient sums"] > 0
    print(dict(found))


@pytest.mark.exhaustive
def test_four_clients_of_whom_one_drops_out() -> None:
    found = walk(4, 1, drops=1)
    print(dict(found))
    assert found["sums"] > 0
    assert found["patient sums"] >= 1 + 4 * 3  # nobody left; each client before its upload, attestation or reveal
