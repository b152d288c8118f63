"""secagg/v1: the package sends what the reference sends, byte for byte, and refuses what must be refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedopal_secure.core import client, server
from fedopal_secure.core.codec import Message, decode, encode
from fedopal_secure.core.errors import FedopalError, MisuseError, PolicyRefusal, SessionAborted
from fedopal_secure.core.graph import Graph, corrupt_holders, partial_sum_bits
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import SessionParams, least_cohort
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.core.states import Revealed
from protocols.secagg.v1 import generate, primitives, reference, sessions

VECTORS = Path(generate.VECTORS)
FILES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in VECTORS.glob("*.json")}
SESSIONS = {name: vector for name, vector in FILES.items() if "messages" in vector}
SPEC = (VECTORS.parent / "spec.md").read_text(encoding="utf-8")
MISUSES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (VECTORS / "misuse").glob("*.json")}

# The reasons of spec.md in the words of the package. Rules of PolicyRefusal and SessionAborted have the same names.
WORDS = {
    "encoding": "not a valid|not a canonical",
    "proposal.signature": "not signed by the server that it names",
    "roster.session": "roster is of another session",
    "roster.size": "members, the session",
    "roster.order": "roster repeats an identity or is unordered",
    "roster.own": "omits or alters our own advert",
    "roster.keys": "public key occurs twice",
    "roster.advert": "advert of .* is not signed for this session",
    "key.canonical": "canonical form",
    "key.order": "small order",
    "relay.session": "relay is of another session",
    "relay.order": "repeats a sharer or is unordered",
    "relay.member": "sharer outside the roster",
    "relay.dealers": "relay repeats a dealer",
    "relay.listed": "a message that its list does not",
    "relay.own": "omits or alters our own share message",
    "relay.signature": "is not signed for this session and roster",
    "relay.fit": "share message of .* does not fit",
    "relay.complete": "leaves out the message of someone who shared",
    "relay.ciphertext": "is not the one it signed",
    "relay.threshold": "of our holders shared, below the threshold",
    "context.session": "context is of another session",
    "context.parent": "continues another session than the parameters say",
    "context.survivor": "we are no survivor of the session that this one continues",
    "context.view": "another view of the parent session",
    "opening.fit": "is not of the view that was attested",
    "opening.payload": "another upload of .* than it signed",
    "opening.seed": "a seed that its dealer did not commit to",
    "opening.key": "a masking key that was not advertised",
    "view.binding": "view is of another session, roster, set of sharers or context",
    "view.order": "repeats a survivor or is unordered",
    "view.sharer": "a survivor that never shared",
    "view.header": "uploaded under another roster, set of sharers or context",
    "view.signature": "upload header of .* is not signed",
    "view.own": "wrong about our own upload",
    "view.parent": "was not one of the parent session",
    "view.holders": "holders of .* survive, below the threshold",
    "request.view": "another view than the one we signed",
    "request.order": "repeats a signer or is unordered",
    "request.member": "signature from outside the roster",
    "request.signature": "did not sign the view that we signed",
    "request.quorum": "are no quorum of",
    "request.lists": "lists are not exactly",
    "advert.sender": "another identity's advert",
    "advert.session": "advert of another session",
    "advert.twice": "advertised twice",
    "advert.member": "is not a member",
    "advert.signature": "an advert that it did not sign",
    "advert.full": "roster was full",
    "advert.key": "public key that is in the roster already",
    "shares.sender": "another identity's shares",
    "shares.member": "without being in the roster",
    "shares.twice": "shared twice",
    "shares.binding": "shared for another roster",
    "shares.signature": "shares that it did not sign",
    "shares.fit": "do not fit the roster or its own hashes",
    "upload.sender": "another identity's upload",
    "upload.sharer": "uploaded without having shared",
    "upload.twice": "uploaded twice",
    "upload.parent": "without being a survivor of the parent",
    "upload.binding": "uploaded under another session, roster",
    "upload.signature": "an upload that it did not sign",
    "upload.length": "upload of the wrong length",
    "upload.payload": "another upload than it signed",
    "upload.residue": "entries that are not residues",
    "attestation.sender": "another identity's attestation",
    "attestation.sharer": "attested without having shared",
    "attestation.twice": "attested twice",
    "attestation.view": "attested another view",
    "attestation.signature": "an attestation that it did not sign",
    "reveal.sender": "another identity's shares",
    "reveal.attested": "revealed without having attested",
    "reveal.twice": "revealed twice",
    "reveal.view": "revealed for another view",
    "reveal.signature": "a reveal that it did not sign",
    "reveal.counts": "another number of shares than was asked for",
    "dealer.seed": "do not rebuild the self-mask seed",
    "dealer.key": "do not rebuild the masking key",
    "order": "has been used|cannot follow while",
    "vector": "the vector is not",
    "context": "not of this session and the parent",
    "server": "another server than the one whose key signs",
}


# Two checks that the package words alike.
ALIKE = {"shares.sender", "reveal.sender"}
GROUPS = {
    "ServerFault": "encoding proposal roster relay context opening view request",
    "ClientFault": "encoding key advert shares upload attestation reveal dealer",
    "MisuseError": "order vector context server",
}


def reason_of(error: Any, expected: str) -> str:
    """The one reason that an error of the package gives."""
    if isinstance(error, PolicyRefusal | SessionAborted):
        return error.rule
    groups, dotted = GROUPS[type(error).__name__].split(), not isinstance(error, MisuseError)
    found = {
        reason
        for reason, words in WORDS.items()
        if reason.split(".")[0] in groups and ("." in reason or reason == "encoding") == dotted
        if re.search(words, str(error))
    }
    assert len(found) == 1 or found == ALIKE, (str(error), found)
    return expected if expected in found else str(found)


def policy_of(vector: dict[str, Any]) -> Policy:
    policy = sessions.policy_of(vector)
    return Policy(
        members=Membership(frozenset(policy.identities), policy.authority or None),
        servers=frozenset(policy.servers),
        backbone=policy.backbone,
        backbone_hash=policy.backbone_hash,
        preprocessing=policy.preprocessing,
        classes=policy.classes,
        corrupt=policy.corrupt,
        max_images=policy.max_images,
        release=policy.release,
        min_survivors=policy.min_survivors,
        min_threshold=policy.min_threshold,
        prompt_modes=frozenset(policy.prompt_modes),
        min_contributors=policy.min_contributors,
        protocols=frozenset(policy.protocols),
    )


class OurPerson:
    """The package's client behind the methods of `sessions.Person`."""

    def __init__(self, vector: dict[str, Any], number: int, parent: Any) -> None:
        me = vector["clients"][number]
        self.key = SigningKey(bytes.fromhex(me["signing_key"]))
        self.certificate, self.entropy = bytes.fromhex(me["certificate"]), sessions.entropy(me["entropy"])
        self.policy, self.parent = policy_of(vector), parent
        self.vector = np.array([int(entry) for entry in me["vector"]], dtype=np.uint64)
        self.state: Any = None

    def advertise(self, proposal: bytes) -> bytes:
        self.state, sent = client.advertise(proposal, self.policy, self.key, self.certificate, self.entropy)
        return sent

    def share(self, roster: bytes) -> bytes:
        self.state, sent = client.share(self.state, roster, self.entropy)
        return sent

    def hold(self, relay: bytes) -> None:
        self.state = client.hold(self.state, relay)

    def upload(self, context: bytes) -> bytes:
        self.state, sent = client.upload(self.state, self.vector, context, self.parent)
        return sent

    def attest(self, view: bytes, context: bytes | None) -> bytes:
        parent = None if context is None else self.parent
        self.state, sent = client.attest(self.state, view, context, parent)
        return sent

    def reveal(self, request: bytes) -> bytes:
        self.state, sent = client.reveal(self.state, request)
        return sent

    def ends_as(self) -> Any:
        assert isinstance(self.state, Revealed)
        return self.state.view


class OurSum:
    """A sum of the package in the reference's terms."""

    def __init__(self, found: server.Sum) -> None:
        self.total, self.threshold = [int(entry) for entry in found.total], found.threshold
        self.survivors, self.dropped = found.survivors, found.dropped
        self.opening = b"" if found.opening is None else encode(found.opening)
        self.blame = [(b.client, b.holder or b"", "share" if b.holder is None else "dispute") for b in found.blame]


class OurHost:
    """The package's server behind the methods of `sessions.Host`."""

    def __init__(self, vector: dict[str, Any]) -> None:
        params = decode(SessionParams, primitives.encode(sessions.params_of(vector)), MisuseError)
        key = SigningKey(bytes.fromhex(vector["server_key"]))
        self.state, self.proposal = server.start(params, policy_of(vector).members, key)
        self.session = self.state.session

    def propose(self) -> bytes:
        return self.proposal

    def receive(self, sender: bytes, data: bytes) -> None:
        self.state = server.receive(self.state, sender, data)

    def close(self) -> dict[bytes, bytes]:
        self.state, replies = server.close(self.state)
        return dict(replies)

    def open(self, context: bytes) -> bytes:
        self.state, sent = server.open_uploads(self.state, decode(Context, context, MisuseError))
        return sent

    def finish(self) -> OurSum:
        return OurSum(server.finish(self.state))


PLAYED: dict[str, sessions.Outcome] = {}


def played(name: str) -> sessions.Outcome:
    """An honest session of the package alone."""
    if name not in PLAYED:
        vector = SESSIONS[name]
        parent = played(vector["parent"]) if vector["parent"] else None
        PLAYED[name] = sessions.drive(vector, OurPerson, OurHost, parent)
    return PLAYED[name]


def test_the_vectors_are_those_of_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0
    assert capsys.readouterr().out == ""
    assert len(SESSIONS) >= 20
    assert len(MISUSES) >= 60


def test_the_reference_stands_alone() -> None:
    for module in (primitives, reference, sessions):
        assert "fedopal_secure" not in re.findall(r"^(?:from|import) (\w+)", Path(module.__file__).read_text(), re.M)


@pytest.mark.parametrize("name", sorted(SESSIONS))
def test_session(name: str) -> None:
    """Every message and every result."""
    vector, out = SESSIONS[name], played(name)
    assert not out.failures
    found = generate.messages(out, full="sha256" not in str(vector["messages"]))
    assert found == vector["messages"]
    expected, ids = vector["expected"], out.ids
    assert out.sum.threshold == expected["threshold"]
    assert [ids.index(i) for i in out.sum.survivors] == expected["survivors"]
    assert [ids.index(i) for i in out.sum.dropped] == expected["dropped"]
    assert [str(entry) for entry in out.sum.total] == expected["sum"]
    assert out.opening.hex() == expected.get("opening", "")
    assert not out.sum.blame
    state = out.host.state
    hashes = state.session, state.records.roster, state.records.sharers, state.records.context, state.records.view
    assert [h.hex() for h in hashes] == [expected[k] for k in ("session", "roster", "sharers", "context", "view")]


@pytest.mark.parametrize("name", sorted(SESSIONS))
def test_the_sum_is_that_of_the_survivors_vectors(name: str) -> None:
    """In plain integers, from what the vector itself says."""
    vector = SESSIONS[name]
    params, expected = sessions.params_of(vector), vector["expected"]
    moduli = [params.modulus or 256**width for width in primitives.entries(params)]
    rows = [[int(entry) for entry in vector["clients"][i]["vector"]] for i in expected["survivors"]]
    assert [str(sum(column) % m) for column, m in zip(zip(*rows, strict=True), moduli, strict=True)] == expected["sum"]


@pytest.mark.parametrize("name", sorted(MISUSES))
def test_misuse(name: str) -> None:
    """The package ends with the same error, for the same reason, and blames the same client."""
    case = MISUSES[name]
    out = sessions.play(case, SESSIONS, OurPerson, OurHost)
    expected = case.get("expected_error", {}).get("reason", "")
    found = sessions.verdict(out, case, lambda error: reason_of(error, expected))
    assert found == {k: case[k] for k in ("expected_error", "expected_blame") if k in case}
    if "expected_blame" in case:
        survivors = {i for i in range(len(out.ids)) if out.ids[i] in out.sum.survivors}
        assert survivors == set(SESSIONS[case["session"]]["expected"]["survivors"])
        assert [str(entry) for entry in out.sum.total] == SESSIONS[case["session"]]["expected"]["sum"]


@pytest.mark.parametrize("name", ["complete_5_late", "prime_5", "sparse_20_lost_upload", "authority_3"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("host", [OurHost, sessions.Host])
def test_mixed(name: str, which: int, host: Any) -> None:
    """Every other client is the reference's, and either server sends the same bytes and finds the same sum."""

    def person(vector: dict[str, Any], number: int, parent: Any) -> Any:
        return (sessions.Person if number % 2 == which else OurPerson)(vector, number, parent)

    vector = SESSIONS[name]
    out = sessions.drive(vector, person, host)
    assert not out.failures
    assert generate.messages(out, full="sha256" not in str(vector["messages"])) == vector["messages"]
    assert [str(entry) for entry in out.sum.total] == vector["expected"]["sum"]


def test_every_reason_has_a_vector_that_names_it() -> None:
    """But for what needs a server that is corrupt from the start, or a census modulo a prime."""
    named = {case["expected_error"]["reason"] for case in MISUSES.values() if "expected_error" in case}
    assert set(WORDS) - named == set()
    source = Path(reference.__file__).read_text() + Path(primitives.__file__).read_text()
    reasons = set(re.findall(r'"([a-z]+\.[a-z_]+)"', source))
    assert reasons - named == {"opening.residue"}
    rules = set(re.findall(r'yield "([a-z_]+)"|"(min_threshold|members|quorum|threshold)"', source))
    for reason in reasons | {"".join(pair) for pair in rules}:
        assert f"`{reason}`" in SPEC or f"({reason})`" in SPEC, reason


def test_the_page_lists_the_records_and_labels_of_the_reference() -> None:
    words = {"string": "str", "integer": "int", "boolean": "bool", "binary64": "float"}
    for name, kind in primitives.RECORDS.items():
        (line,) = re.findall(rf"^\| {name} \| (.*) \| (.*) \|$", SPEC, re.M)
        tag, fields = primitives.TYPES[kind]
        assert line[0] == (f"`{tag}`" if tag else "–")
        found = [field.split(": ") for field in line[1].replace("\\*", "*").replace("≤", "..").split(", ")]
        assert [field for field, _ in found] == list(kind._fields)
        assert [
            words.get(kind_.rstrip("*"), kind_.rstrip("*")) + "*" * kind_.count("*") for _, kind_ in found
        ] == fields
    for label in [*primitives.SIGN.values(), "sign certificate", "key seal", "key pair mask", "key self mask"]:
        assert f"`{label}`" in SPEC


@pytest.mark.parametrize("row", FILES["graphs"]["graphs"], ids=lambda row: "{roster}-{degree}-{corrupt}".format(**row))
def test_graphs(row: dict[str, Any]) -> None:
    graph = Graph(row["roster"], row["degree"], row["corrupt"])
    assert graph.threshold == row["threshold"]
    if row["degree"]:
        assert corrupt_holders(row["roster"], row["degree"], row["corrupt"]) == row["c_max"]
    if "sound" in row:
        assert graph.sound(least_cohort(row["corrupt"])) == row["sound"]


@pytest.mark.parametrize("roster", [20, 60, 300])
@pytest.mark.parametrize("degree", [8, 12, 19])
@pytest.mark.parametrize("corrupt", [0, 2, 9])
@pytest.mark.parametrize("least", [2, 6, 30])
def test_the_bound_of_the_package_is_the_exact_one(roster: int, degree: int, corrupt: int, least: int) -> None:
    t = Graph(roster, degree, corrupt).threshold
    exact = primitives.partial_sum_bound(roster, degree, corrupt, t, least)
    bits = partial_sum_bits(roster, degree, corrupt, least)
    if exact == 0:
        assert bits == -math.inf
    elif exact < 1:  # a bound above 1 says nothing, and the package cuts each tail at 1
        assert bits == pytest.approx(math.log2(exact.numerator) - math.log2(exact.denominator), abs=2**-10)


def test_errors_are_named_as_in_the_package() -> None:
    kinds = {kind.__name__ for kind in (FedopalError, *FedopalError.__subclasses__())}
    kinds |= {kind.__name__ for parent in FedopalError.__subclasses__() for kind in parent.__subclasses__()}
    assert set(sessions.ERRORS) <= kinds


def test_the_vectors_parameters_are_the_packages_structures() -> None:
    """Field by field, so that a new field cannot be forgotten in one of them."""
    for name, kind in primitives.RECORDS.items():
        ours = {"Session": "SessionParams", "Header": "UploadHeader", "Request": "RevealRequest"}.get(name, name)
        found = next(c for c in all_messages() if c.__name__ == ours)
        assert found.__struct_fields__ == kind._fields
        assert (found.__struct_config__.tag or "") == primitives.TYPES[kind][0]


def all_messages() -> list[type[msgspec.Struct]]:
    return list(Message.__subclasses__())
