"""Writes vectors/: `python protocols/secagg/v1/generate.py [--check]`.

Inputs come from cases.py, all else from reference.py, and every run writes the same bytes. `--check` writes nothing and
exits with 1 if a file is missing, differs or is not one of ours.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VECTORS = HERE / "vectors"
if __name__ == "__main__":  # run as a script, the directory above `protocols` is not where modules are looked for
    sys.path.insert(0, str(HERE.parents[2]))

from protocols.secagg.v1 import cases, misuse_server, misuse_setup, misuse_sum, primitives, sessions  # noqa: E402
from protocols.secagg.v1.sessions import SHORT, STEPS, Outcome, Vector  # noqa: E402


def recorded(name: str) -> Vector:
    """A session vector: its input, and what the reference makes of it."""
    vector, out = cases.honest()[name], cases.played(name)
    host = out.host
    ids = [bytes.fromhex(client["identity"]) for client in vector["clients"]]
    expected = {
        "session": host.session.hex(),
        "roster": host.roster_hash.hex(),
        "sharers": host.sharers_hash.hex(),
        "context": host.binding[3].hex(),
        "view": host.view_hash.hex(),
        "threshold": out.sum.threshold,
        "quorum": primitives.quorum(len(host.ids), host.params.corrupt),
        "survivors": [ids.index(i) for i in out.sum.survivors],
        "dropped": [ids.index(i) for i in out.sum.dropped],
        "sum": [str(entry) for entry in out.sum.total],
    }
    if out.opening:
        expected["opening"] = out.opening.hex()
    return {k: v for k, v in vector.items() if k != "full"} | {
        "messages": messages(out, full=vector["full"]),
        "expected": expected,
    }


def messages(out: Outcome, *, full: bool) -> list[Vector]:
    """Every message in order; what everybody is sent is shown once."""
    found: list[Vector] = []
    for step in STEPS:
        letters = [x for x in out.letters if x.step == step]
        down = [x for x in letters if not x.up]
        if step != "hold" and down:
            found.append({"step": step, "to": [x.client for x in down]} | shown(down[0].data, full=full))
        for x in down if step == "hold" else ():
            found.append({"step": step, "to": [x.client]} | shown(x.data, full=full))
        for x in letters:
            if x.up:
                found.append({"step": step, "from": x.client} | shown(x.data, full=full))
    return found


def shown(data: bytes, *, full: bool) -> Vector:
    """A message in hex, or the hash and length of a long one."""
    if full or len(data) <= SHORT:
        return {"data": data.hex()}
    return {"sha256": hashlib.sha256(data).hexdigest(), "length": len(data)}


def misuses() -> Iterator[tuple[str, Vector]]:
    """File name -> misuse, of every group."""
    for module in (misuse_setup, misuse_sum, misuse_server):
        for group in module.GROUPS:
            yield from group()


def graphs() -> Vector:
    """Holders, thresholds and soundness (unless it takes too long) of many graphs."""
    rows: list[Vector] = []
    for n, k, c, small in cases.GRAPHS:
        p = sessions.params_of(cases.honest()["complete_3"])._replace(degree=k, corrupt=c)
        row = {"roster": n, "degree": k, "corrupt": c, "threshold": primitives.threshold_of(p, n)}
        row |= {"c_max": primitives.corrupt_holders(n, k, c)} if k else {}
        rows.append(row | ({"sound": primitives.graph_of(p, n, max(3, c + 2)).sound} if small else {}))
    return {"claim": "the numbers of section 7, which every client computes for itself", "graphs": rows}


def vectors() -> dict[str, str]:
    """Path below vectors/ -> text of every vector."""
    files: dict[str, Any] = {f"{name}.json": recorded(name) for name in cases.honest()}
    files["graphs.json"] = graphs()
    for name, case in misuses():
        found = sessions.verdict(sessions.play(case, cases.honest()), case)
        wanted = {k: case[k] for k in ("expected_error", "expected_blame") if k in case}
        if found != wanted:
            raise SystemExit(f"{name}: the reference ends with {found}, not {wanted}")
        if f"misuse/{name}.json" in files:
            raise SystemExit(f"{name} is there twice")
        files[f"misuse/{name}.json"] = case
    return {name: pretty(content) for name, content in files.items()}


def pretty(content: Any) -> str:
    """Indented JSON with sorted keys, a list of numbers or strings on one line."""
    text = json.dumps(content, indent=1, sort_keys=True)
    flat = re.compile(r"\[\s+([^][{}]*?)\s+\]")
    return flat.sub(lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text) + "\n"


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
