"""The journal keeps whole entries, cuts torn ones, and refuses foreign files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebscfl.errors import CheckpointError
from ebscfl.federation.journal import MAGIC, Entry, Event, Journal

EVENTS = [Entry(Event.START, 0, b"start"), Entry(Event.UPLOAD, 3, bytes(1000)), Entry(Event.CLOSE, 0, b"")]


def written(path: Path) -> bytes:
    journal = Journal(path)
    for entry in EVENTS:
        journal.append(*entry)
    journal.close()
    return path.read_bytes()


def read(path: Path) -> list[Entry]:
    journal = Journal(path)
    journal.close()
    return journal.entries


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_cut_leaves_whole_entries_and_can_be_written_on(tmp_path: Path, data: st.DataObject):
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    whole = written(path)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = read(path)
    assert kept == EVENTS[: len(kept)]
    journal = Journal(path)
    journal.append(Event.ANSWER, 0, b"more")
    journal.close()
    assert read(path) == [*kept, Entry(Event.ANSWER, 0, b"more")]


def test_a_changed_byte_ends_the_journal(tmp_path: Path):
    path = tmp_path / "journal"
    whole = bytearray(written(path))
    whole[-500] ^= 1  # in the upload
    path.write_bytes(whole)
    assert read(path) == EVENTS[:1]


def test_clearing_forgets(tmp_path: Path):
    path = tmp_path / "journal"
    written(path)
    journal = Journal(path)
    journal.clear()
    assert journal.entries == []
    journal.close()
    assert path.read_bytes() == MAGIC


def test_foreign_files_are_refused(tmp_path: Path):
    path = tmp_path / "journal"
    path.write_bytes(b"something else entirely")
    with pytest.raises(CheckpointError, match="not a journal"):
        Journal(path)
