"""Numbers as text, and the headline table: pure functions that the report and the command line share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ebscfl.report.load import NO_ATTACK, RunData

MISSING = "-"

METHOD_NAMES = {
    "fedavg": "FedAvg",
    "ifca": "IFCA",
    "fltrust": "FLTrust",
    "rfca": "RFCA",
    "rfca-h": "RFCA-H",
    "median": "Median",
    "trimmed-mean": "Trimmed mean",
    "krum": "Krum",
    "multi-krum": "Multi-Krum",
}


def method_name(method: str) -> str:
    """A method as people write it; an unknown one stays as it is."""
    return METHOD_NAMES.get(method.replace("_", "-"), method)


def attack_name(attack: str) -> str:
    """An attack as words: ``label-flip`` is "label flip", ``none`` is "no attack"."""
    return "no attack" if attack == NO_ATTACK else attack.replace("_", " ").replace("-", " ")


def number(value: float | None, digits: int = 2) -> str:
    """``value`` with a fixed number of decimals; "-" for what is missing or not finite."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0 turns a rounded -0.0 into 0.0


def percent(value: float | None, digits: int = 2) -> str:
    """A percentage given as 0..100, without the sign (the column says it)."""
    return number(value, digits)


def share_percent(value: float | None, digits: int = 2) -> str:
    """A share given as 0..1, as a percentage without the sign."""
    return number(None if value is None else 100.0 * value, digits)


def duration(seconds: float | None) -> str:
    """Seconds as "0.42 s", "12.3 s", "2 min 05 s" or "3 h 07 min"."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 9.995:
        return f"{number(seconds)} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def moment(text: str | None) -> str:
    """An ISO time to the minute, in UTC where it has an offset; other text as it is."""
    try:
        when = datetime.fromisoformat(text or "")
    except ValueError:
        return text or MISSING
    return f"{when:%Y-%m-%d %H:%M}" if when.tzinfo is None else f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def byte_size(count: float | None) -> str:
    """Bytes with a binary unit: "512 B", "1.50 KiB", "794.00 KiB"."""
    if count is None or not math.isfinite(count):
        return MISSING
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.2f} {unit}"
    return f"{count / 1024:.2f} TiB"


@dataclass(frozen=True)
class Column:
    """One column of the headline table."""

    key: str
    label: str
    better: Literal["high", "low"]
    format: Callable[[float | None], str]


COLUMNS = (
    Column("fa", "FA %", "high", percent),
    Column("ma", "MA %", "high", percent),
    Column("na", "NA %", "high", percent),
    Column("asr", "ASR %", "low", percent),
    Column("air_points", "AIR points", "low", percent),
    Column("air_printed", "AIR printed %", "low", percent),
    Column("attacker_weight_share", "Attacker weight %", "low", percent),
    Column("backdoor", "Backdoor %", "low", percent),
    Column("seconds", "Time", "low", duration),
)


@dataclass(frozen=True)
class Entry:
    """One number of the table, ready to show."""

    column: Column
    value: float | None
    text: str
    best: bool


@dataclass(frozen=True)
class Row:
    """One method under one attack."""

    method: str
    note: str  # empty for a finished cell
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Group:
    """The methods under one attack: what is compared with each other."""

    attack: str
    rows: tuple[Row, ...]


def headline(run: RunData) -> tuple[Group, ...]:
    """The final numbers, one group an attack; "best" is best of its column within the group."""
    keys = [column for column in COLUMNS if column.key != "backdoor" or _has_backdoor(run)]
    groups = []
    for attack in run.attacks:
        methods = [m for m in run.methods if run.result(m, attack) or run.cell(m, attack)]
        values = {c.key: [_value(run, m, attack, c.key) for m in methods] for c in keys}
        # Without attackers an attack's number says nothing about a method: nobody is best at it.
        ranked = [c for c in keys if attack != NO_ATTACK or c.key in ("fa", "ma", "na", "seconds")]
        best = {c.key: best_of(values[c.key], c) if c in ranked else frozenset() for c in keys}
        rows = [
            Row(
                method,
                _note(run, method, attack),
                tuple(Entry(c, values[c.key][i], c.format(values[c.key][i]), i in best[c.key]) for c in keys),
            )
            for i, method in enumerate(methods)
        ]
        groups.append(Group(attack, tuple(rows)))
    return tuple(groups)


def best_of(values: Sequence[float | None], column: Column) -> frozenset[int]:
    """Positions that show the best value; ties count together, and if all tie nobody is best."""
    known = {i: value for i, value in enumerate(values) if value is not None}
    if len(known) < 2:
        return frozenset()
    target = max(known.values()) if column.better == "high" else min(known.values())
    # What reads the same is the same: a difference behind the last shown decimal is no win.
    winners = frozenset(i for i, value in known.items() if column.format(value) == column.format(target))
    return frozenset() if len(winners) == len(known) else winners


def verdict(run: RunData) -> list[str]:
    """One plain sentence an attack: who ends highest and lowest."""
    sentences = []
    for attack in run.attacks:
        ranked = sorted(
            ((row.fa, row) for row in run.results if row.attack == attack and row.fa is not None),
            key=lambda pair: pair[0],
            reverse=True,
        )
        if attack == NO_ATTACK or len(ranked) < 2:
            continue
        (top, best), (low, worst) = ranked[0], ranked[-1]
        clean = f" (without attack {_with_sign(best.na)})" if best.na is not None else ""
        sentences.append(
            f"Under {attack_name(attack)}, {method_name(best.method)} ends highest at {_with_sign(top)}{clean}, "
            f"{method_name(worst.method)} lowest at {_with_sign(low)}."
        )
    return sentences


def _with_sign(value: float) -> str:
    return f"{percent(value, 1)}\N{NO-BREAK SPACE}%"


def _has_backdoor(run: RunData) -> bool:
    return any(cell.end is not None and cell.end.backdoor is not None for cell in run.cells)


def _value(run: RunData, method: str, attack: str, key: str) -> float | None:
    if key in ("seconds", "backdoor"):
        cell = run.cell(method, attack)
        return getattr(cell.end, key) if cell and cell.end else None
    row = run.result(method, attack)
    return getattr(row, key) if row else None


def _note(run: RunData, method: str, attack: str) -> str:
    cell = run.cell(method, attack)
    if cell is None or cell.end is not None:
        return ""
    last = max((r.round_id for r in cell.rounds), default=0)
    return f"stopped after round {last}"
