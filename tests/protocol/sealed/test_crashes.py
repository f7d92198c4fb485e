"""``kill -9`` of key centre and server at every step boundary: `crash_lab` does it, here is what must hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LAB = Path(__file__).with_name("crash_lab.py")


def crash(role: str, *points: int) -> list[dict[str, Any]]:
    """What the others saw, once without and then with a death at each point (all of them by default)."""
    command = [sys.executable, str(LAB), role, *map(str, points)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(rows: list[dict[str, Any]]) -> None:
    assert rows[0]["lives"] == 1
    for row in rows:
        assert row["lives"] == 1 if row["at"] == 0 else row["lives"] >= 2, row  # it did die
        assert row["keys_answered_twice"] == 0, row
        assert row["released_twice"] == 0, row
        assert row["attempts_released"] == [1, 2], row  # each training round once
        assert row["included"] == [8, 8], row  # no upload lost without the round starting over
        assert row["exact"] == [True, True], row  # bit for bit the integer reference
        assert row.get("served", True), row  # and nobody took the restart for a lie


@pytest.mark.parametrize("role", ["kdc", "server"])
def test_a_few_deaths(role: str) -> None:
    check(crash(role, 1, 37, 55))


def test_a_key_centre_that_dies_again_and_again() -> None:
    rows = crash("kdc-again", 9, 16)
    check(rows)
    assert min(row["lives"] for row in rows[1:]) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("role", ["kdc", "server"])
def test_death_at_every_point(role: str) -> None:
    rows = crash(role)
    check(rows)
    labels = {row["label"] for row in rows[1:]}
    commits = {
        "kdc": ("enrol", "commit_updates", "open_round", "record_answers", "release"),
        "server": ("use", "keep_sum"),
    }
    assert labels >= {"received", "sending"} | {
        f"{when} {name}" for name in commits[role] for when in ("before", "after")
    }


def check_history(rows: list[dict[str, Any]]) -> None:
    """The very sums and the very history of a key centre that never died."""
    whole = rows[0]
    assert whole["lives"] == 1
    assert json.loads(whole["note"])["round"] == 4
    for row in rows[1:]:
        assert row["lives"] >= 2, row
        assert (row["keys_answered_twice"], row["released_twice"]) == (0, 0), row
        assert row["attempts_released"] == [1, 2, 3, 4], row
        assert row["aggregates"] == whole["aggregates"], row["label"]
        assert row["note"] == whole["note"], row["label"]


def test_a_score_history_survives_a_few_deaths() -> None:
    rows = crash("kdc-history", 60, 95)
    check_history(rows)
    # Trust by record is not this round's score: the sums are not those of the plain rule.
    assert not any(rows[0]["exact"])


@pytest.mark.slow
def test_a_score_history_survives_death_at_every_point_of_a_round() -> None:
    rows = crash("kdc-history", *range(60, 100))
    check_history(rows)
    assert {row["label"] for row in rows[1:]} >= {"before put_note", "after put_note", "before record_answers"}
