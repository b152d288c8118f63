"""Masks inside the encryption: what the attacks on encrypted sums, and those on masks, get of `bfv-masked/v1`.

The server is given what the unmasked modes cannot keep from it: the opening of any one ciphertext, and then the
authority's key. What it reads with either is a masked vector, and nobody takes the masks off for it.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

from fedopal_secure.core.params import BFV, BFV_MASKED
from fedopal_secure.core.ring import U64
from fedopal_secure.he.packing import to_ring
from tests.attacks.catalogue import Attack, Outcome, suite
from tests.attacks.encrypted_sessions import (
    WIDE,
    CheatingServer,
    MaskedServer,
    is_key,
    played,
    session,
    stolen_key,
    under,
)
from tests.attacks.test_01_reveal_requests import both_lists
from tests.attacks.test_02_split_views import majority, who_signed
from tests.attacks.test_04_late_upload import GOAL, KNOWN_TO_ALL, SELF_MASK, USELESS, declared_dropped
from tests.he.harness import secrets_of

pytest.importorskip("tenseal", reason="missing tool: TenSEAL, of the extra `he`")


@pytest.fixture(autouse=True, scope="module")
def known_answers() -> None:
    """Keys are made, and known answers checked, before anything is taken away."""
    secrets_of("masked")


# One client's ciphertext as the total, or the key: see `test_14_encryption.py`.

LEVEL = 1e-6  # how often a test of uniformity may say no to numbers that are uniform


def is_uniform(entries: U64, modulus: int) -> bool:
    """Whether residues look uniform, by their leading 6 bits."""
    counts = np.bincount((entries.astype(np.float64) / modulus * 64).astype(np.int64), minlength=64)
    return bool(stats.chisquare(counts).pvalue > LEVEL)


def one_of_masked() -> Outcome:
    server = MaskedServer(session("masked", parts=WIDE)).run().requesting()
    found = server.open(server.total([server.victim]))
    return server.outcome(found, judged_uniform(found, server.params.modulus))


def judged_uniform(found: U64, modulus: int) -> str:
    return f"what opens is {'uniform modulo t' if is_uniform(found, modulus) else 'not uniform'}"


def test_what_opens_of_masked_uploads_is_as_likely_for_any_vector() -> None:
    """It is the vector plus numbers that do not depend on it, are uniform, and are others in every session.

    So whatever opens, every vector is as likely: each goes with one mask. (Equal masks for two vectors are had by equal
    entropy, here only.)
    """
    masks = []
    for name in ("Monday", "Tuesday", "Wednesday"):
        for limit in (1, 2**36):
            setting = dataclasses.replace(session("masked", name, WIDE), limit=limit)
            server = MaskedServer(setting).run().requesting()
            t, opened = server.params.modulus, server.open(server.total([server.victim]))
            vector = to_ring(setting.vectors()[server.victim], t)
            masks.append((opened + np.uint64(t) - vector) % np.uint64(t))
            assert is_uniform(opened, t)
            assert not is_uniform(vector, t)  # it can say no
    assert all(np.array_equal(one, other) for one, other in zip(masks[::2], masks[1::2], strict=True))
    assert all(is_uniform(mask, t) for mask in masks)
    for one, other in itertools.combinations(masks[::2], 2):
        assert is_uniform((one + np.uint64(t) - other) % np.uint64(t), t)


def key_of_masked() -> Outcome:
    """The same in a masked session, and then the victim's upload is decrypted with the key."""
    key = stolen_key("masked")
    if not is_key(key):
        raise RuntimeError("no key came out")
    server = MaskedServer(session("masked", parts=WIDE)).run().requesting()
    found = server.read(key, server.victim)
    return server.outcome(found, f"the key comes out, and {judged_uniform(found, server.params.modulus)}")


def key_of_masked_against_unmasked() -> Outcome:
    """Clients that accept both protocols pin the context of masked sessions, and are asked for unmasked uploads."""
    setting = under(session("bfv"), secrets_of("masked").context)
    both = dataclasses.replace(setting.federation.policy, protocols=frozenset({BFV, BFV_MASKED}))
    federation = dataclasses.replace(setting.federation, policy=both)
    server = CheatingServer(dataclasses.replace(setting, federation=federation)).collect()
    return server.outcome(server.read(stolen_key("masked"), server.victim))


# What stops a cheating server in secagg/v1 stops it inside the encryption, also if it has the authority's key.


def masked(clients: int = 6, corrupt: int = 1, colluding: int = 0) -> MaskedServer:
    setting = session("masked", clients=clients, corrupt=corrupt)
    return MaskedServer(setting, corrupt=setting.federation.ids[clients - colluding :])


def victim_in_both_lists() -> Outcome:
    server = masked().run("attest")
    both_lists(server, server.ids[0])
    return server.outcome(server.ids[0])


def a_view_for_each() -> Outcome:
    """In each view some clients less than there were: see `test_02_split_views.py`."""
    server = masked(9, 4, colluding=4).run("upload")
    victim = server.honest[0]
    views = server.own_views(victim)
    for client, view in views.items():
        server.attest([client], view)
    for client, view in views.items():
        server.reveal([client], server.request(view, attestations=who_signed(server, view, client)))
    return server.outcome(victim)


def late_upload() -> Outcome:
    server = masked()
    declared_dropped(server, server.ids[:1], late=True)
    return server.outcome(server.ids[0])


MASKS, UNIFORM = "core.masks.apply_stream", "uniform modulo t"

test_defended, test_control = suite(
    Attack(14, "one client's ciphertext as the total, with masks inside", GOAL, played(one_of_masked), MASKS, UNIFORM),
    Attack(14, "the key as the total, with masks inside", GOAL, played(key_of_masked), MASKS, UNIFORM),
    Attack(
        14,
        "unmasked uploads under the context of masked ones, whose key the server has",
        GOAL,
        played(key_of_masked_against_unmasked),
        "federation.encrypted_sum.check_session",
        "is for 'bfv-masked/v1'",
    ),
    Attack(
        14,
        "the victim in both lists, with masks inside",
        GOAL,
        victim_in_both_lists,
        "core.checks.lists_are_the_views",
        "the lists are not exactly",
    ),
    Attack(
        14,
        "every client is shown a view of its own, with masks inside",
        GOAL,
        a_view_for_each,
        "core.checks.quorum",
        "signatures are no quorum of 9 members with c = 4",
        majority,
    ),
    Attack(
        14,
        "an upload arrives after its masking key was rebuilt, with masks inside",
        GOAL,
        late_upload,
        SELF_MASK,
        USELESS,
        KNOWN_TO_ALL,
    ),
)
