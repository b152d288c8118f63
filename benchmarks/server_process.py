"""The server of a session in a process of its own, so that its memory and its time are nobody else's."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.session import Cast, Host
from fedopal_secure.core.params import SessionParams
from fedopal_secure.core.policy import Membership
from fedopal_secure.core.ring import U64


def resident() -> tuple[int, int]:
    """Bytes of this process in memory: now, and at most so far (VmRSS and VmHWM of Linux)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024


class _MeasuredHost(Host):
    """A Host that can say how much memory its process takes."""

    def resident(self) -> tuple[int, int]:
        return resident()


def serve(connection: Connection, params: SessionParams, members: Membership, seed: bytes) -> None:
    """Do what the other end asks for, until it asks for nothing more. What `receive` raises ends the process."""
    host = _MeasuredHost(params, members, seed)
    while (call := connection.recv()) is not None:
        name, args = call
        result = getattr(host, name)(*args)
        if name != "receive":
            connection.send(result)


class RemoteHost:
    """The other end: a Host whose messages go through a pipe. Nobody waits for a message to be received."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _call(self, name: str, *args: Any) -> Any:
        self._connection.send((name, args))
        return self._connection.recv()

    def proposal(self) -> bytes:
        """As in Host."""
        sent: bytes = self._call("proposal")
        return sent

    def receive(self, sender: bytes, data: bytes) -> None:
        """As in Host, but an error shows at the next call."""
        self._connection.send(("receive", (sender, data)))

    def close(self, following: str) -> bytes | None:
        """As in Host."""
        shared: bytes | None = self._call("close", following)
        return shared

    def reply(self, identity: bytes) -> bytes:
        """As in Host."""
        sent: bytes = self._call("reply", identity)
        return sent

    def open_uploads(self) -> bytes:
        """As in Host."""
        sent: bytes = self._call("open_uploads")
        return sent

    def finish(self) -> U64:
        """As in Host."""
        total: U64 = self._call("finish")
        return total

    def spent(self) -> dict[str, float]:
        """As in Host."""
        seconds: dict[str, float] = self._call("spent")
        return seconds

    def resident(self) -> tuple[int, int]:
        """Bytes of the server's process in memory: now, and at most so far."""
        now_and_most: tuple[int, int] = self._call("resident")
        return now_and_most


@contextmanager
def started(people: Cast) -> Iterator[RemoteHost]:
    """A server process for one session, which ends with the block."""
    fresh = multiprocessing.get_context("spawn")  # a fork would begin with this process's memory
    here, there = fresh.Pipe()
    args = (there, people.params, people.policy.members, people.host_seed)
    process = fresh.Process(target=serve, args=args, daemon=True)
    process.start()
    there.close()
    try:
        yield RemoteHost(here)
        here.send(None)
    finally:
        here.close()
        process.join(timeout=10)
        if process.is_alive():
            process.terminate()
