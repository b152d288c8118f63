"""Misuses, one thing wrong in each: public contexts, proposals, uploads, requests to the authority, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from protocols.he.v1 import cases, messages
from protocols.he.v1.play import Vector, context_bytes, made, payload_of, played
from protocols.secagg.v1 import primitives, sessions
from protocols.secagg.v1.primitives import encode, identity_of

Change = Callable[[Any], Any]
BFV, MASKED, CKKS = "bfv_two_moduli", "bfv_masked", "ckks"


def case(claim: str, operation: str, error: str, reason: str, **more: Any) -> Vector:
    """A misuse with one message."""
    return {"claim": claim, "operation": operation, "expected": [{"error": error, "reason": reason}]} | more


# Public contexts, spec.md §4.2.


def contexts() -> Iterator[tuple[str, Vector]]:
    """Files that are no public context."""
    honest, key = context_bytes("bfv"), {"key": "bfv"}
    size, place = len(cases.context("bfv")[0].keys[0]), honest.index(b"\xa3bfv")
    whole: list[tuple[str, str, Vector]] = [
        ("trailing_byte", "a byte after its end", {"append": "00"}),
        ("truncated", "its last byte missing", {"drop": 1}),
        ("integer_longer", "its degree in four bytes", {"cut": [[place + 4, 3, "ce00001000"]]}),
        ("tag", "another tag", {"put": [[2, b"q".hex()]]}),
        ("extra_field", "a field too many, as a secret key would be", {"put": [[0, "97"]], "append": "c400"}),
        ("empty", "no bytes", {"drop": len(honest)}),
    ]
    for name, how, edit in whole:
        claim = f"a public context with {how} is refused"
        yield (
            f"context_{name}",
            case(claim, "read_context", "InputError", "encoding", context={"context": "bfv"} | edit),
        )
    seal = {"hex": "5ea1100403000000" + "10" + bytes(7).hex()}
    yield "context_of_seal", case("a file of SEAL's own is refused", "read_context", "InputError", "encoding",
        context=seal)  # fmt: skip
    signed = {"context": "bfv", "drop": 1, "append": f"{honest[-1] ^ 1:02x}"}
    yield "context_signature", case("a signature is checked", "read_context", "InputError", "context.signature",
        context=signed)  # fmt: skip

    def built(claim: str, reason: str, keys: list[Vector], p: Any = messages.BFV, **more: Any) -> Vector:
        signing = cases.authority_key("bfv").hex()
        fields = {"protocol": f"{p.scheme}/v1", "parameters": cases.parameters_to_json(p), "keys": keys}
        fields |= {"signing_key": signing}
        return case(claim, "read_context", "InputError", reason, **(fields | more))

    for claim, p, check in cases.parameter_sets():
        if check:
            name = f"context_{check}_{claim.replace(' ', '_').replace('^', '')}"
            yield name.lower(), built(f"{claim} is refused", f"parameters.{check}", [], p)
    prime = messages.BFV.coefficient_moduli[0]
    top = (prime).to_bytes(5, "little").hex()
    for name, keys, reason in (
        ("keys_missing", [], "context.keys"),
        ("keys_one", [key], "context.keys"),
        ("keys_three", [key] * 3, "context.keys"),
        ("key_short", [key, {"zeros": size - 1}], "context.key"),
        ("key_long", [key, {"zeros": size + 1}], "context.key"),
        ("key_residue_first", [key | {"put": [[0, top]]}, key], "context.residue"),
        ("key_residue_last", [key, key | {"put": [[size - 4, "ffffffff"]]}], "context.residue"),
    ):
        yield f"context_{name}", built("a context has one key for each plain modulus, made of residues", reason, keys)
    for name, protocol in (("other_scheme", "ckks/v1"), ("not_encrypted", "secagg/v1"), ("none", "")):
        claim = "a context is for one protocol that encrypts with its scheme"
        yield f"context_protocol_{name}", built(claim, "context.protocol", [key, key], protocol=protocol)
    yield "context_signer", built("a context is signed by the authority that it names", "context.signature",
        [key, key], authority=identity_of(cases.authority_key("ckks")).hex())  # fmt: skip


# Proposals, spec.md §8.


def reproposed(name: str, **changes: Any) -> str:
    """A proposal with other parameters, signed."""
    of = played(name)
    key, params = bytes.fromhex(of.vector["server_key"]), of.params._replace(**changes)
    return encode(primitives.sign(key, primitives.Proposal, params)).hex()


def proposals() -> Iterator[tuple[str, Vector]]:
    """Sessions that a client does not join."""
    hashes = {name: messages.context_hash(cases.context(name)[0]) for name in cases.CONTEXTS}

    def proposed(claim: str, rule: str, name: str = BFV, pinned: str = "", **more: Any) -> Vector:
        of, changes = played(name).vector["public_context_of"], more.pop("changes", {})
        told = {"proposal": {"hex": reproposed(name, **changes)}, "pinned": hashes[pinned or of].hex()}
        error = "ServerFault" if "." in rule else "PolicyRefusal"
        return case(claim, "join", error, rule, session=name, **(told | more))

    t = messages.BFV.plain_moduli
    wide = (primitives.Segment("x", 2, 8, True),)
    unmasked = {"protocol": "bfv/v1", "modulus": 0, "segments": wide}
    yield "join_other_context_proposed", proposed("a context is the one that is pinned", "public_context",
        changes={"public_context": hashes["bfv_other"]})  # fmt: skip
    yield "join_other_context_loaded", proposed("a context that was loaded is the session's", "public_context",
        loaded="bfv_other")  # fmt: skip
    yield "join_nothing_pinned", proposed("a policy that pins no context takes part in no encryption",
        "public_context") | {"pinned": ""}  # fmt: skip
    yield "join_no_context", proposed("an encrypted session names a context", "public_context",
        changes={"public_context": b""})  # fmt: skip
    yield "join_other_scheme", proposed("a session of CKKS is not under a context of BFV", "protocol",
        changes={"protocol": "ckks/v1"}, policy={"protocols": ["ckks/v1"]})  # fmt: skip
    yield "join_masked_context", proposed("sums without masks are not under a key of masked ones", "protocol",
        pinned="masked", loaded="masked", changes={"public_context": hashes["masked"]})  # fmt: skip
    yield "join_context_without_masks", proposed("masked sums are not under a key of others", "protocol", name=MASKED,
        pinned="bfv", loaded="bfv", changes={"public_context": hashes["bfv"]})  # fmt: skip
    yield "join_protocol_not_accepted", proposed("a policy says which protocols it accepts", "protocols",
        policy={"protocols": ["bfv-masked/v1"]})  # fmt: skip
    yield "join_unmasked_instead", proposed("a server cannot take the masks away from a client that wants them",
        "protocols", name=MASKED, changes=unmasked)  # fmt: skip
    yield "join_modulus_unmasked", proposed("without masks vectors are modulo 2^64", "modulus",
        changes={"modulus": t[0], "segments": (primitives.Segment("x", 2, 7, True),)})  # fmt: skip
    yield "join_modulus_missing", proposed("masked vectors are modulo a prime", "modulus", name=MASKED,
        changes={"modulus": 0})  # fmt: skip
    yield "join_modulus_second", proposed("masked vectors are modulo the first plain modulus", "modulus", name=MASKED,
        changes={"modulus": t[1]})  # fmt: skip
    yield "join_modulus_another_prime", proposed("masked vectors are modulo a plain modulus", "modulus", name=MASKED,
        changes={"modulus": 2**50 - 27})  # fmt: skip
    yield "join_entries_too_wide", proposed("entries fit the plain moduli", "segments", name="bfv_one_modulus",
        changes={"segments": wide})  # fmt: skip
    yield "join_too_many_for_ckks", proposed("a sum that might not decrypt exactly is refused", "clients", name=CKKS,
        changes={"clients": 2**14, "segments": (wide[0]._replace(length=200_000),)})  # fmt: skip
    yield "join_degree", proposed("without masks there is no graph", "degree", name=CKKS,
        changes={"clients": 300, "degree": 100})  # fmt: skip
    yield "join_census", proposed("a census is not encrypted", "min_contributors",
        changes={"task": played(BFV).params.task._replace(min_contributors=1), "parent": bytes(32)})  # fmt: skip
    yield "join_corrupt", proposed("rules of secagg/v1 hold", "corrupt", policy={"corrupt": 1})
    forged = bytearray.fromhex(reproposed(BFV))
    forged[-1] ^= 1
    yield "join_unsigned", proposed("a proposal is signed", "proposal.signature") | {"proposal": {"hex": forged.hex()}}
    yield (
        "join_trailing_byte",
        proposed("a proposal is canonical", "encoding")
        | {
            "proposal": {"hex": reproposed(BFV), "append": "00"},
            "expected": [{"error": "ServerFault", "reason": "encoding"}],
        },
    )


# Uploads without masks, spec.md §9.2.


def signing_key(name: str, number: int) -> bytes:
    """A client's key."""
    return bytes.fromhex(played(name).vector["clients"][number]["signing_key"])


def identity(name: str, number: int) -> str:
    """A client's identity."""
    found: str = played(name).vector["clients"][number]["identity"]
    return found


def signed_uploads(name: str) -> list[Any]:
    """The uploads in the honest request."""
    request = messages.decode(messages.OpenRequest, played(name).request, primitives.MisuseError)
    return list(request.uploads)


def resigned(key: bytes, h: Any, **changes: Any) -> Any:
    """A header with other fields, signed."""
    return primitives.sign(key, primitives.Header, *h._replace(**changes)[:-1])


def upload(name: str, number: int, *, payload: Vector | None = None, sender: str = "", **changes: Any) -> Vector:
    """A client's upload; a header that is changed is signed again, and so is one with another payload."""
    u, h = signed_uploads(name)[number], signed_uploads(name)[number].header
    recipe = {"payload": number} | (payload or {})
    if payload is not None:
        changes |= {"payload_hash": primitives.digest("payload", made(recipe, of=played(name)))}
    if changes:
        h = resigned(signing_key(name, number), h, **changes)
    told = {"sender": sender or identity(name, number), "header": encode(h).hex(), "payload": recipe}
    return told | {"certificate": u.certificate.hex()}


def uploads() -> Iterator[tuple[str, Vector]]:
    """Uploads that the server refuses."""
    size, prime = len(payload_of(played(BFV), 0)), messages.BFV.coefficient_moduli[1]
    stranger = sessions.shake("he/stranger", 32)
    h = signed_uploads(BFV)[0].header
    alien = encode(resigned(stranger, h, sender=identity_of(stranger))).hex()
    strange = upload(BFV, 0) | {"sender": identity_of(stranger).hex(), "header": alien}
    other = upload(BFV, 0) | {"header": upload(BFV, 0, payload={"put": [[0, "00"]]})["header"]}
    broken = bytearray.fromhex(upload(BFV, 0)["header"])
    broken[-1] ^= 1
    table: list[tuple[str, str, str, list[Vector]]] = [
        ("sender", "upload.binding", "a client uploads in its own name", [upload(BFV, 0, sender=identity(BFV, 1))]),
        ("session", "upload.binding", "an upload is of this session", [upload(BFV, 0, session=bytes(32))]),
        ("context", "upload.binding", "an upload is under this context", [upload(BFV, 0, context=bytes(32))]),
        ("roster", "upload.binding", "without masks there is no roster", [upload(BFV, 0, roster=b"\1" * 32)]),
        ("sharers", "upload.binding", "without masks nobody shares", [upload(BFV, 0, sharers=b"\1" * 32)]),
        ("twice", "upload.twice", "an upload is taken once", [upload(BFV, 0), upload(BFV, 0)]),
        ("again", "upload.twice", "not even another one",
         [upload(BFV, 0), upload(BFV, 0, payload={"put": [[0, "00"]]})]),
        ("stranger", "upload.member", "strangers do not upload", [strange]),
        ("full", "upload.full", "no more than `clients` upload",
         [*(upload(BFV, i) for i in range(3)), strange]),
        ("unsigned", "upload.signature", "a header is signed", [upload(BFV, 0) | {"header": broken.hex()}]),
        ("payload", "upload.signature", "a payload is the one that was signed", [other]),
        ("short", "upload.length", "a payload has one length", [upload(BFV, 0, payload={"drop": 1})]),
        ("long", "upload.length", "a payload has one length", [upload(BFV, 0, payload={"append": "00"})]),
        ("empty", "upload.length", "a payload has one length", [upload(BFV, 0, payload={"drop": size})]),
        ("residue", "upload.residue", "each coefficient is below its prime",
         [upload(BFV, 0, payload={"put": [[5 * 4096, prime.to_bytes(5, "little").hex()]]})]),
        ("residue_last", "upload.residue", "each coefficient is below its prime",
         [upload(BFV, 0, payload={"put": [[size - 5, "ffffffffff"]]})]),
        ("trailing_byte", "encoding", "an upload is canonical", [upload(BFV, 0) | {"bytes": {"append": "00"}}]),
    ]  # fmt: skip
    for name, reason, claim, sent in table:
        refused = {"error": "ClientFault", "reason": reason}
        yield (
            f"upload_{name}",
            case(claim, "receive", "ClientFault", reason, session=BFV)
            | {
                "uploads": sent,
                "expected": [*[None] * (len(sent) - 1), refused],
            },
        )


# Requests, spec.md §10.2.


def requests() -> Iterator[tuple[str, Vector]]:
    """Requests that the authority refuses."""

    def asked(
        claim: str, reason: str, *found: Vector, name: str = BFV, before: list[Any] | None = None, **more: Any
    ) -> Vector:
        error = "ServerFault" if "." in reason or reason == "encoding" else "PolicyRefusal"
        expected = [*(before or []), {"error": error, "reason": reason}]
        return (
            case(claim, "open_total", error, reason, session=name, requests=list(found)) | more | {"expected": expected}
        )

    def listed(name: str, change: Change) -> Vector:
        found = change(signed_uploads(name))
        return {"uploads": [{"header": encode(u.header).hex(), "certificate": u.certificate.hex()} for u in found]}

    def one(change: Change) -> Change:
        return lambda found: [found[0], change(found[1]), found[2]]

    def headed(**changes: Any) -> Change:
        return one(lambda u: u._replace(header=resigned(signing_key(BFV, 1), u.header, **changes)))

    def broken(u: Any) -> Any:
        return u._replace(header=u.header._replace(signature=bytes(64)))

    stranger = sessions.shake("he/stranger", 32)

    def strange(found: list[Any]) -> list[Any]:
        h = resigned(stranger, found[0].header, sender=identity_of(stranger))
        return sorted([*found[:2], messages.SignedUpload(h, b"")], key=lambda u: u.header.sender)

    nonce = {"proposal": reproposed(BFV, nonce=bytes(32))}
    yield "open_twice", asked("a session has one total", "one total", {}, {}, before=[None])
    again = {"total": {"payload": 0}}
    yield "open_again_another", asked("not even another total", "one total", {}, again, before=[None])
    for name, spot in ((BFV, 0), (BFV, 81920), (CKKS, 0), (MASKED, 40960)):
        noisy = {"total": {"payload": -1, "put": [[spot, "0102030405" if name != CKKS else "01020304"]]}}
        noise = {"error": "ServerFault", "reason": "total.noise"}
        claim = "a total with more noise than honest uploads is not opened, and uses its session up"
        kind = asked(claim, "one total", noisy, {}, name=name, before=[noise])
        yield f"open_noise_{name}_{spot}", kind
    ok = "nothing that is refused before decryption uses a session up"
    short = {"total": {"payload": -1, "drop": 1}}
    length = {"error": "ServerFault", "reason": "total.length"}
    yield "open_after_refusal", asked(ok, "one total", short, {}, {}, before=[length, None])
    yield "open_unsigned_proposal", asked("the server signed the parameters", "proposal.signature",
        {"proposal": reproposed(BFV)[:-2] + "00"})  # fmt: skip
    yield "open_plain_protocol", asked("nothing is encrypted in secagg/v1", "protocol",
        {"proposal": reproposed(BFV, protocol="secagg/v1", public_context=b"")})  # fmt: skip
    yield "open_unsound", asked("parameters are sound", "min_survivors",
        {"proposal": reproposed(BFV, min_survivors=2)})  # fmt: skip
    pinned = messages.context_hash(cases.context("bfv_other")[0])
    yield "open_foreign_context", asked("a session is under this authority's context", "public_context",
        {"proposal": reproposed(BFV, public_context=pinned)})  # fmt: skip
    yield "open_other_scheme", asked("a session is of the context's scheme", "protocol",
        {"proposal": reproposed(BFV, protocol="ckks/v1")})  # fmt: skip
    unmasked = {"protocol": "bfv/v1", "modulus": 0}
    yield "open_masks_taken_away", asked("a key of masked sums opens no others", "protocol",
        {"proposal": reproposed(MASKED, **unmasked)}, name=MASKED)  # fmt: skip
    yield "open_second_modulus", asked("masked vectors are modulo the first plain modulus", "modulus",
        {"proposal": reproposed(MASKED, modulus=messages.BFV.plain_moduli[1])}, name=MASKED)  # fmt: skip
    yield "open_server", asked("an authority opens for servers that it knows", "servers", {},
        authority={"servers": [identity(BFV, 0)]})  # fmt: skip
    yield "open_corrupt", asked("c is at least what the authority assumes", "corrupt", {}, authority={"corrupt": 1})
    yield "open_session", asked("uploads are of the session that is proposed", "uploads.session", nonce)
    yield "open_few", asked("too few uploads are not opened", "min_survivors", listed(BFV, lambda u: u[:2]))
    yield "open_none", asked("no uploads are not opened", "min_survivors", listed(BFV, lambda u: []))
    yield "open_few_for_the_authority", asked("the authority has a least cohort of its own", "min_survivors", {},
        authority={"min_survivors": 4})  # fmt: skip
    many = listed(MASKED, lambda u: u)
    yield "open_few_for_the_session", asked("a session has a least cohort of its own", "min_survivors",
        many | {"proposal": reproposed(MASKED, min_survivors=4)}, name=MASKED)  # fmt: skip
    yield "open_upload_twice", asked("nobody counts twice", "uploads.order", listed(BFV, lambda u: [u[0], u[1], u[1]]))
    yield "open_unordered", asked("uploads are in the order of identities", "uploads.order",
        listed(BFV, lambda u: u[::-1]))  # fmt: skip
    yield "open_other_session", asked("uploads are of one session", "uploads.session",
        listed(BFV, headed(session=bytes(32))))  # fmt: skip
    yield "open_other_context", asked("uploads are under one context", "uploads.binding",
        listed(BFV, headed(context=bytes(32))))  # fmt: skip
    yield "open_other_roster", asked("uploads are under one roster", "uploads.binding",
        listed(BFV, headed(roster=bytes(31) + b"\1")))  # fmt: skip
    yield "open_unsigned", asked("uploads are signed", "uploads.signature", listed(BFV, one(broken)))
    yield "open_stranger", asked("uploads are of members", "members", listed(BFV, strange))
    one_modulus = "bfv_one_modulus"
    yield "open_uncertified", asked("members show their certificates", "members",
        listed(one_modulus, one(lambda u: u._replace(certificate=b""))), name=one_modulus)  # fmt: skip
    yield "open_total_short", asked("a total has one length", "total.length", short)
    yield "open_total_long", asked("a total has one length", "total.length", {"total": {"payload": -1, "append": "00"}})
    yield "open_total_residue", asked("a total is made of residues", "total.residue",
        {"total": {"payload": -1, "put": [[0, "ffffffffff"]]}})  # fmt: skip
    yield "open_trailing_byte", asked("a request is canonical", "encoding", {"bytes": {"append": "00"}})


# Answers, spec.md §9.5.


def answers() -> Iterator[tuple[str, Vector]]:
    """Answers that the server does not take for the authority's."""
    key, mine = cases.authority_key("bfv"), identity_of(cases.authority_key("bfv")).hex()
    opened = messages.decode(messages.OpenedTotal, played(BFV).opened, primitives.MisuseError)

    def again(signer: bytes = key, **changes: Any) -> Vector:
        fields = opened._replace(**changes)[:-1]
        return {"sender": mine, "opened": {"hex": encode(messages.sign(signer, messages.OpenedTotal, *fields)).hex()}}

    honest = {"sender": mine, "opened": {"of": "opened"}}
    other = cases.authority_key("bfv_other")
    impostor = again(other, authority=identity_of(other))
    table: list[tuple[str, str, str, list[Vector]]] = [
        ("sender", "opened.binding", "the authority answers itself", [honest | {"sender": identity(BFV, 0)}]),
        ("authority", "opened.binding", "the context names the authority", [impostor]),
        ("session", "opened.binding", "an answer is of this session", [again(session=bytes(32))]),
        ("total", "opened.binding", "an answer is to the total that was asked about", [again(total=bytes(32))]),
        ("twice", "opened.binding", "there is one answer", [honest, honest]),
        ("unsigned", "opened.signature", "an answer is signed", [again(other)]),
        ("vector_changed", "opened.signature", "the vector is signed",
         [honest | {"opened": {"of": "opened", "put": [[len(played(BFV).opened) - 67, "ff"]]}}]),
        ("vector_short", "opened.length", "the vector has one length", [again(vector=opened.vector[:-1])]),
        ("trailing_byte", "encoding", "an answer is canonical",
         [honest | {"opened": {"of": "opened", "append": "00"}}]),
    ]  # fmt: skip
    for name, reason, claim, sent in table:
        refused = {"error": "ClientFault", "reason": reason}
        yield (
            f"opened_{name}",
            case(claim, "receive_opened", "ClientFault", reason, session=BFV)
            | {
                "answers": sent,
                "expected": [*[None] * (len(sent) - 1), refused],
            },
        )


GROUPS = (contexts, proposals, uploads, requests, answers)
