"""Misuses once uploads begin: contexts, openings of a census, views, reveal requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from protocols.secagg.v1 import primitives as p
from protocols.secagg.v1 import reference, sessions
from protocols.secagg.v1.cases import (
    PRIME_BFV,
    Case,
    Change,
    case,
    honest,
    id_of,
    key_of,
    letter,
    played,
    put,
    resign,
    told,
)
from protocols.secagg.v1.sessions import Person, Vector, drive, shake


def contexts() -> Iterator[tuple[str, Case]]:
    """Contexts that a client must not upload under."""
    c3, child = "complete_3", "chain_3_statistics"
    table: list[tuple[str, str, str, str, Change]] = [
        ("session", "another session", c3, "context.session", lambda m: m._replace(session=bytes(32))),
        ("parent", "a parent that the parameters do not name", c3, "context.parent",
         lambda m: m._replace(parent=bytes(32))),
        ("parent_missing", "no parent", child, "context.parent", lambda m: m._replace(parent=b"")),
        ("view", "another view of the parent than the client attested", child, "context.view",
         lambda m: m._replace(parent_view=bytes(32))),
        ("survivor_added", "a survivor of the parent too many", child, "context.view",
         lambda m: m._replace(parent_survivors=(*m.parent_survivors, b"\xff" * 32))),
        ("survivor_missing", "a survivor of the parent too few", child, "context.view",
         lambda m: m._replace(parent_survivors=m.parent_survivors[1:])),
        ("survivors_without_parent", "survivors of no parent", c3, "context.view",
         lambda m: m._replace(parent_survivors=(bytes(32),))),
    ]  # fmt: skip
    for name, claim, of, reason, change in table:
        yield f"context_{name}", told(f"a context with {claim} is refused", of, "upload", 0, change, reason)
    short = honest()[c3]["clients"][0]["vector"][:-1]
    claim = "a vector is as long as the segments say"
    yield "vector_short", case(claim, c3, "client.upload", 0, "MisuseError", "vector", vectors={"0": short})
    large = [*honest()["prime_3"]["clients"][0]["vector"][:-1], str(PRIME_BFV)]
    claim = "entries are below the prime"
    yield "vector_residue", case(claim, "prime_3", "client.upload", 0, "MisuseError", "vector", vectors={"0": large})


def censuses() -> Iterator[tuple[str, Case]]:
    """Openings that are not of what was signed, and classes with too few contributors."""
    child = "chain_2_prompts"

    def opened(change: Change) -> Change:
        def apply(m: Any) -> Any:
            return m._replace(payload=p.encode(change(p.decode(p.Opening, m.payload, p.MisuseError))))

        return apply

    def flip(data: bytes) -> bytes:
        return bytes([data[0] ^ 1]) + data[1:]

    table: list[tuple[str, str, str, Change]] = [
        ("session", "of another session", "opening.fit", opened(lambda o: o._replace(session=bytes(32)))),
        ("payload_missing", "without a survivor's payload", "opening.fit",
         opened(lambda o: o._replace(payloads=o.payloads[1:]))),
        ("seed_missing", "without a survivor's seed", "opening.fit", opened(lambda o: o._replace(seeds=o.seeds[1:]))),
        ("key_missing", "without the key of a sharer that is no survivor", "opening.fit",
         opened(lambda o: o._replace(mask_secrets=()))),
        ("key_added", "with a key too many", "opening.fit",
         opened(lambda o: o._replace(mask_secrets=o.mask_secrets * 2))),
        ("payload_changed", "with a payload that was not signed", "opening.payload",
         opened(lambda o: o._replace(payloads=put(o.payloads, 1, flip(o.payloads[1]))))),
        ("payloads_swapped", "with two payloads in each other's place", "opening.payload",
         opened(lambda o: o._replace(payloads=(o.payloads[1], o.payloads[0], *o.payloads[2:])))),
        ("payload_longer", "with a longer payload", "opening.payload",
         opened(lambda o: o._replace(payloads=put(o.payloads, 1, o.payloads[1] + b"\0")))),
        ("seed_changed", "with a seed that its dealer did not commit to", "opening.seed",
         opened(lambda o: o._replace(seeds=put(o.seeds, 2, flip(o.seeds[2]))))),
        ("key_changed", "with a masking key that was not advertised", "opening.key",
         opened(lambda o: o._replace(mask_secrets=(bytes(32),)))),
        ("trailing_byte", "with a byte after its end", "encoding", lambda m: m._replace(payload=m.payload + b"\0")),
        ("empty", "of no bytes", "encoding", lambda m: m._replace(payload=b"")),
    ]  # fmt: skip
    for name, claim, reason, change in table:
        yield f"opening_{name}", told(f"an opening {claim} is refused", child, "upload", 0, change, reason)
    statistics = "chain_3_statistics"
    claim = "class 1 has three contributors: with two gone and c = 1 none is left that is surely honest"
    yield "census_too_many_left", case(claim, statistics, "client.attest", 0, "PolicyRefusal", "min_contributors",
                                       gone={}, late=[0, 2, 5])  # fmt: skip
    lonely = [[1, 1], [1, 0], [1, 0], [1, 0], [1, 0], [1, 0]]
    vectors = {str(i): [str(entry) for entry in row] for i, row in enumerate(lonely)}
    claim = "a class that one client alone holds, who may be the corrupt one: nobody uploads prompts"
    yield "census_lonely_class", case(claim, child, "client.upload", 0, "PolicyRefusal", "min_contributors",
                                      parent_vectors=vectors)  # fmt: skip


def views() -> Iterator[tuple[str, Case]]:
    """Views that a client must not sign."""
    c3, c5 = "complete_3", "complete_5"

    def entry(place: int, **changes: Any) -> Change:
        return lambda m: m._replace(survivors=put(m.survivors, place, m.survivors[place]._replace(**changes)))

    def signed(place: int, of: str = c3, **changes: Any) -> Change:
        return lambda m: m._replace(
            survivors=put(m.survivors, place, resign(key_of(of, place), m.survivors[place], **changes))
        )

    stranger = shake("a stranger", 32)

    def outsider(m: Any) -> Any:
        added = resign(stranger, m.survivors[0], sender=p.identity_of(stranger))
        return m._replace(survivors=tuple(sorted((*m.survivors, added), key=lambda h: h.sender)))

    table: list[tuple[str, str, str, str, Change]] = [
        ("session", "of another session", c3, "view.binding", lambda m: m._replace(session=bytes(32))),
        ("roster", "of another roster", c3, "view.binding", lambda m: m._replace(roster=bytes(32))),
        ("sharers", "of other sharers", c3, "view.binding", lambda m: m._replace(sharers=bytes(32))),
        ("context", "of another context", c3, "view.binding", lambda m: m._replace(context=bytes(32))),
        ("repeats_survivor", "with a survivor twice", c3, "view.order",
         lambda m: m._replace(survivors=put(m.survivors, 2, m.survivors[1]))),
        ("unordered", "with survivors out of order", c3, "view.order",
         lambda m: m._replace(survivors=m.survivors[::-1])),
        ("stranger", "with a survivor that never shared", c3, "view.sharer", outsider),
        ("header_session", "with a header of another session", c3, "view.header", signed(1, session=bytes(32))),
        ("header_roster", "with a header for another roster", c3, "view.header", signed(1, roster=bytes(32))),
        ("header_sharers", "with a header for other sharers", c3, "view.header", signed(1, sharers=bytes(32))),
        ("header_context", "with a header for another context", c3, "view.header", signed(1, context=bytes(32))),
        ("header_unsigned", "with a header that its sender did not sign", c3, "view.signature",
         entry(1, signature=bytes(64))),
        ("header_changed", "with the hash of another payload than was signed", c3, "view.signature",
         entry(1, payload_hash=bytes(32))),
        ("own_missing", "without the client's own header", c5, "view.own",
         lambda m: m._replace(survivors=m.survivors[1:])),
        ("own_other", "with another header that the client signed", c3, "view.own", signed(0, payload_hash=bytes(32))),
    ]  # fmt: skip
    for name, claim, of, reason, change in table:
        yield f"view_{name}", told(f"a view {claim} is refused", of, "attest", 0, change, reason)
    late = "complete_5_late"

    def invented(m: Any) -> Any:
        own = resign(key_of(late, 1), m.survivors[0], sender=id_of(late, 1))
        return m._replace(survivors=tuple(sorted((*m.survivors, own), key=lambda h: h.sender)))

    yield "view_invented_upload", told("a view with a client that did not upload is refused by it", late, "attest", 1,
                                       invented, "view.own")  # fmt: skip
    claim = "a sum over fewer than the least cohort is refused, whatever the server counts"
    yield "view_cohort", told(claim, c3, "attest", 0, lambda m: m._replace(survivors=m.survivors[:2]), "min_survivors",
                              error="PolicyRefusal")  # fmt: skip

    demanding: Case = {"policy": {"min_survivors": 5}, "params": honest()[c5]["params"] | {"min_survivors": 5}}
    five = p.decode(
        p.View, drive({**honest()[c5], "params": demanding["params"]}).sent("attest", 0, up=False), p.MisuseError
    )
    four = [letter("attest", 0, p.encode(five._replace(survivors=five.survivors[:4])), up=False)]
    claim = "a sum over fewer than the cohort that was proposed is refused"
    yield (
        "view_cohort_of_params",
        case(claim, c5, "client.attest", 0, "PolicyRefusal", "min_survivors", replace=four, **demanding),
    )
    child = "chain_2_prompts"
    strict = reference.require

    def tolerant(holds: bool, fault: Any, reason: str) -> None:
        strict(holds or reason == "context.survivor", fault, reason)

    with mock.patch.object(reference, "require", tolerant):  # the sixth client is corrupt
        everyone = drive({**honest()[child], "late": []}, parent=played("chain_1_census"), until="upload")
    sent = everyone.sent("upload", 5, up=True)
    sixth = p.decode(p.Upload, sent, p.MisuseError)

    def joined(m: Any) -> Any:
        return m._replace(survivors=tuple(sorted((*m.survivors, sixth.header), key=lambda h: h.sender)))

    yield "view_not_of_the_parent", told("a survivor that was none of the parent session's is refused", child, "attest",
                                         0, joined, "view.parent")  # fmt: skip
    yield "upload_not_of_the_parent", case("nor does the server take its upload", child, "server.receive", 5,
                                           "ClientFault", "upload.parent",
                                           extra=[letter("upload", 5, sent, up=True)])  # fmt: skip
    yield "context_not_of_the_parent", case("whoever did not survive the parent uploads nothing if asked", child,
                                            "client.upload", 5, "ServerFault", "context.survivor", late=[])  # fmt: skip
    sparse = "sparse_20"
    claim = "on a sparse graph, declaring a victim's holders dropped would free its self-mask"

    def isolated(m: Any) -> Any:
        return m._replace(survivors=m.survivors[:7])

    yield "view_sparse_holders", told(claim, sparse, "attest", 0, isolated, "view.holders")


def requests() -> Iterator[tuple[str, Case]]:
    """Requests that a client must not answer with shares."""
    c3, late = "complete_3", "complete_5_late"
    stranger = shake("a stranger", 32)

    def entry(place: int, **changes: Any) -> Change:
        return lambda m: m._replace(attestations=put(m.attestations, place, m.attestations[place]._replace(**changes)))

    def other_view(m: Any) -> Any:
        return m._replace(attestations=put(m.attestations, 1, resign(key_of(c3, 1), m.attestations[1], view=bytes(32))))

    def outsider(m: Any) -> Any:
        added = resign(stranger, m.attestations[0], sender=p.identity_of(stranger))
        return m._replace(attestations=tuple(sorted((*m.attestations, added), key=lambda a: a.sender)))

    table: list[tuple[str, str, str, str, Change]] = [
        ("session", "of another session", c3, "request.view", lambda m: m._replace(session=bytes(32))),
        ("view", "for another view than the client signed", c3, "request.view", lambda m: m._replace(view=bytes(32))),
        ("repeats_signer", "with a signer twice", c3, "request.order",
         lambda m: m._replace(attestations=m.attestations[:1] * 2)),
        ("unordered", "with signers out of order", c3, "request.order",
         lambda m: m._replace(attestations=m.attestations[::-1])),
        ("stranger", "with a signature from outside the roster", c3, "request.member", outsider),
        ("unsigned", "with an attestation without a signature", c3, "request.signature", entry(1, signature=bytes(64))),
        ("other_view", "with an attestation of another view", c3, "request.signature", other_view),
        ("other_session", "with an attestation of another session", c3, "request.signature",
         entry(1, session=bytes(32))),
        ("quorum", "with a signature too few", c3, "request.quorum",
         lambda m: m._replace(attestations=m.attestations[:1])),
        ("quorum_empty", "with no signatures", c3, "request.quorum", lambda m: m._replace(attestations=())),
        ("lists_swapped", "with the two lists swapped", late, "request.lists",
         lambda m: m._replace(survivors=m.dropped, dropped=m.survivors)),
        ("both_kinds", "that asks for both kinds of shares of one client", late, "request.lists",
         lambda m: m._replace(dropped=m.dropped + m.survivors[:1])),
        ("survivor_as_dropped", "that moves a survivor to the dropped", late, "request.lists",
         lambda m: m._replace(survivors=m.survivors[:-1], dropped=m.dropped + m.survivors[-1:])),
        ("dropped_missing", "that leaves out the dropped", late, "request.lists", lambda m: m._replace(dropped=())),
        ("survivor_missing", "that leaves out a survivor", late, "request.lists",
         lambda m: m._replace(survivors=m.survivors[1:])),
        ("dropped_repeated", "that asks for one client twice", late, "request.lists",
         lambda m: m._replace(dropped=m.dropped * 2)),
        ("unordered_survivors", "with survivors out of order", late, "request.lists",
         lambda m: m._replace(survivors=m.survivors[::-1])),
    ]  # fmt: skip
    for name, claim, of, reason, change in table:
        yield f"request_{name}", told(f"a reveal request {claim} is refused", of, "reveal", 0, change, reason)


def conspiracies() -> Iterator[tuple[str, Case]]:
    """A server and a client that are both corrupt tell everybody the same: only the last check of a victim is left."""

    def plotted(name: str, victim: int, person: Any, host: Any, last: str) -> list[Case]:
        """What the victim is sent in such a session, one call after the other."""
        out = drive(honest()[name], person, host)
        steps = sessions.STEPS[1 : sessions.STEPS.index(last) + 1]
        return [letter("advertise", victim, out.sent(step, victim, up=False), up=False, call=step) for step in steps]

    c3 = "complete_3"
    for name, claim, key, reason in (
        ("order", "a point of order 4", bytes(32), "key.order"),
        ("canonical", "a key in a second form", (2**255 - 10).to_bytes(32, "little"), "key.canonical"),
    ):

        class Careless(sessions.Host):
            def receive_advert(self, *given: Any) -> None:
                with mock.patch.object(reference, "agree"):
                    super().receive_advert(*given)

        class Plotter(Person):
            key_shown = key

            def advertise(self, proposal: bytes) -> bytes:
                super().advertise(proposal)
                self.advert = resign(self.key, self.advert, mask_key=self.key_shown)
                return p.encode(self.advert)

        def person(vector: Vector, i: int, parent: Any, plotter: type[Person] = Plotter) -> Person:
            return (plotter if i == 1 else Person)(vector, i, parent)

        extra = plotted(c3, 0, person, Careless, "upload")
        said = f"{claim} as masking key, accepted by a corrupt server, is found before it is used"
        yield f"key_mask_{name}", case(said, c3, "client.upload", 0, "ClientFault", reason, culprit=1, extra=extra)
    sparse = "sparse_20"
    people = played(sparse).people
    victim, dealer = next(
        (v, d) for v in range(20) for d in range(20) if v in people[d].holders and d not in people[v].holders
    )

    class Forger(sessions.Host):
        def close_adverts(self) -> dict[bytes, bytes]:
            forged = self.adverts[id_of(sparse, dealer)]
            self.adverts[forged.sender] = forged._replace(certificate=b"forged")
            return super().close_adverts()

    class Forgetful(Person):
        def share(self, roster: bytes) -> bytes:
            self.advert = self.advert._replace(certificate=b"forged")
            sent: bytes = super().share(roster)
            return sent

        def check_adverts(self, whose: Any) -> None:
            """Corrupt clients take any advert."""

    class Trusting(Person):
        def check_adverts(self, whose: Any) -> None:
            """What an honest client must not do; the victim's messages up to here are the same."""

    def cast(vector: Vector, i: int, parent: Any) -> Person:
        return (Forgetful if i == dealer else Trusting)(vector, i, parent)

    extra = plotted(sparse, victim, cast, Forger, "hold")
    said = "the advert of a dealer that the client did not draw as its holder is checked when it has dealt"
    yield "relay_sparse_unsigned_advert", case(said, sparse, "client.hold", victim, "ServerFault", "roster.advert",
                                               extra=extra)  # fmt: skip


GROUPS = (contexts, censuses, views, requests, conspiracies)
