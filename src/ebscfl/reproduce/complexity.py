"""Table 2 of the paper, measured: growth of every cost with n, l and m beside the growth the table claims.

A sweep varies one size and keeps the others. Its exponent is the slope of log cost over log size, by least squares over
the upper half of the sweep (small sizes are all constants). The claim's exponent is the slope of the claimed expression
over the same points, so that a claim like nl + s n^2 is not read as n^2 where nl leads. s is a key, 8 words.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ebscfl.errors import ConfigError
from ebscfl.reproduce import plots, secure_sums

Row = dict[str, Any]
Claim = Callable[[float, float, float], float]

KEY_WORDS = 8.0
COSTS = {
    "client_bytes": "client bytes, both ways",
    "server_bytes": "server bytes, both ways",
    "client_cpu_s": "client CPU",
    "server_cpu_s": "server CPU",
}
BASE = {"clients": 20, "dim": 20_000, "clusters": 1}


def _root(n: float) -> float:
    return math.sqrt(n * math.log(n))


# Costs as functions of (n, l, m), l written d: Table 2 of the paper. It lacks SecAgg+ and LightSecAgg: from their own
# papers.
CLAIMS: dict[str, dict[str, tuple[str, Claim]]] = {
    "secagg": {
        "client_bytes": ("l + sn", lambda n, d, m: d + KEY_WORDS * n),
        "server_bytes": ("nl + sn²", lambda n, d, m: n * d + KEY_WORDS * n * n),
        "client_cpu_s": ("nl + sn²", lambda n, d, m: n * d + KEY_WORDS * n * n),
        "server_cpu_s": ("n²l", lambda n, d, m: n * n * d),
    },
    "secagg-plus": {
        "client_bytes": ("l + s log n", lambda n, d, m: d + KEY_WORDS * math.log(n)),
        "server_bytes": ("n(l + s log n)", lambda n, d, m: n * (d + KEY_WORDS * math.log(n))),
        "client_cpu_s": ("l log n + log² n", lambda n, d, m: d * math.log(n) + math.log(n) ** 2),
        "server_cpu_s": ("n(l log n + log² n)", lambda n, d, m: n * (d * math.log(n) + math.log(n) ** 2)),
    },
    "ccesa": {
        "client_bytes": ("l + s√(n log n)", lambda n, d, m: d + KEY_WORDS * _root(n)),
        "server_bytes": ("nl + sn√(n log n)", lambda n, d, m: n * d + KEY_WORDS * n * _root(n)),
        "client_cpu_s": ("l√(n log n) + sn log n", lambda n, d, m: d * _root(n) + KEY_WORDS * n * math.log(n)),
        "server_cpu_s": ("nl log n", lambda n, d, m: n * d * math.log(n)),
    },
    "fastsecagg": {
        "client_bytes": ("l + n", lambda n, d, m: d + n),
        "server_bytes": ("nl + n²", lambda n, d, m: n * d + n * n),
        "client_cpu_s": ("l log n", lambda n, d, m: d * math.log(n)),
        "server_cpu_s": ("l log n", lambda n, d, m: d * math.log(n)),
    },
    "lightsecagg": {
        "client_bytes": ("l", lambda n, d, m: d),
        "server_bytes": ("nl", lambda n, d, m: n * d),
        "client_cpu_s": ("l log n", lambda n, d, m: d * math.log(n)),
        "server_cpu_s": ("l log n", lambda n, d, m: d * math.log(n)),
    },
    "paper": {
        "client_bytes": ("ml + m²", lambda n, d, m: m * d + m * m),
        "server_bytes": ("nml + n", lambda n, d, m: n * m * d + n),
        "client_cpu_s": ("m²l", lambda n, d, m: m * m * d),
        "server_cpu_s": (
            "m²(nml + nm² + n² + nl log n)",
            lambda n, d, m: m * m * (n * m * d + n * m * m + n * n + n * d * math.log(n)),
        ),
    },
    "sealed": {
        "client_bytes": ("ml", lambda n, d, m: m * d),
        "server_bytes": ("nml", lambda n, d, m: n * m * d),
        "client_cpu_s": ("ml", lambda n, d, m: m * d),
        "server_cpu_s": ("nml", lambda n, d, m: n * m * d),
    },
}


@dataclass(frozen=True)
class Sweep:
    """One size varied; a protocol that cannot carry a point is left out there."""

    varied: str
    values: tuple[int, ...]
    dropouts: float = 0.1

    def points(self) -> list[dict[str, int]]:
        """The sizes of every point."""
        return [BASE | {self.varied: value} for value in self.values]


FULL = (
    Sweep("clients", (10, 20, 50, 100, 200, 500)),
    Sweep("dim", (10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000)),
    Sweep("clusters", (1, 2, 5, 10)),
)
SMOKE = (Sweep("clients", (10, 20)), Sweep("dim", (1_000, 2_000)), Sweep("clusters", (1, 2)))
BASE_OF_CLIENTS = 10_000
"""l of the sweep over n: FastSecAgg and LightSecAgg relay n times their shares of it."""
RELAY_WORDS = 150_000_000
"""Shares of all clients for all, in words, above which a coded protocol is left out: they lie in memory twice."""


def sweep_rows(sweeps: Sequence[Sweep], *, seed: int = 0, repeats: int = 3) -> list[Row]:
    """Every protocol at every point it can carry."""
    rows = []
    for sweep in sweeps:
        for point in sweep.points():
            if sweep.varied == "clients":
                point = point | {"dim": min(BASE_OF_CLIENTS, point["dim"])}
            for protocol in ("plain", *CLAIMS):
                share = 0.0 if protocol == "paper" else sweep.dropouts  # its round restarts without them
                if not _carries(protocol, point):
                    continue
                big = point["clients"] * point["dim"] * point["clusters"] >= 4_000_000 or point["clients"] >= 200
                row = secure_sums.measure(
                    protocol,
                    clients=point["clients"],
                    dim=point["dim"],
                    clusters=point["clusters"],
                    dropouts=share,
                    repeats=1 if big else repeats,
                    seed=seed,
                )
                row["client_bytes"] = row["client_upload_bytes"] + row["client_download_bytes"]
                row["server_bytes"] = row["server_download_bytes"] + row["server_upload_bytes"]
                rows.append({"varied": sweep.varied, **row})
    return rows


def _carries(protocol: str, point: dict[str, int]) -> bool:
    n, width = point["clients"], point["dim"] * point["clusters"]
    if protocol == "paper":
        return n * width <= secure_sums.PAPER_KEY_WORDS
    if protocol == "lightsecagg":
        return 5 * n * width <= RELAY_WORDS
    return protocol != "fastsecagg" or 2 * n * width <= RELAY_WORDS


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Exponent of y over x on the upper half of the points (at least two)."""
    pairs = sorted(points)
    if len(pairs) < 2:
        raise ConfigError("an exponent needs two points")
    upper = pairs[-max(2, math.ceil(len(pairs) / 2)) :]
    return float(np.polyfit([math.log(x) for x, _ in upper], [math.log(y) for _, y in upper], 1)[0])


def exponents(rows: Sequence[Row]) -> list[Row]:
    """Measured and claimed exponent of every protocol, cost and size."""
    out = []
    for protocol, costs in CLAIMS.items():
        for cost, (text, claim) in costs.items():
            line: Row = {"protocol": protocol, "cost": cost, "claim": text}
            for varied in ("clients", "dim", "clusters"):
                mine = [row for row in rows if row["protocol"] == protocol and row["varied"] == varied]
                if len(mine) < 2:
                    line |= {f"{varied}_measured": None, f"{varied}_claimed": None}
                    continue
                line[f"{varied}_measured"] = slope([(row[varied], row[cost]) for row in mine])
                # The comparators hide a cluster in slots, which makes l into m l.
                slots = 1 if protocol in ("paper", "sealed") else 0
                line[f"{varied}_claimed"] = slope([(row[varied], _claimed(claim, row, slots)) for row in mine])
            out.append(line)
    return out


def _claimed(claim: Claim, row: Row, has_clusters: int) -> float:
    n, d, m = float(row["clients"]), float(row["dim"]), float(row["clusters"])
    return claim(n, d, m) if has_clusters else claim(n, d * m, 1.0)


def markdown(lines: Sequence[Row]) -> str:
    """Table 2 with exponents in n, l and m: measured (claimed)."""
    head = "| protocol | cost | claim | n | l | m |\n|---|---|---|---|---|---|\n"

    def cell(line: Row, varied: str) -> str:
        measured, claimed = line[f"{varied}_measured"], line[f"{varied}_claimed"]
        return "—" if measured is None else f"{measured:.2f} ({claimed:.2f})"

    return head + "".join(
        f"| {plots.TITLES[line['protocol']]} | {COSTS[line['cost']]} | {line['claim']} | "
        f"{cell(line, 'clients')} | {cell(line, 'dim')} | {cell(line, 'clusters')} |\n"
        for line in lines
    )


def draw(rows: Sequence[Row], out: Path, name: str) -> list[Path]:
    """Client bytes, client CPU and server CPU against n and l, all protocols."""
    figure, axes = plots.new_figure(4, height=3.8)
    views = (
        ("clients", "client_cpu_s", "client CPU ms", 1e3),
        ("clients", "server_cpu_s", "server CPU ms", 1e3),
        ("dim", "client_cpu_s", "client CPU ms", 1e3),
        ("clients", "client_bytes", "client MB, both ways", 1e-6),
    )
    for axis, (varied, cost, text, factor) in zip(axes, views, strict=True):
        for protocol in ("plain", *CLAIMS):
            mine = [row for row in rows if row["protocol"] == protocol and row["varied"] == varied]
            if mine:
                plots.line(axis, protocol, [(row[varied], factor * row[cost]) for row in mine])
        fixed = "l = 10 000" if varied == "clients" else f"n = {BASE['clients']}"
        title = f"{fixed}, m = 1, 10 % drop out" if "cpu" in cost else f"{fixed}, m = 1"
        plots.label(
            axis,
            title,
            "clients n" if varied == "clients" else "coordinates l",
            f"{text} a round",
            log="xy" if "cpu" in cost else "x",
        )
    plots.legend_below(figure, axes[0], columns=8)
    return plots.save(figure, out, name)


def table_complexity(out: Path, *, scale: str = "full", seed: int = 0) -> list[Path]:
    """Table 2: sweeps, exponents, one table and one figure."""
    rows = sweep_rows(FULL if scale == "full" else SMOKE, seed=seed, repeats=3 if scale == "full" else 1)
    lines = exponents(rows)
    name = "table-complexity"
    paths = [*draw(rows, out, name), plots.write_csv(rows, out, name)]
    document = {"machine": platform.machine(), "seed": seed, "scale": scale, "rows": rows, "exponents": lines}
    table = out / f"{name}.md"
    table.write_text(markdown(lines))
    data = out / f"{name}.json"
    data.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    return [*paths, table, data]
