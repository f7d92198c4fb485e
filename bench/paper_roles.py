"""Seconds, bytes and memory of `paper` through its roles: `python bench/paper_roles.py [--quick] [--out FILE]`.

Every message crosses the codec. Each figure is a minimum over rounds, once as time on the wall and once as processor
time of the thread: on a busy machine only the second says what the work costs. Growth with n and with l is the
least-squares slope of log value over log size; plain RFCA, which is certainly linear, is fitted beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ebscfl.plain import rfca_round
from ebscfl.protocol.measure import example_round, relative_errors
from ebscfl.protocol.run import Session
from ebscfl.rng import root_from_seed

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
TARGETS = {  # (l, figure) -> milliseconds
    (20_000, "client_encode"): 0.2,
    (20_000, "server"): 12.0,
    (200_000, "server"): 150.0,
    (200_000, "kdc"): 1500.0,
}


def measure(n: int, dim: int, rounds: int) -> dict[str, Any]:
    """One session of ``rounds`` rounds for each clock; m = 2, t = 2, one client a group."""
    root = root_from_seed(1)
    updates, clusters, server_updates = example_round(n, 2, dim, root)
    session = Session(
        "paper", num_clients=n, num_clusters=2, dim=dim, root=root, options={"segment": 2}, keep_transcript=False
    )
    held: list[int] = []
    finish = session.server.finish

    def weigh() -> Any:
        keys = sum(array.nbytes for array in session.server.secrets())
        held.append(keys + sum(upload.nbytes for upload in session.server._uploads.values()))  # type: ignore[attr-defined]
        return finish()

    session.server.finish = weigh  # type: ignore[method-assign]
    started = time.perf_counter()
    session.round(updates, clusters, server_updates)
    row: dict[str, Any] = {"clients": n, "dim": dim, "first_round_s": time.perf_counter() - started}
    for name, clock in CLOCKS.items():
        session.bus.clock = clock
        results = [session.round(updates, clusters, server_updates) for _ in range(rounds)]
        row[f"{name}_ms"] = {
            step: 1000 * min(r.seconds[step] for r in results) for step in ("client_encode", "client", "server", "kdc")
        }
        timed = []
        for _ in range(max(3, rounds)):
            begin = clock()
            want, _ = rfca_round(updates, clusters, server_updates)
            timed.append(clock() - begin)
        row[f"{name}_ms"]["plain_rfca"] = 1000 * min(timed)
    last = results[-1]
    row["relative_error"] = max(relative_errors(last.aggregates, want))
    row["bytes"] = {name: size // n for name, size in last.bytes.items()}  # per client and round
    row["server_memory_bytes"] = max(held)
    return row


def slopes(rows: list[dict[str, Any]], key: str) -> dict[str, float]:
    """Fitted exponents over ``key``."""
    sizes = np.log([row[key] for row in rows])

    def fit(values: list[float]) -> float:
        return round(float(np.polyfit(sizes, np.log(values), 1)[0]), 3)

    found = {
        f"{step}_{clock}": fit([row[f"{clock}_ms"][step] for row in rows])
        for step in ("server", "client_encode", "plain_rfca", "kdc")
        for clock in CLOCKS
    }
    return found | {
        "server_memory": fit([row["server_memory_bytes"] for row in rows]),
        "client_bytes": fit([row["bytes"]["client_upload"] for row in rows]),
    }


def machine() -> dict[str, Any]:
    """What the figures depend on; no names, no paths."""
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main(arguments: list[str]) -> int:
    """Measure and print, or write, one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the standard size only")
    parser.add_argument("--out", type=Path, help="write here instead of standard output")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"machine_before": machine(), "clusters": 2, "segment": 2, "group": 1}
    report["standard"] = [measure(20, 20_000, 20)]
    if not options.quick:
        report["standard"].append(measure(20, 200_000, 4))
        rows = [measure(n, 20_000, 5) for n in (10, 20, 40, 80, 160)]
        report["clients"] = {"slopes": slopes(rows, "clients"), "rows": rows}
        rows = [measure(20, dim, 3) for dim in (20_000, 50_000, 100_000, 200_000, 400_000)]
        report["dim"] = {"slopes": slopes(rows, "dim"), "rows": rows}
    report["targets"] = [
        {"dim": row["dim"], "step": step, "target_ms": limit} | {c: round(row[f"{c}_ms"][step], 3) for c in CLOCKS}
        for row in report["standard"]
        for (dim, step), limit in TARGETS.items()
        if dim == row["dim"]
    ]
    report["machine_after"] = machine()
    text = json.dumps(report, indent=1) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
