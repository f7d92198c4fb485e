"""Reads the directory of a run back into checked, frozen records.

A run that was stopped half-way leaves less: ``results.json`` may be missing, cells may have no last record, the last
line of ``metrics.jsonl`` may be cut short. All of that is accepted when ``run.json`` says that the run did not complete
and refused when it says that it did. A resumed run may write a round again; the later line counts.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebscfl.errors import DataError, UsageError

COMPLETE = frozenset({"complete", "completed", "done", "finished"})
"""Values of ``status`` in run.json under which every cell must be there."""

NO_ATTACK = "none"


@dataclass(frozen=True)
class RunInfo:
    """run.json: what ran, where, and how to run it again."""

    run_id: str
    preset: str
    seed: str
    status: str
    reproduce: str
    seconds: float | None
    facts: tuple[tuple[str, str], ...]  # the other fields, as (name, text), in file order

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return self.status in COMPLETE


@dataclass(frozen=True)
class ResultRow:
    """One line of results.json. Everything is in percent, 0..100."""

    method: str
    attack: str
    fa: float | None = None
    ma: float | None = None
    na: float | None = None
    asr: float | None = None
    air_printed: float | None = None
    air_points: float | None = None
    attacker_weight_share: float | None = None


@dataclass(frozen=True)
class RoundRecord:
    """One round of one cell; n clients, m cluster models."""

    round_id: int
    accuracy_own: float | None
    accuracy_global: float | None
    accuracy_clusters: tuple[float | None, ...]  # (m,)
    clusters: tuple[int, ...]  # (n,)
    weights: tuple[float | None, ...]  # (n,) shares of the aggregate
    backdoor: float | None
    seconds: Mapping[str, float]
    message_bytes: Mapping[str, float]
    role_seconds: Mapping[str, float]
    privacy: Mapping[str, float]  # epsilon, delta, epsilon_total, as far as recorded
    events: tuple[str, ...]
    attackers: tuple[int, ...] | None = None  # said in round 0
    client_domain: tuple[int, ...] = ()  # (n,) said in round 0


@dataclass(frozen=True)
class CellEnd:
    """What is known of a cell only after its last round."""

    fa: float | None
    ma: float | None
    asr: float | None
    attacker_weight_share: float | None
    backdoor: float | None
    attackers: tuple[int, ...]
    client_domain: tuple[int, ...]  # (n,)
    confusion: tuple[tuple[float, ...], ...]  # (classes, classes), rows are the true class
    purity: float | None  # share of honest clients whose domain is the most frequent one in their cluster
    seconds: float | None


@dataclass(frozen=True)
class Cell:
    """One method under one attack: its rounds in order and, once it finished, its end."""

    method: str
    attack: str
    rounds: tuple[RoundRecord, ...]
    end: CellEnd | None

    @property
    def num_clients(self) -> int:
        """Clients in this cell (0 before the first round is written)."""
        return max((len(r.weights) for r in self.rounds), default=0)

    @property
    def attackers(self) -> frozenset[int]:
        """Client ids under the adversary's control, as far as known."""
        return frozenset(self._known_attackers or ())

    @property
    def attackers_known(self) -> bool:
        """Whether this cell has said who attacks: in its round 0 or at its end."""
        return self._known_attackers is not None

    @property
    def client_domain(self) -> tuple[int, ...]:
        """(n,) the domain of every client, empty where the cell has not said it."""
        return (
            self.end.client_domain if self.end else next((r.client_domain for r in self.rounds if r.client_domain), ())
        )

    @property
    def _known_attackers(self) -> tuple[int, ...] | None:
        if self.end:
            return self.end.attackers
        return next((r.attackers for r in self.rounds if r.attackers is not None), None)


@dataclass(frozen=True)
class RunData:
    """Everything a report shows."""

    info: RunInfo
    config: str  # the text of config.toml
    evaluation: str  # which accuracy FA, MA and NA are taken from: "own", "global", or empty where the config is silent
    results: tuple[ResultRow, ...]
    cells: tuple[Cell, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods in the order they first appear."""
        return tuple(dict.fromkeys([r.method for r in self.results] + [c.method for c in self.cells]))

    @property
    def attacks(self) -> tuple[str, ...]:
        """Attacks in the order they first appear, the run without attack last."""
        seen = dict.fromkeys([r.attack for r in self.results] + [c.attack for c in self.cells])
        return (*(a for a in seen if a != NO_ATTACK), *(a for a in seen if a == NO_ATTACK))

    def cell(self, method: str, attack: str) -> Cell | None:
        """The cell of that name, if it has records."""
        return next((c for c in self.cells if (c.method, c.attack) == (method, attack)), None)

    def result(self, method: str, attack: str) -> ResultRow | None:
        """The final numbers of a cell, if it has any."""
        return next((r for r in self.results if (r.method, r.attack) == (method, attack)), None)


def load_run(run_dir: Path) -> RunData:
    """Read and check the run in ``run_dir``.

    Raises `UsageError` if that is no run directory and `DataError`, naming the file, if one of its files is bad.
    """
    if not run_dir.is_dir():
        raise UsageError(f"{run_dir} is not a directory; give the directory of a run, for example runs/<run_id>")
    if not (run_dir / "run.json").is_file():
        raise UsageError(f"{run_dir} holds no run: run.json is missing in it")
    info = _read_info(run_dir / "run.json")
    cells = _read_metrics(run_dir / "metrics.jsonl", partial=not info.complete)
    results_path = run_dir / "results.json"
    if results_path.exists() or info.complete:
        results = _read_results(results_path)
    else:
        results = tuple(_row_of_cell(cell) for cell in cells)
    config = _read_config(run_dir / "config.toml")
    return RunData(info, config, str(tomllib.loads(config).get("evaluation", "")), results, cells)


def _row_of_cell(cell: Cell) -> ResultRow:
    """What a partial run knows of a cell: the numbers that need no other cell."""
    row = ResultRow(cell.method, cell.attack)
    if cell.end is None:
        return row
    end = cell.end
    return replace(row, fa=end.fa, ma=end.ma, asr=end.asr, attacker_weight_share=_percent(end.attacker_weight_share))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the run directory is incomplete") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: {error}") from error


def _read_config(path: Path) -> str:
    text = _read_text(path)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is not valid TOML: {error}") from error
    return text


def _parse_object(text: str, where: str) -> _Fields:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where} is not valid JSON: {error}") from error
    return _Fields(value, where)


def _read_info(path: Path) -> RunInfo:
    fields = _parse_object(_read_text(path), str(path))
    named = ("run_id", "preset", "seed", "status", "reproduce", "seconds")
    return RunInfo(
        run_id=fields.text("run_id"),
        preset=fields.text("preset", "-"),
        seed=str(fields.raw.get("seed", "-")),
        status=fields.text("status"),
        reproduce=fields.text("reproduce", ""),
        seconds=fields.number("seconds"),
        facts=tuple(
            (key, value if isinstance(value, str) else json.dumps(value))
            for key, value in fields.raw.items()
            if key not in named and value not in (None, "")
        ),
    )


def _read_results(path: Path) -> tuple[ResultRow, ...]:
    fields = _parse_object(_read_text(path), str(path))
    numbers = ("fa", "ma", "na", "asr", "air_printed", "air_points", "attacker_weight_share")
    rows = []
    for i, item in enumerate(fields.items("results")):
        row = _Fields(item, f"{path}, results[{i}]")
        rows.append(ResultRow(row.text("method"), row.text("attack"), *(row.number(key) for key in numbers)))
    return tuple(rows)


def _read_metrics(path: Path, *, partial: bool) -> tuple[Cell, ...]:
    rounds: dict[tuple[str, str], dict[int, RoundRecord]] = {}
    ends: dict[tuple[str, str], CellEnd] = {}
    # A run stopped before its first line has no file yet.
    lines = [] if partial and not path.exists() else _read_text(path).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = _parse_object(line, f"{path}, line {number}")
        except DataError:
            if partial and number == len(lines):
                break  # a run that was killed may leave its last line unfinished
            raise
        key = (fields.text("method"), fields.text("attack"))
        kind = fields.text("kind")
        if kind == "round":
            record = _round_record(fields)
            rounds.setdefault(key, {})[record.round_id] = record
        elif kind == "cell":
            ends[key] = _cell_end(fields)
        else:
            raise DataError(f"{fields.where}: kind is {kind!r}, expected 'round' or 'cell'")
    cells = []
    for key in dict.fromkeys([*rounds, *ends]):
        cell = Cell(*key, tuple(r for _, r in sorted(rounds.get(key, {}).items())), ends.get(key))
        _check_cell(cell, path)
        cells.append(cell)
    return tuple(cells)


def _round_record(fields: _Fields) -> RoundRecord:
    record = RoundRecord(
        round_id=fields.integer("round"),
        accuracy_own=fields.number("accuracy_own"),
        accuracy_global=fields.number("accuracy_global"),
        accuracy_clusters=fields.numbers("accuracy_clusters"),
        clusters=fields.integers("clusters"),
        weights=fields.numbers("weights"),
        backdoor=fields.number("backdoor"),
        seconds=fields.mapping("seconds"),
        message_bytes=fields.mapping("bytes"),
        role_seconds=fields.mapping("role_seconds"),
        privacy=fields.mapping("dp"),
        events=tuple(str(event) for event in fields.items("events")),
        attackers=fields.integers("attackers") if "attackers" in fields.raw else None,
        client_domain=fields.integers("client_domain"),
    )
    if len(record.clusters) != len(record.weights):
        sizes = f"{len(record.clusters)} clusters but {len(record.weights)} weights"
        raise DataError(f"{fields.where}: {sizes}; both have one entry per client")
    if any(cluster < 0 for cluster in record.clusters):
        raise DataError(f"{fields.where}: clusters count from 0, found {min(record.clusters)}")
    return record


def _cell_end(fields: _Fields) -> CellEnd:
    where = f"{fields.where}, confusion"
    confusion = []
    for row in fields.items("confusion"):
        counts = _Fields({"row": row}, where).numbers("row")
        confusion.append(tuple(count or 0.0 for count in counts))
    if any(len(row) != len(confusion) for row in confusion):
        raise DataError(f"{where}: must be a square matrix of counts")
    return CellEnd(
        fa=fields.number("fa"),
        ma=fields.number("ma"),
        asr=fields.number("asr"),
        attacker_weight_share=fields.number("attacker_weight_share"),
        backdoor=fields.number("backdoor"),
        attackers=fields.integers("attackers"),
        client_domain=fields.integers("client_domain"),
        confusion=tuple(confusion),
        purity=fields.number("purity"),
        seconds=fields.number("seconds"),
    )


def _check_cell(cell: Cell, path: Path) -> None:
    """Every round and the end of a cell must speak of the same clients."""
    name, n = f"{path}, cell {cell.method} x {cell.attack}", cell.num_clients
    if any(len(r.weights) not in (0, n) for r in cell.rounds):
        raise DataError(f"{name}: the number of clients changes between rounds")
    if n == 0:
        return
    domains = cell.client_domain
    if len(domains) != n and (cell.end is not None or domains):
        raise DataError(f"{name}: client_domain has {len(domains)} entries for {n} clients")
    if any(not 0 <= attacker < n for attacker in cell.attackers):
        raise DataError(f"{name}: attackers must be client ids below {n}")


class _Fields:
    """A JSON object with typed reads; a wrong type is a `DataError` that says where and which field."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise DataError(f"{where} must hold a JSON object, not {type(value).__name__}")
        self.raw: dict[str, Any] = value
        self.where = where

    def _wrong(self, key: str, expected: str) -> DataError:
        found = "missing" if key not in self.raw else repr(self.raw[key])[:60]
        return DataError(f"{self.where}: {key} must be {expected}, it is {found}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self.raw.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def integer(self, key: str) -> int:
        value = self.raw.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "an integer")
        return value

    def number(self, key: str) -> float | None:
        """A finite number; None where the file has null, nothing, NaN or infinity (a diverged model)."""
        return self._as_number(key, self.raw.get(key))

    def _as_number(self, key: str, value: object) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            raise self._wrong(key, "a number below 1e308") from None

    def items(self, key: str) -> list[Any]:
        value = self.raw.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return value

    def numbers(self, key: str) -> tuple[float | None, ...]:
        return tuple(self._as_number(key, value) for value in self.items(key))

    def integers(self, key: str) -> tuple[int, ...]:
        values = self.items(key)
        if any(isinstance(value, bool) or not isinstance(value, int) for value in values):
            raise self._wrong(key, "a list of integers")
        return tuple(values)

    def mapping(self, key: str) -> dict[str, float]:
        """Names to finite numbers; entries without a number are left out."""
        value = self.raw.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(key, "an object of numbers")
        numbers = {str(name): self._as_number(key, entry) for name, entry in value.items()}
        return {name: number for name, number in numbers.items() if number is not None}
