"""Check the transcript of a round, from its proposals to the model that it released, without trusting who kept it.

It needs the folder that a run leaves and a policy with the identities that the auditor trusts; no image, no network and
no key. It says what it found wrong first, and who answers for it; what it cannot know is part of the result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedopal_secure.audit.proposals import Prelude, ProposedRound, Wrong, read_proposals
from fedopal_secure.audit.replay import Replay
from fedopal_secure.core.errors import FedopalError, InputError
from fedopal_secure.core.params import ENCRYPTED, MASKED
from fedopal_secure.federation.config import PolicyConfig
from fedopal_secure.federation.secure_sum import PLAIN
from fedopal_secure.federation.transcript import (
    LATE,
    REFUSED,
    SERVER,
    BrokenTranscript,
    SignedHead,
    read_head,
    read_regular,
    read_transcript,
)
from fedopal_secure.federation.vectors import central_release
from fedopal_secure.model import Model, is_released

# Who answers for what the server's signature is not on.
KEEPER: Final = "whoever kept this transcript"
_LONGEST: Final = 400


@dataclass(frozen=True)
class Finding:
    """The first thing that is wrong: in which entry (None: in none of them), why, and who is to blame.

    `blame` are identities in hex, `server` or `KEEPER`; nobody where a round just was not finished.
    """

    entry: int | None
    reason: str
    blame: tuple[str, ...]


@dataclass(frozen=True)
class Noted:
    """A fault that the protocol bore: of a client, or of it or the `holder`; identities in hex."""

    client: str
    reason: str
    holder: str | None


@dataclass(frozen=True)
class SessionFound:
    """A session that was summed again: `total` is the SHA-256 of its residues, uint64 in little-endian bytes."""

    name: str
    protocol: str
    survivors: tuple[str, ...]
    dropped: tuple[str, ...]
    threshold: int
    total: str


@dataclass(frozen=True)
class Verification:
    """What was found. `ok` means that nothing is wrong; `unchecked` is what that does not cover.

    `difference` is that of the released head from the one that was made again, relative; 0 is bit for bit,
    and None where no head was reached. `model` is the digest of the released model.
    """

    ok: bool
    finding: Finding | None
    entries: int
    head: str
    server: str
    model: str
    difference: float | None
    sessions: tuple[SessionFound, ...]
    noted: tuple[Noted, ...]
    unchecked: tuple[str, ...]


def _transcript_of(run: Path) -> Path:
    """The transcript in the folder of a run, or the folder itself; raises InputError if there is none."""
    for folder in (run / "transcript", run):
        if (folder / "chain.jsonl").is_file():
            return folder
    raise InputError(f"{run} holds no transcript: give the folder that a run left")


def verify(run: Path, trust: PolicyConfig, report: Callable[[int, int], None] | None = None) -> Verification:
    """Check the transcript in a run's folder, and the model beside it if there is one.

    `report` is called with how many of how many entries were replayed. Raises InputError for a folder without a
    transcript, or a policy that names nobody; whatever is wrong with the transcript itself is the result.
    """
    folder = _transcript_of(run)
    prelude, signed = Prelude(read_transcript(folder)), read_head(folder)
    trusted = signed is not None and _is_trusted(signed, prelude.head, trust)
    replay, finding = None, None
    try:
        replay = Replay(_proposed(prelude, trust))
        for entry in read_transcript(folder):
            try:
                replay.step(entry)
            except Wrong as wrong:
                raise Wrong(wrong.reason, *wrong.blame, number=entry.number) from None
            except FedopalError as error:
                raise Wrong(str(error), number=entry.number) from None
            if report is not None:
                report(entry.number + 1, prelude.count)
        if replay.model is None:
            finding = Finding(None, f"the round was not finished, or its end is cut off: {replay.where()}", ())
        else:
            _check_end(replay, replay.model, signed, trusted, run / "model.safetensors")
        if len(list((folder / "messages").iterdir())) != prelude.count:
            raise Wrong("there are files in messages/ that no entry names", KEEPER)
    except BrokenTranscript as broken:
        finding = Finding(broken.number, "is not the one that was recorded: the chain of hashes breaks here", (KEEPER,))
    except Wrong as wrong:
        # What the server did not sign anybody can have written, but for what others signed.
        blame = tuple(KEEPER if party == SERVER and not trusted else party for party in wrong.blame)
        finding = Finding(wrong.number, _printable(wrong.reason), blame)
    return Verification(
        ok=finding is None,
        finding=finding,
        entries=prelude.count,
        head=prelude.head,
        server=signed.server if trusted and signed is not None else "",
        model=replay.model.digest().hex() if replay is not None and replay.model is not None else "",
        difference=None if replay is None or replay.model is None else replay.difference,
        sessions=() if replay is None else _sessions(replay),
        noted=() if replay is None else _noted(replay),
        unchecked=() if replay is None else _unchecked(replay, run / "model.safetensors"),
    )


def _proposed(prelude: Prelude, trust: PolicyConfig) -> ProposedRound:
    try:
        return read_proposals(prelude, trust)
    except Wrong as wrong:
        if wrong.number is None and prelude.broken is not None:  # what is missing may come after the break
            raise prelude.broken from None
        raise


def _is_trusted(signed: SignedHead, head: str, trust: PolicyConfig) -> bool:
    """Whether a server that the policy names signed this head."""
    server, model = bytes.fromhex(signed.server), bytes.fromhex(signed.model)
    known = signed.server in trust.servers.values() and signed.head == head
    return known and is_released(server, head, model, signed.signature)


def _check_end(replay: Replay, model: Model, signed: SignedHead | None, trusted: bool, file: Path) -> None:
    if signed is None or not trusted:
        raise Wrong("no server that the trust file names has signed this transcript's head", KEEPER)
    if signed.model != model.digest().hex():
        raise Wrong("the server signed another model than the one that it released")
    if replay.terms.server.hex() != signed.server:
        raise Wrong("another server signed the head than the one that proposed the sessions")
    released = model.by(signed.head, signed.server, signed.signature)
    if file.exists() and not _holds(file, released.to_bytes()):
        raise Wrong("the model beside the transcript is not the file that this round released", KEEPER)


def _holds(file: Path, content: bytes) -> bool:
    try:
        return read_regular(file, len(content)) == content
    except OSError:
        return False


def _printable(text: str) -> str:
    """What a stranger wrote may be in it: one line, without what a terminal obeys."""
    plain = "".join(sign if sign.isprintable() else "?" for sign in text)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}..."


def _sessions(replay: Replay) -> tuple[SessionFound, ...]:
    found = []
    for name, result in replay.results.items():
        params = replay.sums.servers[name].params
        survivors, dropped = (tuple(one.hex() for one in group) for group in (result.survivors, result.dropped))
        total = hashlib.sha256(result.total.astype("<u8").tobytes()).hexdigest()
        found.append(SessionFound(name, params.protocol, survivors, dropped, result.threshold, total))
    return tuple(found)


def _noted(replay: Replay) -> tuple[Noted, ...]:
    blamed = [blame for result in replay.results.values() for blame in result.blame]
    return tuple(
        Noted(blame.client.hex(), blame.reason, None if blame.holder is None else blame.holder.hex())
        for blame in blamed
    )


def _unchecked(replay: Replay, file: Path) -> tuple[str, ...]:
    """What no transcript of this kind can show."""
    protocol = replay.terms.protocol
    lines = [
        "that clients took what they uploaded from images, and from whose",
        "answers that the server left out: the transcript has what the server took",
        "whatever else is in the folder, as config.toml and result.json",
    ]
    if protocol in MASKED:
        lines.append("the sealed shares: of each the transcript has the hash that its dealer signed")
    if protocol in ENCRYPTED:
        lines.append("that what was opened is the sum of these uploads and no others: the authority saw the total only")
    if protocol not in MASKED:
        lines.append("who was invited and sent nothing: without masks a transcript shows only who uploaded")
    if protocol == PLAIN:
        lines.append("who sent which upload: nobody signs uploads that are not masked")
    if central_release(replay.sums.task) is not None:
        lines.append("how the server drew its noise: only that it is not larger than such noise can be")
    lines += [
        f"{count} answers that were {phase}: of each the transcript has the hash"
        for phase, count in replay.unread.items()
        if count and phase in (LATE, REFUSED)
    ]
    if not file.exists():
        lines.append("the released model's file: for that, give the folder of the run, with model.safetensors in it")
    return tuple(lines)
