"""A server that cheats: it talks to each client separately, over bytes, and keeps everything that it is told.

The clients are the library's own. What the server makes of their answers (`unmask`) is written here once, so that an
attack is only the list of lies that it tells.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from fedopal_secure.core import masks, messages
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import FedopalError
from fedopal_secure.core.messages import (
    Advert,
    Attestation,
    Context,
    Relay,
    Relayed,
    Reveal,
    RevealRequest,
    Roster,
    Sharer,
    Shares,
    Upload,
    UploadHeader,
    View,
)
from fedopal_secure.core.params import SessionParams, session_id
from fedopal_secure.core.recovery import unmask
from fedopal_secure.core.ring import U64, Ring, from_wire, reduce_to_width
from fedopal_secure.core.shamir import Recovery
from fedopal_secure.core.states import ParentView
from tests.attacks.catalogue import Outcome, words
from tests.core.harness import Federation, Member, fork, read

SEED, KEY = "seed", "key"


class CheatingServer:
    """Runs a session by hand, step by step, with any subset of clients and any lie to each of them.

    `corrupt` clients collude: whatever they hold, the server holds. Errors of clients are kept in `refused`, and a
    client that refused is not asked again.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        corrupt: Collection[bytes] = (),
        vectors: Mapping[bytes, U64] | None = None,
        parents: Mapping[bytes, ParentView] | None = None,
        kinds: Mapping[bytes, type[Member]] | None = None,
    ) -> None:
        self.federation, self.corrupt = federation, frozenset(corrupt)
        vectors = federation.vectors() if vectors is None else vectors
        self.members = {
            key.identity: (kinds or {}).get(key.identity, Member)(
                federation, key, vectors[key.identity], (parents or {}).get(key.identity)
            )
            for key in federation.keys
        }
        self.session = session_id(federation.params)
        self.adverts: dict[bytes, Advert] = {}
        self.shares: dict[bytes, Shares] = {}
        self.uploads: dict[bytes, Upload] = {}
        self.attestations: dict[bytes, Attestation] = {}
        self.reveals: list[tuple[bytes, RevealRequest, Reveal]] = []
        self.refused: dict[bytes, FedopalError] = {}
        self.contexts: dict[bytes, bytes] = {}

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Everyone, in order."""
        return self.federation.ids

    @property
    def honest(self) -> tuple[bytes, ...]:
        """Everyone who does not collude, in order."""
        return tuple(identity for identity in self.ids if identity not in self.corrupt)

    def ask(self, client: bytes, step: str, *data: bytes) -> bytes | None:
        """Let a client take one step; None if it refuses, or refused before."""
        if client in self.refused:
            return None
        try:
            answer: bytes | None = getattr(self.members[client], step)(*data)
        except FedopalError as error:
            self.refused[client] = error
            return None
        return answer

    # Step by step. `who` are the clients that are asked now, by default everyone.

    def advertise(self, who: Sequence[bytes] | None = None, params: SessionParams | None = None) -> None:
        """Propose; other `params` than the federation's are signed just as well."""
        proposal = messages.sign(self.federation.host, messages.Proposal(params or self.federation.params))
        if params is not None:
            self.session = session_id(params)
        for client in self.ids if who is None else who:
            answer = self.ask(client, "advertise", encode(proposal))
            if answer is not None:
                self.adverts[client] = read(Advert, answer)

    def roster(self, who: Collection[bytes] | None = None) -> Roster:
        """The roster of some who advertised."""
        chosen = sorted(self.adverts if who is None else who)
        return Roster(self.session, tuple(self.adverts[client] for client in chosen))

    def share(self, who: Sequence[bytes] | None = None, roster: Roster | None = None) -> None:
        """Show a roster, and collect shares."""
        shown = encode(roster or self.roster())
        for client in sorted(self.adverts) if who is None else who:
            answer = self.ask(client, "share", shown)
            if answer is not None:
                self.shares[client] = read(Shares, answer)

    def relay(self, reader: bytes, dealers: Collection[bytes] | None = None) -> Relay:
        """What a reader is shown if these are said to have shared."""
        chosen = sorted(self.shares if dealers is None else dealers)
        position = sorted(self.adverts).index(reader)
        sharers, dealt = [], []
        for dealer in chosen:
            message = self.shares[dealer].message
            sharers.append(Sharer(dealer, messages.share_message_hash(message)))
            if position in message.holders:
                dealt.append(Relayed(message, self.shares[dealer].ciphertexts[message.holders.index(position)]))
        return Relay(self.session, tuple(sharers), tuple(dealt))

    def hold(self, who: Sequence[bytes] | None = None, dealers: Collection[bytes] | None = None) -> None:
        """Show who shared."""
        for client in sorted(self.shares) if who is None else who:
            self.ask(client, "hold", encode(self.relay(client, dealers)))

    def context(self, **changes: Any) -> Context:
        """The context of a session without a parent, with changes."""
        return msgspec.structs.replace(Context(self.session, b"", b"", (), b""), **changes)

    def upload(self, who: Sequence[bytes] | None = None, context: Context | None = None) -> None:
        """Open the uploads, and collect them."""
        opened = encode(context or self.context())
        for client in sorted(self.shares) if who is None else who:
            self.contexts[client] = opened
            answer = self.ask(client, "upload", opened)
            if answer is not None:
                self.uploads[client] = read(Upload, answer)

    def view(self, survivors: Collection[bytes] | None = None, like: bytes | None = None) -> View:
        """A view with these survivors; roster, sharers and context are those of one header (`like`, or the first)."""
        chosen = sorted(self.uploads if survivors is None else survivors)
        headers = tuple(self.uploads[client].header for client in chosen)
        model: UploadHeader = headers[0] if like is None else self.uploads[like].header
        return View(self.session, model.roster, model.sharers, model.context, headers)

    def own_views(self, victim: bytes) -> dict[bytes, View]:
        """For every honest client the view in which the victim, the corrupt clients and itself survived.

        For the victim it is somebody else's. All but the victim are dropped in nearly all of these views, so all their
        masking keys are rebuilt if everyone reveals.
        """
        views = {client: self.view({victim, *self.corrupt, client}) for client in self.honest if client != victim}
        return views | {victim: next(iter(views.values()))}

    def attest(self, who: Sequence[bytes] | None = None, view: View | None = None) -> None:
        """Show a view, and collect signatures on it."""
        shown = encode(view or self.view())
        for client in sorted(self.shares) if who is None else who:
            context = self.contexts.get(client, encode(self.context()))
            answer = self.ask(client, "attest", shown, context)
            if answer is not None:
                self.attestations[client] = read(Attestation, answer)

    def request(self, view: View | None = None, **changes: Any) -> RevealRequest:
        """What an honest server would ask after this view, with changes.

        All signatures on the view that were collected stand behind it.
        """
        view = view or self.view()
        hashed = messages.view_hash(view)
        survivors = tuple(header.sender for header in view.survivors)
        signed = tuple(self.attestations[c] for c in sorted(self.attestations) if self.attestations[c].view == hashed)
        dropped = tuple(sorted(self.shares.keys() - set(survivors)))
        return msgspec.structs.replace(RevealRequest(self.session, hashed, signed, survivors, dropped), **changes)

    def reveal(self, who: Sequence[bytes] | None = None, request: RevealRequest | None = None) -> None:
        """Ask for shares, and collect them."""
        request = request or self.request()
        for client in sorted(self.attestations) if who is None else who:
            answer = self.ask(client, "reveal", encode(request))
            if answer is not None:
                self.reveals.append((client, request, read(Reveal, answer)))

    def collude(self, step: str, client: bytes, *data: bytes) -> bytes:
        """Let a corrupt client take a step as if it had never taken it: on a copy of its last state but one."""
        member = self.members[client]
        state = next(fork(state) for state in reversed(member.states) if state.phase in _BEFORE[step])
        member.states.append(state)
        answer: bytes = getattr(member, step)(*data)
        return answer

    # What the server can make of it.

    def known_shares(self, dealer: bytes, kind: str) -> dict[int, bytes]:
        """Shares of a dealer's seed or masking key, by index: revealed, or held by a corrupt client."""
        order = sorted(self.adverts)
        message = self.shares[dealer].message
        found: dict[int, bytes] = {}
        for holder, request, reveal in self.reveals:
            asked, given = (
                (request.survivors, reveal.seed_shares) if kind == SEED else (request.dropped, reveal.key_shares)
            )
            shared = [name for name in asked if name in self.shares]
            dealt = [name for name in shared if order.index(holder) in self.shares[name].message.holders]
            for name, share in zip(dealt, given, strict=True):
                if name == dealer and share:
                    found[order.index(holder) + 1] = share
        for holder in self.corrupt:
            for state in self.members[holder].states:
                held = getattr(state, "held", {}).get(dealer)
                secret = None if held is None else held.seed_share if kind == SEED else held.key_share
                if secret is not None and secret._data:
                    found[order.index(holder) + 1] = secret.expose()
        return {index: share for index, share in found.items() if index - 1 in message.holders}

    def rebuild(self, dealer: bytes, kind: str) -> bytes | None:
        """A dealer's self-mask seed or masking key, if enough shares of it are known."""
        if dealer in self.corrupt:
            name = "seed" if kind == SEED else "mask_secret"
            secrets = [getattr(state, name, None) for state in self.members[dealer].states]
            return next((secret.expose() for secret in secrets if secret is not None and secret._data), None)
        room = next(state.room for state in self.members[dealer].states if hasattr(state, "room"))
        shares = self.known_shares(dealer, kind)
        if len(shares) < room.graph.threshold:
            return None
        return Recovery(tuple(shares), room.graph.threshold).combine(list(shares.values()))

    def unmask(self, victim: bytes) -> U64 | None:
        """The victim's vector, if its self-mask and every one of its pairwise masks can be taken off."""
        state = next(state for state in reversed(self.members[victim].states) if hasattr(state, "peers"))
        upload, params = self.uploads[victim], state.setup.params
        ring, header = Ring(params.modulus), upload.header
        vector = from_wire(upload.payload, params.segments)
        binding = masks.Binding(header.session, header.roster, header.context)
        seed, own = self.rebuild(victim, SEED), self.rebuild(victim, KEY)
        if seed is None:
            return None
        masks.apply_stream(ring, vector, masks.self_key(seed, victim, binding), masks.SUBTRACT)
        keys = {advert.sender: advert.mask_key for advert in state.room.roster.adverts}
        for peer in state.peers:
            secret, public = (own, keys[peer]) if own is not None else (self.rebuild(peer, KEY), keys[victim])
            if secret is None:
                return None
            shared = masks.agree(masks.load(secret), public, peer)
            stream = masks.pair_key(shared, (victim, keys[victim]), (peer, keys[peer]), binding)
            masks.apply_stream(ring, vector, stream, -masks.pair_sign(victim, peer))
        return vector if params.modulus else reduce_to_width(vector, params.segments)

    def sum_over(self, survivors: Collection[bytes]) -> U64 | None:
        """The sum over these clients, if what was revealed takes off their masks with everyone who is none of them."""
        params = self.federation.params
        ring, total = Ring(params.modulus), np.zeros(params.length, dtype=np.uint64)
        for client in survivors:
            ring.add_into(total, from_wire(self.uploads[client].payload, params.segments))
        seeds = {client: self.rebuild(client, SEED) for client in survivors}
        secrets = {client: self.rebuild(client, KEY) for client in self.shares if client not in survivors}
        if None in (*seeds.values(), *secrets.values()):
            return None
        header = self.uploads[next(iter(survivors))].header
        keys = {client: advert.mask_key for client, advert in self.adverts.items()}
        binding = masks.Binding(header.session, header.roster, header.context)
        return unmask(total, params, seeds, secrets, lambda _: survivors, keys, binding)

    def outcome(self, victim: bytes) -> Outcome:
        """Whether the victim's vector came out; otherwise who refused, the victim first."""
        found = None if victim not in self.uploads else self.unmask(victim)
        params = self.federation.params
        plain = self.members[victim].vector
        if found is not None and np.array_equal(
            found, plain if params.modulus else reduce_to_width(plain, params.segments)
        ):
            return Outcome(True, "the victim's vector, every entry")
        return self.refusal(victim)

    def refusal(self, victim: bytes) -> Outcome:
        """Who refused, the victim first; or that nobody did and it was of no use."""
        if not self.refused:
            return Outcome(False, "nobody refuses, and too few shares come out")
        error = self.refused.get(victim) or next(iter(self.refused.values()))
        count = len(self.refused)
        who = "the victim" if victim in self.refused and count == 1 else f"{count} client{'s' * (count > 1)}"
        return Outcome(False, f"refused by {who}: {words(error)}")


_BEFORE = {"attest": ("ready", "uploaded"), "reveal": ("attested",), "upload": ("ready",)}


def prepared(federation: Federation, until: str = "upload", **options: Any) -> CheatingServer:
    """A cheating server that has been honest so far: up to and with `share`, `hold`, `upload` or `attest`."""
    server = CheatingServer(federation, **options)
    for step in ("advertise", "share", "hold", "upload", "attest"):
        getattr(server, step)()
        if step == until:
            break
    return server
