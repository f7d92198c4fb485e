"""Many runs, one after the other or over several processes, resumable and under a time limit.

A run is a function of its configuration alone, so processes share nothing but the disk: each writes its own run
directory. A run that is complete is left alone, one that was stopped goes on at its checkpoint. A run that fails does
not take the others with it, unless its settings or data are at fault: then nothing is worth waiting for.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import torch

from ebscfl.config import RunConfig, parse_config
from ebscfl.errors import CheckpointError, ConfigError, DataError, EbscflError, Interrupted
from ebscfl.sim import runner
from ebscfl.sim.journal import read_lines
from ebscfl.sim.progress import Progress, Quiet


@dataclass(frozen=True, eq=False)
class Task:
    """One run and its directory."""

    config: RunConfig
    run_dir: Path


class Deadline(Quiet):
    """Stops a run, as Ctrl-C would, after the first round that ends past ``end`` (by `time.time`)."""

    def __init__(self, end: float | None, watched: Progress | None = None) -> None:
        self._end = end
        self._watched = watched or Quiet()

    def cell_started(self, method: str, attack: str, first_round: int, rounds: int) -> None:
        """Pass it on."""
        self._watched.cell_started(method, attack, first_round, rounds)

    def round_finished(self, method: str, attack: str, round_id: int, accuracy: float | None) -> None:
        """Pass it on, and look at the clock."""
        self._watched.round_finished(method, attack, round_id, accuracy)
        if self._end is not None and time.time() > self._end:
            raise KeyboardInterrupt

    def cell_finished(self, method: str, attack: str, accuracy: float) -> None:
        """Pass it on."""
        self._watched.cell_finished(method, attack, accuracy)


def carry_out(
    tasks: Sequence[Task],
    jobs: int,
    data_dir: Path | None,
    time_limit: float | None,
    progress: Progress,
    after_each: Callable[[], None],
) -> bool:
    """Play what is missing of ``tasks``; False if Ctrl-C or the limit came first. ``after_each`` run, so is the call.

    Raises:
        ConfigError, DataError: of the first run whose settings or data are wrong, at once.
        EbscflError: runs failed; the others were played first.
        Interrupted: a worker was killed.
    """
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, not {jobs}")
    end = None if time_limit is None else time.time() + time_limit
    failed: dict[Path, EbscflError] = {}
    if jobs == 1:
        finished = _in_order(tasks, data_dir, end, progress, after_each, failed)
    else:
        finished = _side_by_side(tasks, jobs, data_dir, end, progress, after_each, failed)
    if failed:
        run_dir, error = next(iter(failed.items()))
        others = f", and {len(failed) - 1} others failed" if len(failed) > 1 else ""
        raise type(error)(f"{run_dir}: {error}{others}")
    return finished


def play(task: Task, data_dir: Path | None, progress: Progress) -> None:
    """Start the task's run, finish it, or find it complete; a `ConfigError` names the run."""
    config, run_dir = task.config, task.run_dir
    if not (run_dir / "run.json").exists():
        shutil.rmtree(run_dir, ignore_errors=True)  # stopped before it began
        try:
            runner.run(config, out=run_dir, data_dir=data_dir, progress=progress)
        except ConfigError as error:
            raise ConfigError(f"{run_dir}: {error}") from None
        return
    try:
        info = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
        digest, status = info["config_sha256"], info.get("status")
    except (OSError, ValueError, KeyError, TypeError) as error:
        name = type(error).__name__
        raise CheckpointError(f"{run_dir} is damaged ({name} in run.json): delete it to run it anew") from None
    if digest != config.digest():
        raise CheckpointError(f"{run_dir} was run with other settings: delete it to run it anew")
    if status != "complete":
        runner.resume(run_dir, data_dir=data_dir, progress=progress)


def _in_order(
    tasks: Sequence[Task],
    data_dir: Path | None,
    end: float | None,
    progress: Progress,
    after_each: Callable[[], None],
    failed: dict[Path, EbscflError],
) -> bool:
    for task in tasks:
        try:
            play(task, data_dir, Deadline(end, progress))
        except Interrupted:
            after_each()
            return False
        except (ConfigError, DataError):
            raise
        except EbscflError as error:
            failed[task.run_dir] = error
        after_each()
    return True


def _side_by_side(
    tasks: Sequence[Task],
    jobs: int,
    data_dir: Path | None,
    end: float | None,
    progress: Progress,
    after_each: Callable[[], None],
    failed: dict[Path, EbscflError],
) -> bool:
    """Workers are new processes, not forks: CUDA does not survive one."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    finished = True
    with ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        waiting = {pool.submit(_in_worker, task.config.to_toml(), task.run_dir, data_dir, end): task for task in tasks}
        try:
            for done in as_completed(waiting):
                run_dir = waiting[done].run_dir
                try:
                    complete = done.result()
                except (ConfigError, DataError):
                    raise
                except EbscflError as error:
                    failed[run_dir] = error
                    continue
                except BrokenProcessPool:
                    raise Interrupted(
                        "a process was killed (did memory run out?); go on with --resume, and with fewer --jobs"
                    ) from None
                finished &= complete
                for line in read_lines(run_dir / "metrics.jsonl") if complete else ():
                    if line["kind"] == "cell":
                        progress.cell_finished(line["method"], line["attack"], line["fa"])
                after_each()
        except KeyboardInterrupt:  # the workers got the signal too, and leave their checkpoints
            finished = False
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    if not finished:
        after_each()
    return finished


def _in_worker(config: str, run_dir: Path, data_dir: Path | None, end: float | None) -> bool:
    """Whether the run is complete."""
    try:
        if end is not None and time.time() > end:
            return False
        play(Task(parse_config(config), run_dir), data_dir, Deadline(end))
    except (Interrupted, KeyboardInterrupt):
        return False
    return True
