"""The hash-chained record of every public message of a round, written as the round goes, and signed at its end.

A transcript is a folder: `chain.jsonl` has one line for each message, and `messages/NNNNN.bin` its bytes. Each line
carries the hash of the line before it, so the hash of the last line (the head) fixes the whole record; `head.json` has
the server's signature on the head and on the model that the round released. Sealed shares are not public: of a dealer's
message only the signed part is recorded, which holds their hashes. Of an answer that came late or was refused there is
the hash.
"""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from fedopal_secure.core.codec import decode, encode
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.messages import Shares, Upload
from fedopal_secure.core.params import BFV_MASKED, ENCRYPTED
from fedopal_secure.federation.secure_sum import OPEN, UPLOAD
from fedopal_secure.he.messages import EncryptedUpload, OpenRequest, total_hash
from fedopal_secure.model import Model

Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_LABEL = b"fedopal-secure/transcript/v1\x00"
_START = bytes(32).hex()

_MOST_OF_HEAD: Final = 4096  # bytes; it has some 400

SERVER: Final = "server"
PUBLIC_CONTEXT: Final = "public-context"  # the key authority's, before everything else
LATE: Final = "late"
REFUSED: Final = "refused"


class BrokenTranscript(InputError):
    """An entry, by number, is not the one that was recorded."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(f"entry {number} of the transcript {folder} is not the one that was recorded")
        self.number = number


@dataclass(frozen=True)
class Entry:
    """One public message: who sent it, in which session and phase, and its bytes; `head` is the chain's after it."""

    number: int
    session: str
    phase: str
    sender: str
    body: bytes
    head: str


@dataclass(frozen=True)
class SignedHead:
    """What `head.json` says: the head, the digest of the released model, and who signed both; all in hex."""

    head: Hex32
    model: Hex32
    server: Hex32
    signature: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]

    def to_bytes(self) -> bytes:
        """The file."""
        return json.dumps(asdict(self), indent=2).encode("ascii") + b"\n"


class Transcript:
    """A record that only grows. Without a folder, only the head is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._count = 0
        self._ended = False
        self.head = _START
        if folder is not None:
            if folder.exists():
                raise InputError(f"{folder} already holds a transcript: choose another output folder")
            (folder / "messages").mkdir(parents=True)

    def record(self, session: bytes, phase: str, sender: str, body: bytes) -> None:
        """Append a message; `sender` is `server` or an identity in hex. What comes after the signature is left out."""
        if self._ended:
            return
        line = _line(self._count, session.hex(), phase, sender, body, self.head)
        if self._folder is not None:
            (self._folder / "messages" / f"{self._count:05d}.bin").write_bytes(body)
            with (self._folder / "chain.jsonl").open("a", encoding="ascii") as chain:
                chain.write(line + "\n")
        self._count += 1
        self.head = _link(line)

    def sign(self, model: Model) -> None:
        """Leave the signature that a model carries beside the record, and end it."""
        self._ended = True
        if self._folder is not None:
            signed = SignedHead(self.head, model.digest().hex(), model.server, model.signature)
            (self._folder / "head.json").write_bytes(signed.to_bytes())


def _line(number: int, session: str, phase: str, sender: str, body: bytes, previous: str) -> str:
    fields = {
        "number": number,
        "session": session,
        "phase": phase,
        "sender": sender,
        "bytes": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
        "previous": previous,
    }
    return json.dumps(fields, separators=(",", ":"))


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


def read_regular(path: Path, most: int | None = None) -> bytes:
    """The bytes of a file that somebody else made: no pipe or device, and no longer than `most`; raises OSError."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) or (most is not None and about.st_size > most):
        raise OSError(errno.EINVAL, "not such a file as was recorded", str(path))
    return path.read_bytes()


def read_head(folder: Path) -> SignedHead | None:
    """The signed head of a transcript, whose signature is yet to be checked; None if there is none as it is written."""
    try:
        content = read_regular(folder / "head.json", _MOST_OF_HEAD)
        head = msgspec.json.decode(content, type=SignedHead)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return head if content == head.to_bytes() else None


def read_transcript(folder: Path) -> Iterator[Entry]:
    """The entries of a transcript, one at a time, each after its place in the chain was checked.

    Raises BrokenTranscript at the first entry whose line, number or bytes are not those that were recorded, InputError
    for a folder that holds none.
    """
    try:
        *lines, rest = read_regular(folder / "chain.jsonl").split(b"\n")
    except OSError:
        raise InputError(f"{folder} holds no readable transcript: give the transcript folder of a run") from None
    head = _START
    for number, raw in enumerate(lines):
        try:
            line = raw.decode("ascii")
            fields = json.loads(line)
            session, phase, sender = fields["session"], fields["phase"], fields["sender"]
            body = read_regular(folder / "messages" / f"{number:05d}.bin", fields["bytes"])
            as_recorded = line == _line(number, session, phase, sender, body, head)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise BrokenTranscript(folder, number) from None
        if not as_recorded or not all(isinstance(text, str) for text in (session, phase, sender)):
            raise BrokenTranscript(folder, number)
        entry = Entry(number, session, phase, sender, body, _link(line))
        yield entry
        head = entry.head
    if rest:
        raise BrokenTranscript(folder, len(lines))
