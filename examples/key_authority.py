"""A key authority, a server and five hospitals, who only exchange files: one message from each, one total opened.

Run it as it stands: python examples/key_authority.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from fedopal_secure.core.errors import PolicyRefusal
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import BFV, Segment, SessionParams, Task
from fedopal_secure.core.policy import Membership, Policy
from fedopal_secure.encoding.vector import unpack
from fedopal_secure.federation.protocols import open_client, open_server
from fedopal_secure.federation.secure_sum import OPEN, UPLOAD, Participant
from fedopal_secure.federation.stored_authority import PUBLIC, StoredAuthority, create_authority, load_public_context
from fedopal_secure.he.authority import AuthorityPolicy
from fedopal_secure.he.messages import public_context_hash

CLASSES = ("healthy", "ill")
TASK = Task(
    "embedded", bytes(32), "grey", "cls", 8, 1.0, 12, True, CLASSES, "none", 0, 0, 1.0, 24, b"", "", 1000, "", 0
)


def main() -> None:
    """Every party's steps in the order in which they happen."""
    shared = Path(tempfile.mkdtemp())
    authority_key, server_key = SigningKey(os.urandom(32)), SigningKey(os.urandom(32))
    hospitals = [SigningKey(os.urandom(32)) for _ in range(5)]
    members = Membership(frozenset(key.identity for key in hospitals))

    # The key authority, on a machine of its own (`fedopal-secure he keygen`): it publishes one file and its hash.
    create_authority(shared / "authority", BFV, authority_key)
    published = shared / "authority" / PUBLIC
    pinned = public_context_hash(load_public_context(published))

    # The server proposes a sum of five vectors: 10,000 signed entries of 5 bytes.
    segments = (Segment("x", 10_000, 5, True),)
    params = SessionParams(
        BFV, "statistics", os.urandom(32), server_key.identity, b"", 5, 1, 0, 3, 0, pinned, segments, TASK
    )
    invited = tuple(key.identity for key in hospitals)
    server = open_server(params, members, invited, server_key, load_public_context(published))
    proposals = server.request("join")
    contexts = server.request(UPLOAD, Context(server.session, b"", b"", (), b""))

    # Four hospitals answer, once each. The fifth never does, and nothing has to be done about it.
    rng, expected = np.random.default_rng(0), np.zeros(10_000, np.int64)
    for key in hospitals[:4]:
        policy = Policy(
            members,
            frozenset({server_key.identity}),
            TASK.backbone,
            TASK.backbone_hash,
            TASK.preprocessing,
            CLASSES,
            corrupt=1,
            max_images=1000,
            protocols=frozenset({BFV}),
            public_context=pinned,
        )
        participant = Participant(key, b"", policy, os.urandom, load_public_context(published))
        client, _ = open_client(proposals[key.identity], participant)
        client.begin_upload(contexts[key.identity], None)
        vector = rng.integers(-1000, 1000, 10_000)
        upload = client.upload(vector.view(np.uint64))
        server.receive(key.identity, upload)
        expected += vector
    print(f"four uploads of {len(upload):,} bytes each; the server holds their sum, encrypted")

    # The authority opens the total (`fedopal-secure he decrypt`), and no other of this session.
    ((identity, request),) = server.request(OPEN).items()
    rules = AuthorityPolicy(members, frozenset({server_key.identity}), corrupt=1)
    server.receive(identity, StoredAuthority(shared / "authority", authority_key, rules).open_total(request))
    total = unpack(segments, server.finish().total)["x"]
    print("the opened total is the sum:", np.array_equal(total, expected))
    try:
        StoredAuthority(shared / "authority", authority_key, rules).open_total(request)
    except PolicyRefusal as refusal:
        print("asked again:", refusal)


if __name__ == "__main__":
    main()
