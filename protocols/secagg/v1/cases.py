"""The sessions that the vectors record, with what each of them is there to show, and how a misuse of one is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from protocols.secagg.v1 import primitives as p
from protocols.secagg.v1 import reference, sessions
from protocols.secagg.v1.sessions import Outcome, Vector, drive, shake

TASK = p.Task(
    "embedded", bytes(32), "grey 32 x 32", "cls", 8, 1.0, 12, True, ("cat", "dog"),
    "none", 0, 0, 1.0, 24, b"", "", 1000, "", 0,
)  # fmt: skip
TWO_PHASE = TASK._replace(
    prompt_mode="two-phase", prompt_tokens=1, prompt_dimension=3, prompt_source=bytes(32), min_contributors=1
)
SEGMENTS = (p.Segment("x", 5, 3, True), p.Segment("n", 2, 8, False))
PRIME_BFV, PRIME_MERSENNE, PRIME_REJECTING = 0x3FFFFFFFFC001, 2**61 - 1, 2**32 + 15

# Honest sessions.


def session(
    claim: str,
    name: str,
    present: int,
    corrupt: int,
    *,
    people: str = "",
    vectors: list[list[int]] | None = None,
    gone: dict[str, list[int]] | None = None,
    late: tuple[int, ...] = (),
    authority: bool = False,
    kind: str = "statistics",
    continues: tuple[str, bytes] = ("", b""),
    payload: bytes = b"",
    full: bool = False,
    **params: Any,
) -> Vector:
    """The input of a session vector; `people` is the label of the clients' keys, which a chain shares."""
    people = people or name
    keys = [shake(f"{people}/signing key {i}", 32) for i in range(present)]
    keys.sort(key=p.identity_of)
    ids, host = [p.identity_of(key) for key in keys], shake(f"{people}/server key", 32)
    root = shake(f"{people}/authority key", 32)
    fields = {
        "protocol": "secagg/v1",
        "name": kind,
        "nonce": shake(f"{name}/nonce", 32),
        "server": p.identity_of(host),
        "parent": continues[1],
        "clients": present,
        "corrupt": corrupt,
        "degree": 0,
        "min_survivors": max(3, corrupt + 2),
        "modulus": 0,
        "public_context": b"",
        "segments": SEGMENTS,
        "task": TASK,
    }
    chosen = p.Session(**(fields | params))
    modulus, length = chosen.modulus or 2**64, sum(s.length for s in chosen.segments)
    task = chosen.task
    policy = reference.Policy(
        [] if authority else ids,
        p.identity_of(root) if authority else b"",
        [chosen.server],
        ["secagg/v1"],
        corrupt,
        3,
        2,
        task.backbone,
        task.backbone_hash,
        task.preprocessing,
        task.classes,
        task.max_images,
        ["none", "public", "local", "two-phase"],
        task.release,
        task.min_contributors,
    )

    def vector(i: int) -> list[str]:
        if vectors is not None:
            return [str(entry) for entry in vectors[i]]
        drawn = shake(f"{name}/vector {i}", 8 * length)
        return [str(int.from_bytes(drawn[8 * j : 8 * j + 8], "little") % modulus) for j in range(length)]

    return {
        "claim": claim,
        "parent": continues[0],
        "params": sessions.fields_to_json(chosen),
        "policy": {name: sessions.to_json(type_, getattr(policy, name)) for name, type_ in sessions.POLICY.items()},
        "server_key": host.hex(),
        "clients": [
            {
                "signing_key": key.hex(),
                "identity": ids[i].hex(),
                "certificate": p.certify(root, ids[i]).hex() if authority else "",
                "entropy": f"{name}/entropy {i}",
                "vector": vector(i),
            }
            for i, key in enumerate(keys)
        ],
        "gone": gone or {},
        "late": list(late),
        "context_payload": payload.hex(),
        "full": full,
    }


PRESENCE = (p.Segment("presence", 2, 1, False),)
PRESENT = [[1, 1], [1, 0], [1, 1], [1, 1], [1, 0], [1, 1]]


@cache
def honest() -> dict[str, Vector]:
    """Name -> input of every session vector; the session that another continues comes before it."""
    found = {}

    def add(claim: str, name: str, *given: Any, **options: Any) -> None:
        found[name] = session(claim, name, *given, **options)

    def after(name: str) -> tuple[str, bytes]:
        return name, reference.session_id(sessions.params_of(found[name]))

    add("three clients, nobody drops out, c = 0", "complete_3", 3, 0, full=True)
    add("one of three is gone before it attests", "complete_3_lost_attest", 3, 0, gone={"attest": [1]}, full=True)
    add("one of three is gone before it reveals", "complete_3_lost_reveal", 3, 0, gone={"reveal": [2]}, full=True)
    add("members are those that an authority certified", "authority_3", 3, 0, authority=True, full=True)
    add("a prime modulus of 50 bits, as BFV wants it", "prime_3", 3, 0, modulus=PRIME_BFV, full=True,
        segments=(p.Segment("x", 40, 7, True),))  # fmt: skip
    add("a prime modulus that rejects nearly every second word", "prime_rejecting_3", 3, 0, modulus=PRIME_REJECTING,
        full=True, segments=(p.Segment("x", 40, 5, True),))  # fmt: skip
    add("a prime modulus, and one client is gone before it uploads", "prime_5", 5, 1, modulus=PRIME_MERSENNE,
        segments=(p.Segment("x", 5, 8, True), p.Segment("n", 2, 8, False)), gone={"upload": [2]})  # fmt: skip
    for clients, corrupt, lost in ((5, 1, [3]), (20, 4, [2, 11, 17])):
        name = f"complete_{clients}"
        add(f"{clients} clients, nobody drops out, c = {corrupt}", name, clients, corrupt)
        for step in ("advertise", "share", "upload", "attest", "reveal"):
            claim = f"clients {lost} of {clients} are gone before they {step}"
            add(claim, f"{name}_lost_{step}", clients, corrupt, gone={step: lost})
    add("a client comes too late to upload, and attests and reveals", "complete_5_late", 5, 1, late=(1,))
    everything = {"share": [0], "upload": [4, 5], "attest": [9], "reveal": [13]}
    add("somebody is gone before every phase but the first", "complete_20_lost_everywhere", 20, 2, gone=everything)
    add("a sparse graph: 20 clients, 12 drawn holders each", "sparse_20", 20, 1, clients=300, degree=12)
    add("a sparse graph, and three are gone before they upload", "sparse_20_lost_upload", 20, 1, clients=300, degree=12,
        gone={"upload": [0, 7, 12]})  # fmt: skip
    chain: dict[str, Any] = {"people": "chain", "late": (5,), "task": TWO_PHASE}
    add("a census; client 5 is too late, so the opening holds its masking key", "chain_1_census", 6, 1,
        kind="census", segments=PRESENCE, vectors=PRESENT, **chain)  # fmt: skip
    add("prompts, in a session that continues the census and re-checks it", "chain_2_prompts", 6, 1, kind="prompts",
        continues=after("chain_1_census"), segments=(p.Segment("prompts", 3, 4, True),), **chain)  # fmt: skip
    add("statistics, in the session that continues that; one more client drops out", "chain_3_statistics", 6, 1,
        continues=after("chain_2_prompts"), payload=b"the mean prompt, opaque here", gone={"upload": [4]},
        **chain)  # fmt: skip
    return found


# Rosters, degrees and corrupt clients; and whether the bound is small enough to be computed in exact fractions.
GRAPHS = [
    *((n, 0, c, True) for n, c in ((3, 0), (4, 1), (5, 1), (12, 2), (20, 4), (100, 20), (256, 51), (256, 254))),
    *((20, k, c, True) for k, c in ((8, 1), (12, 1), (12, 2), (19, 0), (19, 18), (20, 1), (30, 1))),
    *((60, k, c, True) for k in (12, 20, 28) for c in (0, 3, 6, 12)),
    *((300, k, c, True) for k, c in ((12, 1), (20, 15), (30, 15), (51, 15), (40, 100), (60, 150), (299, 150))),
    *((n, k, c, False) for n, k, c in ((1000, 99, 50), (1000, 127, 100), (4096, 118, 200), (16384, 133, 819))),
    (16384, 1024, 8000, False),
]


@cache
def played(name: str) -> Outcome:
    """An honest session, as the reference plays it."""
    vector = honest()[name]
    return drive(vector, parent=played(vector["parent"]) if vector["parent"] else None)


# Misuses. An operation, the session that it belongs to, what is changed in it, and the error that it must end with.

DOWN = {
    "advertise": p.Proposal,
    "share": p.Roster,
    "hold": p.Relay,
    "upload": p.Context,
    "attest": p.View,
    "reveal": p.Request,
}
UP = {"advertise": p.Advert, "share": p.Shares, "upload": p.Upload, "attest": p.Attestation, "reveal": p.Reveal}
Change = Callable[[Any], Any]
Case = dict[str, Any]


def key_of(name: str, i: int) -> bytes:
    """A client's signing key."""
    return bytes.fromhex(honest()[name]["clients"][i]["signing_key"])


def id_of(name: str, i: int) -> bytes:
    """A client's identity."""
    return p.identity_of(key_of(name, i))


def resign(key: bytes, message: Any, **changes: Any) -> Any:
    """A message with some fields changed, signed anew."""
    return p.sign(key, type(message), *message._replace(**changes)[:-1])


def put(items: tuple[Any, ...], place: int, *new: Any) -> tuple[Any, ...]:
    """A tuple with one item replaced, by any number of others."""
    return (*items[:place], *new, *items[place + 1 :])


def case(claim: str, name: str, operation: str, client: int, error: str, reason: str, **more: Any) -> Case:
    """One misuse; `error` is a class. A ClientFault names the same client, unless `culprit` is given."""
    expected: Case = {"error": error, "reason": reason}
    culprit = more.pop("culprit", client)
    if error == "ClientFault":
        expected["client"] = culprit
    return {
        "claim": claim,
        "session": name,
        "operation": operation,
        "client": client,
        "expected_error": expected,
    } | more


def letter(step: str, client: int, data: bytes, *, up: bool, call: str = "") -> Case:
    """An entry of `replace` or `extra`."""
    found: Case = {"step": step, "client": client, "up": up, "data": data.hex()}
    return found | ({"call": call} if call else {})


def told(claim: str, name: str, step: str, client: int, change: Change, reason: str, **more: Any) -> Case:
    """The server tells one client something else; `change` is of the message, or of its bytes if it gives bytes."""
    sent = played(name).sent(step, client, up=False)
    lie = change(sent) if more.pop("raw", False) else p.encode(change(p.decode(DOWN[step], sent, p.MisuseError)))
    error = more.pop("error", "ServerFault")
    return case(
        claim, name, f"client.{step}", client, error, reason, replace=[letter(step, client, lie, up=False)], **more
    )


def claimed(claim: str, name: str, step: str, client: int, change: Change, reason: str, **more: Any) -> Case:
    """One client tells the server something else; it signs what its `change` returns unsigned."""
    sent = played(name).sent(step, client, up=True)
    lie = change(sent) if more.pop("raw", False) else p.encode(change(p.decode(UP[step], sent, p.MisuseError)))
    given = [letter(step, client, lie, up=True)]
    return case(claim, name, "server.receive", client, "ClientFault", reason, replace=given, **more)


def ids_of(name: str) -> list[bytes]:
    """Identities of a session's clients."""
    return [bytes.fromhex(client["identity"]) for client in honest()[name]["clients"]]
