"""`--drop`: what it accepts, whom it takes, and that the seed decides."""

from __future__ import annotations

import pytest

from fedopal_secure.core.errors import InputError
from fedopal_secure.runtimes.dropouts import Drop, Dropouts, parse_drop

SESSIONS, PHASES = ("prompts", "statistics"), ("advertise", "share", "upload")
NAMES = tuple(f"client-{n:02d}" for n in range(1, 13))
IDENTITIES = {bytes([n]): name for n, name in enumerate(NAMES)}


def parse(text: str) -> Drop:
    return parse_drop(text, SESSIONS, PHASES, NAMES)


def test_the_forms() -> None:
    assert parse("upload:2") == Drop("statistics", "upload", 2, ())
    assert parse("prompts.share:1") == Drop("prompts", "share", 1, ())
    assert parse("upload:client-03,client-05") == Drop("statistics", "upload", 0, ("client-03", "client-05"))


@pytest.mark.parametrize(
    "text", ["upload", "upload:", "upload:-1", "uplod:1", "census.upload:1", "upload:client-99", ""]
)
def test_rubbish_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        parse(text)


def test_counts_are_taken_by_the_seed_and_names_as_they_are() -> None:
    drops = [parse("upload:2"), parse("upload:client-01")]
    gone = Dropouts(drops, IDENTITIES, 7)("statistics", "upload", list(IDENTITIES))
    assert len(gone) == 3
    assert len(set(gone)) == 3
    assert bytes([0]) in gone
    assert gone == Dropouts(drops, IDENTITIES, 7)("statistics", "upload", list(reversed(IDENTITIES)))
    others = {tuple(Dropouts(drops, IDENTITIES, seed)("statistics", "upload", list(IDENTITIES))) for seed in range(9)}
    assert len(others) > 1
    assert Dropouts(drops, IDENTITIES, 7)("prompts", "upload", list(IDENTITIES)) == []


def test_more_than_are_left_cannot_go() -> None:
    with pytest.raises(InputError, match="only 2 are left"):
        Dropouts([parse("upload:3")], IDENTITIES, 0)("statistics", "upload", list(IDENTITIES)[:2])
