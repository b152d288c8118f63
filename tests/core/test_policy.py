"""What a client refuses before it sends anything: each rule by its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fedopal_secure.core import client, messages, server
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import MisuseError, PolicyRefusal, ServerFault
from fedopal_secure.core.graph import quorum, threshold
from fedopal_secure.core.identity import SigningKey, verify, verify_certificate
from fedopal_secure.core.params import Segment, SessionParams, check_params, least_cohort, session_id
from fedopal_secure.core.policy import Membership, check_proposal, cohort, roster_graph
from tests.core.harness import PRIMES, TASK, Federation, Member, Run, entropy, make, run, seed

PROMPTS = {"prompt_mode": "local", "prompt_tokens": 10, "prompt_dimension": 8, "prompt_source": bytes(32)}


OTHER_SERVER = SigningKey(seed("another server"))


def signed(federation: Federation, params: SessionParams) -> bytes:
    """A proposal of these parameters, signed by the server that they name."""
    host = OTHER_SERVER if params.server == OTHER_SERVER.identity else federation.host
    return encode(messages.sign(host, messages.Proposal(params)))


def propose(federation: Federation, params: SessionParams) -> tuple[client.Advertised, bytes]:
    return client.advertise(signed(federation, params), federation.policy, federation.keys[0], b"", entropy(b""))


def with_task(**task: Any) -> dict[str, Any]:
    return {"task": msgspec.structs.replace(TASK, **task)}


def one(**change: Any) -> dict[str, Any]:
    """One segment, changed."""
    return {"segments": (msgspec.structs.replace(Segment("x", 5, 3, True), **change),)}


def test_what_fits_is_accepted():
    federation = make()
    assert propose(federation, federation.params)[0].setup.session == session_id(federation.params)
    for changes in (with_task(**PROMPTS), {"modulus": 2**61 - 1, **one(width=8)}, {"parent": bytes(32)}):
        propose(federation, msgspec.structs.replace(federation.params, **changes))


# Rules that hold whatever the policy says.

BAD_PARAMS: list[tuple[str, dict[str, Any]]] = [
    ("name", {"name": ""}),
    ("parent", {"parent": bytes(31)}),
    ("parent", {"parent": bytes(33)}),
    ("clients", {"clients": 2, "min_survivors": 2}),
    ("clients", {"clients": 1, "corrupt": 0, "min_survivors": 1}),
    ("clients", {"clients": 0}),
    ("clients", {"clients": -5}),
    ("clients", {"clients": 2**14 + 1, "degree": 8}),
    ("clients", {"clients": 2**63}),
    ("degree", {"clients": 257}),
    ("degree", {"clients": 257, "degree": -1}),
    ("degree", {"clients": 257, "degree": 1025}),
    ("degree", {"clients": 2**14, "degree": 2**63}),
    ("degree", {"clients": 256, "degree": 8}),
    ("degree", {"degree": 1}),
    ("degree", {"degree": -1}),
    ("corrupt", {"corrupt": 4}),
    ("corrupt", {"corrupt": -1}),
    ("corrupt", {"corrupt": 2**64 - 1}),
    ("min_survivors", {"min_survivors": 0}),
    ("min_survivors", {"min_survivors": 1}),
    ("min_survivors", {"min_survivors": 2}),
    ("min_survivors", {"min_survivors": -3}),
    ("min_survivors", {"corrupt": 2, "min_survivors": 3}),
    ("min_survivors", {"corrupt": 3, "min_survivors": 4}),
    ("min_survivors", {"min_survivors": 5}),
    ("modulus", {"modulus": 1}),
    ("modulus", {"modulus": 2}),
    ("modulus", {"modulus": -7}),
    ("modulus", {"modulus": 2**50}),
    ("modulus", {"modulus": 561}),
    ("modulus", {"modulus": 3215031751}),
    ("modulus", {"modulus": 2**64 - 59}),
    ("public_context", {"public_context": bytes(31)}),
    ("public_context", {"public_context": bytes(32)}),
    ("segments", {"segments": ()}),
    ("segments", {"segments": (Segment("x", 5, 3, True), Segment("x", 5, 3, True))}),
    ("segments", one(length=0)),
    ("segments", one(length=-1)),
    ("segments", one(length=2**32 + 1)),
    ("segments", {"segments": (Segment("x", 2**32, 3, True), Segment("y", 1, 3, True))}),
    ("segments", one(width=0)),
    ("segments", one(width=-1)),
    ("segments", one(width=9)),
    ("segments", {"modulus": PRIMES[0]}),
    ("segments", {"modulus": PRIMES[0], **one(width=8)}),
    ("classes", with_task(classes=())),
    ("classes", with_task(classes=("cat",))),
    ("classes", with_task(classes=("cat", "cat"))),
    ("feature_dimension", with_task(feature_dimension=0)),
    ("feature_dimension", with_task(feature_dimension=-8)),
    ("feature_dimension", with_task(feature_dimension=2**16 + 1)),
    ("feature_bits", with_task(feature_bits=0)),
    ("feature_bits", with_task(feature_bits=25)),
    ("feature_bound", with_task(feature_bound=math.nan)),
    ("feature_bound", with_task(feature_bound=math.inf)),
    ("feature_bound", with_task(feature_bound=0.0)),
    ("feature_bound", with_task(feature_bound=-0.0)),
    ("feature_bound", with_task(feature_bound=-1.0)),
    ("max_images", with_task(max_images=0)),
    ("max_images", with_task(max_images=-1)),
    ("max_images", with_task(max_images=2**40 + 1)),
    ("feature_bits", with_task(feature_bits=1, feature_dimension=16)),
    ("min_contributors", with_task(min_contributors=-1)),
    ("min_contributors", with_task(min_contributors=5)),
    ("prompt_mode", with_task(prompt_mode="mean")),
    ("prompts", with_task(prompt_tokens=1)),
    ("prompts", with_task(prompt_source=bytes(32))),
    ("prompts", with_task(**PROMPTS | {"prompt_tokens": 0})),
    ("prompts", with_task(**PROMPTS | {"prompt_tokens": 2**12 + 1})),
    ("prompts", with_task(**PROMPTS | {"prompt_dimension": 0})),
    ("prompts", with_task(**PROMPTS | {"prompt_dimension": 2**16 + 1})),
    ("prompts", with_task(**PROMPTS | {"prompt_source": b""})),
    ("prompts", with_task(**PROMPTS | {"prompt_source": bytes(31)})),
    ("prompt_bits", with_task(**PROMPTS | {"prompt_bits": 0})),
    ("prompt_bits", with_task(**PROMPTS | {"prompt_bits": 33})),
    ("prompt_bound", with_task(**PROMPTS | {"prompt_bound": math.nan})),
    ("prompt_bound", with_task(**PROMPTS | {"prompt_bound": math.inf})),
    ("prompt_bound", with_task(**PROMPTS | {"prompt_bound": 0.0})),
]


@pytest.mark.parametrize(("rule", "changes"), BAD_PARAMS)
def test_unsound_parameters(rule, changes):
    """By the client, whose policy might even allow them, and by the server, before it proposes them."""
    federation = make()
    params = msgspec.structs.replace(federation.params, **changes)
    policy = replace(federation.policy, corrupt=-(2**70), min_survivors=-1, min_threshold=-1, max_images=2**70)
    with pytest.raises(PolicyRefusal) as caught:
        client.advertise(signed(federation, params), policy, federation.keys[0], b"", entropy(b""))
    assert caught.value.rule == rule
    assert rule in str(caught.value)
    with pytest.raises(PolicyRefusal) as caught:
        server.start(params, federation.members, federation.host)
    assert caught.value.rule == rule


def test_a_proposal_that_its_server_did_not_sign():
    """Neither a stranger nor a member can open a session in the server's name, nor alter one that it opened."""
    federation = make()
    honest = messages.sign(federation.host, messages.Proposal(federation.params))
    altered = msgspec.structs.replace(federation.params, nonce=bytes(32))
    renamed = msgspec.structs.replace(federation.params, server=OTHER_SERVER.identity)
    for proposal in (
        messages.Proposal(federation.params),
        messages.sign(OTHER_SERVER, messages.Proposal(federation.params)),
        messages.sign(federation.keys[1], messages.Proposal(federation.params)),
        messages.Proposal(altered, honest.signature),
        messages.Proposal(renamed, honest.signature),
        messages.sign(federation.host, messages.Proposal(renamed)),
    ):
        with pytest.raises(ServerFault, match="not signed by the server that it names"):
            client.advertise(encode(proposal), federation.policy, federation.keys[0], b"", entropy(b""))
    client.advertise(encode(honest), federation.policy, federation.keys[0], b"", entropy(b""))


def test_a_server_signs_with_the_key_that_the_parameters_name():
    federation = make()
    with pytest.raises(MisuseError, match="another server"):
        server.start(federation.params, federation.members, OTHER_SERVER)
    _, proposal = server.start(federation.params, federation.members, federation.host)
    assert proposal == signed(federation, federation.params)


@pytest.mark.parametrize("changes", [{"protocol": "secagg/v0"}, {"protocol": ""}])
def test_another_protocol(changes):
    params = msgspec.structs.replace(make().params, **changes)
    with pytest.raises(PolicyRefusal) as caught:
        propose(make(), params)
    assert caught.value.rule == "protocols"
    with pytest.raises(PolicyRefusal) as caught:
        check_params(params)
    assert caught.value.rule == "protocol"


def test_a_protocol_that_the_policy_allows_must_be_the_one_spoken():
    params = msgspec.structs.replace(make().params, protocol="secagg/v0")
    policy = replace(make().policy, protocols=frozenset({"secagg/v0"}))
    with pytest.raises(PolicyRefusal) as caught:
        check_proposal(policy, params)
    assert caught.value.rule == "protocol"
    check_proposal(policy, params, "secagg/v0")


# Rules of the policy.

BREACHES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("protocols", {"protocols": frozenset()}, {}),
    ("servers", {"servers": frozenset()}, {}),
    ("servers", {}, {"server": OTHER_SERVER.identity}),
    ("corrupt", {"corrupt": 2}, {}),
    ("corrupt", {}, {"corrupt": 0}),
    ("min_survivors", {"min_survivors": 4}, {}),
    ("backbone", {}, with_task(backbone="timm:vit_tiny")),
    ("backbone_hash", {}, with_task(backbone_hash=b"\1" * 32)),
    ("preprocessing", {}, with_task(preprocessing="grey 64 x 64")),
    ("classes", {}, with_task(classes=("dog", "cat"))),
    ("classes", {}, with_task(classes=("cat", "dog", "cow"))),
    ("max_images", {"max_images": 999}, {}),
    ("max_images", {}, with_task(max_images=1001)),
    ("release", {}, with_task(release="gaussian")),
    ("release", {"release": "gaussian"}, {}),
]


@pytest.mark.parametrize(("rule", "policy", "changes"), BREACHES)
def test_proposals_against_the_policy(rule, policy, changes):
    federation = make(5, 1)
    federation = replace(federation, policy=replace(federation.policy, **policy))
    with pytest.raises(PolicyRefusal) as caught:
        propose(federation, msgspec.structs.replace(federation.params, **changes))
    assert caught.value.rule == rule


def test_a_client_whose_policy_is_broken_sends_nothing_at_all():
    result = run(make(5, 1, max_images=10))
    assert {error.rule for error in result.refusals.values()} == {"max_images"}
    assert [letter for letter in result.letters if letter.up] == []


def test_a_stricter_session_than_the_policy_asks_for_is_fine():
    federation = make(6, 2)
    policy = replace(federation.policy, corrupt=1)
    check_proposal(policy, msgspec.structs.replace(federation.params, min_survivors=6))
    assert cohort(policy, msgspec.structs.replace(federation.params, min_survivors=6)) == 6


def test_the_least_threshold_is_checked_against_the_actual_roster():
    """Seven clients with c = 1 have t = 5, six t = 4."""
    assert run(make(7, 1, min_threshold=5)).sum is not None
    federation = make(7, 1, min_threshold=5)
    result = run(federation, drops={"advertise": federation.ids[:1]})
    assert {error.rule for error in result.refusals.values()} == {"min_threshold"}
    assert not result.sent("share")


def test_an_unknown_member_is_refused_before_sharing():
    federation = make(5, 1)
    strict = replace(federation, policy=replace(federation.policy, members=Membership(frozenset(federation.ids[1:]))))
    result = run(strict)
    assert {error.rule for error in result.refusals.values()} == {"members"}
    assert not result.sent("share")


@pytest.mark.parametrize(
    "data", [b"", b"\xc0", b"\x93", encode(TASK), encode(make().params), signed(make(), make().params) + b"\0"]
)
def test_a_proposal_that_is_none(data):
    with pytest.raises(ServerFault, match="not a valid proposal"):
        client.advertise(data, make().policy, make().keys[0], b"", entropy(b""))


# Numbers.


@pytest.mark.parametrize("c", range(8))
def test_least_cohort(c):
    """Two honest clients at least, and never fewer than three in all."""
    assert least_cohort(c) == max(3, c + 2)
    params = make(10, c).params
    loose = replace(make(10, c).policy, min_survivors=0)
    assert cohort(loose, params) == max(3, c + 2)
    # Whatever the parameters say: this client would not even let a broken `check_params` lower it.
    assert cohort(loose, msgspec.structs.replace(params, min_survivors=1)) == max(3, c + 2)
    assert cohort(replace(loose, min_survivors=9), params) == 9


@pytest.mark.parametrize("n", range(3, 40))
def test_threshold_and_quorum_by_counting(n):
    """Shares: honest holders give one kind, corrupt ones both; t of each kind must be out of reach, and t - 1 not.

    Signatures: honest clients sign one view, corrupt ones any; two quorums must be out of reach.
    """
    for c in range(n - 1):
        t = threshold(n, c)
        most = (n - c) + 2 * c
        assert 2 * t > most >= 2 * (t - 1)
        least_quorum = quorum(n, c)
        assert 2 * least_quorum > most >= 2 * (least_quorum - 1)


def test_roster_graph():
    federation = make(12, 2)
    assert roster_graph(federation.policy, federation.params, 12).threshold == 8
    assert roster_graph(federation.policy, federation.params, 11).threshold == 7
    assert roster_graph(federation.policy, federation.params, 4).threshold == 4
    for roster in (3, 1, 0):
        with pytest.raises(PolicyRefusal) as caught:
            roster_graph(federation.policy, federation.params, roster)
        assert caught.value.rule == "min_survivors"


def test_the_session_id_depends_on_every_parameter():
    params = make().params
    changes = [
        {"protocol": "secagg/v2"},
        {"name": "prompts"},
        {"nonce": bytes(32)},
        {"server": bytes(32)},
        {"parent": bytes(32)},
        {"clients": 5},
        {"corrupt": 1},
        {"degree": 8},
        {"min_survivors": 4},
        {"modulus": 7},
        {"public_context": bytes(32)},
        {"segments": params.segments[:1]},
        *(with_task(**{name: value}) for name, value in _other_task().items()),
    ]
    assert len(changes) == len(params.__struct_fields__) - 1 + len(TASK.__struct_fields__)
    ids = {session_id(params), *(session_id(msgspec.structs.replace(params, **change)) for change in changes)}
    assert len(ids) == len(changes) + 1


def _other_task() -> dict[str, Any]:
    others: dict[type, Any] = {str: "other", int: 77, float: 7.5, bool: False, bytes: b"\7" * 32, tuple: ("a", "b")}
    return {name: others[type(getattr(TASK, name))] for name in TASK.__struct_fields__}


# Members and certificates.


def certified(authority: SigningKey) -> Federation:
    """A federation that trusts an authority and lists nobody."""
    members = Membership(authority=authority.identity)
    federation = make(4)
    return replace(federation, members=members, policy=replace(federation.policy, members=members))


def run_certified(federation: Federation, certify: Callable[[bytes], bytes]) -> Run:
    class Certified(Member):
        def advertise(self, proposal: bytes) -> bytes:
            self.state, sent = client.advertise(
                proposal, self.federation.policy, self.key, certify(self.identity), self.entropy
            )
            return sent

    return run(federation, kinds=dict.fromkeys(federation.ids, Certified))


def test_an_authority_admits():
    authority = SigningKey(seed("authority"))
    result = run_certified(certified(authority), authority.certify)
    assert (result.sum.total == result.plain_sum(result.members)).all()


def test_a_certificate_of_somebody_else_does_not():
    authority, other = SigningKey(seed("authority")), SigningKey(seed("other"))
    ids = make(4).ids
    for certify in (
        lambda identity: b"",
        other.certify,
        lambda identity: authority.certify(ids[0] if identity != ids[0] else ids[1]),
        lambda identity: authority.sign(b"", identity),
    ):
        result = run_certified(certified(authority), certify)
        assert set(result.faults) == set(ids)
        assert all("is not a member" in str(fault) for fault in result.faults.values())


def test_membership():
    authority = SigningKey(seed("authority"))
    listed = Membership(frozenset({bytes(32)}))
    assert listed.admits(bytes(32), b"")
    assert not listed.admits(b"\1" * 32, authority.certify(b"\1" * 32))
    both = Membership(frozenset({bytes(32)}), authority.identity)
    assert both.admits(bytes(32), b"")
    assert both.admits(b"\1" * 32, authority.certify(b"\1" * 32))
    assert not Membership().admits(bytes(32), b"")


def test_signatures():
    """RFC 8032 section 7.1, tests 1 and 2; and everything that is not a signature is a plain no."""
    for private, public, message, signature in (
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ):
        key = SigningKey(bytes.fromhex(private))
        assert key.identity.hex() == public
        assert key.sign(b"", bytes.fromhex(message)).hex() == signature
        assert verify(key.identity, b"", bytes.fromhex(message), bytes.fromhex(signature))
        assert not verify(key.identity, b"x", bytes.fromhex(message), bytes.fromhex(signature))
        assert not verify(key.identity, b"", b"other", bytes.fromhex(signature))
        for broken in (b"", bytes(64), bytes.fromhex(signature)[:-1], bytes.fromhex(signature) + b"\0"):
            assert not verify(key.identity, b"", bytes.fromhex(message), broken)
    for identity in (b"", bytes(31), b"\xff" * 32):
        assert not verify(identity, b"", b"", bytes(64))
        assert not verify_certificate(identity, bytes(32), bytes(64))
    with pytest.raises(MisuseError, match="32 bytes, not 31"):
        SigningKey(bytes(31))
