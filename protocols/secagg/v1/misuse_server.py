"""What clients may not send, faults of dealers and holders, sessions that end early, and steps out of turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from protocols.secagg.v1 import primitives as p
from protocols.secagg.v1 import reference, sessions
from protocols.secagg.v1.cases import (
    PRIME_BFV,
    Case,
    Change,
    case,
    claimed,
    honest,
    id_of,
    key_of,
    letter,
    played,
    put,
    resign,
)
from protocols.secagg.v1.sessions import Outcome, Person, Vector, drive, shake


def uploads() -> Iterator[tuple[str, Case]]:
    """What the server does not take from clients after their adverts."""
    c3, prime = "complete_3", "prime_3"
    key, other = key_of(c3, 1), key_of(c3, 2)

    def message(**changes: Any) -> Change:
        return lambda s: s._replace(message=resign(other if "sender" in changes else key, s.message, **changes))

    def header(**changes: Any) -> Change:
        return lambda u: u._replace(header=resign(other if "sender" in changes else key, u.header, **changes))

    def payload(new: Callable[[bytes], bytes], of: str = c3) -> Change:
        def change(u: Any) -> Any:
            sent = new(u.payload)
            return p.Upload(resign(key_of(of, 1), u.header, payload_hash=p.digest("payload", sent)), sent)

        return change

    def whole(**changes: Any) -> Change:
        return lambda m: resign(other if "sender" in changes else key, m, **changes)

    table: list[tuple[str, str, str, str, str, Change]] = [
        ("shares_sender", "another client's shares", c3, "share", "shares.sender", message(sender=id_of(c3, 2))),
        ("shares_session", "shares for another session", c3, "share", "shares.binding", message(session=bytes(32))),
        ("shares_roster", "shares for another roster", c3, "share", "shares.binding", message(roster=bytes(32))),
        ("shares_unsigned", "shares that their dealer did not sign", c3, "share", "shares.signature",
         lambda s: s._replace(message=s.message._replace(signature=bytes(64)))),
        ("shares_no_holders", "shares for nobody", c3, "share", "shares.fit", message(holders=())),
        ("shares_ciphertext_missing", "a ciphertext too few", c3, "share", "shares.fit",
         lambda s: s._replace(ciphertexts=s.ciphertexts[1:])),
        ("shares_ciphertexts_swapped", "ciphertexts in another order", c3, "share", "shares.fit",
         lambda s: s._replace(ciphertexts=s.ciphertexts[::-1])),
        ("upload_sender", "another client's upload", c3, "upload", "upload.sender", header(sender=id_of(c3, 2))),
        ("upload_session", "an upload of another session", c3, "upload", "upload.binding", header(session=bytes(32))),
        ("upload_roster", "an upload for another roster", c3, "upload", "upload.binding", header(roster=bytes(32))),
        ("upload_sharers", "an upload for other sharers", c3, "upload", "upload.binding", header(sharers=bytes(32))),
        ("upload_context", "an upload under another context", c3, "upload", "upload.binding",
         header(context=bytes(32))),
        ("upload_signer", "an upload that somebody else signed", c3, "upload", "upload.signature",
         lambda u: u._replace(header=resign(other, u.header))),
        ("upload_payload", "another payload than was signed", c3, "upload", "upload.payload",
         lambda u: u._replace(payload=bytes(len(u.payload)))),
        ("upload_short", "a payload that is too short", c3, "upload", "upload.length", payload(lambda y: y[:-1])),
        ("upload_long", "a payload that is too long", c3, "upload", "upload.length", payload(lambda y: y + b"\0")),
        ("upload_residue", "an entry that is no residue of the prime", prime, "upload", "upload.residue",
         payload(lambda y: PRIME_BFV.to_bytes(7, "little") + y[7:], prime)),
        ("attestation_sender", "another client's attestation", c3, "attest", "attestation.sender",
         whole(sender=id_of(c3, 2))),
        ("attestation_session", "an attestation of another session", c3, "attest", "attestation.view",
         whole(session=bytes(32))),
        ("attestation_view", "an attestation of another view", c3, "attest", "attestation.view", whole(view=bytes(32))),
        ("attestation_unsigned", "an attestation without a signature", c3, "attest", "attestation.signature",
         lambda a: a._replace(signature=bytes(64))),
        ("reveal_sender", "another client's shares", c3, "reveal", "reveal.sender", whole(sender=id_of(c3, 2))),
        ("reveal_view", "shares for another view", c3, "reveal", "reveal.view", whole(view=bytes(32))),
        ("reveal_unsigned", "shares without a signature", c3, "reveal", "reveal.signature",
         lambda r: r._replace(signature=bytes(64))),
        ("reveal_too_few", "fewer shares than were asked for", c3, "reveal", "reveal.counts", whole(seed_shares=())),
        ("reveal_too_many", "shares that were not asked for", c3, "reveal", "reveal.counts",
         whole(key_shares=(bytes(33),))),
    ]  # fmt: skip
    for name, claim, of, step, reason, change in table:
        yield name, claimed(f"the server does not take {claim}", of, step, 1, change, reason)
    c5 = "complete_5"
    for name, step, reason, lost in (
        ("shares_twice", "share", "shares.twice", ""),
        ("upload_twice", "upload", "upload.twice", ""),
        ("attestation_twice", "attest", "attestation.twice", ""),
        ("reveal_twice", "reveal", "reveal.twice", ""),
        ("shares_without_advert", "share", "shares.member", "advertise"),
        ("upload_without_shares", "upload", "upload.sharer", "share"),
        ("attestation_without_shares", "attest", "attestation.sharer", "share"),
        ("reveal_without_attestation", "reveal", "reveal.attested", "attest"),
    ):
        again = played(c5).sent(step, 4, up=True)
        more: Case = {"gone": {lost: [4]}} if lost else {}
        claim = f"nobody skips a step, here {lost}" if lost else "nobody is heard twice"
        extra = [letter(step, 4, again, up=True)]
        yield name, case(claim, c5, "server.receive", 4, "ClientFault", reason, extra=extra, **more)
    for name, step, reason in (
        ("replay_advert", "advertise", "advert.session"),
        ("replay_shares", "share", "shares.binding"),
        ("replay_upload", "upload", "upload.binding"),
        ("replay_attestation", "attest", "attestation.view"),
        ("replay_reveal", "reveal", "reveal.view"),
    ):
        theirs = {**honest()[c5], "params": honest()[c5]["params"] | {"nonce": bytes(32).hex()}}
        old = replayed(theirs).sent(step, 4, up=True)
        claim = f"a message of another session of the same clients, to {step} with"
        yield name, case(claim, c5, "server.receive", 4, "ClientFault", reason, replace=[letter(step, 4, old, up=True)])


_REPLAYED: list[Outcome] = []


def replayed(vector: Vector) -> Outcome:
    """Another session of the same clients, played once."""
    if not _REPLAYED:
        _REPLAYED.append(drive(vector))
    return _REPLAYED[0]


def faults() -> Iterator[tuple[str, Case]]:
    """Dealers and holders that cheat under their own signatures: named at recovery, or reported while all goes on."""
    c5, bad = "complete_5", 4
    step = "server.finish"

    def cheat(patch: dict[str, Any], until: str = "reveal") -> list[Case]:
        """The letters of client 4, which runs the protocol with some of its functions replaced."""

        class Cheat(Person):
            def share(self, roster: bytes) -> bytes:
                with mock.patch.multiple(reference, **patch):
                    sent: bytes = super().share(roster)
                    return sent

        def person(vector: Vector, i: int, parent: Any) -> Person:
            return (Cheat if i == bad else Person)(vector, i, parent)

        found = drive(honest()[c5], person)
        steps = sessions.STEPS[1 : sessions.STEPS.index(until) + 1]
        return [
            letter(x.step, bad, x.data, up=True) for x in found.letters if x.up and x.client == bad and x.step in steps
        ]

    def splitting(which: int, change: Callable[..., list[bytes]]) -> dict[str, Any]:
        """`split` with its first (key) or second (seed) call changed."""
        calls = iter(range(2))

        def split(secret: bytes, t: int, holders: Any, entropy: Any) -> list[bytes]:
            if next(calls) == which:
                return change(secret, t, holders, entropy)
            return p.split(secret, t, holders, entropy)

        return {"split": split}

    def one_off(secret: bytes, t: int, holders: Any, entropy: Any) -> list[bytes]:
        shares = p.split(secret, t, holders, entropy)
        return [bytes(33), *shares[1:]]

    def second_form(secret: bytes, t: int, holders: Any, entropy: Any) -> list[bytes]:
        first, *rest = p.split(secret, t, holders, entropy)
        return [(int.from_bytes(first, "big") + p.PRIME).to_bytes(33, "big"), *rest]

    def too_large(secret: bytes, t: int, holders: Any, entropy: Any) -> list[bytes]:
        return p.split((2**256 + 5).to_bytes(33, "big"), t, holders, entropy)

    def other(secret: bytes, t: int, holders: Any, entropy: Any) -> list[bytes]:
        return p.split(bytes(32), t, holders, entropy)

    def constant(secret: bytes, t: int, holders: Any, entropy: Any) -> list[bytes]:
        return p.split(secret, t + 1, holders, entropy)

    deals: list[tuple[str, str, Callable[..., list[bytes]]]] = [
        ("off_polynomial", "one share that lies off the polynomial", one_off),
        ("degree_too_high", "shares on a polynomial of too high a degree", constant),
        ("second_form", "one share that is p or more", second_form),
        ("secret_too_large", "a secret of 2^256 or more", too_large),
        ("other_secret", "another secret than it committed to", other),
    ]
    for name, claim, change in deals:
        said = f"a dealer that deals {claim} is named"
        extra = cheat(splitting(1, change))
        yield f"dealer_seed_{name}", case(said, c5, step, -1, "ClientFault", "dealer.seed", culprit=bad,
                                          gone={"share": [bad]}, extra=extra)  # fmt: skip
        if name == "degree_too_high":
            continue  # four holders of a client that dropped out cannot tell: their four shares are on some polynomial
        extra = cheat(splitting(0, change), until="share")
        yield f"dealer_key_{name}", case(said, c5, step, -1, "ClientFault", "dealer.key", culprit=bad,
                                         gone={"share": [bad]}, extra=extra)  # fmt: skip
    extra = cheat(splitting(0, constant), until="share")
    said = "shares of too high a degree rebuild another key than was advertised"
    yield "dealer_key_degree_too_high", case(said, c5, step, -1, "ClientFault", "dealer.key", culprit=bad,
                                             gone={"share": [bad]}, extra=extra)  # fmt: skip

    def sealing(change: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> dict[str, Any]:
        """`seal` with another plaintext or ciphertext for client 0."""

        def seal(shared: bytes, dealer: Any, holder: Any, bound: bytes, pair: bytes) -> bytes:
            if holder.sender != id_of(c5, 0):
                return p.seal(shared, dealer, holder, bound, pair)
            pair, mask = change(pair, b"")
            sealed = p.seal(shared, dealer, holder, bound, pair)
            return bytes(a ^ b for a, b in zip(sealed, mask.ljust(len(sealed), b"\0"), strict=True))

        return {"seal": seal}

    disputes: list[tuple[str, str, Any]] = [
        ("does_not_open", "a ciphertext that does not open", lambda pair, mask: (pair, b"\1")),
        ("key_share", "a share of the key that is not the committed one", lambda pair,
         mask: (bytes(33) + pair[33:], mask)),
        ("seed_share", "a share of the seed that is not the committed one", lambda pair,
         mask: (pair[:33] + bytes(33), mask)),
        ("short", "a plaintext of 65 bytes", lambda pair, mask: (pair[:65], mask)),
    ]  # fmt: skip
    for name, claim, change in disputes:
        more: Case = {
            "expected_blame": [[bad, 0, "dispute"]],
            "gone": {"share": [bad]},
            "extra": cheat(sealing(change)),
        }
        yield f"dispute_{name}", {"claim": f"a dealer signs {claim}: reported, and the sum goes on", "session": c5,
                                  "operation": step, "client": -1} | more  # fmt: skip
    sent = p.decode(p.Reveal, played(c5).sent("reveal", 1, up=True), p.MisuseError)
    lies: list[tuple[str, str, tuple[bytes, ...], list[list[Any]]]] = [
        ("other_share", "another share than it holds", put(sent.seed_shares, 2, bytes(33)), [[1, -1, "share"]]),
        ("swapped_shares", "two shares in each other's place",
         (sent.seed_shares[1], sent.seed_shares[0], *sent.seed_shares[2:]), [[1, -1, "share"]] * 2),
        ("short_share", "a share of 32 bytes", put(sent.seed_shares, 2, sent.seed_shares[2][1:]), [[1, -1, "share"]]),
        ("no_share", "nothing for a dealer", put(sent.seed_shares, 2, b""), [[2, 1, "dispute"]]),
    ]  # fmt: skip
    for name, claim, shares, blame in lies:
        lie = p.encode(resign(key_of(c5, 1), sent, seed_shares=shares))
        yield f"holder_{name}", {"claim": f"a holder reveals {claim}: blamed, and others' shares are used",
                                 "session": c5, "operation": step, "client": -1, "expected_blame": blame,
                                 "replace": [letter("reveal", 1, lie, up=True)]}  # fmt: skip
    replace = []
    for i in (1, 2):
        sent = p.decode(p.Reveal, played(c5).sent("reveal", i, up=True), p.MisuseError)
        lie = resign(key_of(c5, i), sent, seed_shares=put(sent.seed_shares, 0, bytes(33)))
        replace.append(letter("reveal", i, p.encode(lie), up=True))
    claim = "two of five holders lie about one dealer, and three good shares are below the threshold of four"
    yield "holder_too_many", case(claim, c5, step, -1, "SessionAborted", "threshold", replace=replace)


def aborts() -> Iterator[tuple[str, Case]]:
    """Sessions that end because too few are left."""
    c5, sparse = "complete_5", "sparse_20"
    table: list[tuple[str, str, str, str, str, Case]] = [
        ("adverts", "too few advertise for the cohort", c5, "server.close", "min_survivors",
         {"gone": {"advertise": [0, 1, 2]}}),
        ("sharers", "too few share for the cohort", c5, "server.close", "min_survivors",
         {"gone": {"share": [0, 1, 2]}}),
        ("holders", "enough share for the cohort, and too few for the threshold of the roster", c5, "server.close",
         "threshold",
         {"gone": {"share": [0, 1]}}),
        ("uploads", "too few upload for the cohort", c5, "server.close", "min_survivors",
         {"gone": {"upload": [0, 1, 2]}}),
        ("quorum", "too few attest for a quorum", c5, "server.close", "quorum", {"gone": {"attest": [0, 1]}}),
        ("reveals", "too few reveal for the threshold", c5, "server.finish", "threshold", {"gone": {"reveal": [0, 1]}}),
        ("degree", "a roster of 20 with 8 holders each does not keep the bound of a sparse graph", sparse,
         "server.close",
         "degree", {"params": honest()[sparse]["params"] | {"degree": 8}}),
        ("sparse_holders", "a survivor keeps fewer holders than its threshold", sparse, "server.close", "threshold",
         {"gone": {"upload": list(range(6, 20))}}),
    ]  # fmt: skip
    for name, claim, of, operation, rule, more in table:
        yield f"abort_{name}", case(claim, of, operation, -1, "SessionAborted", rule, **more)
    small = honest()[sparse]["params"] | {"degree": 8}
    built = drive({**honest()[sparse], "params": small}, until="advertise")
    adverts = sorted(built.host.adverts.values(), key=lambda a: a.sender)
    roster = p.encode(p.Roster(built.host.session, tuple(adverts)))
    claim = "a client computes the bound itself: a roster of 20 with 8 holders each is refused"
    yield "roster_unsound_degree", case(claim, sparse, "client.share", 0, "PolicyRefusal", "degree", params=small,
                                        extra=[letter("advertise", 0, roster, up=False, call="share")])  # fmt: skip


def orders() -> Iterator[tuple[str, Case]]:
    """Steps out of their turn: a caller's mistake, and the state does not change."""
    c3, late = "complete_3", "complete_5_late"

    def down(name: str, step: str, i: int = 0) -> bytes:
        return played(name).sent(step, i, up=False)

    table: list[tuple[str, str, str, str, str, bytes, int]] = [
        ("share_twice", "shares twice", c3, "share", "share", down(c3, "share"), 0),
        ("hold_before_share", "holds before it shared", c3, "advertise", "hold", down(c3, "hold"), 0),
        ("upload_twice", "uploads twice", c3, "upload", "upload", down(c3, "upload"), 0),
        ("reveal_before_attest", "reveals before it attested", c3, "upload", "reveal", down(c3, "reveal"), 0),
        ("reveal_twice", "reveals twice", c3, "reveal", "reveal", down(c3, "reveal"), 0),
        ("upload_after_attest", "uploads after it attested", late, "attest", "upload", down(late, "upload"), 1),
    ]
    for name, claim, of, step, call, data, i in table:
        extra = [letter(step, i, data, up=False, call=call)]
        yield f"order_{name}", case(f"no client {claim}", of, f"client.{call}", i, "MisuseError", "order", extra=extra)
    for name, claim, step, call in (
        ("finish_early", "the server does not finish before it has asked for shares", "upload", "finish"),
        ("open_early", "the server does not open uploads before it has closed the shares", "share", "open"),
        ("close_at_the_end", "nothing is closed when shares are collected", "reveal", "close"),
        ("receive_between", "nothing is received between the shares and the opening of uploads", "hold", "receive"),
    ):
        data = (
            down(c3, "upload")
            if call == "open"
            else played(c3).sent("upload", 0, up=True)
            if call == "receive"
            else b""
        )
        extra = [letter(step, 0, data, up=True, call=call)]
        yield f"order_{name}", case(claim, c3, f"server.{call}", 0, "MisuseError", "order", extra=extra)
    foreign = p.encode(p.Context(bytes(32), b"", b"", (), b""))
    claim = "the server opens its own session and no other"
    yield "open_other_session", case(claim, c3, "server.open", -1, "MisuseError", "context", context=foreign.hex())
    params = honest()[c3]["params"]
    for name, rule, changes in (
        ("clients", "clients", {"clients": 2}),
        ("classes", "classes", {"task": params["task"] | {"classes": ["cat", "cat"]}}),
        ("max_images", "max_images", {"task": params["task"] | {"max_images": 0}}),
        ("min_survivors", "min_survivors", {"min_survivors": 2}),
    ):
        claim = f"the server does not propose what no client may accept ({rule})"
        yield f"start_{name}", case(claim, c3, "server.start", -1, "PolicyRefusal", rule, params=params | changes)
    claim = "the server signs with the key that the parameters name"
    wrong = shake("a stranger", 32).hex()
    yield "start_other_key", case(claim, c3, "server.start", -1, "MisuseError", "server", server_key=wrong)


GROUPS = (uploads, faults, aborts, orders)
