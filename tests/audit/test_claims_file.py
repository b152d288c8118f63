"""The file of claims: what it refuses, how a review is written into it, and what the repository's own names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedopal_secure.audit.claims import code_hash, find_root, load_claims, review, select
from fedopal_secure.audit.nodes import covers, path_of
from fedopal_secure.core.errors import InputError

ROOT = Path(__file__).parents[2]

ATTACK = """\
[[claim]]
id = "LOCK-HOLDS"
sentence = "A cheating server does not open the lock."
adversary = "cheating_server"
assumptions = ["KEY-KEPT"]
evidence = "attack"
tests = ["tests/test_lock.py::test_defended"]
control = ["tests/test_lock.py::test_control"]
code = ["lock.py"]
reviewed = "%s"
""" % ("1" * 64)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "threat_models"
    folder.mkdir()
    (tmp_path / "tests").mkdir()
    (folder / "assumptions.toml").write_text('[KEY-KEPT]\nstatement = "The key is kept."\n')
    (folder / "cheating_server.md").write_text("# The cheating server\n")
    (tmp_path / "lock.py").write_text("locked = True\n")
    return tmp_path


def load(root, text):
    (root / "threat_models" / "claims.toml").write_text(text)
    return load_claims(root)


def changed(old, new):
    assert ATTACK.count(old) == 1
    return ATTACK.replace(old, new)


def test_a_claim_is_read(root):
    (claim,) = load(
        root, changed('"A cheating server does not open the lock."', '"""\nOver two\nlines, \\\n and one."""')
    )
    assert claim.id == "LOCK-HOLDS"
    assert claim.sentence == "Over two lines, and one."
    assert claim.who == "cheating server"
    assert claim.tests == ("tests/test_lock.py::test_defended",)


REFUSED = {
    "no claims": ("", "it holds [[claim]] tables and nothing else"),
    "something else": (ATTACK + "[other]\n", "it holds [[claim]] tables and nothing else"),
    "no list": ('claim = "x"\n', "it holds [[claim]] tables and nothing else"),
    "no TOML": ("[[claim]\n", "not valid TOML"),
    "two of one id": (ATTACK + ATTACK, "claim LOCK-HOLDS: there are two of this id"),
    "the id of an assumption": (changed('id = "LOCK-HOLDS"', 'id = "KEY-KEPT"'), "an assumption has that id already"),
    "an id in lower case": (changed('id = "LOCK-HOLDS"', 'id = "lock"'), "'id': "),
    "no id": (changed('id = "LOCK-HOLDS"\n', ""), "claim number 1: 'id': Field required"),
    "an unknown field": (ATTACK + "why = 1\n", "claim LOCK-HOLDS: 'why': "),
    "no sentence": (changed("the lock.", "the lock"), "'sentence': "),
    "an unknown adversary": (changed('"cheating_server"', '"nobody"'), "has no page threat_models/nobody.md"),
    "an adversary elsewhere": (changed('"cheating_server"', '"../lock"'), "'adversary': "),
    "an unknown assumption": (changed('"KEY-KEPT"', '"KEY-LOST"'), "assumption 'KEY-LOST' is not in threat_models/"),
    "an assumption twice": (changed('"KEY-KEPT"', '"KEY-KEPT", "KEY-KEPT"'), "'KEY-KEPT' is there twice"),
    "an unknown kind of evidence": (changed('"attack"', '"hearsay"'), "'evidence': "),
    "no tests": (changed('["tests/test_lock.py::test_defended"]', "[]"), "evidence 'attack' needs tests"),
    "no control": (changed('["tests/test_lock.py::test_control"]', "[]"), "evidence 'attack' needs a control"),
    "a property without a control": (
        changed('"attack"', '"property"').replace('["tests/test_lock.py::test_control"]', "[]"),
        "evidence 'property' needs a control",
    ),
    "tests without a kind": (changed('"attack"', '"none"'), "evidence 'none' has no tests"),
    "a proof with tests": (changed('"attack"', '"proof"'), "evidence 'proof' has no tests"),
    "a proof without a reference": (
        re.sub(r"(?m)^(tests|control) = .*\n", "", changed('"attack"', '"proof"')),
        "evidence 'proof' needs a reference",
    ),
    "an attack with a reference": (ATTACK + 'reference = "spec.md"\n', "evidence 'attack' has no reference"),
    "a test twice": (
        changed("test_control", 'test_control", "tests/test_lock.py::test_control'),
        "'tests/test_lock.py::test_control' is there twice",
    ),
    "a whole file": (changed("::test_defended", ""), "'tests/test_lock.py' is no FILE.py::TEST"),
    "a folder": (changed("tests/test_lock.py::test_defended", "tests"), "'tests' is no FILE.py::TEST"),
    "an option": (changed("tests/test_lock.py::test_defended", "--exitfirst"), "is no plain path below"),
    "a test elsewhere": (changed("tests/test_lock.py::test_defended", "../a.py::test"), "is no plain path below"),
    "no code": (changed('["lock.py"]', "[]"), "'code': "),
    "code elsewhere": (changed('"lock.py"', '"/etc/passwd"'), "'/etc/passwd' is no plain path below"),
    "code written another way": (changed('"lock.py"', '"./lock.py"'), "'./lock.py' is no plain path below"),
    "code twice": (changed('"lock.py"', '"lock.py", "lock.py"'), "'lock.py' is there twice"),
    "no hash": (re.sub("reviewed.*\n", "", ATTACK), "'reviewed': Field required"),
    "half a hash": (changed("1" * 64, "1" * 32), "'reviewed': "),
    "secure by itself": (
        changed("A cheating server does not open the lock", "The lock is secure"),
        "the sentence says 'secure' without naming its adversary, 'cheating server'",
    ),
    "security by itself": (
        changed("A cheating server does not open the lock", "The lock has much Security"),
        "the sentence says 'Security' without naming its adversary",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(root, name):
    text, reason = REFUSED[name]
    with pytest.raises(InputError) as error:
        load(root, text)
    assert "\n" not in str(error.value).strip()
    assert reason in str(error.value)
    assert str(error.value).startswith(str(root / "threat_models" / "claims.toml"))


@pytest.mark.parametrize("sentence", ["Against a cheating server the lock is secure.", "So says fedopal-secure."])
def test_secure_beside_its_adversary_or_in_a_name(root, sentence):
    assert load(root, changed("A cheating server does not open the lock.", sentence))[0].sentence == sentence


def test_files_that_are_not_there_are_named(root):
    with pytest.raises(InputError, match=r"claims\.toml: cannot be read"):
        load_claims(root)
    (root / "threat_models" / "assumptions.toml").unlink()
    with pytest.raises(InputError, match=r"assumptions\.toml: cannot be read"):
        load(root, ATTACK)


def test_the_tree_is_found_from_inside(root):
    load(root, ATTACK)
    (root / "deep" / "er").mkdir(parents=True)
    assert find_root(root / "deep" / "er") == root
    assert find_root(Path("/")) == ROOT


def test_claims_are_selected_in_the_files_order(root):
    claims = load(root, ATTACK + ATTACK.replace("LOCK-HOLDS", "DOOR-HOLDS"))
    assert [claim.id for claim in select(claims, ["DOOR-HOLDS", "LOCK-HOLDS"])] == ["LOCK-HOLDS", "DOOR-HOLDS"]
    assert [claim.id for claim in select(claims, ["DOOR-HOLDS"])] == ["DOOR-HOLDS"]
    assert select(claims, []) == claims
    with pytest.raises(InputError, match="there is no claim 'GATE': they are in"):
        select(claims, ["GATE"])
    with pytest.raises(InputError, match="there is no claim 'lock-hold': did you mean LOCK-HOLDS"):
        select(claims, ["lock-hold"])


def test_the_hash_is_over_names_and_bytes(root):
    (root / "door.py").write_text("locked = True\n")
    hashes = [
        code_hash(root, code) for code in (["lock.py"], ["door.py"], ["lock.py", "door.py"], ["door.py", "lock.py"])
    ]
    assert len(set(hashes)) == 4
    # sha256sum over the two lengths, the name and the content, written out by hand.
    assert hashes[0] == "2e804f1f7654bf1a7b96193bb4b0f5b276ae45c941842b658c493ed71a9f38df"


def test_a_review_changes_its_hash_and_nothing_else(root):
    other = ATTACK.replace("LOCK-HOLDS", "DOOR-HOLDS")
    text = f"# Head: [[claim]] and reviewed.\r\n\n{ATTACK}\n# The door.\n\n{other}  # end, without a new line: \u00fc"
    load(root, text)
    path = root / "threat_models" / "claims.toml"
    path.write_bytes(text.encode())
    digest = code_hash(root, ["lock.py"])
    assert review(root, ["DOOR-HOLDS"]) == {"DOOR-HOLDS": digest}
    before, _, after = text.rpartition("1" * 64)
    assert path.read_bytes().decode() == before + digest + after
    assert [claim.reviewed for claim in load_claims(root)] == ["1" * 64, digest]


def test_a_file_that_cannot_be_edited_is_left_alone(root):
    text = changed('reviewed = "', '"reviewed" = "')
    load(root, text)
    with pytest.raises(InputError, match="on lines of their own"):
        review(root, ["LOCK-HOLDS"])
    assert (root / "threat_models" / "claims.toml").read_text() == text


def test_code_that_is_not_there_cannot_be_reviewed(root):
    load(root, changed('"lock.py"', '"lock.py", "door.py"'))
    with pytest.raises(FileNotFoundError, match=r"door\.py"):
        review(root, ["LOCK-HOLDS"])


@pytest.mark.parametrize(
    ("name", "node", "expected"),
    [
        ("a.py::t", "a.py::t", True),
        ("a.py::t", "a.py::t[x]", True),
        ("a.py::T", "a.py::T::t[x]", True),
        ("a.py::t[x::y[z] w]", "a.py::t[x::y[z] w]", True),
        ("a.py::t", "a.py::tt", False),
        ("a.py::t[x]", "a.py::t[xx]", False),
        ("a.py::t[x]", "a.py::t", False),
    ],
)
def test_which_tests_a_name_stands_for(name, node, expected):
    assert covers(name, node) is expected


def test_the_repositorys_claims_name_tests_and_files_that_are_there():
    claims = load_claims(ROOT)
    assert [name for claim in claims for name in claim.code if not (ROOT / name).is_file()] == []
    names = {name for claim in claims for name in (*claim.tests, *claim.control)}
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "")
    collected = subprocess.run(
        (*command, *sorted(set(map(path_of, names)))), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert collected.returncode == 0, collected.stdout[-2000:]
    nodes = [line for line in collected.stdout.splitlines() if "::" in line]
    assert [name for name in sorted(names) if not any(covers(name, node) for node in nodes)] == []


def test_the_page_is_of_the_repositorys_claims():
    rows = re.findall(r"(?m)^\| ([A-Z][A-Z0-9-]+) \| (.*?) \| \[", (ROOT / "docs" / "claims.md").read_text())
    assert rows == [(claim.id, claim.sentence.replace("|", "\\|")) for claim in load_claims(ROOT)], "run `make audit`"
