"""The released file: it loads as it was saved, and a damaged one is one line, never a wrong prediction."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.model import Model, evaluate
from fedopal_secure.solver.ridge import RidgeHead

MODEL = Model(
    RidgeHead(np.arange(12.0).reshape(4, 3), np.array([0.5, 0.0, -1.0]), 1e-3, "gcv"),
    np.ones((2, 6), np.float32),
    ("cat", "dog", "ours [x]"),
    "embedded",
    bytes(range(32)),
    "as agreed",
    FeatureGrid(4, bits=10),
    transcript="ab" * 32,
)


def parts(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118


def test_round_trip(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "m.safetensors")
    loaded = Model.load(tmp_path / "m.safetensors")
    assert np.array_equal(loaded.head.weights, MODEL.head.weights)
    assert np.array_equal(loaded.prompts, MODEL.prompts)
    for name in ("classes", "backbone", "backbone_hash", "preprocessing", "grid", "transcript"):
        assert getattr(loaded, name) == getattr(MODEL, name)
    assert (loaded.head.ridge, loaded.head.rule) == (1e-3, "gcv")


@pytest.mark.parametrize(
    ("tensors", "facts"),
    [
        ({"intercept": np.zeros(2)}, {}),
        ({"weights": np.zeros((4, 2))}, {}),
        ({"weights": np.full((4, 3), np.nan)}, {}),
        ({"prompts": np.ones(6, np.float32)}, {}),
        ({}, {"format": "another"}),
        ({}, {"classes": ["cat", "dog"]}),
        ({}, {"classes": "cat"}),
        ({}, {"classes": [1, 2, 3]}),
        ({}, {"backbone": 3}),
        ({}, {"normalise": "maybe"}),
        ({}, {"feature_bits": 99}),
        ({}, {"backbone_hash": "zz"}),
        ({}, {"lambda": 1}),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, tensors: dict[str, np.ndarray], facts: dict[str, object]) -> None:
    MODEL.save(tmp_path / "m.safetensors")
    good_tensors, good_facts = parts(tmp_path / "m.safetensors")
    changed = good_facts | {name: json.dumps(value) for name, value in facts.items()}
    save_file(good_tensors | tensors, tmp_path / "bad.safetensors", changed)
    with pytest.raises(InputError) as caught:
        Model.load(tmp_path / "bad.safetensors")
    assert "\n" not in str(caught.value)


def test_a_model_runs_on_its_own_backbone_only() -> None:
    class Other:
        id, hash, preprocessing, embed_dim = "embedded", "00" * 32, "as agreed", 6

    with pytest.raises(InputError, match="was made on backbone"):
        MODEL.check_backbone(Other())


def test_evaluation_against_values_worked_by_hand() -> None:
    scores = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    found = evaluate(scores, np.array([0, 0, 1, 1]), ("a", "b"))
    assert found.accuracy == 0.75
    assert found.recall == {"a": 1.0, "b": 0.5}
    # Of the four pairs (a, b), class a outranks class b in three.
    assert found.auc == 0.75
    assert found.accuracy_top5 is None
    assert evaluate(scores, np.zeros(4, np.int64), ("a", "b")).auc is None


def test_equal_models_are_equal_files() -> None:
    assert len({MODEL.to_bytes() for _ in range(20)}) == 1


def test_the_digest_is_of_all_but_where_it_comes_from() -> None:
    digests = {MODEL.digest()}
    changes: list[dict[str, object]] = [
        {"prompts": None},
        {"prompts": np.zeros((2, 6), np.float32)},
        {"classes": ("cat", "dog", "other")},
        {"backbone": "another"},
        {"backbone_hash": bytes(32)},
        {"preprocessing": "another"},
        {"grid": FeatureGrid(4, bits=11)},
        {"private_prompts": True},
        {"head": dataclasses.replace(MODEL.head, ridge=1e-4)},
        {"head": dataclasses.replace(MODEL.head, rule="fixed")},
        {"head": dataclasses.replace(MODEL.head, weights=MODEL.head.weights + 1)},
        {"head": dataclasses.replace(MODEL.head, intercept=MODEL.head.intercept + 1)},
    ]
    for change in changes:
        digests.add(dataclasses.replace(MODEL, **change).digest())  # type: ignore[arg-type]
    assert len(digests) == 1 + len(changes)
    assert dataclasses.replace(MODEL, transcript="cd" * 32, server="ef" * 32).digest() == MODEL.digest()


def test_a_signature_is_on_model_and_transcript(tmp_path: Path) -> None:
    key, other = SigningKey(b"k" * 32), SigningKey(b"o" * 32)
    MODEL.signed(key, "ab" * 32).save(tmp_path / "m.safetensors")
    signed = Model.load(tmp_path / "m.safetensors")
    signed.check_signed_by(key.identity)
    with pytest.raises(InputError, match="not by the server"):
        signed.check_signed_by(other.identity)
    with pytest.raises(InputError, match="nobody signed it"):
        MODEL.check_signed_by(key.identity)
    for changes in ({"transcript": "cd" * 32}, {"backbone": "x"}, {"signature": "zz"}, {"signature": "00" * 64}):
        with pytest.raises(InputError, match="not the one that"):
            dataclasses.replace(signed, **changes).check_signed_by(key.identity)  # type: ignore[arg-type]
