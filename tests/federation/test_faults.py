"""Every case of the harness survives; and the harness notices when something is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ebscfl.errors import EbscflError
from ebscfl.federation import faults
from ebscfl.federation.faults import CASES, ONLY_AS_PROCESS, Bench, run_all, run_case

SLOW = [name for name in CASES if name.startswith("network") or "stays away" in name]
AS_PROCESS = [name for name in CASES if name.startswith("key centre")]
FAST = [name for name in CASES if name not in {*SLOW, *ONLY_AS_PROCESS}]


@pytest.mark.parametrize("name", FAST)
def test_case(name: str, tmp_path: Path):
    result = run_case(name, tmp_path, process=False)
    assert result.survived, result
    assert result.faults > 0
    assert (result.updates_lost, result.released_twice) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_slow_case(name: str, tmp_path: Path):
    result = run_case(name, tmp_path, process=False)
    assert result.survived, result
    assert result.faults > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", AS_PROCESS)
def test_the_key_centre_as_a_process(name: str, tmp_path: Path):
    """Killed with signal 9, or with a disk that is full for it alone."""
    result = run_case(name, tmp_path)
    assert result.survived, result
    assert result.faults > 0
    assert "serving on port" in (tmp_path / "logs" / "kdc.log").read_text()


def test_a_lost_update_is_counted(monkeypatch: pytest.MonkeyPatch):
    def loses_one(bench: Bench) -> tuple[int, int, int]:
        end = bench.play(bench.server(), lambda round_id, i: None if i == 0 else bench.answer(round_id, i))
        return 1, bench.check(end), 1

    monkeypatch.setattr(faults, "QUICK", faults.Deadlines(first_s=0.1, last_s=0.1, quorum=3, pause_s=0.001))
    monkeypatch.setitem(CASES, "loses one", loses_one)
    document = run_all(("loses one",), process=False)
    assert document["updates_lost"] == 1
    assert document["faults_survived"] == 0
    assert document["failed"][0]["name"] == "loses one"


def test_wrong_sums_are_noticed(tmp_path: Path):
    bench = Bench(tmp_path)
    with bench.loop:
        end = bench.play(bench.server())
        bench.updates = np.roll(bench.updates, 1, axis=0)
        with pytest.raises(EbscflError, match="sums are wrong"):
            bench.check(end)
