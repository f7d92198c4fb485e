"""Many runs: shared by processes they give what one gives, a limit stops them where they can go on, errors have names.

Workers are new processes, so what they need lies on the disk: the embedded data, and nothing patched in here.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebscfl.config import RunConfig
from ebscfl.errors import CheckpointError, ConfigError, DataError, EbscflError, Interrupted
from ebscfl.reproduce.accuracy import make_config
from ebscfl.reproduce.tasks import Deadline, Task, carry_out, play
from ebscfl.sim.journal import read_lines
from ebscfl.sim.progress import Quiet

TINY: dict[str, Any] = {
    "protocol": "direct",
    "rounds": 2,
    "methods": ["rfca-h"],
    "attacks": ["label-flip"],
    "data": {"dataset": "mnist-mini", "samples": 400, "kind": "iid", "clients": 5, "root_size": 20},
    "model": {"name": "linear"},
    "local": {"steps": 1, "batch_size": 8, "lr": 0.1},
    "server": {"clusters": 2},
    "attack": {"fraction": 0.2},
}
ROUNDS = 2 * 2  # cells x rounds


class Watch(Quiet):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def cell_started(self, method: str, attack: str, first_round: int, rounds: int) -> None:
        self.seen.append(("start", method, attack, first_round, rounds))

    def round_finished(self, method: str, attack: str, round_id: int, accuracy: float | None) -> None:
        self.seen.append(("round", method, attack, round_id))

    def cell_finished(self, method: str, attack: str, accuracy: float) -> None:
        self.seen.append(("end", method, attack, accuracy))


def config(seed: int = 1, **changes: Any) -> RunConfig:
    return make_config(TINY, {"seed": seed, **changes})


def tasks(folder: Path, count: int = 3) -> list[Task]:
    return [Task(config(seed), folder / f"run-{seed}") for seed in range(1, count + 1)]


def carry(
    todo: list[Task],
    jobs: int = 1,
    limit: float | None = None,
    progress: Quiet | None = None,
    after: Callable[[], None] = lambda: None,
) -> bool:
    return carry_out(todo, jobs, None, limit, progress or Quiet(), after)


def measured(todo: list[Task]) -> list[list[dict[str, Any]]]:
    """The metrics of every run without times."""
    runs = []
    for task in todo:
        lines = read_lines(task.run_dir / "metrics.jsonl")
        runs.append([{key: value for key, value in line.items() if key != "seconds"} for line in lines])
    return runs


def statuses(todo: list[Task]) -> list[str]:
    return [json.loads((task.run_dir / "run.json").read_text())["status"] for task in todo]


@pytest.mark.slow
def test_two_processes_give_exactly_what_one_gives(tmp_path: Path) -> None:
    one, two = tasks(tmp_path / "one"), tasks(tmp_path / "two")
    calls: list[int] = []
    watch = Watch()
    assert carry(one) is True
    assert carry(two, jobs=2, progress=watch, after=lambda: calls.append(1)) is True
    assert measured(two) == measured(one)
    assert len(calls) == len(two)
    # Rounds are not told across processes, how each cell ended is.
    cells = [line for run in measured(two) for line in run if line["kind"] == "cell"]
    assert sorted(watch.seen) == sorted(("end", line["method"], line["attack"], line["fa"]) for line in cells)


@pytest.mark.slow
def test_two_processes_stop_at_the_limit_and_a_resume_completes(tmp_path: Path) -> None:
    whole, cut = tasks(tmp_path / "whole", 2), tasks(tmp_path / "cut", 2)
    assert carry(whole) is True
    assert carry(cut[:1], limit=0.0) is False  # one round of the first run
    assert carry(cut, jobs=2, limit=-1.0) is False  # past the limit before anything begins
    assert statuses(cut[:1]) == ["interrupted"]
    assert not cut[1].run_dir.exists()
    assert carry(cut, jobs=2) is True
    assert measured(cut) == measured(whole)


def test_the_limit_stops_after_a_round_and_resuming_is_the_unbroken_run(tmp_path: Path) -> None:
    whole, cut = tasks(tmp_path / "whole", 1), tasks(tmp_path / "cut", 1)
    assert carry(whole) is True
    calls: list[int] = []
    for played in range(1, ROUNDS + 1):
        assert carry(cut, limit=0.0, after=lambda: calls.append(1)) is False
        rounds = [line for line in measured(cut)[0] if line["kind"] == "round" and line["round"] > 0]
        assert len(rounds) == played
    assert carry(cut, limit=0.0) is True  # nothing but the last cell's end was missing
    assert measured(cut) == measured(whole)
    assert len(calls) == ROUNDS  # also after a run that was stopped


def test_a_complete_run_is_left_alone(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, 1)
    play(task, None, Quiet())
    before = {path: path.stat().st_mtime_ns for path in task.run_dir.rglob("*")}
    watch = Watch()
    play(task, None, watch)
    assert watch.seen == []
    assert {path: path.stat().st_mtime_ns for path in task.run_dir.rglob("*")} == before


def test_a_run_stopped_before_it_began_starts_anew(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path / "cut", 1)
    task.run_dir.mkdir(parents=True)
    (task.run_dir / "config.toml").write_text("half of it")  # run.json, which comes next, is not there
    play(task, None, Quiet())
    (fresh,) = tasks(tmp_path / "fresh", 1)
    play(fresh, None, Quiet())
    assert measured([task]) == measured([fresh])


def test_a_last_line_without_its_end_is_played_again(tmp_path: Path) -> None:
    """The machine stopped while a line was written; the checkpoint is older, or none was written yet."""
    whole, cut = tasks(tmp_path / "whole", 1), tasks(tmp_path / "cut", 1)
    carry(whole)
    carry(cut, limit=0.0)
    journal = cut[0].run_dir / "metrics.jsonl"
    journal.write_text(journal.read_text()[:-30])
    carry(cut)
    assert measured(cut) == measured(whole)


def test_the_directory_of_other_settings_is_refused(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, 1)
    play(task, None, Quiet())
    other = Task(config(rounds=3), task.run_dir)
    with pytest.raises(CheckpointError, match="run-1 was run with other settings"):
        play(other, None, Quiet())
    assert statuses([task]) == ["complete"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "complete"}'])
def test_a_damaged_run_is_named(tmp_path: Path, text: str) -> None:
    (task,) = tasks(tmp_path, 1)
    task.run_dir.mkdir()
    (task.run_dir / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match="run-1 is damaged"):
        play(task, None, Quiet())


def impossible(folder: Path) -> Task:
    """100 clients with at least 50 of 400 samples each."""
    data = {"kind": "dirichlet", "clients": 100, "min_size": 50, "root_size": 100}
    return Task(config(data=data), folder / "impossible")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_error_in_a_run_names_it(tmp_path: Path, jobs: int) -> None:
    with pytest.raises(EbscflError, match="impossible") as caught:
        carry([impossible(tmp_path)], jobs)
    assert isinstance(caught.value, ConfigError)
    assert "5100 samples" in str(caught.value)  # 100 x 50 + 100
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_missing_data_are_one_error_in_a_worker_too(tmp_path: Path) -> None:
    missing = Task(config(data={"dataset": "cifar100"}), tmp_path / "missing")
    with pytest.raises(DataError, match="cifar100"):
        carry_out([missing], 2, tmp_path / "no-data-here", None, Quiet(), lambda: None)


@pytest.mark.slow
def test_a_killed_worker_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    whole, cut = tasks(tmp_path / "whole"), tasks(tmp_path / "cut")

    def kill() -> None:
        for worker in multiprocessing.active_children():
            os.kill(worker.pid or 0, signal.SIGKILL)

    with pytest.raises(Interrupted, match=r"a process was killed.*fewer --jobs"):
        carry(cut, jobs=2, after=kill)
    assert carry(cut) is True
    assert carry(whole) is True
    assert measured(cut) == measured(whole)


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_process_is_refused(tmp_path: Path, jobs: int) -> None:
    with pytest.raises(ConfigError, match="jobs must be at least 1"):
        carry(tasks(tmp_path), jobs)


def test_a_deadline_passes_everything_on_and_looks_at_the_clock_after_rounds_only() -> None:
    watch = Watch()
    patient = Deadline(time.time() + 3600.0, watch)
    patient.cell_started("m", "a", 0, 2)
    patient.round_finished("m", "a", 1, None)
    patient.cell_finished("m", "a", 1.0)
    assert watch.seen == [("start", "m", "a", 0, 2), ("round", "m", "a", 1), ("end", "m", "a", 1.0)]
    late = Deadline(time.time() - 1.0, watch)
    late.cell_started("m", "a", 0, 2)
    late.cell_finished("m", "a", 1.0)
    with pytest.raises(KeyboardInterrupt):
        late.round_finished("m", "a", 2, None)
    assert watch.seen[-1] == ("round", "m", "a", 2)  # the round is over, and told so
