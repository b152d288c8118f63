"""What secagg/v1 is made of: errors, canonical bytes, hashes, signatures, keys, mask streams, shares and graphs.

The lower half of the reference; reference.py is the protocol itself. Sections (§) are those of spec.md. Neither file
imports anything of the package that they specify, and neither is for use: secrets are not erased, the time that
arithmetic takes here depends on them, and results are cached because the vectors replay one session many times.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import itertools
import math
import struct
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Entropy = Callable[[int], bytes]

# Errors, §2.


class Failure(Exception):
    """Base; `reason` is the check or rule that failed, `client` whose fault it is where that is known."""

    def __init__(self, reason: str, client: bytes = b"") -> None:
        super().__init__(f"{type(self).__name__}: {reason} {client.hex()[:12]}")
        self.reason, self.client = reason, client


class ServerFault(Failure):
    """The server sent what no honest server sends."""


class ClientFault(Failure):
    """A client sent what no honest client sends."""


class PolicyRefusal(Failure):
    """A client's policy, or a rule for everyone, forbids what is proposed."""


class SessionAborted(Failure):
    """Too few are left; nobody need have cheated."""


class MisuseError(Failure):
    """The caller of this side broke its contract."""


def require(holds: bool, fault: Callable[..., Failure], *about: Any) -> None:
    """Raise the fault unless the condition holds."""
    if not holds:
        raise fault(*about)


# Bytes, §3: a record is an array, with its tag as first element if it has one.

TYPES: dict[Any, tuple[str, list[str]]] = {}
RECORDS: dict[str, Any] = {}


def record(name: str, tag: str, fields: str) -> Any:
    """Define a structure from `field:type` pairs."""
    pairs = [pair.split(":") for pair in fields.split()]
    kind = namedtuple(name, [field for field, _ in pairs])  # type: ignore[misc]
    TYPES[kind] = (tag, [type_ for _, type_ in pairs])
    RECORDS[name] = kind
    return kind


Segment = record("Segment", "", "name:str length:int width:int signed:bool")
Task = record(
    "Task",
    "",
    "backbone:str backbone_hash:32 preprocessing:str feature_map:str feature_dimension:int feature_bound:float "
    "feature_bits:int normalise:bool classes:str* prompt_mode:str prompt_tokens:int prompt_dimension:int "
    "prompt_bound:float prompt_bits:int prompt_source:bytes tuning:str max_images:int release:str min_contributors:int",
)
Session = record(
    "Session",
    "session",
    "protocol:str name:str nonce:32 server:32 parent:bytes clients:int corrupt:int degree:int min_survivors:int "
    "modulus:int public_context:bytes segments:Segment* task:Task",
)
Proposal = record("Proposal", "proposal", "params:Session signature:64")
Advert = record("Advert", "advert", "session:32 sender:32 mask_key:32 seal_key:32 certificate:..64 signature:64")
Roster = record("Roster", "roster", "session:32 adverts:Advert*")
ShareMessage = record(
    "ShareMessage",
    "share",
    "session:32 sender:32 roster:32 seed_hash:32 holders:int* key_commitments:32* seed_commitments:32* "
    "ciphertext_hashes:32* signature:64",
)
Shares = record("Shares", "shares", "message:ShareMessage ciphertexts:..82*")
Relayed = record("Relayed", "", "message:ShareMessage ciphertext:..82")
Sharer = record("Sharer", "", "identity:32 message:32")
Relay = record("Relay", "relay", "session:32 sharers:Sharer* dealers:Relayed*")
Context = record("Context", "context", "session:32 parent:bytes parent_view:bytes parent_survivors:32* payload:bytes")
Header = record("Header", "header", "session:32 sender:32 roster:32 sharers:32 context:32 payload_hash:32 signature:64")
Upload = record("Upload", "upload", "header:Header payload:bytes")
View = record("View", "view", "session:32 roster:32 sharers:32 context:32 survivors:Header*")
Attestation = record("Attestation", "attestation", "session:32 sender:32 view:32 signature:64")
Request = record("Request", "reveal-request", "session:32 view:32 attestations:Attestation* survivors:32* dropped:32*")
Reveal = record("Reveal", "reveal", "session:32 sender:32 view:32 seed_shares:..33* key_shares:..33* signature:64")
Opening = record("Opening", "opening", "session:32 payloads:bytes* seeds:32* mask_secrets:32*")


# For each type the forms of its head: below a limit, first byte and how many bytes of length (or value) follow.
UINT = ((2**7, 0x00, 0), (2**8, 0xCC, 1), (2**16, 0xCD, 2), (2**32, 0xCE, 4), (2**64, 0xCF, 8))
STR = ((2**5, 0xA0, 0), (2**8, 0xD9, 1), (2**16, 0xDA, 2), (2**32, 0xDB, 4))
BIN = ((2**8, 0xC4, 1), (2**16, 0xC5, 2), (2**32, 0xC6, 4))
ARRAY = ((2**4, 0x90, 0), (2**16, 0xDC, 2), (2**32, 0xDD, 4))
FIXED = {0xC2: False, 0xC3: True}


def head(number: int, forms: tuple[tuple[int, int, int], ...]) -> bytes:
    """The shortest head for a length or an integer, §3.1."""
    for limit, first, size in forms:
        if 0 <= number < limit:
            return bytes([first]) + number.to_bytes(size, "big") if size else bytes([first + number])
    raise ValueError("too large or negative")


def encode(value: Any) -> bytes:
    """Canonical bytes, §3.1."""
    if isinstance(value, bytes):
        return head(len(value), BIN) + value
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return head(value, UINT)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return head(len(value.encode()), STR) + value.encode()
    tag = TYPES[type(value)][0] if type(value) in TYPES else ""
    items = [tag, *value] if tag else value
    return head(len(items), ARRAY) + b"".join(map(encode, items))


def parse(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The value that starts at a place, and where it ends; any MessagePack form of it, §3.1."""

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        if at > len(data):
            raise ValueError("truncated")
        return data[at - count : at]

    first = take(1)[0]
    if first in FIXED:
        return FIXED[first], at
    if first == 0xCB:
        return struct.unpack(">d", take(8))[0], at
    for forms in (UINT, STR, BIN, ARRAY):
        for limit, code, size in forms:
            if first == code if size else code <= first < code + limit:
                number = int.from_bytes(take(size), "big") if size else first - code
                if forms is UINT:
                    return number, at
                if forms is not ARRAY:
                    text = take(number)
                    return (text.decode() if forms is STR else text), at
                items = []
                for _ in range(number):
                    item, at = parse(data, at)
                    items.append(item)
                return items, at
    raise ValueError("not in the subset")


def build(type_: str, value: Any) -> Any:
    """A parsed value as one of a field's type, §3.2."""
    if type_.endswith("*"):
        if not isinstance(value, list):
            raise ValueError(type_)
        return tuple(build(type_[:-1], item) for item in value)
    if type_ in RECORDS:
        kind = RECORDS[type_]
        tag, fields = TYPES[kind]
        if not isinstance(value, list) or (tag and value[:1] != [tag]):
            raise ValueError(type_)
        return kind(*(build(*pair) for pair in zip(fields, value[bool(tag) :], strict=True)))
    plain = {"str": str, "int": int, "bool": bool, "float": float}.get(type_, bytes)
    size = len(value) if type(value) is bytes else 0
    least, most = (int(type_), int(type_)) if type_.isdigit() else (0, int(type_[2:]) if type_[:2] == ".." else size)
    if type(value) is not plain or not least <= size <= most:
        raise ValueError(type_)
    return value


@functools.cache
def read(kind: Any, data: bytes) -> Any:
    """The record of which these are the canonical bytes, or nothing."""
    try:
        value, end = parse(data)
        message = build(kind.__name__, value)
    except (ValueError, RecursionError):
        return None
    return message if end == len(data) and encode(message) == data else None


def decode(kind: Any, data: bytes, fault: Callable[[str], Failure]) -> Any:
    """The record of which these are the canonical bytes, §3.3."""
    message = read(kind, data)
    require(message is not None, fault, "encoding")
    return message


# Hashes and signatures, §4.


def label(use: str) -> bytes:
    """A label of §4.1."""
    return b"fedopal-secure/secagg/v1/" + use.encode() + b"\0"


def digest(use: str, *parts: bytes) -> bytes:
    """H(label, parts), §4.1."""
    return hashlib.sha256(label(use) + b"".join(parts)).digest()


SIGN = {
    Proposal: "sign proposal",
    Advert: "sign advert",
    ShareMessage: "sign share",
    Header: "sign upload",
    Attestation: "sign attestation",
    Reveal: "sign reveal",
}


@functools.cache
def identity_of(signing_key: bytes) -> bytes:
    """The Ed25519 public key of a 32-byte private key, §2.1."""
    return Ed25519PrivateKey.from_private_bytes(signing_key).public_key().public_bytes_raw()


def sign(signing_key: bytes, kind: Any, *fields: Any) -> Any:
    """A signed message, §4.2."""
    unsigned = kind(*fields, bytes(64))
    return unsigned._replace(signature=sign_bytes(signing_key, SIGN[kind], encode(unsigned)))


@functools.cache
def sign_bytes(signing_key: bytes, use: str, data: bytes) -> bytes:
    """An Ed25519 signature for one use, §4.2."""
    return Ed25519PrivateKey.from_private_bytes(signing_key).sign(label(use) + data)


@functools.cache
def verify(identity: bytes, use: str, data: bytes, signature: bytes) -> bool:
    """Whether a signature is an identity's, §4.2."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, label(use) + data)
    except (InvalidSignature, ValueError):
        return False
    return True


@functools.cache
def is_signed(m: Any) -> bool:
    """Whether a client's message is signed by its sender, §4.2; the signature is its last field."""
    return verify(m.sender, SIGN[type(m)], encode(m)[:-64] + bytes(64), m.signature)


@functools.cache
def message_hash(m: Any) -> bytes:
    """H(share message), §4.1."""
    return digest("share message", encode(m))


def certify(authority_key: bytes, identity: bytes) -> bytes:
    """An authority's certificate, §2.1."""
    return sign_bytes(authority_key, "sign certificate", identity)


def commitment(session: bytes, dealer: bytes, position: int, kind: bytes, share: bytes) -> bytes:
    """What a dealer publishes of a share, §4.1."""
    return digest("share commitment", session, dealer, (position + 1).to_bytes(4, "big"), kind, share)


KEY, SEED = b"\1", b"\2"

# Keys and streams, §5.


def hkdf(secret: bytes, use: str, *info: bytes) -> bytes:
    """HKDF-SHA256 without salt, 32 bytes (RFC 5869), §5.1: one block is enough."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, label(use) + b"".join(info) + b"\1", "sha256")


@functools.cache
def public(secret: bytes) -> bytes:
    """The X25519 public key of 32 bytes, §5.1."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


@functools.cache
def agree(secret: bytes, key: bytes, owner: bytes) -> bytes:
    """X25519, with the two refusals of §5.1."""
    require(int.from_bytes(key, "little") < 2**255 - 19, ClientFault, "key.canonical", owner)
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        raise ClientFault("key.order", owner) from None


def seal_key(shared: bytes, sender: Any, recipient: Any, bound: bytes) -> bytes:
    """The key that seals shares from one advert's owner to another's, §5.2; `bound` is session and H(roster)."""
    return hkdf(shared, "key seal", sender.sender, recipient.sender, sender.seal_key, recipient.seal_key, bound)


def seal(shared: bytes, sender: Any, recipient: Any, bound: bytes, pair: bytes) -> bytes:
    """A pair of shares, encrypted, §5.2."""
    return AESGCM(seal_key(shared, sender, recipient, bound)).encrypt(bytes(12), pair, bound)


def unseal(shared: bytes, sender: Any, recipient: Any, bound: bytes, ciphertext: bytes) -> bytes | None:
    """The inverse, or nothing if it does not open, §5.2."""
    try:
        return AESGCM(seal_key(shared, sender, recipient, bound)).decrypt(bytes(12), ciphertext, bound)
    except (InvalidTag, ValueError):
        return None


def residues(key: bytes, modulus: int) -> Iterator[int]:
    """The endless stream of a mask key, §5.4."""
    keystream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    while True:
        word = int.from_bytes(keystream.update(bytes(8)), "little")
        word &= 2 ** modulus.bit_length() - 1 if modulus else 2**64 - 1
        if not modulus or word < modulus:
            yield word


def add_stream(vector: list[int], key: bytes, sign: int, modulus: int) -> list[int]:
    """A vector with a stream added or subtracted, §5.4."""
    return [(v + sign * r) % (modulus or 2**64) for v, r in zip(vector, residues(key, modulus), strict=False)]


def add_self(vector: list[int], seed: bytes, identity: bytes, binding: bytes, sign: int, modulus: int) -> list[int]:
    """The self-mask, §5.3; `binding` is session, H(roster) and H(context)."""
    return add_stream(vector, hkdf(seed, "key self mask", identity, binding), sign, modulus)


def add_pair(vector: list[int], secret: bytes, own: Any, peer: Any, binding: bytes, modulus: int) -> list[int]:
    """The mask that the owner of an advert shares with a peer, with the owner's sign, §5.3."""
    low, high = sorted((own, peer), key=lambda advert: advert.sender)
    shared = agree(secret, peer.mask_key, peer.sender)
    key = hkdf(shared, "key pair mask", low.sender, high.sender, low.mask_key, high.mask_key, binding)
    return add_stream(vector, key, 1 if own.sender == low.sender else -1, modulus)


def is_prime(number: int) -> bool:
    """Whether a number below 2^64 is prime (Miller-Rabin with the first twelve primes), §5.5."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if number in bases or any(number % base == 0 for base in bases):
        return number in bases
    twos = (number - 1 & -(number - 1)).bit_length() - 1
    odd = number - 1 >> twos
    runs = ([pow(base, odd << i, number) for i in range(twos)] for base in bases)
    return number > 1 and all(run[0] == 1 or number - 1 in run for run in runs)


def entries(p: Any) -> Iterator[int]:
    """The width of every entry, §5.5."""
    return (s.width for s in p.segments for _ in range(s.length))


def to_wire(vector: Iterable[int], p: Any) -> bytes:
    """A vector as a payload, §5.5."""
    return b"".join((v % 256**w).to_bytes(w, "little") for v, w in zip(vector, entries(p), strict=True))


def from_wire(payload: bytes, p: Any) -> list[int]:
    """A payload as a vector, §5.5; its length has been checked."""
    found, at = [], 0
    for width in entries(p):
        found.append(int.from_bytes(payload[at : at + width], "little"))
        at += width
    return found


# Sharing, §6.

PRIME = 2**256 + 297


def split(secret: bytes, threshold: int, positions: Sequence[int], entropy: Entropy) -> list[bytes]:
    """One share for the holder at each roster position, §6."""
    polynomial: list[int] = []
    while len(polynomial) < threshold - 1:
        drawn = int.from_bytes(entropy(33), "big") >> 7
        if drawn < PRIME:
            polynomial.append(drawn)
    polynomial.append(int.from_bytes(secret, "big"))
    values = [functools.reduce(lambda y, c, x=i + 1: (y * x + c) % PRIME, polynomial, 0) for i in positions]  # type: ignore[misc]
    return [value.to_bytes(33, "big") for value in values]


def value_at(x: int, points: Sequence[tuple[int, int]]) -> int:
    """The value at x of the polynomial through the points (Lagrange), §6."""
    total = 0
    for own, y in points:
        above = math.prod(x - other for other, _ in points if other != own)
        below = math.prod(own - other for other, _ in points if other != own)
        total += y * above * pow(below, -1, PRIME)
    return total % PRIME


def combine(shares: dict[int, bytes], threshold: int) -> bytes | None:
    """The secret behind shares by roster position, or nothing if they are not of one, §6."""
    points = [(position + 1, int.from_bytes(share, "big")) for position, share in shares.items()]
    if any(y >= PRIME for _, y in points):
        return None
    if any(value_at(x, points[:threshold]) != y for x, y in points[threshold:]):
        return None
    secret = value_at(0, points[:threshold])
    return secret.to_bytes(32, "big") if secret < 2**256 else None


# Graph, §7.


@functools.cache
def corrupt_holders(n: int, k: int, c: int) -> int:
    """c_max of a sparse graph, §7.2."""
    ways, tail = math.comb(n - 1, k), 0
    for j in range(min(k, c), 0, -1):
        tail += math.comb(c, j) * math.comb(n - 1 - c, k - j)
        if n * tail * 2**100 > ways:
            return j
    return 0


@functools.cache
def partial_sum_bound(n: int, k: int, c: int, t: int, least: int) -> Fraction:
    """The chance that a sum over fewer than `least` honest clients can be had, at most, §7.3."""
    total = Fraction(0)
    for s in range(1, min(least, n - c + 1)):
        inside = s - 1 + c
        ways = sum(math.comb(inside, d) * math.comb(n - 1 - inside, k - d) for d in range(t - 1, min(k, inside) + 1))
        total += math.comb(n - c, s) * Fraction(ways, math.comb(n - 1, k)) ** s
    return total


class Graph(NamedTuple):
    """How many holders everyone has, and how many shares rebuild a secret."""

    roster: int
    degree: int
    holders: int
    threshold: int
    sound: bool


def threshold_of(p: Any, n: int) -> int:
    """How many shares rebuild a secret in a roster of n, §7.2."""
    if not p.degree:
        return int(n + p.corrupt) // 2 + 1
    return int(p.degree + 1 + corrupt_holders(n, p.degree, p.corrupt)) // 2 + 1


def graph_of(p: Any, n: int, cohort: int) -> Graph:
    """The graph of a roster of n, and whether it is sound for a cohort, §7."""
    k, t = p.degree, threshold_of(p, n)
    if not k:
        return Graph(n, 0, n, t, True)
    least = max(math.ceil(Fraction(n - p.corrupt, 3)), cohort - p.corrupt)
    sound = k < n and t <= k + 1 and partial_sum_bound(n, k, p.corrupt, t, least) <= Fraction(1, 2**40)
    return Graph(n, k, k + 1, t, sound)


def draw(graph: Graph, position: int, entropy: Entropy) -> tuple[int, ...]:
    """The holders of the client at a position, §7.1."""
    if not graph.degree:
        return tuple(range(graph.roster))
    others, chosen = graph.roster - 1, {position}
    while len(chosen) <= graph.degree:
        word = int.from_bytes(entropy(8), "big")
        if word < 2**64 - 2**64 % others:
            chosen.add(word % others + (word % others >= position))
    return tuple(sorted(chosen))


def fits(m: Any, graph: Graph, position: int) -> bool:
    """Whether a share message has the holders and entries that it should, §9.2."""
    sizes = {len(m.holders), len(m.key_commitments), len(m.seed_commitments), len(m.ciphertext_hashes)}
    return sizes == {graph.holders} and position in m.holders and ascending(m.holders) and m.holders[-1] < graph.roster


def quorum(n: int, c: int) -> int:
    """How many signatures make a view the only one, §7.4."""
    return (n + c) // 2 + 1


def ascending(items: Sequence[Any]) -> bool:
    """Whether each is below the next."""
    return all(low < high for low, high in itertools.pairwise(items))
