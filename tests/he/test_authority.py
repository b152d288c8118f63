"""The key authority opens one total of a session that enough members signed for, and refuses everything else."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import msgspec
import pytest
from msgspec.structs import replace

from fedopal_secure.core import messages as core
from fedopal_secure.core import params as protocols
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import InputError, MisuseError, PolicyRefusal, ServerFault
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.policy import Membership
from fedopal_secure.federation.config import PolicyConfig
from fedopal_secure.federation.stored_authority import (
    StoredAuthority,
    authority_policy,
    create_authority,
    load_public_context,
)
from fedopal_secure.he.authority import KeyAuthority, SecretKeys
from fedopal_secure.he.context import read_public_context
from fedopal_secure.he.messages import OpenedTotal, OpenRequest, is_signed, sign
from fedopal_secure.he.parameters import BFV, CKKS
from tests.core.harness import seed
from tests.he.harness import AUTHORITY, KINDS, Session, encrypted, secrets_of, with_context

pytest.importorskip("tenseal", reason="missing tool: TenSEAL, of the extra `he`")


@pytest.fixture(scope="module", params=["bfv", "masked", "ckks"])
def asked(request):
    """A session, and what its server asks the authority."""
    setting = encrypted(request.param)
    return setting, decode(OpenRequest, Session(setting).to_open(setting.federation.ids), MisuseError)


def refused(setting, request, error, words, **policy):
    authority = KeyAuthority(AUTHORITY, setting.secrets, dataclasses.replace(setting.authority_policy, **policy))
    with pytest.raises(error, match=words):
        authority.open_total(request if isinstance(request, bytes) else encode(request))
    return authority


def resigned(setting, request, **changes):
    """The request under other parameters, signed by the server again."""
    params = replace(request.proposal.params, **changes)
    return replace(request, proposal=core.sign(setting.federation.host, core.Proposal(params)))


def test_it_opens_once(asked):
    setting, request = asked
    authority = setting.authority()
    opened = decode(OpenedTotal, authority.open_total(encode(request)), MisuseError)
    assert is_signed(opened)
    with pytest.raises(PolicyRefusal, match="no second one"):
        authority.open_total(encode(request))
    # Another total of the same session is a second one, too.
    fewer = replace(request, uploads=request.uploads[:3])
    with pytest.raises(PolicyRefusal, match="no second one"):
        authority.open_total(encode(fewer))


def test_refusals(asked):
    setting, request = asked
    host, keys = setting.federation.host, setting.federation.keys
    headers = [upload.header for upload in request.uploads]

    def with_header(place, header):
        uploads = list(request.uploads)
        uploads[place] = replace(uploads[place], header=header)
        return replace(request, uploads=tuple(uploads))

    refused(setting, b"\x93", ServerFault, "not a valid openrequest")
    refused(setting, encode(request) + b"\x00", ServerFault, "not a")
    unsigned = replace(request, proposal=replace(request.proposal, signature=bytes(64)))
    refused(setting, unsigned, ServerFault, "sign")
    refused(setting, resigned(setting, request, public_context=bytes(32)), PolicyRefusal, "another public context")
    refused(setting, resigned(setting, request, protocol="secagg/v1"), PolicyRefusal, "nothing is encrypted")
    refused(setting, resigned(setting, request, nonce=bytes(32)), ServerFault, "another session")
    refused(setting, request, PolicyRefusal, "server", servers=frozenset({keys[0].identity}))
    refused(setting, request, PolicyRefusal, "c = 0 is below 1", corrupt=1)
    refused(setting, request, PolicyRefusal, "opens sums of 5", min_survivors=5)
    refused(setting, request, PolicyRefusal, "not a member", members=Membership(frozenset({keys[0].identity})))
    refused(setting, replace(request, uploads=request.uploads[:2]), PolicyRefusal, "2 signed uploads")
    refused(setting, replace(request, uploads=request.uploads[:2] * 2), ServerFault, "distinct")
    refused(setting, replace(request, uploads=request.uploads[::-1]), ServerFault, "order")
    refused(setting, with_header(1, replace(headers[1], payload_hash=bytes(32))), ServerFault, "not signed")
    other = core.sign(keys[1], replace(headers[1], context=bytes(32)))
    refused(setting, with_header(1, other), ServerFault, "different rosters or contexts")
    refused(setting, replace(request, total=request.total[:-1]), ServerFault, "bytes long")
    refused(setting, replace(request, total=b"\xff" * len(request.total)), ServerFault, "residues")
    refused(setting, resigned(setting, request, modulus=65537), PolicyRefusal, "modulus")
    assert host.identity not in setting.federation.members.identities


def test_a_refusal_before_decryption_leaves_the_session_open(asked):
    setting, request = asked
    authority = refused(setting, replace(request, uploads=request.uploads[:2]), PolicyRefusal, "2 signed uploads")
    authority.open_total(encode(request))


def test_too_much_noise_uses_the_session_up(asked):
    setting, request = asked
    junk = bytes(byte ^ 1 if place % 5000 == 0 else byte for place, byte in enumerate(request.total))
    authority = refused(setting, replace(request, total=junk), ServerFault, "more noise")
    with pytest.raises(PolicyRefusal, match="no second one"):
        authority.open_total(encode(request))


def test_a_total_under_another_context_is_too_noisy(asked):
    setting, request = asked
    other = dataclasses.replace(setting, secrets=secrets_of(KINDS[setting.federation.params.protocol], 7))
    refused(setting, replace(request, total=foreign_total(other)), ServerFault, "more noise")


def foreign_total(setting):
    """The total of honest uploads that are encrypted under the keys of another context."""
    uploads = with_context(setting, setting.secrets.context)
    return decode(OpenRequest, Session(uploads).to_open(uploads.federation.ids), MisuseError).total


def test_the_error_of_ckks_stays_with_the_authority(asked):
    setting, request = asked
    authority = setting.authority()
    answer = decode(OpenedTotal, authority.open_total(encode(request)), MisuseError)
    (error,) = authority.largest_error.values()
    assert (error > 0) == (setting.secrets.context.parameters.scheme == "ckks")
    assert set(answer.__struct_fields__) == {"session", "authority", "total", "vector", "signature"}


# Public contexts.

CONTEXT = secrets_of("bfv").context


def test_a_public_context_is_read_back():
    assert read_public_context(encode(CONTEXT)) == CONTEXT


def tenseal_contexts():
    found = []
    import tenseal

    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 60])
    context.generate_galois_keys()
    found.append(("with a secret key", context.serialize(save_secret_key=True)))
    found.append(("with Galois keys", context.serialize(save_secret_key=False, save_galois_keys=True)))
    context.make_context_public()
    return [*found, ("public", context.serialize())]


@pytest.mark.parametrize(("name", "data"), tenseal_contexts())
def test_contexts_of_another_format_are_refused(name, data):
    with pytest.raises(InputError, match="no public context"):
        read_public_context(data)


WRONG_CONTEXTS = {
    "secret keys": (secrets_of("bfv").to_bytes(), "no public context"),
    "room for one more key": (
        encode([*msgspec.to_builtins(CONTEXT, builtin_types=(bytes,)), b"galois"]),
        "no public context",
    ),
    "another protocol": (encode(sign(AUTHORITY, replace(CONTEXT, protocol="ckks/v1"))), "is for 'ckks/v1'"),
    "weak parameters": (encode(replace(CONTEXT, parameters=replace(CKKS, degree=2048))), "128-bit"),
    "another scheme": (encode(replace(CONTEXT, parameters=replace(BFV, scheme="bgv"))), "neither"),
    "a key too few": (encode(sign(AUTHORITY, replace(CONTEXT, keys=CONTEXT.keys[:1]))), "1 keys"),
    "a key too short": (encode(replace(CONTEXT, keys=(CONTEXT.keys[0][:-1], CONTEXT.keys[1]))), "another length"),
    "a key of no residues": (encode(replace(CONTEXT, keys=(b"\xff" * len(CONTEXT.keys[0]),) * 2)), "residues"),
    "another's signature": (encode(sign(SigningKey(seed("x")), CONTEXT)), "not signed"),
    "changed after signing": (encode(replace(CONTEXT, keys=CONTEXT.keys[::-1])), "not signed"),
}


@pytest.mark.parametrize("name", WRONG_CONTEXTS)
def test_wrong_contexts_are_refused(name):
    data, words = WRONG_CONTEXTS[name]
    with pytest.raises(InputError, match=words):
        read_public_context(data)


# Secrets, and the folder.


def test_secret_keys_do_not_print_pickle_or_copy():
    secrets = secrets_of("bfv")
    assert repr(secrets) == "SecretKeys(2)"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(MisuseError):
            leak(secrets)


def test_secret_keys_belong_to_one_context():
    data = secrets_of("bfv").to_bytes()
    assert SecretKeys.from_bytes(data, CONTEXT).expose() == secrets_of("bfv").expose()
    with pytest.raises(InputError, match="another public context"):
        SecretKeys.from_bytes(data, secrets_of("bfv", 1).context)
    with pytest.raises(InputError, match="no secret keys"):
        SecretKeys.from_bytes(encode(CONTEXT), CONTEXT)


def test_an_authority_signs_with_the_key_that_its_context_names():
    setting = encrypted("bfv")
    with pytest.raises(InputError, match="another key"):
        KeyAuthority(SigningKey(seed("x")), setting.secrets, setting.authority_policy)


def test_a_folder_remembers_what_it_opened(tmp_path):
    folder = tmp_path / "authority"
    context = create_authority(folder, protocols.BFV, AUTHORITY)
    assert (folder / "secret.keys").stat().st_mode & 0o777 == 0o600
    assert load_public_context(folder) == context == load_public_context(folder / "public.context")
    stored = with_context(encrypted("bfv"), context)
    request = Session(stored).to_open(stored.federation.ids)
    StoredAuthority(folder, AUTHORITY, stored.authority_policy).open_total(request)
    again = StoredAuthority(folder, AUTHORITY, stored.authority_policy)  # another process
    with pytest.raises(PolicyRefusal, match="no second one"):
        again.open_total(request)
    with pytest.raises(InputError, match="never overwritten"):
        create_authority(folder, protocols.BFV, AUTHORITY)
    (folder / "opened" / next((folder / "opened").iterdir()).name).unlink()
    (folder / "opened").rmdir()
    with pytest.raises(InputError, match="put it back"):
        StoredAuthority(folder, AUTHORITY, stored.authority_policy)


def test_a_policy_file_must_name_somebody():
    with pytest.raises(InputError, match="name the servers"):
        authority_policy(PolicyConfig(corrupt=0), "policy.toml")
