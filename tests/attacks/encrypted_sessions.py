"""A server that cheats in encrypted sessions: what it gets from clients, what it asks the authority, and the key.

Clients and the key authority are the library's own. What the server computes by itself, it computes in the plain
integers of the reference (`protocols/he/v1`), so that nothing rests on SEAL's word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fedopal_secure.core import client as core_client
from fedopal_secure.core import messages
from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import FedopalError, MisuseError
from fedopal_secure.core.messages import Context, Proposal, Upload
from fedopal_secure.core.params import BFV_MASKED, Segment, session_id
from fedopal_secure.core.ring import U64, from_wire, reduce_to_width, to_wire
from fedopal_secure.federation.protocols import open_client
from fedopal_secure.he.authority import KeyAuthority
from fedopal_secure.he.context import encrypt, form_of
from fedopal_secure.he.messages import EncryptedUpload, OpenedTotal, OpenRequest, PublicContext, SignedUpload
from fedopal_secure.he.packing import to_ring
from fedopal_secure.he.parameters import BFV_SCHEME, scale_bits
from protocols.he.v1 import ring, scheme
from tests.attacks.catalogue import Outcome, words
from tests.attacks.test_04_late_upload import GuessingServer
from tests.core.harness import Member, seed
from tests.he.harness import Encrypted, encrypted, secrets_of, with_context

DEGREE = 4096
# A session like any other; one whose entries carry a whole plaintext, as wide as those of R can be; and one that takes
# two ciphertexts.
SMALL = (Segment("x", 20, 5, True),)
WIDE = (Segment("x", DEGREE, 7, True),)
LONG = (Segment("x", 2 * DEGREE, 5, True),)
NOBODY = "the authority opens it, and it is nobody's vector"

Key = list[int]  # a secret key as a polynomial: N coefficients in {-1, 0, 1}


class Refused(Exception):
    """Somebody refused, and the attack ends with it."""


@dataclass(frozen=True)
class Drawn(Encrypted):
    """An encrypted session in which entries are below `limit`, and a client's vector is the same in all sessions."""

    limit: int = 2**36

    def vectors(self) -> dict[bytes, U64]:
        """A vector for everyone, uint64 (length,), in two's complement."""
        length = self.federation.params.length
        draws = {client: np.random.default_rng(list(client)) for client in self.federation.ids}
        return {i: rng.integers(-self.limit, self.limit, length).view(np.uint64) for i, rng in draws.items()}


def session(
    kind: str,
    name: str = "today",
    parts: Sequence[Segment] = SMALL,
    *,
    clients: int = 4,
    corrupt: int = 0,
    limit: int = 2**36,
) -> Drawn:
    """A session of kind 'bfv', 'masked' or 'ckks'; each name is a session of its own."""
    found = encrypted(kind, clients, corrupt, parts, nonce=seed(name))
    return Drawn(found.federation, found.secrets, limit)


def under(setting: Encrypted, context: PublicContext) -> Encrypted:
    """The session under another context, which policies pin."""
    other = with_context(setting, context)
    return dataclasses.replace(setting, federation=other.federation, secrets=other.secrets)


class CheatingServer:
    """The server of sessions without masks, from whom clients take one message and the authority one request.

    `authority` remembers which sessions it opened; give the same one to two servers for a second session under its key.
    """

    def __init__(self, setting: Encrypted, authority: KeyAuthority | None = None) -> None:
        self.setting, self.context, self.params = setting, setting.secrets.context, setting.federation.params
        self.ids = setting.federation.ids
        self.victim = self.ids[0]
        self.authority = authority or setting.authority()
        self.proposal = messages.sign(setting.federation.host, Proposal(self.params))
        self.form = form_of(self.params, self.context.parameters)
        self.signed: dict[bytes, SignedUpload] = {}
        self.payloads: dict[bytes, bytes] = {}

    def collect(self, who: Collection[bytes] | None = None, payload: bytes = b"") -> CheatingServer:
        """Have clients upload, by default all, to a context with this payload."""
        told = encode(Context(session_id(self.params), b"", b"", (), payload))
        for key in self.setting.federation.keys:
            if who is not None and key.identity not in who:
                continue
            try:
                client, _ = open_client(encode(self.proposal), self.setting.participant(key))
                client.begin_upload(told, None)
                sent = client.upload(self.setting.vectors()[key.identity])
            except FedopalError as error:
                raise Refused(f"refused by the victim: {words(error)}") from None
            upload = decode(EncryptedUpload, sent, MisuseError)
            self.signed[key.identity], self.payloads[key.identity] = upload.signed, upload.payload
        return self

    def total(self, who: Iterable[bytes]) -> U64:
        """The total of these clients' ciphertexts, to which the server adds an encryption of zeros of its own."""
        zeros = np.zeros(self.params.length, dtype=np.uint64)
        total = self.form.from_bytes(encrypt(self.params, self.context, zeros))
        for client in who:
            self.form.add_into(total, self.form.from_bytes(self.payloads[client]))
        return total

    def request(self, total: U64, signed: Iterable[SignedUpload] | None = None) -> OpenRequest:
        """A request under signed uploads, by default all that there are."""
        chosen = self.signed.values() if signed is None else signed
        ordered = tuple(sorted(chosen, key=lambda upload: upload.header.sender))
        return OpenRequest(self.proposal, ordered, self.form.to_bytes(total))

    def open(self, total: U64, signed: Iterable[SignedUpload] | None = None) -> U64:
        """What the authority answers; raises Refused."""
        try:
            answer = self.authority.open_total(encode(self.request(total, signed)))
        except FedopalError as error:
            raise Refused(f"refused by the authority: {words(error)}") from None
        return from_wire(decode(OpenedTotal, answer, MisuseError).vector, self.params.segments)

    def read(self, key: Key, client: bytes) -> U64:
        """What a client encrypted, with the key (of the first plain modulus): its vector, or its masked vector."""
        p, found = self.context.parameters, []
        for ciphertext in self.form.by_key(self.form.from_bytes(self.payloads[client]))[0]:
            found += decrypted(self.context, key, ciphertext, self.params.clients)
        rest = [np.empty(0, dtype=np.uint64)] * (p.keys - 1)
        return self.form.from_slots([np.array(found, dtype=np.int64 if p.scheme != BFV_SCHEME else np.uint64), *rest])

    def outcome(self, found: U64 | None, told: str = NOBODY, got: str = "the victim's vector, every entry") -> Outcome:
        """Whether this is the victim's vector; if not, what happened instead."""
        vector, modulus = self.setting.vectors()[self.victim], self.params.modulus
        vector = to_ring(vector, modulus) if modulus else reduce_to_width(vector, self.params.segments)
        won = found is not None and np.array_equal(found, vector)
        return Outcome(won, got if won else told)


def played(attack: Callable[[], Outcome]) -> Callable[[], Outcome]:
    """A play that ends where somebody refuses."""

    def play() -> Outcome:
        try:
            return attack()
        except Refused as refused:
            return Outcome(False, str(refused))

    return play


# Ciphertexts of the server's own making.


def decrypted(context: PublicContext, key: Key, ciphertext: NDArray[Any], clients: int) -> list[int]:
    """N residues of BFV's first plain modulus, or N digits of CKKS, by textbook decryption."""
    p = context.parameters
    pair = tuple(tuple(tuple(row) for row in half) for half in ciphertext.tolist())
    if p.scheme == BFV_SCHEME:
        return scheme.decrypt_bfv(p, p.plain_moduli[0], key, pair)[0]
    return scheme.decrypt_ckks(p, scale_bits(p, clients), key, pair)[0]


def forged(server: CheatingServer, c0: Mapping[int, int], c1: Mapping[int, int], number: int = 0) -> U64:
    """A total in which one ciphertext has these coefficients, by exponent, and all others are zero."""
    p, total = server.context.parameters, server.form.zeros()
    for half, terms in enumerate((c0, c1)):
        for place, prime in enumerate(p.ciphertext_moduli):
            coefficients = [terms.get(k, 0) % prime for k in range(p.degree)]
            if p.scheme != BFV_SCHEME:
                coefficients = ring.to_ntt(coefficients, prime)
            total[number, half, place] = coefficients
    return total


def opened_plaintext(server: CheatingServer, total: U64) -> list[int]:
    """What the first ciphertext of a total decrypts to in BFV: N coefficients between -t/2 and t/2.

    An entry of 7 bytes is the integer nearest to zero with its slot modulo t_0 and, as the second ciphertext is zero, 0
    modulo t_1. So it is a multiple of t_1, and which one is told by its low 7 bytes, as t_0 is below 2**56.
    """
    t, *others = server.context.parameters.plain_moduli
    slots = [int(entry) for entry in server.open(total)]
    if not server.params.modulus:
        (other,), span = others, 2**56
        multiples = scheme.centred([entry * pow(other, -1, span) % span for entry in slots], span)
        slots = [multiple * other % t for multiple in multiples]
    return scheme.centred(ring.from_slots(slots, t), t)


def is_key(found: Iterable[int]) -> bool:
    """Whether a polynomial is what a key looks like; nearly no other one does."""
    return set(found) == {-1, 0, 1}


def key_total(server: CheatingServer) -> U64:
    """(0, q / t): it decrypts to the key, as if that had been encrypted without any noise."""
    p = server.context.parameters
    return forged(server, {}, {0: p.q // p.plain_moduli[0]})


def key_of_wide_entries(server: CheatingServer) -> Key:
    """The key out of a session with as many entries as the key has coefficients, of 7 bytes."""
    return opened_plaintext(server, key_total(server))


def key_of_narrow_entries(server: CheatingServer) -> Key:
    """The same from entries of 5 bytes, and twice as many: the second ciphertext is 2**10 times the key.

    An entry keeps 40 bits of a slot between -t/2 and t/2. For each of the 2**10 values that it may have had, 2**10
    times it modulo t is another number in its 40 bits, which the second ciphertext tells.
    """
    p, cut = server.context.parameters, 2**40 - 1
    t = p.plain_moduli[0]
    total = key_total(server)
    server.form.add_into(total, forged(server, {}, {0: (p.q << 10) // t}, number=1))
    low, high = (part & cut for part in np.split(server.open(total).astype(np.int64), 2))
    slots = np.zeros(DEGREE, dtype=np.int64)
    for upper in range(-(2**9), 2**9):
        guess = low + (upper << 40)
        times = ((guess << 10) + t // 2) % t - t // 2
        slots = np.where((times & cut == high) & (np.abs(guess) <= t // 2), guess, slots)
    return scheme.centred(ring.from_slots((slots % t).tolist(), t), t)


@cache
def stolen_key(kind: str) -> Key:
    """The key of 'bfv' or 'masked' sessions, out of one session."""
    if kind == "masked":
        server = MaskedServer(session(kind, "theft", WIDE)).run().requesting()
    else:
        server = CheatingServer(session(kind, "theft", WIDE)).collect()
    return key_of_wide_entries(server)


# Masks inside the encryption.


class MaskedMember(Member):
    """A client of bfv-masked/v1."""

    def advertise(self, proposal: bytes) -> bytes:
        policy, key = self.federation.policy, self.key
        self.state, sent = core_client.advertise(proposal, policy, key, b"", self.entropy, BFV_MASKED)
        return sent

    def upload(self, context: bytes) -> bytes:
        pack = partial(encrypt, self.federation.params, secrets_of("masked").context)
        self.state, sent = core_client.upload(self.state, self.vector, context, self.parent, pack)
        return sent


class MaskedServer(GuessingServer):
    """The cheating server of secagg/v1 in sessions of bfv-masked/v1, where it has the authority's key as well."""

    def __init__(self, setting: Encrypted, **options: Any) -> None:
        self.setting = setting
        kinds = dict.fromkeys(setting.federation.ids, MaskedMember)
        modulus = setting.federation.params.modulus
        vectors = {client: to_ring(vector, modulus) for client, vector in setting.vectors().items()}
        super().__init__(setting.federation, kinds=kinds, vectors=vectors, **options)

    def run(self, until: str = "upload") -> MaskedServer:
        """Be honest up to and with `hold`, `upload` or `attest`."""
        for step in ("advertise", "share", "hold", "upload", "attest"):
            getattr(self, step)()
            if step == until:
                break
        return self

    def requesting(self) -> CheatingServer:
        """The same server before the authority."""
        asking = CheatingServer(self.setting)
        asking.signed = {client: SignedUpload(upload.header, b"") for client, upload in self.uploads.items()}
        asking.payloads = {client: upload.payload for client, upload in self.uploads.items()}
        return asking

    def unmask(self, victim: bytes) -> U64 | None:
        """As in secagg/v1, once the upload is decrypted."""
        upload = self.uploads[victim]
        masked = self.requesting().read(stolen_key("masked"), victim)
        wire = to_wire(masked, self.federation.params.segments)
        with mock.patch.dict(self.uploads, {victim: Upload(upload.header, wire)}):
            return super().unmask(victim)
