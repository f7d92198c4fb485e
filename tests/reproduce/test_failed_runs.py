"""One run that fails does not take the others with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebscfl.config import RunConfig
from ebscfl.errors import CheckpointError, DataError
from ebscfl.reproduce.accuracy import make_config
from ebscfl.reproduce.tasks import Task, carry_out
from ebscfl.sim.progress import Quiet

TINY = {
    "protocol": "direct",
    "rounds": 1,
    "methods": ["fedavg"],
    "attacks": [],
    "data": {"dataset": "mnist-mini", "kind": "iid", "samples": 300, "clients": 3, "root_size": 20},
    "model": {"name": "linear"},
    "local": {"steps": 1, "batch_size": 4},
}


def config(seed: int, **changes: object) -> RunConfig:
    return make_config(TINY, {"seed": seed, **changes})


def status(run_dir: Path) -> str:
    return str(json.loads((run_dir / "run.json").read_text())["status"])


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_others_are_played_and_the_failed_run_is_named(tmp_path: Path, jobs: int) -> None:
    tasks = [Task(config(seed), tmp_path / f"run-{seed}") for seed in (1, 2, 3)]
    tasks[0].run_dir.mkdir()
    (tasks[0].run_dir / "run.json").write_text('{"config_sha256": "of another run"}')
    calls: list[int] = []
    with pytest.raises(CheckpointError, match=r"run-1.*other settings"):
        carry_out(tasks, jobs, None, None, Quiet(), lambda: calls.append(1))
    assert [status(task.run_dir) for task in tasks[1:]] == ["complete", "complete"]
    assert len(calls) >= 2
    (tasks[1].run_dir / "run.json").write_text('{"config_sha256": "of another run"}')
    with pytest.raises(CheckpointError, match="and 1 others failed"):
        carry_out(tasks, jobs, None, None, Quiet(), lambda: None)


def test_missing_data_stop_at_once(tmp_path: Path) -> None:
    missing = config(1, data={"dataset": "cifar10"}, server={"clusters": 1})
    tasks = [Task(missing, tmp_path / "missing"), Task(config(2), tmp_path / "right")]
    with pytest.raises(DataError):
        carry_out(tasks, 1, tmp_path, None, Quiet(), lambda: None)
    assert not (tmp_path / "right").exists()
