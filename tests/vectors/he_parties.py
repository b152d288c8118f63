"""The package behind the operations of the vectors of he/v1: its clients, servers and key authority, and its errors."""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import Any

import numpy as np

from fedopal_secure.core.codec import decode
from fedopal_secure.core.errors import MisuseError, PolicyRefusal
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import SessionParams
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.federation.protocols import open_client, open_server
from fedopal_secure.federation.secure_sum import OPEN, UPLOAD, Participant
from fedopal_secure.he import messages as ours
from fedopal_secure.he import parameters as limits
from fedopal_secure.he.authority import AuthorityPolicy, KeyAuthority, SecretKeys
from fedopal_secure.he.context import read_public_context
from fedopal_secure.he.packing import centred
from fedopal_secure.he.seal import _in_memory, load_seal
from protocols.he.v1 import cases, play, ring, scheme
from protocols.secagg.v1 import primitives, sessions

WORDS = {
    "encoding": "not a valid|not a canonical",
    "parameters.scheme": "is neither 'bfv' nor 'ckks'",
    "parameters.degree": "degree \\d+ is none of",
    "parameters.count": "takes two coefficient moduli",
    "parameters.prime": "is not a prime below",
    "parameters.twice": "a modulus occurs twice",
    "parameters.security": "128-bit security at degree",
    "parameters.plain": "CKKS has no plain modulus|BFV needs a plain modulus",
    "parameters.error": "cannot be told from their neighbours",
    "parameters.plain_bits": "more than 50 bits",
    "parameters.noise": "might decrypt wrongly",
    "context.protocol": "not encrypted with its scheme",
    "context.keys": "has \\d+ keys? and not",
    "context.key": "a key of another length",
    "context.residue": "a key that is not made of residues",
    "context.signature": "the public context is not signed",
    "proposal.signature": "the proposal is not signed",
    "upload.binding": "for another identity, session or context",
    "upload.twice": "uploaded twice",
    "upload.full": "after the roster was full",
    "upload.member": "is not a member",
    "upload.signature": "an upload that it did not sign",
    "upload.length": "sent \\d+ bytes long and not",
    "upload.residue": "sent not made of residues",
    "uploads.order": "not in the order of distinct identities",
    "uploads.session": "an upload is of another session",
    "uploads.binding": "under different rosters or contexts",
    "uploads.signature": "is not signed by it",
    "total.length": "the total is \\d+ bytes long and not",
    "total.residue": "the total is not made of residues",
    "total.noise": "more noise than honest encryptions",
    "opened.binding": "opened another total",
    "opened.signature": "a total that it did not sign",
    "opened.length": "a total of the wrong length",
    "opened.residue": "entries that are not residues",
}


def reason_of(error: Any) -> str:
    """The one reason that an error of the package gives."""
    if isinstance(error, PolicyRefusal):
        return error.rule
    (found,) = (reason for reason, words in WORDS.items() if re.search(words, str(error)))
    return found


def parameters_of(p: Any) -> limits.Parameters:
    return limits.Parameters(*p)


def policy_of(vector: dict[str, Any], pinned: bytes) -> Policy:
    p = sessions.policy_of(vector)
    return Policy(
        members=Membership(frozenset(p.identities), p.authority or None),
        servers=frozenset(p.servers),
        backbone=p.backbone,
        backbone_hash=p.backbone_hash,
        preprocessing=p.preprocessing,
        classes=p.classes,
        corrupt=p.corrupt,
        max_images=p.max_images,
        release=p.release,
        min_survivors=p.min_survivors,
        min_threshold=p.min_threshold,
        prompt_modes=frozenset(p.prompt_modes),
        min_contributors=p.min_contributors,
        protocols=frozenset(p.protocols),
        public_context=pinned,
    )


def seal_secret(seal: Any, p: Any, secret: list[int]) -> bytes:
    """A ternary polynomial as the secret key that SEAL loads: a header, its level, sizes, and NTT form."""
    entries = [entry for prime in p.coefficient_moduli for entry in ring.to_ntt(secret, prime)]
    fields = struct.pack("<4QQd", *seal._context.key_parms_id(), len(entries), 1.0)
    return seal._with_header(fields + seal._with_header(struct.pack(f"<{len(entries) + 1}Q", len(entries), *entries)))


def ternary_secret(seal: Any, p: Any, secret: bytes) -> list[int]:
    """The inverse."""
    key = seal._api.SecretKey()
    with _in_memory(secret) as path:
        key.load(seal._context, path)
    prime = p.coefficient_moduli[0]
    entries = tuple(key.data().data(i) for i in range(p.degree))
    return scheme.centred(ring.from_ntt(entries, prime), prime)


@cache
def secrets_of(name: str) -> SecretKeys:
    """The secret keys of a vector's context, as the package has them."""
    context, secrets = cases.context(name)
    pairs = zip(load_seal(parameters_of(context.parameters)), secrets, strict=True)
    keys = [seal_secret(seal, context.parameters, secret) for seal, secret in pairs]
    return SecretKeys(read_public_context(play.context_bytes(name)), keys)


def as_integers(vector: list[int], params: SessionParams) -> Any:
    """A vector of a session file as the package's callers have it: integers, not residues of a prime."""
    entries = np.array(vector, dtype=np.uint64)
    return centred(entries, params.modulus) if params.modulus else entries


class Server:
    """The package's server without masks."""

    def __init__(self, vector: dict[str, Any], public_context: bytes, uploads: bool = True) -> None:
        self.params = decode(SessionParams, primitives.encode(sessions.params_of(vector)), MisuseError)
        ids = tuple(bytes.fromhex(client["identity"]) for client in vector["clients"])
        key, members = SigningKey(bytes.fromhex(vector["server_key"])), policy_of(vector, b"").members
        self.inner = open_server(self.params, members, ids, key, read_public_context(public_context))
        self.proposal = next(iter(self.inner.request("join").values())) if uploads else b""

    def open(self, context: Any) -> bytes:
        sent = self.inner.request(UPLOAD, decode(Context, primitives.encode(context), MisuseError))
        return next(iter(sent.values()))

    def receive(self, sender: bytes, data: bytes) -> None:
        self.inner.receive(sender, data)

    def request(self) -> bytes:
        (found,) = self.inner.request(OPEN).values()
        return found

    @property
    def total(self) -> Server:
        return self

    @property
    def vector(self) -> list[int]:
        return self.inner.finish().total.tolist()


class Client:
    """The package's client without masks."""

    def __init__(self, vector: dict[str, Any], number: int, public_context: bytes) -> None:
        me, context = vector["clients"][number], read_public_context(public_context)
        policy = policy_of(vector, ours.public_context_hash(context))
        key = SigningKey(bytes.fromhex(me["signing_key"]))
        entropy = sessions.entropy(me["entropy"])
        self.me = Participant(key, bytes.fromhex(me["certificate"]), policy, entropy, context)

    def join(self, proposal: bytes) -> None:
        self.inner, self.params = open_client(proposal, self.me)

    def upload(self, vector: list[int], context: bytes) -> bytes:
        self.inner.begin_upload(context, None)
        return self.inner.upload(as_integers(vector, self.params))


class Person(Client):
    """The package's client with masks, for `sessions.drive`."""

    def __init__(self, vector: dict[str, Any], number: int, parent: Any) -> None:
        super().__init__(vector, number, play.context_bytes(vector["public_context_of"]))
        self.integers = [int(entry) for entry in vector["clients"][number]["vector"]]

    def advertise(self, proposal: bytes) -> bytes:
        self.join(proposal)
        return self.inner.answer("advertise", proposal)

    def share(self, roster: bytes) -> bytes:
        return self.inner.answer("share", roster)

    def hold(self, relay: bytes) -> None:
        self.inner.answer("hold", relay)

    def upload(self, context: bytes) -> bytes:
        return super().upload(self.integers, context)

    def attest(self, view: bytes, context: bytes | None) -> bytes:
        if context is not None:
            self.inner.begin_upload(context, None)
        return self.inner.answer("attest", view)

    def reveal(self, request: bytes) -> bytes:
        return self.inner.answer("reveal", request)

    def ends_as(self) -> Any:
        return self.inner.view


class Sum:
    """A sum of the package in the reference's terms: residues of the plain modulus."""

    def __init__(self, found: Any, params: SessionParams) -> None:
        self.total = [(int(e) - (int(e) >> 55 << 56)) % params.modulus for e in found.total]  # widths of 7 bytes
        self.survivors, self.blame, self.opening = found.survivors, found.blame, b""


class Host(Server):
    """The package's server with masks, for `sessions.drive`."""

    def __init__(self, vector: dict[str, Any], authority: Any) -> None:
        super().__init__(vector, play.context_bytes(vector["public_context_of"]), uploads=False)
        self.authority, self.session, self.phases = (
            authority,
            self.inner.session,
            iter(("share", "hold", "attest", "reveal")),
        )

    def propose(self) -> bytes:
        return next(iter(self.inner.request("advertise").values()))

    def close(self) -> Any:
        return self.inner.request(next(self.phases))

    def open(self, context: bytes) -> bytes:
        return super().open(primitives.decode(primitives.Context, context, MisuseError))

    def finish(self) -> Sum:
        self.asked = self.request()
        self.opened = self.authority.open_total(self.asked)
        self.receive(primitives.identity_of(cases.authority_key("masked")), self.opened)
        return Sum(self.inner.finish(), self.params)


class OurParties(play.Parties):
    """The package behind the operations of the vectors."""

    def read_context(self, data: bytes) -> Any:
        return read_public_context(data)

    def join(self, proposal: bytes, vector: dict[str, Any], pinned: bytes, public_context: bytes) -> Any:
        key = SigningKey(bytes.fromhex(vector["clients"][0]["signing_key"]))
        context = read_public_context(public_context)
        return open_client(proposal, Participant(key, b"", policy_of(vector, pinned), sessions.entropy("x"), context))

    def client(self, vector: dict[str, Any], number: int, public_context: bytes) -> Any:
        return Client(vector, number, public_context)

    def server(self, vector: dict[str, Any], public_context: bytes) -> Any:
        return Server(vector, public_context)

    def person(self, vector: dict[str, Any], number: int, parent: Any) -> Any:
        return Person(vector, number, parent)

    def host(self, vector: dict[str, Any], authority: Any) -> Any:
        return Host(vector, authority)

    def authority(self, vector: dict[str, Any], policy: dict[str, Any]) -> Any:
        of = vector["public_context_of"]
        servers = frozenset(bytes.fromhex(server) for server in policy.get("servers", vector["policy"]["servers"]))
        limit = policy.get("corrupt", 0), policy.get("min_survivors", 3)
        rules = AuthorityPolicy(policy_of(vector, b"").members, servers, *limit)
        return KeyAuthority(SigningKey(cases.authority_key(of)), self.secrets(of), rules)

    def secrets(self, name: str) -> SecretKeys:
        return secrets_of(name)


class WithoutSeal(OurParties):
    """For requests that are refused before anything is decrypted."""

    def secrets(self, name: str) -> SecretKeys:
        return SecretKeys(read_public_context(play.context_bytes(name)), [])


OURS = OurParties()


class Mixed(play.Parties):
    """Some roles of the package, the others of the reference."""

    def __init__(self, *roles: str) -> None:
        for role in roles:
            setattr(self, role, getattr(OURS, role))
