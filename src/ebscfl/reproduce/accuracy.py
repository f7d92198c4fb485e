"""Accuracy experiments: settings x seeds, each a resumable run of the simulator, gathered into one JSON document.

A `Setting` is one `RunConfig` with the labels its results are filed under; an `Experiment` names the settings of a
scale. Results are written after every run, so an experiment that is stopped has what it measured so far, and
``resume`` goes on at the last checkpoint. A row of results.json says which configuration made it and where, so the
document alone is enough to go on from on another machine: runs whose rows it holds are not played again. Only torch,
numpy and Pillow are needed; plots come later if need be.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ebscfl
from ebscfl.config import NO_ATTACK, RunConfig, config_from_table
from ebscfl.errors import CheckpointError, ConfigError, Interrupted, UsageError
from ebscfl.learning import packed
from ebscfl.reproduce.tasks import Task, carry_out
from ebscfl.sim import metrics
from ebscfl.sim.cell import choose_device
from ebscfl.sim.checkpoint import write_atomically
from ebscfl.sim.journal import Line, read_lines
from ebscfl.sim.progress import Progress, Quiet

SCALES = ("smoke", "small", "full")
SEEDS = {"smoke": (1,), "small": (1, 2, 3), "full": (4, 5, 6)}
"""At full scale 1 to 3 are spent: RFCA-H's weights were chosen on recorded scores of those."""
WRITE_EVERY_S = 20.0
"""Results so far are written this often, and at the end."""
EVALUATIONS = ("own", "global")
SETTLED = 10
"""Rounds after which the attackers' share of weight is counted for itself: trust has had time to settle."""
DIGITS = 4
MADE_WITH = ("device", "torch", "commit")
"""Of `provenance`, what each row says for itself; a document names every value its rows have."""

Labels = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Setting:
    """One configuration of an experiment; its seed is set by the run."""

    labels: Labels
    config: RunConfig

    @property
    def key(self) -> str:
        """A folder name: alpha-0.1--variant-literal."""
        return "--".join(f"{name}-{value}" for name, value in self.labels.items()) or "all"

    def seeded(self, seed: int) -> RunConfig:
        """The configuration of one run."""
        return replace(self.config, seed=seed)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, or a study of our own, that is made of runs."""

    name: str
    title: str
    settings: Callable[[str], Sequence[Setting]]
    render: Callable[[Mapping[str, Any]], str]
    """The Markdown of a results document."""
    draw: Callable[[Mapping[str, Any], Path], list[Path]] | None = None
    """PNG and SVG of a results document."""
    seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By scale, where they are not those of `SEEDS`."""


def by_method(config: RunConfig) -> list[tuple[str, RunConfig]]:
    """``config`` once a method."""
    return [(method, replace(config, methods=(method,))) for method in config.methods]


def run_folder(work: Path, setting: Setting, seed: int, method: str) -> Path:
    """Where the run of one method lies."""
    return work / setting.key / f"seed-{seed}" / method


def make_config(*tables: Mapping[str, Any]) -> RunConfig:
    """A configuration from nested tables, later ones on top of earlier ones."""
    merged: dict[str, Any] = {}
    for table in tables:
        _merge(merged, table)
    return config_from_table(merged)


def _merge(into: dict[str, Any], table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


@dataclass(frozen=True, eq=False)
class Plan:
    """An experiment at a scale, on its way to a folder."""

    experiment: Experiment
    scale: str
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    out: Path
    before: tuple[Row, ...] = ()
    """Rows of an earlier results.json."""
    only: Mapping[str, str] = field(default_factory=dict)
    """Labels (as text) of the settings to run; the document still covers all of them."""

    @property
    def work(self) -> Path:
        """Where its runs lie."""
        return self.out / "work"

    def tasks(self) -> list[Task]:
        """Every run that ``before`` does not hold, all settings of a seed before the next."""
        return [
            Task(part, run_folder(self.work, setting, seed, method))
            for seed in self.seeds
            for setting in self.settings
            for method, part in by_method(setting.seeded(seed))
            if all(str(setting.labels.get(name)) == value for name, value in self.only.items())
            and len(rows_of(self.before, setting, part)) < len(part.cells)
        ]

    def write(self) -> None:
        """What is measured so far."""
        name, title = self.experiment.name, self.experiment.title
        seeds = self.seeds
        if others := {row["seed"] for row in self.before} - set(seeds):
            seeds = tuple(sorted({*seeds, *others}))  # measured before, not asked for now: kept all the same
        document = gather(name, title, self.scale, self.settings, seeds, self.work, self.before)
        write_atomically(self.out / "results.json", to_json(document))


def rows_of(rows: Sequence[Row], setting: Setting, config: RunConfig) -> list[Row]:
    """Those that the run ``config`` of ``setting`` made."""
    digest = config.digest()
    return [
        row
        for row in rows
        if row.get("config_sha256") == digest and all(row.get(name) == value for name, value in setting.labels.items())
    ]


def perform(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    scale: str = "full",
    seeds: Sequence[int] | None = None,
    resume: bool = False,
    data_dir: Path | None = None,
    time_limit: float | None = None,
    use_packed: bool = False,
    jobs: int = 1,
    only: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Run what is missing of ``experiments``, in their order; files go to ``folder``/<name>/<scale>; returns them.

    Every method of a setting and seed is a run of its own. ``jobs`` processes share them (and the GPU, whose gaps
    between one process's rounds the others fill). ``only`` runs the settings with these labels.

    Raises:
        UsageError: there are runs already and ``resume`` was not asked for.
        Interrupted: on Ctrl-C or past ``time_limit`` seconds; results so far are written.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale must be {', '.join(SCALES)}, not {scale!r}")
    plans = [
        replace(_plan(experiment, folder, scale, seeds, use_packed, resume), only=dict(only or {}))
        for experiment in experiments
    ]
    for plan in plans:
        unknown = [name for name in plan.only if not any(name in setting.labels for setting in plan.settings)]
        if unknown:
            raise ConfigError(f"only: no setting of {plan.experiment.name} has a label {unknown[0]!r}")
        if plan.work.exists() and not resume:
            raise UsageError(f"{plan.work} holds runs already: continue them with --resume, or delete the folder")
    last = time.monotonic()

    def after_each() -> None:
        nonlocal last
        if time.monotonic() > last + WRITE_EVERY_S:
            for plan in plans:
                plan.write()
            last = time.monotonic()

    tasks = [task for plan in plans for task in plan.tasks()]
    try:
        finished = carry_out(tasks, jobs, data_dir, time_limit, progress or Quiet(), after_each)
    finally:
        for plan in plans:
            if plan.work.exists() or plan.before:
                plan.write()
    if not finished:
        where = ", ".join(str(plan.out) for plan in plans)
        raise Interrupted(f"stopped; results so far are in {where}; go on with --resume and the same command")
    return [path for plan in plans for path in write_views(plan.experiment, plan.out)]


def _plan(
    experiment: Experiment, folder: Path, scale: str, seeds: Sequence[int] | None, use_packed: bool, resume: bool
) -> Plan:
    settings = tuple(experiment.settings(scale))
    if use_packed:
        settings = tuple(with_packed_data(setting) for setting in settings)
    chosen = tuple(seeds or experiment.seeds.get(scale, SEEDS[scale]))
    out = folder / experiment.name / scale
    return Plan(experiment, scale, settings, chosen, out, _rows_before(out / "results.json") if resume else ())


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """``["dataset=mnist"]`` as labels."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise ConfigError(f"only: {wrong[0]!r} is not LABEL=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _rows_before(path: Path) -> tuple[Row, ...]:
    if not path.exists():
        return ()
    try:
        rows = tuple(json.loads(path.read_text(encoding="utf-8"))["rows"])
        _ = [int(row["seed"]) for row in rows]
        return rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is corrupt ({type(error).__name__}): move it away to begin anew") from None


def with_packed_data(setting: Setting) -> Setting:
    """The same on the re-encoded data set, where there is one; config and results name it."""
    data = setting.config.data
    name = data.dataset + packed.SUFFIX
    if name not in packed.NAMES:
        return setting
    return replace(setting, config=replace(setting.config, data=replace(data, dataset=name)))


def to_json(document: Mapping[str, Any]) -> bytes:
    """Strict JSON with one result a line, so that a difference between two versions can be read."""
    rows = document["rows"]
    head = json.dumps({**document, "rows": []}, indent=1, allow_nan=False)
    body = ",\n".join("  " + json.dumps(row, allow_nan=False) for row in rows)
    return (head.replace('"rows": []', f'"rows": [\n{body}\n ]' if rows else '"rows": []') + "\n").encode()


def write_views(experiment: Experiment, out: Path) -> list[Path]:
    """Markdown, and plots where matplotlib is installed, from the results.json in ``out``; all files."""
    document = json.loads((out / "results.json").read_text(encoding="utf-8"))
    paths = [out / "results.json", out / "results.md"]
    write_atomically(paths[1], experiment.render(document).encode())
    if experiment.draw is not None and has_matplotlib():
        paths += experiment.draw(document, out)
    return paths


def has_matplotlib() -> bool:
    """Whether plots can be drawn here."""
    try:
        import matplotlib.figure
    except ModuleNotFoundError:
        return False
    return bool(matplotlib.figure)


def gather(
    name: str,
    title: str,
    scale: str,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    work: Path,
    before: Sequence[Row] = (),
) -> dict[str, Any]:
    """The results document of all runs in ``work``, finished or not, and of those that made the rows ``before``."""
    rows: list[Row] = []
    runs = 0
    made = provenance(settings[0].config.device)
    for setting in settings:
        for seed in seeds:
            found: list[Row] = []
            for method, part in by_method(setting.seeded(seed)):
                lines = read_lines(run_folder(work, setting, seed, method) / "metrics.jsonl")
                source = {"config_sha256": part.digest(), **{key: made[key] for key in MADE_WITH}}
                fresh = [{**setting.labels, "seed": seed, **row, **source} for row in cell_rows(lines, part)]
                # A cell measured before keeps the row that says with what: its run may still lie in ``work``.
                kept = {(row["method"], row["attack"]): row for row in rows_of(before, setting, part)}
                found += [*kept.values(), *(row for row in fresh if (row["method"], row["attack"]) not in kept)]
            rows += found
            runs += len(found) == len(setting.config.cells)
    wanted = len(settings) * len(seeds)
    sources = {key: ", ".join(dict.fromkeys(str(row[key]) for row in rows)) or made[key] for key in MADE_WITH}
    return {
        "name": name,
        "title": title,
        "scale": scale,
        "complete": runs == wanted,
        "runs": [runs, wanted],
        "command": f"ebs-cfl reproduce {name} --scale {scale}",
        "datasets": list(dict.fromkeys(setting.config.data.dataset for setting in settings)),
        "seeds": list(seeds),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        **made,
        **sources,
        "settings": [
            {"labels": s.labels, "config_sha256": s.seeded(seeds[0]).digest(), "config": s.seeded(seeds[0]).to_toml()}
            for s in settings
        ],
        "rows": rows,
    }


def cell_rows(lines: Sequence[Line], config: RunConfig) -> list[Row]:
    """One row per finished cell, with accuracies in both evaluations."""
    rows = []
    for method, attack in config.cells:
        mine = [line for line in lines if line["method"] == method and line["attack"] == attack]
        last = next((line for line in mine if line["kind"] == "cell"), None)
        if last is None:
            continue
        rounds = [line for line in mine if line["kind"] == "round"]
        settled = [line for line in rounds if line["round"] > SETTLED]
        row: Row = {"method": method, "attack": attack}
        for evaluation in EVALUATIONS:
            curve = metrics.accuracies(rounds, evaluation)
            row[evaluation] = {"fa": round(curve[-1], DIGITS), "ma": round(max(curve), DIGITS)}
            row[f"curve_{evaluation}"] = [round(value, 2) for value in curve]
        row["rounds"] = [r["round"] for r in rounds if r["round"] > 0 and r["accuracy_own"] is not None]
        row["asr"] = last["asr"]
        row["share"] = round(100.0 * last["attacker_weight_share"], DIGITS)
        row["share_settled"] = round(100.0 * metrics.mean_share(settled), DIGITS) if settled else None
        row["backdoor"] = None if last["backdoor"] is None else round(last["backdoor"], DIGITS)
        row["clusters_used"] = len(set(rounds[-1]["clusters"]))
        row["largest_cluster"] = max(rounds[-1]["clusters"].count(k) for k in set(rounds[-1]["clusters"]))
        row["seconds"] = round(last["seconds"], 2)
        rows.append(row)
    return rows


def provenance(device: str) -> dict[str, Any]:
    """What the numbers were made with."""
    where = choose_device(device)
    return {
        "version": ebscfl.__version__,
        "commit": git_commit(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "cores": os.cpu_count(),
    }


def git_commit(folder: Path | None = None) -> str | None:
    """The commit of the checkout this package lies in, with a + for local changes; None outside of one."""
    here = folder or Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        state = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("EBSCFL_COMMIT")  # a copy of the tree without its history
    return head.stdout.strip() + ("+" if state.stdout.strip() else "")


def summaries(document: Mapping[str, Any], keys: Sequence[str]) -> list[Row]:
    """Mean and spread (sample standard deviation) over the seeds, one row per setting, method and attack.

    ``keys`` are the labels that name a setting. NA is the final accuracy of the same method, setting and seed without
    attack; the two forms of AIR are taken per seed before the mean.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    clean: dict[tuple[Any, ...], Row] = {}
    for row in document["rows"]:
        place = tuple(row.get(key) for key in keys)
        groups.setdefault((*place, row["method"], row["attack"]), []).append(row)
        if row["attack"] == NO_ATTACK:
            clean[*place, row["method"], row["seed"]] = row
    found = []
    for (*names, method, attack), rows in groups.items():
        place = tuple(names)
        summary: Row = {**dict(zip(keys, place, strict=True)), "method": method, "attack": attack, "seeds": len(rows)}
        for evaluation in EVALUATIONS:
            values: dict[str, list[float]] = {"fa": [], "ma": [], "na": [], "air_points": [], "air_printed": []}
            for row in rows:
                fa, ma = row[evaluation]["fa"], row[evaluation]["ma"]
                values["fa"].append(fa)
                values["ma"].append(ma)
                base = clean.get((*place, method, row["seed"]))
                if base is None:
                    continue
                na = base[evaluation]["fa"]
                values["na"].append(na)
                if attack != NO_ATTACK:
                    values["air_points"].append(metrics.air_points(na, fa, ma))
                    printed = metrics.air_printed(na, fa, ma)
                    values["air_printed"] += [] if printed is None else [printed]
            summary[evaluation] = {name: mean_and_spread(numbers) for name, numbers in values.items()}
        for name in ("asr", "share", "share_settled", "backdoor", "clusters_used", "largest_cluster"):
            summary[name] = mean_and_spread([row[name] for row in rows if row[name] is not None])
        found.append(summary)
    return found


def mean_and_spread(values: Sequence[float]) -> tuple[float, float] | None:
    """(mean, sample standard deviation); the deviation of a single value is 0, of none there is nothing."""
    if not values:
        return None
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
