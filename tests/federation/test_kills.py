"""Real processes die by signal 9 at named phases; a part of the matrix, the whole is `ebs-cfl federation faults`."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path

import pytest

from ebscfl.errors import UsageError
from ebscfl.federation import kills, stops
from ebscfl.federation.faults import CASES
from ebscfl.federation.kills import CLIENT, KEY_CENTRE, MATRIX, PHASES, ROLES, SERVER, SUPERLINK, Kill, run_kills
from ebscfl.federation.lines import EVERY, FAULTS, LINE, MOST, Breaker, run_lines
from ebscfl.federation.proxy import Fault

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "federation-faults" / "results.json"


@pytest.mark.slow
def test_a_part_of_the_matrix(tmp_path: Path):
    pytest.importorskip("flwr", reason="needs the extra 'federation' (Flower)")
    part = [Kill(KEY_CENTRE, stops.BEFORE_ENROLMENT), Kill(SERVER, stops.RELEASED)]
    document = run_kills(tmp_path / "site", part, nodes=2)
    assert document["failed"] == []
    assert document["faults_survived"] == document["faults_injected"] == 2
    assert (document["updates_lost"], document["released_twice"], document["rounds"]) == (0, 0, 2)
    assert document["largest_difference_of_accuracy"] < kills.TOLERANCE
    logs = tmp_path / "site" / "logs"
    assert (logs / "kdc.log").read_text().count("serving on port") == 2


@pytest.mark.slow
def test_flowers_own_line_breaks(tmp_path: Path):
    pytest.importorskip("flwr", reason="needs the extra 'federation' (Flower)")
    document = run_lines(tmp_path / "site", [Fault.CORRUPT], nodes=2)
    assert document["failed"] == []
    assert (document["faults_injected"], document["faults_survived"], document["rounds"]) == (1, 1, 2)
    assert (document["updates_lost"], document["released_twice"]) == (0, 0)
    assert 1 <= document["pieces_broken"][0] <= 3


def test_the_breaker_breaks_some_pieces_and_leaves_room_between():
    breaker = Breaker()
    assert {breaker(i, "up") for i in range(20)} == {Fault.NONE}
    breaker.begin(Fault.CUT)
    met = [breaker(i, "up") for i in range(40)]
    assert [i for i, fault in enumerate(met) if fault is Fault.CUT] == [0, EVERY, 2 * EVERY]
    assert breaker.broken == MOST
    breaker.begin(Fault.NONE)
    assert {breaker(i, "down") for i in range(20)} == {Fault.NONE}


def test_the_matrix_is_every_role_at_every_phase():
    assert {(kill.role, kill.phase) for kill in MATRIX} == {(role, phase) for role in ROLES for phase in PHASES}
    assert len(MATRIX) == len(ROLES) * len(PHASES) == 20
    early = [Kill(SUPERLINK, stops.ENROLLED)] * 2 + [Kill(CLIENT, stops.ENROLLED)]
    assert [kills._host(i, kill, early, 4) for i, kill in enumerate(early)] == [0, 1, 3]
    with pytest.raises(UsageError, match="2 clients enrol once"):
        kills._check(early, 2)


def test_a_process_halts_where_it_is_armed_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(stops.VARIABLE, str(tmp_path))
    stops.reach("uploaded")  # not armed: goes on
    (tmp_path / "uploaded").touch()
    halted = threading.Thread(target=stops.reach, args=("uploaded",), daemon=True)
    halted.start()
    end = time.monotonic() + 10
    while not (tmp_path / "uploaded.reached").exists():
        assert time.monotonic() < end
    halted.join(0.2)
    assert halted.is_alive()
    (tmp_path / "uploaded.reached").unlink()
    halted.join(10)
    assert not halted.is_alive()
    assert os.listdir(tmp_path) == []


def test_the_page_tells_the_committed_run():
    document = json.loads(RECORD.read_text(encoding="utf-8"))
    assert set(document["kills"]["played"]) == {f"{kill.role} at {kill.phase}" for kill in MATRIX}
    assert set(document["faults"]["played"]) == set(CASES)
    assert document["lines"]["played"] == [f"{LINE} at {fault.value}" for fault in FAULTS]
    for part in ("kills", "lines", "faults"):
        assert document[part]["failed"] == []
    parts = [document[name] for name in ("kills", "lines", "faults")]
    total = {key: sum(part[key] for part in parts) for key in ("faults_injected", "faults_survived", "cases")}
    assert total == {key: document[key] for key in total}
    page = (ROOT / "docs" / "how-to-deploy.md").read_text(encoding="utf-8")
    (told,) = re.findall(
        r"injected (\d+) faults in (\d+) cases and survived (\d+): (\d+) updates lost, (\d+) rounds", page
    )
    keys = ("faults_injected", "cases", "faults_survived", "updates_lost", "released_twice")
    assert [int(word) for word in told] == [document[key] for key in keys]
