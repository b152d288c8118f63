"""Sessions as JSON, and the network that runs one: it carries bytes between whatever clients and server it is given.

`drive` is all that a conformance test of another implementation needs, together with adapters that have the methods of
`Person` and `Host`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocols.secagg.v1 import primitives, reference

Vector = dict[str, Any]
STEPS = ("advertise", "share", "hold", "upload", "attest", "reveal")
ERRORS = ("ServerFault", "ClientFault", "PolicyRefusal", "SessionAborted", "MisuseError")
SHORT = 256  # a longer message of a session that is not shown in full is replaced by its hash


# JSON forms, spec.md §14.1.


def to_json(type_: str, value: Any) -> Any:
    """A value of one of a record's types in JSON: bytes and binary64 in hex, integers of 64 bits as decimal strings."""
    if type_.endswith("*"):
        return [to_json(type_[:-1], item) for item in value]
    if type_ in primitives.RECORDS:
        return fields_to_json(value)
    if type_ == "float":
        return struct.pack(">d", value).hex()
    if type_ == "int":
        return str(value) if value >= 2**53 else value
    return value if type_ in ("str", "bool") else value.hex()


def from_json(type_: str, value: Any) -> Any:
    """The inverse of `to_json`."""
    if type_.endswith("*"):
        return tuple(from_json(type_[:-1], item) for item in value)
    if type_ in primitives.RECORDS:
        return fields_from_json(primitives.RECORDS[type_], value)
    if type_ == "float":
        return struct.unpack(">d", bytes.fromhex(value))[0]
    if type_ == "int":
        return int(value)
    return value if type_ in ("str", "bool") else bytes.fromhex(value)


def fields_to_json(record: Any) -> Vector:
    """A record as an object."""
    types = primitives.TYPES[type(record)][1]
    return {name: to_json(type_, value) for name, type_, value in zip(record._fields, types, record, strict=True)}


def fields_from_json(kind: Any, fields: Vector) -> Any:
    """A record from an object."""
    types = primitives.TYPES[kind][1]
    return kind(**{name: from_json(type_, fields[name]) for name, type_ in zip(kind._fields, types, strict=True)})


POLICY = {
    "identities": "32*",
    "authority": "bytes",
    "servers": "32*",
    "protocols": "str*",
    "corrupt": "int",
    "min_survivors": "int",
    "min_threshold": "int",
    "backbone": "str",
    "backbone_hash": "32",
    "preprocessing": "str",
    "classes": "str*",
    "max_images": "int",
    "prompt_modes": "str*",
    "release": "str",
    "min_contributors": "int",
}


def policy_of(vector: Vector) -> reference.Policy:
    """The policy of every client of a session."""
    return reference.Policy(**{name: from_json(type_, vector["policy"][name]) for name, type_ in POLICY.items()})


def params_of(vector: Vector) -> Any:
    """The parameters of a session."""
    return fields_from_json(primitives.Session, vector["params"])


def shake(label: str, count: int) -> bytes:
    """That many bytes of SHAKE-256 of a label."""
    return hashlib.shake_256(f"fedopal-secure/secagg/v1/vectors/{label}".encode()).digest(count)


def entropy(label: str) -> primitives.Entropy:
    """One stream of bytes, from which each call takes the next ones."""
    taken = 0

    def take(count: int) -> bytes:
        nonlocal taken
        taken += count
        return shake(label, taken)[-count:]

    return take


# The network.


@dataclass(frozen=True)
class Letter:
    """One message: `client` sent it (`up`) or is to get it."""

    step: str
    client: int
    up: bool
    data: bytes


@dataclass
class Outcome:
    """What a session left behind; `failures` are by operation and client, -1 for the server's own steps."""

    letters: list[Letter] = field(default_factory=list)
    failures: dict[tuple[str, int], Exception] = field(default_factory=dict)
    ids: list[bytes] = field(default_factory=list)
    people: list[Any] = field(default_factory=list)
    host: Any = None
    sum: Any = None
    opening: bytes = b""

    def sent(self, step: str, client: int, *, up: bool) -> bytes:
        """One message."""
        return next(x.data for x in self.letters if (x.step, x.client, x.up) == (step, client, up))


class Person(reference.Client):
    """A client of the reference that knows its vector and its parent."""

    def __init__(self, vector: Vector, number: int, parent: Any) -> None:
        me = vector["clients"][number]
        key, certificate = bytes.fromhex(me["signing_key"]), bytes.fromhex(me["certificate"])
        super().__init__(key, policy_of(vector), entropy(me["entropy"]), certificate)
        self.vector, self.continues = [int(entry) for entry in me["vector"]], parent

    def upload(self, context: bytes) -> bytes:
        """With its own vector."""
        sent: bytes = super().upload(self.vector, context, self.continues)
        return sent

    def attest(self, view: bytes, context: bytes | None) -> bytes:
        """With its own parent."""
        sent: bytes = super().attest(view, context, None if context is None else self.continues)
        return sent

    def ends_as(self) -> Any:
        """What the next session of the chain is told."""
        return self.parent


class Host(reference.Server):
    """The server of the reference."""

    def __init__(self, vector: Vector) -> None:
        super().__init__(bytes.fromhex(vector["server_key"]), policy_of(vector), params_of(vector))

    def open(self, context: bytes) -> bytes:
        """From bytes."""
        return super().open(primitives.decode(primitives.Context, context, primitives.MisuseError))


def context_of(vector: Vector, session: bytes, parent: Outcome | None) -> bytes:
    """The context of a session."""
    if "context" in vector:
        return bytes.fromhex(vector["context"])
    payload = bytes.fromhex(vector["context_payload"])
    if parent is None:
        return primitives.encode(primitives.Context(session, b"", b"", (), payload))
    known = next(who for who in parent.people if who is not None).ends_as()
    told = known.session, known.view, known.survivors
    return primitives.encode(primitives.Context(session, *told, parent.opening or payload))


def drive(
    vector: Vector,
    person: Callable[[Vector, int, Any], Any] = Person,
    host: Callable[[Vector], Any] = Host,
    parent: Outcome | None = None,
    until: str = "reveal",
) -> Outcome:
    """Run a session, or its first steps.

    `replace` in a vector puts other bytes in the place of a message, and `extra` delivers one more at the end of its
    step, or calls what it names in `call`.
    """
    out, gone, number = Outcome(), set[int](), range(len(vector["clients"]))
    changed = {(x["step"], x["client"], x["up"]): bytes.fromhex(x["data"]) for x in vector.get("replace", ())}
    # Whoever did not finish the parent session does not continue it.
    parents: list[Any] = [None for _ in number]
    if parent is not None:
        parents = [x.ends_as() if x is not None else None for x in parent.people]
        gone.update(i for i in number if parents[i] is None)
    out.people = [person(vector, i, parents[i]) for i in number]
    out.ids = ids = [bytes.fromhex(client["identity"]) for client in vector["clients"]]

    def attempt(operation: str, client: int, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            if type(error).__name__ not in ERRORS:
                raise
            out.failures.setdefault((operation, client), error)
            return error

    def failed(found: Any) -> bool:
        return isinstance(found, Exception)

    def deliver(step: str, client: int, data: bytes) -> None:
        out.letters.append(Letter(step, client, True, data))
        arrived = changed.get((step, client, True), data)
        attempt("server.receive", client, lambda: out.host.receive(ids[client], arrived))

    def extras(step: str, *, up: bool) -> None:
        for x in vector.get("extra", ()):
            if (x["step"], x["up"]) == (step, up):
                name, data, client = x.get("call", "receive"), bytes.fromhex(x["data"]), x["client"]
                if not up:
                    method = getattr(out.people[client], name)
                    attempt(f"client.{name}", client, lambda m=method, d=data: m(d))  # type: ignore[misc]
                elif name == "receive":
                    attempt("server.receive", client, lambda c=client, d=data: out.host.receive(ids[c], d))  # type: ignore[misc]
                else:
                    given = (data,) if name == "open" else ()
                    attempt(f"server.{name}", client, lambda n=name, g=given: getattr(out.host, n)(*g))  # type: ignore[misc]

    out.host = attempt("server.start", -1, lambda: host(vector))
    if failed(out.host):
        return out
    down: Mapping[bytes, bytes] = dict.fromkeys(ids, out.host.propose())
    context = b""
    for step in STEPS:
        gone.update(vector["gone"].get(step, ()))
        if step == "upload":
            context = attempt("server.open", -1, lambda: out.host.open(context_of(vector, out.host.session, parent)))
            if failed(context):
                return out
        answers = []
        for i in number:
            if i in gone or ids[i] not in down or (step == "upload" and i in vector["late"]):
                continue
            sent = context if step == "upload" else down[ids[i]]
            out.letters.append(Letter(step, i, False, sent))
            given = [changed.get((step, i, False), sent)]
            if step == "attest":
                given.append(context if i in vector["late"] else None)  # type: ignore[arg-type]
            answer = attempt(f"client.{step}", i, lambda s=step, c=i, g=given: getattr(out.people[c], s)(*g))  # type: ignore[misc]
            if failed(answer):
                gone.add(i)
            elif answer is not None:
                answers.append((i, answer))
        extras(step, up=False)
        for i, answer in answers:
            deliver(step, i, answer)
        extras(step, up=True)
        if step == until != "reveal":
            return out
        if step in ("advertise", "share", "upload", "attest"):
            replies = attempt("server.close", -1, lambda: out.host.close())
            if failed(replies):
                return out
            down = replies
    out.people = [None if i in gone else who for i, who in enumerate(out.people)]
    out.sum = attempt("server.finish", -1, lambda: out.host.finish())
    if failed(out.sum):
        out.sum = None
    else:
        out.opening = out.sum.opening
    return out


# Misuses, spec.md §14.3.


def altered(case: Vector, honest: Mapping[str, Vector]) -> tuple[Vector, Vector | None]:
    """A misuse's session with what the misuse changes, and its parent session."""
    vector = {**honest[case["session"]]}
    for name in ("gone", "late", "params", "server_key", "context", "replace", "extra"):
        if name in case:
            vector[name] = case[name]
    vector["policy"] = vector["policy"] | case.get("policy", {})
    vector["clients"] = with_vectors(vector, case.get("vectors", {}))
    parent = honest[vector["parent"]] if vector["parent"] else None
    if parent is not None:
        parent = {**parent, "clients": with_vectors(parent, case.get("parent_vectors", {}))}
    return vector, parent


def with_vectors(vector: Vector, changed: Mapping[str, list[str]]) -> list[Vector]:
    """The clients of a session, some with another vector."""
    return [
        client | ({"vector": changed[str(i)]} if str(i) in changed else {})
        for i, client in enumerate(vector["clients"])
    ]


def play(
    case: Vector,
    honest: Mapping[str, Vector],
    person: Callable[[Vector, int, Any], Any] = Person,
    host: Callable[[Vector], Any] = Host,
) -> Outcome:
    """Run a misuse up to the step in which it must be noticed."""
    vector, parent = altered(case, honest)
    before = None
    if parent is not None:
        grand = honest[parent["parent"]] if parent["parent"] else None
        before = drive(parent, person, host, drive(grand, person, host) if grand else None)
    last = case["operation"].removeprefix("client.")
    return drive(vector, person, host, before, until=last if last in STEPS and "extra" not in case else "reveal")


def verdict(out: Outcome, case: Vector, reason: Callable[[Exception], str] = lambda error: error.reason) -> Vector:  # type: ignore[attr-defined]
    """What became of a misuse, in the form of its `expected_error` or `expected_blame`."""
    ids = out.ids
    if "expected_blame" in case:
        if out.sum is None:
            return {"expected_error": str(out.failures)}
        found = [[ids.index(who), ids.index(holder) if holder else -1, why] for who, holder, why in out.sum.blame]
        return {"expected_blame": sorted(found)}
    error = out.failures.get((case["operation"], case["client"]))
    if error is None:
        return {"expected_error": str(out.failures)}
    found_error: Vector = {"error": type(error).__name__, "reason": reason(error)}
    if type(error).__name__ == "ClientFault":
        found_error["client"] = ids.index(error.client)  # type: ignore[attr-defined]
    return {"expected_error": found_error}
