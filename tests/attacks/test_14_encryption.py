"""Encrypted sums: a server that has something else opened than the total, and what it gets from the key authority.

Two attacks on the unmasked modes work: the authority cannot know what a total is made of. They are the tests called
`test_limit_...`. The same two against masks inside the encryption are in `test_14_masks_inside.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import InputError, PolicyRefusal, ServerFault
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.params import BFV
from fedopal_secure.core.ring import reduce_to_width
from fedopal_secure.federation.stored_authority import StoredAuthority, create_authority
from fedopal_secure.he import context as context_module
from fedopal_secure.he import parameters, seal
from fedopal_secure.he.authority import KeyAuthority, SecretKeys, generate
from fedopal_secure.he.context import read_public_context
from fedopal_secure.he.messages import PublicContext, SignedUpload, public_context_hash, sign
from protocols.he.v1 import scheme
from tests.attacks.catalogue import Attack, Outcome, always, nothing, suite
from tests.attacks.encrypted_sessions import (
    LONG,
    WIDE,
    CheatingServer,
    Key,
    Refused,
    is_key,
    key_of_narrow_entries,
    key_of_wide_entries,
    played,
    session,
    under,
)
from tests.attacks.test_04_late_upload import GOAL
from tests.core.harness import forge, seed
from tests.he.harness import AUTHORITY, Encrypted, secrets_of

sealapi = pytest.importorskip("tenseal.sealapi", reason="missing tool: TenSEAL, of the extra `he`")


@pytest.fixture(autouse=True, scope="module")
def known_answers() -> None:
    """Keys are made, and known answers checked, before anything is taken away."""
    for kind in ("bfv", "masked", "ckks"):
        secrets_of(kind)


# One client's ciphertext as the total, under the signed uploads of everyone.


@pytest.mark.parametrize("kind", ["bfv", "ckks"])
def test_limit_one_ciphertext_with_zeros_opens_to_a_clients_vector(kind: str) -> None:
    """Nothing ties the total to the uploads, and an authority that saw them would be another server."""
    server = CheatingServer(session(kind)).collect()
    assert server.outcome(server.open(server.total([server.victim]))).won


# The key as the total.


@pytest.mark.parametrize(("parts", "recover"), [(WIDE, key_of_wide_entries), (LONG, key_of_narrow_entries)])
def test_limit_the_key_comes_out_of_a_total_of_bfv(parts: Any, recover: Callable[[CheatingServer], Key]) -> None:
    """(0, q / t) is the key as a plaintext. It opens what another session uploaded, and the authority is not asked."""
    earlier = CheatingServer(session("bfv", "yesterday")).collect()
    key = recover(CheatingServer(session("bfv", "today", parts)).collect())
    assert is_key(key)
    assert earlier.outcome(earlier.read(key, earlier.victim)).won


# A second total.


def differencing(kind: str) -> Outcome:
    """The total with the victim, and then without it."""
    return difference(CheatingServer(session(kind)).collect(), nothing)


def difference(server: CheatingServer, between: Callable[[], Any]) -> Outcome:
    others = [client for client in server.ids if client != server.victim]
    everyone = server.open(server.total(server.ids))
    between()
    rest = server.open(server.total(others), [server.signed[client] for client in others])
    return server.outcome(reduce_to_width(everyone - rest, server.params.segments))


def differencing_after_a_restart() -> Outcome:
    """The authority's program was ended between the two requests; its folder is the same."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "keys"
        setting = under(session("bfv"), create_authority(folder, BFV, AUTHORITY))
        start = partial(StoredAuthority, folder, AUTHORITY, setting.authority_policy)
        server = CheatingServer(setting, start()).collect()
        return difference(server, lambda: setattr(server, "authority", start()))


# A client that nobody else uploaded with: the server lacks the signatures of a cohort.

Headers = Callable[[CheatingServer], Sequence[SignedUpload]]


def alone(headers: Headers, kind: str = "bfv") -> Callable[[], Outcome]:
    def play() -> Outcome:
        server = CheatingServer(session(kind))
        server.collect([server.victim])
        return server.outcome(server.open(server.total([server.victim]), headers(server)))

    return played(play)


def only_the_victims(server: CheatingServer) -> Sequence[SignedUpload]:
    return list(server.signed.values())


def three_times(server: CheatingServer) -> Sequence[SignedUpload]:
    return list(server.signed.values()) * 3


def of_strangers(server: CheatingServer) -> Sequence[SignedUpload]:
    """Two that the server invented sign what the victim signed."""
    keys = [SigningKey(seed("stranger", number)) for number in range(2)]
    own = server.signed[server.victim].header
    return [*server.signed.values(), *(SignedUpload(forge(key, own, sender=key.identity), b"") for key in keys)]


def unsigned(server: CheatingServer) -> Sequence[SignedUpload]:
    """In the name of two members, without their signature."""
    own = server.signed[server.victim].header
    made_up = (replace(own, sender=name, signature=bytes(64)) for name in server.ids[1:3])
    return [*server.signed.values(), *(SignedUpload(header, b"") for header in made_up)]


def of_yesterday(server: CheatingServer) -> Sequence[SignedUpload]:
    """Two members signed uploads of an earlier session."""
    earlier = CheatingServer(session("bfv", "yesterday")).collect(server.ids[1:3])
    return [*server.signed.values(), *earlier.signed.values()]


def of_another_context(server: CheatingServer) -> Sequence[SignedUpload]:
    """Two members of the session were told another context, so that they think of another sum."""
    server.collect(server.ids[1:3], payload=b"another head")
    return list(server.signed.values())


_check_uploads = KeyAuthority._check_uploads


def tolerating(reason: str) -> Callable[..., None]:
    """`KeyAuthority._check_uploads` that lets pass one thing which it is there to refuse."""

    def check(authority: KeyAuthority, *arguments: Any) -> None:
        try:
            _check_uploads(authority, *arguments)
        except (ServerFault, PolicyRefusal) as error:
            if reason not in str(error):
                raise

    return check


# Keys of the server's own.

SERVERS_KEY = SigningKey(seed("the server as an authority"))


def reading(setting: Encrypted, secrets: SecretKeys) -> Outcome:
    """What the holder of these keys reads in the victim's upload."""
    own = KeyAuthority(SERVERS_KEY, secrets, setting.authority_policy)
    server = CheatingServer(setting, own)
    server.collect([server.victim])
    groups = server.form.by_key(server.form.from_bytes(server.payloads[server.victim]))
    return server.outcome(own._decrypt(server.params, groups)[0])


def swapped_context() -> Outcome:
    """The server hands out a context of its own as the authority's file, and proposes a session under it."""
    secrets = generate(BFV, SERVERS_KEY)
    setting = session("bfv")
    params = replace(setting.federation.params, public_context=public_context_hash(secrets.context))
    federation = dataclasses.replace(setting.federation, params=params)  # policies still pin the authority's
    return reading(dataclasses.replace(setting, federation=federation, secrets=secrets), secrets)


def in_the_authoritys_name() -> Outcome:
    """The server's keys in a context that names the authority; whoever writes the policy trusts its signature."""
    secrets = generate(BFV, SERVERS_KEY)
    handed_out = encode(sign(SERVERS_KEY, replace(secrets.context, authority=AUTHORITY.identity)))
    try:
        read = read_public_context(handed_out)
    except InputError as error:
        raise Refused(f"refused by who writes the policy: InputError: {error}") from None
    if read.authority != AUTHORITY.identity:
        raise RuntimeError("it names somebody else")
    return reading(under(session("bfv"), read), secrets)


LONELY = "the vector of a client that uploaded alone"
CHECK = "he.authority.KeyAuthority._check_uploads"
ONE_TOTAL = "no second one"

test_defended, test_control = suite(
    Attack(
        14,
        "a second total without the victim (bfv)",
        GOAL,
        played(partial(differencing, "bfv")),
        "he.authority.KeyAuthority.use_up",
        ONE_TOTAL,
        always(True),
    ),
    Attack(
        14,
        "a second total without the victim (ckks)",
        GOAL,
        played(partial(differencing, "ckks")),
        "he.authority.KeyAuthority.use_up",
        ONE_TOTAL,
        always(True),
    ),
    Attack(
        14,
        "a second total after the authority was started again",
        GOAL,
        played(differencing_after_a_restart),
        "federation.stored_authority.StoredAuthority.use_up",
        ONE_TOTAL,
        always(True),
    ),
    Attack(
        14,
        "a total under one signed upload (bfv)",
        LONELY,
        alone(only_the_victims),
        CHECK,
        "1 signed uploads; the authority opens sums of 3",
        tolerating("1 signed uploads"),
    ),
    Attack(
        14,
        "a total under one signed upload (ckks)",
        LONELY,
        alone(only_the_victims, "ckks"),
        CHECK,
        "1 signed uploads; the authority opens sums of 3",
        tolerating("1 signed uploads"),
    ),
    Attack(
        14,
        "one signed upload three times",
        LONELY,
        alone(three_times),
        CHECK,
        "not in the order of distinct identities",
        tolerating("distinct identities"),
    ),
    Attack(
        14,
        "uploads that strangers signed",
        LONELY,
        alone(of_strangers),
        "core.policy.Membership.admits",
        "is not a member",
        always(True),
    ),
    Attack(
        14,
        "uploads of members that nobody signed",
        LONELY,
        alone(unsigned),
        "core.messages.is_signed",
        "is not signed by it",
        always(True),
    ),
    Attack(
        14,
        "uploads that members signed in another session",
        LONELY,
        alone(of_yesterday),
        CHECK,
        "of another session",
        tolerating("of another session"),
    ),
    Attack(
        14,
        "uploads that members signed under another context",
        GOAL,
        alone(of_another_context),
        CHECK,
        "under different rosters or contexts",
        tolerating("different rosters or contexts"),
    ),
    Attack(
        14,
        "a public context of the server's own",
        GOAL,
        played(swapped_context),
        "federation.protocols.check_proposal",
        "another public context than the one pinned",
    ),
    Attack(
        14,
        "the server's keys in the authority's name",
        GOAL,
        played(in_the_authoritys_name),
        "he.context.is_signed",
        "not signed by the authority that it names",
        always(True),
    ),
)


# Where two defences stand.

TINY = replace(parameters.BFV, degree=8, plain_moduli=parameters.BFV.plain_moduli[:1])


@contextlib.contextmanager
def removed(names: Sequence[str]) -> Iterator[None]:
    """Without our check of parameters, or SEAL's; what SEAL has loaded is loaded again."""
    with contextlib.ExitStack() as stack:
        if "ours" in names:
            stack.enter_context(mock.patch.object(context_module, "check_parameters"))
            stack.enter_context(mock.patch.object(seal, "check_parameters"))
        if "SEAL's" in names:
            levels = sealapi.SEC_LEVEL_TYPE
            stack.enter_context(mock.patch.object(levels, "TC128", levels.NONE))
        seal.load_seal.cache_clear()
        stack.callback(seal.load_seal.cache_clear)
        yield


def every_key_tried(context: PublicContext) -> Key:
    """The only key of degree 8 that fits the public one."""
    public = context_module._read_key(context.parameters, context.keys[0]).tolist()
    pair = tuple(tuple(tuple(row) for row in half) for half in public)
    keys = ([place // 3**k % 3 - 1 for k in range(8)] for place in range(3**8))
    (found,) = [key for key in keys if any(key) and scheme.key_error(context.parameters, pair, key) is not None]
    return found


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), "degree 8 is none of"),
        (("SEAL's",), "degree 8 is none of"),
        (("ours",), "SEAL refuses these parameters"),
        (("ours", "SEAL's"), ""),
    ],
)
def test_weak_parameters_meet_two_defences(names: Sequence[str], told: str) -> None:
    """An authority whose program accepts anything; its key is found by trying all, from the public context alone."""
    with removed(("ours", "SEAL's")):
        drawn = (generate(BFV, AUTHORITY, TINY) for _ in itertools.count())
        secrets = next(keys for keys in drawn if any(keys.expose()[0][-8:]))  # one in 3**8 is zero: nothing to find
    handed_out = encode(secrets.context)
    with removed(names), contextlib.ExitStack() as stack:
        if told:
            stack.enter_context(pytest.raises((InputError, Refused), match=told))
        context = read_public_context(handed_out)
        server = CheatingServer(under(session("bfv"), context))
        server.collect([server.victim])
        assert server.outcome(server.read(every_key_tried(context), server.victim)).won
