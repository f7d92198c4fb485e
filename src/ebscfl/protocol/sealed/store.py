"""What the key centre of `sealed` must not forget: keys, answers, releases. In memory, or in SQLite for a deployment.

Three promises rest on this file and hold across ``kill -9``: a (round, client) key is answered once, a round is
released once, and a server that was caught stays caught. Each is one transaction, committed before the answer leaves.
The running sum P is not stored: it is a function of the master keys and the answers, so a restarted key centre
recomputes it (docs/decisions/0003-what-survives-a-crash.md).
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebscfl.errors import ConfigError, DataError, SequenceError

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Answer:
    """What the key centre decided about one upload."""

    client: int
    accepted: bool
    reason: str
    alpha: int
    guard_alpha: int
    rho: int
    request_digest: bytes
    score: float
    batch: int = 0

    def __repr__(self) -> str:
        return f"Answer(client={self.client}, accepted={self.accepted}, <redacted>)"


class KdcStore(ABC):
    """The durable state of the key centre. Methods that record raise `SequenceError` on a second time."""

    @abstractmethod
    def enrol(self, client: int, public_key: bytes, master_key: bytes) -> None:
        """Keep a client's keys. The very same keys again change nothing (its answer was lost); others are refused."""

    @abstractmethod
    def master_key(self, client: int) -> bytes | None:
        """The key shared with ``client``, if it is enrolled."""

    @abstractmethod
    def enrolled(self) -> tuple[int, ...]:
        """All enrolled clients."""

    @abstractmethod
    def bind(self, identity: bytes) -> None:
        """Tie the store to one run on first use; another run's store is refused with `ConfigError`."""

    @abstractmethod
    def commit_updates(self, round_id: int, payload: bytes) -> None:
        """Keep the root updates that hold from round ``round_id`` on."""

    @abstractmethod
    def committed_updates(self, round_id: int) -> bytes | None:
        """The root updates of a round: the newest commitment for it or an earlier round."""

    @abstractmethod
    def open_round(self, round_id: int, clients: Sequence[int]) -> None:
        """Use up ``round_id``; it must be larger than every earlier one. Answers before the last round are let go."""

    @abstractmethod
    def current_round(self) -> tuple[int, tuple[int, ...]]:
        """The newest round and its clients; (-1, ()) before the first."""

    @abstractmethod
    def record_answers(
        self, round_id: int, answers: Sequence[Answer], *, bar: Mapping[int, str], halt: str | None = None
    ) -> None:
        """Use up the keys of (round, client), bar clients and perhaps halt, all or nothing."""

    @abstractmethod
    def answers(self, round_id: int) -> dict[int, Answer]:
        """All answers of a round by client."""

    @abstractmethod
    def release(self, round_id: int, included: Sequence[int]) -> None:
        """Mark the round released with exactly this set."""

    @abstractmethod
    def released(self, round_id: int) -> tuple[int, ...] | None:
        """The set a round was released with, or None."""

    @abstractmethod
    def released_rounds(self, low: int = 0, high: int | None = None) -> int:
        """How many rounds with low <= id < high were released."""

    @abstractmethod
    def barred(self) -> dict[int, str]:
        """Barred clients and why."""

    @abstractmethod
    def halt(self, reason: str) -> None:
        """Serve the server no more."""

    @abstractmethod
    def halted(self) -> str | None:
        """Why the server is no longer served, or None."""

    @abstractmethod
    def put_note(self, name: str, payload: bytes) -> None:
        """Keep a named value (score history, privacy budget spent)."""

    @abstractmethod
    def note(self, name: str) -> bytes | None:
        """A value kept under ``name``."""

    def close(self) -> None:  # noqa: B027 - nothing to close in memory
        """Give back what the store holds open."""


@dataclass(repr=False)
class MemoryStore(KdcStore):
    """For simulations: the same rules, gone with the process."""

    _identity: bytes | None = None
    _keys: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    _commitments: dict[int, bytes] = field(default_factory=dict)
    _rounds: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _answers: dict[int, dict[int, Answer]] = field(default_factory=dict)
    _released: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _barred: dict[int, str] = field(default_factory=dict)
    _halted: str | None = None
    _notes: dict[str, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "MemoryStore(<redacted>)"

    def bind(self, identity: bytes) -> None:
        self._identity = self._identity or identity
        if self._identity != identity:
            raise ConfigError("this store belongs to another run")

    def enrol(self, client: int, public_key: bytes, master_key: bytes) -> None:
        if self._keys.setdefault(client, (public_key, master_key)) != (public_key, master_key):
            raise SequenceError(f"client {client} is enrolled already with another key", culprits=(client,))

    def master_key(self, client: int) -> bytes | None:
        known = self._keys.get(client)
        return None if known is None else known[1]

    def enrolled(self) -> tuple[int, ...]:
        return tuple(sorted(self._keys))

    def commit_updates(self, round_id: int, payload: bytes) -> None:
        self._commitments[round_id] = payload

    def committed_updates(self, round_id: int) -> bytes | None:
        newest = max((r for r in self._commitments if r <= round_id), default=None)
        return None if newest is None else self._commitments[newest]

    def open_round(self, round_id: int, clients: Sequence[int]) -> None:
        newest = self.current_round()[0]
        if round_id <= newest:
            raise SequenceError(f"round {round_id} is not newer than round {newest}")
        for old in [r for r in self._answers if r < newest]:
            del self._answers[old]
        in_force = max((r for r in self._commitments if r <= newest), default=-1)
        for old in [r for r in self._commitments if r < in_force]:
            del self._commitments[old]
        self._rounds[round_id] = tuple(clients)

    def current_round(self) -> tuple[int, tuple[int, ...]]:
        newest = max(self._rounds, default=-1)
        return newest, self._rounds.get(newest, ())

    def record_answers(
        self, round_id: int, answers: Sequence[Answer], *, bar: Mapping[int, str], halt: str | None = None
    ) -> None:
        of_round = self._answers.setdefault(round_id, {})
        clients = [answer.client for answer in answers]
        if of_round.keys() & set(clients) or len(set(clients)) != len(clients):
            raise SequenceError(f"a key of clients {clients} in round {round_id} is used")
        of_round.update({answer.client: answer for answer in answers})
        for client, reason in bar.items():
            self._barred.setdefault(client, reason)
        self._halted = self._halted or halt

    def answers(self, round_id: int) -> dict[int, Answer]:
        return dict(self._answers.get(round_id, {}))

    def release(self, round_id: int, included: Sequence[int]) -> None:
        if round_id in self._released or round_id not in self._rounds:
            raise SequenceError(f"round {round_id} is released already or was never opened")
        self._released[round_id] = tuple(sorted(included))

    def released(self, round_id: int) -> tuple[int, ...] | None:
        return self._released.get(round_id)

    def released_rounds(self, low: int = 0, high: int | None = None) -> int:
        return sum(low <= r and (high is None or r < high) for r in self._released)

    def barred(self) -> dict[int, str]:
        return dict(self._barred)

    def halt(self, reason: str) -> None:
        self._halted = self._halted or reason

    def halted(self) -> str | None:
        return self._halted

    def put_note(self, name: str, payload: bytes) -> None:
        self._notes[name] = payload

    def note(self, name: str) -> bytes | None:
        return self._notes.get(name)


_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS clients (client INTEGER PRIMARY KEY, public_key BLOB NOT NULL, master_key BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS commitments (round INTEGER PRIMARY KEY, updates BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, clients TEXT NOT NULL, released TEXT);
CREATE TABLE IF NOT EXISTS answers (
    round INTEGER NOT NULL, client INTEGER NOT NULL, accepted INTEGER NOT NULL, reason TEXT NOT NULL,
    alpha TEXT NOT NULL, guard TEXT NOT NULL, rho TEXT NOT NULL, digest BLOB NOT NULL, score REAL,
    batch INTEGER NOT NULL, PRIMARY KEY (round, client));
CREATE TABLE IF NOT EXISTS barred (client INTEGER PRIMARY KEY, reason TEXT NOT NULL);
"""


def open_database(path: Path | str, tables: str, version: int) -> sqlite3.Connection:
    """A durable database that one process at a time may use: write-ahead log, every commit synced, mode 600."""
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
        if path != ":memory:":
            Path(path).chmod(0o600)  # it holds keys
        # A second process with caches of its own would recompute from stale ones: it is locked out instead.
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN IMMEDIATE")
        for statement in filter(str.strip, tables.split(";")):
            db.execute(statement)
        db.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", (str(version).encode(),))
        found = bytes(db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()[0])
        db.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise DataError(f"{path} is not a usable database (or in use by another process): {error}") from error
    if found != str(version).encode():
        db.close()
        raise DataError(f"{path} has schema {found.decode()}, this version speaks {version}")
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, and on disk before it is over."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


class SqliteStore(KdcStore):
    """One file, write-ahead log, every change its own durable transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = open_database(path, _TABLES, SCHEMA_VERSION)

    def __repr__(self) -> str:
        return "SqliteStore(<redacted>)"

    def _meta(self, name: str) -> bytes | None:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def _put(self, name: str, value: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def bind(self, identity: bytes) -> None:
        self._db.execute("INSERT OR IGNORE INTO meta VALUES ('identity', ?)", (identity,))
        if self._meta("identity") != identity:
            raise ConfigError(f"{self._path} belongs to another run: its own root, run id and settings are needed")

    def enrol(self, client: int, public_key: bytes, master_key: bytes) -> None:
        row = (client, public_key, master_key)
        self._db.execute("INSERT OR IGNORE INTO clients VALUES (?, ?, ?)", row)
        if self._db.execute("SELECT * FROM clients WHERE client = ?", (client,)).fetchone() != row:
            raise SequenceError(f"client {client} is enrolled already with another key", culprits=(client,))

    def master_key(self, client: int) -> bytes | None:
        row = self._db.execute("SELECT master_key FROM clients WHERE client = ?", (client,)).fetchone()
        return None if row is None else bytes(row[0])

    def enrolled(self) -> tuple[int, ...]:
        return tuple(int(row[0]) for row in self._db.execute("SELECT client FROM clients ORDER BY client"))

    def commit_updates(self, round_id: int, payload: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO commitments VALUES (?, ?)", (round_id, payload))

    def committed_updates(self, round_id: int) -> bytes | None:
        row = self._db.execute(
            "SELECT updates FROM commitments WHERE round <= ? ORDER BY round DESC LIMIT 1", (round_id,)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def open_round(self, round_id: int, clients: Sequence[int]) -> None:
        with transaction(self._db):
            newest = self.current_round()[0]
            if round_id <= newest:
                raise SequenceError(f"round {round_id} is not newer than round {newest}")
            self._db.execute("DELETE FROM answers WHERE round < ?", (newest,))
            self._db.execute(
                "DELETE FROM commitments WHERE round < (SELECT max(round) FROM commitments WHERE round <= ?)", (newest,)
            )
            self._db.execute("INSERT INTO rounds VALUES (?, ?, NULL)", (round_id, json.dumps(list(clients))))

    def current_round(self) -> tuple[int, tuple[int, ...]]:
        row = self._db.execute("SELECT round, clients FROM rounds ORDER BY round DESC LIMIT 1").fetchone()
        return (-1, ()) if row is None else (int(row[0]), tuple(json.loads(row[1])))

    def record_answers(
        self, round_id: int, answers: Sequence[Answer], *, bar: Mapping[int, str], halt: str | None = None
    ) -> None:
        rows = [
            (
                round_id, a.client, int(a.accepted), a.reason, str(a.alpha), str(a.guard_alpha), str(a.rho),
                a.request_digest, a.score, a.batch,
            )
            for a in answers
        ]  # fmt: skip
        try:
            with transaction(self._db):
                self._db.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
                self._db.executemany("INSERT OR IGNORE INTO barred VALUES (?, ?)", list(bar.items()))
                if halt is not None:
                    self.halt(halt)
        except sqlite3.IntegrityError as error:
            used = [a.client for a in answers]
            raise SequenceError(f"a key of clients {used} in round {round_id} is used") from error

    def answers(self, round_id: int) -> dict[int, Answer]:
        rows = self._db.execute(
            "SELECT client, accepted, reason, alpha, guard, rho, digest, score, batch FROM answers WHERE round = ?",
            (round_id,),
        )
        return {int(row[0]): _answer_from(row) for row in rows}

    def release(self, round_id: int, included: Sequence[int]) -> None:
        changed = self._db.execute(
            "UPDATE rounds SET released = ? WHERE round = ? AND released IS NULL",
            (json.dumps(sorted(included)), round_id),
        )
        if changed.rowcount != 1:
            raise SequenceError(f"round {round_id} is released already or was never opened")

    def released(self, round_id: int) -> tuple[int, ...] | None:
        row = self._db.execute("SELECT released FROM rounds WHERE round = ?", (round_id,)).fetchone()
        return None if row is None or row[0] is None else tuple(json.loads(row[0]))

    def released_rounds(self, low: int = 0, high: int | None = None) -> int:
        row = self._db.execute(
            "SELECT count(*) FROM rounds WHERE released IS NOT NULL AND round >= ? AND (? IS NULL OR round < ?)",
            (low, high, high),
        ).fetchone()
        return int(row[0])

    def barred(self) -> dict[int, str]:
        return {int(c): str(why) for c, why in self._db.execute("SELECT client, reason FROM barred")}

    def halt(self, reason: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO meta VALUES ('halted', ?)", (reason.encode(),))

    def halted(self) -> str | None:
        reason = self._meta("halted")
        return None if reason is None else reason.decode()

    def put_note(self, name: str, payload: bytes) -> None:
        self._put(f"note:{name}", payload)

    def note(self, name: str) -> bytes | None:
        return self._meta(f"note:{name}")

    def close(self) -> None:
        self._db.close()


def _answer_from(row: tuple[Any, ...]) -> Answer:
    client, accepted, reason, alpha, guard, rho, digest, score, batch = row
    return Answer(
        int(client),
        bool(accepted),
        str(reason),
        int(alpha),
        int(guard),
        int(rho),
        bytes(digest),
        float("nan") if score is None else float(score),
        int(batch),
    )
