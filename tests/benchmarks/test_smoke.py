"""The benchmarks run at small sizes, tell a miss from a hit, and their shortcuts change no message."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.crowd import Crowd
from benchmarks.report import Measure, print_measures
from benchmarks.session import Client, Host, cast, run

ROOT = Path(__file__).parents[2]


def quick(module: str, folder: Path, *arguments: str) -> dict:
    """What `python -m benchmarks.MODULE --quick` found."""
    found = folder / "found.json"
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, "--quick", "--json", str(found)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Against the targets" in done.stdout
    return json.loads(found.read_text())


def test_ours_beside_the_peer(tmp_path):
    pytest.importorskip("flwr", reason="missing tool: flwr, whose SecAgg+ is the peer of this benchmark")
    found = quick("secagg", tmp_path)
    (session,) = found["runs"]
    ours, peer = session["secagg/v1"], session["SecAgg+"]
    assert ours["error"] == 0 < peer["max_error"]
    assert ours["masking"] + ours["rest"] == pytest.approx(ours["client_median"], rel=0.5)
    assert (ours["seed_bits"], peer["seed_bits"]) == (256, 32)
    assert min(ours["client_total"], ours["server_total"], peer["client_total"], peer["server_total"]) > 0
    assert [measure["met"] for measure in found["measures"]] == [True]


def test_the_sparse_graph_with_a_server_of_its_own(tmp_path):
    found = quick("secagg_scale", tmp_path)
    (session,) = found["runs"]
    assert session["error"] == 0
    assert session["degree"] > 0
    assert session["resident_at_most"] >= session["resident_after_uploads"] > session["resident_at_start"] > 0
    assert all(measure["met"] for measure in found["measures"])


def test_an_audit_beside_its_round(tmp_path):
    found = quick("verify", tmp_path)
    (one,) = found["runs"]
    assert one["round_seconds"] > one["server_seconds"] > 0
    assert [measure["met"] for measure in found["measures"]] == [True]


def test_noise_beside_the_peer(tmp_path):
    pytest.importorskip("opendp", reason="missing tool: opendp, whose sampler is the peer of this benchmark")
    found = quick("noise", tmp_path)
    assert [measure["met"] for measure in found["measures"]] == [True]


def test_heads_from_noisy_sums(tmp_path):
    random = np.random.default_rng(0)
    means, labels = random.standard_normal((3, 224)), np.arange(600) % 3
    features = (means[labels] + random.standard_normal((600, 224))).astype(np.float32)
    file = tmp_path / "blobs.npz"
    np.savez(file, train=features[:450], train_labels=labels[:450], test=features[450:], test_labels=labels[450:])
    found = quick("private_solvers", tmp_path, str(file))
    methods = {row["method"]: row["mean"] for row in found["runs"]["blobs"]}
    assert methods["no privacy, gcv"] > methods["largest class"] + 20


def test_modes_of_the_same_noise(tmp_path):
    (pair,) = quick("private_modes", tmp_path)["pairs"]
    assert abs(pair["distributed"] - pair["central"]) < 20


def transcript(degree: int, sample: frozenset[int]) -> str:
    """The hash of everything that clients send in one session, if those in the sample run without shortcuts."""
    people = cast(16, corrupt=1, degree=degree, length=7)
    crowd, sent = Crowd(sample), hashlib.sha256()

    def act(one: Client, step: str, data: bytes) -> bytes:
        message = crowd.act(one, step, data)
        sent.update(message)
        return message

    with crowd.patched():
        outcome = run(people, Host(people.params, people.policy.members, people.host_seed), frozenset({3}), act=act)
    assert outcome.error == 0
    return sent.hexdigest()


@pytest.mark.parametrize("degree", [0, 10])
def test_shortcuts_change_no_message(degree):
    nobody, everybody = frozenset(), frozenset(range(16))
    assert transcript(degree, nobody) == transcript(degree, everybody) == transcript(degree, frozenset({5, 9}))


def test_a_miss_is_printed():
    screen = Console(width=120, record=True, file=io.StringIO())
    print_measures(screen, [Measure("slow", 3, 2), Measure("fast", 3, 2, at_least=True)])
    slow, fast = (line for line in screen.export_text().splitlines() if "slow" in line or "fast" in line)
    assert "MISSED" in slow
    assert "MISSED" not in fast
