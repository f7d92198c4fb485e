"""What server and clients of `sealed` must not forget: which round ids they used, and the sum that awaits its release.

A client that encoded two updates under one round id would show their difference, so the id is used up on disk before
the upload is made. A server keeps its newest id, to open a strictly newer round after a crash, and, from the moment it
asks for the release, its sum y: the key centre repeats a release only for the same set, and without y that is noise.
Uploads are not kept. A server that dies before it asks has released nothing, and the round starts over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ebscfl.errors import SequenceError
from ebscfl.ids import SERVER
from ebscfl.protocol.rounds import LARGEST_ROUND_ID
from ebscfl.protocol.sealed.store import open_database, transaction

SCHEMA_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS sums (
    round INTEGER PRIMARY KEY, included TEXT NOT NULL, words BLOB NOT NULL, guard BLOB NOT NULL);
"""


@dataclass(frozen=True)
class KeptSum:
    """A server's y on disk, with the set it was added up over."""

    round_id: int
    included: tuple[int, ...]
    words: bytes
    guard: bytes

    def __repr__(self) -> str:
        return f"KeptSum(round_id={self.round_id}, <redacted>)"


class RoundStore:
    """Used round ids of one party and the server's kept sum, in one SQLite file (or in memory)."""

    def __init__(self, path: Path | str = ":memory:") -> None:
        self._db = open_database(path, _TABLES, SCHEMA_VERSION)

    def newest(self) -> int:
        """The newest id that was used, -1 before the first."""
        row = self._db.execute("SELECT max(round) FROM rounds").fetchone()
        return -1 if row[0] is None else int(row[0])

    def use(self, round_id: int) -> None:
        """Use up ``round_id``; it must be newer than every earlier one, whose sum is let go."""
        with transaction(self._db):
            newest = self.newest()
            if round_id > LARGEST_ROUND_ID:  # a peer may name any 64-bit number
                raise SequenceError(f"round id {round_id} is out of range", culprits=(SERVER,))
            if round_id <= newest:
                raise SequenceError(f"round {round_id} is not newer than round {newest}", culprits=(SERVER,))
            self._db.execute("DELETE FROM rounds")
            self._db.execute("DELETE FROM sums")
            self._db.execute("INSERT INTO rounds VALUES (?)", (round_id,))

    def keep_sum(self, kept: KeptSum) -> None:
        """Keep the sum of the newest round before its release is asked for."""
        row = (kept.round_id, json.dumps(kept.included), kept.words, kept.guard)
        self._db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?)", row)

    def kept_sum(self) -> KeptSum | None:
        """The sum whose release was asked for last, unless a newer round has begun."""
        row = self._db.execute("SELECT round, included, words, guard FROM sums").fetchone()
        return None if row is None else KeptSum(int(row[0]), tuple(json.loads(row[1])), bytes(row[2]), bytes(row[3]))

    def close(self) -> None:
        """Give the file back."""
        self._db.close()
