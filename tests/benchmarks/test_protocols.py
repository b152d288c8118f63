"""The five ways to sum, side by side at a small size, and what can be told of the full size without running it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.protocols import CLASSES, DIMENSION, ENTRY_BYTES, MAX_IMAGES, Party, Stopwatch, distance, draw, seat
from fedopal_secure.core.params import BFV, BFV_MASKED, CKKS, Segment
from fedopal_secure.core.params import PROTOCOL as SECAGG
from fedopal_secure.encoding.vector import unpack
from fedopal_secure.federation.secure_sum import PLAIN
from fedopal_secure.he.ciphertext import CiphertextForm
from fedopal_secure.he.context import SCHEMES
from fedopal_secure.he.parameters import DEFAULTS
from tests.benchmarks.test_smoke import ROOT, quick


def test_all_five_beside_each_other(tmp_path):
    pytest.importorskip("tenseal", reason="missing tool: TenSEAL, of the extra `he`")
    found = quick("protocols", tmp_path)
    runs = {run["protocol"]: run for run in found["runs"]}
    assert {name: run["answers"] for name, run in runs.items()} == {
        PLAIN: 1,
        SECAGG: 5,
        BFV: 1,
        BFV_MASKED: 5,
        CKKS: 1,
    }
    for name, run in runs.items():
        assert (run["error"], run["dropouts"]) == (0, 1)
        assert min(run["client_seconds"], run["server_seconds"], run["sent_bytes"], run["got_bytes"]) > 0
        encrypted = name not in (PLAIN, SECAGG)
        assert (run["authority_seconds"] > 0, run["authority_got_bytes"] > 0) == (encrypted, encrypted)
    assert 0 < runs[CKKS]["largest_error"] < runs[CKKS]["error_bound"] < 0.5
    assert runs[BFV]["largest_error"] == runs[BFV]["error_bound"] == 0
    assert found["keys"].keys() == {BFV, BFV_MASKED, CKKS}
    assert all(measure["met"] for measure in found["measures"])


def test_without_tenseal_it_says_what_to_install():
    blocked = (
        "import runpy, sys; sys.modules['tenseal'] = None; runpy.run_module('benchmarks.protocols', None, '__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked, "--quick"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("benchmarks.protocols: encryption needs TenSEAL")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("clients", [10, 100])
def test_the_vector_is_that_of_a_round_and_its_sum_keeps_to_the_widths(clients):
    params = seat(clients, DIMENSION, PLAIN, None).params
    assert params.length == 200_000
    assert {segment.name: segment.width for segment in params.segments} == {
        "r_diagonal": 5,
        "r_upper": 5,
        "c": 4,
        "counts": 8,
    }
    assert (params.task.feature_dimension, len(params.task.classes)) == (DIMENSION, CLASSES)
    assert params.task.max_images == MAX_IMAGES
    vectors = [draw(params, number) for number in range(10)]
    whole = np.sum([vector.view(np.int64) for vector in vectors], axis=0)  # no 64-bit sum can wrap here
    read = unpack(params.segments, np.sum(vectors, axis=0, dtype=np.uint64))
    assert np.array_equal(np.concatenate(list(read.values())), whole)


@pytest.mark.parametrize("protocol", [BFV, BFV_MASKED, CKKS])
def test_ciphertexts_at_the_full_length_keep_to_what_was_promised(protocol):
    parameters = DEFAULTS[SCHEMES[protocol]]
    params = seat(10, DIMENSION, PLAIN, None).params
    segments = [Segment(part.name, part.length, min(part.width, 6), part.signed) for part in params.segments]
    modulus = parameters.plain_moduli[0] if protocol == BFV_MASKED else 0
    form = CiphertextForm(parameters, tuple(segments), modulus)
    assert form.payload_bytes / params.length <= ENTRY_BYTES[protocol]


def test_a_wrong_entry_is_seen():
    params = seat(4, 5, PLAIN, None).params
    expected = draw(params, 0)
    total = expected.copy()
    total[3] -= np.uint64(2)
    assert distance(params, expected, expected) == 0
    assert distance(params, expected, total) == 2


def test_a_party_keeps_its_time_and_bytes_by_phase():
    party = Party(lambda phase, request: request * 2)
    assert party.answer("join", b"ab") == b"abab"
    party.answer("upload", b"abc")
    assert (party.got, party.sent) == ({"join": 2, "upload": 3}, {"join": 4, "upload": 6})
    assert party.watch.seconds.keys() == {"join", "upload"}
    assert Stopwatch().total == 0 <= party.watch.total
