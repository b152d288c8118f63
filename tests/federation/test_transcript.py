"""The transcript: whatever is changed in it afterwards is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedopal_secure.core.errors import InputError
from fedopal_secure.federation.transcript import Transcript, read_transcript


def written(folder: Path) -> Transcript:
    transcript = Transcript(folder)
    for number in range(4):
        transcript.record(bytes([number]) * 32, "upload", "server", b"message %d" % number)
    return transcript


def test_round_trip(tmp_path: Path) -> None:
    transcript = written(tmp_path / "t")
    entries = list(read_transcript(tmp_path / "t"))
    assert entries[-1].head == transcript.head
    assert [entry.body for entry in entries] == [b"message %d" % number for number in range(4)]


def test_the_head_needs_no_folder(tmp_path: Path) -> None:
    on_disk, in_memory = written(tmp_path / "t"), Transcript()
    for number in range(4):
        in_memory.record(bytes([number]) * 32, "upload", "server", b"message %d" % number)
    assert in_memory.head == on_disk.head


def test_every_flipped_bit_of_a_message_is_found(tmp_path: Path) -> None:
    written(tmp_path / "t")
    target = tmp_path / "t" / "messages" / "00002.bin"
    original = target.read_bytes()
    for position in range(len(original)):
        target.write_bytes(bytes(b ^ (i == position) for i, b in enumerate(original)))
        with pytest.raises(InputError, match="entry 2 "):
            list(read_transcript(tmp_path / "t"))


def test_changed_or_missing_lines_are_found(tmp_path: Path) -> None:
    head = written(tmp_path / "t").head
    chain = tmp_path / "t" / "chain.jsonl"
    lines = chain.read_text().splitlines(keepends=True)
    chain.write_text("".join([lines[0], lines[2], lines[1], lines[3]]))
    with pytest.raises(InputError, match="entry 1 "):
        list(read_transcript(tmp_path / "t"))
    chain.write_text("".join(lines).replace('"phase":"upload"', '"phase":"reveal"', 1))
    with pytest.raises(InputError, match="entry 1 "):
        list(read_transcript(tmp_path / "t"))
    # Cutting the end off leaves a valid shorter chain, which is why the head is kept elsewhere.
    chain.write_text("".join(lines[:3]))
    assert list(read_transcript(tmp_path / "t"))[-1].head != head


def test_a_transcript_is_not_overwritten(tmp_path: Path) -> None:
    written(tmp_path / "t")
    with pytest.raises(InputError, match="already holds"):
        Transcript(tmp_path / "t")
    with pytest.raises(InputError, match="no readable transcript"):
        list(read_transcript(tmp_path / "nothing"))
