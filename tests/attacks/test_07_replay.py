"""Messages again: twice in a session, from an earlier session of the same people, or as somebody else's.

Signatures on one view are shown for another, an upload is counted twice, an old payload goes under a new header, and
shares are shown in the wrong name so that the wrong one is blamed. The earlier session has equal parameters; only its
nonce differs. Then, for everything that was ever sent in two sessions: whoever gets it at another time than the right
one, or as another's, refuses it with a typed error and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest

from fedopal_secure.core import client, server
from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import ClientFault, FedopalError, MisuseError, ServerFault
from fedopal_secure.core.messages import Advert, Relay, RevealRequest, Roster, Upload, View
from fedopal_secure.core.server import ServerState
from fedopal_secure.core.transitions import Phase
from tests.attacks.catalogue import Attack, Outcome, always, suite, unless, words
from tests.attacks.cheating import CheatingServer, prepared
from tests.core.harness import PHASES, Federation, Letter, Run, fork, make, read, run

N, C = 6, 1  # t = 4, and a quorum is 4
IDS = make(N, C).ids
VICTIM, OTHER = IDS[1], IDS[3]


@cache
def now() -> Run:
    """An honest session of these people. All entropy is from seeds, so every other run says the same until a lie."""
    return run(make(N, C))


@cache
def earlier() -> Run:
    """Their session before it, with equal parameters but for the nonce."""
    return run(make(N, C).child(b""))


@pytest.fixture(scope="module", autouse=True)
def recorded() -> None:
    """Both sessions are recorded while all defences stand."""
    now(), earlier()


# Signatures on other views.


def with_signatures_of(federation: Federation, old: CheatingServer | None) -> Outcome:
    """Everyone attests another view, and is shown what all attested: here, or in an old session."""
    cheat = prepared(federation, corrupt=federation.ids[-1:])
    victim = cheat.honest[0]
    views = cheat.own_views(victim)
    for peer, view in views.items():
        cheat.attest([peer], view)
    signed = (old or cheat).attestations
    shown = tuple(signed[signer] for signer in sorted(signed))
    for peer, view in views.items():
        cheat.reveal([peer], cheat.request(view, attestations=shown))
    return cheat.outcome(victim)


def signatures_on_other_views() -> Outcome:
    return with_signatures_of(make(7, 1), None)


def signatures_of_an_earlier_session() -> Outcome:
    federation = make(7, 1)
    return with_signatures_of(federation.child(b""), prepared(federation, "attest"))


# Between honest parties: the network sends something again.


def judged(result: Run, repeated: FedopalError | None = None) -> Outcome:
    """Everyone is honest here, so a sum other than the survivors' or any blame is the attacker's doing."""
    refused = repeated or next(iter((*result.faults.values(), *result.refusals.values())), None)
    if isinstance(result.error, ClientFault):
        return Outcome(True, f"an honest client is blamed: {words(result.error)}")
    if result.sum is None:
        return Outcome(False, "no sum" if result.error is None else words(result.error))
    if not np.array_equal(result.sum.total, result.plain_sum(result.sum.survivors)):
        return Outcome(True, "a wrong sum, and nobody is named")
    if result.sum.blame:
        blamed = result.sum.blame[0]
        told = f"{'a dealer and a holder' if blamed.holder else 'a holder'} named: {blamed.reason}"
        return Outcome(True, words(Exception(f"honest clients are blamed, {told}")).removeprefix("Exception: "))
    who = "client" if isinstance(refused, ServerFault) else "server"
    told = "nothing is refused" if refused is None else f"refused by the {who}: {words(refused)}"
    return Outcome(False, f"the sum is right; {told}")


def replaced(step: str, sender: bytes, *, up: bool = True, by: Callable[[bytes], bytes]) -> Callable[[], Outcome]:
    """One message is replaced on its way."""

    def tamper(letter: Letter) -> bytes:
        return by(letter.data) if (letter.step, letter.client, letter.up) == (step, sender, up) else letter.data

    return lambda: judged(run(make(N, C), tamper=tamper))


def counted_twice() -> Outcome:
    """The victim's upload arrives again."""
    receive, faults = server.receive, list[FedopalError]()

    def twice(state: ServerState, sender: bytes, data: bytes) -> ServerState:
        following = receive(state, sender, data)
        if following.phase == Phase.UPLOADS and sender == VICTIM:
            try:
                return receive(following, sender, data)
            except ClientFault as error:
                faults.append(error)
        return following

    with mock.patch.object(server, "receive", twice):
        result = run(make(N, C))
    return judged(result, *faults)


def of_an_earlier_session(step: str) -> Callable[[], Outcome]:
    """The victim's message of the earlier session comes in place of its own, and the server would show it to all."""

    def play() -> Outcome:
        old = earlier().sent(step)[VICTIM]
        result = run(make(N, C), tamper=lambda x: old if (x.step, x.client, x.up) == (step, VICTIM, True) else x.data)
        # The victim may well refuse, as it does not find its own message.
        blaming = [error for who, error in result.refusals.items() if who != VICTIM and isinstance(error, ServerFault)]
        if blaming:
            return Outcome(True, f"{len(blaming)} clients blame the server: {words(blaming[0])}")
        return judged(result)

    return play


def old_payload(data: bytes) -> bytes:
    """The header of now over what the same client uploaded in the earlier session."""
    old = read(Upload, earlier().sent("upload")[VICTIM])
    return encode(Upload(read(Upload, data).header, old.payload))


def other_ciphertext(source: Callable[[], Run], reader: bytes) -> Callable[[bytes], bytes]:
    """What the other client dealt to this reader in that session."""

    def change(data: bytes) -> bytes:
        relay, place = read(Relay, data), IDS.index(OTHER)
        ciphertext = read(Relay, source().sent("hold", up=False)[reader]).dealers[place].ciphertext
        changed = msgspec.structs.replace(relay.dealers[place], ciphertext=ciphertext)
        return encode(
            msgspec.structs.replace(relay, dealers=(*relay.dealers[:place], changed, *relay.dealers[place + 1 :]))
        )

    return change


VECTOR, WRONG, FRAMED = "the victim's vector", "a wrong sum", "honest clients are blamed"
OLD = {
    "advertise": ("an advert", "sent an advert of another session"),
    "share": ("a share message", "shared for another roster"),
    "upload": ("an upload", "uploaded under another session, roster, set of sharers or context"),
    "attest": ("an attestation", "attested another view"),
}
SIGNED, REQUIRE = "core.checks.attestations_are_signed", "core.server._require"
OWN_CIPHERTEXT = "core.checks.relayed_ciphertexts_are_the_dealers"
NOT_DEALT, NOT_SIGNED = "is not the one it signed", "did not sign the view that we signed"

test_defended, test_control = suite(
    Attack(7, "signatures on other views of this session", VECTOR, signatures_on_other_views, SIGNED, NOT_SIGNED),
    Attack(7, "signatures of an earlier session", VECTOR, signatures_of_an_earlier_session, SIGNED, NOT_SIGNED),
    Attack(
        7,
        "an upload that arrives twice",
        WRONG,
        counted_twice,
        REQUIRE,
        "the sum is right; refused by the server: ClientFault: client …: uploaded twice",
        unless("uploaded twice"),
    ),
    Attack(
        7,
        "the payload of an earlier session under a header of this one",
        WRONG,
        replaced("upload", VICTIM, by=old_payload),
        "core.messages.payload_hash",
        "the sum is right; refused by the server: ClientFault: client …: sent another upload than it signed",
        always(bytes(32)),
    ),
    Attack(
        7,
        "a client's reveal in the name of another",
        FRAMED,
        replaced("reveal", OTHER, by=lambda _: now().sent("reveal")[VICTIM]),
        REQUIRE,
        "the sum is right; refused by the server: ClientFault: client …: sent another identity's shares",
        unless("sent another identity's shares"),
    ),
    Attack(
        7,
        "a client's reveal of an earlier session",
        FRAMED,
        replaced("reveal", VICTIM, by=lambda _: earlier().sent("reveal")[VICTIM]),
        REQUIRE,
        "the sum is right; refused by the server: ClientFault: client …: revealed for another view",
        unless("revealed for another view"),
    ),
    Attack(
        7,
        "a dealer's ciphertext of an earlier session",
        FRAMED,
        replaced("hold", VICTIM, up=False, by=other_ciphertext(earlier, VICTIM)),
        OWN_CIPHERTEXT,
        NOT_DEALT,
    ),
    Attack(
        7,
        "a dealer's ciphertext for another client",
        FRAMED,
        replaced("hold", VICTIM, up=False, by=other_ciphertext(now, IDS[0])),
        OWN_CIPHERTEXT,
        NOT_DEALT,
    ),
    *(
        Attack(
            7,
            f"{what} of an earlier session, which the server would pass on",
            "the honest server is blamed",
            of_an_earlier_session(step),
            REQUIRE,
            f"the sum is right; refused by the server: ClientFault: client …: {reason}",
            unless(reason),
        )
        for step, (what, reason) in OLD.items()
    ),
)


# Everything that was ever sent.


def test_the_server_takes_each_message_once_from_its_sender_in_its_phase() -> None:
    """Before each message that is due, everything that anybody sent in either session, in the name of its sender."""
    known = [data for session in (earlier(), now()) for step in PHASES for data in session.sent(step).values()]
    receive, refused = server.receive, 0

    def stormed(state: ServerState, sender: bytes, data: bytes) -> ServerState:
        nonlocal refused
        for other in known:
            if other != data:
                with pytest.raises(ClientFault) as caught:
                    receive(state, sender, other)
                assert caught.value.client == sender
                refused += 1
        following = receive(state, sender, data)
        with pytest.raises(ClientFault):
            receive(following, sender, data)
        return following

    with mock.patch.object(server, "receive", stormed):
        result = run(make(N, C))
    assert judged(result).told == "the sum is right; nothing is refused"
    assert refused == 5 * N * (2 * 5 * N - 1)


STEPS: Mapping[str, Callable[..., Any]] = {
    "share": lambda member, state, data: client.share(state, data, member.entropy),
    "hold": lambda member, state, data: client.hold(state, data),
    "upload": lambda member, state, data: client.upload(state, member.vector, data, None),
    "attest": lambda member, state, data: client.attest(state, data),
    "reveal": lambda member, state, data: client.reveal(state, data),
}


def test_a_client_takes_each_request_once_in_its_phase() -> None:
    """In each phase, everything that the server told anybody in either session. Each try is on a copy of the state."""
    told = {data for session in (earlier(), now()) for step in STEPS for data in session.sent(step, up=False).values()}
    assert len(told) == 2 * (4 + N)  # a relay for each client, all else for all
    member = now().members[VICTIM]
    states = replayed_states()
    for step, state in zip(STEPS, states, strict=False):
        due = now().sent(step, up=False)[VICTIM]
        for data in told - {due}:
            with pytest.raises(ServerFault):
                STEPS[step](member, fork(state), data)
        STEPS[step](member, fork(state), due)


def replayed_states() -> list[Any]:
    """Copies of the states in which the victim was, before anything in them was used up or erased."""
    copies: list[Any] = []
    member = run(make(N, C), stop="share").members[VICTIM]
    state = member.state
    for step in STEPS:
        copies.append(fork(state))
        answer = STEPS[step](member, state, now().sent(step, up=False)[VICTIM])
        state = answer if step == "hold" else answer[0]
    return [*copies, fork(state)]


@pytest.mark.parametrize("step", STEPS)
def test_a_client_answers_no_phase_out_of_order(step: str) -> None:
    """The right request at the wrong time; the state can still be used for what is due."""
    member = now().members[VICTIM]
    request = now().sent(step, up=False)[VICTIM]
    for phase, state in zip((*STEPS, None), replayed_states(), strict=True):
        # Before its upload a client may attest, but not as one that did upload, which is how it is asked here.
        if phase != step:
            with pytest.raises(MisuseError):
                STEPS[step](member, state, request)
            assert not state.used
        if phase is not None:
            STEPS[phase](member, state, now().sent(phase, up=False)[VICTIM])


def put(entries: tuple[Any, ...], entry: Any) -> tuple[Any, ...]:
    """An entry in the other client's place."""
    place = IDS.index(OTHER)
    return (*entries[:place], entry, *entries[place + 1 :])


INNER: Mapping[str, tuple[str, type[Any], tuple[str, ...]]] = {
    "advert": ("share", Roster, ("adverts",)),
    "sharer": ("hold", Relay, ("sharers",)),
    "share message": ("hold", Relay, ("dealers",)),
    "share message and its hash": ("hold", Relay, ("sharers", "dealers")),
    "upload header": ("attest", View, ("survivors",)),
    "attestation": ("reveal", RevealRequest, ("attestations",)),
}


@pytest.mark.parametrize("what", INNER)
@pytest.mark.parametrize("whose", ["of an earlier session", "of another client"])
def test_what_is_inside_a_request_is_not_taken_from_elsewhere(what: str, whose: str) -> None:
    """One entry of what the server shows is what the same client signed earlier, or what another signed now."""
    step, kind, fields = INNER[what]
    place = IDS.index(OTHER)

    def tamper(letter: Letter) -> bytes:
        if letter.up or (letter.step, letter.client) != (step, VICTIM):
            return letter.data
        message, old = read(kind, letter.data), read(kind, earlier().sent(step, up=False)[VICTIM])
        changes = {}
        for field in fields:
            entries = getattr(message, field)
            changes[field] = put(entries, getattr(old, field)[place] if "earlier" in whose else entries[place - 1])
        return encode(msgspec.structs.replace(message, **changes))

    result = run(make(N, C), tamper=tamper)
    assert set(result.refusals) == {VICTIM}
    assert isinstance(result.refusals[VICTIM], ServerFault)
    assert VICTIM not in result.sent("reveal")
    assert result.sum is not None
    np.testing.assert_array_equal(result.sum.total, result.plain_sum(result.sum.survivors))


def test_an_old_proposal_begins_a_session_of_its_own() -> None:
    """The core takes it: all keys are fresh, and nothing that was signed before fits them.

    That the client's data is not given again is the ledger's part (group 12).
    """
    member, proposal = now().members[VICTIM], now().sent("advertise", up=False)[VICTIM]
    policy, entropy = member.federation.policy, member.federation.entropy("restarted")
    state, sent = client.advertise(proposal, policy, member.key, b"", entropy)
    fresh, old = read(Advert, sent), read(Advert, now().sent("advertise")[VICTIM])
    assert fresh.session == old.session
    assert {fresh.mask_key, fresh.seal_key}.isdisjoint({old.mask_key, old.seal_key})
    with pytest.raises(ServerFault, match="our own advert"):
        client.share(state, now().sent("share", up=False)[VICTIM], entropy)
