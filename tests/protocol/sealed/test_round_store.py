"""Used round ids and the kept sum survive; a client never encodes twice under one id, also after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from sealed_lab import L, M, make_lab, play_lab

from ebscfl.errors import SequenceError, UsageError
from ebscfl.ids import SERVER
from ebscfl.protocol.sealed.round_store import KeptSum, RoundStore
from ebscfl.protocol.states import State

KEPT = KeptSum(4, (0, 2), b"words", b"guard")


@pytest.mark.parametrize("reopen", [False, True])
def test_ids_only_grow(reopen: bool, tmp_path: Path) -> None:
    store = RoundStore(tmp_path / "rounds.sqlite")
    assert store.newest() == -1
    store.use(4)
    if reopen:
        store.close()
        store = RoundStore(tmp_path / "rounds.sqlite")
    for used in (4, 3, 0):
        with pytest.raises(SequenceError):
            store.use(used)
    assert store.newest() == 4
    store.close()


def test_the_sum_is_kept_until_a_newer_round(tmp_path: Path) -> None:
    store = RoundStore(tmp_path / "rounds.sqlite")
    assert store.kept_sum() is None
    store.use(4)
    store.keep_sum(KEPT)
    store.close()
    store = RoundStore(tmp_path / "rounds.sqlite")
    assert store.kept_sum() == KEPT
    assert "words" not in repr(KEPT)
    store.use(5)
    assert store.kept_sum() is None
    store.close()


def test_two_updates_under_one_round_id_are_refused_and_blamed_on_the_server(tmp_path: Path) -> None:
    """c - c' = x - x' would show the difference of two updates."""
    for options in ({}, {"client_store": tmp_path}):
        lab = make_lab(n=3, **options)
        lab.clients[0].encode(5, lab.updates[0], 0)
        for used in (5, 4):
            with pytest.raises(SequenceError) as caught:
                lab.clients[0].encode(used, lab.updates[1], 0)
            assert caught.value.culprits == (SERVER,)
        lab.clients[0].encode(6, lab.updates[1], 0)


def test_a_restarted_client_enrols_again_and_remembers_its_rounds(tmp_path: Path) -> None:
    lab = make_lab(n=3, client_store=tmp_path)
    first = lab.clients[0].encode(5, lab.updates[0], 0)[0].message
    for client in lab.clients:
        assert client._rounds is not None
        client._rounds.close()
    again = make_lab(n=3, client_store=tmp_path)
    with pytest.raises(SequenceError):
        again.clients[0].encode(5, lab.updates[1], 0)
    assert not again.clients[0].encode(6, lab.updates[0], 0)[0].message.same_as(first)


def test_a_server_that_lost_the_release_gets_it_again(tmp_path: Path) -> None:
    lab = make_lab(server_store=tmp_path / "server.sqlite")
    play_lab(lab, 7)
    want = lab.server.outcome
    assert want is not None
    assert lab.server._store is not None
    lab.server._store.close()
    lab.server = make_lab(server_store=tmp_path / "server.sqlite").server
    assert lab.server.round_id == 7
    with pytest.raises(UsageError, match="not newer"):
        lab.server.start_round(7, range(3), lab.server_updates)
    lab.deliver(lab.server.resume_release())
    assert lab.server.state is State.DONE
    assert lab.server.outcome is not None
    assert (lab.server.outcome.aggregates == want.aggregates).all()
    assert lab.server.outcome.aggregates.shape == (M, L)
    assert lab.server.outcome.included == want.included


def test_nothing_to_resume_is_no_step() -> None:
    lab = make_lab()
    assert lab.server.resume_release() == []
    assert lab.server.state is State.IDLE
