"""RFCA-H, sleepers and on-off attackers through whole (tiny) runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import config, use_rows

from ebscfl.config import AttackSettings
from ebscfl.errors import ConfigError, Interrupted
from ebscfl.sim import runner
from ebscfl.sim.progress import Quiet

SETS = ('methods=["rfca-h"]', "rounds=5", "checkpoint_every=2", "data.clients=8", "attack.fraction=0.25")


class StopAfter(Quiet):
    """Ctrl-C after so many rounds."""

    def __init__(self, rounds: int) -> None:
        self._left = rounds

    def round_finished(self, method: str, attack: str, round_id: int, accuracy: float | None) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def lines(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics without times."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for line in found:
        for key in ("seconds", "role_seconds"):
            line.pop(key, None)
    return found


@pytest.mark.parametrize("protocol", ["direct", "sealed"])
@pytest.mark.parametrize("weight", ["score", "record"])
def test_a_resumed_run_is_bit_identical(
    protocol: str, weight: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_rows(monkeypatch)
    settings = config(*SETS, f"protocol={protocol}", "server.hysteresis=0.1", f"server.history_weight={weight}")
    runner.run(settings, out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        runner.run(settings, out=tmp_path / "cut", progress=StopAfter(8))
    runner.resume(tmp_path / "cut")
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


@pytest.mark.parametrize("weight", ["score", "record"])
def test_sealed_and_direct_agree(weight: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_rows(monkeypatch)
    found = {}
    for protocol in ("direct", "sealed"):
        sets = (f"protocol={protocol}", f"server.history_weight={weight}")
        runner.run(config(*SETS, *sets), out=tmp_path / protocol)
        rounds = [line for line in lines(tmp_path / protocol) if line["kind"] == "round" and line["round"] > 0]
        found[protocol] = [line["weights"] for line in rounds]
    # Models differ by the fixed point's rounding only, so shares of weight do too.
    assert torch.allclose(torch.tensor(found["direct"]), torch.tensor(found["sealed"]), atol=5e-3)


def test_sleepers_are_honest_until_they_wake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_rows(monkeypatch)
    for attack in ("label-flip", "sign-flip"):
        sets = ('methods=["rfca"]', f'attacks=["{attack}"]', "protocol=direct", "attack.start_round=3")
        runner.run(config(*sets), out=tmp_path / attack)
        by_cell: dict[str, list[Any]] = {"none": [], attack: []}
        for line in lines(tmp_path / attack):
            if line["kind"] == "round":
                by_cell[line["attack"]].append(line["scores"])
        assert by_cell["none"][:3] == by_cell[attack][:3]
        assert by_cell["none"][3] != by_cell[attack][3]


def test_schedule_of_hostile_rounds() -> None:
    always = AttackSettings()
    assert all(always.hostile(t) for t in range(1, 9))
    on_off = AttackSettings(start_round=3, period=2)
    assert [t for t in range(1, 12) if on_off.hostile(t)] == [3, 4, 7, 8, 11]
    for name in ("start_round", "period"):
        with pytest.raises(ConfigError, match=name):
            AttackSettings(**{name: 0})  # type: ignore[arg-type]


def test_protocols_without_a_history_refuse_rfca_h() -> None:
    for protocol in ("plain", "paper"):
        with pytest.raises(ConfigError, match="rfca-h"):
            config(*SETS, f"protocol={protocol}")
    with pytest.raises(ConfigError, match="history_scope"):
        config(*SETS, "protocol=sealed", "server.history_scope=cluster")
    config(*SETS, "protocol=direct", "server.history_scope=cluster")


OURS = ("root_scale=part", "root_direction=mixed", "history_weight=record", "share=body", "choice_steps=1")


@pytest.mark.parametrize("protocol", ["direct", "sealed"])
@pytest.mark.parametrize("attack", ["label-flip", "sign-flip"])
def test_our_rule_as_it_is_run_on_skewed_labels(
    protocol: str, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All options together, on a model with a body: finite, weights are shares, the same after a stop."""
    use_rows(monkeypatch)
    sets = (*SETS, f"protocol={protocol}", f"attacks={attack}", "model.name=mlp", *(f"server.{own}" for own in OURS))
    settings = config(*sets)
    runner.run(settings, out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        runner.run(settings, out=tmp_path / "cut", progress=StopAfter(3))
    runner.resume(tmp_path / "cut")
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    for line in lines(tmp_path / "whole"):
        if line["kind"] == "round" and line["round"] > 0:
            assert sum(line["weights"]) == pytest.approx(1.0)
            assert min(line["weights"]) >= 0.0
