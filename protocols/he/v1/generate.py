"""Writes vectors/: `python protocols/he/v1/generate.py [--check]`.

Inputs come from cases.py and misuse.py, all else from the reference, and every run writes the same bytes. `--check`
writes nothing and exits with 1 if a file is missing, differs or is not one of ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VECTORS = HERE / "vectors"
if __name__ == "__main__":  # run as a script, the directory above `protocols` is not where modules are looked for
    sys.path.insert(0, str(HERE.parents[2]))

from protocols.he.v1 import cases, messages, misuse, play  # noqa: E402
from protocols.secagg.v1 import generate as secagg  # noqa: E402
from protocols.secagg.v1 import primitives  # noqa: E402
from protocols.secagg.v1.primitives import encode  # noqa: E402

Vector = dict[str, Any]
COHORTS = (3, 10, 100, 1000, 2**14)


def parameters() -> Vector:
    """Every parameter set with what follows from it, or the check that fails."""
    rows = []
    for claim, p, check in cases.parameter_sets():
        row: Vector = {"claim": claim, "parameters": cases.parameters_to_json(p)}
        if check:
            rows.append(row | {"expected_error": {"error": "InputError", "reason": f"parameters.{check}"}})
            continue
        row |= {
            "q": str(messages.q_of(p)),
            "ciphertext_bytes": messages.pair_bytes(p.degree, p.coefficient_moduli[:-1]),
        }
        if p.scheme == "bfv":
            budgets = {str(k): [messages.least_budget(p, t, k) for t in p.plain_moduli] for k in COHORTS}
            row |= {"least_noise_budget": budgets}
        else:
            row |= {"scale_bits": {str(k): messages.scale_bits(p, k) for k in COHORTS}}
            row |= {"error_bound": {f"{k} {d}": messages.error_bound(p, k, d) for k in COHORTS for d in (1, 10**6)}}
        rows.append(row)
    return {"claim": "the rules and numbers of section 2", "sets": rows}


def context(name: str) -> Vector:
    """A public context, its hash, and its secret keys by hash."""
    made, secrets = cases.context(name)
    data = encode(made)
    return {
        "claim": cases.CONTEXTS[name][0],
        "protocol": made.protocol,
        "parameters": cases.parameters_to_json(made.parameters),
        "signing_key": cases.authority_key(name).hex(),
        "authority": made.authority.hex(),
        "key_entropy": [f"he/{name}/key {i}" for i in range(len(secrets))],
        "keys": [{"sha256": cases.sha(key), "length": len(key), "first": key[:16].hex()} for key in made.keys],
        "secrets": [cases.sha(bytes(c % 256 for c in secret)) for secret in secrets],
        "signature": made.signature.hex(),
        "sha256": cases.sha(data),
        "length": len(data),
        "hash": messages.context_hash(made).hex(),
    }


def session(name: str) -> Vector:
    """A session: its input, and what the reference makes of it."""
    of, p = play.played(name), cases.context(cases.honest()[name]["public_context_of"])[0].parameters
    request = messages.decode(messages.OpenRequest, of.request, primitives.MisuseError)
    expected: Vector = {
        "session": of.vector["params"]
        and messages.decode(messages.OpenedTotal, of.opened, primitives.MisuseError).session.hex(),
        "proposal": of.proposal.hex(),
        "uploads": [{"sha256": cases.sha(data), "length": len(data)} for data in of.uploads],
        "headers": [encode(u.header).hex() for u in request.uploads],
        "total": messages.digest("total", request.total).hex(),
        "total_first": request.total[:16].hex(),
        "request": {"sha256": cases.sha(of.request), "length": len(of.request)},
        "opened": of.opened.hex(),
        "sum": [str(entry) for entry in of.sum],
    }
    if p.scheme == "ckks":
        expected["scale_bits"] = messages.scale_bits(p, of.params.clients)
    return {k: v for k, v in of.vector.items() if k != "full"} | {"expected": expected}


def vectors() -> dict[str, str]:
    """Path below vectors/ -> text of every vector."""
    packings = {"claim": "what is encrypted of a vector, and that it comes back", "rows": cases.packings()}
    files: dict[str, Any] = {"parameters.json": parameters(), "packing.json": packings}
    files |= {f"context_{name}.json": context(name) for name in cases.CONTEXTS}
    files |= {f"session_{name}.json": session(name) for name in cases.honest()}
    for group in misuse.GROUPS:
        for name, case in group():
            found = play.perform(case, play.REFERENCE)
            if found != case["expected"]:
                raise SystemExit(f"{name}: the reference ends with {found}, not {case['expected']}")
            if f"misuse/{name}.json" in files:
                raise SystemExit(f"{name} is there twice")
            files[f"misuse/{name}.json"] = case
    return {name: secagg.pretty(content) for name, content in files.items()}


def differing(files: dict[str, str]) -> list[str]:
    """Names of vectors that are missing, differ, or are not ours."""
    present = {path.relative_to(VECTORS).as_posix(): path.read_text("utf-8") for path in VECTORS.rglob("*.*")}
    return sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    files = vectors()
    if arguments:
        wrong = differing(files)
        for name in wrong:
            print(f"{VECTORS.name}/{name} is not what reference.py gives")
        return 1 if wrong else 0
    for path in VECTORS.rglob("*.json"):
        path.unlink()
    for name, text in files.items():
        path = VECTORS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{len(files)} vectors, {sum(map(len, files.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
