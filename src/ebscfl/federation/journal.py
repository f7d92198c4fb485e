"""The server's journal of one round: every event in order, so that a killed server goes on where it stood.

A role is a deterministic state machine, so the same events give the same state: a restarted server feeds the journal
to a fresh role. Uploads are written before the role sees them, and the key centre's answers before the role acts on
them; what the journal does not hold has not happened. A torn last entry is cut off.
"""

from __future__ import annotations

import enum
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ebscfl.errors import CheckpointError

ENTRY = struct.Struct("<BIQI")  # kind, client, length, checksum
MAGIC = b"EBSJ\x01"


class Event(enum.IntEnum):
    """What happened."""

    START = 1  # a round was opened
    UPLOAD = 2  # a client's bytes came
    ANSWER = 3  # the key centre answered
    CLOSE = 4  # uploads were closed (once: ask again; twice: for good)


class Entry(NamedTuple):
    """One event with its bytes."""

    event: Event
    client: int
    data: bytes


class Journal:
    """An append-only file. ``durable``: survive a power cut too, not only the death of the process."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        path.parent.mkdir(parents=True, exist_ok=True)
        entries, end = _read(path)
        self.entries: list[Entry] = entries
        """What was there at opening; emptied by `clear`."""
        self._file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115 - open as long as the journal
        self._file.truncate(end)
        self._file.seek(end)
        if end == 0:
            self._file.write(MAGIC)
            self._sync()

    def append(self, event: Event, client: int, data: bytes) -> None:
        """Write one event; it has happened when this returns."""
        self._file.write(ENTRY.pack(event, client, len(data), zlib.crc32(data)))
        self._file.write(data)
        self._sync()

    def clear(self) -> None:
        """Forget the round: it is over, and its result is in the checkpoint."""
        self.entries = []
        self._file.truncate(len(MAGIC))
        self._file.seek(len(MAGIC))
        self._sync()

    def close(self) -> None:
        """Close the file; the journal stays."""
        self._file.close()

    def _sync(self) -> None:
        self._file.flush()
        if self._durable:
            os.fdatasync(self._file.fileno())


def _read(path: Path) -> tuple[list[Entry], int]:
    """All whole entries and where they end."""
    if not path.exists() or path.stat().st_size < len(MAGIC):
        return [], 0
    data = path.read_bytes()
    if data[: len(MAGIC)] != MAGIC:
        raise CheckpointError(f"{path} is not a journal of this version: remove it to start the round anew")
    entries, position = [], len(MAGIC)
    for entry, end in _entries(data, position):
        entries.append(entry)
        position = end
    return entries, position


def _entries(data: bytes, position: int) -> Iterator[tuple[Entry, int]]:
    while position + ENTRY.size <= len(data):
        kind, client, length, checksum = ENTRY.unpack_from(data, position)
        end = position + ENTRY.size + length
        body = data[position + ENTRY.size : end]
        if end > len(data) or zlib.crc32(body) != checksum or kind not in Event.__members__.values():
            return  # torn by a crash: nothing after it was promised to anyone
        yield Entry(Event(kind), client, body), end
        position = end
