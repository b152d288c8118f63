"""What a client must not forget, on its own disk: phases answered, sums its data went into, and privacy spent.

All are written and flushed before the answer leaves, because a process that dies after answering and comes back must
not answer again. Whoever can delete or roll back this file can undo that; it is an assumption, not a defence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from fedopal_secure.core.errors import InputError, MisuseError, PolicyRefusal

_TABLES = {
    "answered": "CREATE TABLE answered (session BLOB, phase TEXT, PRIMARY KEY (session, phase))",
    "given": "CREATE TABLE given "
    "(data BLOB, chain BLOB, name TEXT, session BLOB, release TEXT, PRIMARY KEY (data, chain, name))",
}
_SCHEMA = "".join(f"{table.replace('TABLE', 'TABLE IF NOT EXISTS')};" for table in _TABLES.values())

Allow = Callable[[Sequence[str]], None]


class Journal:
    """A SQLite file (or `:memory:`) with a journal of answered phases and a ledger of what the data was given to.

    Privacy that is spent is spent for all data of one journal, whatever its digest: whether a client refuses must not
    depend on what it holds, and one image more must not be a fresh budget.

    Raises InputError if the file cannot be opened as one.
    """

    def __init__(self, path: Path | str = ":memory:") -> None:
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_SCHEMA)
            # Without their keys the tables would take a second answer.
            found = dict(self._database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
            sound = self._database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            if not sound or found != _TABLES:
                raise ValueError("its contents are damaged or of something else")
        except (sqlite3.Error, ValueError) as error:
            raise InputError(f"{path}: cannot be used as a journal ({error}): give a file on a local disk") from None

    def answer(self, session: bytes, phase: str) -> None:
        """Note that a phase is about to be answered; raises MisuseError if it has been before."""
        try:
            self._database.execute("INSERT INTO answered VALUES (?, ?)", (session, phase))
        except sqlite3.IntegrityError:
            raise MisuseError(f"phase '{phase}' of session {session.hex()[:12]} was answered before") from None
        except sqlite3.Error as error:
            raise InputError(f"the journal cannot be written ({error}): nothing is answered without it") from None

    def released(self, besides: bytes) -> list[str]:
        """The releases (`Task.release`; empty for exact sums) of the chains that any data entered, but for one."""
        try:
            rows = self._database.execute("SELECT DISTINCT chain, release FROM given WHERE chain <> ?", (besides,))
            return [release for _, release in rows]
        except sqlite3.Error as error:
            raise InputError(f"the journal cannot be read ({error}): nothing is answered without it") from None

    def give(
        self,
        data: bytes,
        chain: bytes,
        name: str,
        session: bytes,
        granted: int,
        release: str = "",
        allow: Allow | None = None,
    ) -> None:
        """Note that the data with this digest is about to enter a sum.

        `chain` is the id of the chain's first session and `name` what the session sums; a chain sums each thing once,
        and `granted` chains may use the same data. `allow` is asked about the releases of all other chains, and refuses
        by raising. Raises PolicyRefusal.
        """
        try:
            # Reading, judging and writing are one transaction: two processes cannot both find the last grant free.
            self._database.execute("BEGIN IMMEDIATE")
            try:
                if allow is not None:
                    allow(self.released(chain))
                others = "SELECT COUNT(DISTINCT chain) FROM given WHERE data = ? AND chain <> ?"
                if self._database.execute(others, (data, chain)).fetchone()[0] >= granted:
                    detail = f"this data is in other sums already, and the policy grants {granted}"
                    raise PolicyRefusal("sessions", detail)
                self._database.execute(
                    "INSERT INTO given VALUES (?, ?, ?, ?, ?)", (data, chain, name, session, release)
                )
                self._database.execute("COMMIT")
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
        except sqlite3.IntegrityError:
            raise PolicyRefusal("sessions", f"this data is in a sum of {name} of the same chain already") from None
        except sqlite3.Error as error:
            raise InputError(f"the journal cannot be written ({error}): nothing is answered without it") from None

    def close(self) -> None:
        """Close the file."""
        self._database.close()
