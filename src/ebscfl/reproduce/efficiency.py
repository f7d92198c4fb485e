"""The paper's efficiency figures: client bytes against n, m, t and l, and server time against FedAvg.

Bytes are codec sizes of the very messages a round sends, made with zeros inside; a test compares them with real rounds.
The paper's "794 KB" is the MLP 784-256-10 without bias: 203 264 float32, 794 KiB.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ebscfl.errors import ConfigError
from ebscfl.paper import PaperParameters
from ebscfl.plain import fedavg_round
from ebscfl.protocol import codec
from ebscfl.protocol.messages import ClientKeyPackage, EncodedUpdate, Message, PlainUpload, RoundKey, SealedUpload
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.sealed import parameters as sealed_parameters
from ebscfl.protocol.sealed.words import to_wire
from ebscfl.reproduce import plots, secure_sums

MODEL_DIM = 784 * 256 + 256 * 10
KIB_WORDS = 256
"""float32 in a KiB."""
FIXED_CLIENTS = 20
SEGMENT = 2
TAG = bytes(codec.RUN_TAG_SIZE)

Row = dict[str, Any]


def client_bytes(protocol: str, *, clients: int, clusters: int, dim: int, segment: int = SEGMENT) -> dict[str, int]:
    """What one client sends and receives in a round, and what it was dealt once (``setup``), in bytes."""
    if protocol == "plain":
        return _sizes([PlainUpload(0, 0, np.zeros(dim, dtype=np.float32))])
    if protocol == "sealed":
        params = sealed_parameters(Setup("sealed", clients, clusters, dim))
        words = to_wire(np.zeros((2, params.width), dtype=params.field.dtype))
        guard = to_wire(np.zeros(params.num_clusters, dtype=params.field.dtype))
        blind = to_wire(np.zeros(2, dtype=params.field.dtype))
        return _sizes([SealedUpload(0, words, guard, blind)])
    if protocol != "paper":
        raise ConfigError(f"client bytes are known of plain, sealed and paper, not of {protocol!r}")
    sizes = PaperParameters(num_clients=clients, num_clusters=clusters, dim=dim, segment_len=segment)
    vector, width = np.zeros(sizes.upload_shape), sizes.width
    keys = ClientKeyPackage(np.zeros((width, sizes.update_width)), np.zeros((clusters, segment, width)))
    return _sizes([EncodedUpdate(0, vector)], [RoundKey(0, vector)], [keys])


def _sizes(up: list[Message], down: list[Message] | None = None, once: list[Message] | None = None) -> dict[str, int]:
    def total(messages: list[Message] | None) -> int:
        return sum(len(codec.encode(message, TAG)) for message in messages or [])

    return {"upload": total(up), "download": total(down), "setup": total(once)}


def _bytes_rows(protocols: tuple[str, ...], **sweep: Any) -> list[Row]:
    """Rows over the one argument that is a list."""
    (name, values), *_ = [(key, value) for key, value in sweep.items() if isinstance(value, list)]
    rows = []
    for value in values:
        fixed = sweep | {name: value}
        for protocol in protocols:
            row: Row = {"protocol": protocol, "varied": name, **fixed, **client_bytes(protocol, **fixed)}
            rows.append(row | {"round_bytes": row["upload"] + row["download"]})
    return rows


def figure_communication_clients(out: Path, *, scale: str = "full", seed: int = 0) -> list[Path]:
    """Client bytes a round at 794 KB: against n, m and t."""
    dim = MODEL_DIM if scale == "full" else MODEL_DIM // 16
    all_three = ("plain", "paper", "sealed")
    panels = {
        "clients": _bytes_rows(all_three, clients=[5, 10, 20, 50, 100], clusters=2, dim=dim),
        "clusters": _bytes_rows(all_three, clients=FIXED_CLIENTS, clusters=[1, 2, 3, 4, 5, 8, 10], dim=dim),
        "segment": _bytes_rows(all_three, clients=FIXED_CLIENTS, clusters=2, dim=dim, segment=[2, 4, 8, 16, 32, 64]),
    }
    figure, axes = plots.new_figure(3)
    titles = {
        "clients": ("m = 2", "clients n"),
        "clusters": (f"n = {FIXED_CLIENTS}", "clusters m"),
        "segment": (f"n = {FIXED_CLIENTS}, m = 2", "segment length t"),
    }
    for axis, (name, rows) in zip(axes, panels.items(), strict=True):
        for protocol in all_three:
            mine = [row for row in rows if row["protocol"] == protocol]
            plots.line(axis, protocol, [(row[name], row["round_bytes"] / 1e6) for row in mine])
        paper = [row for row in rows if row["protocol"] == "paper"]
        dealt = [(row[name], row["setup"] / 1e6) for row in paper]
        plots.line(axis, "paper", dealt, linestyle=":", marker="", label="EBS-CFL, keys dealt once")
        title, x = titles[name]
        plots.label(axis, f"{4 * dim / 1024:.0f} KiB model, {title}", x, "MB a client and round", log="y")
    plots.share_y(axes)
    plots.legend_below(figure, axes[0])
    rows = [row for panel in panels.values() for row in panel]
    name = "figure-communication-clients"
    return [*plots.save(figure, out, name), plots.write_csv(rows, out, name)]


def figure_communication_model(out: Path, *, scale: str = "full", seed: int = 0) -> list[Path]:
    """Client bytes a round at n = 20: against l, one line a number of clusters."""
    sizes = [10, 50, 100, 200, 400, 800] if scale == "full" else [10, 50]
    rows: list[Row] = []
    figure, axes = plots.new_figure(2)
    shades = {1: 1.0, 2: 0.75, 5: 0.5, 10: 0.3}
    for axis, protocol in zip(axes, ("paper", "sealed"), strict=True):
        for m, strength in shades.items():
            mine = _bytes_rows((protocol,), clients=FIXED_CLIENTS, clusters=m, dim=[s * KIB_WORDS for s in sizes])
            points = [(row["dim"] * 4 / 1024, row["round_bytes"] / 1e6) for row in mine]
            plots.line(axis, protocol, points, alpha=strength, label=f"m = {m}")
            rows += mine
        plain = _bytes_rows(("plain",), clients=FIXED_CLIENTS, clusters=1, dim=[s * KIB_WORDS for s in sizes])
        points = [(row["dim"] * 4 / 1024, row["round_bytes"] / 1e6) for row in plain]
        plots.line(axis, "plain", points, label="plain update")
        axis.legend(fontsize=8, frameon=False)
        title = f"{plots.TITLES[protocol]}, n = {FIXED_CLIENTS}"
        plots.label(axis, title, "model, KiB of float32", "MB a client and round", log="xy")
    plots.share_y(axes)
    name = "figure-communication-model"
    return [*plots.save(figure, out, name), plots.write_csv(rows + plain, out, name)]


def fedavg_seconds(clients: int, dim: int, repeats: int) -> float:
    """CPU seconds of the plain mean over float32 updates, the floor of the figure."""
    updates = np.ascontiguousarray(secure_sums.example_updates(clients, dim, 0))
    loops = max(1, 2_000_000 // updates.size)  # small means are repeated until the meter sees them
    spent = []
    for _ in range(repeats + 1):
        started = time.process_time()
        for _ in range(loops):
            fedavg_round(updates)
        spent.append((time.process_time() - started) / loops)
    return median(spent[1:])


def figure_computation(out: Path, *, scale: str = "full", seed: int = 0) -> list[Path]:
    """Server CPU time a round at m = 2: n = 5 against l, and l = 10 KB against n, beside FedAvg and plain RFCA."""
    full = scale == "full"
    sizes = [10, 20, 50, 100, 200, 400] if full else [10, 20]
    counts = [5, 10, 20, 50, 100] if full else [5, 10]
    repeats = 5 if full else 1
    panels = {"dim": [(5, s * KIB_WORDS) for s in sizes], "clients": [(n, 10 * KIB_WORDS) for n in counts]}
    rows: list[Row] = []
    for varied, points in panels.items():
        for n, dim in points:
            for protocol in ("plain", "paper", "sealed"):
                row = secure_sums.measure(protocol, clients=n, dim=dim, clusters=2, repeats=repeats, seed=seed)
                rows.append({"varied": varied, **row})
            floor = {"varied": varied, "protocol": "fedavg", "clients": n, "dim": dim, "clusters": 1}
            rows.append(floor | {"server_cpu_s": fedavg_seconds(n, dim, repeats)})
    figure, axes = plots.new_figure(2)
    for axis, varied in zip(axes, panels, strict=True):
        factor = 4 / 1024 if varied == "dim" else 1
        for protocol in ("fedavg", "plain", "paper", "sealed"):
            mine = [row for row in rows if row["varied"] == varied and row["protocol"] == protocol]
            plots.line(axis, protocol, [(row[varied] * factor, 1e3 * row["server_cpu_s"]) for row in mine])
        title, x = ("n = 5", "model, KiB") if varied == "dim" else ("l = 10 KiB", "clients n")
        plots.label(axis, f"m = 2, {title}", x, "server CPU ms a round", log="xy")
    plots.legend_below(figure, axes[0])
    name = "figure-computation"
    return [*plots.save(figure, out, name), plots.write_csv(rows, out, name)]
