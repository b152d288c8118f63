"""`audit claims` on a small tree: what a deleted, skipped or failing test and a changed file make of a claim."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from fedopal_secure.audit.claims import NEVER, code_hash
from fedopal_secure.cli import app

CODE = "def opens(key):\n    return key == 'right'\n"
TESTS = """\
import pytest

def test_defended():
    assert True

def test_control():
    assert True
"""
PAGE = "# Ours\n\n<!-- table: written by `make audit` -->\nold\n<!-- end of table -->\nAfter.\n"


def claim(root, name, tests):
    """A claim that rests on these tests and on `test_control`, and was reviewed with the lock as it is."""
    return f"""\
[[claim]]
id = "{name}"
sentence = "A cheating server does not open {name}."
adversary = "cheating_server"
assumptions = ["KEPT"]
evidence = "attack"
tests = {json.dumps(tests)}
control = ["tests/test_lock.py::test_control"]
code = ["lock.py"]
reviewed = "{code_hash(root, ["lock.py"])}"

"""


def grow(root):
    (root / "threat_models").mkdir()
    (root / "tests").mkdir()
    (root / "threat_models" / "assumptions.toml").write_text('[KEPT]\nstatement = "The key is kept."\n')
    (root / "threat_models" / "cheating_server.md").write_text("# The cheating server\n")
    (root / "lock.py").write_text(CODE)
    (root / "tests" / "test_lock.py").write_text(TESTS)


def run(root, *arguments, code=0):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        result = CliRunner().invoke(app, ["audit", "claims", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def found(result):
    return {claim["id"]: claim for claim in json.loads(result.stdout)["claims"]}


@pytest.fixture
def root(tmp_path):
    grow(tmp_path)
    text = "# Ours.\n\n" + claim(tmp_path, "LOCK", ["tests/test_lock.py::test_defended"])
    (tmp_path / "threat_models" / "claims.toml").write_text(text)
    return tmp_path


# One claim for each thing that may become of a test: its file, the names in the claim, the verdict, part of the reason.
STRANGE = "a::b[c] d/e|f \\u00fc"
CASES = {
    "PASSES": ("def test_a(): pass", ["test_a"], "holds", ""),
    "ALL-PARAMETERS": (
        "@pytest.mark.parametrize('x', [1, 2, 3])\ndef test_a(x): pass",
        ["test_a"],
        "holds",
        "",
    ),
    "IN-A-CLASS": ("class TestLock:\n    def test_a(self): pass", ["TestLock::test_a"], "holds", ""),
    "STRANGE-ID": (
        f"@pytest.mark.parametrize('x', [0, 1], ids=['{STRANGE}', 'other'])\ndef test_a(x): assert x == 0",
        ["test_a[a::b[c] d/e|f \\xfc]"],
        "holds",
        "",
    ),
    "NEIGHBOUR-FAILS": ("def test_a(): pass\ndef test_ab(): assert False", ["test_a"], "holds", ""),
    "MARKED-AND-NAMED": ("@pytest.mark.slow\ndef test_a(): pass", ["test_a"], "holds", ""),
    "DELETED": ("def test_b(): pass", ["test_a"], "fails", "test_a is missing: there is no such test"),
    "ONE-PARAMETER-DELETED": (
        "@pytest.mark.parametrize('x', [1, 2])\ndef test_a(x): pass",
        ["test_a[1]", "test_a[3]"],
        "fails",
        "test_a[3] is missing",
    ),
    "FILE-DELETED": (None, ["test_a"], "fails", "test_a is missing"),
    "FAILS": (
        "def test_a():\n    assert 1 == 2, 'the\\nlock'",
        ["test_a"],
        "fails",
        "test_a failed: AssertionError: the",
    ),
    "ONE-OF-SEVERAL-FAILS": (
        "@pytest.mark.parametrize('x', [1, 2, 3])\ndef test_a(x): assert x == 1",
        ["test_a"],
        "fails",
        "test_a failed: [2]: assert 2 == 1 (and 1 more)",
    ),
    "SETUP-FAILS": (
        "@pytest.fixture\ndef lock(): raise OSError('jammed')\ndef test_a(lock): pass",
        ["test_a"],
        "fails",
        "OSError: jammed",
    ),
    "TEARDOWN-FAILS": (
        "@pytest.fixture\ndef lock():\n    yield\n    raise OSError('jammed')\ndef test_a(lock): pass",
        ["test_a"],
        "fails",
        "OSError: jammed",
    ),
    "NOT-READABLE": (
        "import no_such_module\ndef test_a(): pass",
        ["test_a"],
        "fails",
        "No module named 'no_such_module'",
    ),
    "NO-PYTHON": ("def test_a(:", ["test_a"], "fails", "SyntaxError"),
    "SKIP": (
        "def test_a(): pytest.skip('no lock here')",
        ["test_a"],
        "unevidenced",
        "test_a was skipped: no lock here",
    ),
    "SKIP-MARK": ("@pytest.mark.skip(reason='tired')\ndef test_a(): pass", ["test_a"], "unevidenced", "tired"),
    "SKIPIF": ("@pytest.mark.skipif(True, reason='late')\ndef test_a(): pass", ["test_a"], "unevidenced", "late"),
    "SKIP-IN-A-FIXTURE": (
        "@pytest.fixture\ndef lock(): pytest.skip('no lock')\ndef test_a(lock): pass",
        ["test_a"],
        "unevidenced",
        "no lock",
    ),
    "SKIP-OF-ONE-PARAMETER": (
        "@pytest.mark.parametrize('x', [1, pytest.param(2, marks=pytest.mark.skip)])\ndef test_a(x): pass",
        ["test_a"],
        "unevidenced",
        "[2]: unconditional skip",
    ),
    "NO-PARAMETERS-LEFT": (
        "@pytest.mark.parametrize('x', [])\ndef test_a(x): pass",
        ["test_a"],
        "unevidenced",
        "empty parameter set",
    ),
    "SKIP-OF-THE-FILE": (
        "pytest.skip('all of it', allow_module_level=True)\ndef test_a(): pass",
        ["test_a"],
        "unevidenced",
        "all of it",
    ),
    "IMPORTORSKIP": (
        "pytest.importorskip('no_such_module')\ndef test_a(): pass",
        ["test_a"],
        "unevidenced",
        "could not import 'no_such_module'",
    ),
    "XFAIL": ("@pytest.mark.xfail(reason='known')\ndef test_a(): assert False", ["test_a"], "unevidenced", "known"),
    "XPASS": ("@pytest.mark.xfail(reason='known')\ndef test_a(): pass", ["test_a"], "unevidenced", "known"),
    "FAILS-AND-SKIPS": (
        "def test_a(): pytest.skip('no lock')\ndef test_b(): assert False",
        ["test_a", "test_b"],
        "fails",
        "test_a was skipped: no lock",
    ),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """All cases in one run."""
    root = tmp_path_factory.mktemp("cases")
    grow(root)
    # Options of the tree and of the caller's shell: neither takes a named test away.
    (root / "pytest.ini").write_text("[pytest]\naddopts = -m 'not slow'\nmarkers = slow: not always\n")
    text = ""
    for name, (test, names, *_) in CASES.items():
        file = f"tests/test_{name.lower().replace('-', '_')}.py"
        if test is not None:
            (root / file).write_text(f"import pytest\n\n{test}\n", encoding="utf-8")
        text += claim(root, name, [f"{file}::{one}" for one in names])
    (root / "threat_models" / "claims.toml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", "-k nothing --maxfail=1")
        return found(run(root, "--json", code=3))


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_a_test_is_the_verdict(judged, name):
    _, names, verdict, reason = CASES[name]
    assert judged[name]["verdict"] == verdict, judged[name]
    assert any(reason in said and "\n" not in said for said in judged[name]["reasons"]) or not reason, judged[name]
    assert len(judged[name]["tests"]) == len(names)
    assert [control["outcome"] for control in judged[name]["control"]] == ["passed"]


def test_a_name_without_parameters_counts_them_all(judged):
    assert judged["ALL-PARAMETERS"]["tests"] == [
        {"name": "tests/test_all_parameters.py::test_a", "outcome": "passed", "tests": 3, "reason": ""}
    ]


def test_the_json_has_the_claim_and_what_was_found(root):
    out = json.loads(run(root, "--json").stdout)
    assert out["counts"] == {"holds": 1, "fails": 0, "unevidenced": 0, "stale": 0}
    assert out["environment"].keys() == {"python", "version"}
    assert out["claims"] == [
        {
            "id": "LOCK",
            "sentence": "A cheating server does not open LOCK.",
            "adversary": "cheating_server",
            "assumptions": ["KEPT"],
            "evidence": "attack",
            "tests": [{"name": "tests/test_lock.py::test_defended", "outcome": "passed", "tests": 1, "reason": ""}],
            "control": [{"name": "tests/test_lock.py::test_control", "outcome": "passed", "tests": 1, "reason": ""}],
            "reference": "",
            "code": ["lock.py"],
            "reviewed": code_hash(root, ["lock.py"]),
            "verdict": "holds",
            "reasons": [],
        }
    ]


def test_a_control_that_fails_fails_its_claim(root):
    # The attack no longer works without the defence: something else stops it, or nothing is tested.
    (root / "tests" / "test_lock.py").write_text(
        TESTS.replace("test_control():\n    assert True", "test_control():\n    assert 0")
    )
    result = run(root, code=3)
    assert "LOCK fails: control tests/test_lock.py::test_control failed: assert 0" in result.stdout
    assert result.stderr == "fedopal-secure: 1 of 1 claims fail: LOCK\n"


def test_a_changed_file_makes_stale_and_a_review_makes_it_hold_again(root):
    path = root / "threat_models" / "claims.toml"
    before = path.read_text()
    old = code_hash(root, ["lock.py"])
    assert found(run(root, "--json"))["LOCK"]["verdict"] == "holds"

    (root / "lock.py").write_text(CODE + "\n")
    stale = run(root)
    assert "LOCK stale: changed since it was reviewed: lock.py" in stale.stdout
    assert "1 claims: holds 0, fails 0, unevidenced 0, stale 1." in stale.stdout

    new = code_hash(root, ["lock.py"])
    assert run(root, "--review", "LOCK").stdout == f"LOCK {new}\n"
    assert path.read_text() == before.replace(old, new)
    assert found(run(root, "--json"))["LOCK"]["verdict"] == "holds"


def test_a_reviewed_file_that_is_gone_makes_stale(root):
    (root / "lock.py").unlink()
    assert found(run(root, "--json"))["LOCK"]["reasons"] == ["reviewed file lock.py is missing"]
    assert found(run(root, "--json"))["LOCK"]["verdict"] == "stale"
    assert "lock.py: cannot be written or read" in run(root, "--review", "LOCK", code=2).stderr


def test_claims_without_tests_run_nothing(root):
    (root / "spec.md").write_text("# 1. Proof\n")
    common = 'adversary = "cheating_server"\nassumptions = []\ncode = ["spec.md"]\n'
    digest = code_hash(root, ["spec.md"])
    (root / "threat_models" / "claims.toml").write_text(
        f'[[claim]]\nid = "PROVED"\nsentence = "It is proved."\nevidence = "proof"\nreference = "spec.md, section 1"\n'
        f'{common}reviewed = "{digest}"\n'
        f'[[claim]]\nid = "UNREAD"\nsentence = "It is proved."\nevidence = "proof"\nreference = "spec.md, section 1"\n'
        f'{common}reviewed = "{NEVER}"\n'
        f'[[claim]]\nid = "HOPED"\nsentence = "It is hoped for."\nevidence = "none"\n{common}reviewed = "{digest}"\n'
    )
    shutil.rmtree(root / "tests")
    (root / "tests").mkdir()
    claims = found(run(root, "--json"))
    assert {name: (one["verdict"], one["reasons"]) for name, one in claims.items()} == {
        "PROVED": ("holds", []),
        "UNREAD": ("stale", ["nobody has reviewed the code yet"]),
        "HOPED": ("unevidenced", ["there is no evidence"]),
    }


def test_only_the_claims_that_are_named_are_run(root):
    with (root / "threat_models" / "claims.toml").open("a") as file:
        file.write(claim(root, "DOOR", ["tests/test_door.py::test_defended"]))
    assert found(run(root, "LOCK", "--json")).keys() == {"LOCK"}
    assert run(root, "DOOR", code=3).stderr == "fedopal-secure: 1 of 1 claims fail: DOOR\n"
    assert "there is no claim 'GATE'" in run(root, "GATE", code=2).stderr


def test_the_page_keeps_what_stands_around_its_table(root):
    (root / "docs").mkdir()
    page = root / "docs" / "claims.md"
    page.write_text(PAGE)
    run(root, "--write", "docs/claims.md")
    begin, end = "<!-- table: written by `make audit` -->\n", "<!-- end of table -->\n"
    before, _, rest = page.read_text().partition(begin)
    table, _, after = rest.partition(end)
    assert (before, after) == ("# Ours\n\n", "After.\n")
    assert table == (
        "1 claims: holds 1, fails 0, unevidenced 0, stale 0.\n\n"
        "| claim | what it says | against | it rests on | evidence | found |\n|---|---|---|---|---|---|\n"
        "| LOCK | A cheating server does not open LOCK. | [cheating server](../threat_models/cheating_server.md) | "
        "`KEPT` | attack: 1 test, 1 control ([test_lock.py](../tests/test_lock.py)) | holds |\n"
    )
    (root / "lock.py").write_text(CODE + "\n")
    run(root, "--write", "docs/claims.md")
    assert "| **stale**: changed since it was reviewed: lock.py |" in page.read_text()
    assert page.read_text().count(begin) == page.read_text().count(end) == 1


def test_bad_use_is_told_before_anything_runs(root):
    (root / "tests" / "test_lock.py").write_text("raise SystemExit('it ran')\n")
    (root / "page.md").write_text("# No marks\n")
    for words, *arguments in (
        ("page.md: the table goes between", "--write", "page.md"),
        ("no.md: cannot be written or read", "--write", "no.md"),
        ("--write is for a run of all claims", "LOCK", "--write", "page.md"),
        ("--review stands alone", "--review", "LOCK", "--json"),
        ("there is no claim 'GATE'", "--review", "GATE"),
    ):
        result = run(root, *arguments, code=2)
        assert words in result.stderr
        assert "\n" not in result.stderr.strip()
        assert result.stdout == ""


def test_a_test_that_ends_the_process_fails_its_claim_and_those_behind_it(root):
    (root / "tests" / "test_lock.py").write_text(TESTS + "\ndef test_dies():\n    __import__('os')._exit(0)\n")
    (root / "threat_models" / "claims.toml").write_text(
        claim(root, "LOCK", ["tests/test_lock.py::test_defended"])
        + claim(root, "DIES", ["tests/test_lock.py::test_dies"])
    )
    claims = found(run(root, "--json", code=3))
    assert {name: one["verdict"] for name, one in claims.items()} == {"LOCK": "holds", "DIES": "fails"}
    assert claims["DIES"]["reasons"] == ["test tests/test_lock.py::test_dies failed: it did not run to its end"]


def test_pytest_that_cannot_start_is_bad_input_and_no_verdict(root):
    (root / "tests" / "conftest.py").write_text("raise OSError('no')\n")
    result = run(root, code=2)
    assert "pytest could not start" in result.stderr
    assert result.stdout == ""


def test_pytests_own_words_do_not_reach_standard_output(root, capfd):
    (root / "tests" / "test_lock.py").write_text(TESTS.replace("assert True", "print('loud'); assert False"))
    run(root, "--json", code=3)
    out, err = capfd.readouterr()
    assert out == ""
    assert "loud" in err and "2 failed" in err
