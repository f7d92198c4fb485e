"""Both stores keep the same promises; the SQLite one keeps them across a reopening."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from ebscfl.errors import ConfigError, DataError, SequenceError
from ebscfl.protocol.sealed.store import Answer, KdcStore, MemoryStore, SqliteStore

ANSWER = Answer(3, True, "", 2**61 - 2, 7, 40, b"d" * 32, 0.25, batch=2)
OTHER = Answer(4, False, "norm", 0, 0, 0, b"d" * 32, -0.5)


@pytest.fixture(params=["memory", "sqlite", "sqlite-reopened"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KdcStore:
    if request.param == "memory":
        return MemoryStore()
    first = SqliteStore(tmp_path / "kdc.sqlite")
    if request.param == "sqlite":
        return first
    first.close()
    return SqliteStore(tmp_path / "kdc.sqlite")


def test_keys_are_enrolled_once(store: KdcStore) -> None:
    assert store.master_key(1) is None
    store.enrol(1, b"p" * 32, b"m" * 32)
    assert store.master_key(1) == b"m" * 32
    store.enrol(1, b"p" * 32, b"m" * 32)  # the same again: its answer was lost
    with pytest.raises(SequenceError) as caught:
        store.enrol(1, b"q" * 32, b"n" * 32)
    assert caught.value.culprits == (1,)
    assert store.enrolled() == (1,)
    assert store.master_key(1) == b"m" * 32


def test_round_ids_only_grow(store: KdcStore) -> None:
    assert store.current_round() == (-1, ())
    store.open_round(5, (0, 1))
    for used in (5, 4, 0):
        with pytest.raises(SequenceError):
            store.open_round(used, (0, 1))
    assert store.current_round() == (5, (0, 1))


def test_a_key_is_answered_once(store: KdcStore) -> None:
    store.open_round(1, (3, 4))
    store.record_answers(1, [ANSWER], bar={})
    with pytest.raises(SequenceError):
        store.record_answers(1, [OTHER, ANSWER], bar={4: "tag"})
    assert store.answers(1) == {3: ANSWER}  # all or nothing
    assert store.barred() == {}
    assert store.answers(2) == {}
    store.open_round(2, (3, 4))
    store.record_answers(2, [ANSWER, OTHER], bar={})
    assert store.answers(2) == {3: ANSWER, 4: OTHER}


def test_a_round_is_released_once(store: KdcStore) -> None:
    store.open_round(1, (3, 4))
    assert store.released(1) is None
    store.release(1, (4, 3))
    assert store.released(1) == (3, 4)
    with pytest.raises(SequenceError):
        store.release(1, (3,))
    assert store.released(1) == (3, 4)


def test_bars_and_the_halt_stay(store: KdcStore) -> None:
    assert store.barred() == {}
    assert store.halted() is None
    store.open_round(1, (2,))
    store.record_answers(1, [], bar={2: "tag"})
    store.record_answers(1, [], bar={2: "later reason"})
    store.halt("lied")
    store.halt("later reason")
    assert store.barred() == {2: "tag"}
    assert store.halted() == "lied"


def test_a_bar_and_a_halt_come_with_the_answers_or_not_at_all(store: KdcStore) -> None:
    store.open_round(1, (3, 4))
    store.record_answers(1, [ANSWER], bar={3: "tag"}, halt="lied")
    assert store.halted() == "lied"
    assert store.barred() == {3: "tag"}


def test_clients_named_twice_in_one_record_change_nothing(store: KdcStore) -> None:
    store.open_round(1, (3, 4))
    with pytest.raises(SequenceError):
        store.record_answers(1, [ANSWER, ANSWER], bar={4: "tag"}, halt="lied")
    assert store.answers(1) == {}
    assert store.barred() == {}
    assert store.halted() is None


def test_notes(store: KdcStore) -> None:
    assert store.note("history") is None
    for payload in (b"one", b"two"):
        store.put_note("history", payload)
        assert store.note("history") == payload


def test_a_commitment_holds_from_its_round_on_and_not_before(store: KdcStore) -> None:
    assert store.committed_updates(1) is None
    store.commit_updates(1, b"one")
    store.commit_updates(1, b"one again")
    store.commit_updates(4, b"four")
    assert [store.committed_updates(r) for r in (0, 1, 3, 4, 9)] == [None, b"one again", b"one again", b"four", b"four"]
    store.open_round(3, (1,))
    assert store.committed_updates(3) == b"one again"
    store.open_round(5, (1,))
    assert store.committed_updates(3) == b"one again"  # of the round before, for repeated messages
    assert store.committed_updates(5) == b"four"


def test_answers_of_long_gone_rounds_are_let_go(store: KdcStore) -> None:
    for round_id in (1, 2, 3):
        store.open_round(round_id, (3,))
        store.record_answers(round_id, [ANSWER], bar={})
    assert store.answers(1) == {}
    assert store.answers(2) == store.answers(3) == {3: ANSWER}


def test_releases_are_counted(store: KdcStore) -> None:
    assert store.released_rounds() == 0
    for round_id in (1, 2, 5):
        store.open_round(round_id, (3,))
        store.release(round_id, (3,))
    assert store.released_rounds() == 3
    assert [store.released_rounds(low, high) for low, high in ((0, 2), (2, 5), (2, 6), (6, 9))] == [1, 1, 2, 0]


def test_a_round_that_was_never_opened_is_not_released(store: KdcStore) -> None:
    with pytest.raises(SequenceError):
        store.release(1, (3,))


def test_a_store_belongs_to_one_run(store: KdcStore) -> None:
    store.bind(b"this run")
    store.bind(b"this run")
    with pytest.raises(ConfigError, match="another run"):
        store.bind(b"that run")


def test_nothing_secret_prints(store: KdcStore) -> None:
    store.enrol(1, b"p" * 32, b"m" * 32)
    assert "mmm" not in repr(store)
    assert str(ANSWER.alpha) not in repr(ANSWER)


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "kdc.sqlite"
    store = SqliteStore(path)
    store.enrol(1, b"p" * 32, b"m" * 32)
    store.commit_updates(1, b"G")
    store.open_round(1, (1, 3))
    store.record_answers(1, [ANSWER], bar={1: "tag"})
    store.release(1, (3,))
    store.halt("lied")
    store.close()
    again = SqliteStore(path)
    assert again.master_key(1) == b"m" * 32
    assert again.committed_updates(1) == b"G"
    assert again.current_round() == (1, (1, 3))
    assert again.answers(1) == {3: ANSWER}
    assert again.released(1) == (3,)
    assert again.barred() == {1: "tag"}
    assert again.halted() == "lied"
    assert path.stat().st_mode & 0o077 == 0


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.sqlite"
    garbage.write_bytes(b"not a database at all, but long enough to be looked at" * 50)
    with pytest.raises(DataError, match="not a usable"):
        SqliteStore(garbage)
    newer = tmp_path / "newer.sqlite"
    SqliteStore(newer).close()
    held = SqliteStore(newer)
    with pytest.raises(DataError, match="in use"):
        SqliteStore(newer)
    held.close()
    with sqlite3.connect(newer) as db:
        db.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (b"99",))
    db.close()
    with pytest.raises(DataError, match="schema 99"):
        SqliteStore(newer)
