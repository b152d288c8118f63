"""Writes vectors/*.json: `python protocols/statistics/v1/generate.py [--check | --example]`.

Inputs come from cases.py and private_cases.py, outputs from reference.py and private.py, and every run writes the same
bytes. `--check` writes nothing and exits with 1 if a file is missing, differs or is not one of ours. `--example` prints
the worked example of spec.md.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VECTORS = HERE / "vectors"
if __name__ == "__main__":  # run as a script, the directory above `protocols` is not where modules are looked for
    sys.path.insert(0, str(HERE.parents[2]))

from protocols.statistics.v1 import cases, private, private_cases  # noqa: E402
from protocols.statistics.v1 import reference as ref  # noqa: E402

Case = dict[str, Any]
each, single, double, number = cases.each, cases.single, cases.double, cases.number


def parameters(fields: Case) -> Any:
    """Parameters from their JSON form."""
    values: dict[str, Any] = {name: number(v) if isinstance(v, str) else v for name, v in fields.items()}
    return ref.Parameters(**values)


# The operations of §9, from JSON form to JSON form.


def do_parameters(given: Case) -> Case:
    """Segments, and the scale of the features."""
    p = parameters(given["parameters"])
    segments = [s._asdict() for s in ref.segments_of(p)]
    found: Case = {"segments": segments, "payload_bytes": sum(s["length"] * s["width"] for s in segments)}
    return found | ({"scale": double(ref.scale(p))} if p.statistics else {})


def do_quantise(given: Case) -> Case:
    """Grid points, and what prediction sees of the same features."""
    p = parameters(given["parameters"])
    features = each(number, given["features"])
    shown = each(lambda u: double(u * p.bound), [ref.into_unit_ball(h, p) for h in features])
    return {"q": [ref.quantise(h, p) for h in features], "normalised": shown}


def do_round(given: Case) -> Case:
    """Rounding alone."""
    return {"q": [ref.round_into_ball(x, given["bits"]) for x in each(number, given["x"])]}


def do_quantise_prompts(given: Case) -> Case:
    """Prompts to grid points."""
    return {"q": ref.quantise_prompts(each(number, given["prompts"]), parameters(given["parameters"]))}


def do_accumulate(given: Case) -> Case:
    """Integer sums of grid points."""
    r, c, counts = ref.accumulate(given["q"], given["labels"], parameters(given["parameters"]))
    return {"r": r, "c": c, "counts": counts}


def do_census(given: Case) -> Case:
    """Labels to presence bits."""
    segment, present = ref.census(given["labels"], given["classes"], given["clients"])
    return {"segments": [segment._asdict()], "presence": present}


def do_encode(given: Case) -> Case:
    """Arrays to a payload."""
    return {"payload": ref.encode([ref.Segment(**s) for s in given["segments"]], given["arrays"]).hex()}


def do_add(given: Case) -> Case:
    """Payloads to their sum, and what it stands for."""
    segments = [ref.Segment(**s) for s in given["segments"]]
    total = ref.add(segments, [bytes.fromhex(payload) for payload in given["payloads"]])
    return {"payload": total.hex(), "arrays": ref.decode(segments, total)}


def do_read(given: Case) -> Case:
    """The payload of a sum to statistics and summed prompts."""
    p = parameters(given["parameters"])
    arrays = ref.decode(ref.segments_of(p), bytes.fromhex(given["payload"]))
    found: Case = {}
    if p.statistics:
        r, c, counts = ref.read_statistics(arrays, p)
        found |= {"r": r, "c": c, "counts": counts}
    if p.prompts:
        entries, wide = arrays["prompts"], p.prompt_dimension
        found["prompts"] = [entries[i * wide : (i + 1) * wide] for i in range(p.tokens)]
    return found


def do_moments(given: Case) -> Case:
    """Integer sums to units of feature."""
    r, c = ref.moments(given["r"], given["c"], given["counts"], parameters(given["parameters"]))
    return {"r": each(double, r), "c": each(double, c)}


def do_mean_prompt(given: Case) -> Case:
    """Summed prompts to their mean."""
    mean = ref.mean_prompt(given["total"], given["clients"], parameters(given["parameters"]))
    return {"mean": each(single, mean)}


def do_session(given: Case) -> Case:
    """Several clients, from features to what is read of the sum."""
    p, payloads = parameters(given["parameters"]), []
    for client in given["clients"]:
        features, prompts = each(number, client.get("features", [])), each(number, client.get("prompts", []))
        payloads.append(ref.upload(features, client.get("labels", []), prompts, p))
    total = ref.add(ref.segments_of(p), payloads)
    found: Case = {"payloads": [payload.hex() for payload in payloads], "total": total.hex()}
    found |= do_read({"parameters": given["parameters"], "payload": total.hex()})
    if p.statistics:
        found["moments"] = do_moments(found | {"parameters": given["parameters"]})
    if p.prompts:
        whole = {"parameters": given["parameters"], "clients": len(payloads), "total": found["prompts"]}
        found |= do_mean_prompt(whole)
    return found


# Those of §12.


def do_float_text(given: Case) -> Case:
    """Numbers as they stand in a release."""
    return {"texts": [private.float_text(number(x)) for x in given["numbers"]]}


def do_release(given: Case) -> Case:
    """A client's checks of a release, and the segments that it then expects."""
    p = parameters(given["parameters"])
    release = private.check_release(given["release"], p, private.Session(**given["session"]))
    return {"segments": [s._asdict() for s in private.private_segments(p, release)]}


def do_rho(given: Case) -> Case:
    """What the sums of a release cost, whatever else is wrong with it."""
    release = private.read_release(given["release"])
    without: Fraction = private.rho_without_gap(release)
    return {"rho_without_gap": f"{without.numerator}/{without.denominator}", "gap": double(float(private.gap(release)))}


def do_tail(given: Case) -> Case:
    """The bound of noise in a sum."""
    return {"tail": private.tail(given["sigma"], given["clients"], given["entries"])}


def do_noisy(given: Case) -> Case:
    """Several clients, from grid points and samples of noise to what is read of the sum."""
    p, release, payloads = parameters(given["parameters"]), private.read_release(given["release"]), []
    segments = private.private_segments(p, release)
    for client in given["clients"]:
        exact = ref.flatten(*ref.accumulate(client["q"], client["labels"], p))
        arrays = private.add_noise(exact, release, client["noise"])
        if p.prompts:
            arrays["prompts"] = [entry for token in client["prompts"] for entry in token]
        payloads.append(ref.encode(segments, arrays))
    total = ref.add(segments, payloads)
    r, c, counts = private.read_noisy(ref.decode(segments, total), p)
    sent = {"payloads": [payload.hex() for payload in payloads], "total": total.hex()}
    return sent | {"r": r, "c": c, "counts": counts}


def do_central(given: Case) -> Case:
    """Several clients' exact sums, and what the server makes of them."""
    p, release = parameters(given["parameters"]), private.read_release(given["release"])
    segments, payloads = private.private_segments(p, release), []
    for client in given["clients"]:
        payloads.append(ref.encode(segments, ref.flatten(*ref.accumulate(client["q"], client["labels"], p))))
    total = ref.flatten(*ref.read_statistics(ref.decode(segments, ref.add(segments, payloads)), p))
    r, c, counts = private.read_noisy(private.add_noise(total, release, given["noise"]), p)
    return {"payloads": [payload.hex() for payload in payloads], "r": r, "c": c, "counts": counts}


def do_cap(given: Case) -> Case:
    """Which images of each group count."""
    images = [bytes.fromhex(image) for image in given["images"]]
    return {"kept": private.kept(images, given["labels"], given["groups"], given["unit_images"])}


def do_spend(given: Case) -> Case:
    """Whether a journal gives one more release."""
    limits = number(given["epsilon"]), number(given["delta"]), given["max_images"]
    private.spend(given["release"], given["others"], *limits)
    return {}


OPERATIONS: dict[str, Callable[[Case], Case]] = {
    name.removeprefix("do_"): value for name, value in globals().items() if name.startswith("do_")
}


def vectors() -> dict[str, str]:
    """File name -> text of every vector."""
    files = {}
    for name, (claim, operation, given) in (cases.good_cases() | private_cases.good_cases()).items():
        expected = OPERATIONS[operation](given)
        files[name] = {"claim": claim, "operation": operation, "input": given, "expected": expected}
    for name, (claim, operation, given, error) in (cases.bad_cases() | private_cases.bad_cases()).items():
        try:
            OPERATIONS[operation](given)
            raised = "nothing"
        except private.PolicyRefusal as refusal:
            raised = f"PolicyRefusal {refusal}"
        except Exception as caught:
            raised = type(caught).__name__
        if raised != error:
            raise SystemExit(f"{name}: the reference raises {raised}, not {error}")
        kind, _, rule = error.partition(" ")
        files[name] = {"claim": claim, "operation": operation, "input": given, "expected_error": kind}
        files[name] |= {"rule": rule} if rule else {}
    return {f"{name}.json": pretty(content) for name, content in files.items()}


def pretty(content: Case) -> str:
    """Indented JSON with sorted keys, a list of numbers or strings on one line."""
    text = json.dumps(content, indent=2, sort_keys=True)
    flat = re.compile(r"\[\s+([^][{}]*?)\s+\]")
    return flat.sub(lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text) + "\n"


def example() -> str:
    """The worked example of spec.md."""
    _, _, given = cases.good_cases()["good_example"]
    found, p = do_session(given), parameters(given["parameters"])
    lines = [
        f"d = {p.dimension}, k = {p.classes}, B = {p.bound:g}, b = {p.bits}, N = {p.max_images}, normalise = true",
        f"r = {ref.radius(p):g}, s = {ref.scale(p):g}",
    ]
    lines += [
        f"segment {s.name}: {s.length} entries of {s.width} bytes, signed = {s.signed}".lower()
        for s in ref.segments_of(p)
    ]
    for which, held in enumerate(given["clients"], 1):
        lines.append(f"client {which}")
        for h, label in zip(each(number, held["features"]), held["labels"], strict=True):
            lines.append(f"  h = {[f'{v:g}' for v in h]}, label {label}, q = {ref.quantise(h, p)}".replace("'", ""))
        lines += by_segment(found["payloads"][which - 1], p)
    lines += ["sum", *by_segment(found["total"], p)]
    lines += [f"R̂ = {found['r']}", f"Ĉ = {found['c']}", f"counts = {found['counts']}"]
    shown = ref.moments(found["r"], found["c"], found["counts"], p)
    lines += [
        f"{name} = {[[float(f'{v:.6g}') for v in row] for row in m]}" for name, m in zip("RC", shown, strict=True)
    ]
    return "\n".join(lines) + "\n"


def by_segment(payload: str, p: Any) -> list[str]:
    """A payload's bytes in hexadecimal, one line for each segment."""
    lines, at = [], 0
    for s in ref.segments_of(p):
        size = 2 * s.length * s.width
        entries = [payload[i : i + 2 * s.width] for i in range(at, at + size, 2 * s.width)]
        lines.append(f"  {s.name:10} {' '.join(entries)}")
        at += size
    return lines


def differing(files: dict[str, str]) -> list[str]:
    """Names of vectors that are missing, differ, or are not ours."""
    present = {path.name: path.read_text(encoding="utf-8") for path in VECTORS.glob("*")}
    return sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    if arguments == ["--example"]:
        print(example(), end="")
        return 0
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    files = vectors()
    if arguments:
        wrong = differing(files)
        for name in wrong:
            print(f"{VECTORS.name}/{name} is not what reference.py gives")
        return 1 if wrong else 0
    VECTORS.mkdir(exist_ok=True)
    for path in VECTORS.glob("*.json"):
        path.unlink()
    for name, text in files.items():
        (VECTORS / name).write_text(text, encoding="utf-8")
    print(f"{len(files)} vectors, {sum(map(len, files.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
