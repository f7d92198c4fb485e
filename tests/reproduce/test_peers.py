"""A peer that is not installed is skipped with a line; loading never breaks a run."""

from __future__ import annotations

import time

import pytest

from ebscfl.reproduce import peers


def test_absent_peers_are_skipped_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "load", lambda package, module: None)
    monkeypatch.setattr(peers, "byzfl_aggregators", lambda: None)
    found = peers.measure_peers(clients=4, dim=8, dropouts=0.0)
    assert found["rows"] == []
    assert [line.split(":")[0] for line in found["skipped"]] == ["flower skipped", "byzfl skipped"]


def test_load_gives_none_for_what_is_not_there() -> None:
    assert peers.load("no_such_package_here", "") is None
    assert peers.load("ebscfl", ".errors") is not None


def test_meters() -> None:
    assert peers.cpu(lambda: time.sleep(0.02), 1) < 0.02 <= peers.wall(lambda: time.sleep(0.02), 1)
