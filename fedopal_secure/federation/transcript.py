"""The hash-chained record of every public message of a round that was accepted, written as the round goes.

A transcript is a folder: `chain.jsonl` has one line for each message, and `messages/NNNNN.bin` its bytes. Each line
carries the hash of the line before it, so the hash of the last line (the head) fixes the whole record. Sealed shares
are not public: of a dealer's message only the signed part is recorded, which holds their hashes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.messages import Shares, Upload
from fedopal_secure.core.params import BFV_MASKED, ENCRYPTED
from fedopal_secure.federation.secure_sum import OPEN, UPLOAD
from fedopal_secure.he.messages import EncryptedUpload, OpenRequest, total_hash

_LABEL = b"fedopal-secure/transcript/v1\x00"
_START = bytes(32).hex()


@dataclass(frozen=True)
class Entry:
    """One public message: who sent it, in which session and phase, and its bytes."""

    session: str
    phase: str
    sender: str
    body: bytes


class Transcript:
    """A record that only grows. Without a folder, only the head is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._count = 0
        self.head = _START
        if folder is not None:
            if folder.exists():
                raise InputError(f"{folder} already holds a transcript: choose another output folder")
            (folder / "messages").mkdir(parents=True)

    def record(self, session: bytes, phase: str, sender: str, body: bytes) -> None:
        """Append a message; `sender` is `server` or an identity in hex."""
        line = json.dumps(
            {
                "number": self._count,
                "session": session.hex(),
                "phase": phase,
                "sender": sender,
                "bytes": len(body),
                "sha256": hashlib.sha256(body).hexdigest(),
                "previous": self.head,
            },
            separators=(",", ":"),
        )
        if self._folder is not None:
            (self._folder / "messages" / f"{self._count:05d}.bin").write_bytes(body)
            with (self._folder / "chain.jsonl").open("a", encoding="ascii") as chain:
                chain.write(line + "\n")
        self._count += 1
        self.head = _link(line)


def _link(line: str) -> str:
    return hashlib.sha256(_LABEL + line.encode("ascii")).hexdigest()


def public_part(protocol: str, phase: str, body: bytes) -> bytes:
    """What of an answer everyone may see: all of it, except for ciphertexts, of which the signed hashes stay."""
    if phase == "share":
        return encode(decode(Shares, body, InputError).message)
    if phase != UPLOAD or protocol not in ENCRYPTED:
        return body
    if protocol == BFV_MASKED:
        return encode(decode(Upload, body, InputError).header)
    return encode(decode(EncryptedUpload, body, InputError).signed)


def public_request(phase: str, body: bytes) -> bytes:
    """What of a request everyone may see: of one that asks to open a total, its hash in its place."""
    if phase != OPEN:
        return body
    asked = decode(OpenRequest, body, InputError)
    return encode(replace(asked, total=total_hash(asked.total)))


def read_transcript(folder: Path) -> tuple[list[Entry], str]:
    """Read a transcript and check its chain; returns the entries and the head.

    Raises InputError naming the first entry whose line, number or bytes are not those that were recorded.
    """
    try:
        lines = (folder / "chain.jsonl").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{folder} holds no readable transcript: give the transcript folder of a run") from None
    entries, head = [], _START
    for number, line in enumerate(lines):
        problem = f"entry {number} of the transcript {folder} is not the one that was recorded"
        try:
            fields = json.loads(line)
            body = (folder / "messages" / f"{number:05d}.bin").read_bytes()
            told = (fields["number"], fields["bytes"], fields["sha256"], fields["previous"])
            entry = Entry(fields["session"], fields["phase"], fields["sender"], body)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise InputError(problem) from None
        written = all(isinstance(text, str) for text in (entry.session, entry.phase, entry.sender))
        if not written or told != (number, len(body), hashlib.sha256(body).hexdigest(), head):
            raise InputError(problem)
        entries.append(entry)
        head = _link(line)
    return entries, head
