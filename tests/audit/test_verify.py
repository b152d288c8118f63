"""`audit verify`: honest rounds of every kind pass, and whatever is changed in one is found, at its place."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedopal_secure.audit import replay as replay_module
from fedopal_secure.audit import verify as verify_module
from fedopal_secure.audit.verify import KEEPER, Finding, Verification
from fedopal_secure.core import client as client_module
from fedopal_secure.core import messages, recovery
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import InputError, OverflowBudgetError, SessionAborted
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.federation.config import SimulationConfig
from fedopal_secure.federation.plain_sum import PlainUpload
from fedopal_secure.federation.release import Release
from fedopal_secure.federation.round_sums import RoundSums
from fedopal_secure.federation.server import RoundServer
from fedopal_secure.federation.transcript import Entry, Transcript
from fedopal_secure.he.messages import OpenedTotal, OpenRequest, PublicContext, SignedUpload
from fedopal_secure.model import Model
from fedopal_secure.runtimes.simulation import Simulation
from tests.audit.rounds import Entries, Round, mutations, rewritten, run_round

STRANGER = SigningKey(b"s" * 32)
PHASES = ("advertise", "share", "hold", "upload", "attest", "reveal")

# A round with every message of secagg/v1: a census, prompts, statistics, and dropouts in between.
WHOLE: dict[str, Any] = {
    "clients": 6,
    "corrupt": 0,
    "alpha": 10.0,
    "min_contributors": 1,
    "prompts": {"mode": "two-phase", "tokens": 2, "tuning": {"epochs": 1}},
    "drop": ("prompts.upload:1", "statistics.upload:1"),
}
KINDS: dict[str, dict[str, Any]] = {
    "local prompts": {"prompts": {"mode": "local", "tokens": 2, "tuning": {"epochs": 0}}},
    "plain": {"protocol": "plain"},
    "bfv": {"protocol": "bfv"},
    "bfv masked": {"protocol": "bfv", "masked": True, "drop": ("upload:1",)},
    "ckks": {"protocol": "ckks"},
    "sparse": {"clients": 257, "corrupt": 0, "train_limit": 520, "degree": 44, "alpha": 1000.0},
    "distributed noise": {"privacy": {"epsilon": 4.0}},
    "central noise": {"privacy": {"epsilon": 4.0, "mode": "central"}},
    "local noise": {"privacy": {"epsilon": 4.0, "mode": "local"}},
    "fixed lambda": {"head": {"rule": "fixed", "value": 0.5}},
    "relative lambda": {"head": {"rule": "relative", "value": 0.01}},
    "no intercept": {"head": {"intercept": False}},
    "lda": {"head": {"kind": "lda"}},
    "normalised": {"head": {"kind": "ridge-normalised"}},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Round:
    return run_round(tmp_path_factory.mktemp("whole") / "run", **WHOLE)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Round:
    pytest.importorskip("tenseal", reason="TenSEAL is not installed")
    return run_round(tmp_path_factory.mktemp("encrypted") / "run", **KINDS["bfv"])


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Round:
    pytest.importorskip("tenseal", reason="TenSEAL is not installed")
    return run_round(tmp_path_factory.mktemp("masked") / "run", **KINDS["bfv masked"])


# Honest rounds.


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_round_is_ok(kind: str, tmp_path: Path) -> None:
    if "bfv" in kind or kind == "ckks":
        pytest.importorskip("tenseal", reason="TenSEAL is not installed")
    played = run_round(tmp_path / "run", **KINDS[kind])
    found = played.verify()
    assert (found.ok, found.finding, found.difference) == (True, None, 0.0)
    names = played.simulation.by_identity
    assert {bytes.fromhex(one) for session in found.sessions for one in (*session.survivors, *session.dropped)} <= set(
        names
    )


def test_a_round_with_public_prompts_is_ok(whole: Round, tmp_path: Path) -> None:
    prompts = {"mode": "public", "tokens": 2, "file": whole.folder / "model.safetensors"}
    played = run_round(tmp_path / "run", prompts=prompts)
    assert played.verify().ok
    model = dataclasses.replace(released(played), prompts=released(played).prompts * np.float32(2))
    found = release_with(played, tmp_path / "forged", model)
    assert found.finding is not None
    assert found.finding.reason == "has other prompts than the public ones that were agreed"


@pytest.mark.parametrize("phase", PHASES)
def test_a_round_with_a_dropout_in_any_phase_is_ok(phase: str, tmp_path: Path) -> None:
    played = run_round(tmp_path / "run", clients=7, corrupt=0, drop=(f"{phase}:1",))
    found = played.verify()
    assert found.ok
    gone = set(played.simulation.by_identity) - {bytes.fromhex(one) for one in found.sessions[0].survivors}
    assert len(gone) == (0 if phase in ("attest", "reveal") else 1)


def test_a_whole_round_is_ok_and_says_what_it_summed(whole: Round) -> None:
    found = whole.verify()
    assert found.ok
    assert [session.name for session in found.sessions] == ["census", "prompts", "statistics"]
    assert [len(session.survivors) for session in found.sessions] == [6, 5, 4]
    assert found.model == Model.load(whole.folder / "model.safetensors").digest().hex()
    assert any("sealed shares" in line for line in found.unchecked)


def test_the_transcript_alone_is_enough(whole: Round, tmp_path: Path) -> None:
    shutil.copytree(whole.folder / "transcript", tmp_path / "elsewhere")
    found = verify_module.verify(tmp_path / "elsewhere", whole.trust)
    assert found.ok
    assert any("the released model's file" in line for line in found.unchecked)


def test_late_and_refused_answers_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = RoundServer.receive

    def twice(server: RoundServer, session: str, phase: str, client: bytes, answer: bytes) -> None:
        receive(server, session, phase, client, answer)
        if phase == "advertise":
            receive(server, session, phase, client, answer)
        if phase == "share":
            receive(server, session, "advertise", client, answer)

    monkeypatch.setattr(RoundServer, "receive", twice)
    found = run_round(tmp_path / "run").verify()
    assert found.ok
    assert "5 answers that were refused: of each the transcript has the hash" in found.unchecked
    assert "5 answers that were late: of each the transcript has the hash" in found.unchecked


# Changed bytes, with nothing else made to fit.


def test_one_flipped_byte_anywhere_is_found(whole: Round, tmp_path: Path) -> None:
    """In every file, at three places each; whoever kept it is to blame."""
    shutil.copytree(whole.folder, tmp_path / "run")
    held = Round(whole.simulation, tmp_path / "run")
    files = sorted(path for path in (tmp_path / "run" / "transcript").rglob("*") if path.is_file())
    assert len(files) > 80
    for number, file in enumerate((*files, tmp_path / "run" / "model.safetensors")):
        content = file.read_bytes()
        places = (
            {0, len(content) // 2, len(content) - 2}
            if number % 9 == 0 or file.suffix != ".bin"
            else {len(content) // 3}
        )
        for place in places:
            file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            found = held.verify()
            assert found.finding is not None, (file.name, place)
            assert found.finding.blame == (KEEPER,), (file.name, place, found.finding)
            if file.suffix == ".bin":
                assert found.finding.entry == int(file.stem)
        file.write_bytes(content)
    assert held.verify().ok


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("transcript/chain.jsonl", lambda content: content.replace(b"\n", b"\v", 1)),
        ("transcript/chain.jsonl", lambda content: content[:-1]),
        ("transcript/chain.jsonl", lambda content: content + b"\n"),
        ("transcript/head.json", lambda content: content.upper()),
        ("transcript/head.json", lambda content: re.sub(b"[0-9a-f]{128}", lambda hexed: hexed[0].upper(), content)),
        ("transcript/head.json", lambda content: re.sub(b"[0-9a-f]{64}", b"0" * 64, content, count=1)),
        ("transcript/head.json", lambda content: content + b" "),
        ("transcript/head.json", lambda content: b"[" * 100_000),
        ("transcript/messages/99999.bin", lambda content: b"more"),
        ("model.safetensors", lambda content: content.replace(b'{"__metadata__":', b'{ "__metadata__":', 1)),
    ],
)
def test_what_a_reader_might_overlook(file: str, change: Any, whole: Round, tmp_path: Path) -> None:
    """Bytes that change nothing of what a lenient parser reads."""
    shutil.copytree(whole.folder, tmp_path / "run")
    path = tmp_path / "run" / file
    content = path.read_bytes() if path.exists() else b""
    assert change(content) != content
    path.write_bytes(change(content))
    found = Round(whole.simulation, tmp_path / "run").verify()
    assert found.finding is not None
    assert found.finding.blame == (KEEPER,)


@pytest.mark.parametrize("kind", ["plain", "fixed lambda"])
@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_a_break_early_in_a_round_of_one_session(kind: str, number: int, tmp_path: Path) -> None:
    played = run_round(tmp_path / "run", **KINDS[kind])
    path = tmp_path / "run" / "transcript" / "messages" / f"{number:05d}.bin"
    path.write_bytes(path.read_bytes()[:-1])
    finding = played.verify().finding
    assert finding is not None
    assert (finding.entry, finding.blame) == (number, (KEEPER,))


@pytest.mark.parametrize("name", ["messages/00003.bin", "head.json", "chain.jsonl", "../model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "high bit"])
def test_what_is_no_file(name: str, kind: str, whole: Round, tmp_path: Path) -> None:
    """A pipe would wait for ever, and zeros without end would fill the memory."""
    shutil.copytree(whole.folder, tmp_path / "run")
    path = tmp_path / "run" / "transcript" / name
    content = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(content[:400] + bytes([content[400] | 0x80 if len(content) > 400 else 0x80]) + content[401:])
    held = Round(whole.simulation, tmp_path / "run")
    if name == "chain.jsonl" and kind != "high bit":
        with pytest.raises(InputError, match="holds no"):
            held.verify()
        return
    finding = held.verify().finding
    if finding is None:
        assert path.read_bytes() == content  # the bit was set already
        return
    assert finding.blame == (KEEPER,)
    assert finding.entry == (3 if "00003" in name else 1 if name == "chain.jsonl" else None)


def test_what_a_stranger_writes_does_not_reach_the_terminal(whole: Round, tmp_path: Path) -> None:
    entries = whole.entries()
    phase = "\r\x1b[2KOK: signed by server\n" + "x" * 10_000
    entries[3] = dataclasses.replace(entries[3], phase=phase, sender="server")
    finding = rewritten(whole, entries, tmp_path / "run", None).verify().finding
    assert finding is not None
    assert finding.reason.isprintable()
    assert len(finding.reason) < 500


def test_nothing_is_recorded_after_the_signature(whole: Round, tmp_path: Path) -> None:
    rewritten(whole, whole.entries(), tmp_path / "run", whole.simulation.server_key)
    transcript = Transcript(tmp_path / "again")
    transcript.record(bytes(32), "advertise", "server", b"one")
    transcript.sign(Model.load(whole.folder / "model.safetensors"))
    head = transcript.head
    transcript.record(bytes(32), "late", "ab" * 32, b"another")
    assert transcript.head == head
    assert len((tmp_path / "again" / "chain.jsonl").read_text().splitlines()) == 1


# Changed messages in a chain that holds.


def first_of(entries: Entries, phase: str, by_server: bool) -> int:
    return next(e.number for e in entries if e.phase == phase and (e.sender == "server") == by_server)


SECAGG = [
    ("advertise", True, messages.Proposal),
    ("advertise", False, messages.Advert),
    ("share", True, messages.Roster),
    ("share", False, messages.ShareMessage),
    ("upload", True, messages.Context),
    ("upload", False, messages.Upload),
    ("attest", True, messages.View),
    ("attest", False, messages.Attestation),
    ("reveal", True, messages.RevealRequest),
    ("reveal", False, messages.Reveal),
    ("release", True, Release),
]


# Of an encrypted session: signed by nobody there, but repeated (a certificate) or signed by the next message (a total).
SEEN_LATER = ("certificate", "total")


def with_body(entries: Entries, number: int, body: bytes) -> Entries:
    """The entries with another body in one of them."""
    return [dataclasses.replace(entry, body=body) if entry.number == number else entry for entry in entries]


def check_every_field(played: Round, kind: Any, number: int, folder: Path) -> int:
    """Change each field of a message in turn; the server signs what comes of it, or (the first time) nobody does."""
    entries, tried = played.entries(), 0
    for tried, (where, other) in enumerate(mutations(decode(kind, entries[number].body, InputError)), 1):
        changed = with_body(entries, number, encode(other))
        for key, party in ((played.simulation.server_key, "server"), (None, KEEPER))[: 2 if tried == 1 else 1]:
            found = rewritten(played, changed, folder, key).verify()
            assert found.finding is not None, where
            assert found.finding.blame == (party,), (where, found.finding)
            later = where in SEEN_LATER and found.finding.entry is not None and found.finding.entry > number
            assert found.finding.entry == number or later, (where, found.finding)
            shutil.rmtree(folder)
    return tried


@pytest.mark.parametrize(("phase", "by_server", "kind"), SECAGG, ids=[kind.__name__ for _, _, kind in SECAGG])
def test_every_field_of_every_message(phase: str, by_server: bool, kind: Any, whole: Round, tmp_path: Path) -> None:
    number = first_of(whole.entries(), phase, by_server)
    assert check_every_field(whole, kind, number, tmp_path / "changed") >= 4


@pytest.mark.parametrize("number", [0, 1], ids=["opening of a census", "summed prompts"])
def test_what_a_context_carries(number: int, whole: Round, tmp_path: Path) -> None:
    """The context of the second session holds the opening of the first, that of the third the sum of the second."""
    contexts = [entry for entry in whole.entries() if entry.phase == "upload" and entry.sender == "server"]
    context = contexts[number + 1].number
    assert check_every_field(whole, messages.Context, context, tmp_path / "changed") >= 5


@pytest.mark.parametrize(
    ("phase", "by_server", "kind"),
    [
        ("public-context", True, PublicContext),
        ("join", True, messages.Proposal),
        ("upload", False, SignedUpload),
        ("open", True, OpenRequest),
        ("open", False, OpenedTotal),
    ],
)
def test_every_field_of_an_encrypted_session(
    phase: str, by_server: bool, kind: Any, encrypted: Round, tmp_path: Path
) -> None:
    number = first_of(encrypted.entries(), phase, by_server)
    assert check_every_field(encrypted, kind, number, tmp_path / "changed") >= 3


def test_every_field_of_a_masked_encrypted_upload(masked: Round, tmp_path: Path) -> None:
    number = first_of(masked.entries(), "upload", by_server=False)
    assert check_every_field(masked, messages.UploadHeader, number, tmp_path / "changed") == 7


# What somebody with the server's key would do.


def verify_forged(played: Round, entries: Entries, folder: Path) -> Verification:
    return rewritten(played, entries, folder, played.simulation.server_key).verify()


def test_a_forged_set_of_survivors(whole: Round, tmp_path: Path) -> None:
    entries = whole.entries()
    number = first_of(entries, "attest", by_server=True)
    view = decode(messages.View, entries[number].body, InputError)
    forged = msgspec.structs.replace(view, survivors=view.survivors[1:])
    found = verify_forged(whole, with_body(entries, number, encode(forged)), tmp_path / "run")
    assert found.finding == Finding(number, "is not what the messages before it give: survivors", ("server",))


@pytest.mark.parametrize("which", ["exchanged", "taken out", "said twice"])
@pytest.mark.parametrize("phase", ["advertise", "share", "upload", "attest", "reveal"])
def test_messages_that_are_moved(which: str, phase: str, whole: Round, tmp_path: Path) -> None:
    """Exchanged: two clients' bodies. A message less is found where the server's next word does not follow."""
    entries = whole.entries()
    number = first_of(entries, phase, by_server=False)
    entry, after = entries[number], entries[number + 1]
    if which == "exchanged":
        entries[number : number + 2] = [
            dataclasses.replace(entry, body=after.body),
            dataclasses.replace(after, body=entry.body),
        ]
    elif which == "taken out":
        del entries[number]
    else:
        entries.insert(number + 1, entry)
    found = verify_forged(whole, entries, tmp_path / "run")
    if (which, phase) == ("taken out", "reveal"):
        assert found.ok  # one share less than there were, and enough: what the server did not take cannot be known
        return
    assert found.finding is not None
    assert found.finding.blame == ("server",)
    assert (found.finding.entry or 0) >= number


def test_a_request_out_of_order_and_a_message_after_the_end(whole: Round, tmp_path: Path) -> None:
    entries = whole.entries()
    share, upload = (first_of(entries, phase, by_server=True) for phase in ("share", "upload"))
    moved = [*entries[:share], entries[upload], *entries[share:upload], *entries[upload + 1 :]]
    found = verify_forged(whole, moved, tmp_path / "moved")
    assert found.finding == Finding(share, "asks for 'upload' out of order", ("server",))
    found = verify_forged(whole, [*entries, entries[share]], tmp_path / "longer")
    assert found.finding is not None
    assert found.finding.entry == len(entries)


def test_the_end_cut_off(whole: Round, tmp_path: Path) -> None:
    found = rewritten(whole, whole.entries()[:-1], tmp_path / "run", None).verify()
    assert found.finding is not None
    assert "not finished, or its end is cut off: the last request was 'reveal'" in found.finding.reason
    assert (found.finding.blame, found.difference) == ((), None)


def test_a_round_that_was_aborted(tmp_path: Path) -> None:
    """Nobody is to blame for that, and the auditor is told where it ended."""
    with pytest.raises(SessionAborted):
        run_round(tmp_path / "run", drop=("upload:4",))
    simulation = Simulation(SimulationConfig(clients=5, train_limit=100))
    found = Round(simulation, tmp_path / "run").verify()
    assert found.finding is not None
    assert found.finding.blame == ()
    assert "the last request was 'upload' of the session 'statistics'" in found.finding.reason


def test_an_invented_client_and_an_invented_session(whole: Round, tmp_path: Path) -> None:
    entries = whole.entries()
    number = first_of(entries, "advertise", by_server=False)
    session = bytes.fromhex(entries[number].session)
    advert = messages.sign(STRANGER, messages.Advert(session, STRANGER.identity, b"1" * 32, b"2" * 32, b""))
    invented = dataclasses.replace(entries[number], sender=STRANGER.identity.hex(), body=encode(advert))
    found = verify_forged(whole, [*entries[:number], invented, *entries[number:]], tmp_path / "client")
    assert found.finding is not None
    assert (found.finding.entry, found.finding.blame) == (number, ("server",))
    assert "is not a member" in found.finding.reason
    elsewhere = dataclasses.replace(entries[number], session="ab" * 32)
    found = verify_forged(whole, [*entries[:number], elsewhere, *entries[number + 1 :]], tmp_path / "session")
    assert found.finding == Finding(number, "is of a session that was never proposed", ("server",))


# The model.


def release_with(played: Round, tmp_path: Path, model: Model, **changes: object) -> Verification:
    entries = played.entries()
    release = decode(Release, entries[-1].body, InputError)
    forged = msgspec.structs.replace(release, model=model.to_bytes(), **changes)
    return verify_forged(played, with_body(entries, len(entries) - 1, encode(forged)), tmp_path / "run")


def released(played: Round) -> Model:
    return Model.from_bytes(decode(Release, played.entries()[-1].body, InputError).model, "")


def with_head(model: Model, **changes: object) -> Model:
    return dataclasses.replace(model, head=dataclasses.replace(model.head, **changes))


def wrong_lambda(model: Model) -> Model:
    """The head that another lambda gives (nearly: all weights smaller), said to be the one that was chosen."""
    return with_head(model, weights=model.head.weights * (1 - 1e-5))


def test_a_wrong_lambda(whole: Round, tmp_path: Path) -> None:
    found = release_with(whole, tmp_path, wrong_lambda(released(whole)))
    assert found.finding is not None
    assert found.finding.reason.startswith("has a head that the sums do not give: off by 1e-05")
    assert found.finding.blame == ("server",)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: with_head(model, ridge=model.head.ridge * 1.01),
        lambda model: with_head(model, rule="fixed"),
        lambda model: with_head(model, intercept=model.head.intercept + 1e-3),
        lambda model: dataclasses.replace(model, prompts=model.prompts + np.float32(1e-3)),
        lambda model: dataclasses.replace(model, prompts=None),
        lambda model: dataclasses.replace(model, classes=tuple(reversed(model.classes))),
        lambda model: dataclasses.replace(model, backbone_hash=bytes(32)),
        lambda model: dataclasses.replace(model, preprocessing="another"),
        lambda model: dataclasses.replace(model, grid=dataclasses.replace(model.grid, normalise=False)),
        lambda model: dataclasses.replace(model, private_prompts=False),
    ],
)
def test_another_model_in_the_release(change: Any, whole: Round, tmp_path: Path) -> None:
    found = release_with(whole, tmp_path, change(released(whole)))
    assert found.finding is not None
    assert (found.finding.entry, found.finding.blame) == (len(whole.entries()) - 1, ("server",))


@pytest.mark.parametrize("ridge", [math.nan, math.inf, -1.0, 0.0])
def test_a_lambda_that_is_none(ridge: float, whole: Round, tmp_path: Path) -> None:
    found = release_with(whole, tmp_path, with_head(released(whole), ridge=ridge))
    assert found.finding is not None
    assert found.finding.blame == ("server",)


def test_a_model_with_more_in_it(whole: Round, tmp_path: Path) -> None:
    """A reader that knows more than ours might use it."""
    entries = whole.entries()
    release = decode(Release, entries[-1].body, InputError)
    size = int.from_bytes(release.model[:8], "little")
    header = json.loads(release.model[8 : 8 + size])
    header["__metadata__"]["more"] = '"than there is"'
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    model = len(text).to_bytes(8, "little") + text + release.model[8 + size :]
    forged = msgspec.structs.replace(release, model=model)
    found = verify_forged(whole, with_body(entries, len(entries) - 1, encode(forged)), tmp_path / "run")
    assert found.finding is not None
    assert "not written as one is" in found.finding.reason


@pytest.mark.parametrize(("core", "kind"), [("Haswell", "ridge"), ("Nehalem", "ridge"), ("Haswell", "lda")])
def test_a_head_made_with_another_blas_is_ok(core: str, kind: str, tmp_path: Path) -> None:
    """Of few images, where rounding moves the minimum of cross-validation by orders of magnitude."""
    run_round(tmp_path / "run", protocol="plain", train_limit=40, alpha=1000.0, head={"kind": kind})
    command = [sys.executable, "-m", "fedopal_secure.cli", "audit", "verify", str(tmp_path / "run"), "--json"]
    done = subprocess.run(
        [*command, "--trust", str(tmp_path / "run" / "trust.toml")],
        env=os.environ | {"OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]


def test_a_stranger_in_a_plain_round(tmp_path: Path) -> None:
    played = run_round(tmp_path / "run", **KINDS["plain"])
    entries = played.entries()
    number = first_of(entries, "upload", by_server=False)
    upload = decode(PlainUpload, entries[number].body, InputError)
    body = encode(msgspec.structs.replace(upload, sender=STRANGER.identity))
    entries[number] = dataclasses.replace(entries[number], sender=STRANGER.identity.hex(), body=body)
    found = verify_forged(played, entries, tmp_path / "forged")
    assert found.finding == Finding(number, "is an upload of somebody who is not a member", ("server",))


def test_a_sum_that_cannot_be_is_a_finding(whole: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(sums: RoundSums, public: object) -> None:
        raise OverflowBudgetError("the sum of the prompts is larger than 5 clients can make it")

    monkeypatch.setattr(RoundSums, "prompts", overflow)
    finding = whole.verify().finding
    assert finding is not None
    assert "larger than 5 clients" in finding.reason


def test_other_settings_of_the_head_than_were_used(whole: Round, tmp_path: Path) -> None:
    found = release_with(whole, tmp_path, released(whole), rule="fixed", value=0.5)
    assert found.finding is not None
    assert found.finding.blame == ("server",)


def test_a_replaced_model_file(whole: Round, tmp_path: Path) -> None:
    """By one that nobody signed, one that another signed, and one that the server signed in another round."""
    for number, key in enumerate((None, STRANGER, whole.simulation.server_key)):
        shutil.copytree(whole.folder, tmp_path / str(number))
        model = wrong_lambda(released(whole))
        (model if key is None else model.signed(key, "ab" * 32)).save(tmp_path / str(number) / "model.safetensors")
        found = verify_module.verify(tmp_path / str(number), whole.trust)
        assert found.finding == Finding(
            None, "the model beside the transcript is not the file that this round released", (KEEPER,)
        )


def test_noise_that_nobody_agreed_to_and_noise_that_is_too_large(whole: Round, tmp_path: Path) -> None:
    found = release_with(whole, tmp_path, released(whole), noisy=bytes(8))
    assert found.finding is not None
    assert "nobody agreed to" in found.finding.reason
    central = run_round(tmp_path / "central", **KINDS["central noise"])
    release = decode(Release, central.entries()[-1].body, InputError)
    numbers = np.frombuffer(release.noisy, "<i8").copy()
    original = int(numbers[-11])
    numbers[-11] += 2**40  # the last entry of C
    found = release_with(central, tmp_path / "c", released(central), noisy=numbers.tobytes())
    assert found.finding is not None
    assert "more than it can be" in found.finding.reason
    numbers[-11] = np.iinfo(np.int64).min
    found = release_with(central, tmp_path / "b", released(central), noisy=numbers.tobytes())
    assert found.finding is not None
    assert "more than it can be" in found.finding.reason
    numbers[-11] = original + 1000
    found = release_with(central, tmp_path / "d", released(central), noisy=numbers.tobytes())
    assert found.finding is not None
    assert "has a head that the sums do not give" in found.finding.reason


# Whom the auditor trusts, and on what terms.


def test_another_server_and_other_terms(whole: Round) -> None:
    for changes, reason in [
        ({"servers": {"other": STRANGER.identity.hex()}}, "server"),
        ({"corrupt": 3}, "'corrupt'"),
        ({"min_survivors": 6}, "'min_survivors'"),
        ({"min_contributors": 4}, "'min_contributors'"),
        ({"max_images": 8}, "'max_images'"),
        ({"classes": ("a", "b")}, "'classes'"),
        ({"backbone_hash": "ab" * 32}, "'backbone_hash'"),
        ({"prompt_radius": 1e-9}, "'prompt_radius'"),
        ({"protocols": ("plain/v1",)}, "'protocols'"),
        ({"identities": {"other": STRANGER.identity.hex()}}, "is not a member"),
    ]:
        found = whole.verify(**changes)
        assert found.finding is not None, changes
        assert reason in found.finding.reason, found.finding
    with pytest.raises(InputError, match="names no server"):
        whole.verify(servers={})
    with pytest.raises(InputError, match="one identity two names"):
        whole.verify(identities=whole.trust.identities | {"again": next(iter(whole.trust.identities.values()))})


def test_a_head_that_no_trusted_server_signed(whole: Round, tmp_path: Path) -> None:
    held = rewritten(whole, whole.entries(), tmp_path / "run", STRANGER)
    found = held.verify()
    assert found.finding is not None
    assert "no server that the trust file names" in found.finding.reason
    assert found.finding.blame == (KEEPER,)
    (tmp_path / "run" / "transcript" / "head.json").unlink()
    assert held.verify().finding == found.finding


# Faults of clients.


def test_a_bad_share_of_a_holder_is_noted(whole: Round, tmp_path: Path) -> None:
    entries = whole.entries()
    number = first_of(entries, "reveal", by_server=False)
    reveal = decode(messages.Reveal, entries[number].body, InputError)
    bad = bytes([reveal.seed_shares[0][0] ^ 1]) + reveal.seed_shares[0][1:]
    forged = msgspec.structs.replace(reveal, seed_shares=(bad, *reveal.seed_shares[1:]))
    own = messages.sign(whole.key_of(entries[number].sender), forged)
    found = verify_forged(whole, with_body(entries, number, encode(own)), tmp_path / "run")
    assert found.ok
    assert {(note.client, note.holder) for note in found.noted} == {(entries[number].sender, None)}
    assert "did not commit to" in found.noted[0].reason


def test_a_dealer_that_committed_to_another_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a server that does not care: the auditor names both."""
    dealt: list[bytes] = []
    honest = messages.seed_hash

    def lie(seed: bytes) -> bytes:
        dealt.append(seed)
        return honest(seed) if len(dealt) > 1 else honest(bytes(32))

    with monkeypatch.context() as patch:
        patch.setattr(client_module.messages, "seed_hash", lie)
        patch.setattr(
            recovery.Rebuilder,
            "seed",
            lambda self, message, shown: self._combine(message, recovery.SEED_SHARE, message.seed_commitments, shown),
        )
        played = run_round(tmp_path / "run")
    found = played.verify()
    assert found.finding is not None
    assert "do not rebuild the self-mask seed" in found.finding.reason
    client, server = found.finding.blame
    assert bytes.fromhex(client) in played.simulation.by_identity
    assert server == "server"


# Controls: with a check taken out of the auditor, what it stops gets through.


def test_control_an_auditor_that_takes_the_servers_word(
    whole: Round, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows a forged list of dropped clients in the request for reveals, and nothing after it depends on that."""
    entries = whole.entries()
    number = first_of(entries, "reveal", by_server=True)
    request = decode(messages.RevealRequest, entries[number].body, InputError)
    forged = msgspec.structs.replace(request, dropped=request.survivors[:1])
    changed = with_body(entries, number, encode(forged))
    assert not verify_forged(whole, changed, tmp_path / "defended").ok
    ask = replay_module.Replay._ask

    def believe(replay: replay_module.Replay, name: str, entry: Entry) -> bytes:
        ask(replay, name, entry)
        return entry.body

    monkeypatch.setattr(replay_module.Replay, "_ask", believe)
    assert verify_forged(whole, changed, tmp_path / "control").ok


def test_control_an_auditor_that_does_not_solve_again(
    whole: Round, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module.Replay, "_compare", lambda replay, told, made, statistics, head: 0.0)
    assert release_with(whole, tmp_path, wrong_lambda(released(whole))).ok


def test_control_an_auditor_that_asks_for_no_signature(
    whole: Round, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper without the server's key leaves one reveal out, and the chain made again holds."""
    entries = whole.entries()
    del entries[first_of(entries, "reveal", by_server=False)]
    assert not rewritten(whole, entries, tmp_path / "defended", STRANGER).verify().ok
    (tmp_path / "defended" / "model.safetensors").unlink()
    monkeypatch.setattr(verify_module, "_is_trusted", lambda signed, head, trust: True)
    head = tmp_path / "defended" / "transcript" / "head.json"
    head.write_text(head.read_text().replace(STRANGER.identity.hex(), whole.simulation.server_key.identity.hex()))
    assert Round(whole.simulation, tmp_path / "defended").verify().ok
