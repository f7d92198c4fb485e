"""Accuracy over rounds: one panel per setting, mean and range over the seeds, both evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ebscfl.config import NO_ATTACK
from ebscfl.report.tables import attack_name, method_name

COLORS = {
    "fedavg": "#6b7280",
    "fltrust": "#b45309",
    "ifca": "#1d4ed8",
    "rfca": "#0f766e",
    "rfca-h": "#b91c1c",
}
"""One color a method, in every figure."""
STEM = "curves"


def panels(*keys: str) -> Callable[[Mapping[str, Any], Path], list[Path]]:
    """A drawer with a row per attack and a column per setting (``keys``), on honest clients' own distributions."""

    def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
        from matplotlib.figure import Figure

        from ebscfl.reproduce import plots

        rows = [row for row in document["rows"] if row.get("variant") != "literal"]
        settings = list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))
        attacks = list(dict.fromkeys(row["attack"] for row in rows))
        attacks = [a for a in attacks if a != NO_ATTACK] + [a for a in attacks if a == NO_ATTACK]
        if not settings:
            return []
        figure = Figure(figsize=(3.6 * len(settings), 2.8 * len(attacks)), layout="constrained")
        grid = figure.subplots(len(attacks), len(settings), squeeze=False, sharey="row")
        for i, attack in enumerate(attacks):
            for k, setting in enumerate(settings):
                mine = [r for r in rows if r["attack"] == attack and tuple(r[key] for key in keys) == setting]
                _panel(grid[i][k], mine)
                named = ", ".join(f"{key} = {value}" for key, value in zip(keys, setting, strict=True))
                plots.label(grid[i][k], f"{attack_name(attack)}, {named}", "round", "accuracy, %" if k == 0 else "")
        handles, texts = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=max(1, len(texts)), fontsize=8, frameon=False)
        return plots.save(figure, folder, STEM)

    return draw


def _panel(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    axis.grid(True, color="#e5e7eb", linewidth=0.8)
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        length = min(len(row["curve_own"]) for row in mine)
        x = mine[0]["rounds"][:length]
        curves = [row["curve_own"][:length] for row in mine]
        color = COLORS.get(method, "#111827")
        axis.plot(x, [sum(c) / len(c) for c in zip(*curves, strict=True)], color=color, label=method_name(method))
        if len(curves) > 1:
            low, high = ([pick(c) for c in zip(*curves, strict=True)] for pick in (min, max))
            axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
