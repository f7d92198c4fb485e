"""Other people's code measured beside ours, where it is installed: Flower's SecAgg+ and byzfl's robust rules.

Both are found by import alone; what is not there is skipped with a line that says so. CPU time of the process, medians.
Flower's client is driven through the four stage functions of its own SecAgg+ mod; its server through the functions its
workflow calls, a few masks and secrets timed and multiplied by how many a round has (``extrapolated``).
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from ebscfl import rng
from ebscfl.reproduce import secure_sums
from ebscfl.secagg.graphs import harary_degree

Row = dict[str, Any]

NEEDS = {"flower": "flwr", "byzfl": "byzfl"}
MOD_RANGE, TARGET_RANGE, CLIP, MAX_WEIGHT = 1 << 32, 1 << 22, 8.0, 1000.0
"""Flower's own defaults."""
COUNT = 3
"""Masks and secrets timed for its server."""


def load(package: str, module: str) -> Any | None:
    """A module of an optional package, or None. A package that is there but cannot be imported counts as absent."""
    try:
        return importlib.import_module(f"{package}{module}")
    except ImportError:
        return None


def cpu(call: Callable[[], Any], repeats: int = 3) -> float:
    """Median CPU seconds of a call."""
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        spent.append(time.process_time() - started)
    return statistics.median(spent)


def flower(*, clients: int, dim: int, dropouts: float, repeats: int = 3) -> list[Row]:
    """Flower's SecAgg+ against ours at the same degree and threshold; an empty list where Flower is absent."""
    mod = load("flwr", ".client.mod.secure_aggregation.secaggplus_mod")
    if mod is None:
        return []
    degree = harary_degree(clients)
    update = np.array(secure_sums.example_updates(1, dim, 0)[0])
    theirs = statistics.median(_flower_client(mod, degree, update) for _ in range(repeats))
    server = _flower_server(clients, degree, dim, dropouts)
    ours = secure_sums.measure("secagg-plus", clients=clients, dim=dim, dropouts=dropouts, repeats=repeats)
    size = {"clients": clients, "dim": dim, "dropouts": dropouts, "degree": degree}
    return [
        {"peer": "flower", **size, "client_cpu_s": theirs, "server_cpu_s": server, "extrapolated": "server"},
        {"peer": "ebscfl", **size, "client_cpu_s": ours["client_cpu_s"], "server_cpu_s": ours["server_cpu_s"]},
    ]


def _flower_client(mod: Any, degree: int, update: Any) -> float:
    """CPU seconds of one client through setup, share keys, masked vectors and unmask; its peers' work is not billed."""
    names = importlib.import_module("flwr.common.secure_aggregation.secaggplus_constants").Key
    to_parameters = importlib.import_module("flwr.common").ndarrays_to_parameters
    size, threshold = degree + 1, (degree + 1) // 2 + 1
    settings = {
        names.SAMPLE_NUMBER: size, names.SHARE_NUMBER: size, names.THRESHOLD: threshold, names.CLIPPING_RANGE: CLIP,
        names.TARGET_RANGE: TARGET_RANGE, names.MOD_RANGE: MOD_RANGE, names.MAX_WEIGHT: MAX_WEIGHT,
    }  # fmt: skip
    states = [mod.SecAggPlusState() for _ in range(size)]
    spent = 0.0
    answers = []
    for nid, state in enumerate(states, 1):
        state.nid = nid
        started = time.process_time()
        answers.append(mod._setup(state, settings))
        spent += time.process_time() - started if nid == 1 else 0.0
    keys = {str(nid): (a[names.PUBLIC_KEY_1], a[names.PUBLIC_KEY_2]) for nid, a in enumerate(answers, 1)}
    inbox = []
    for nid, state in enumerate(states, 1):
        started = time.process_time()
        dealt = mod._share_keys(state, dict(keys))
        spent += time.process_time() - started if nid == 1 else 0.0
        inbox += [
            (nid, text)
            for to, text in zip(dealt[names.DESTINATION_LIST], dealt[names.CIPHERTEXT_LIST], strict=True)
            if to == 1
        ]
    parameters = to_parameters([update])
    started = time.process_time()
    relayed = {names.CIPHERTEXT_LIST: [c for _, c in inbox], names.SOURCE_LIST: [s for s, _ in inbox]}
    mod._collect_masked_vectors(states[0], relayed, 100, parameters)
    mod._unmask(states[0], {names.ACTIVE_NODE_ID_LIST: list(range(1, size + 1)), names.DEAD_NODE_ID_LIST: []})
    return spent + time.process_time() - started


def _flower_server(clients: int, degree: int, dim: int, dropouts: float) -> float:
    """Its server: a sum of inputs, one secret a client, one mask a survivor and one a neighbor of a drop-out."""
    utils = importlib.import_module("flwr.common.secure_aggregation.secaggplus_utils")
    arithmetic = importlib.import_module("flwr.common.secure_aggregation.ndarrays_arithmetic")
    shamir = importlib.import_module("flwr.common.secure_aggregation.crypto.shamir")
    gone = round(dropouts * clients)
    masks = (clients - gone) + gone * round(degree * (1 - dropouts))
    total = [np.zeros(dim, dtype=np.int64)]
    threshold = (degree + 1) // 2 + 1
    shares = shamir.create_shares(bytes(range(32)), threshold, degree + 1)

    def unmask() -> None:
        mask = utils.pseudo_rand_gen(bytes(32), MOD_RANGE, [(dim,)])
        arithmetic.parameters_subtraction(total, mask)

    one_mask = cpu(unmask, COUNT)
    one_secret = cpu(lambda: shamir.combine_shares(shares), COUNT)
    one_input = cpu(lambda: arithmetic.parameters_mod(arithmetic.parameters_addition(total, total), MOD_RANGE), COUNT)
    return masks * one_mask + clients * one_secret + (clients - gone) * one_input


def byzfl_aggregators() -> Any | None:
    """byzfl's aggregators alone: its package ``__init__`` would want plotting and image packages as well."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None or spec.submodule_search_locations is None:
        return None
    shell = ModuleType("byzfl")
    shell.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = shell
    return load("byzfl", ".aggregators.aggregators")


def byzfl(*, clients: int = 100, dim: int = 200_000, faulty: int = 20, repeats: int = 3) -> list[Row]:
    """byzfl's median, trimmed mean and Krum against ours on the same float32 matrix; empty where byzfl is absent."""
    package = byzfl_aggregators()
    if package is None:
        return []
    import torch

    from ebscfl.rules import RULES

    generator = rng.torch_generator(rng.root_from_seed(0), rng.USAGE_BENCH, "peers")
    updates = torch.randn((clients, dim), generator=generator)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "median": (partial(package.Median(), updates), partial(RULES["median"], updates)),
        "trimmed_mean": (
            partial(package.TrMean(faulty), updates),
            partial(RULES["trimmed_mean"], updates, trim=faulty),
        ),
        # Its f counts one neighbor less than ours and the original.
        "krum": (partial(package.Krum(faulty + 1), updates), partial(RULES["krum"], updates, faulty=faulty)),
    }
    rows = []
    for rule, (theirs, ours) in pairs.items():
        theirs(), ours()  # first touches
        size = {"rule": rule, "clients": clients, "dim": dim, "faulty": faulty}
        rows.append({"peer": "byzfl", **size, "cpu_s": cpu(theirs, repeats), "wall_s": wall(theirs, repeats)})
        rows.append({"peer": "ebscfl", **size, "cpu_s": cpu(ours, repeats), "wall_s": wall(ours, repeats)})
    return rows


def wall(call: Callable[[], Any], repeats: int = 3) -> float:
    """Median seconds by the clock: rules use both cores."""
    spent = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def measure_peers(*, clients: int, dim: int, dropouts: float, repeats: int = 3) -> dict[str, Any]:
    """All peers that are here, and a line for each that is not."""
    found = {
        "flower": flower(clients=clients, dim=dim, dropouts=dropouts, repeats=repeats),
        "byzfl": byzfl(clients=clients, dim=dim, repeats=repeats),
    }
    skipped = [
        f"{peer} skipped: the package {NEEDS[peer]!r} cannot be imported" for peer, rows in found.items() if not rows
    ]
    return {"rows": [row for rows in found.values() for row in rows], "skipped": skipped}


def markdown(document: dict[str, Any]) -> str:
    """Peers and ours side by side: CPU milliseconds, theirs over ours."""
    lines = ["| what | peer ms | ours ms | ratio |", "|---|---|---|---|"]
    rows = document["rows"]
    for theirs, ours in zip(rows[::2], rows[1::2], strict=True):
        for key in ("client_cpu_s", "server_cpu_s", "cpu_s"):
            if key in theirs:
                what = theirs.get("rule", f"SecAgg+ {key.split('_')[0]}")
                pair = f"{1e3 * theirs[key]:.1f} | {1e3 * ours[key]:.1f} | {theirs[key] / ours[key]:.1f}"
                lines.append(f"| {theirs['peer']}: {what} | {pair} |")
    return "\n".join(lines) + "\n"
