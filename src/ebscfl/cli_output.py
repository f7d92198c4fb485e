"""How the command line looks: progress on stderr, tables on stdout."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ebscfl.errors import DataError
from ebscfl.report import tables

if TYPE_CHECKING:  # importing these takes torch, and most commands do without
    from ebscfl.learning.sources import DataStatus


class LiveProgress:
    """A bar per cell, on stderr."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def cell_started(self, method: str, attack: str, first_round: int, rounds: int) -> None:
        """A new bar."""
        self._task = self._bars.add_task(f"{method} x {attack}", total=rounds, completed=first_round, accuracy="")

    def round_finished(self, method: str, attack: str, round_id: int, accuracy: float | None) -> None:
        """One step further."""
        if self._task is not None:
            self._bars.update(self._task, completed=round_id)
            if accuracy is not None:
                self._bars.update(self._task, accuracy=f"{accuracy:5.1f} %")

    def cell_finished(self, method: str, attack: str, accuracy: float) -> None:
        """The bar is full."""
        if self._task is not None:
            self._bars.update(self._task, accuracy=f"{accuracy:5.1f} %")


@contextmanager
def live_progress() -> Iterator[LiveProgress]:
    """Progress bars for the length of a run."""
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield LiveProgress(bars)


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar per file: the callback takes (file, bytes so far, bytes in all)."""
    with Progress(console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def update(name: str, received: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=received, total=total)

        yield update


TITLE = "accuracy in percent; ASR = attacker updates with non-zero weight"


def print_results(rows: Sequence[Mapping[str, Any]], title: str = TITLE) -> None:
    """The table of a run: method x attack."""
    table = Table(title=title, title_justify="left")
    columns = [column for column in tables.COLUMNS if column.key in rows[0]]
    table.add_column("attack")
    table.add_column("method")
    for column in columns:
        table.add_column(column.label, justify="right")
    order = list(dict.fromkeys(row["attack"] for row in rows))
    for attack in [*(a for a in order if a != "none"), *(a for a in order if a == "none")]:
        for row in (row for row in rows if row["attack"] == attack):
            names = tables.attack_name(attack), tables.method_name(row["method"])
            table.add_row(*names, *(column.format(row[column.key]) for column in columns))
        table.add_section()
    _stdout().print(table)


def print_where(run_dir: Path, page: Path | None) -> None:
    """On stderr, so that --json stays clean."""
    print(f"results: {run_dir}", file=sys.stderr)
    if page is not None:
        print(f"report:  {page}", file=sys.stderr)


def print_standstills(run_dir: Path) -> None:
    """On stderr: cells whose models did not move in some rounds, and why not."""
    from ebscfl.sim.journal import Line, read_lines

    stuck: dict[tuple[str, str], list[Line]] = {}
    for line in read_lines(run_dir / "metrics.jsonl"):
        if line["kind"] == "round" and line["round"] > 0 and not any(line["weights"]):
            stuck.setdefault((line["method"], line["attack"]), []).append(line)
    for (method, attack), lines in stuck.items():
        why = lines[-1]["events"][0] if lines[-1]["events"] else "nobody had weight"
        print(f"warning: {method} x {attack} took no step in {len(lines)} rounds: {why}", file=sys.stderr)


def report_if_possible(run_dir: Path) -> Path | None:
    """report.html of a run, None where the report's libraries are not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("ebscfl.report", "jinja2", "matplotlib")):
        return None
    from ebscfl.report import write_report

    return write_report(run_dir)


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Names with what they mean."""
    table = Table.grid(padding=(0, 2))
    for name, meaning in pairs.items():
        table.add_row(name, meaning)
    _stdout().print(table)


def print_datasets(states: Sequence[DataStatus]) -> None:
    """Which data sets can be used."""
    table = Table("name", "state", "title", "license", "to do", box=None)
    for state in states:
        table.add_row(state.name, state.state, state.title, state.license, state.note)
    _stdout().print(table)


def print_verified(status: DataStatus) -> None:
    """Say that a data set is whole, or raise."""
    if not status.usable:
        raise DataError(status.note or f"{status.name} is {status.state}; run ebs-cfl data fetch {status.name}")
    print_pairs({file.name: f"{file.state}  {file.path or ''}" for file in status.files} or {status.name: status.state})
    if status.note:
        print(status.note, file=sys.stderr)


def _stdout() -> Console:
    # A pipe has no width: without this, rich would cut tables at 80 columns.
    return Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 160)
