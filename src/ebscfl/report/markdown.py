"""Results as a Markdown table: what README and docs show is rendered from committed JSON, and a test compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ebscfl.report.tables import attack_name, method_name, percent

_COLUMNS = (
    ("FA", "fa"),
    ("MA", "ma"),
    ("NA", "na"),
    ("ASR", "asr"),
    ("AIR (points)", "air_points"),
    ("AIR (printed)", "air_printed"),
    ("attackers' weight", "attacker_weight_share"),
)


def results_table(rows: Sequence[Mapping[str, Any]], *, attacks_only: bool = True) -> str:
    """One line per method and attack, in the order of ``rows``; the runs without attack are in the column NA."""
    head = ["method", "attack", *(title for title, _ in _COLUMNS)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 2 + "---:|" * len(_COLUMNS)]
    for row in rows:
        if attacks_only and row["attack"] == "none":
            continue
        cells = [method_name(row["method"]), attack_name(row["attack"]), *(percent(row[key]) for _, key in _COLUMNS)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
