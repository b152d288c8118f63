"""How real bytes are broken: flips, cuts, splices and repeats, and changes that know MessagePack's headers."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

# Headers that promise far more than follows, and values at the ends of their ranges.
HUGE = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdd\x7f\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x00",
    b"\xdc\xff\xff",
    b"\xde\xff\xff",
)
EXTREME = (
    b"\xcf" + b"\xff" * 8,
    b"\xcf\x80" + bytes(7),
    b"\xd3\x80" + bytes(7),
    b"\xd3" + b"\xff" * 8,
    b"\xcb" + struct.pack(">d", float("nan")),
    b"\xcb" + struct.pack(">d", float("inf")),
    b"\xcb" + struct.pack(">d", -0.0),
    b"\xcb" + struct.pack(">d", 5e-324),
    b"\xca" + struct.pack(">f", 1.0),
    b"\x00",
    b"\xff",
    b"\xc0",
    b"\xc1",
    b"\xc2",
    b"\xc3",
    b"\xc4\x00",
    b"\xa0",
    b"\x90",
    b"\x80",
    b"\xa1\xff",
    b"\xd6\xff" + bytes(4),
)
# Plain text that parsers trip over.
TEXT = (
    b"[",
    b"{",
    b'"',
    b"'",
    b"\n",
    b"\r",
    b"\x00",
    b"=",
    b".",
    b",",
    b"-",
    b"1e999",
    b"nan",
    b"\\u0000",
    b"\xff",
    b"9",
)


def headers(data: bytes) -> Iterator[tuple[int, int, str, int]]:
    """(offset, size, kind, value) of the headers that a walk over MessagePack meets, until it meets something else."""
    at = 0
    while at < len(data):
        first = data[at]
        if first <= 0x7F:
            size, kind, value, body = 1, "uint", first, 0
        elif 0x90 <= first <= 0x9F:
            size, kind, value, body = 1, "array", first & 15, 0
        elif 0xA0 <= first <= 0xBF:
            size, kind, value, body = 1, "str", first & 31, first & 31
        elif first in _SIZED:
            kind, width, has_body = _SIZED[first]
            value = int.from_bytes(data[at + 1 : at + 1 + width], "big")
            size, body = 1 + width, value if has_body else 0
        else:
            return
        yield at, size, kind, value
        at += size + body


_SIZED = {
    0xC4: ("bin", 1, True),
    0xC5: ("bin", 2, True),
    0xC6: ("bin", 4, True),
    0xD9: ("str", 1, True),
    0xDA: ("str", 2, True),
    0xDC: ("array", 2, False),
    0xDD: ("array", 4, False),
    0xCB: ("float", 8, False),
    0xC2: ("bool", 0, False),
    0xC3: ("bool", 0, False),
    0xCC: ("uint", 1, False),
    0xCD: ("uint", 2, False),
    0xCE: ("uint", 4, False),
    0xCF: ("uint", 8, False),
    0xD0: ("int", 1, False),
    0xD3: ("int", 8, False),
}
_LONGER = {
    "uint": (b"\xcc", b"\xcd", b"\xce", b"\xcf"),
    "bin": (b"\xc4", b"\xc5", b"\xc6"),
    "str": (b"\xd9", b"\xda", b"\xdb"),
    "array": (b"\xdc", b"\xdd"),
}


def other_headers(kind: str, value: int) -> list[bytes]:
    """The same value in longer forms, and lengths that are wrong by one."""
    made = []
    for near in (value, value + 1, max(0, value - 1)):
        for first in _LONGER.get(kind, ()):
            width = {0xCC: 1, 0xC4: 1, 0xD9: 1, 0xCD: 2, 0xC5: 2, 0xDA: 2, 0xDC: 2, 0xCF: 8}.get(first[0], 4)
            if near < 1 << (8 * width):
                made.append(first + near.to_bytes(width, "big"))
    return made or list(EXTREME)


@st.composite
def broken(draw: st.DrawFn, seeds: Sequence[bytes], packed: bool) -> bytes:
    """A real input with a few changes, or bytes that were never one."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=64))
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        data = draw(_changed(data, seeds, packed))
    return data


@st.composite
def _changed(draw: st.DrawFn, data: bytes, seeds: Sequence[bytes], packed: bool) -> bytes:
    at = draw(st.integers(0, len(data)))
    end = min(len(data), at + draw(st.integers(0, 40)))
    ways = ["flip", "cut", "insert", "delete", "repeat", "splice", "overwrite"]
    way = draw(st.sampled_from([*ways, "header", "header", "huge", "extreme", "nest"] if packed else [*ways, "text"]))
    if packed and way in ("header", "huge", "extreme"):
        found = list(headers(data))
        if found:
            at, size, kind, value = draw(st.sampled_from(found))
            choices = {"huge": HUGE, "extreme": EXTREME}.get(way) or other_headers(kind, value)
            return data[:at] + draw(st.sampled_from(choices)) + data[at + size :]
    match way:
        case "flip" if at < len(data):
            return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "delete":
            return data[:at] + data[end:]
        case "repeat":
            return data[:at] + data[at:end] * draw(st.integers(2, 50)) + data[end:]
        case "splice":
            other = draw(st.sampled_from(seeds))
            start = draw(st.integers(0, len(other)))
            return data[:at] + other[start : start + draw(st.integers(0, 200))] + data[end:]
        case "overwrite":
            return data[:at] + draw(st.binary(min_size=end - at, max_size=end - at)) + data[end:]
        case "nest":
            return data[:at] + draw(st.sampled_from((b"\x91", b"\x81\xa0", b"\x92\xc0"))) * 2000 + data[at:]
        case "text":
            return data[:at] + draw(st.sampled_from(TEXT)) * draw(st.sampled_from((1, 1, 1, 2, 2000))) + data[end:]
        case _:
            return data[:at] + draw(st.binary(max_size=20)) + data[at:]
