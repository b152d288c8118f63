"""bfv-masked/v1: secagg/v1 modulo the first plain modulus, with masked vectors encrypted on their way, §9.4.

All that is not here is the reference of secagg/v1. Sections (§) are those of spec.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocols.he.v1.messages import SignedUpload, context_hash
from protocols.he.v1.packing import encrypt, from_payload
from protocols.he.v1.reference import Total, context_rules, join, session_rules
from protocols.secagg.v1 import reference
from protocols.secagg.v1.primitives import (
    Advert,
    Entropy,
    Header,
    MisuseError,
    Proposal,
    SessionAborted,
    Upload,
    decode,
    digest,
    encode,
    from_wire,
    is_signed,
    public,
    require,
    sign,
    to_wire,
)
from protocols.secagg.v1.reference import Sum, session_id, step


class Client(reference.Client):
    """A client of secagg/v1 that encrypts its masked vector."""

    def __init__(
        self, signing_key: bytes, policy: Any, context: Any, entropy: Entropy, certificate: bytes = b""
    ) -> None:
        super().__init__(signing_key, policy, entropy, certificate)
        self.public_context = context

    @step
    def advertise(self, proposal_bytes: bytes) -> bytes:
        """secagg/v1 §9.1, under the rules of §8."""
        self.params = join(proposal_bytes, self.policy, context_hash(self.public_context), self.public_context)
        self.session = session_id(self.params)
        self.mask_secret, self.seal_secret, self.seed = (self.entropy(32) for _ in range(3))
        keys = public(self.mask_secret), public(self.seal_secret)
        self.advert = sign(self.key, Advert, self.session, self.identity, *keys, self.certificate)
        return encode(self.advert)

    @step
    def upload(self, vector: Sequence[int], context_bytes: bytes, parent: Any) -> bytes:
        """secagg/v1 §9.4 with an encrypted payload; the entropy of encryption comes last."""
        sent = reference.Client.upload.__wrapped__(self, vector, context_bytes, parent)  # type: ignore[attr-defined]
        masked = decode(Upload, sent, MisuseError)
        payload = encrypt(from_wire(masked.payload, self.params), self.params, self.public_context, self.entropy)
        self.header = sign(self.key, Header, *masked.header[:5], digest("payload", payload))
        return encode(Upload(self.header, payload))


class Server(reference.Server):
    """The server of secagg/v1, which has the sum of masked vectors opened."""

    def __init__(self, signing_key: bytes, policy: Any, params: Any, context: Any) -> None:
        reference.check(session_rules(params))
        reference.check(context_rules(params, context))
        super().__init__(signing_key, policy, params._replace(protocol="secagg/v1", public_context=b""))
        self.params, self.session = params, session_id(params)
        self.total = Total(sign(signing_key, Proposal, params), context)

    def receive_upload(self, sender: bytes, data: bytes, fault: Any) -> None:
        """secagg/v1 §10.3; the last two checks are of ciphertexts."""
        u, p = decode(Upload, data, fault), self.params
        h = u.header
        require(h.sender == sender, fault, "upload.sender")
        require(sender in self.shares, fault, "upload.sharer")
        require(sender not in self.headers, fault, "upload.twice")
        require(not p.parent or sender in self.context.parent_survivors, fault, "upload.parent")
        require((h.session, h.roster, h.sharers, h.context) == self.binding, fault, "upload.binding")
        require(is_signed(h), fault, "upload.signature")
        require(digest("payload", u.payload) == h.payload_hash, fault, "upload.payload")
        from_payload(u.payload, self.total.context.parameters, p, fault, "upload")
        self.headers[sender] = h
        self.total.payloads.append(u.payload)

    def request(self) -> bytes:
        """What goes to the authority once clients have revealed, §9.3."""
        require(self.phase == "reveal", MisuseError, "order")
        return self.total.request([SignedUpload(self.headers[i], self.adverts[i].certificate) for i in self.survivors])

    def receive_opened(self, sender: bytes, data: bytes) -> None:
        """What it answers, §9.5."""
        self.total.receive(sender, data)

    def finish(self) -> Sum:
        """secagg/v1 §11, with the opened total in the place of the sum of masked vectors."""
        require(self.total.vector is not None, SessionAborted, "open")
        zero = to_wire([0] * sum(s.length for s in self.params.segments), self.params)
        self.payloads = dict.fromkeys(self.survivors, zero)
        self.payloads[self.survivors[0]] = to_wire(self.total.vector or (), self.params)
        return super().finish()
