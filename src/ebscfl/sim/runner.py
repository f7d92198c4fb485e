"""Plays a whole configuration, method by method and attack by attack, into a run directory::

    config.toml  run.json  metrics.jsonl  results.json  checkpoints/<method>--<attack>.npz

Nothing is written before the configuration is checked and the data is loaded. A stopped run goes on where its last
checkpoints stand and ends with the very metrics of an unbroken one (times excepted).
"""

from __future__ import annotations

import json
import platform
import shlex
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ebscfl
from ebscfl.config import RunConfig, parse_config
from ebscfl.errors import CheckpointError, Interrupted, UsageError
from ebscfl.sim.cell import World, build_cell, build_world, play_cell
from ebscfl.sim.checkpoint import write_atomically
from ebscfl.sim.exclusive import only_process
from ebscfl.sim.journal import Journal
from ebscfl.sim.metrics import result_rows
from ebscfl.sim.progress import Progress, Quiet

RUNS = Path("runs")


@dataclass(frozen=True)
class RunResult:
    """What a finished run leaves: its directory and the document of results.json."""

    run_dir: Path
    document: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per method and attack; fa, ma, na, asr, air_printed, air_points and attackers' weight in percent."""
        rows: list[dict[str, Any]] = self.document["results"]
        return rows

    def row(self, method: str, attack: str = "none") -> dict[str, Any]:
        """The row of one cell."""
        for row in self.rows:
            if row["method"] == method and row["attack"] == attack:
                return row
        raise UsageError(f"this run has no cell {method} x {attack}")


def run(
    config: RunConfig,
    *,
    preset: str = "custom",
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
    sets: tuple[str, ...] = (),
) -> RunResult:
    """Play ``config`` into the directory ``out`` (default: runs/<time>-<preset>) and return its results.

    ``preset`` and ``sets`` only name where the config came from, so that run.json can say how to reproduce it.

    Raises:
        ConfigError, DataError: before anything is written.
        Interrupted: on Ctrl-C; the message says how to go on.
    """
    started = datetime.now(UTC)
    run_dir = Path(out) if out is not None else RUNS / f"{started:%Y%m%d-%H%M%S}-{Path(preset).stem}"
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise UsageError(f"{run_dir} is not empty: choose another --out, or continue it with --resume {run_dir}")
    world = build_world(config, None if data_dir is None else Path(data_dir))
    info = {
        "run_id": run_dir.resolve().name,
        "preset": preset,
        "seed": config.seed,
        "status": "running",
        "reproduce": _command(preset, sets, data_dir),
        "seconds": 0.0,
        "started": started.isoformat(timespec="seconds"),
        "version": ebscfl.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "device": str(world.data.x.device),
        "config_sha256": config.digest(),
    }
    with only_process(run_dir):
        if (run_dir / "run.json").exists():
            raise UsageError(f"{run_dir} is not empty: another process has just begun a run there")
        write_atomically(run_dir / "config.toml", config.to_toml().encode())
        _write_json(run_dir / "run.json", info)
        return _play(world, run_dir, info, progress or Quiet())


def resume(run_dir: Path | str, *, data_dir: Path | str | None = None, progress: Progress | None = None) -> RunResult:
    """Finish the run in ``run_dir``.

    Raises:
        UsageError: there is no run, or another process plays it.
        CheckpointError: it is damaged, or its config.toml was changed.
    """
    run_dir = Path(run_dir)
    if not (run_dir / "run.json").is_file() or not (run_dir / "config.toml").is_file():
        raise UsageError(f"{run_dir} holds no run to resume: run.json or config.toml is missing")
    with only_process(run_dir):
        return _resume(run_dir, data_dir, progress)


def _resume(run_dir: Path, data_dir: Path | str | None, progress: Progress | None) -> RunResult:
    try:
        info = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
        expected, _, _ = info["config_sha256"], info["run_id"], float(info["seconds"])
        text = (run_dir / "config.toml").read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{run_dir} is damaged ({type(error).__name__} in run.json or config.toml)") from None
    config = parse_config(text, source=str(run_dir / "config.toml"))
    if config.digest() != expected:
        raise CheckpointError(f"{run_dir / 'config.toml'} was changed since this run began: start a new run with it")
    world = build_world(config, None if data_dir is None else Path(data_dir))
    return _play(world, run_dir, info, progress or Quiet())


def _play(world: World, run_dir: Path, info: dict[str, Any], progress: Progress) -> RunResult:
    started = time.perf_counter()
    before = float(info["seconds"])
    journal = Journal(run_dir / "metrics.jsonl")
    lines = []
    try:
        for method, attack in world.config.cells:
            line = journal.cell(method, attack)
            if line is None:
                line = play_cell(build_cell(world, method, attack), world.config, run_dir, journal, progress)
            lines.append(line)
    except KeyboardInterrupt:
        seconds = before + time.perf_counter() - started
        _write_json(run_dir / "run.json", {**info, "status": "interrupted", "seconds": seconds})
        raise Interrupted(f"stopped; resume with: ebs-cfl run --resume {shlex.quote(str(run_dir))}") from None
    seconds = before + time.perf_counter() - started
    document = {
        "run_id": info["run_id"],
        "preset": info["preset"],
        "seconds": seconds,
        "results": result_rows(lines),
    }
    _write_json(run_dir / "results.json", document)
    _write_json(run_dir / "run.json", {**info, "status": "complete", "seconds": seconds})
    return RunResult(run_dir, document)


def _write_json(path: Path, document: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())


def _command(preset: str, sets: tuple[str, ...], data_dir: Path | str | None) -> str:
    """The command line that makes this run again."""
    if preset == "custom":
        return "ebs-cfl run config.toml"
    parts = ["ebs-cfl", "run", preset]
    for assignment in sets:
        parts += ["--set", assignment]
    if data_dir is not None:
        parts += ["--data-dir", str(data_dir)]
    return shlex.join(parts)
