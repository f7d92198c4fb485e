"""A directory belongs to one process at a time, and to nobody once that process is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import config, use_rows

from ebscfl.errors import UsageError
from ebscfl.reproduce import experiments
from ebscfl.sim import exclusive, runner
from ebscfl.sim.exclusive import NAME, only_process

SOURCE = str(Path(exclusive.__file__).parents[2])
HOLD = """
import sys
from pathlib import Path
from ebscfl.sim.exclusive import only_process
with only_process(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold(directory: Path) -> subprocess.Popen[str]:
    """Another process that holds ``directory`` until it is told a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_process_is_told_and_the_third_may_go_on(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        with pytest.raises(UsageError, match="another process works in"), only_process(tmp_path):
            pass
        other.communicate("go\n")
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
    with only_process(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
    assert (tmp_path / NAME).exists()
    with only_process(tmp_path):
        pass


def test_an_error_inside_lets_go(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), only_process(tmp_path / "new"):
        raise ValueError("inside")
    with only_process(tmp_path / "new"):
        pass


def test_the_lock_of_a_file_just_removed_is_not_taken_for_the_directory_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our open and our lock the holder let go and removed the file: whoever comes next would lock a new one."""
    real, calls = exclusive.fcntl.flock, []

    def late(file: object, how: int) -> None:
        if not calls:
            (tmp_path / NAME).unlink()
        calls.append(how)
        real(file, how)

    monkeypatch.setattr(exclusive.fcntl, "flock", late)
    with only_process(tmp_path):
        assert (tmp_path / NAME).exists()
        with pytest.raises(UsageError), only_process(tmp_path):
            pass
    assert len(calls) == 3


def test_without_locks_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(file: object, how: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(exclusive.fcntl, "flock", unsupported)
    with only_process(tmp_path):
        pass
    monkeypatch.setattr(exclusive, "fcntl", None)
    with only_process(tmp_path), only_process(tmp_path):
        pass


def test_a_run_is_not_played_twice_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_rows(monkeypatch)
    settings = config("protocol=direct", 'methods=["fedavg"]', "rounds=1")
    run_dir = tmp_path / "run"
    runner.run(settings, out=run_dir)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    with only_process(run_dir), pytest.raises(UsageError, match="another process"):
        runner.resume(run_dir)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_two_that_begin_at_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading data takes a while: the directory can be taken in the meantime."""
    use_rows(monkeypatch)
    settings = config("protocol=direct", 'methods=["fedavg"]', "rounds=1")
    run_dir, real = tmp_path / "run", runner.build_world

    def slow(*arguments: object) -> object:
        monkeypatch.setattr(runner, "build_world", real)
        runner.run(settings, out=run_dir)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "build_world", slow)
    with pytest.raises(UsageError, match="another process has just begun"):
        runner.run(settings, out=run_dir)
    assert runner.resume(run_dir).document["results"]


def test_an_experiment_is_not_made_twice_at_a_time(tmp_path: Path) -> None:
    with only_process(tmp_path / "search" / "smoke"), pytest.raises(UsageError, match="another process"):
        experiments.make("table-iid,search", tmp_path, scale="smoke", time_limit=0.0)
    assert not (tmp_path / "search" / "smoke" / "work").exists()
    assert not (tmp_path / "table-iid" / "smoke" / "work").exists()
