"""Bytes that are not what was sent: flipped bits, cut messages, other encodings, and messages in the place of others.

A whole session runs in which the first client, and the server, get every message in every broken form before they get
the message itself. Each broken one is a typed error that blames the right side and releases nothing; a client is then
out of the session, with its secrets erased, and the server goes on to the right sum. The attacks show what single
checks of bytes are good for: without them a flipped bit gives a wrong sum, or one signed message two transcripts.

`tests/core/test_codec.py` has wrong types, lengths and headers in every node of every message.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace

from fedopal_secure.core import client, messages, server
from fedopal_secure.core.census import Opening, recheck
from fedopal_secure.core.codec import _decoder, encode
from fedopal_secure.core.errors import ClientFault, FedopalError, PolicyRefusal, ServerFault
from fedopal_secure.core.messages import Attestation, Upload
from fedopal_secure.core.params import CENSUS, PROTOCOL
from fedopal_secure.core.server import ServerState
from fedopal_secure.core.states import ClientState
from fedopal_secure.core.transitions import Phase
from fedopal_secure.encoding.layout import statistics_segments
from fedopal_secure.federation.config import HeadSettings
from fedopal_secure.federation.pairwise_sum import PairwiseClient
from fedopal_secure.federation.secure_sum import UPLOAD, Participant
from fedopal_secure.federation.server import Proposal, RoundServer
from fedopal_secure.federation.timings import Timings
from fedopal_secure.federation.transcript import Transcript
from tests.attacks.catalogue import Attack, Outcome, always, suite, words
from tests.core.harness import (
    TASK,
    Letter,
    Member,
    Run,
    entropy,
    fork,
    make,
    read,
    run,
    seed,
    segments,
)

# Attacks.


def accepted_wrong(change: Callable[[Upload], Upload]) -> Callable[[], Outcome]:
    """Somebody on the wire changes the victim's upload; won if a sum comes out that is not the sum."""

    def play() -> Outcome:
        federation = make(5, 1)
        victim = federation.ids[0]

        def tamper(letter: Letter) -> bytes:
            if (letter.step, letter.up, letter.client) != ("upload", True, victim):
                return letter.data
            return encode(change(read(Upload, letter.data)))

        result = run(federation, tamper=tamper)
        if victim in result.faults:
            return Outcome(False, f"the server leaves the upload out: {words(result.faults[victim])}")
        if result.sum is None:
            return Outcome(False, f"no sum: {words(result.error or MissingSum())}")
        right = np.array_equal(result.sum.total, result.plain_sum(result.sum.survivors))
        return Outcome(not right, "a sum that is not the sum of its survivors' vectors")

    return play


class MissingSum(Exception):
    """A session without a sum and without an error."""


def flipped(upload: Upload) -> Upload:
    """One bit of the payload."""
    return replace(upload, payload=bytes([upload.payload[0] ^ 1]) + upload.payload[1:])


def rehashed(upload: Upload) -> Upload:
    """One bit of the payload, and the hash of what that makes."""
    changed = flipped(upload)
    header = replace(upload.header, payload_hash=messages.payload_hash(changed.payload))
    return Upload(header, changed.payload)


def recorded(recode: Callable[[bytes], bytes]) -> tuple[str, RoundServer]:
    """The head of the transcript of a session in which one attestation passes through `recode`, and its server."""
    parts = statistics_segments(TASK.feature_dimension, len(TASK.classes), TASK.feature_bits, TASK.max_images)
    federation, transcript = make(4, parts=parts), Transcript()
    host = RoundServer(
        federation.host,
        federation.members,
        federation.ids,
        Proposal(PROTOCOL, 4, 0, 0, 3, TASK),
        HeadSettings(),
        federation.entropy("server"),
        transcript,
        Timings(),
    )
    clients = {
        key.identity: PairwiseClient(Participant(key, b"", federation.policy, federation.entropy(key.identity)))
        for key in federation.keys
    }
    for phase in host.phases:
        for identity, request in host.request("statistics", phase).items():
            party = clients[identity]
            if phase == UPLOAD:
                party.begin_upload(request, None)
                answer = party.upload(np.zeros(federation.params.length, np.uint64))
            else:
                answer = party.answer(phase, request)
            if (phase, identity) == ("attest", federation.ids[0]):
                answer = recode(answer)
            if answer:
                host.receive("statistics", phase, identity, answer)
    host.finish("statistics")
    return transcript.head, host


def longer_header(attestation: bytes) -> bytes:
    """The length of the first hash in two bytes instead of one; otherwise what was sent."""
    return attestation.replace(b"\xc4\x20", b"\xc5\x00\x20", 1)


def two_transcripts() -> Outcome:
    """Somebody on the wire writes a signed message in another way; won if the record is another and nobody objects."""
    honest, _ = recorded(lambda attestation: attestation)
    other, host = recorded(longer_header)
    faults = host.records["statistics"].faults
    if faults:
        return Outcome(False, f"the server does not take it: {faults[0].reason}")
    return Outcome(honest != other, "two transcripts with different hashes of the very same signed messages")


def decode_without_comparison(kind: Any, data: bytes, fault: Callable[[str], FedopalError]) -> Any:
    """`decode` that takes any encoding of a value."""
    return _decoder(kind).decode(data)


test_defended, test_control = suite(
    Attack(
        8,
        "a flipped bit in an upload",
        "a wrong sum",
        accepted_wrong(flipped),
        "core.messages.payload_hash",
        "sent another upload than it signed",
        always(bytes(32)),
    ),
    Attack(
        8,
        "a flipped bit in an upload, and its hash put right",
        "a wrong sum",
        accepted_wrong(rehashed),
        "core.messages.is_signed",
        "that it did not sign",
        always(True),
    ),
    Attack(
        8,
        "an attestation written with a longer header",
        "two transcripts of one session",
        two_transcripts,
        "core.server.decode",
        "not a canonical attestation",
        decode_without_comparison,
    ),
)


# Every message in every broken form.

FIRST, LATE = 0, 3  # the client that is given broken messages; the one that does not upload
SHORT = 400  # bytes: up to here all eight bits of every byte are flipped, beyond it one of them

Tries = dict[tuple[str, bool], Counter[str]]


def broken(data: bytes) -> Iterator[tuple[str, bytes]]:
    """A message cut at every byte, and with flipped bits in every byte."""
    for length in range(len(data)):
        yield "cut", data[:length]
    for place, byte in enumerate(data):
        for bit in range(8) if len(data) <= SHORT else (place % 8,):
            yield "flipped", data[:place] + bytes([byte ^ 1 << bit]) + data[place + 1 :]


def session(variants: Callable[[Letter], Iterator[tuple[str, bytes]]]) -> tuple[Run, Tries]:
    """A session of four in which the first client's messages, both ways, are preceded by variants that must fail."""
    federation, tries = make(4, parts=segments((3, 2), (1, 8))), Tries()
    first = federation.ids[FIRST]

    def note(letter: Letter, how: str) -> None:
        tries.setdefault((letter.step, letter.up), Counter())[how] += 1

    class Victim(Member):
        def fails(self, step: str, data: bytes, take: Callable[[Any, bytes], Any]) -> None:
            letter = Letter(step, self.identity, False, data)
            for how, changed in variants(letter):
                state: ClientState | None = fork(self.state) if self.states else None
                with pytest.raises((ServerFault, PolicyRefusal)):
                    take(state, changed)
                if state is not None:
                    assert state.used
                    assert not any(secret._data for secret in state.secrets())
                note(letter, how)

        def advertise(self, proposal: bytes) -> bytes:
            policy, key = self.federation.policy, self.key
            self.fails("advertise", proposal, lambda _, data: client.advertise(data, policy, key, b"", entropy(b"")))
            return super().advertise(proposal)

        def share(self, roster: bytes) -> bytes:
            self.fails("share", roster, lambda state, data: client.share(state, data, entropy(b"")))
            return super().share(roster)

        def hold(self, relay: bytes) -> None:
            self.fails("hold", relay, client.hold)
            super().hold(relay)

        def upload(self, context: bytes) -> bytes:
            self.fails("upload", context, lambda state, data: client.upload(state, self.vector, data, None))
            return super().upload(context)

        def attest(self, view: bytes, context: bytes) -> bytes:
            self.fails("attest", view, client.attest)
            return super().attest(view, context)

        def reveal(self, request: bytes) -> bytes:
            self.fails("reveal", request, client.reveal)
            return super().reveal(request)

    receive = server.receive

    def receive_after(state: ServerState, sender: bytes, data: bytes) -> ServerState:
        letter = Letter(STEPS[state.phase], sender, True, data)
        for how, changed in variants(letter) if sender == first else ():
            with pytest.raises(ClientFault) as caught:
                receive(state, sender, changed)
            assert caught.value.client == sender
            note(letter, how)
        return receive(state, sender, data)

    with mock.patch.object(server, "receive", receive_after):
        result = run(federation, late=[federation.ids[LATE]], kinds={first: Victim})
    return result, tries


STEPS = {
    Phase.ADVERTS: "advertise",
    Phase.SHARES: "share",
    Phase.UPLOADS: "upload",
    Phase.ATTESTATIONS: "attest",
    Phase.REVEALS: "reveal",
}
EVERY = {(step, True) for step in STEPS.values()} | {(step, False) for step in (*STEPS.values(), "hold")}


def is_unharmed(result: Run) -> bool:
    """Whether a session ended as if nothing had been broken."""
    federation = result.federation
    survivors = tuple(identity for identity in federation.ids if identity != federation.ids[LATE])
    plain = result.plain_sum(survivors)
    if result.sum is None or result.faults or result.refusals:
        return False
    return result.sum.survivors == survivors and np.array_equal(result.sum.total, plain)


def test_every_byte_of_every_message() -> None:
    """All of it is signed, or bound to what the receiver knows: no flip stays valid, and no cut."""
    result, tries = session(lambda letter: broken(letter.data))
    assert is_unharmed(result)
    assert tries.keys() == EVERY
    for (step, up), count in tries.items():
        length = len(result.sent(step, up=up)[result.federation.ids[FIRST]])
        assert count == {"cut": length, "flipped": (8 if length <= SHORT else 1) * length}


@cache
def strangers() -> tuple[Run, Run]:
    """The same session, and another one of the same people."""
    federation = make(4, parts=segments((3, 2), (1, 8)))
    other = dataclasses.replace(federation, params=replace(federation.params, nonce=seed("another")))
    return tuple(run(one, late=[one.ids[LATE]]) for one in (federation, other))  # type: ignore[return-value]


def out_of_place(letter: Letter) -> Iterator[tuple[str, bytes]]:
    """All other messages of this session, and all of another session, that differ from this one."""
    for name, result in zip(("ours", "another's"), strangers(), strict=True):
        for other in result.letters:
            # A proposal of the same server for another session is a session, and is told apart by its id.
            proposal = (letter.step, letter.up) == (other.step, other.up) == ("advertise", False)
            if other.data != letter.data and not proposal:
                yield name, other.data


def test_every_message_in_the_place_of_every_other() -> None:
    """Of another kind, of another client, of another session."""
    strangers()
    result, tries = session(out_of_place)
    assert is_unharmed(result)
    assert tries.keys() == EVERY
    assert all(count["ours"] >= 20 and count["another's"] >= 30 for count in tries.values())


@pytest.mark.parametrize("up", [False, True])
def test_control_a_state_that_is_not_broken_goes_on(up: bool) -> None:
    """What the tests above call broken does fail for its bytes: the message itself would be taken, and they notice."""
    with pytest.raises(pytest.fail.Exception):
        session(lambda letter: iter([("itself", letter.data)] if letter.up == up else []))


# The opening of a census, which goes to clients within a context.


@cache
def counted() -> Run:
    task = replace(TASK, min_contributors=1)
    federation = make(4, parts=segments((2, 1), signed=False), min_contributors=1).child(b"", name=CENSUS, task=task)
    return run(federation, late=[federation.ids[LATE]])


def test_every_byte_of_an_opening() -> None:
    """Five bits of a masking key mean nothing to X25519: an opening with one of them flipped is the same census."""
    result = counted()
    assert result.sum is not None
    assert isinstance(result.sum.opening, Opening)
    data, witness = encode(result.sum.opening), result.members[result.federation.ids[FIRST]].state.view.witness
    found = recheck(witness, data)
    at = len(data) - 32
    free = {(at, 0), (at, 1), (at, 2), (at + 31, 7), (at + 31, 6)}
    taken = set()
    for place, byte in enumerate(data):
        for bit in range(8):
            changed = data[:place] + bytes([byte ^ 1 << bit]) + data[place + 1 :]
            try:
                assert recheck(witness, changed) == found
                taken.add((place, bit))
            except ServerFault:
                continue
    assert taken == free
    for length in range(len(data)):
        with pytest.raises(ServerFault):
            recheck(witness, data[:length])


def test_the_longer_header_is_the_same_attestation() -> None:
    """What the third attack rests on."""
    federation = make(4)
    sent = run(federation).sent("attest")[federation.ids[FIRST]]
    other = longer_header(sent)
    assert other != sent
    assert decode_without_comparison(Attestation, other, ServerFault) == read(Attestation, sent)
