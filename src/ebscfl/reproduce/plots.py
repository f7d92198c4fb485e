"""How reproduced figures are drawn and saved: PNG, SVG and the CSV they are drawn from, the same bytes for the same
data."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ebscfl.errors import UsageError

LOOK: dict[str, tuple[str, str]] = {
    "plain": ("#6b7280", "o"),
    "fedavg": ("#9ca3af", "x"),
    "sealed": ("#0f766e", "s"),
    "paper": ("#b45309", "^"),
    "secagg": ("#b91c1c", "o"),
    "secagg-plus": ("#1d4ed8", "D"),
    "ccesa": ("#7c3aed", "v"),
    "fastsecagg": ("#db2777", "P"),
    "lightsecagg": ("#65a30d", "X"),
}
"""One color and marker a protocol, in every figure."""
TITLES = {
    "plain": "plain RFCA",
    "fedavg": "FedAvg",
    "sealed": "sealed (ours)",
    "paper": "EBS-CFL as printed",
    "secagg": "SecAgg",
    "secagg-plus": "SecAgg+",
    "ccesa": "CCESA",
    "fastsecagg": "FastSecAgg",
    "lightsecagg": "LightSecAgg",
}


def new_figure(columns: int, *, height: float = 3.6) -> tuple[Any, list[Any]]:
    """A row of panels; no window system is asked for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * columns, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, i + 1) for i in range(columns)]
    for axis in axes:
        axis.grid(True, which="major", color="#e5e7eb", linewidth=0.8)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure, axes


def line(axis: Any, name: str, points: Iterable[tuple[float, float]], **style: Any) -> None:
    """One protocol's line in its own look."""
    pairs = sorted(points)
    color, marker = LOOK.get(name, ("#111827", "."))
    settings = {"color": color, "marker": marker, "markersize": 4.5, "linewidth": 1.5, "label": TITLES.get(name, name)}
    axis.plot([x for x, _ in pairs], [y for _, y in pairs], **(settings | style))


def label(axis: Any, title: str, x: str, y: str, *, log: str = "") -> None:
    """Title, axes and which of them are logarithmic."""
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    axis.tick_params(labelsize=8)
    if "x" in log:
        axis.set_xscale("log")
    if "y" in log:
        axis.set_yscale("log")


def share_y(axes: Sequence[Any]) -> None:
    """One range of y for all panels, so that they can be compared by eye."""
    bounds = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in bounds), max(high for _, high in bounds))


def legend_below(figure: Any, axis: Any, *, columns: int = 7) -> None:
    """One legend for all panels."""
    handles, texts = axis.get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=min(columns, len(texts)), fontsize=8, frameon=False)


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """PNG and SVG without dates or random ids."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with matplotlib.rc_context({"svg.hashsalt": "ebscfl"}):
        figure.savefig(paths[0], dpi=150, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def write_csv(rows: Sequence[Mapping[str, Any]], folder: Path, name: str) -> Path:
    """The numbers behind a figure."""
    if not rows:
        raise UsageError(f"{name} has no rows")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path
