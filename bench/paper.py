"""Seconds, bytes and errors of the paper's scheme, as JSON: `python bench/paper.py [--quick] [--part P]`.

One function a question: the standard sizes, growth with n and with l (fitted slopes of log seconds over log size), and
a sweep over the segment length. Every figure is the minimum over repeats, taken beside plain RFCA in the same run, so
that ratios survive a busy machine. Data and keys come from a fixed seed: timings do not depend on the values.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ebscfl.paper import PaperParameters, aggregate, combine, deal, encode, refresh, relu_sum, score, verify
from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed

SEED = 1


def fastest(repeats: int, action: Callable[[], Any]) -> float:
    """Minimum seconds over ``repeats`` calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best


def plain_rfca(updates: Any, clusters: Any, server_updates: Any) -> Any:
    """Plain RFCA as a server would run it, vectorized."""
    lengths = np.sqrt(np.einsum("nl,nl->n", updates, updates))
    units = server_updates / np.linalg.norm(server_updates, axis=1)[:, None]
    weights = np.maximum(np.einsum("nl,nl->n", updates, units[clusters]) / lengths, 0.0)
    mixing = np.zeros((len(server_updates), len(updates)))
    mixing[clusters, np.arange(len(updates))] = weights / lengths
    return mixing @ updates / weights.sum()


def measure(params: PaperParameters, repeats: int) -> dict[str, Any]:
    """All steps of one round."""
    n = params.num_clients
    root = root_from_seed(SEED)
    rng = numpy_generator(root, USAGE_BENCH)
    server_updates = rng.normal(size=(params.num_clusters, params.dim))
    clusters = rng.integers(0, params.num_clusters, n)
    updates = rng.normal(size=(n, params.dim))
    start = time.perf_counter()
    dealt = deal(params, server_updates, root)
    setup = time.perf_counter() - start
    keys = refresh(params, dealt.secret, 0)

    def encode_one(i: int) -> Any:
        return encode(params, dealt.client_keys[i], keys.client[i], updates[i], int(clusters[i]))

    def verify_all() -> None:
        for i, upload in enumerate(uploads):
            verify(params, dealt.server_key, keys.server, i, upload)

    def score_all() -> Any:
        return [score(params, dealt.server_key, i, upload) for i, upload in enumerate(uploads)]

    def serve() -> Any:
        # As the role does it: check and score each upload while it is in the cache, then finish the round.
        scores = []
        for i, upload in enumerate(uploads):
            verify(params, dealt.server_key, keys.server, i, upload)
            scores.append(score(params, dealt.server_key, i, upload))
        return combine(params, dealt.server_key, uploads, relu_sum(params, dealt.server_key, scores))

    uploads = [encode_one(i) for i in range(n)]
    alphas = score_all()
    weights = relu_sum(params, dealt.server_key, alphas)
    found, _ = aggregate(params, dealt.server_key, uploads)
    expected = plain_rfca(updates, clusters, server_updates)
    seconds = {
        "kdc_setup": setup,
        "client_encode": fastest(10 * repeats, lambda: encode_one(0)),
        "server_verify": fastest(repeats, verify_all),
        "server_score": fastest(repeats, score_all),
        "server_relu_sum": fastest(repeats, lambda: relu_sum(params, dealt.server_key, alphas)),
        "server_decode": fastest(repeats, lambda: combine(params, dealt.server_key, uploads, weights)),
        "server": fastest(repeats, serve),
        "plain_rfca": fastest(repeats, lambda: plain_rfca(updates, clusters, server_updates)),
    }
    size = {
        "client_upload": uploads[0].nbytes,
        "kdc_to_client_once": dealt.client_keys[0].nbytes,
        "kdc_to_client_round": keys.client[0].nbytes,
        "kdc_to_server_once": dealt.server_key.nbytes,
        "kdc_to_server_scoring_key": dealt.server_key.scoring_key.nbytes,
        "kdc_to_server_round": keys.server.nbytes,
    }
    seconds["kdc_round"] = fastest(max(2, repeats // 4), lambda: refresh(params, dealt.secret, 1))
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    return {
        "clients": n,
        "clusters": params.num_clusters,
        "dim": params.dim,
        "segment": params.segment_len,
        "group": params.group_size,
        "relative_error": error,
        "seconds": seconds,
        "server_over_plain_rfca": seconds["server"] / seconds["plain_rfca"],
        "bytes": size,
    }


def slope(sizes: list[int], values: list[float]) -> float:
    """Exponent of growth: least-squares slope of log value over log size."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def growth(rows: list[dict[str, Any]], key: str) -> dict[str, float]:
    """Fitted exponents of the steps and of the server's memory over ``key``."""
    sizes = [row[key] for row in rows]
    steps = ("server", "client_encode", "kdc_round", "plain_rfca")
    slopes = {step: slope(sizes, [row["seconds"][step] for row in rows]) for step in steps}
    memory = [row["bytes"]["kdc_to_server_once"] + row["clients"] * row["bytes"]["client_upload"] for row in rows]
    return slopes | {
        "server_bytes": slope(sizes, memory),
        "client_bytes": slope(sizes, [row["bytes"]["client_upload"] for row in rows]),
    }


PARTS = ("standard", "large", "clients", "dim", "segment", "group")


def main(arguments: list[str]) -> int:
    """Measure the chosen parts and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="standard size only, few repeats")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    options = parser.parse_args(arguments)
    parts = ["standard"] if options.quick else options.part or list(PARTS)

    def at(repeats: int, *, n: int = 20, dim: int = 20_000, segment: int = 2, group: int = 1) -> dict[str, Any]:
        params = PaperParameters(num_clients=n, num_clusters=2, dim=dim, segment_len=segment, group_size=group)
        return measure(params, repeats)

    report: dict[str, Any] = {}
    for part in parts:
        print(f"measuring {part}", file=sys.stderr)
        if part == "standard":
            report[part] = at(5 if options.quick else 30)
        elif part == "large":
            report[part] = at(5, dim=200_000)
        elif part == "clients":
            rows = [at(5, n=n) for n in (10, 20, 40, 80, 160)]
            report[part] = {"slopes": growth(rows, "clients"), "rows": rows}
        elif part == "dim":
            rows = [at(3, dim=dim) for dim in (20_000, 50_000, 100_000, 200_000, 400_000)]
            report[part] = {"slopes": growth(rows, "dim"), "rows": rows}
        elif part == "segment":
            report[part] = [at(8, segment=t) for t in (1, 2, 3, 4, 8)]
        else:
            report[part] = [at(8, group=x) for x in (1, 2, 4)]
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
