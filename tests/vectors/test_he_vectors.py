"""he/v1: the vectors are the reference's, and the package gives the same answers and refuses the same misuses.

The package encrypts with entropy of SEAL's own, so its uploads differ from those of the vectors. What is compared are
all other bytes, and what either side makes of the other's ciphertexts.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.params import BFV_MASKED, Segment
from fedopal_secure.core.ring import to_wire
from fedopal_secure.he import messages as ours
from fedopal_secure.he import packing
from fedopal_secure.he import parameters as limits
from fedopal_secure.he.authority import generate
from fedopal_secure.he.ciphertext import CiphertextForm
from fedopal_secure.he.context import read_public_context
from fedopal_secure.he.seal import _in_memory, load_seal
from protocols.he.v1 import cases, masked, messages, play, reference, ring, scheme
from protocols.he.v1 import generate as writer
from protocols.he.v1 import packing as theirs
from protocols.secagg.v1 import primitives, sessions
from protocols.secagg.v1.generate import messages as recorded
from tests.vectors.he_parties import (
    OURS,
    WORDS,
    Host,
    Mixed,
    WithoutSeal,
    parameters_of,
    reason_of,
    ternary_secret,
)

FOLDER = Path(writer.__file__).parent
SPEC = (FOLDER / "spec.md").read_text("utf-8")
SECAGG = Path(primitives.__file__).with_name("spec.md").read_text("utf-8")
FILES = {
    p.relative_to(writer.VECTORS).as_posix()[:-5]: json.loads(p.read_text()) for p in writer.VECTORS.rglob("*.json")
}
SESSIONS = {name.removeprefix("session_"): v for name, v in FILES.items() if name.startswith("session_")}
MISUSES = {name.removeprefix("misuse/"): v for name, v in FILES.items() if name.startswith("misuse/")}
needs_seal = pytest.mark.skipif(
    importlib.util.find_spec("tenseal") is None, reason="missing tool: TenSEAL, of the extra `he`"
)


def test_the_vectors_are_those_of_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert writer.main(["--check"]) == 0
    assert capsys.readouterr().out == ""
    assert len(SESSIONS) == 4
    assert len(MISUSES) >= 100
    assert sum(path.stat().st_size for path in writer.VECTORS.rglob("*.json")) < 2**20


def test_the_reference_stands_alone() -> None:
    for module in (ring, scheme, messages, theirs, reference, masked, cases, play):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", Path(module.__file__).read_text(), re.M)
        assert not {"fedopal_secure", "tenseal", "numpy"} & set(imported)


def test_products_are_those_of_schoolbooks() -> None:
    """And the roots that everything rests on turn them into products of values."""
    n, prime = 16, 97
    a, b = ([(7 * i * i + k) % prime - k * 40 for i in range(n)] for k in (0, 1))
    slow = [0] * n
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            slow[(i + j) % n] += x * y if i + j < n else -x * y
    expected = [c % prime for c in slow]
    assert ring.product(a, b, prime) == expected
    values = [x * y % prime for x, y in zip(ring.to_ntt(a, prime), ring.to_ntt(b, prime), strict=True)]
    assert ring.from_ntt(tuple(values), prime) == expected
    psi = min(x for x in range(prime) if pow(x, n, prime) == prime - 1)
    assert ring.values_at_roots(a, prime) == [
        sum(c * pow(psi, (2 * i + 1) * j, prime) for j, c in enumerate(a)) % prime for i in range(n)
    ]


@pytest.mark.parametrize("row", FILES["parameters"]["sets"], ids=lambda row: row["claim"])
def test_parameters(row: dict[str, Any]) -> None:
    p = parameters_of(cases.parameters_from_json(row["parameters"]))
    if "expected_error" in row:
        with pytest.raises(InputError) as caught:
            limits.check_parameters(p)
        assert reason_of(caught.value) == row["expected_error"]["reason"]
        return
    limits.check_parameters(p)
    assert p.q == int(row["q"])
    for k, expected in row.get("least_noise_budget", {}).items():
        assert [limits.least_noise_budget(p, t, int(k)) for t in p.plain_moduli] == expected
    for k, expected in row.get("scale_bits", {}).items():
        assert limits.scale_bits(p, int(k)) == expected
    for name, expected in row.get("error_bound", {}).items():
        assert limits.error_bound(p, *map(int, name.split())) == pytest.approx(expected, rel=1e-9)


def test_the_defaults_are_those_of_the_package() -> None:
    assert {p.scheme: p for p in map(parameters_of, (messages.BFV, messages.CKKS))} == limits.DEFAULTS
    assert messages.SECURE_BITS == limits.SECURE_BITS


@pytest.mark.parametrize("row", FILES["packing"]["rows"], ids=lambda row: f"{row['scheme']}-{row['segments'][0]}")
def test_packing(row: dict[str, Any]) -> None:
    segments, moduli = [Segment(**s) for s in row["segments"]], [int(t) for t in row["plain_moduli"]]
    vector = np.array([int(entry) for entry in row["vector"]], dtype=np.uint64)
    slots = [[int(slot) for slot in part] for part in row["slots"]]
    if moduli:
        parts = packing.to_residues(vector, segments, moduli)
        back = packing.from_residues(parts, segments, moduli)
    else:
        parts = [packing.to_digits(vector, segments)]
        back = packing.from_digits(parts[0], segments)
    assert [part.tolist() for part in parts] == slots
    assert to_wire(back, segments) == to_wire(vector, segments)


@pytest.mark.parametrize("name", sorted(cases.CONTEXTS))
def test_context(name: str) -> None:
    """The package reads the bytes, and writes and signs the same ones."""
    vector, data = FILES[f"context_{name}"], play.context_bytes(name)
    context = read_public_context(data)
    assert encode(context) == data
    assert ours.public_context_hash(context).hex() == vector["hash"]
    key = SigningKey(bytes.fromhex(vector["signing_key"]))
    unsigned = ours.PublicContext(context.protocol, context.parameters, context.keys, key.identity)
    assert ours.sign(key, unsigned).signature.hex() == vector["signature"]


@needs_seal
@pytest.mark.parametrize("name", [name for name in sorted(SESSIONS) if name != "bfv_masked"])
def test_session(name: str) -> None:
    """Uploads of the reference through the package's server and authority: every byte is as recorded."""
    vector, of = SESSIONS[name], play.played(name)
    expected, public = vector["expected"], play.context_bytes(vector["public_context_of"])
    server = OURS.server(vector, public)
    assert server.proposal.hex() == expected["proposal"]
    server.open(play.context_of(vector))
    for me, data in zip(vector["clients"], of.uploads, strict=True):
        server.receive(bytes.fromhex(me["identity"]), data)
    request = server.request()
    assert {"sha256": cases.sha(request), "length": len(request)} == expected["request"]
    opened = OURS.authority(vector, {}).open_total(request)
    assert opened.hex() == expected["opened"]
    server.receive(primitives.identity_of(cases.authority_key(vector["public_context_of"])), opened)
    assert [str(entry) for entry in server.vector] == expected["sum"]


@needs_seal
@pytest.mark.parametrize("roles", [("client",), ("client", "server"), ("authority",)], ids="+".join)
@pytest.mark.parametrize("name", ["bfv_two_moduli", "ckks"])
def test_mixed(name: str, roles: tuple[str, ...]) -> None:
    """Whoever of the parties is the package's, the sum is the one recorded."""
    vector = SESSIONS[name]
    found = play.Played(vector, Mixed(*roles))
    assert [str(entry) for entry in found.sum] == vector["expected"]["sum"]


@pytest.mark.parametrize("host", [play.Host, Host])
@pytest.mark.parametrize("reason", ["length", "residue"])
def test_masked_uploads_are_ciphertexts(host: Any, reason: str) -> None:
    """The two checks of an upload that are not those of secagg/v1; a refused upload is as none."""
    vector, of = SESSIONS["bfv_masked"], play.played("bfv_masked")
    key = bytes.fromhex(vector["clients"][0]["signing_key"])
    sent = primitives.decode(primitives.Upload, of.uploads[0], primitives.MisuseError)
    payload = sent.payload[:-1] if reason == "length" else b"\xff" * 5 + sent.payload[5:]
    header = sent.header._replace(payload_hash=primitives.digest("payload", payload))
    wrong = primitives.Upload(primitives.sign(key, primitives.Header, *header[:-1]), payload)
    uploads = {0: primitives.encode(wrong), 2: of.uploads[1], 3: of.uploads[2]}

    class Told(play.Person):
        """Uploads what it is told to."""

        def __init__(self, vector: Any, number: int, parent: Any) -> None:
            super().__init__(vector, number, parent)
            self.number = number

        def upload(self, context: bytes) -> bytes:
            return uploads[self.number]

    out = sessions.drive(vector, Told, lambda v: host(v, None), until="upload")
    (error,) = out.failures.values()
    assert (type(error).__name__, out.failures.keys()) == ("ClientFault", {("server.receive", 0)})
    assert error.client == out.ids[0]
    assert (error.reason if host is play.Host else reason_of(error)) == f"upload.{reason}"


@needs_seal
@pytest.mark.parametrize("roles", [("person",), ("host", "authority"), ("person", "host", "authority")], ids="+".join)
def test_mixed_with_masks(roles: tuple[str, ...]) -> None:
    vector = SESSIONS["bfv_masked"]
    found = play.Played(vector, Mixed(*roles))
    assert [str(entry) for entry in found.sum] == vector["expected"]["sum"]
    if "person" not in roles:
        assert cases.sha(found.request) == vector["expected"]["request"]["sha256"]
        assert found.opened.hex() == vector["expected"]["opened"]
        assert recorded(found.out, full=False) == recorded(play.played("bfv_masked").out, full=False)


def test_sums_are_those_of_the_vectors_in_plain_integers() -> None:
    for vector in SESSIONS.values():
        params, lost = sessions.params_of(vector), vector["gone"].get("upload", [])
        rows = [[int(e) for e in c["vector"]] for i, c in enumerate(vector["clients"]) if i not in lost]
        moduli = [params.modulus or 256**width for width in primitives.entries(params)]
        plain = [str(sum(column) % m) for column, m in zip(zip(*rows, strict=True), moduli, strict=True)]
        assert plain == vector["expected"]["sum"]


@pytest.mark.parametrize("name", sorted(MISUSES))
def test_misuse(name: str) -> None:
    """The package ends with the same error, for the same reason."""
    case = MISUSES[name]
    decrypts = any(expected is None or expected["reason"] == "total.noise" for expected in case["expected"])
    seal = case["operation"] == "open_total" and decrypts
    if seal:
        pytest.importorskip("tenseal.sealapi", reason="missing tool: TenSEAL, of the extra `he`")
    assert play.perform(case, OURS if seal else WithoutSeal(), reason_of) == case["expected"]


def test_every_reason_has_a_vector_and_a_line_on_the_page() -> None:
    """Or on that of secagg/v1. What no vector has is an authority that signs a masked sum that is none."""
    named = {e["reason"] for case in MISUSES.values() for e in case["expected"] if e}
    assert set(WORDS) - named == {"opened.residue"}
    for reason in named:
        assert any(f"`{name}`" in SPEC + SECAGG for name in (reason, reason.removeprefix("parameters."))), reason


def test_the_page_lists_the_records_and_labels_of_the_reference() -> None:
    words = {"string": "str", "integer": "int"}
    kinds = {kind.__name__: kind for kind in (ours.PublicContext, ours.SignedUpload, ours.EncryptedUpload)}
    kinds |= {kind.__name__: kind for kind in (ours.OpenRequest, ours.OpenedTotal, limits.Parameters)}
    assert kinds.keys() == messages.RECORDS.keys()
    for name, kind in messages.RECORDS.items():
        (line,) = re.findall(rf"^\| {name} \| (.*) \| (.*) \|$", SPEC, re.M)
        tag, types = primitives.TYPES[kind]
        assert line[0] == (f"`{tag}`" if tag else "–")
        found = [field.split(": ") for field in line[1].replace("\\*", "*").replace("≤", "..").split(", ")]
        assert [field for field, _ in found] == list(kind._fields) == list(kinds[name].__struct_fields__)
        assert [words.get(type_.rstrip("*"), type_.rstrip("*")) + "*" * type_.count("*") for _, type_ in found] == types
        assert (kinds[name].__struct_config__.tag or "") == tag
    for label in ("public context", "total", *messages.SIGN.values()):
        assert f"`{label}`" in SPEC


@needs_seal
@pytest.mark.parametrize("p", [messages.BFV, messages.CKKS], ids=lambda p: p.scheme)
def test_fresh_keys(p: Any) -> None:
    """Each side decrypts what the other encrypts under keys of the package, and finds the same noise."""
    key = SigningKey(bytes(32))
    secrets = generate(f"{p.scheme}/v1", key, parameters_of(p))
    context = messages.read_context(encode(secrets.context))
    segments = (primitives.Segment("x", 4000, 5, True), primitives.Segment("n", 200, 8, False))
    words = np.random.default_rng(1).integers(-(2**38), 2**38, 4200)
    words[4000:] = np.abs(words[4000:])
    vector = words.view(np.uint64)
    params = type("Session", (), {"segments": segments, "modulus": 0, "clients": 3})
    form = CiphertextForm(secrets.context.parameters, tuple(Segment(*s) for s in segments), 0)
    seals = load_seal(parameters_of(p))
    polynomials = [ternary_secret(seal, p, secret) for seal, secret in zip(seals, secrets.expose(), strict=True)]
    for public, secret, opened in zip(context.keys, polynomials, secrets.expose(), strict=True):
        assert set(secret) == {-1, 0, 1}
        assert scheme.key_error(p, messages.read_key(p, public), secret) is not None
        assert opened
    assert scheme.key_error(p, messages.read_key(p, context.keys[0]), polynomials[0][::-1]) is None

    # The package encrypts, the reference decrypts, and the other way round.
    form_slots = form.to_slots(vector)
    mine = np.concatenate(
        [
            seal.encrypt(np.array(messages.read_key(p, public), dtype=np.uint64), part, 3)
            for seal, public, part in zip(seals, context.keys, form_slots, strict=True)
        ]
    )
    payloads = [form.to_bytes(mine), theirs.encrypt(vector.tolist(), params, context, sessions.entropy("fresh"))]
    for payload in payloads:
        read = theirs.from_payload(payload, p, params, primitives.MisuseError, "total")
        authority = reference.Authority(bytes(32), None, context, polynomials)
        assert theirs.from_slots(authority.decrypt(params, read), p, params) == form.from_slots(form_slots).tolist()
        groups = form.by_key(form.from_bytes(payload))
        opened = [s.decrypt(k, group, 3)[0] for s, k, group in zip(seals, secrets.expose(), groups, strict=True)]
        assert form.from_slots(opened).tolist() == form.from_slots(form_slots).tolist()

    # Addition is the same, byte for byte.
    total = form.zeros()
    for payload in payloads:
        form.add_into(total, form.from_bytes(payload))
    assert form.to_bytes(total) == theirs.add_payloads(payloads, p, params)


@needs_seal
def test_the_noise_budget_is_seals() -> None:
    """And that of one honest ciphertext is not below the bound of section 2.3."""
    p, t = messages.BFV, messages.BFV.plain_moduli[1]
    seal = load_seal(parameters_of(p))[1]
    public, secret = seal.generate_key()
    residues = seal.encrypt(public, np.arange(4096, dtype=np.uint64), 3)[0]
    ciphertext = seal._filled(seal._api.Ciphertext(seal._context), seal._context.first_parms_id(), False, 1.0, residues)
    with _in_memory(secret) as path:
        key = seal._api.SecretKey()
        key.load(seal._context, path)
    slots, noise = scheme.decrypt_bfv(p, t, ternary_secret(seal, p, secret), residues.tolist())
    assert slots == list(range(4096))
    budget = messages.q_of(p).bit_length() - noise.bit_length() - 1
    assert budget == seal._api.Decryptor(seal._context, key).invariant_noise_budget(ciphertext)
    assert budget >= messages.least_budget(p, t, 1)


def test_the_masked_session_is_masked() -> None:
    """What the authority opens is the sum of the vectors plus masks: not the sum, and not known to the server."""
    vector = SESSIONS["bfv_masked"]
    assert vector["params"]["protocol"] == BFV_MASKED
    opened = messages.decode(messages.OpenedTotal, bytes.fromhex(vector["expected"]["opened"]), primitives.MisuseError)
    total = primitives.from_wire(opened.vector, sessions.params_of(vector))
    assert all(str(entry) != of for entry, of in zip(total, vector["expected"]["sum"], strict=True))
