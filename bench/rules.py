"""Seconds per rule, ours and ByzFL's in the same run, as JSON: ``python bench/rules.py``.

Times are the best of ``--repeat`` runs on float32 tensors. ByzFL's column reads "absent" where it is not installed
(``pip install --no-deps byzfl==0.0.11``) and null where it has no such rule.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ebscfl import rng
from ebscfl.rules import RULES

GOALS_S = {"krum": 0.3, "median": 1.5}  # at n = 100, d = 200 000 on 2 cores


def best_seconds(action: Callable[[], Any], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def byzfl_aggregators() -> ModuleType | None:
    """ByzFL's aggregators alone: its package ``__init__`` would want torchvision and seaborn."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None or spec.submodule_search_locations is None:
        return None
    shell = ModuleType("byzfl")
    shell.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = shell
    return importlib.import_module("byzfl.aggregators.aggregators")


def settings_of(name: str, updates: torch.Tensor, faulty: int) -> dict[str, Any]:
    clients = torch.arange(len(updates), device=updates.device) % 4
    return {
        "trimmed_mean": {"trim": faulty},
        "krum": {"faulty": faulty},
        "multi_krum": {"faulty": faulty},
        "fltrust": {"server_update": updates[0]},
        "rfca": {"clusters": clients, "server_updates": updates[:4]},
    }.get(name, {})


def peers_of(byzfl: ModuleType, faulty: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    return {
        "fedavg": byzfl.Average(),
        "median": byzfl.Median(),
        "trimmed_mean": byzfl.TrMean(faulty),
        "krum": byzfl.Krum(faulty + 1),  # as many neighbors as ours
        "multi_krum": byzfl.MultiKrum(faulty + 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time every rule; print JSON.")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--dim", type=int, default=200_000)
    parser.add_argument("--faulty", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    generator = rng.torch_generator(rng.root_from_seed(0), rng.USAGE_BENCH, "rules")
    updates = torch.randn((options.clients, options.dim), generator=generator).to(options.device)
    byzfl = byzfl_aggregators()
    peers = peers_of(byzfl, options.faulty) if byzfl else {}
    rows = []
    for name, rule in RULES.items():
        arguments = settings_of(name, updates, options.faulty)
        seconds = best_seconds(lambda rule=rule, arguments=arguments: rule(updates, **arguments), options.repeat)
        peer = peers.get(name)
        theirs: float | str | None = "absent" if byzfl is None else None
        if peer is not None:
            theirs = best_seconds(lambda peer=peer: peer(updates), options.repeat)
        rows.append({"rule": name, "seconds": seconds, "byzfl_seconds": theirs, "goal_s": GOALS_S.get(name)})
    document = {
        "bench": "rules",
        "clients": options.clients,
        "dim": options.dim,
        "faulty": options.faulty,
        "device": options.device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "results": rows,
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
