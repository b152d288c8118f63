"""secagg/v1 in plain Python: the rules for parameters, a client and a server, to be read beside spec.md.

The upper half of the reference; primitives.py holds what both sides are made of. Sections (§) are those of spec.md, and
an error's `reason` is a name from its tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from protocols.secagg.v1.primitives import (
    KEY,
    SEED,
    Advert,
    Attestation,
    ClientFault,
    Context,
    Entropy,
    Failure,
    Graph,
    Header,
    MisuseError,
    Opening,
    PolicyRefusal,
    Proposal,
    Relay,
    Relayed,
    Request,
    Reveal,
    Roster,
    ServerFault,
    SessionAborted,
    ShareMessage,
    Sharer,
    Shares,
    Upload,
    View,
    add_pair,
    add_self,
    agree,
    ascending,
    combine,
    commitment,
    decode,
    digest,
    draw,
    encode,
    fits,
    from_wire,
    graph_of,
    identity_of,
    is_prime,
    is_signed,
    message_hash,
    public,
    quorum,
    require,
    seal,
    sign,
    split,
    threshold_of,
    to_wire,
    unseal,
    verify,
)

# Parameters and policies, §8.


class Policy(NamedTuple):
    """What a client agreed to, §8.2."""

    identities: list[bytes]
    authority: bytes
    servers: list[bytes]
    protocols: list[str]
    corrupt: int
    min_survivors: int
    min_threshold: int
    backbone: str
    backbone_hash: bytes
    preprocessing: str
    classes: tuple[str, ...]
    max_images: int
    prompt_modes: list[str]
    release: str
    min_contributors: int

    def admits(self, identity: bytes, certificate: bytes) -> bool:
        """Whether an identity may take part, §2.2."""
        certified = bool(self.authority) and verify(self.authority, "sign certificate", identity, certificate)
        return identity in self.identities or certified


def rules(p: Any) -> Iterator[tuple[str, bool]]:
    """The rules of §8.1 in order, each with whether it holds."""
    t, census, prime, sparse = p.task, p.task.min_contributors > 0, p.modulus > 0, p.clients > 256
    names = [s.name for s in p.segments]
    yield "protocol", p.protocol == "secagg/v1"
    yield "name", p.name != ""
    yield "parent", len(p.parent) in (0, 32)
    yield "clients", 3 <= p.clients <= 2**14
    yield "corrupt", p.corrupt < p.clients
    yield "min_survivors", max(3, p.corrupt + 2) <= p.min_survivors <= p.clients
    yield "degree", 1 <= p.degree <= 1024 if sparse else p.degree == 0
    yield "modulus", not prime or (2 < p.modulus < 2**63 and is_prime(p.modulus))
    yield "public_context", p.public_context == b""
    yield "segments", len(names) == len(set(names)) > 0
    for s in p.segments:
        yield "segments", 1 <= s.length <= 2**32 and 1 <= s.width <= 8
        yield "segments", not prime or s.width == (p.modulus.bit_length() + 7) // 8
    yield "segments", sum(s.length for s in p.segments) <= 2**32
    yield "classes", len(t.classes) == len(set(t.classes)) >= 2
    yield "feature_dimension", 2 <= t.feature_dimension <= 2**16
    yield "feature_bits", 1 <= t.feature_bits <= 24 and 4 ** (t.feature_bits + 1) > t.feature_dimension
    yield "feature_bound", 2.0**-64 <= t.feature_bound <= 2.0**64
    yield "max_images", 1 <= t.max_images <= 2**40
    yield "min_contributors", t.min_contributors <= p.clients
    yield "min_contributors", not (census and (t.release or sparse)) and (census or p.name != "census")
    yield "parent", not (p.name == "census" and p.parent) and (not census or p.name == "census" or p.parent != b"")
    yield "prompt_mode", t.prompt_mode in ("none", "public", "local", "two-phase")
    yield "prompt_bits", 1 <= t.prompt_bits <= 32
    yield "prompt_bound", 2.0**-64 <= t.prompt_bound <= 2.0**64
    if t.prompt_mode == "none":
        yield "prompts", (t.prompt_tokens, t.prompt_dimension, t.prompt_source, t.tuning) == (0, 0, b"", "")
    else:
        sizes = 1 <= t.prompt_tokens <= 2**12 and 1 <= t.prompt_dimension <= 2**16
        yield "prompts", sizes and len(t.prompt_source) == 32


def policy_rules(policy: Policy, p: Any) -> Iterator[tuple[str, bool]]:
    """The rules of §8.2 in order; those of §8.1 come second."""
    t = p.task
    yield "protocols", p.protocol in policy.protocols
    yield from rules(p)
    yield "servers", p.server in policy.servers
    yield "corrupt", p.corrupt >= policy.corrupt
    yield "min_survivors", p.min_survivors >= policy.min_survivors
    yield "min_threshold", threshold_of(p, p.clients) >= policy.min_threshold
    for name in ("backbone", "backbone_hash", "preprocessing", "classes", "max_images"):
        yield name, getattr(t, name) == getattr(policy, name)
    yield "prompt_modes", t.prompt_mode in policy.prompt_modes
    yield "release", t.release == policy.release
    yield "min_contributors", t.min_contributors >= policy.min_contributors


def check(found: Iterator[tuple[str, bool]]) -> None:
    """Refuse by the first rule that does not hold, §8."""
    for rule, holds in found:
        require(holds, PolicyRefusal, rule)


def session_id(p: Any) -> bytes:
    """The id of a session, §4.1."""
    return digest("session", encode(p))


# Order of steps, §9: event -> (phases in which it may come, the phase after it).

CLIENT = {
    "advertise": (["new"], "advertised"),
    "share": (["advertised"], "shared"),
    "hold": (["shared"], "ready"),
    "upload": (["ready"], "uploaded"),
    "attest": (["ready", "uploaded"], "attested"),
    "reveal": (["attested"], "revealed"),
}


def step(method: Callable[..., Any]) -> Callable[..., Any]:
    """A client's step: in its turn only, and the session is over for the client if it fails, §2.3 and §9."""

    @functools.wraps(method)
    def call(self: Client, *given: Any) -> Any:
        before, after = CLIENT[method.__name__]
        require(self.phase in before, MisuseError, "order")
        try:
            result = method(self, *given)
        except Failure as failure:
            self.phase = self.phase if isinstance(failure, MisuseError) else "over"
            raise
        self.phase = after
        return result

    return call


class Parent(NamedTuple):
    """What a client that has revealed keeps for the session that continues this one, §12."""

    session: bytes
    view: bytes
    survivors: tuple[bytes, ...]
    witness: Any  # of a census: parameters, roster, view, and seed hashes by sharer
    census: Any  # found earlier in the chain: survivors, contributors by class


class Client:
    """One client in one session, §9."""

    def __init__(self, signing_key: bytes, policy: Policy, entropy: Entropy, certificate: bytes = b"") -> None:
        self.key, self.identity, self.policy = signing_key, identity_of(signing_key), policy
        self.entropy, self.certificate, self.phase = entropy, certificate, "new"

    @step
    def advertise(self, proposal_bytes: bytes) -> bytes:
        """§9.1."""
        proposal = decode(Proposal, proposal_bytes, ServerFault)
        self.params = p = proposal.params
        unsigned = encode(proposal)[:-64] + bytes(64)
        signed = verify(p.server, "sign proposal", unsigned, proposal.signature)
        require(signed, ServerFault, "proposal.signature")
        check(policy_rules(self.policy, p))
        self.session = session_id(p)
        self.mask_secret, self.seal_secret, self.seed = (self.entropy(32) for _ in range(3))
        keys = public(self.mask_secret), public(self.seal_secret)
        self.advert = sign(self.key, Advert, self.session, self.identity, *keys, self.certificate)
        return encode(self.advert)

    @step
    def share(self, roster_bytes: bytes) -> bytes:
        """§9.2."""
        self.roster = roster = decode(Roster, roster_bytes, ServerFault)
        ids, p = [a.sender for a in roster.adverts], self.params
        require(roster.session == self.session, ServerFault, "roster.session")
        require(len(ids) <= p.clients, ServerFault, "roster.size")
        require(ascending(ids), ServerFault, "roster.order")
        require(self.advert in roster.adverts, ServerFault, "roster.own")
        for a in roster.adverts:
            require(self.policy.admits(a.sender, a.certificate), PolicyRefusal, "members")
        keys = [key for a in roster.adverts for key in (a.mask_key, a.seal_key)]
        require(len(set(keys)) == len(keys), ServerFault, "roster.keys")
        self.cohort = max(3, p.corrupt + 2, p.min_survivors, self.policy.min_survivors)
        require(len(ids) >= self.cohort, PolicyRefusal, "min_survivors")
        self.graph = graph = graph_of(p, len(ids), self.cohort)
        require(graph.sound, PolicyRefusal, "degree")
        require(graph.threshold >= self.policy.min_threshold, PolicyRefusal, "min_threshold")
        self.ids, self.position, self.roster_hash = ids, ids.index(self.identity), digest("roster", roster_bytes)
        self.adverts = dict(zip(ids, roster.adverts, strict=True))
        self.holders = draw(graph, self.position, self.entropy)
        self.check_adverts(ids[i] for i in self.holders)
        key_shares = split(self.mask_secret, graph.threshold, self.holders, self.entropy)
        seed_shares = split(self.seed, graph.threshold, self.holders, self.entropy)
        bound, ciphertexts, commitments = self.session + self.roster_hash, [], []
        for i, key_share, seed_share in zip(self.holders, key_shares, seed_shares, strict=True):
            holder = roster.adverts[i]
            if i == self.position:
                self.own_held = key_share, seed_share
                ciphertexts.append(b"")
            else:
                shared = agree(self.seal_secret, holder.seal_key, holder.sender)
                ciphertexts.append(seal(shared, self.advert, holder, bound, key_share + seed_share))
        for kind, shares in ((KEY, key_shares), (SEED, seed_shares)):
            pairs = zip(self.holders, shares, strict=True)
            commitments.append(tuple(commitment(self.session, self.identity, i, kind, s) for i, s in pairs))
        hashes = tuple(digest("ciphertext", c) for c in ciphertexts)
        own = self.session, self.identity, self.roster_hash, digest("seed commitment", self.seed), self.holders
        self.own = sign(self.key, ShareMessage, *own, *commitments, hashes)
        return encode(Shares(self.own, tuple(ciphertexts)))

    def check_adverts(self, whose: Any) -> None:
        """Adverts of those that this client deals with are signed for this session, §9.2 and §9.3."""
        for a in (self.adverts[identity] for identity in whose):
            require(a.session == self.session and is_signed(a), ServerFault, "roster.advert")

    @step
    def hold(self, relay_bytes: bytes) -> None:
        """§9.3."""
        relay = decode(Relay, relay_bytes, ServerFault)
        sharers = {s.identity: s.message for s in relay.sharers}
        dealers = [d.message for d in relay.dealers]
        require(relay.session == self.session, ServerFault, "relay.session")
        require(ascending([s.identity for s in relay.sharers]), ServerFault, "relay.order")
        require(set(sharers) <= set(self.ids), ServerFault, "relay.member")
        require(ascending([m.sender for m in dealers]), ServerFault, "relay.dealers")
        for m in dealers:
            require(sharers.get(m.sender) == message_hash(m), ServerFault, "relay.listed")
        require(self.own in dealers, ServerFault, "relay.own")
        for m in dealers:
            bound = (m.session, m.roster) == (self.session, self.roster_hash)
            require(bound and is_signed(m), ServerFault, "relay.signature")
        for m in dealers:
            suits = fits(m, self.graph, self.ids.index(m.sender)) and self.position in m.holders
            require(suits, ServerFault, "relay.fit")
        require(self.graph.degree > 0 or len(dealers) == len(sharers), ServerFault, "relay.complete")
        for d in relay.dealers:
            signed = d.message.ciphertext_hashes[d.message.holders.index(self.position)]
            require(digest("ciphertext", d.ciphertext) == signed, ServerFault, "relay.ciphertext")
        own_holders = {self.ids[i] for i in self.holders}
        require(len(own_holders & set(sharers)) >= self.graph.threshold, ServerFault, "relay.threshold")
        self.dealt = {m.sender: m for m in dealers}
        self.check_adverts(dealer for dealer in self.dealt if dealer not in own_holders)
        self.held = {d.message.sender: self.open(d) for d in relay.dealers}
        self.sharers, self.sharers_hash = sorted(sharers), digest("sharers", *(x for s in relay.sharers for x in s))
        self.peers = sorted((set(self.dealt) | own_holders) & set(sharers) - {self.identity})

    def open(self, dealt: Any) -> tuple[bytes, bytes] | None:
        """One dealer's two shares, or nothing if there is a dispute, §9.3."""
        m = dealt.message
        if m.sender == self.identity:
            return self.own_held
        dealer, bound, place = self.adverts[m.sender], self.session + self.roster_hash, m.holders.index(self.position)
        shared = agree(self.seal_secret, dealer.seal_key, dealer.sender)
        pair = unseal(shared, dealer, self.advert, bound, dealt.ciphertext)
        if pair is None or len(pair) != 66:
            return None
        expected = m.key_commitments[place], m.seed_commitments[place]
        halves = (KEY, pair[:33]), (SEED, pair[33:])
        found = tuple(commitment(self.session, m.sender, self.position, *half) for half in halves)
        return (pair[:33], pair[33:]) if found == expected else None

    def accept_context(self, context_bytes: bytes, parent: Parent | None) -> None:
        """§9.4."""
        p, c = self.params, decode(Context, context_bytes, ServerFault)
        require(c.session == self.session, ServerFault, "context.session")
        require(c.parent == p.parent, ServerFault, "context.parent")
        known = (b"", b"", ()) if parent is None else parent[:3]
        require((c.parent, c.parent_view, c.parent_survivors) == known, ServerFault, "context.view")
        census: Any = None
        if parent is not None:
            census = recheck(parent.witness, c.payload) if parent.witness else parent.census
        self.context, self.context_hash, self.census = c, digest("context", context_bytes), census
        self.check_census(None)

    def check_census(self, survivors: Sequence[bytes] | None) -> None:
        """Every class keeps enough honest contributors, §12.3."""
        least = self.params.task.min_contributors
        if least == 0 or self.params.name == "census":
            return
        require(self.census is not None, PolicyRefusal, "min_contributors")
        lost = 0 if survivors is None else len(set(self.census[0]) - set(survivors))
        for contributors in self.census[1]:
            require(contributors - lost - self.params.corrupt >= least, PolicyRefusal, "min_contributors")

    @step
    def upload(self, vector: list[int], context_bytes: bytes, parent: Parent | None) -> bytes:
        """§9.4."""
        p, modulus = self.params, self.params.modulus
        whole = len(vector) == sum(s.length for s in p.segments)
        require(whole and all(0 <= v < (modulus or 2**64) for v in vector), MisuseError, "vector")
        self.accept_context(context_bytes, parent)
        among = not p.parent or self.identity in self.context.parent_survivors
        require(among, ServerFault, "context.survivor")
        self.binding = self.session + self.roster_hash + self.context_hash
        masked = add_self(vector, self.seed, self.identity, self.binding, 1, modulus)
        for peer in self.peers:
            masked = add_pair(masked, self.mask_secret, self.advert, self.adverts[peer], self.binding, modulus)
        payload = to_wire(masked, p)
        hashes = self.roster_hash, self.sharers_hash, self.context_hash, digest("payload", payload)
        self.header = sign(self.key, Header, self.session, self.identity, *hashes)
        return encode(Upload(self.header, payload))

    @step
    def attest(self, view_bytes: bytes, context_bytes: bytes | None = None, parent: Parent | None = None) -> bytes:
        """§9.5; a client that did not upload gives the context and parent here."""
        require((self.phase == "ready") == (context_bytes is not None), MisuseError, "context")
        if context_bytes is not None:
            self.accept_context(context_bytes, parent)
        view = decode(View, view_bytes, ServerFault)
        shown = (self.session, self.roster_hash, self.sharers_hash, self.context_hash)
        require(view[:4] == shown, ServerFault, "view.binding")
        ids = [h.sender for h in view.survivors]
        require(ascending(ids), ServerFault, "view.order")
        require(set(ids) <= set(self.sharers), ServerFault, "view.sharer")
        for h in view.survivors:
            require((h.session, h.roster, h.sharers, h.context) == shown, ServerFault, "view.header")
        for h in view.survivors:
            require(is_signed(h), ServerFault, "view.signature")
        own = [self.header] if self.phase == "uploaded" else []
        require([h for h in view.survivors if h.sender == self.identity] == own, ServerFault, "view.own")
        require(len(ids) >= self.cohort, PolicyRefusal, "min_survivors")
        inherited = not self.params.parent or set(ids) <= set(self.context.parent_survivors)
        require(inherited, ServerFault, "view.parent")
        for m in self.dealt.values() if self.graph.degree else ():
            kept = sum(self.ids[i] in ids for i in m.holders)
            require(m.sender not in ids or kept >= self.graph.threshold, ServerFault, "view.holders")
        self.check_census(ids)
        witness, self.view_hash = None, digest("view", view_bytes)
        if self.params.name == "census":
            witness = self.params, self.roster, view, {dealer: m.seed_hash for dealer, m in self.dealt.items()}
        self.parent = Parent(self.session, self.view_hash, tuple(ids), witness, self.census)
        return encode(sign(self.key, Attestation, self.session, self.identity, self.view_hash))

    @step
    def reveal(self, request_bytes: bytes) -> bytes:
        """§9.6."""
        request, survivors = decode(Request, request_bytes, ServerFault), self.parent.survivors
        dropped = tuple(s for s in self.sharers if s not in survivors)
        signers = [a.sender for a in request.attestations]
        require((request.session, request.view) == (self.session, self.view_hash), ServerFault, "request.view")
        require(ascending(signers), ServerFault, "request.order")
        require(set(signers) <= set(self.ids), ServerFault, "request.member")
        for a in request.attestations:
            bound = (a.session, a.view) == (self.session, self.view_hash)
            require(bound and is_signed(a), ServerFault, "request.signature")
        require(len(signers) >= quorum(len(self.ids), self.params.corrupt), ServerFault, "request.quorum")
        require((request.survivors, request.dropped) == (survivors, dropped), ServerFault, "request.lists")
        shares = [
            tuple((self.held[dealer] or (b"", b""))[kind] for dealer in dealers if dealer in self.held)
            for dealers, kind in ((survivors, 1), (dropped, 0))
        ]
        return encode(sign(self.key, Reveal, self.session, self.identity, self.view_hash, *shares))


# Recovery, §11, and the census, §12.


def unmask(total: list[int], p: Any, adverts: Any, binding: bytes, seeds: Any, secrets: Any, peers: Any) -> list[int]:
    """The sum without its masks, §11; `seeds` by survivor, `secrets` and `peers` (survivors) by dropped sharer."""
    for survivor, seed in seeds.items():
        total = add_self(total, seed, survivor, binding, -1, p.modulus)
    for gone, secret in secrets.items():
        for survivor in peers[gone]:  # the survivor's sign, turned round, is that of the one that is gone
            total = add_pair(total, secret, adverts[gone], adverts[survivor], binding, p.modulus)
    return from_wire(to_wire(total, p), p)


def recheck(witness: Any, opening_bytes: bytes) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Survivors of a census and its sum, from its opening, §12.2."""
    opening = decode(Opening, opening_bytes, ServerFault)
    p, roster, view, seed_hashes = witness
    adverts = {a.sender: a for a in roster.adverts}
    survivors = tuple(h.sender for h in view.survivors)
    dropped = sorted(set(seed_hashes) - set(survivors))
    counts = [len(x) for x in opening[1:]]
    fit = opening.session == view.session and counts == [len(survivors), len(survivors), len(dropped)]
    require(fit, ServerFault, "opening.fit")
    total, modulus = [0] * sum(s.length for s in p.segments), p.modulus or 2**64
    for payload, h in zip(opening.payloads, view.survivors, strict=True):
        whole = len(payload) == len(to_wire(total, p))
        require(whole and digest("payload", payload) == h.payload_hash, ServerFault, "opening.payload")
    for survivor, seed in zip(survivors, opening.seeds, strict=True):
        require(digest("seed commitment", seed) == seed_hashes[survivor], ServerFault, "opening.seed")
    for gone, secret in zip(dropped, opening.mask_secrets, strict=True):
        require(public(secret) == adverts[gone].mask_key, ServerFault, "opening.key")
    for payload in opening.payloads:
        masked = from_wire(payload, p)
        require(max(masked) < modulus, ServerFault, "opening.residue")
        total = [(a + b) % modulus for a, b in zip(total, masked, strict=True)]
    seeds = dict(zip(survivors, opening.seeds, strict=True))
    secrets = dict(zip(dropped, opening.mask_secrets, strict=True))
    binding = view.session + view.roster + view.context
    total = unmask(total, p, adverts, binding, seeds, secrets, dict.fromkeys(dropped, survivors))
    return survivors, tuple(total)


class Sum(NamedTuple):
    """What a session ends with; `blame` is (who, holder or nobody, why)."""

    total: list[int]
    survivors: tuple[bytes, ...]
    dropped: tuple[bytes, ...]
    threshold: int
    blame: list[tuple[bytes, bytes, str]]
    opening: bytes


class Server:
    """The server of one session, §10."""

    def __init__(self, signing_key: bytes, policy: Policy, params: Any) -> None:
        check(rules(params))
        require(identity_of(signing_key) == params.server, MisuseError, "server")
        self.key, self.policy, self.params, self.session = signing_key, policy, params, session_id(params)
        self.phase = "advertise"
        self.adverts: dict[bytes, Any] = {}
        self.shares: dict[bytes, Any] = {}
        self.headers: dict[bytes, Any] = {}
        self.payloads: dict[bytes, bytes] = {}
        self.attestations: dict[bytes, Any] = {}
        self.reveals: dict[bytes, Any] = {}
        self.blame: list[tuple[bytes, bytes, str]] = []

    def propose(self) -> bytes:
        """The proposal, §4.2."""
        return encode(sign(self.key, Proposal, self.params))

    def receive(self, sender: bytes, data: bytes) -> None:
        """One message of the present phase, §10; a refused message changes nothing."""
        receivers: Any = {
            "advertise": self.receive_advert,
            "share": self.receive_shares,
            "upload": self.receive_upload,
            "attest": self.receive_attestation,
            "reveal": self.receive_reveal,
        }
        require(self.phase in receivers, MisuseError, "order")
        receivers[self.phase](sender, data, lambda reason: ClientFault(reason, sender))

    def receive_advert(self, sender: bytes, data: bytes, fault: Any) -> None:
        """§10.1."""
        a = decode(Advert, data, fault)
        taken = {key for other in self.adverts.values() for key in (other.mask_key, other.seal_key)}
        require(a.sender == sender, fault, "advert.sender")
        require(a.session == self.session, fault, "advert.session")
        require(sender not in self.adverts, fault, "advert.twice")
        require(self.policy.admits(sender, a.certificate), fault, "advert.member")
        require(is_signed(a), fault, "advert.signature")
        require(len(self.adverts) < self.params.clients, fault, "advert.full")
        require(a.mask_key != a.seal_key and not taken & {a.mask_key, a.seal_key}, fault, "advert.key")
        for key in (a.mask_key, a.seal_key):
            agree(bytes(32), key, sender)
        self.adverts[sender] = a

    def receive_shares(self, sender: bytes, data: bytes, fault: Any) -> None:
        """§10.2."""
        s = decode(Shares, data, fault)
        m = s.message
        require(m.sender == sender, fault, "shares.sender")
        require(sender in self.adverts, fault, "shares.member")
        require(sender not in self.shares, fault, "shares.twice")
        require((m.session, m.roster) == (self.session, self.roster_hash), fault, "shares.binding")
        require(is_signed(m), fault, "shares.signature")
        hashes = tuple(digest("ciphertext", c) for c in s.ciphertexts)
        whole = fits(m, self.graph, self.ids.index(sender)) and hashes == m.ciphertext_hashes
        require(whole, fault, "shares.fit")
        self.shares[sender] = s

    def receive_upload(self, sender: bytes, data: bytes, fault: Any) -> None:
        """§10.3."""
        u, p = decode(Upload, data, fault), self.params
        h = u.header
        require(h.sender == sender, fault, "upload.sender")
        require(sender in self.shares, fault, "upload.sharer")
        require(sender not in self.headers, fault, "upload.twice")
        require(not p.parent or sender in self.context.parent_survivors, fault, "upload.parent")
        require((h.session, h.roster, h.sharers, h.context) == self.binding, fault, "upload.binding")
        require(is_signed(h), fault, "upload.signature")
        require(digest("payload", u.payload) == h.payload_hash, fault, "upload.payload")
        require(len(u.payload) == sum(s.length * s.width for s in p.segments), fault, "upload.length")
        require(max(from_wire(u.payload, p)) < (p.modulus or 2**64), fault, "upload.residue")
        self.headers[sender], self.payloads[sender] = h, u.payload

    def receive_attestation(self, sender: bytes, data: bytes, fault: Any) -> None:
        """§10.4."""
        a = decode(Attestation, data, fault)
        require(a.sender == sender, fault, "attestation.sender")
        require(sender in self.shares, fault, "attestation.sharer")
        require(sender not in self.attestations, fault, "attestation.twice")
        require((a.session, a.view) == (self.session, self.view_hash), fault, "attestation.view")
        require(is_signed(a), fault, "attestation.signature")
        self.attestations[sender] = a

    def receive_reveal(self, sender: bytes, data: bytes, fault: Any) -> None:
        """§10.5."""
        r = decode(Reveal, data, fault)
        require(r.sender == sender, fault, "reveal.sender")
        require(sender in self.attestations, fault, "reveal.attested")
        require(sender not in self.reveals, fault, "reveal.twice")
        require((r.session, r.view) == (self.session, self.view_hash), fault, "reveal.view")
        require(is_signed(r), fault, "reveal.signature")
        survivors, dropped = self.dealers_of(sender)
        counts = len(r.seed_shares), len(r.key_shares)
        require(counts == (len(survivors), len(dropped)), fault, "reveal.counts")
        self.reveals[sender] = dict(zip(survivors + dropped, r.seed_shares + r.key_shares, strict=True))

    def dealers_of(self, holder: bytes) -> tuple[list[bytes], list[bytes]]:
        """Survivors and dropped sharers that dealt to a holder, §9.6."""
        position = self.ids.index(holder)
        dealers = [dealer for dealer in sorted(self.shares) if position in self.shares[dealer].message.holders]
        return [d for d in dealers if d in self.headers], [d for d in dealers if d not in self.headers]

    def enough(self, rule: str, have: int, need: int) -> None:
        """Abort if too few are left, §2.3."""
        require(have >= need, SessionAborted, rule)

    def close(self) -> dict[bytes, bytes]:
        """End a phase: what to send to each client that can go on, §10."""
        closers = {
            "advertise": self.close_adverts,
            "share": self.close_shares,
            "upload": self.close_uploads,
            "attest": self.close_attestations,
        }
        require(self.phase in closers, MisuseError, "order")
        replies = closers[self.phase]()
        self.phase = {"advertise": "share", "share": "open", "upload": "attest", "attest": "reveal"}[self.phase]
        return replies

    def close_adverts(self) -> dict[bytes, bytes]:
        """§10.1."""
        self.enough("min_survivors", len(self.adverts), self.params.min_survivors)
        self.ids = sorted(self.adverts)
        self.graph: Graph = graph_of(self.params, len(self.ids), self.params.min_survivors)
        require(self.graph.sound, SessionAborted, "degree")
        roster = encode(Roster(self.session, tuple(self.adverts[i] for i in self.ids)))
        self.roster_hash = digest("roster", roster)
        return dict.fromkeys(self.ids, roster)

    def close_shares(self) -> dict[bytes, bytes]:
        """§10.2."""
        self.enough("min_survivors", len(self.shares), self.params.min_survivors)
        order = sorted(self.shares)
        for dealer in order:
            present = sum(self.ids[i] in self.shares for i in self.shares[dealer].message.holders)
            self.enough("threshold", present, self.graph.threshold)
        sharers = tuple(Sharer(d, message_hash(self.shares[d].message)) for d in order)
        self.sharers_hash = digest("sharers", *(x for s in sharers for x in s))
        return {holder: encode(Relay(self.session, sharers, self.relayed(holder))) for holder in order}

    def relayed(self, holder: bytes) -> tuple[Any, ...]:
        """What dealers sent to one holder, §10.2."""
        position, dealers = self.ids.index(holder), [d for part in self.dealers_of(holder) for d in part]
        found = [self.shares[dealer] for dealer in sorted(dealers)]
        return tuple(Relayed(s.message, s.ciphertexts[s.message.holders.index(position)]) for s in found)

    def open(self, context: Any) -> bytes:
        """Begin the uploads, §10.3."""
        require(self.phase == "open", MisuseError, "order")
        ours = (context.session, context.parent) == (self.session, self.params.parent)
        require(ours, MisuseError, "context")
        self.context, sent, self.phase = context, encode(context), "upload"
        self.binding = self.session, self.roster_hash, self.sharers_hash, digest("context", sent)
        return sent

    def close_uploads(self) -> dict[bytes, bytes]:
        """§10.3."""
        self.enough("min_survivors", len(self.headers), self.params.min_survivors)
        for survivor in self.headers if self.graph.degree else ():
            kept = sum(self.ids[i] in self.headers for i in self.shares[survivor].message.holders)
            self.enough("threshold", kept, self.graph.threshold)
        self.survivors = tuple(sorted(self.headers))
        self.dropped = tuple(sorted(set(self.shares) - set(self.headers)))
        view = encode(View(*self.binding, tuple(self.headers[i] for i in self.survivors)))
        self.view_hash = digest("view", view)
        return dict.fromkeys(sorted(self.shares), view)

    def close_attestations(self) -> dict[bytes, bytes]:
        """§10.4."""
        needed, signers = quorum(len(self.ids), self.params.corrupt), sorted(self.attestations)
        self.enough("quorum", len(signers), needed)
        shown = tuple(self.attestations[i] for i in signers[:needed])
        request = encode(Request(self.session, self.view_hash, shown, self.survivors, self.dropped))
        return dict.fromkeys(signers, request)

    def finish(self) -> Sum:
        """Remove the masks, §11."""
        require(self.phase == "reveal", MisuseError, "order")
        for dealer in self.survivors + self.dropped:
            self.enough("threshold", sum(dealer in r for r in self.reveals.values()), self.graph.threshold)
        self.phase, p = "summed", self.params
        seeds = {i: self.rebuild(i, SEED) for i in self.survivors}
        secrets = {i: self.rebuild(i, KEY) for i in self.dropped}
        total = [0] * sum(s.length for s in p.segments)
        for i in self.survivors:
            added = zip(total, from_wire(self.payloads[i], p), strict=True)
            total = [(a + b) % (p.modulus or 2**64) for a, b in added]
        binding = self.session + self.roster_hash + self.binding[3]
        peers = {i: self.peers_of(i) for i in self.dropped}
        total = unmask(total, p, self.adverts, binding, seeds, secrets, peers)
        opening = b""
        if p.name == "census":
            payloads = tuple(self.payloads[i] for i in self.survivors)
            opening = encode(Opening(self.session, payloads, tuple(seeds.values()), tuple(secrets.values())))
        return Sum(total, self.survivors, self.dropped, self.graph.threshold, self.blame, opening)

    def peers_of(self, gone: bytes) -> list[bytes]:
        """The survivors that masked with a dropped sharer, §7.5: its holders, and those that dealt to it."""
        own = {self.ids[i] for i in self.shares[gone].message.holders}
        return sorted((own & set(self.headers)) | set(self.dealers_of(gone)[0]))

    def rebuild(self, dealer: bytes, kind: bytes) -> bytes:
        """A survivor's seed or a dropped sharer's masking key, §11."""
        m, good = self.shares[dealer].message, {}
        for holder, shown in self.reveals.items():
            if dealer not in shown:
                continue
            position = self.ids.index(holder)
            committed = (m.key_commitments if kind == KEY else m.seed_commitments)[m.holders.index(position)]
            if not shown[dealer]:
                self.blame.append((dealer, holder, "dispute"))
            elif commitment(self.session, dealer, position, kind, shown[dealer]) == committed:
                good[position] = shown[dealer]
            else:
                self.blame.append((holder, b"", "share"))
        self.enough("threshold", len(good), self.graph.threshold)
        secret = combine(good, self.graph.threshold)
        if kind == SEED:
            right = secret is not None and digest("seed commitment", secret) == m.seed_hash
            require(right, ClientFault, "dealer.seed", dealer)
        else:
            right = secret is not None and public(secret) == self.adverts[dealer].mask_key
            require(right, ClientFault, "dealer.key", dealer)
        return secret or b""
