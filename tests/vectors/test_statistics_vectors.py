"""statistics/v1: the package gives what the reference gives, on every vector and on inputs drawn at random."""

from __future__ import annotations

import functools
import json
import math
import operator
import os
import re
import struct
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import FedopalError, PolicyRefusal
from fedopal_secure.core.messages import Context, Proposal, context_hash
from fedopal_secure.core.params import PROTOCOL as PROTOCOL_NAME
from fedopal_secure.core.params import Segment, SessionParams, Task, check_params
from fedopal_secure.core.ring import from_wire, to_wire
from fedopal_secure.data.groups import capped
from fedopal_secure.encoding.grid import FeatureGrid, PromptGrid, _round_into_ball
from fedopal_secure.encoding.layout import presence_segment, prompt_segment, statistics_segments, wire_bytes
from fedopal_secure.encoding.vector import pack, unpack
from fedopal_secure.federation.client import PrivateData
from fedopal_secure.federation.plain_sum import PlainServer, PlainUpload
from fedopal_secure.federation.rules import check_privacy, check_spending
from fedopal_secure.federation.secure_sum import PLAIN
from fedopal_secure.federation.vectors import (
    PromptTotal,
    feature_grid,
    from_vector,
    presence_vector,
    prompt_grid,
    session_segments,
    to_vector,
)
from fedopal_secure.privacy import noise
from fedopal_secure.privacy.gaussian import tail_bound
from fedopal_secure.privacy.release import Release, parse_release, squared_sensitivities, sum_gap, zcdp
from fedopal_secure.solver.moments import Moments
from fedopal_secure.statistics.sums import SufficientStatistics, accumulate
from protocols.statistics.v1 import generate, private
from tests.core.harness import TASK, make

PROTOCOL = Path(generate.HERE)


VECTORS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (PROTOCOL / "vectors").glob("*.json")}
GOOD = sorted(name for name in VECTORS if name.startswith("good_"))
BAD = sorted(name for name in VECTORS if name.startswith("bad_"))


def test_the_vectors_are_those_of_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0
    assert capsys.readouterr().out == ""
    assert sorted(VECTORS) == sorted(GOOD + BAD)
    assert len(GOOD) >= 30
    assert len(BAD) >= 30


@pytest.mark.parametrize("damage", ["changed", "missing", "foreign"])
def test_check_names_what_differs(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (PROTOCOL / "vectors").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    name = "foreign.json" if damage == "foreign" else "good_example.json"
    if damage == "missing":
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text("{}\n")
    monkeypatch.setattr(generate, "VECTORS", tmp_path)
    assert generate.main(["--check"]) == 1
    assert name in capsys.readouterr().out


def test_the_page_shows_the_example_of_the_reference() -> None:
    assert f"```text\n{generate.example()}```" in (PROTOCOL / "spec.md").read_text(encoding="utf-8")


def test_names_of_errors_are_those_of_the_package() -> None:
    package = {error.__name__ for error in (FedopalError, *FedopalError.__subclasses__())}
    package |= {error.__name__ for parent in FedopalError.__subclasses__() for error in parent.__subclasses__()}
    assert {VECTORS[name]["expected_error"] for name in BAD} <= package


@pytest.mark.parametrize("order", [math.fsum, functools.partial(functools.reduce, operator.add)])
@pytest.mark.parametrize("name", [name for name in GOOD if VECTORS[name]["operation"] in ("quantise", "session")])
def test_no_grid_point_depends_on_the_order_of_addition(name: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the integers of the vectors hold for an implementation that adds the squares in an order of its own."""
    vector = VECTORS[name]
    monkeypatch.setattr(generate.ref, "add_pairwise", order)
    found = generate.OPERATIONS[vector["operation"]](vector["input"])
    assert {**found, "normalised": None} == {**vector["expected"], "normalised": None}


# The package behind the same operations.


def floats(rows: list[list[str]]) -> np.ndarray:
    """Bit patterns to a matrix, float32 or float64 by the number of their digits."""
    digits = len(rows[0][0]) if rows and rows[0] else 8
    flat = b"".join(bytes.fromhex(entry) for row in rows for entry in row)
    return np.frombuffer(flat, ">f4" if digits == 8 else ">f8").reshape(len(rows), -1).astype(f"f{digits // 2}")


def bits(matrix: np.ndarray) -> list[list[str]]:
    form = ">f" if matrix.dtype == np.float32 else ">d"
    return [[struct.pack(form, entry).hex() for entry in row] for row in matrix.tolist()]


def number(value: Any) -> Any:
    return float(np.frombuffer(bytes.fromhex(value), ">f8")[0]) if isinstance(value, str) else value


class Agreement:
    """A vector's parameters as the package's types."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = {name: number(value) for name, value in fields.items()}

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def features(self) -> FeatureGrid:
        return FeatureGrid(self.dimension, self.bound, self.bits, self.normalise)

    @property
    def prompt_grid(self) -> PromptGrid:
        return PromptGrid(self.prompt_bound, self.prompt_bits)

    @property
    def segments(self) -> tuple[Segment, ...]:
        found: tuple[Segment, ...] = ()
        if self.statistics:
            found = statistics_segments(self.dimension, self.classes, self.bits, self.max_images)
        if self.prompts:
            found += (prompt_segment(self.tokens, self.prompt_dimension, self.prompt_bits, self.clients),)
        return found

    @property
    def task(self) -> Task:
        mode = {(True, False): "none", (True, True): "local", (False, True): "two-phase"}
        return msgspec.structs.replace(
            TASK,
            feature_dimension=self.dimension,
            feature_bound=self.bound,
            feature_bits=self.bits,
            normalise=self.normalise,
            classes=tuple(f"class {i}" for i in range(self.classes)),
            prompt_mode=mode[self.statistics, self.prompts],
            prompt_tokens=self.tokens if self.prompts else 0,
            prompt_dimension=self.prompt_dimension if self.prompts else 0,
            prompt_bound=self.prompt_bound,
            prompt_bits=self.prompt_bits,
            prompt_source=bytes(32) if self.prompts else b"",
            max_images=self.max_images,
        )

    @property
    def params(self) -> SessionParams:
        name = "statistics" if self.statistics else "prompts"
        return session_params(session_segments(self.task, name, self.clients), self.task, name)


def session_params(segments: tuple[Segment, ...], task: Task, name: str = "statistics") -> SessionParams:
    return msgspec.structs.replace(make().params, protocol=PLAIN, name=name, segments=segments, task=task)


def segments_of(fields: list[dict[str, Any]]) -> tuple[Segment, ...]:
    return tuple(Segment(**field) for field in fields)


def summed(params: SessionParams, payloads: list[bytes]) -> np.ndarray:
    """The sum that a server makes of clients' payloads."""
    names = [bytes([i]) * 32 for i in range(len(payloads))]
    params = msgspec.structs.replace(params, clients=max(3, len(payloads)), min_survivors=3)
    server = PlainServer(Proposal(params), tuple(names))
    context = Context(server.session, b"", b"", (), b"")
    server.request("upload", context)
    for name, payload in zip(names, payloads, strict=True):
        server.receive(name, encode(PlainUpload(server.session, name, context_hash(context), payload)))
    return server.finish().total


def run_parameters(case: dict[str, Any]) -> dict[str, Any]:
    p = Agreement(case["parameters"])
    found: dict[str, Any] = {"scale": bits(np.array([[p.features.scale]]))[0][0]} if p.statistics else {}
    if p.prompts:
        assert p.prompt_grid.scale > 0
    assert p.segments == p.params.segments
    return found | {
        "segments": [msgspec.structs.asdict(s) for s in p.segments],
        "payload_bytes": wire_bytes(p.segments),
    }


def run_quantise(case: dict[str, Any]) -> dict[str, Any]:
    grid, features = Agreement(case["parameters"]).features, floats(case["features"])
    return {"q": grid.quantise(features).tolist(), "normalised": bits(grid.normalised(features))}


def run_round(case: dict[str, Any]) -> dict[str, Any]:
    return {"q": _round_into_ball(floats(case["x"]), case["bits"]).tolist()}


def run_quantise_prompts(case: dict[str, Any]) -> dict[str, Any]:
    return {"q": Agreement(case["parameters"]).prompt_grid.quantise(floats(case["prompts"])).tolist()}


def run_accumulate(case: dict[str, Any]) -> dict[str, Any]:
    p = Agreement(case["parameters"])
    q = np.array(case["q"], np.int32).reshape(-1, p.dimension)
    s = accumulate(q, np.array(case["labels"], np.int64), p.classes, p.bits)
    return {"r": s.r.tolist(), "c": s.c.tolist(), "counts": s.counts.tolist()}


def run_census(case: dict[str, Any]) -> dict[str, Any]:
    segment = presence_segment(case["classes"], case["clients"])
    task = msgspec.structs.replace(TASK, classes=tuple(f"class {number}" for number in range(case["classes"])))
    params = msgspec.structs.replace(make(3, 0, parts=(segment,)).params, task=task)
    vector = presence_vector(params, np.array(case["labels"], np.int64))
    return {"segments": [msgspec.structs.asdict(segment)], "presence": [int(entry) for entry in vector]}


def run_encode(case: dict[str, Any]) -> dict[str, Any]:
    segments = segments_of(case["segments"])
    arrays = {name: np.array(values, np.int64) for name, values in case["arrays"].items()}
    return {"payload": to_wire(pack(segments, arrays), segments).hex()}


def run_add(case: dict[str, Any]) -> dict[str, Any]:
    segments, task = segments_of(case["segments"]), Agreement(generate.cases.agreed()).task
    total = summed(session_params(segments, task), [bytes.fromhex(payload) for payload in case["payloads"]])
    arrays = {name: values.tolist() for name, values in unpack(segments, total).items()}
    return {"payload": to_wire(total, segments).hex(), "arrays": arrays}


def read(params: SessionParams, total: np.ndarray) -> dict[str, Any]:
    statistics, prompts = from_vector(params, total)
    found: dict[str, Any] = {}
    if statistics is not None:
        found |= {"r": statistics.r.tolist(), "c": statistics.c.tolist(), "counts": statistics.counts.tolist()}
    return found if prompts is None else found | {"prompts": prompts.tolist()}


def run_read(case: dict[str, Any]) -> dict[str, Any]:
    params = Agreement(case["parameters"]).params
    return read(params, from_wire(bytes.fromhex(case["payload"]), params.segments))


def run_moments(case: dict[str, Any]) -> dict[str, Any]:
    r, c, counts = (np.array(case[name], np.int64) for name in ("r", "c", "counts"))
    moments = Moments.from_statistics(SufficientStatistics(r, c, counts), Agreement(case["parameters"]).features)
    return {"r": bits(moments.r), "c": bits(moments.c)}


def run_mean_prompt(case: dict[str, Any]) -> dict[str, Any]:
    mean = Agreement(case["parameters"]).prompt_grid.mean(np.array(case["total"], np.int64), case["clients"])
    return {"mean": bits(mean)}


def run_session(case: dict[str, Any]) -> dict[str, Any]:
    p = Agreement(case["parameters"])
    task, params, payloads = p.task, p.params, []
    for client in case["clients"]:
        statistics = prompts = None
        if p.statistics:
            q = feature_grid(task).quantise(floats(client["features"]).reshape(-1, p.dimension))
            statistics = accumulate(q, np.array(client["labels"]), len(task.classes), task.feature_bits)
        if p.prompts:
            prompts = prompt_grid(task).quantise(floats(client["prompts"]))
        payloads.append(to_wire(to_vector(params, statistics, prompts), params.segments))
    silent = [bytes(params.upload_bytes)] * (3 - len(payloads))  # a session takes three, and zeros add nothing
    total = summed(params, payloads + silent)
    found = read(params, total)
    answer = {"payloads": [payload.hex() for payload in payloads], "total": to_wire(total, params.segments).hex()}
    if p.statistics:
        answer["moments"] = run_moments(found | {"parameters": case["parameters"]})
    if p.prompts:
        answer |= run_mean_prompt({**case, "total": found["prompts"], "clients": len(payloads)})
        sent = PromptTotal(len(payloads), np.array(found["prompts"], "<i8").tobytes())  # as the next session sees it
        assert bits(sent.mean(task)) == answer["mean"]
    return answer | found


# Private releases. A session is checked where a client checks it.


def as_release(case: dict[str, Any]) -> Task:
    return msgspec.structs.replace(Agreement(case["parameters"]).task, release=case["release"])


def run_float_text(case: dict[str, Any]) -> dict[str, Any]:
    return {"texts": [msgspec.json.encode(number(digits)).decode() for digits in case["numbers"]]}


def run_release(case: dict[str, Any]) -> dict[str, Any]:
    p, asked = Agreement(case["parameters"]), case["session"]
    task = msgspec.structs.replace(
        as_release(case), prompt_mode=asked["prompt_mode"], min_contributors=asked["min_contributors"]
    )
    if asked["prompt_mode"] != "none" and not p.prompts:
        task = msgspec.structs.replace(task, prompt_tokens=1, prompt_dimension=1, prompt_source=bytes(32))
    params = msgspec.structs.replace(
        p.params,
        protocol=PROTOCOL_NAME if asked["masked"] else PLAIN,
        clients=p.clients,
        min_survivors=asked["min_survivors"],
        corrupt=asked["corrupt"],
        degree=0 if p.clients <= 256 else 100,
        task=task,
    )
    check_params(params, params.protocol)
    check_privacy(params, asked["group_column"])
    return {"segments": [msgspec.structs.asdict(s) for s in session_segments(task, params.name, p.clients)]}


class Near(float):
    """A float that equals the text of a number close to it: hexadecimal digits, or a fraction."""

    def __eq__(self, other: object) -> bool:
        exact = float(Fraction(other)) if "/" in str(other) else number(other)
        return math.isclose(self, exact, rel_tol=1e-12)

    __hash__ = None


def run_rho(case: dict[str, Any]) -> dict[str, Any]:
    release = parse_release(case["release"])
    gap = sum(s.length * sum_gap(s.sigma, release.contributors) for s in release.segments) / 4
    return {"rho_without_gap": Near(zcdp(release) - gap), "gap": Near(gap)}


def run_tail(case: dict[str, Any]) -> dict[str, Any]:
    return {"tail": tail_bound(case["sigma"], case["clients"], case["entries"])}


def given_noise(samples: dict[str, list[int]], release: Release) -> Any:
    """While it is entered, these numbers are what the sampler draws."""
    drawn = iter(release.segments)

    def sample(sigma: int, count: int, entropy: Any) -> np.ndarray:
        segment = next(drawn)
        assert (segment.sigma, segment.length) == (sigma, count)
        return np.array(samples[segment.name], np.int64)

    return mock.patch.object(noise, "discrete_gaussian", sample)


def as_statistics(case: dict[str, Any], p: Agreement) -> SufficientStatistics:
    q = np.array(case["q"], np.int32).reshape(-1, p.dimension)
    return accumulate(q, np.array(case["labels"], np.int64), p.classes, p.bits)


def as_lists(s: SufficientStatistics) -> dict[str, Any]:
    return {"r": s.r.tolist(), "c": s.c.tolist(), "counts": s.counts.tolist()}


def run_noisy(case: dict[str, Any]) -> dict[str, Any]:
    p, task, payloads = Agreement(case["parameters"]), as_release(case), []
    params = session_params(session_segments(task, "statistics", p.clients), task)
    for client in case["clients"]:
        prompts = np.array(client["prompts"], np.int64) if p.prompts else None
        with given_noise(client["noise"], parse_release(case["release"])):
            vector = to_vector(params, as_statistics(client, p), prompts, os.urandom)
        payloads.append(to_wire(vector, params.segments))
    total = summed(params, payloads + [bytes(params.upload_bytes)] * (3 - len(payloads)))
    sent = {"payloads": [payload.hex() for payload in payloads], "total": to_wire(total, params.segments).hex()}
    statistics, _ = from_vector(params, total)
    return sent | as_lists(statistics)


def run_central(case: dict[str, Any]) -> dict[str, Any]:
    p, task = Agreement(case["parameters"]), as_release(case)
    params, release = session_params(session_segments(task, "statistics", p.clients), task), parse_release(task.release)
    payloads = [to_wire(to_vector(params, as_statistics(held, p), None), params.segments) for held in case["clients"]]
    statistics, _ = from_vector(params, summed(params, [*payloads, bytes(params.upload_bytes)]))
    with given_noise(case["noise"], release):
        noisy = noise.add_noise(statistics.to_arrays(), release, os.urandom)
    found = SufficientStatistics.from_arrays(noisy, p.dimension, p.classes)
    return {"payloads": [payload.hex() for payload in payloads]} | as_lists(found)


def run_cap(case: dict[str, Any]) -> dict[str, Any]:
    images = np.array([list(bytes.fromhex(image)) for image in case["images"]], np.uint8)
    labels, groups = np.array(case["labels"], np.int64), np.array(case["groups"], np.int64)
    data = PrivateData(images, labels, groups)
    kept = capped(groups, case["unit_images"], data.keys())
    assert np.array_equal(data.capped(case["unit_images"]).images, images[kept])
    return {"kept": kept.tolist()}


def run_spend(case: dict[str, Any]) -> dict[str, Any]:
    limits = {"epsilon": number(case["epsilon"]), "delta": number(case["delta"]), "max_images": case["max_images"]}
    policy = SimpleNamespace(**limits)
    check_spending(policy, case["release"], case["others"])  # type: ignore[arg-type]
    return {}


OURS = {name.removeprefix("run_"): value for name, value in globals().items() if name.startswith("run_")}


# The rules of spec.md §12.8 and §12.9 -> what the package says of them.
RULES = {
    "form": "not a valid one|not in its canonical form",
    "census": "presence bits would void",
    "masks": "this protocol masks none",
    "mechanism": "no mechanism",
    "relation": "no relation",
    "mode": "no mode",
    "unit": "no unit",
    "unit_images": r"a unit of -?\d+ images",
    "epsilon": "epsilon is",
    "delta": "delta is",
    "contributors": "counts on .* sources of noise",
    "count_scale": "grid units for one image",
    "segments": "segments are not the session's",
    "sigma": "sigma of 'r_upper' is",
    "prompts": "tuned without privacy|are not tuned|not groups of them",
    "tuning": "numbers of its DP-SGD",
    "claim": "its noise gives epsilon .* and it claims",
    "groups": "no group column",
    "no budget": "grants no private release|the policy's delta",
    "claims of another kind have left": "another unit, or trusted the server otherwise",
    "budget": "reach epsilon .* the policy allows",
    "exact sums have left": "exact sums .* have left",
    "private sums have left": "exact sums would void",
}


def test_every_rule_is_broken_by_a_vector() -> None:
    assert {VECTORS[name]["rule"] for name in BAD if "rule" in VECTORS[name]} == RULES.keys()


@pytest.mark.parametrize("name", GOOD)
def test_good(name: str) -> None:
    vector = VECTORS[name]
    assert OURS[vector["operation"]](vector["input"]) == vector["expected"]


@pytest.mark.parametrize("name", BAD)
def test_bad(name: str) -> None:
    vector = VECTORS[name]
    with pytest.raises(FedopalError) as caught:
        OURS[vector["operation"]](vector["input"])
    assert type(caught.value).__name__ == vector["expected_error"], vector["claim"]
    if "rule" in vector:
        assert re.search(RULES[vector["rule"]], str(caught.value)), vector["claim"]


# Inputs drawn at random.


@st.composite
def sessions(draw: st.DrawFn) -> dict[str, Any]:
    """A session of up to three clients, in the JSON form of the vectors."""
    statistics, prompts = draw(st.sampled_from([(True, False), (True, True), (False, True)]))
    fields = {
        "statistics": statistics,
        "prompts": prompts,
        "dimension": draw(st.one_of(st.integers(2, 12), st.sampled_from([16, 130]))),
        "classes": draw(st.integers(2, 4)),
        "bound": draw(st.sampled_from([1.0, 0.5, 4.0, 1.02, 3.0])),
        "bits": draw(st.integers(4, 24)),
        "normalise": draw(st.booleans()),
        "max_images": draw(st.integers(9, 100)),
        "tokens": draw(st.integers(1, 3)),
        "prompt_dimension": draw(st.integers(1, 4)),
        "prompt_bits": draw(st.integers(1, 32)),
    }
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    whole = draw(st.booleans())  # small integers fall on halves

    def features(rows: int) -> list[list[str]]:
        drawn = (
            rng.integers(-3, 4, (rows, fields["dimension"]))
            if whole
            else rng.standard_normal((rows, fields["dimension"]))
        )
        return bits(drawn.astype(np.float32) * np.float32(fields["bound"]))

    clients = []
    for rows in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
        client: dict[str, Any] = {}
        if statistics:
            client |= {"features": features(rows), "labels": rng.integers(0, fields["classes"], rows).tolist()}
        if prompts:
            tokens = rng.uniform(-4, 4, (fields["tokens"], fields["prompt_dimension"]))
            client["prompts"] = bits(tokens.astype(np.float32))
        clients.append(client)
    return {"parameters": generate.cases.agreed(**fields), "clients": clients}


@settings(max_examples=60, deadline=None)
@given(sessions())
def test_sessions_agree_with_the_reference(case: dict[str, Any]) -> None:
    assert run_session(case) == generate.OPERATIONS["session"](case)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 40) | st.sampled_from([127, 128, 129, 136, 264, 1000]),
    st.integers(10, 24),
    st.sampled_from([1.0, 0.3, 7.0]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_every_bit_of_a_feature_agrees_with_the_reference(
    dimension: int, grid_bits: int, bound: float, normalise: bool, seed: int
) -> None:
    """Also the last bit, which the order of addition decides: numpy adds in the order that the page recommends."""
    rng = np.random.default_rng(seed)
    features = (rng.standard_normal((2, dimension)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
    fields = generate.cases.agreed(dimension=dimension, bits=grid_bits, bound=bound, normalise=normalise)
    case = {"parameters": fields, "features": bits(features)}
    assert run_quantise(case) == generate.OPERATIONS["quantise"](case)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-40, 40), min_size=1, max_size=6), st.integers(1, 5))
def test_rounding_into_the_ball_agrees_with_the_reference(row: list[float], grid_bits: int) -> None:
    """Rows of any norm, so that many are truncated; few of them fit even then, and that is the caller's affair."""
    case = {"x": bits(np.array([row])), "bits": grid_bits}
    assert run_round(case) == generate.OPERATIONS["round"](case)


@given(st.data(), st.integers(1, 8), st.booleans())
def test_sums_of_payloads_agree_with_the_reference(data: st.DataObject, width: int, signed: bool) -> None:
    """Any payloads at all, lawful or not: the sum is the same bytes, and it is read or refused alike."""
    segments = [{"name": "x", "length": 2, "width": width, "signed": signed}]
    payloads = [data.draw(st.binary(min_size=2 * width, max_size=2 * width)).hex() for _ in range(3)]
    case = {"segments": segments, "payloads": payloads}
    found = []
    for add in (run_add, generate.OPERATIONS["add"]):
        try:
            found.append(add(case))
        except Exception as error:
            found.append(type(error).__name__)
    assert found[0] == found[1]


SOUND = VECTORS["good_release_tuned_prompts"]["input"]["release"]


def as_mapping(text: str) -> Any:
    release = private.read_release(text)
    prompts = release.prompts and release.prompts._asdict()
    return release._asdict() | {"segments": [s._asdict() for s in release.segments], "prompts": prompts}


def outcome(read: Any, text: str) -> object:
    """The release that is read, field by field, or None if it is refused."""
    try:
        return msgspec.json.decode(msgspec.json.encode(read(text)), strict=False)
    except (PolicyRefusal, private.PolicyRefusal):
        return None


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(SOUND)), st.integers(0, 3), st.text('0123456789.eE+-,:"{}[]nulltrue \\u', max_size=3))
def test_a_damaged_text_is_read_or_refused_alike(at: int, cut: int, put: str) -> None:
    text = SOUND[:at] + put + SOUND[at + cut :]
    ours, theirs = (outcome(read, text) for read in (parse_release, as_mapping))
    assert ours == theirs


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(1e-9, 1e20))
def test_floats_are_written_alike(x: float) -> None:
    assert msgspec.json.encode(x).decode() == private.float_text(x)


sigmas = st.integers(1, 4) | st.integers(3, 2**40)


@settings(deadline=None)
@given(
    st.integers(2, 600),
    st.integers(1, 24),
    st.integers(1, 2**32),
    st.integers(1, 4096),
    st.lists(sigmas, min_size=4, max_size=4),
    st.integers(1, 40),
)
def test_what_a_release_costs_agrees_with_the_reference(
    dimension: int, bits: int, count_scale: int, unit_images: int, noises: list[int], contributors: int
) -> None:
    p = generate.ref.Parameters(dimension=dimension, classes=3, bits=bits)
    limits = private.squared_sensitivities(p, count_scale, unit_images)
    assert squared_sensitivities(dimension, bits, count_scale, unit_images) == limits
    rows = zip(private.lengths(p).items(), noises, strict=True)
    segments = [{"name": n, "length": k, "squared_sensitivity": limits[n], "sigma": sigma} for (n, k), sigma in rows]
    fields = {"unit": "group", "unit_images": unit_images, "count_scale": count_scale, "contributors": contributors}
    text = generate.private_cases.text(**fields, segments=segments)
    theirs = private.read_release(text)
    exact = float(private.rho_without_gap(theirs)) + float(private.gap(theirs))
    assert zcdp(parse_release(text)) == pytest.approx(exact, rel=1e-12)


@given(sigmas, st.integers(1, 10_000), st.integers(1, 2**31))
def test_tails_agree_with_the_reference(sigma: int, clients: int, entries: int) -> None:
    assert tail_bound(sigma, clients, entries) == private.tail(sigma, clients, entries)


@pytest.mark.parametrize("sigma", [1, 3])
def test_the_sampler_of_the_page_draws_the_discrete_gaussian(sigma: int) -> None:
    rng, draws = np.random.default_rng(sigma), 5_000
    found = Counter(private.discrete_gaussian(sigma, lambda n: int(rng.integers(n))) for _ in range(draws))
    weights = {y: math.exp(-y * y / (2 * sigma**2)) for y in range(-12 * sigma, 12 * sigma + 1)}
    expected = {y: draws * weight / sum(weights.values()) for y, weight in weights.items()}
    common = [y for y, often in expected.items() if often >= 5]
    statistic = sum((found[y] - expected[y]) ** 2 / expected[y] for y in common)
    assert statistic < stats.chi2.isf(1e-3, len(common) - 1)
    assert draws - sum(found[y] for y in common) < 20
