"""he/v1 in plain Python: what a session is, and its three parties, to be read beside spec.md.

The upper layer of the reference: ring.py, scheme.py, messages.py and packing.py are below it, masked.py is beside it.
Sections (§) are those of spec.md, and an error's `reason` is a name from its tables. Nothing here imports the package
that it specifies, or SEAL.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from protocols.he.v1 import messages as m
from protocols.he.v1 import scheme
from protocols.he.v1.messages import (
    EncryptedUpload,
    OpenedTotal,
    OpenRequest,
    SignedUpload,
    context_hash,
    decode,
    digest,
    is_signed,
    sign,
)
from protocols.he.v1.packing import add_payloads, ciphertexts_of, encrypt, from_payload, from_slots, slots_of
from protocols.he.v1.scheme import Entropy, Pair
from protocols.secagg.v1 import primitives, reference
from protocols.secagg.v1.primitives import (
    ClientFault,
    Context,
    Failure,
    Header,
    PolicyRefusal,
    Proposal,
    ServerFault,
    SessionAborted,
    ascending,
    encode,
    from_wire,
    identity_of,
    require,
    to_wire,
)
from protocols.secagg.v1.reference import session_id

BFV_MASKED = "bfv-masked/v1"
NO_HASH = bytes(32)

# Sessions, §8.


def session_rules(params: Any) -> Iterator[tuple[str, bool]]:
    """The rules of secagg/v1 §8.1 with the changes of §8.1."""
    protocol, masked = params.protocol, params.protocol == BFV_MASKED
    yield "protocol", protocol in m.SCHEMES
    for rule, holds in reference.rules(params._replace(protocol="secagg/v1", public_context=b"")):
        yield rule, holds if rule != "degree" or masked else params.degree == 0
        if rule == "modulus":
            yield "modulus", (params.modulus > 0) == masked
        if rule == "public_context":
            yield "public_context", len(params.public_context) == 32
        if rule == "min_contributors":
            yield "min_contributors", params.task.min_contributors == 0


def context_rules(params: Any, context: Any) -> Iterator[tuple[str, bool]]:
    """Whether a session is one of a public context, and its sums decrypt exactly, §8.2."""
    p = context.parameters
    yield "public_context", params.public_context == context_hash(context)
    yield "protocol", params.protocol == context.protocol
    yield "modulus", params.modulus == (p.plain_moduli[0] if params.protocol == BFV_MASKED else 0)
    digits = sum(slots_of(p, params))  # refuses entries that do not fit, by `segments`
    yield "clients", p.scheme == "bfv" or m.error_bound(p, params.clients, digits) < 0.5


def client_rules(policy: Any, pinned: bytes, params: Any) -> Iterator[tuple[str, bool]]:
    """The rules of secagg/v1 §8.2 with the changes of §8.3; `pinned` is the hash that the policy pins."""
    yield "protocols", params.protocol in policy.protocols
    yield from session_rules(params)
    own = itertools.dropwhile(lambda pair: pair[0] != "servers", reference.policy_rules(policy, params))
    for rule, holds in own:
        yield rule, holds
        if rule == "release":
            yield "public_context", params.public_context == pinned


def join(proposal: bytes, policy: Any, pinned: bytes, context: Any) -> Any:
    """What a client checks before it takes part, §8.3; the parameters, if nothing is wrong."""
    told = decode(Proposal, proposal, ServerFault)
    params = told.params
    require(is_proposed(told), ServerFault, "proposal.signature")
    reference.check(client_rules(policy, pinned, params))
    reference.check(context_rules(params, context))
    return params


def is_proposed(proposal: Any) -> bool:
    """Whether the server that the parameters name signed them, secagg/v1 §4.2."""
    unsigned = encode(proposal._replace(signature=bytes(64)))
    return primitives.verify(proposal.params.server, "sign proposal", unsigned, proposal.signature)


class Client:
    """A client of bfv/v1 or ckks/v1: one message, §9.1."""

    def __init__(
        self, signing_key: bytes, policy: Any, context: Any, entropy: Entropy, certificate: bytes = b""
    ) -> None:
        self.key, self.policy, self.context = signing_key, policy, context
        self.entropy, self.certificate = entropy, certificate

    def join(self, proposal: bytes) -> None:
        """Check what is proposed; nothing is sent."""
        self.params = join(proposal, self.policy, context_hash(self.context), self.context)

    def upload(self, vector: Sequence[int], context_bytes: bytes) -> bytes:
        """§9.1."""
        session, told = session_id(self.params), decode(Context, context_bytes, ServerFault)
        require((told.session, told.parent) == (session, self.params.parent), ServerFault, "context.session")
        payload = encrypt(vector, self.params, self.context, self.entropy)
        hashes = NO_HASH, NO_HASH, primitives.digest("context", context_bytes), primitives.digest("payload", payload)
        header = primitives.sign(self.key, Header, session, identity_of(self.key), *hashes)
        return encode(EncryptedUpload(SignedUpload(header, self.certificate), payload))


class Total:
    """The server's side of the one request to the authority, §9.3."""

    def __init__(self, proposal: Any, context: Any) -> None:
        self.proposal, self.context, self.asked, self.vector = proposal, context, b"", None
        self.payloads: list[bytes] = []

    def request(self, uploads: Sequence[Any]) -> bytes:
        """What the authority is sent."""
        total = add_payloads(self.payloads, self.context.parameters, self.proposal.params)
        self.asked = digest("total", total)
        return encode(OpenRequest(self.proposal, tuple(uploads), total))

    def receive(self, sender: bytes, data: bytes) -> None:
        """What it answers, §9.5."""

        def fault(reason: str) -> Failure:
            return ClientFault(reason, sender)

        params, opened = self.proposal.params, decode(OpenedTotal, data, fault)
        told = sender, opened.authority, opened.session, opened.total
        authority = self.context.authority
        asked = authority, authority, session_id(params), self.asked
        require(told == asked and self.vector is None, fault, "opened.binding")
        require(is_signed(opened), fault, "opened.signature")
        require(len(opened.vector) == sum(s.length * s.width for s in params.segments), fault, "opened.length")
        vector = from_wire(opened.vector, params)
        require(max(vector) < (params.modulus or 2**64), fault, "opened.residue")
        self.vector = vector


class Server:
    """The server of bfv/v1 or ckks/v1, §9.2 and §9.3."""

    def __init__(self, signing_key: bytes, policy: Any, params: Any, context: Any) -> None:
        reference.check(session_rules(params))
        reference.check(context_rules(params, context))
        self.policy, self.params, self.session = policy, params, session_id(params)
        proposal = primitives.sign(signing_key, Proposal, params)
        self.proposal, self.total = encode(proposal), Total(proposal, context)
        self.uploads: dict[bytes, Any] = {}

    def open(self, context: Any) -> bytes:
        """Begin the uploads."""
        self.context_hash = primitives.digest("context", encode(context))
        return encode(context)

    def receive(self, sender: bytes, data: bytes) -> None:
        """One upload, §9.2; a refused one changes nothing."""

        def fault(reason: str) -> Failure:
            return ClientFault(reason, sender)

        upload = decode(EncryptedUpload, data, fault)
        header = upload.signed.header
        bound = header.sender, header.session, header.roster, header.sharers, header.context
        require(bound == (sender, self.session, NO_HASH, NO_HASH, self.context_hash), fault, "upload.binding")
        require(sender not in self.uploads, fault, "upload.twice")
        require(len(self.uploads) < self.params.clients, fault, "upload.full")
        require(self.policy.admits(sender, upload.signed.certificate), fault, "upload.member")
        signed = primitives.is_signed(header) and primitives.digest("payload", upload.payload) == header.payload_hash
        require(signed, fault, "upload.signature")
        from_payload(upload.payload, self.total.context.parameters, self.params, fault, "upload")
        self.uploads[sender] = upload.signed
        self.total.payloads.append(upload.payload)

    def request(self) -> bytes:
        """What goes to the authority, §9.3."""
        require(len(self.uploads) >= self.params.min_survivors, SessionAborted, "min_survivors")
        return self.total.request([self.uploads[i] for i in sorted(self.uploads)])


# The key authority, §10.


class AuthorityPolicy(NamedTuple):
    """Whose sessions an authority opens, §10.1; `clients` is a policy of secagg/v1, for its membership."""

    clients: Any
    servers: Sequence[bytes]
    corrupt: int
    min_survivors: int


class Authority:
    """A key authority, §10."""

    def __init__(self, signing_key: bytes, policy: AuthorityPolicy, context: Any, secrets: Sequence[Any]) -> None:
        self.key, self.policy, self.context, self.secrets = signing_key, policy, context, secrets
        self.opened: set[bytes] = set()
        self.farthest = Fraction(0)

    def open_total(self, request_bytes: bytes) -> bytes:
        """§10.2; a refusal before `one total` leaves the session open, one after it does not."""
        request = decode(OpenRequest, request_bytes, ServerFault)
        require(is_proposed(request.proposal), ServerFault, "proposal.signature")
        params = request.proposal.params
        session, p = session_id(params), self.context.parameters
        reference.check(session_rules(params))
        reference.check(context_rules(params, self.context))
        require(params.server in self.policy.servers, PolicyRefusal, "servers")
        require(params.corrupt >= self.policy.corrupt, PolicyRefusal, "corrupt")
        self.check_uploads(params, session, request.uploads)
        total = from_payload(request.total, p, params, ServerFault, "total")
        require(session not in self.opened, PolicyRefusal, "one total")
        self.opened.add(session)
        vector = from_slots(self.decrypt(params, total), p, params)
        fields = session, self.context.authority, digest("total", request.total), to_wire(vector, params)
        return encode(sign(self.key, OpenedTotal, *fields))

    def check_uploads(self, params: Any, session: bytes, uploads: Sequence[Any]) -> None:
        """Enough signed uploads of members, §10.2."""
        headers = [upload.header for upload in uploads]
        require(ascending([h.sender for h in headers]), ServerFault, "uploads.order")
        least = max(3, params.corrupt + 2, params.min_survivors, self.policy.min_survivors)
        require(least <= len(headers) <= params.clients, PolicyRefusal, "min_survivors")
        require(all(h.session == session for h in headers), ServerFault, "uploads.session")
        bound = {(h.roster, h.sharers, h.context) for h in headers}
        require(len(bound) == 1, ServerFault, "uploads.binding")
        for upload in uploads:
            admitted = self.policy.clients.admits(upload.header.sender, upload.certificate)
            require(admitted, PolicyRefusal, "members")
            require(primitives.is_signed(upload.header), ServerFault, "uploads.signature")

    def decrypt(self, params: Any, total: Sequence[Pair]) -> list[list[int]]:
        """The integers under each key, §5.5 and §5.6."""
        p, found, at = self.context.parameters, [], 0
        self.farthest = Fraction(0)
        for place, count in enumerate(ciphertexts_of(p, params)):
            part: list[int] = []
            for ciphertext in total[at : at + count]:
                if p.scheme == "bfv":
                    t = p.plain_moduli[place]
                    opened, noise = scheme.decrypt_bfv(p, t, self.secrets[place], ciphertext)
                    budget = m.q_of(p).bit_length() - noise.bit_length() - 1
                    require(budget >= m.least_budget(p, t, params.clients), ServerFault, "total.noise")
                else:
                    scale = m.scale_bits(p, params.clients)
                    opened, farthest = scheme.decrypt_ckks(p, scale, self.secrets[place], ciphertext)
                    self.farthest = max(self.farthest, farthest)
                part += opened
            found.append(part)
            at += count
        bound = m.error_bound(p, params.clients, sum(slots_of(p, params))) if p.scheme == "ckks" else 0
        require(self.farthest <= bound, ServerFault, "total.noise")
        return found
