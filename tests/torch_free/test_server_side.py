"""The aggregator runs a whole round over bytes with the base install: numpy, cryptography, no torch."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from fedopal_secure.audit.verify import verify
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.params import Task
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.federation.config import HeadSettings
from fedopal_secure.federation.policies import file_of
from fedopal_secure.federation.protocols import open_client
from fedopal_secure.federation.secure_sum import PROTOCOLS, UPLOAD, Participant
from fedopal_secure.federation.server import Proposal, RoundServer
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript, read_transcript
from fedopal_secure.federation.vectors import STATISTICS_SESSION, to_vector
from fedopal_secure.model import Model
from fedopal_secure.solver.moments import Moments
from fedopal_secure.solver.ridge import solve_ridge
from fedopal_secure.statistics.sums import SufficientStatistics, accumulate

CLASSES = ("cat", "dog", "owl")
GRID = FeatureGrid(16)


def statistics_of(number: int) -> SufficientStatistics:
    random = np.random.default_rng(number)
    labels = random.integers(0, len(CLASSES), 20)
    features = random.normal(size=(20, GRID.dimension)) + 2 * np.eye(GRID.dimension)[labels]
    return accumulate(GRID.quantise(features), labels, len(CLASSES), GRID.bits)


def task() -> Task:
    return Task(
        backbone="any",
        backbone_hash=bytes(32),
        preprocessing="any",
        feature_map="cls",
        feature_dimension=GRID.dimension,
        feature_bound=GRID.bound,
        feature_bits=GRID.bits,
        normalise=GRID.normalise,
        classes=CLASSES,
        prompt_mode="none",
        prompt_tokens=0,
        prompt_dimension=0,
        prompt_bound=4.0,
        prompt_bits=24,
        prompt_source=b"",
        tuning="",
        max_images=1000,
        release="",
        min_contributors=0,
    )


def test_this_environment_has_no_torch() -> None:
    if "FEDOPAL_TORCH_FREE" not in os.environ:
        pytest.skip("torch may be installed here: `make test-torch-free` makes an environment without it")
    assert importlib.util.find_spec("torch") is None


@pytest.mark.parametrize("protocol", ["pairwise", "plain"])
def test_a_whole_round_without_torch(protocol: str, tmp_path: Path) -> None:
    name, server_key = PROTOCOLS[protocol], SigningKey(os.urandom(32))
    keys = [SigningKey(os.urandom(32)) for _ in range(5)]
    members = Membership(frozenset(key.identity for key in keys))
    policy = Policy(
        members,
        frozenset({server_key.identity}),
        "any",
        bytes(32),
        "any",
        CLASSES,
        1,
        1000,
        protocols=frozenset({name}),
    )
    server = RoundServer(
        server_key,
        members,
        tuple(key.identity for key in keys),
        Proposal(name, 5, 1, 0, 3, task()),
        HeadSettings(),
        os.urandom,
        Transcript(tmp_path / "transcript"),
        Timings(),
    )
    clients, sums = {}, {}
    gone = keys[4].identity
    for phase in server.phases:
        for number, key in enumerate(keys):
            sums[key.identity] = number
        for identity, request in server.request(STATISTICS_SESSION, phase).items():
            if identity == gone and phase == UPLOAD:
                continue
            if identity not in clients:
                key = next(key for key in keys if key.identity == identity)
                clients[identity], params = open_client(request, Participant(key, b"", policy, os.urandom))
            if phase == UPLOAD:
                vector = to_vector(params, statistics_of(sums[identity]), None)
                clients[identity].begin_upload(request, None)
                answer = clients[identity].upload(vector)
            elif identity == gone and phase in ("attest", "reveal"):
                continue
            else:
                answer = clients[identity].answer(phase, request)
            if answer:
                server.receive(STATISTICS_SESSION, phase, identity, answer)
    server.finish(STATISTICS_SESSION)

    pooled = SufficientStatistics.zeros(GRID.dimension, len(CLASSES))
    for number in range(4):
        pooled += statistics_of(number)
    assert server.statistics() == pooled
    model = server.release()
    expected = solve_ridge(Moments.from_statistics(pooled, GRID))
    assert np.array_equal(model.head.weights, expected.weights)

    model.save(tmp_path / "model.safetensors")
    loaded = Model.load(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.head.weights, model.head.weights)
    assert loaded.classes == CLASSES
    entries = list(read_transcript(tmp_path / "transcript"))
    assert entries[-1].head == model.transcript
    assert {entry.phase for entry in entries} == {*server.phases, "release"} - {"hold"}

    trust = file_of(policy, {key.identity.hex()[:4]: key.identity for key in keys}, {"server": server_key.identity})
    found = verify(tmp_path, trust)
    assert found.ok
    assert found.model == model.digest().hex()
