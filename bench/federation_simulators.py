"""The two simulators on one workload, in one run: `ebs-cfl run` and `federation simulate` (Flower's runtime).

    python bench/federation_simulators.py --out results/bench/federation_simulators.json

Each is started as a user starts it, one after the other; the clock runs from start to exit. Seconds per round leave the
start-up out. Both must end with the same accuracies: exactly so under `plain`; under `sealed` up to the rounding of
uploads, whose coins come from each client's own secret.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def timed(arguments: list[str]) -> tuple[float, dict[str, Any]]:
    """Seconds from start to exit, and what --json prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    started = time.perf_counter()
    command = [sys.executable, "-m", "ebscfl.cli", *arguments, "--json"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - started, json.loads(done.stdout)


def built_in(preset: str, sets: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        seconds, _ = timed(["run", preset, *sets, "--out", f"{home}/run"])
        lines = [json.loads(line) for line in (Path(home) / "run" / "metrics.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["kind"] == "round" and line["round"] > 0]
    return {
        "seconds": round(seconds, 2),
        "seconds_per_round": round(sum(sum(line["seconds"].values()) for line in rounds) / len(rounds), 4),
        "accuracy": [line["accuracy_own"] for line in rounds],
    }


def flower(preset: str, sets: list[str], nodes: int, steps: int, protocol: str) -> dict[str, Any]:
    options = ["--nodes", str(nodes), "--steps", str(steps), "--protocol", protocol]
    seconds, document = timed(["federation", "simulate", preset, *sets, *options])
    assert document["updates_lost"] == 0, document
    return {
        "seconds": round(seconds, 2),
        "seconds_per_round": round(sum(document["seconds_per_round"]) / steps, 4),
        "accuracy": document["accuracy"],
    }


def measure(preset: str, nodes: int, steps: int, protocol: str) -> dict[str, Any]:
    common = ["--set", "eval_every=1"]
    size = [f"data.clients={nodes}", f"rounds={steps}", f"protocol={protocol}", 'methods=["rfca"]', "attacks=[]"]
    ours = built_in(preset, [*common, *(word for item in size for word in ("--set", item))])
    theirs = flower(preset, common, nodes, steps, protocol)
    gaps = [abs(a - b) for a, b in zip(ours["accuracy"], theirs["accuracy"], strict=True)]
    return {
        "protocol": protocol,
        "built_in": ours,
        "flower": theirs,
        "ratio": round(theirs["seconds"] / ours["seconds"], 2),
        "ratio_per_round": round(theirs["seconds_per_round"] / ours["seconds_per_round"], 2),
        "largest_difference_of_accuracy": max(gaps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--protocols", nargs="+", default=["plain", "sealed"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runs = [measure(arguments.preset, arguments.nodes, arguments.steps, p) for p in arguments.protocols]
    document = {
        "preset": arguments.preset, "nodes": arguments.nodes, "steps": arguments.steps,
        "cores": len(os.sched_getaffinity(0)), "load_average": round(os.getloadavg()[0], 1), "runs": runs,
    }  # fmt: skip
    text = json.dumps(document, indent=2)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
