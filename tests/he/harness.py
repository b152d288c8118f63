"""Encrypted sessions over bytes: a federation, its key authority, and who uploads what."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import BFV, BFV_MASKED, CKKS, Segment
from fedopal_secure.core.ring import U64, reduce_to_width
from fedopal_secure.core.server import Sum
from fedopal_secure.federation.protocols import open_client, open_server
from fedopal_secure.federation.secure_sum import OPEN, PHASES, UPLOAD, Participant, SumClient, SumServer
from fedopal_secure.he.authority import AuthorityPolicy, KeyAuthority, SecretKeys, generate
from fedopal_secure.he.messages import PublicContext, public_context_hash
from tests.core.harness import Federation, make, seed

PROTOCOLS = {"bfv": BFV, "masked": BFV_MASKED, "ckks": CKKS}
KINDS = {protocol: kind for kind, protocol in PROTOCOLS.items()}
PARTS = (Segment("x", 4100, 5, True), Segment("n", 3, 6, False))
AUTHORITY = SigningKey(seed("key authority"))


@lru_cache
def secrets_of(kind: str, number: int = 0) -> SecretKeys:
    """Keys for 'bfv', 'masked' or 'ckks'; each number has its own."""
    return generate(PROTOCOLS[kind], AUTHORITY)


@dataclass(frozen=True)
class Encrypted:
    """Parameters, policies and keys of one encrypted session that fit each other."""

    federation: Federation
    secrets: SecretKeys

    @property
    def authority_policy(self) -> AuthorityPolicy:
        return AuthorityPolicy(self.federation.members, frozenset({self.federation.host.identity}))

    def authority(self) -> KeyAuthority:
        return KeyAuthority(AUTHORITY, self.secrets, self.authority_policy)

    def participant(self, key: SigningKey) -> Participant:
        entropy = self.federation.entropy("client", key.identity)
        return Participant(key, b"", self.federation.policy, entropy, self.secrets.context)

    def vectors(self) -> dict[bytes, U64]:
        """Vectors whose sum keeps to the widths."""
        drawn = {}
        for identity in self.federation.ids:
            rng = np.random.default_rng(list(identity))
            parts = [
                rng.integers(-limit if segment.signed else 0, limit, segment.length)
                for segment in self.federation.params.segments
                for limit in (2**36,)
            ]
            drawn[identity] = np.concatenate(parts).view(np.uint64)
        return drawn

    def expected(self, uploaded: Collection[bytes]) -> U64:
        vectors = self.vectors()
        total = np.sum([vectors[identity] for identity in uploaded], axis=0, dtype=np.uint64)
        return reduce_to_width(total, self.federation.params.segments)


def encrypted(kind: str, clients: int = 4, corrupt: int = 0, parts: Any = PARTS, **changes: Any) -> Encrypted:
    """A session of protocol `kind`: 'bfv', 'masked' or 'ckks'; `changes` go into the parameters."""
    protocol = PROTOCOLS[kind]
    secrets = secrets_of(kind)
    modulus = secrets.context.parameters.plain_moduli[0] if kind == "masked" else 0
    pinned = public_context_hash(secrets.context)
    federation = make(
        clients, corrupt, modulus=modulus, parts=parts, protocols=frozenset({protocol}), public_context=pinned
    )
    params = replace(federation.params, protocol=protocol, public_context=pinned)
    return Encrypted(dataclasses.replace(federation, params=replace(params, **changes)), secrets)


def with_context(setting: Encrypted, context: PublicContext) -> Encrypted:
    """The same session under a context whose secret keys are somebody else's."""
    pinned = public_context_hash(context)
    params = replace(setting.federation.params, public_context=pinned)
    policy = dataclasses.replace(setting.federation.policy, public_context=pinned)
    federation = dataclasses.replace(setting.federation, params=params, policy=policy)
    return Encrypted(federation, SecretKeys(context, ()))


class Session:
    """A server and its clients; `to_open` goes up to the request for the authority."""

    def __init__(self, setting: Encrypted) -> None:
        federation = setting.federation
        self.setting, self.params = setting, federation.params
        self.server: SumServer = open_server(
            self.params, federation.members, federation.ids, federation.host, setting.secrets.context
        )
        self.phases = PHASES[self.params.protocol]
        self.clients: dict[bytes, SumClient] = {}

    def to_open(self, uploading: Collection[bytes]) -> bytes:
        """Run all phases before the last with these clients uploading; the request for the authority."""
        keys = {key.identity: key for key in self.setting.federation.keys}
        vectors = self.setting.vectors()
        for phase in self.phases[:-1]:
            context = Context(self.server.session, b"", b"", (), b"") if phase == UPLOAD else None
            for identity, request in self.server.request(phase, context).items():
                if identity not in self.clients:
                    self.clients[identity], _ = open_client(request, self.setting.participant(keys[identity]))
                client, answer = self.clients[identity], b""
                if phase != UPLOAD:
                    answer = client.answer(phase, request)
                elif identity in uploading:
                    client.begin_upload(request, None)
                    answer = client.upload(vectors[identity])
                elif self.params.protocol == BFV_MASKED:
                    client.begin_upload(request, None)  # too slow to upload, and still there
                if answer:
                    self.server.receive(identity, answer)
        ((_, request),) = self.server.request(OPEN).items()
        return request

    def finish(self, opened: bytes) -> Sum:
        self.server.receive(AUTHORITY.identity, opened)
        return self.server.finish()
