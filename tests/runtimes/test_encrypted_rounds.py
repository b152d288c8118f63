"""Whole rounds under encryption: the released model is the one of masked and of plain sums, bit for bit."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import InputError, MisuseError, OverflowBudgetError, PolicyRefusal
from fedopal_secure.core.messages import UploadHeader
from fedopal_secure.data.datasets import Dataset
from fedopal_secure.federation.config import PolicyConfig, SimulationConfig
from fedopal_secure.federation.transcript import read_transcript
from fedopal_secure.he.messages import OpenRequest, SignedUpload
from fedopal_secure.runtimes.setup import load_images
from fedopal_secure.runtimes.simulation import Outcome, Simulation
from fedopal_secure.vision.backbone import Backbone, load_backbone
from fedopal_secure.vision.features import extract_features

pytest.importorskip("tenseal", reason="missing tool: TenSEAL, of the extra `he`")

WAYS = {
    "pairwise": {"protocol": "pairwise"},
    "plain": {"protocol": "plain"},
    "bfv": {"protocol": "bfv"},
    "bfv masked": {"protocol": "bfv", "masked": True},
    "ckks": {"protocol": "ckks"},
}
ROUNDS = {
    "exact": {},
    "two-phase prompts": {"prompts": {"mode": "two-phase", "tuning": {"epochs": 1}}},
    "local prompts": {"prompts": {"mode": "local", "tuning": {"epochs": 1}}},
    "distributed noise": {"privacy": {"epsilon": 4.0, "mode": "distributed"}},
    "central noise": {"privacy": {"epsilon": 4.0, "mode": "central"}},
    "local noise": {"privacy": {"epsilon": 8.0, "mode": "local"}},
}


def config(way: str, **changes: object) -> SimulationConfig:
    return SimulationConfig.model_validate({"clients": 4, "train_limit": 60} | WAYS[way] | changes)


@lru_cache
def materials() -> tuple[Backbone, Dataset]:
    """A backbone and a few digits, loaded once: these rounds are compared with each other only."""
    backbone = load_backbone("embedded", None)
    dataset = load_images(config("pairwise"), backbone)
    return backbone, dataclasses.replace(dataset, test=dataset.test.subset(np.arange(20)))


FEATURES: dict[bytes, np.ndarray] = {}


def features(backbone: Backbone, images: np.ndarray, prompts: np.ndarray | None, **more: object) -> np.ndarray:
    """Features as rounds take them, each once: what these tests compare begins with the sums."""
    key = images.tobytes() + (b"" if prompts is None else prompts.tobytes())
    if key not in FEATURES:
        FEATURES[key] = extract_features(backbone, images, prompts, **more)
    return FEATURES[key]


def simulate(settings: SimulationConfig, out: Path | None = None, policy: PolicyConfig | None = None) -> Outcome:
    backbone, dataset = materials()
    return Simulation(settings, policy, backbone=backbone, dataset=dataset, extract=features).run(out)


@lru_cache
def outcome(way: str, name: str) -> Outcome:
    return simulate(config(way, **ROUNDS[name]))


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("way", ["bfv", "bfv masked", "ckks"])
def test_the_model_is_that_of_masking_bit_for_bit(way: str, name: str) -> None:
    found, expected = outcome(way, name), outcome("pairwise", name)
    assert np.array_equal(found.model.head.weights, expected.model.head.weights)
    assert np.array_equal(found.model.head.intercept, expected.model.head.intercept)
    assert (found.model.prompts is None) == (expected.model.prompts is None)
    if found.model.prompts is not None:
        assert np.array_equal(found.model.prompts, expected.model.prompts)
    assert found.result.exact is not None
    assert found.result.exact.max_abs_difference == 0


@pytest.mark.parametrize("name", ["exact", "two-phase prompts", "local prompts", "local noise"])
def test_and_that_of_plain_sums(name: str) -> None:
    assert np.array_equal(outcome("plain", name).model.head.weights, outcome("bfv", name).model.head.weights)


def test_what_result_json_says() -> None:
    for way, rounds, scheme in (("bfv", 1, "bfv"), ("bfv masked", 5, "bfv"), ("ckks", 1, "ckks")):
        (session,) = outcome(way, "exact").result.sessions
        assert session.encryption is not None
        assert (session.rounds, session.encryption.scheme) == (rounds, scheme)
        assert session.encryption.modulus_bits <= session.encryption.secure_bits
        assert 0 <= session.encryption.largest_error <= session.encryption.error_bound < 0.5
        assert (session.encryption.largest_error > 0) == (way == "ckks")
    assert outcome("pairwise", "exact").result.sessions[0].encryption is None


def test_uploads_that_are_lost_are_just_not_in_the_sum() -> None:
    released = [
        simulate(config(way, clients=6, corrupt=1, drop=("upload:2",)))
        for way in ("pairwise", "bfv", "ckks", "bfv masked")
    ]
    for run in released:
        assert run.result.exact is not None
        assert run.result.exact.max_abs_difference == 0
        assert len(run.result.sessions[0].survivors) == 4
        assert np.array_equal(run.model.head.weights, released[0].model.head.weights)


@pytest.mark.parametrize("way", ["bfv", "bfv masked", "ckks"])
def test_a_transcript_holds_hashes_of_ciphertexts_only(way: str, tmp_path: Path) -> None:
    simulate(config(way), tmp_path / "run")
    entries = list(read_transcript(tmp_path / "run" / "transcript"))
    uploads = [entry for entry in entries if entry.phase == "upload" and entry.sender != "server"]
    kind = UploadHeader if way == "bfv masked" else SignedUpload
    assert len([decode(kind, entry.body, MisuseError) for entry in uploads]) == 4
    request, answer = (entry for entry in entries if entry.phase == "open")
    assert len(decode(OpenRequest, request.body, MisuseError).total) == 32
    assert answer.sender != "server"
    assert all(len(entry.body) < 200_000 for entry in entries[1:])  # the first is the public context


def test_masks_go_with_bfv_only() -> None:
    with pytest.raises(InputError, match="'masked' goes with protocol 'bfv'"):
        Simulation(SimulationConfig(clients=4, train_limit=120, protocol="ckks", masked=True))


def test_entries_that_are_too_wide_for_the_plain_modulus() -> None:
    wide = {"features": {"bits": 23}}
    with pytest.raises(OverflowBudgetError, match="do without masks"):
        simulate(config("bfv masked", **wide))
    assert np.array_equal(
        simulate(config("bfv", **wide)).model.head.weights, simulate(config("pairwise", **wide)).model.head.weights
    )


def test_a_policy_that_does_not_accept_encryption_refuses() -> None:
    policy = PolicyConfig(corrupt=0, protocols=("secagg/v1",))
    with pytest.raises(PolicyRefusal, match="'protocols'"):
        simulate(config("bfv"), policy=policy)


def test_a_policy_file_with_a_context_of_its_own_cannot_be_rehearsed() -> None:
    with pytest.raises(InputError, match="public_context"):
        simulate(config("bfv"), policy=PolicyConfig(corrupt=0, public_context="00" * 32))
