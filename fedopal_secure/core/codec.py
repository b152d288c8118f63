"""Canonical bytes: each value has one encoding, and any other encoding of it is refused.

The encoding is MessagePack; a struct is an array whose first element is its tag. Decoding re-encodes and compares, so
that longer integers, other headers, trailing bytes and the like are errors, and a hash of bytes is a hash of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

from fedopal_secure.core.errors import FedopalError

Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of every structure that is hashed, signed or sent."""


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def encode(value: Any) -> bytes:
    """Return the canonical bytes of a struct."""
    return _ENCODER.encode(value)


def decode(kind: type[T], data: bytes, fault: Callable[[str], FedopalError]) -> T:
    """Return the struct that `data` is the canonical encoding of.

    Raises `fault(reason)` for an unknown field, a wrong type or length, trailing or non-canonical bytes. The caller
    chooses the error because only it knows who sent the bytes.
    """
    name = kind.__name__.lower()
    try:
        value: T = _decoder(kind).decode(data)  # type: ignore[arg-type]
    except msgspec.MsgspecError as error:
        raise fault(f"not a valid {name}: {error}") from None
    if _ENCODER.encode(value) != data:
        raise fault(f"not a canonical {name}: the same value has another encoding")
    return value
