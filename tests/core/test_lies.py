"""What a cheating server may tell a client and does not get away with: one lie, one refusal.

The lie goes to one client; it refuses before it sends anything more, and the others finish without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from fedopal_secure.core import messages, server
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import ClientFault, PolicyRefusal, ServerFault, SessionAborted
from fedopal_secure.core.messages import Advert, Attestation, Relay, Relayed, RevealRequest, Roster, Sharer, View
from tests.core.harness import Letter, Run, forge, make, read, run

N, C = 6, 1  # t = 4, a quorum is 4, the cohort 3
IDS = make(N, C).ids
KEYS = {key.identity: key for key in make(N, C).keys}
VICTIM = IDS[0]

Change = Callable[[Any], dict[str, Any]]


def told(step: str, kind: type, change: Change, *, to: bytes | None = VICTIM, **options: object) -> Run:
    """A session in which one message of the server is changed on its way to one client, or to all."""

    def tamper(letter: Letter) -> bytes:
        if letter.step != step or letter.up or (to is not None and letter.client != to):
            return letter.data
        message = read(kind, letter.data)
        return encode(msgspec.structs.replace(message, **change(message)))

    return run(make(N, C), tamper=tamper, **options)


def assert_refused(result: Run, kind: type[Exception], words: str, then: str) -> None:
    """The victim refused with this error, sent nothing in step `then`, and the others reached what they could."""
    error = result.refusals[VICTIM]
    assert isinstance(error, kind), error
    assert words in str(error)
    assert set(result.refusals) == {VICTIM}
    assert VICTIM not in result.sent(then)
    assert VICTIM not in result.sent("reveal")
    assert not any(secret._data for state in result.members[VICTIM].states for secret in state.secrets())
    assert result.error is None
    assert (result.sum.total == result.plain_sum(result.sum.survivors)).all()


def cut(entries: tuple, place: int) -> tuple:
    return entries[:place] + entries[place + 1 :]


def put(entries: tuple, place: int, **change: Any) -> tuple:
    return (*entries[:place], msgspec.structs.replace(entries[place], **change), *entries[place + 1 :])


# Roster.

STRANGER = make(3, start="strangers")


def stranger(roster: Roster) -> Advert:
    advert = read(Advert, run(STRANGER, stop="share").sent("advertise")[STRANGER.ids[0]])
    return forge(STRANGER.keys[0], advert, session=roster.session)


def in_order(adverts: tuple[Advert, ...]) -> tuple[Advert, ...]:
    return tuple(sorted(adverts, key=lambda advert: advert.sender))


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda r: {"session": bytes(32)}, ServerFault, "another session"),
        (lambda r: {"adverts": r.adverts[:1] + r.adverts}, ServerFault, "7 members, the session 6"),
        (lambda r: {"adverts": in_order((*r.adverts, stranger(r)))}, ServerFault, "7 members, the session 6"),
        (lambda r: {"adverts": r.adverts[:1] + r.adverts[:-1]}, ServerFault, "repeats an identity"),
        (lambda r: {"adverts": r.adverts[::-1]}, ServerFault, "unordered"),
        (lambda r: {"adverts": r.adverts[1:]}, ServerFault, "our own advert"),
        (lambda r: {"adverts": ()}, ServerFault, "our own advert"),
        (lambda r: {"adverts": put(r.adverts, 0, mask_key=bytes(32))}, ServerFault, "our own advert"),
        (lambda r: {"adverts": put(r.adverts, 0, signature=bytes(64))}, ServerFault, "our own advert"),
        (lambda r: {"adverts": in_order((*cut(r.adverts, 3), stranger(r)))}, PolicyRefusal, "unknown to the policy"),
        (lambda r: {"adverts": put(r.adverts, 3, session=bytes(32))}, ServerFault, "not signed for this session"),
        (lambda r: {"adverts": put(r.adverts, 3, mask_key=bytes(32))}, ServerFault, "not signed for this session"),
        (lambda r: {"adverts": put(r.adverts, 3, seal_key=bytes(32))}, ServerFault, "not signed for this session"),
        (lambda r: {"adverts": put(r.adverts, 3, certificate=b"x")}, ServerFault, "not signed for this session"),
        (lambda r: {"adverts": r.adverts[:2]}, PolicyRefusal, "cannot give a cohort of 3"),
    ],
)
def test_rosters(change, kind, words):
    assert_refused(told("share", Roster, change), kind, words, "share")


def test_an_advert_of_an_earlier_session_is_refused():
    """Signed by the right client, for equal parameters but another nonce."""
    old = run(make(N, C).child(b""), stop="share").sent("advertise")[IDS[3]]
    result = told("share", Roster, lambda r: {"adverts": (*r.adverts[:3], read(Advert, old), *r.adverts[4:])})
    assert_refused(result, ServerFault, "not signed for this session", "share")


# Relay.


def listed(dealers: Sequence[Relayed]) -> dict[str, Any]:
    """The dealers, and the list of sharers that goes with them."""
    sharers = tuple(Sharer(d.message.sender, messages.share_message_hash(d.message)) for d in dealers)
    return {"sharers": sharers, "dealers": tuple(dealers)}


def dealt(place: int, **change: Any) -> Change:
    """Change the signed message of one dealer, and the list with it."""

    def apply(relay: Relay) -> dict[str, Any]:
        message = msgspec.structs.replace(relay.dealers[place].message, **change)
        return listed(put(relay.dealers, place, message=message))

    return apply


def redealt(**change: Any) -> Change:
    """The same, by a dealer that signs what it should not."""

    def apply(relay: Relay) -> dict[str, Any]:
        message = forge(KEYS[IDS[3]], relay.dealers[3].message, **change)
        return listed(put(relay.dealers, 3, message=message))

    return apply


def unlisted(relay: Relay) -> dict[str, Any]:
    """A dealer shows one message, and the list has another that it signed as well."""
    other = forge(KEYS[IDS[3]], relay.dealers[3].message, seed_hash=bytes(32))
    return {"sharers": put(relay.sharers, 3, message=messages.share_message_hash(other))}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: {"session": bytes(32)}, "another session"),
        (lambda r: listed(r.dealers[:1] + r.dealers), "repeats a sharer"),
        (lambda r: listed(r.dealers[::-1]), "unordered"),
        (lambda r: listed(r.dealers[1:]), "our own share message"),
        (lambda r: {"sharers": r.sharers[:1] + r.sharers}, "repeats a sharer"),
        (lambda r: {"sharers": r.sharers[::-1]}, "unordered"),
        (lambda r: {"sharers": put(r.sharers, 5, identity=b"\xff" * 32)}, "outside the roster"),
        (lambda r: {"sharers": r.sharers[:5]}, "a message that its list does not"),
        (lambda r: {"sharers": ()}, "a message that its list does not"),
        (lambda r: {"sharers": put(r.sharers, 3, message=bytes(32))}, "a message that its list does not"),
        (lambda r: {"sharers": put(r.sharers, 0, message=bytes(32))}, "a message that its list does not"),
        (unlisted, "a message that its list does not"),
        (lambda r: {"dealers": r.dealers[:1] + r.dealers}, "repeats a dealer"),
        (lambda r: {"dealers": r.dealers[::-1]}, "repeats a dealer"),
        (lambda r: {"dealers": r.dealers[1:]}, "our own share message"),
        (lambda r: {"dealers": ()}, "our own share message"),
        (lambda r: {"dealers": r.dealers[:5]}, "leaves out the message of someone who shared"),
        (lambda r: {"dealers": cut(r.dealers, 3)}, "leaves out the message of someone who shared"),
        (dealt(0, signature=bytes(64)), "our own share message"),
        (dealt(5, sender=b"\xff" * 32), "outside the roster"),
        (dealt(3, signature=bytes(64)), "not signed for this session and roster"),
        (dealt(3, seed_hash=bytes(32)), "not signed for this session and roster"),
        (redealt(session=bytes(32)), "not signed for this session and roster"),
        (redealt(roster=bytes(32)), "not signed for this session and roster"),
        (redealt(holders=()), "does not fit"),
        (redealt(holders=(0, 1, 2, 3, 4)), "does not fit"),
        (redealt(holders=(1, 0, 2, 3, 4, 5)), "does not fit"),
        (redealt(holders=(0, 1, 2, 3, 4, 6)), "does not fit"),
        (redealt(holders=(-1, 0, 1, 2, 3, 4)), "does not fit"),
        (redealt(holders=(0, 1, 2, 3, 4, 4)), "does not fit"),
        (redealt(holders=(0, 1, 2, 3, 4, 2**63)), "does not fit"),
        (redealt(key_commitments=()), "does not fit"),
        (redealt(seed_commitments=(bytes(32),) * 7), "does not fit"),
        (redealt(ciphertext_hashes=()), "does not fit"),
        (lambda r: {"dealers": put(r.dealers, 3, ciphertext=b"")}, "is not the one it signed"),
        (lambda r: {"dealers": put(r.dealers, 3, ciphertext=r.dealers[4].ciphertext)}, "is not the one it signed"),
        (lambda r: {"dealers": put(r.dealers, 0, ciphertext=b"x")}, "is not the one it signed"),
        (lambda r: listed(r.dealers[:3]), "3 of our holders shared, below the threshold of 4"),
    ],
)
def test_relays(change, words):
    assert_refused(told("hold", Relay, change), ServerFault, words, "upload")


def test_a_dealer_that_shows_two_messages_is_found_when_views_are_attested():
    """Both are signed, so nobody sees it at once; but no view fits both."""
    result = told("hold", Relay, redealt(seed_hash=bytes(32)))
    assert "set of sharers" in str(result.faults[VICTIM])
    assert set(result.refusals) == {VICTIM}
    assert set(result.sum.survivors) == set(IDS) - {VICTIM}


def test_isolation_is_found_when_views_are_attested():
    """The victim alone is told that two others never shared: its upload names another set of sharers."""
    result = told("hold", Relay, lambda r: listed(r.dealers[:4]))
    assert set(result.refusals) == {VICTIM}
    assert "set of sharers" in str(result.faults[VICTIM])
    assert set(result.sum.survivors) == set(IDS) - {VICTIM}


# View.


def header(place: int, **change: Any) -> Change:
    return lambda view: {"survivors": put(view.survivors, place, **change)}


def resigned(**change: Any) -> Change:
    def apply(view: View) -> dict[str, Any]:
        signed = forge(KEYS[IDS[3]], view.survivors[3], **change)
        return {"survivors": (*view.survivors[:3], signed, *view.survivors[4:])}

    return apply


def outsider(view: View) -> dict[str, Any]:
    """A header of somebody who never shared."""
    added = forge(STRANGER.keys[0], view.survivors[0], sender=STRANGER.ids[0])
    return {"survivors": tuple(sorted((*view.survivors, added), key=lambda h: h.sender))}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda v: {"session": bytes(32)}, ServerFault, "of another session, roster, set of sharers or context"),
        (lambda v: {"roster": bytes(32)}, ServerFault, "of another session, roster, set of sharers or context"),
        (lambda v: {"sharers": bytes(32)}, ServerFault, "of another session, roster, set of sharers or context"),
        (lambda v: {"context": bytes(32)}, ServerFault, "of another session, roster, set of sharers or context"),
        (lambda v: {"survivors": v.survivors[:1] + v.survivors}, ServerFault, "repeats a survivor"),
        (lambda v: {"survivors": v.survivors[::-1]}, ServerFault, "unordered"),
        (outsider, ServerFault, "never shared"),
        (resigned(session=bytes(32)), ServerFault, "uploaded under another roster, set of sharers or context"),
        (resigned(roster=bytes(32)), ServerFault, "uploaded under another roster, set of sharers or context"),
        (resigned(sharers=bytes(32)), ServerFault, "uploaded under another roster, set of sharers or context"),
        (resigned(context=bytes(32)), ServerFault, "uploaded under another roster, set of sharers or context"),
        (header(3, payload_hash=bytes(32)), ServerFault, "not signed by it"),
        (header(3, signature=bytes(64)), ServerFault, "not signed by it"),
        (header(0, signature=bytes(64)), ServerFault, "not signed by it"),
        (lambda v: {"survivors": v.survivors[1:]}, ServerFault, "wrong about our own upload"),
        (lambda v: {"survivors": v.survivors[:2]}, PolicyRefusal, "2 survivors, and 3 are needed"),
        (lambda v: {"survivors": ()}, ServerFault, "wrong about our own upload"),
    ],
)
def test_views(change, kind, words):
    assert_refused(told("attest", View, change), kind, words, "attest")


def test_our_own_header_is_shown_as_we_sent_it():
    """Another header that we signed, say from a copy of our machine, is not the one of this upload."""

    def other(view: View) -> dict[str, Any]:
        own = forge(KEYS[VICTIM], view.survivors[0], payload_hash=bytes(32))
        return {"survivors": (own, *view.survivors[1:])}

    assert_refused(told("attest", View, other), ServerFault, "wrong about our own upload", "attest")


def test_who_did_not_upload_is_no_survivor():
    def invent(view: View) -> dict[str, Any]:
        own = forge(KEYS[VICTIM], view.survivors[0], sender=VICTIM)
        return {"survivors": (own, *view.survivors)}

    result = told("attest", View, invent, late=[VICTIM])
    assert_refused(result, ServerFault, "wrong about our own upload", "attest")


def test_a_split_view_gets_no_quorum():
    """Three are told that the last one dropped, three that it survived: neither half is a quorum."""
    halves = {i: place % 2 == 0 and i != IDS[-1] for place, i in enumerate(IDS)}

    def tamper(letter: Letter) -> bytes:
        if letter.step == "attest" and not letter.up and halves[letter.client]:
            view = read(View, letter.data)
            return encode(msgspec.structs.replace(view, survivors=view.survivors[:-1]))
        return letter.data

    result = run(make(N, C), tamper=tamper)
    assert len(result.sent("attest")) == N  # each view is good in itself
    assert isinstance(result.error, SessionAborted)
    assert result.error.rule == "quorum"
    assert not result.sent("reveal")


# Reveal request.


def attestation(place: int, **change: Any) -> Change:
    return lambda request: {"attestations": put(request.attestations, place, **change)}


def other_signer(request: RevealRequest) -> dict[str, Any]:
    added = forge(STRANGER.keys[0], request.attestations[0], sender=STRANGER.ids[0])
    return {"attestations": tuple(sorted((*request.attestations, added), key=lambda a: a.sender))}


def signed_other_view(request: RevealRequest) -> dict[str, Any]:
    forged = forge(KEYS[IDS[3]], request.attestations[3], view=bytes(32))
    return {"attestations": (*request.attestations[:3], forged, *request.attestations[4:])}


LATE = IDS[1]  # does not upload, so that both lists have somebody


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: {"session": bytes(32)}, "another view than the one we signed"),
        (lambda r: {"view": bytes(32)}, "another view than the one we signed"),
        (lambda r: {"attestations": r.attestations[:1] + r.attestations}, "repeats a signer"),
        (lambda r: {"attestations": r.attestations[:1] * 6}, "repeats a signer"),
        (lambda r: {"attestations": r.attestations[::-1]}, "unordered"),
        (other_signer, "from outside the roster"),
        (attestation(3, signature=bytes(64)), "did not sign the view"),
        (attestation(3, session=bytes(32)), "did not sign the view"),
        (signed_other_view, "did not sign the view"),
        (lambda r: {"attestations": r.attestations[:3]}, "3 signatures are no quorum of 6 members with c = 1"),
        (lambda r: {"attestations": ()}, "no quorum"),
        (lambda r: {"survivors": r.dropped, "dropped": r.survivors}, "lists are not exactly"),
        (lambda r: {"dropped": r.dropped + r.survivors[:1]}, "lists are not exactly"),
        (lambda r: {"dropped": r.dropped * 4}, "lists are not exactly"),
        (lambda r: {"dropped": ()}, "lists are not exactly"),
        (lambda r: {"dropped": (bytes(32),)}, "lists are not exactly"),
        (lambda r: {"survivors": r.survivors[1:]}, "lists are not exactly"),
        (lambda r: {"survivors": r.survivors[:1], "dropped": r.dropped + r.survivors[1:]}, "lists are not exactly"),
        (lambda r: {"survivors": r.survivors[::-1]}, "lists are not exactly"),
        (lambda r: {"survivors": r.survivors + STRANGER.ids[:1]}, "lists are not exactly"),
    ],
)
def test_requests(change, words):
    result = told("reveal", RevealRequest, change, late=[LATE])
    assert_refused(result, ServerFault, words, "reveal")


def test_a_quorum_is_more_than_half_of_the_roster_and_the_corrupt():
    """The server shows no more than that many, and a client takes more as well."""
    honest = run(make(N, C))
    everyone = tuple(read(Attestation, honest.sent("attest")[i]) for i in IDS)
    shown = [read(RevealRequest, data).attestations for data in honest.sent("reveal", up=False).values()]
    assert shown == [everyone[:4]] * N
    for count in (4, 5, 6):
        result = told("reveal", RevealRequest, lambda r, count=count: {"attestations": everyone[:count]})
        assert not result.refusals
        assert VICTIM in result.sent("reveal")


# What clients may not tell the server.


def up(step: str, kind: type, change: Change) -> Run:
    """A session in which the victim is the one who cheats: its message is changed, and signed anew where it can be."""

    def tamper(letter: Letter) -> bytes:
        if letter.step != step or not letter.up or letter.client != VICTIM:
            return letter.data
        message = read(kind, letter.data)
        changes = change(message)
        return encode(
            msgspec.structs.replace(message, **changes)
            if "signature" in changes or "signature" not in message.__struct_fields__
            else forge(KEYS[VICTIM], message, **changes)
        )

    return run(make(N, C), tamper=tamper, drops={"upload": [LATE]})


def shares(**change: Any) -> Change:
    return lambda s: {"message": forge(KEYS[VICTIM], s.message, **change)}


def unsigned_shares(s: messages.Shares) -> dict[str, Any]:
    return {"message": msgspec.structs.replace(s.message, signature=bytes(64))}


def upload(**change: Any) -> Change:
    return lambda u: {"header": forge(KEYS[VICTIM], u.header, **change)}


def longer(u: messages.Upload) -> dict[str, Any]:
    payload = u.payload + b"\0"
    return {"payload": payload, "header": forge(KEYS[VICTIM], u.header, payload_hash=messages.payload_hash(payload))}


@pytest.mark.parametrize(
    ("step", "kind", "change", "words"),
    [
        ("advertise", Advert, lambda a: {"sender": IDS[1]}, "another identity's advert"),
        ("advertise", Advert, lambda a: {"session": bytes(32)}, "advert of another session"),
        ("advertise", Advert, lambda a: {"signature": bytes(64)}, "did not sign"),
        ("advertise", Advert, lambda a: {"seal_key": a.mask_key}, "public key that is in the roster already"),
        ("share", messages.Shares, shares(sender=IDS[1]), "another identity's shares"),
        ("share", messages.Shares, shares(session=bytes(32)), "for another roster"),
        ("share", messages.Shares, shares(roster=bytes(32)), "for another roster"),
        ("share", messages.Shares, unsigned_shares, "did not sign"),
        ("share", messages.Shares, shares(holders=()), "do not fit the roster or its own hashes"),
        ("share", messages.Shares, lambda s: {"ciphertexts": s.ciphertexts[1:]}, "do not fit the roster"),
        ("share", messages.Shares, lambda s: {"ciphertexts": s.ciphertexts[::-1]}, "do not fit the roster"),
        ("upload", messages.Upload, upload(sender=IDS[1]), "another identity's upload"),
        ("upload", messages.Upload, upload(session=bytes(32)), "under another session"),
        ("upload", messages.Upload, upload(roster=bytes(32)), "under another session"),
        ("upload", messages.Upload, upload(sharers=bytes(32)), "under another session"),
        ("upload", messages.Upload, upload(context=bytes(32)), "under another session"),
        ("upload", messages.Upload, lambda u: {"header": forge(KEYS[IDS[1]], u.header)}, "did not sign"),
        ("upload", messages.Upload, lambda u: {"payload": bytes(len(u.payload))}, "another upload than it signed"),
        ("upload", messages.Upload, longer, "of the wrong length"),
        ("attest", Attestation, lambda a: {"sender": IDS[1]}, "another identity's attestation"),
        ("attest", Attestation, lambda a: {"session": bytes(32)}, "attested another view"),
        ("attest", Attestation, lambda a: {"view": bytes(32)}, "attested another view"),
        ("attest", Attestation, lambda a: {"signature": bytes(64)}, "did not sign"),
        ("reveal", messages.Reveal, lambda r: {"sender": IDS[1]}, "another identity's shares"),
        ("reveal", messages.Reveal, lambda r: {"session": bytes(32)}, "for another view"),
        ("reveal", messages.Reveal, lambda r: {"view": bytes(32)}, "for another view"),
        ("reveal", messages.Reveal, lambda r: {"signature": bytes(64)}, "did not sign"),
        ("reveal", messages.Reveal, lambda r: {"seed_shares": ()}, "another number of shares"),
        ("reveal", messages.Reveal, lambda r: {"key_shares": r.key_shares * 2}, "another number of shares"),
    ],
)
def test_what_the_server_does_not_take(step, kind, change, words):
    """The message is as if it had never come; the others finish."""
    result = up(step, kind, change)
    assert set(result.faults) == {VICTIM}
    fault = result.faults[VICTIM]
    assert isinstance(fault, ClientFault)
    assert fault.client == VICTIM
    assert words in str(fault)
    assert result.error is None
    uploaded = set(IDS) - {LATE} - ({VICTIM} if step in ("advertise", "share", "upload") else set())
    assert set(result.sum.survivors) == uploaded
    assert (result.sum.total == result.plain_sum(uploaded)).all()


def test_entries_that_are_not_residues_are_refused():
    federation = make(N, C, modulus=251)

    def tamper(letter: Letter) -> bytes:
        if letter.step != "upload" or not letter.up or letter.client != VICTIM:
            return letter.data
        upload = read(messages.Upload, letter.data)
        payload = b"\xfb" * len(upload.payload)  # 251
        hashed = messages.payload_hash(payload)
        return encode(messages.Upload(forge(KEYS[VICTIM], upload.header, payload_hash=hashed), payload))

    result = run(federation, tamper=tamper)
    assert "not residues" in str(result.faults[VICTIM])
    assert (result.sum.total == result.plain_sum(IDS[1:])).all()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("advertise", "advertised twice"),
        ("share", "shared twice"),
        ("upload", "uploaded twice"),
        ("attest", "attested twice"),
        ("reveal", "revealed twice"),
    ],
)
def test_nobody_is_heard_twice(step, words):
    """The same message again, from the second client to be heard in the step."""
    heard: list[bytes] = []

    def tamper(letter: Letter) -> bytes:
        if (letter.step, letter.up) == (step, True):
            heard.append(letter.data)
        return letter.data

    receive = server.receive
    with pytest.MonkeyPatch.context() as patch:

        def twice(state, sender, data):
            following = receive(state, sender, data)
            if data in heard:
                with pytest.raises(ClientFault, match=words) as caught:
                    receive(following, sender, data)
                assert caught.value.client == sender
            return following

        patch.setattr(server, "receive", twice)
        result = run(make(N, C), tamper=tamper)
    np.testing.assert_array_equal(result.sum.total, result.plain_sum(IDS))


@pytest.mark.parametrize(
    ("step", "before", "words"),
    [
        ("share", "advertise", "without being in the roster"),
        ("upload", "share", "without having shared"),
        ("attest", "share", "without having shared"),
        ("reveal", "attest", "without having attested"),
    ],
)
def test_nobody_skips_a_phase(step, before, words):
    """Its message of an earlier phase was lost on the way, and it goes on as if it had arrived."""
    honest = run(make(N, C))
    result = run(make(N, C), drops={before: [VICTIM]}, stop=step)
    if step == "upload":
        result.state, _ = server.open_uploads(result.state, messages.Context(result.state.session, b"", b"", (), b""))
    with pytest.raises(ClientFault, match=words):
        server.receive(result.state, VICTIM, honest.sent(step)[VICTIM])


def test_the_server_refuses_strangers_and_a_full_roster():
    federation = make(N, C)
    result = run(federation, stop="share", drops={"share": IDS})
    state, _ = server.start(federation.params, federation.members, federation.host)
    advert = read(Advert, result.sent("advertise")[IDS[0]])
    foreign = forge(STRANGER.keys[0], advert, sender=STRANGER.ids[0])
    with pytest.raises(ClientFault, match="is not a member"):
        server.receive(state, STRANGER.ids[0], encode(foreign))
    small = make(N, C).child(b"", clients=4)
    crowd = run(small)
    late = {i: error for i, error in crowd.faults.items() if "roster was full" in str(error)}
    assert len(late) == 2
    assert set(crowd.sum.survivors) == set(IDS) - set(late)
