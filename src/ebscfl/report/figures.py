"""Which charts the page shows: for a `RunData`, the blocks of figures, each with the sentence that explains it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ebscfl.report import charts, tables
from ebscfl.report.charts import MapRow, Series
from ebscfl.report.load import NO_ATTACK, Cell, RoundRecord, RunData

MAX_COLUMNS = 240
"""Rounds drawn in a chart: more do not fit its pixels, so longer runs show every k-th round and say so."""

MAX_EVENTS = 200
"""Events listed per cell; the rest stay in metrics.jsonl."""


@dataclass(frozen=True)
class Figure:
    """One chart or, where there is nothing to draw, the reason."""

    heading: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Block:
    """Charts of one kind side by side, under a sentence that says how to read them."""

    heading: str
    explanation: str
    figures: tuple[Figure, ...]
    legend: tuple[tuple[str, str], ...] = ()  # (swatch SVG, label)


@dataclass(frozen=True)
class Tab:
    """A labelled choice and what it shows."""

    label: str
    blocks: tuple[Block, ...]
    events: tuple[tuple[str, tuple[str, ...], int], ...] = ()  # (method, lines, how many more)


def thin(rounds: Sequence[RoundRecord], limit: int = MAX_COLUMNS) -> list[RoundRecord]:
    """At most about ``limit`` rounds, evenly spaced, the last always among them."""
    step = max(1, -(-len(rounds) // limit))
    return list(rounds[(len(rounds) - 1) % step :: step]) if rounds else []


def _points(rounds: Iterable[RoundRecord], read: str) -> tuple[tuple[float, float], ...]:
    pairs = [(r.round_id, getattr(r, read)) for r in rounds]
    return tuple((float(x), float(y)) for x, y in pairs if y is not None)


def accuracy_tabs(run: RunData) -> list[Tab]:
    """One chart a method, one line an attack, seen in each of the two ways of measuring."""
    kinds = (
        (
            "accuracy_own",
            "Clients' own data",
            "Test accuracy of honest clients on data like their own, with the model of the cluster they chose; "
            "a robust method's attack lines stay close to its no-attack line.",
        ),
        (
            "accuracy_global",
            "Global test set",
            "Test accuracy on the union of all clients' test data; a single model has to serve every domain.",
        ),
    )
    order = [a for a in run.attacks if a == NO_ATTACK] + [a for a in run.attacks if a != NO_ATTACK]
    legend = tuple((charts.legend_swatch(i), tables.attack_name(a)) for i, a in enumerate(order))
    tabs = []
    for read, label, explanation in kinds:
        figures = []
        for method in run.methods:
            cells = [(i, attack, run.cell(method, attack)) for i, attack in enumerate(order)]
            series = [
                Series(tables.attack_name(attack), points, i)
                for i, attack, cell in cells
                if cell and (points := _points(thin(cell.rounds), read))
            ]
            title = f"{label}: accuracy of {tables.method_name(method)} over the rounds. " + "; ".join(
                f"{s.label} ends at {tables.percent(s.points[-1][1], 1)} %" for s in series
            )
            if series:
                svg = charts.line_chart(series, title=title, y_label="accuracy %")
                figures.append(Figure(tables.method_name(method), svg))
        if figures:
            tabs.append(Tab(label, (Block(label, explanation, tuple(figures), legend),)))
    return tabs


def attack_tab(run: RunData, attack: str) -> Tab:
    """All methods under one attack."""
    cells = [cell for method in run.methods if (cell := run.cell(method, attack)) and cell.rounds]
    blocks = [
        Block(
            "Weight of every client",
            "Each row is a client, each column a round; the stronger the color, the more this client moved the model "
            "(same scale everywhere). Attackers (▲, hatched strip) come first: a good defense leaves their rows empty.",
            tuple(_weight_figure(cell) for cell in cells),
        ),
        Block(
            "Accuracy of every cluster model",
            "Each line is one cluster's model (C0, C1 ...), tested on data of the honest clients that chose it.",
            tuple(_cluster_accuracy_figure(cell) for cell in cells),
        ),
        Block(
            "Cluster of every client",
            "Color and digit say which cluster a client claimed; rows are grouped by the true domain (D0, D1 ...) of "
            "the client's data, the right margin names where most honest ones ended. Clustering worked where every "
            "group has one color of its own.",
            tuple(_cluster_figure(cell) for cell in cells),
        ),
    ]
    if any(r.backdoor is not None for cell in cells for r in cell.rounds):
        blocks.append(
            Block(
                "Backdoor success",
                "Share of test images with the trigger that are classified as the attackers want; lower is better.",
                tuple(_backdoor_figure(cell) for cell in cells),
            )
        )
    blocks.append(
        Block(
            "Final confusion matrix",
            "Honest clients after the last round: each row shows where images of one true class end up, in percent; "
            "a good model has color on the diagonal only.",
            tuple(_confusion_figure(cell) for cell in cells),
        )
    )
    events = []
    for cell in cells:
        lines = [f"round {r.round_id}: {event}" for r in cell.rounds for event in r.events]
        if lines:
            more = len(lines) - MAX_EVENTS
            events.append((tables.method_name(cell.method), tuple(lines[:MAX_EVENTS]), max(0, more)))
    return Tab(tables.attack_name(attack), tuple(b for b in blocks if b.figures), tuple(events))


def _map_rows(cell: Cell, rounds: Sequence[RoundRecord]) -> list[MapRow]:
    """The clients of a cell by id, with the text that explains each."""
    domains: Sequence[int | None] = cell.client_domain or [None] * cell.num_clients
    rows = []
    for client in range(cell.num_clients):
        weights = [w for r in rounds if (w := r.weights[client]) is not None]
        mean = tables.share_percent(sum(weights) / len(weights)) if weights else tables.MISSING
        kind = (
            "attacker" if client in cell.attackers else "honest" if cell.attackers_known else "unknown whether attacker"
        )
        world = "" if domains[client] is None else f", domain {domains[client]}"
        title = f"client {client}, {kind}{world}: mean weight {mean} %, last cluster {rounds[-1].clusters[client]}"
        rows.append(MapRow(client, client in cell.attackers, title, domains[client]))
    return rows


def _played(cell: Cell) -> list[RoundRecord]:
    """Rounds in which clients took part (round 0 is the model before training)."""
    return thin(_all_played(cell))


def _all_played(cell: Cell) -> list[RoundRecord]:
    return [r for r in cell.rounds if r.weights and r.round_id > 0]


def _thinned(cell: Cell, rounds: Sequence[RoundRecord]) -> str:
    total = len(_all_played(cell))
    return f"{len(rounds)} of {total} rounds are drawn." if len(rounds) < total else ""


def _name(cell: Cell) -> str:
    return tables.method_name(cell.method)


def _weight_figure(cell: Cell) -> Figure:
    rounds = _played(cell)
    if not rounds:
        return Figure(_name(cell), "", "No round was finished.")
    rows = sorted(_map_rows(cell, rounds), key=lambda row: (not row.attacker, row.client))
    values = np.array([[r.weights[row.client] for r in rounds] for row in rows], dtype=np.float64)
    share = cell.end.attacker_weight_share if cell.end else None
    name = f"{_name(cell)} under {tables.attack_name(cell.attack)}"
    title = f"Weight of every client over the rounds, {name}; attackers hold {tables.share_percent(share)} % in all"
    unique = hashlib.sha256(f"{cell.method}/{cell.attack}".encode()).hexdigest()[:12]
    svg = charts.weight_map(rows, values, [r.round_id for r in rounds], name=f"weight-{unique}", title=title)
    notes = [_thinned(cell, rounds)]
    if cell.attackers:
        notes.append(f"Attackers hold {tables.share_percent(share)} % of the weight.")
    return Figure(_name(cell), svg, " ".join(note for note in notes if note))


def _cluster_accuracy_figure(cell: Cell) -> Figure:
    rounds = thin(cell.rounds)
    count = max((len(r.accuracy_clusters) for r in rounds), default=0)
    series = []
    for k in range(count):
        pairs = [(r.round_id, r.accuracy_clusters[k]) for r in rounds if k < len(r.accuracy_clusters)]
        points = tuple((float(x), float(y)) for x, y in pairs if y is not None)
        if points:
            series.append(Series(f"cluster {k}", points, k, f"C{k}"))
    if not series:
        return Figure(_name(cell), "", "No cluster accuracy was recorded.")
    title = f"Accuracy of every cluster model, {_name(cell)}. " + "; ".join(
        f"{s.label} ends at {tables.percent(s.points[-1][1], 1)} %" for s in series
    )
    note = "One model for all clients." if count == 1 else ""
    return Figure(_name(cell), charts.line_chart(series, title=title, y_label="accuracy %"), note)


def _cluster_figure(cell: Cell) -> Figure:
    rounds = _played(cell)
    if not rounds:
        return Figure(_name(cell), "", "No round was finished.")
    if all(len(set(r.clusters)) == 1 and len(r.accuracy_clusters) <= 1 for r in rounds):
        return Figure(_name(cell), "", "One model for all clients: there is nothing to choose.")
    rows = sorted(_map_rows(cell, rounds), key=lambda row: (row.domain or 0, not row.attacker, row.client))
    values = np.array([[r.clusters[row.client] for r in rounds] for row in rows], dtype=np.int64)
    title = f"Cluster every client claims over the rounds, {_name(cell)} under {tables.attack_name(cell.attack)}"
    svg = charts.cluster_map(rows, values, [r.round_id for r in rounds], title=title)
    notes = [_thinned(cell, rounds)]
    if cell.end is not None and cell.end.purity is not None:
        notes.append(
            f"Purity {tables.share_percent(cell.end.purity)} %: honest clients in a cluster mostly of their domain."
        )
    return Figure(_name(cell), svg, " ".join(note for note in notes if note))


def _backdoor_figure(cell: Cell) -> Figure:
    points = _points(thin(cell.rounds), "backdoor")
    if not points:
        return Figure(_name(cell), "", "No backdoor success was recorded.")
    title = f"Backdoor success of {_name(cell)}, ends at {tables.percent(points[-1][1], 1)} %"
    return Figure(_name(cell), charts.line_chart([Series("backdoor", points, 1)], title=title, y_label="success %"))


def _confusion_figure(cell: Cell) -> Figure:
    if cell.end is None or not cell.end.confusion:
        return Figure(_name(cell), "", "Not there yet: the cell has not finished.")
    counts = np.asarray(cell.end.confusion)
    right = 100.0 * float(np.trace(counts)) / max(float(counts.sum()), 1.0)
    title = f"Confusion matrix of honest clients, {_name(cell)}: {tables.percent(right)} % on the diagonal"
    unique = hashlib.sha256(f"{cell.method}/{cell.attack}".encode()).hexdigest()[:12]
    svg = charts.confusion_matrix(cell.end.confusion, name=f"confusion-{unique}", title=title)
    return Figure(_name(cell), svg, f"{tables.percent(right)} % on the diagonal.")
