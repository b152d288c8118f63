"""Bytes: each message has one encoding, and whatever else arrives is a typed error that says on whose side it arose.

The messages are those of an honest session of four. A broken one goes to the party that it was for; that party raises
a FedopalError, never anything else, and answers nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedopal_secure.core import client, messages, server
from fedopal_secure.core.codec import Message, decode, encode
from fedopal_secure.core.errors import ClientFault, FedopalError, PolicyRefusal, ServerFault
from fedopal_secure.core.messages import Context
from fedopal_secure.core.params import SessionParams, session_id
from fedopal_secure.core.server import ServerState
from tests.core.harness import Member, entropy, fork, make, run, segments

LATE = 3  # this client does not upload, so that a view has survivors and a dropped sharer
KINDS: dict[tuple[str, bool], type[Message]] = {
    ("advertise", False): messages.Proposal,
    ("advertise", True): messages.Advert,
    ("share", False): messages.Roster,
    ("share", True): messages.Shares,
    ("hold", False): messages.Relay,
    ("upload", False): Context,
    ("upload", True): messages.Upload,
    ("attest", False): messages.View,
    ("attest", True): messages.Attestation,
    ("reveal", False): messages.RevealRequest,
    ("reveal", True): messages.Reveal,
}


class Delivery(NamedTuple):
    """One honest message, and how to hand other bytes in its place to whom it was for."""

    step: str
    up: bool
    client: bytes
    data: bytes
    give: Callable[[bytes], Any]


class Recorder(Member):
    """Keeps a live copy of its state before each step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.before: dict[str, Any] = {}

    def _keep(self, step: str) -> None:
        self.before[step] = fork(self.state)

    def share(self, roster):
        self._keep("share")
        return super().share(roster)

    def hold(self, relay):
        self._keep("hold")
        super().hold(relay)

    def upload(self, context):
        self._keep("upload")
        return super().upload(context)

    def attest(self, view, context):
        self._keep("attest")
        return super().attest(view, context)

    def reveal(self, request):
        self._keep("reveal")
        return super().reveal(request)


@cache
def deliveries() -> tuple[Delivery, ...]:
    """Every message of an honest session; what goes to all clients alike is delivered to the first and the last."""
    federation = make(4, parts=segments((3, 2), (1, 8)))
    receive, live = server.receive, {}

    def keep(state: ServerState, sender: bytes, data: bytes) -> ServerState:
        live[sender, data] = fork(state)
        return receive(state, sender, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "receive", keep)
        result = run(federation, late=[federation.ids[LATE]], kinds=dict.fromkeys(federation.ids, Recorder))
    assert result.sum is not None
    assert not result.faults

    def give(letter: Any) -> Callable[[bytes], Any]:
        member, identity = result.members[letter.client], letter.client
        if letter.up:
            # A refused message leaves the server's state as it was, so one copy serves for all.
            return lambda data: server.receive(live[identity, letter.data], identity, data)
        context = next(iter(result.sent("upload", up=False).values()))
        late = identity == federation.ids[LATE]
        steps: dict[str, Callable[[bytes], Any]] = {
            "advertise": lambda data: client.advertise(data, federation.policy, member.key, b"", entropy(b"")),
            "share": lambda data: client.share(fork(member.before["share"]), data, entropy(b"")),
            "hold": lambda data: client.hold(fork(member.before["hold"]), data),
            "upload": lambda data: client.upload(fork(member.before["upload"]), member.vector, data, None),
            "attest": lambda data: client.attest(fork(member.before["attest"]), data, context if late else None),
            "reveal": lambda data: client.reveal(fork(member.before["reveal"]), data),
        }
        return steps[letter.step]

    ends = (federation.ids[0], federation.ids[LATE])
    return tuple(
        Delivery(letter.step, letter.up, letter.client, letter.data, give(letter))
        for letter in result.letters
        if letter.up or letter.client in ends
    )


def of(step: str, up: bool) -> Delivery:
    return next(d for d in deliveries() if (d.step, d.up) == (step, up))


class Taken(AssertionError):
    """Bytes that should have been refused were not."""

    def __init__(self, delivery: Delivery, data: bytes, answer: Any) -> None:
        super().__init__(f"{delivery.step} took {data.hex()}")
        self.answer = answer


def refused(delivery: Delivery, data: bytes) -> str:
    """Deliver `data`; return the refusal's text. Anything but a refusal that blames the right side fails the test."""
    try:
        answer = delivery.give(data)
    except FedopalError as error:
        if delivery.up:
            assert isinstance(error, ClientFault), error
            assert error.client == delivery.client
        else:
            assert isinstance(error, ServerFault | PolicyRefusal), repr(error)
        assert "\n" not in str(error)
        return str(error)
    raise Taken(delivery, data, answer)


EVERY = pytest.mark.parametrize(("step", "up"), KINDS)


def test_every_message_is_among_them():
    assert {(d.step, d.up) for d in deliveries()} == set(KINDS)
    assert len(set(KINDS.values())) == 11


@EVERY
def test_honest_messages_are_taken(step, up):
    for delivery in deliveries():
        if (delivery.step, delivery.up) == (step, up) and not up:
            delivery.give(delivery.data)


@EVERY
def test_a_message_is_its_own_canonical_encoding(step, up):
    data = of(step, up).data
    value = decode(KINDS[step, up], data, ServerFault)
    assert encode(value) == data


# Truncation and flipped bits, at every byte.


@EVERY
def test_truncation_at_every_byte(step, up):
    delivery = of(step, up)
    for length in range(len(delivery.data)):
        assert "not a valid" in refused(delivery, delivery.data[:length])


@EVERY
def test_trailing_bytes(step, up):
    delivery = of(step, up)
    for tail in (b"\0", b"\xc0", delivery.data, bytes(1000)):
        assert "not a valid" in refused(delivery, delivery.data + tail)


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """One flipped bit in every byte, another one from byte to byte."""
    for place in range(len(data)):
        yield place, data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]


@pytest.mark.parametrize(("step", "up"), [key for key in KINDS if key != ("upload", False)])
def test_a_flipped_bit_in_every_byte(step, up):
    """All of these are signed, or bound to what the receiver knows, to the last bit."""
    count = 0
    for delivery in deliveries():
        if (delivery.step, delivery.up) == (step, up):
            for _, data in flips(delivery.data):
                refused(delivery, data)
                count += 1
    assert count >= 100


def test_a_flipped_bit_in_a_proposal_that_the_server_signs_is_another_session():
    """A server may sign parameters that differ, and some of them are taken; but then no one else is in that session."""
    delivery, host = of("advertise", False), make(4).host
    honest = decode(messages.Proposal, delivery.data, ServerFault).params
    taken = 0
    for _, data in flips(encode(honest)):
        try:
            params = decode(SessionParams, data, ServerFault)
            state, _ = delivery.give(encode(messages.sign(host, messages.Proposal(params))))
        except (ServerFault, PolicyRefusal):
            continue
        taken += 1
        assert state.setup.session != session_id(honest)
    assert taken >= 32  # the nonce alone


def test_a_flipped_bit_in_a_context_is_another_context():
    """What a client does not know beforehand it takes; its upload then fits nobody else's."""
    delivery = of("upload", False)
    data = encode(msgspec.structs.replace(decode(Context, delivery.data, ServerFault), payload=b"a mean prompt"))
    honest = messages.context_hash(decode(Context, delivery.data, ServerFault))
    arrival = next(d for d in deliveries() if (d.step, d.up, d.client) == ("upload", True, delivery.client))
    taken = 0
    for _, changed in flips(data):
        try:
            state, sent = delivery.give(changed)
        except ServerFault:
            continue
        taken += 1
        assert state.header.context != honest
        with pytest.raises(ClientFault, match="context"):
            arrival.give(sent)
    assert taken == len(b"a mean prompt")


# Other encodings of the same value.


def tokens(data: bytes) -> Iterator[tuple[int, int, str, int]]:
    """(offset, header length, kind, value) of every MessagePack header that our messages use, in order."""
    at = 0
    while at < len(data):
        first = data[at]
        size, kind, value, body = 1, "nil", 0, 0
        if first <= 0x7F:
            kind, value = "uint", first
        elif first >= 0xE0:
            kind, value = "int", first - 0x100
        elif 0x90 <= first <= 0x9F:
            kind, value = "array", first & 15
        elif 0xA0 <= first <= 0xBF:
            kind, value = "str", first & 31
            body = value
        elif first in (0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB):
            kind, width = ("bin", 1 << (first - 0xC4)) if first < 0xC7 else ("str", 1 << (first - 0xD9))
            size, value = 1 + width, int.from_bytes(data[at + 1 : at + 1 + width], "big")
            body = value
        elif first in (0xCC, 0xCD, 0xCE, 0xCF):
            width = 1 << (first - 0xCC)
            size, kind, value = 1 + width, "uint", int.from_bytes(data[at + 1 : at + 1 + width], "big")
        elif first == 0xDC:
            size, kind, value = 3, "array", int.from_bytes(data[at + 1 : at + 3], "big")
        elif first == 0xCB:
            size, kind = 9, "float"
        elif first in (0xC2, 0xC3):
            kind = "bool"
        else:
            raise AssertionError(f"no honest message has {first:#x}")
        yield at, size, kind, value
        at += size + body


def wider(kind: str, value: int) -> list[bytes]:
    """All longer headers of the same value."""
    formats = {
        "uint": [b"\xcc", b"\xcd", b"\xce", b"\xcf"],
        "bin": [b"\xc4", b"\xc5", b"\xc6"],
        "str": [b"\xd9", b"\xda", b"\xdb"],
        "array": [b"", b"\xdc", b"\xdd"],
    }.get(kind, [])
    fits = [(first, 1 << place) for place, first in enumerate(formats) if first and value < 1 << (8 << place)]
    encoded = [first + value.to_bytes(width, "big") for first, width in fits]
    if kind == "uint" and value < 2**31:
        encoded += [b"\xd2" + struct.pack(">i", value), b"\xd3" + struct.pack(">q", value)]
    return encoded


@EVERY
def test_longer_headers_of_the_same_value(step, up):
    delivery = of(step, up)
    changed = 0
    for at, size, kind, value in tokens(delivery.data):
        own = delivery.data[at : at + size]
        for header in wider(kind, value):
            if header != own:
                told = refused(delivery, delivery.data[:at] + header + delivery.data[at + size :])
                assert "not a canonical" in told or "not a valid" in told
                changed += 1
    assert changed > 10


def test_the_walk_over_headers_reads_what_the_codec_reads():
    """The control of the test above: the same headers again are the same message."""
    for delivery in deliveries():
        joined = b"".join(
            delivery.data[at : at + size]
            + delivery.data[at + size : at + size + (value if kind in ("bin", "str") else 0)]
            for at, size, kind, value in tokens(delivery.data)
        )
        assert joined == delivery.data


def test_a_short_float_is_not_canonical():
    delivery = of("advertise", False)
    [at, *_] = [at for at, _, kind, _ in tokens(delivery.data) if kind == "float"]
    for header in (b"\xca" + struct.pack(">f", 1.0), b"\x01"):
        assert "not a canonical" in refused(delivery, delivery.data[:at] + header + delivery.data[at + 9 :])


def test_a_map_in_place_of_an_array():
    data = msgspec.msgpack.encode({"type": "attestation", "session": bytes(32), "sender": bytes(32)})
    assert "not a valid attestation" in refused(of("attest", True), data)


# Wrong types, lengths and fields, everywhere in the tree.


def trees(value: Any) -> Iterator[Any]:
    """All trees that differ from `value` at one node: a field more, a field less, another type, another length."""
    if isinstance(value, list):
        yield [*value, b"more"]
        yield [*value, *value]
        if value:
            yield value[:-1]
            yield value[1:]
        yield None
        yield dict.fromkeys(map(str, range(len(value))))
        for place, item in enumerate(value):
            for other in trees(item):
                yield [*value[:place], other, *value[place + 1 :]]
        return
    yield None
    yield []
    yield [value]
    match value:
        case bytes():
            yield value + b"\0"
            yield value.hex()
            yield 7
            if value:
                yield value[:-1]
        case bool():
            yield int(value)
        case int():
            yield from (float(value), str(value), -value - 1, value + 1, 2**63, 2**64 - 1, -(2**63), 1e300)
        case str():
            yield value.encode()
            yield value + "x"
        case float():
            yield from (str(value), float("nan"), float("inf"), -value, True)


# A list that the server may shorten without being refused at once; what that leads to is tested with its lies.
ENTRIES = {"share": "adverts"}


@EVERY
def test_wrong_types_lengths_and_fields(step, up):
    """Every node of the message changed in turn. What is taken all the same is a message of its own, and canonical."""
    delivery = of(step, up)
    honest = decode(KINDS[step, up], delivery.data, ServerFault)
    for tree in trees(msgspec.msgpack.decode(delivery.data)):
        data = msgspec.msgpack.encode(tree)
        if data == delivery.data:
            continue
        try:
            refused(delivery, data)
        except Taken as taken:
            told = decode(KINDS[step, up], data, ServerFault)
            if step in ENTRIES and not up:
                name = ENTRIES[step]
                assert msgspec.structs.replace(told, **{name: getattr(honest, name)}) == honest
                assert set(getattr(told, name)) < set(getattr(honest, name))
            else:
                assert step == "upload"
                assert taken.answer[0].header.context == messages.context_hash(told)


def test_another_message_in_its_place():
    """Tags tell messages apart, and so do their signatures' labels."""
    everything = {d.step + str(d.up): d.data for d in deliveries()}
    for delivery in deliveries():
        for name, data in everything.items():
            if name != delivery.step + str(delivery.up):
                told = refused(delivery, data)
                assert "not a valid" in told, (delivery.step, name, told)


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\xa4type" * 50_000,
        b"\xc7\xff\x00" + bytes(255),
        b"\xd6\xff" + bytes(4),
        b"\x93\xa6r\xffster",
        bytes(10**6),
    ],
)
@EVERY
def test_bytes_that_are_no_message(step, up, data):
    assert "not a valid" in refused(of(step, up), data)


def test_every_kind_of_fault_names_the_kind_of_message():
    for (step, up), kind in KINDS.items():
        assert f"not a valid {kind.__name__.lower()}" in refused(of(step, up), b"")


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_arbitrary_bytes(key, data):
    """Random bytes, and random changes to an honest message: refused, or the canonical bytes of another message."""
    delivery = of(*key)
    honest = delivery.data
    at, length = data.draw(st.integers(0, len(honest))), data.draw(st.integers(0, 8))
    spliced = st.binary(max_size=12).map(lambda added: honest[:at] + added + honest[at + length :])
    changed = data.draw(st.binary(max_size=64) | spliced)
    try:
        value = decode(KINDS[key], changed, ServerFault)
    except ServerFault:
        return
    assert encode(value) == changed


def test_a_name_that_is_no_text():
    """Every string of a proposal with a byte that UTF-8 never has."""
    delivery = of("advertise", False)
    strings = [(at, size, value) for at, size, kind, value in tokens(delivery.data) if kind == "str" and value]
    assert len(strings) > 8
    for at, size, length in strings:
        body = at + size
        for wrong in (b"\xff" * length, b"\xed\xa0\x80"[:length] + b"\xff" * (length - 3)):
            told = refused(delivery, delivery.data[:body] + wrong + delivery.data[body + length :])
            assert "not a valid" in told
