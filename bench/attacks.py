"""Seconds of the two costly attacks, as JSON: ``python bench/attacks.py [--dim 200000]``.

The adaptive attack is timed as a whole (V Q f = 2000 probes) beside what one probe costs if all clients are aggregated
anew for both values of h, the way public ports do. The sine walk is timed compiled (where numba is importable) and not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ebscfl import rng as streams
from ebscfl.attacks import AttackView, adaptive, sine

ROOT = streams.root_from_seed(0)


def seconds(work: Callable[[], Any], repeat: int) -> float:
    """Least wall time of ``repeat`` calls: the one that was disturbed least."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def make_view(n: int, f: int, d: int) -> AttackView:
    draws = streams.numpy_generator(ROOT, streams.USAGE_BENCH, n, f, d)
    direction = draws.standard_normal(d, dtype=np.float32)
    everyone = 0.01 * (direction + draws.standard_normal((n, d), dtype=np.float32))
    base = 0.01 * (direction + draws.standard_normal(d, dtype=np.float32))
    return AttackView(everyone[:f], tuple(range(f)), n, everyone, base)


def bench_adaptive(n: int, f: int, d: int) -> dict[str, float]:
    view = make_view(n, f, d)
    scene = adaptive.make_scene(view, knowledge="full", base="true")

    def craft() -> torch.Tensor:
        crafted = adaptive.craft(view, rng=streams.numpy_generator(ROOT, streams.USAGE_BENCH))
        return adaptive.unit_rows(torch.from_numpy(np.asarray(crafted)))

    start = time.perf_counter()
    vectors = craft()
    total = time.perf_counter() - start
    probes = 10 * 10 * f
    naive = 2.0 * seconds(lambda: adaptive.objective(scene, vectors), 3)
    noise = torch.empty(d)
    draw = seconds(lambda: noise.normal_(generator=streams.torch_generator(ROOT, streams.USAGE_BENCH)), 3)
    return {
        "seconds": total,
        "seconds_per_probe": total / probes,
        "seconds_per_probe_drawing_noise": draw,
        "seconds_per_probe_naive": naive,
        "speedup_per_probe": naive / (total / probes),
        "objective_reached": adaptive.objective(scene, vectors),
    }


def bench_sine(d: int) -> dict[str, float | None]:
    view = make_view(2, 1, d)
    clean = np.asarray(view.own, dtype=np.float64)[0]
    base = np.asarray(view.base, dtype=np.float64)

    def walk(compiled: bool) -> Any:
        return sine.distort(clean, base, scale_dot=6.0, scale_norm=1000.0, compiled=compiled)

    compiled = first = None
    if importlib.util.find_spec("numba") is not None:
        first = seconds(lambda: walk(True), 1)
        compiled = seconds(lambda: walk(True), 3)
    return {"seconds_compiled": compiled, "seconds_first_call": first, "seconds_plain": seconds(lambda: walk(False), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--attackers", type=int, default=20)
    parser.add_argument("--dim", type=int, default=200_000)
    options = parser.parse_args()
    result = {
        "settings": {**vars(options), "threads": torch.get_num_threads()},
        "adaptive": bench_adaptive(options.clients, options.attackers, options.dim),
        "sine": bench_sine(options.dim),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
