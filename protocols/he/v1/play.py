"""Plays the vectors: a session from its input, and a misuse from its recipe, with the reference or what is under test.

`Parties` is what a conformance test of another implementation replaces, method by method.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from protocols.he.v1 import cases, masked, messages, reference
from protocols.secagg.v1 import primitives, sessions
from protocols.secagg.v1.primitives import Context, encode, identity_of
from protocols.secagg.v1.reference import session_id

Vector = dict[str, Any]
ERRORS = ("InputError", *sessions.ERRORS)


class Parties:
    """The reference behind the operations of spec.md §12.4."""

    def read_context(self, data: bytes) -> Any:
        """A public context from its bytes."""
        return messages.read_context(data)

    def join(self, proposal: bytes, vector: Vector, pinned: bytes, public_context: bytes) -> Any:
        """A client's checks of a proposal."""
        context = messages.read_context(public_context)
        return reference.join(proposal, sessions.policy_of(vector), pinned, context)

    def client(self, vector: Vector, number: int, public_context: bytes) -> Any:
        """A client without masks, with `join` and `upload`."""
        me = vector["clients"][number]
        key, certificate, entropy = bytes.fromhex(me["signing_key"]), bytes.fromhex(me["certificate"]), me["entropy"]
        context = messages.read_context(public_context)
        return reference.Client(key, sessions.policy_of(vector), context, sessions.entropy(entropy), certificate)

    def server(self, vector: Vector, public_context: bytes) -> Any:
        """A server without masks, with `open`, `receive`, `request`, and `total.receive`."""
        key, params = bytes.fromhex(vector["server_key"]), sessions.params_of(vector)
        return reference.Server(key, sessions.policy_of(vector), params, messages.read_context(public_context))

    def person(self, vector: Vector, number: int, parent: Any) -> Any:
        """A client with masks, for `sessions.drive`."""
        return Person(vector, number, parent)

    def host(self, vector: Vector, authority: Any) -> Any:
        """A server with masks, for `sessions.drive`."""
        return Host(vector, authority)

    def authority(self, vector: Vector, policy: Vector) -> Any:
        """A key authority with `open_total`."""
        of = vector["public_context_of"]
        context, secrets = cases.context(of)
        clients = sessions.policy_of({"policy": vector["policy"] | policy.get("members", {})})
        servers = [bytes.fromhex(server) for server in policy.get("servers", vector["policy"]["servers"])]
        limits = policy.get("corrupt", 0), policy.get("min_survivors", 3)
        rules = reference.AuthorityPolicy(clients, servers, *limits)
        return reference.Authority(cases.authority_key(of), rules, context, secrets)


class Person(masked.Client):
    """A client with masks that knows its vector."""

    def __init__(self, vector: Vector, number: int, parent: Any) -> None:
        me, context = vector["clients"][number], cases.context(vector["public_context_of"])[0]
        key, certificate = bytes.fromhex(me["signing_key"]), bytes.fromhex(me["certificate"])
        super().__init__(key, sessions.policy_of(vector), context, sessions.entropy(me["entropy"]), certificate)
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


class Host(masked.Server):
    """A server with masks that asks an authority before it finishes."""

    def __init__(self, vector: Vector, authority: Any) -> None:
        key, context = bytes.fromhex(vector["server_key"]), cases.context(vector["public_context_of"])[0]
        super().__init__(key, sessions.policy_of(vector), sessions.params_of(vector), context)
        self.authority = authority

    def open(self, context: bytes) -> bytes:
        """From bytes."""
        return super().open(primitives.decode(Context, context, primitives.MisuseError))

    def finish(self) -> Any:
        """With the answer of the authority."""
        self.asked = self.request()
        self.opened = self.authority.open_total(self.asked)
        self.receive_opened(self.total.context.authority, self.opened)
        return super().finish()


REFERENCE = Parties()


@cache
def context_bytes(name: str) -> bytes:
    """A public context of `cases`."""
    return encode(cases.context(name)[0])


class Played:
    """A session that went well: every message that the misuses depart from."""

    def __init__(self, vector: Vector, parties: Parties) -> None:
        self.vector, self.params, self.uploads = vector, sessions.params_of(vector), []
        self.proposal = b""
        of, authority = context_bytes(vector["public_context_of"]), parties.authority(vector, {})
        if vector["params"]["protocol"] == reference.BFV_MASKED:
            self.out = sessions.drive(vector, parties.person, lambda v: parties.host(v, authority))
            if self.out.failures:
                raise next(iter(self.out.failures.values()))
            self.proposal = self.out.sent("advertise", 0, up=False)
            self.uploads = [x.data for x in self.out.letters if x.step == "upload" and x.up]
            self.request, self.opened, self.sum = self.out.host.asked, self.out.host.opened, self.out.sum.total
            return
        server = parties.server(vector, of)
        self.proposal = server.proposal
        context = server.open(context_of(vector))
        for number, me in enumerate(vector["clients"]):
            client = parties.client(vector, number, of)
            client.join(self.proposal)
            self.uploads.append(client.upload([int(entry) for entry in me["vector"]], context))
            server.receive(bytes.fromhex(me["identity"]), self.uploads[-1])
        self.request = server.request()
        self.opened = authority.open_total(self.request)
        server.total.receive(identity_of(cases.authority_key(vector["public_context_of"])), self.opened)
        self.sum = server.total.vector


def context_of(vector: Vector) -> Any:
    """The context message of a session without a parent."""
    return Context(session_id(sessions.params_of(vector)), b"", b"", (), b"")


@cache
def played(name: str) -> Played:
    """An honest session of the reference."""
    return Played(cases.honest()[name], REFERENCE)


# Misuses, spec.md §12.4.


def made(recipe: Vector, *, of: Played | None = None) -> bytes:
    """Bytes from their recipe, §12.4."""
    if "hex" in recipe:
        found = bytearray.fromhex(recipe["hex"])
    elif "zeros" in recipe:
        found = bytearray(recipe["zeros"])
    elif "context" in recipe:
        found = bytearray(context_bytes(recipe["context"]))
    elif "key" in recipe:
        found = bytearray(cases.context(recipe["key"])[0].keys[0])
    elif of is None:
        raise ValueError(recipe)
    elif "payload" in recipe:
        found = bytearray(payload_of(of, recipe["payload"]))
    else:
        found = bytearray(getattr(of, recipe["of"]))
    for place, count, data in recipe.get("cut", ()):
        found[place : place + count] = bytes.fromhex(data)
    for place, data in recipe.get("put", ()):
        found[place : place + len(data) // 2] = bytes.fromhex(data)
    return bytes(found[: len(found) - recipe.get("drop", 0)]) + bytes.fromhex(recipe.get("append", ""))


def payload_of(of: Played, number: int) -> bytes:
    """A client's payload, or the total if it is -1."""
    if number < 0:
        total: bytes = messages.decode(messages.OpenRequest, of.request, primitives.MisuseError).total
        return total
    kind = primitives.Upload if of.params.protocol == reference.BFV_MASKED else messages.EncryptedUpload
    payload: bytes = messages.decode(kind, of.uploads[number], primitives.MisuseError).payload
    return payload


def header(fields: str) -> Any:
    """A header from its canonical bytes."""
    return primitives.decode(primitives.Header, bytes.fromhex(fields), primitives.MisuseError)


def perform(case: Vector, parties: Parties, reason: Any = lambda error: error.reason) -> list[Vector | None]:
    """What becomes of each of a misuse's messages: nothing, or an error."""
    if case["operation"] == "read_context":
        return [outcome(lambda: parties.read_context(context_from(case)), reason)]
    of = played(case["session"])
    vector = of.vector | {"policy": of.vector["policy"] | case.get("policy", {})}
    public = context_bytes(case.get("loaded", vector["public_context_of"]))
    if case["operation"] == "join":
        proposal, pinned = made(case["proposal"], of=of), bytes.fromhex(case["pinned"])
        return [outcome(lambda: parties.join(proposal, vector, pinned, public), reason)]
    if case["operation"] == "open_total":
        authority = parties.authority(vector, case.get("authority", {}))
        return [outcome(lambda r=r: authority.open_total(request_from(r, of)), reason) for r in case["requests"]]  # type: ignore[misc]
    server = parties.server(vector, public)
    server.open(context_of(vector))
    if case["operation"] == "receive":
        return [
            outcome(lambda u=u: server.receive(bytes.fromhex(u["sender"]), upload_from(u, of)), reason)  # type: ignore[misc]
            for u in case["uploads"]
        ]
    for data, me in zip(of.uploads, vector["clients"], strict=True):
        server.receive(bytes.fromhex(me["identity"]), data)
    server.request()
    return [
        outcome(lambda o=o: server.total.receive(bytes.fromhex(o["sender"]), made(o["opened"], of=of)), reason)  # type: ignore[misc]
        for o in case["answers"]
    ]


def outcome(call: Any, reason: Any) -> Vector | None:
    """Nothing, or the error that a call ends in."""
    try:
        call()
    except Exception as error:
        if type(error).__name__ not in ERRORS:
            raise
        return {"error": type(error).__name__, "reason": reason(error)}
    return None


def context_from(case: Vector) -> bytes:
    """A public context from its recipe."""
    if "context" in case:
        return made(case["context"])
    p = cases.parameters_from_json(case["parameters"])
    key = bytes.fromhex(case["signing_key"])
    authority = bytes.fromhex(case.get("authority", identity_of(key).hex()))
    keys = tuple(made(k) for k in case["keys"])
    return encode(messages.sign(key, messages.PublicContext, case["protocol"], p, keys, authority))


def request_from(recipe: Vector, of: Played) -> bytes:
    """A request to the authority from its recipe; what is not given is that of the honest one."""
    honest = messages.decode(messages.OpenRequest, of.request, primitives.MisuseError)
    proposal, uploads = honest.proposal, honest.uploads
    if "proposal" in recipe:
        proposal = primitives.decode(primitives.Proposal, bytes.fromhex(recipe["proposal"]), primitives.MisuseError)
    if "uploads" in recipe:
        uploads = tuple(
            messages.SignedUpload(header(u["header"]), bytes.fromhex(u["certificate"])) for u in recipe["uploads"]
        )
    total = made(recipe["total"], of=of) if "total" in recipe else honest.total
    data = encode(messages.OpenRequest(proposal, uploads, total))
    return made(recipe.get("bytes", {}) | {"hex": data.hex()})


def upload_from(recipe: Vector, of: Played) -> bytes:
    """An upload from its recipe."""
    signed = messages.SignedUpload(header(recipe["header"]), bytes.fromhex(recipe["certificate"]))
    data = encode(messages.EncryptedUpload(signed, made(recipe["payload"], of=of)))
    return made(recipe.get("bytes", {}) | {"hex": data.hex()})
