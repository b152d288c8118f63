"""Bytes that never print, are never pickled and can be overwritten."""

from __future__ import annotations

from typing import NoReturn

from fedopal_secure.core.errors import MisuseError


class Secret:
    """A secret byte string.

    `erase` overwrites our copy. Python and the libraries below it may have made others, which nothing here can reach:
    erasing narrows the window, it does not close it.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = bytearray(data)

    def expose(self) -> bytes:
        """The secret itself, for the one call that needs it."""
        if not self._data:
            raise MisuseError("this secret has been erased")
        return bytes(self._data)

    def erase(self) -> None:
        """Overwrite the secret with zeros and forget it."""
        self._data[:] = bytes(len(self._data))
        self._data.clear()

    def __repr__(self) -> str:
        return f"Secret({len(self._data)} bytes)"

    def __reduce__(self) -> NoReturn:
        raise MisuseError("a secret is never pickled or copied")
