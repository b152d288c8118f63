"""threat_models/assumptions.toml: what is assumed has an id, and no id is made up or forgotten."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = ROOT / "threat_models" / "assumptions.toml"
PLACES = ("docs", "tests", "protocols", "fedopal_secure", "threat_models")
FIELDS = {"statement", "who", "if_it_fails"}
# Upper-case names with a hyphen that may stand in backticks and are no assumptions.
OTHER_NAMES = {"AES-256-CTR", "AES-256-GCM", "DP-SGD", "HKDF-SHA256", "SHA-256", "SHAKE-256"}

ID = r"[A-Z][A-Z0-9]+(?:-[A-Z0-9]+)*"
HYPHENATED = re.compile(r"(?<!`)`([A-Z][A-Z0-9]*(?:-[A-Z0-9]+)+)`(?!`)")
AFTER_THE_WORD = re.compile(rf"\b[Aa]ssumptions?:?\s+((?:`?{ID}`?(?![\w-])(?:,\s+and\s+|,\s+|\s+and\s+)?)+)")


def listed() -> dict[str, dict[str, str]]:
    """The assumptions by id; a table that is there twice is no TOML."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def named(text: str) -> set[str]:
    """What a text speaks of as an assumption, whether or not there is one of that name.

    Upper-case words with a hyphen in backticks, and all upper-case words that follow "assumption" or "assumptions".
    """
    found = set(HYPHENATED.findall(text)) - OTHER_NAMES
    for words in AFTER_THE_WORD.findall(text):
        found |= set(re.findall(ID, words))
    return found


def referred(text: str, ids: set[str]) -> set[str]:
    """Those of the ids that a text refers to; an id without a hyphen counts in backticks too."""
    return ids & (named(text) | set(re.findall(rf"`({ID})`", text)))


def texts() -> dict[str, str]:
    """All text that may refer to assumptions, by path."""
    paths = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in (".md", ".py", ".toml")]
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in paths
        if path not in (LIST, Path(__file__)) and path.is_file()
    }


def test_every_assumption_says_what_it_is_who_needs_it_and_what_is_lost() -> None:
    assumptions = listed()
    assert assumptions
    for name, fields in assumptions.items():
        assert re.fullmatch(ID, name), name
        assert fields.keys() == FIELDS, name
        for field, text in fields.items():
            assert re.fullmatch(r"[A-Z].*[.]", text.strip(), re.DOTALL), f"{name}: {field} is no sentence"


def test_an_id_that_is_listed_twice_is_an_error() -> None:
    text = LIST.read_text(encoding="utf-8")
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(text + "[LEDGER-KEPT]\n")


def test_every_id_that_is_referred_to_is_listed() -> None:
    ids = listed().keys()
    unknown = {path: sorted(named(text) - ids) for path, text in texts().items()}
    assert {path: found for path, found in unknown.items() if found} == {}, (
        f"add them to {LIST.name}, or to OTHER_NAMES if they are the names of something else"
    )


def test_every_listed_id_is_referred_to() -> None:
    ids = set(listed())
    found = [referred(text, ids) for path, text in texts().items() if not path.startswith("threat_models")]
    assert ids - set().union(*found) == set(), "nothing rests on these: remove them, or say what does"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rests on `NO-SUCH`.", {"NO-SUCH"}),
        ("# Assumption NO-SUCH: nobody looks.", {"NO-SUCH"}),
        ("under assumption `SUCH`", {"SUCH"}),
        ("Assumptions ONE, `TWO-THREE` and FOUR hold", {"ONE", "TWO-THREE", "FOUR"}),
        ("Assumptions ONE,\nTWO, and THREE", {"ONE", "TWO", "THREE"}),
        ("`AES-256-GCM` and `DP-SGD`, SHA-256 and X-Y, ``A-B``, `N`, `TASK`", set()),
        ("the assumption that comes with it; Assumption A is not an id; assumptions: none", set()),
    ],
)
def test_what_counts_as_a_reference(text: str, expected: set[str]) -> None:
    assert named(text) == expected


def test_a_word_in_backticks_refers_to_an_assumption_of_that_name() -> None:
    assert referred("how long it takes (`TIMING`), and `OTHER`", {"TIMING", "CSPRNG"}) == {"TIMING"}
