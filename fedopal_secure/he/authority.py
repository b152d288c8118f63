"""The key authority: it makes the keys, and opens one total of each session.

Sans-IO: requests and answers are bytes. It learns totals only, as long as the server sends it nothing else: it has no
way of telling (threat_models/key_authority.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from fedopal_secure.core import checks
from fedopal_secure.core import messages as core
from fedopal_secure.core.codec import Message, decode, encode
from fedopal_secure.core.errors import InputError, MisuseError, PolicyRefusal, ServerFault
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.params import ENCRYPTED, SessionParams, check_params, least_cohort, session_id
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.ring import U64, to_wire
from fedopal_secure.core.secret import Secret
from fedopal_secure.he.context import SCHEMES, check_session, form_of, session_error_bound, write_key
from fedopal_secure.he.messages import (
    OpenedTotal,
    OpenRequest,
    PublicContext,
    SignedUpload,
    public_context_hash,
    sign,
    total_hash,
)
from fedopal_secure.he.parameters import DEFAULTS, Parameters
from fedopal_secure.he.seal import DecryptionError, load_seal


class _SecretFile(Message, frozen=True, tag="he-secret-keys"):
    public_context: bytes
    keys: tuple[bytes, ...]


@dataclass(frozen=True)
class AuthorityPolicy:
    """Whose sessions the authority opens: those that these servers propose, with enough uploads of these members.

    `corrupt` is the number of corrupt clients that it assumes at most, `min_survivors` the fewest uploads it accepts.
    """

    members: Membership
    servers: frozenset[bytes]
    corrupt: int = 0
    min_survivors: int = 3


class SecretKeys:
    """The secret keys of one public context; never printed, never pickled."""

    def __init__(self, context: PublicContext, keys: Iterable[bytes]) -> None:
        self.context = context
        self._keys = tuple(Secret(key) for key in keys)

    def expose(self) -> tuple[bytes, ...]:
        """The keys themselves, as SEAL writes them."""
        return tuple(key.expose() for key in self._keys)

    def to_bytes(self) -> bytes:
        """The content of a file that only its owner may read."""
        return encode(_SecretFile(public_context_hash(self.context), self.expose()))

    @classmethod
    def from_bytes(cls, data: bytes, context: PublicContext) -> SecretKeys:
        """Read what `to_bytes` wrote; raises InputError if it is something else, or of another context."""
        read = decode(_SecretFile, data, lambda _: InputError("these are no secret keys: give what `he keygen` wrote"))
        if read.public_context != public_context_hash(context):
            raise InputError("the secret keys belong to another public context")
        return cls(context, read.keys)

    def __repr__(self) -> str:
        return f"SecretKeys({len(self._keys)})"

    def __reduce__(self) -> NoReturn:
        raise MisuseError("secret keys are never pickled or copied")


def generate(protocol: str, key: SigningKey, parameters: Parameters | None = None) -> SecretKeys:
    """Make keys for one protocol, and the signed public context that goes with them.

    Raises InputError for parameters that are refused.

    The randomness is SEAL's own, seeded by the operating system.
    """
    parameters = parameters or DEFAULTS[SCHEMES[protocol]]
    pairs = [seal.generate_key() for seal in load_seal(parameters)]
    public = tuple(write_key(parameters, public) for public, _ in pairs)
    context = sign(key, PublicContext(protocol, parameters, public, key.identity))
    return SecretKeys(context, [secret for _, secret in pairs])


class KeyAuthority:
    """Opens totals, one of each session. Which sessions are used up must outlive the process: override `use_up`."""

    def __init__(self, key: SigningKey, secrets: SecretKeys, policy: AuthorityPolicy) -> None:
        self._key, self._secrets, self._policy = key, secrets, policy
        self._opened: set[bytes] = set()
        self.largest_error: dict[bytes, float] = {}  # by session; it stays here, as it says something of the key
        if key.identity != secrets.context.authority:
            raise InputError("the public context is signed by another key than this authority's")

    @property
    def identity(self) -> bytes:
        """The authority's public key, which its context names."""
        return self._key.identity

    @property
    def public_context(self) -> PublicContext:
        """What the authority publishes."""
        return self._secrets.context

    def open_total(self, request_bytes: bytes) -> bytes:
        """Decrypt the total of a session, once: an OpenRequest to an OpenedTotal.

        Raises ServerFault or PolicyRefusal, and then nothing was decrypted; or ServerFault for a total that carries
        more noise than honest uploads add up to, and then the session is used up: answers to such totals leak the key.
        """
        request = decode(OpenRequest, request_bytes, ServerFault)
        checks.proposal_is_signed(request.proposal)
        params = request.proposal.params
        session = session_id(params)
        self._check_session(params)
        self._check_uploads(params, session, request.uploads)
        context = self._secrets.context
        form = form_of(params, context.parameters)
        try:
            total = form.from_bytes(request.total)
        except ValueError as error:
            raise ServerFault(f"the total is {error}") from None
        if not self.use_up(session):
            raise PolicyRefusal("one total", "a total of this session has been opened, and there is no second one")
        vector, self.largest_error[session] = self._decrypt(params, form.by_key(total))
        wire = to_wire(vector, params.segments)
        return encode(sign(self._key, OpenedTotal(session, self.identity, total_hash(request.total), wire)))

    def use_up(self, session: bytes) -> bool:
        """Note, before anything is decrypted, that a session has had its total; False if it had one already."""
        fresh = session not in self._opened
        self._opened.add(session)
        return fresh

    def _check_session(self, params: SessionParams) -> None:
        if params.protocol not in ENCRYPTED:
            raise PolicyRefusal("protocol", f"nothing is encrypted in {params.protocol!r}")
        check_params(params, params.protocol)
        check_session(params, self._secrets.context)
        if params.server not in self._policy.servers:
            raise PolicyRefusal("servers", f"server {params.server.hex()[:12]} is not known")
        if params.corrupt < self._policy.corrupt:
            raise PolicyRefusal("corrupt", f"c = {params.corrupt} is below {self._policy.corrupt}")

    def _check_uploads(self, params: SessionParams, session: bytes, uploads: tuple[SignedUpload, ...]) -> None:
        headers = [upload.header for upload in uploads]
        senders = [header.sender for header in headers]
        if senders != sorted(set(senders)):
            raise ServerFault("the uploads are not in the order of distinct identities")
        least = max(least_cohort(params.corrupt), params.min_survivors, self._policy.min_survivors)
        if not least <= len(uploads) <= params.clients:
            detail = f"{len(uploads)} signed uploads; the authority opens sums of {least} to {params.clients}"
            raise PolicyRefusal("min_survivors", detail)
        if any(header.session != session for header in headers):
            raise ServerFault("an upload is of another session")
        if len({(header.roster, header.sharers, header.context) for header in headers}) > 1:
            raise ServerFault("the uploads are under different rosters or contexts")
        for upload in uploads:
            if not self._policy.members.admits(upload.header.sender, upload.certificate):
                raise PolicyRefusal("members", f"client {upload.header.sender.hex()[:12]} is not a member")
            if not core.is_signed(upload.header):
                raise ServerFault(f"the upload of {upload.header.sender.hex()[:12]} is not signed by it")

    def _decrypt(self, params: SessionParams, groups: list[U64]) -> tuple[U64, float]:
        p, parts, largest = self._secrets.context.parameters, [], 0.0
        for seal, secret, group in zip(load_seal(p), self._secrets.expose(), groups, strict=True):
            try:
                part, error = seal.decrypt(secret, group, params.clients)
            except DecryptionError as reason:
                raise ServerFault(str(reason)) from None
            parts.append(part)
            largest = max(largest, error)
        if largest > session_error_bound(params, p):
            raise ServerFault("a ciphertext has more noise than honest encryptions add up to")
        return form_of(params, p).from_slots(parts), largest
