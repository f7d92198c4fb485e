"""The heavy sums of a round in one process and over worker processes on Ray, in one run; prints JSON.

    python bench/scaleout.py [--workers 2] [--clients 64] [--dim 200000] [--repeat 3] [--out scaleout.json]

Per sum: seconds in one thread, in this process as it runs without workers (a thread a core for `sealed`), and over the
workers; each is the fastest of ``--repeat`` alternating runs. ``ratio`` is in process over workers: above one, workers
pay. Every way must give the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ebscfl import rng
from ebscfl.federation.scaleout import open_pool
from ebscfl.paper import PaperParameters, deal
from ebscfl.paper.compressed import decode_uploads
from ebscfl.paper.dealing import refresh
from ebscfl.pool import IN_PLACE, Pool
from ebscfl.protocol.sealed.pad_work import PadWork
from ebscfl.protocol.sealed.shards import SharedPadWork, SharedUploads
from ebscfl.sealed import (
    Answer,
    Workers,
    client_keys,
    fold,
    make_sketch,
    new_sum,
    plan,
    products_many,
    quantize_server_updates,
    workers_for,
)

CLUSTERS = 2
ROOT = rng.root_from_seed(5)
Sum = Callable[[], bytes]
NAMES = {
    "sealed-kdc": "the key centre's P",
    "sealed-server": "the server's products and y",
    "paper-kdc": "the paper's masks",
    "paper-server": "the paper's decoding",
}


def digest(*arrays: np.ndarray) -> bytes:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).digest()


def sealed_sums(clients: int, dim: int, pool: Pool) -> dict[str, tuple[Sum, Sum, Sum]]:
    """P of the key centre, and the server's products and y: (one thread, threads, workers)."""
    params = plan(1000, dim, CLUSTERS)
    keys = [client_keys(params, rng.derive(ROOT, rng.USAGE_BENCH, i), "bench", 1, i) for i in range(clients)]
    answers = [Answer(3 * i + 1, 5 * i + 2) for i in range(clients)]
    draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "scaleout")
    row = quantize_server_updates(params, draw.standard_normal((CLUSTERS, dim)))
    sketch = make_sketch(params, ROOT)
    batch = [
        (
            draw.integers(0, params.field.modulus, (2, params.width)).astype(params.field.dtype),
            draw.integers(0, params.field.modulus, CLUSTERS).astype(params.field.dtype),
        )
        for _ in range(min(8, clients))  # a batch of the server
    ]

    def pads_with(work: PadWork | SharedPadWork) -> bytes:
        total = new_sum(params)
        work.add(total, keys, answers)
        return digest(total.words, total.guard)

    def uploads_here(workers: Workers) -> bytes:
        total = new_sum(params)
        pairs = [pair for pair, _ in batch]
        done = np.stack(products_many(params, pairs, row, sketch, workers=workers))
        fold(params, total, answers[: len(batch)], pairs, [guard for _, guard in batch], workers=workers)
        return digest(done, total.words, total.guard)

    def uploads_there() -> bytes:
        total = new_sum(params)
        shared = SharedUploads(params, pool, batch)
        done = shared.products(row, sketch)
        shared.fold(total, answers[: len(batch)])
        return digest(done, total.words, total.guard)

    single, threads, over = PadWork(params, 1), PadWork(params), SharedPadWork(params, pool)
    many = workers_for(params.width)
    return {
        "sealed-kdc": (lambda: pads_with(single), lambda: pads_with(threads), lambda: pads_with(over)),
        "sealed-server": (lambda: uploads_here(Workers(1)), lambda: uploads_here(many), uploads_there),
    }


def paper_sums(clients: int, dim: int, pool: Pool) -> dict[str, tuple[Sum, Sum, Sum]]:
    """The masks of a round, and the decoding of all uploads; this process has one thread for both."""
    params = PaperParameters(clients, CLUSTERS, dim)
    draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "scaleout-paper")
    dealt = deal(params, draw.standard_normal((CLUSTERS, dim)), ROOT)
    deltas = list(draw.standard_normal((clients, *params.upload_shape)))
    key = dealt.server_key
    assert key.transform is not None
    decoder = draw.standard_normal((params.width, key.transform.update_key.shape[-1]))
    update_keys = key.transform.update_key

    def masks(pool: Pool) -> bytes:
        return digest(*(one.mask for one in refresh(params, dealt.secret, 1, pool).client))

    def decoded(pool: Pool) -> bytes:
        return digest(decode_uploads(params, deltas, update_keys, decoder, key.cluster_basis, pool))

    return {
        "paper-kdc": (lambda: masks(IN_PLACE), lambda: masks(IN_PLACE), lambda: masks(pool)),
        "paper-server": (lambda: decoded(IN_PLACE), lambda: decoded(IN_PLACE), lambda: decoded(pool)),
    }


def measure(ways: tuple[Sum, Sum, Sum], repeat: int) -> dict[str, Any]:
    """The fastest run of each way, after one to warm up; alternating, because the machine is shared."""
    best, digests = [float("inf")] * len(ways), {way() for way in ways}
    for _ in range(repeat):
        for i, way in enumerate(ways):
            started = time.perf_counter()
            digests.add(way())
            best[i] = min(best[i], time.perf_counter() - started)
    return {
        "one_thread_s": best[0],
        "in_process_s": best[1],
        "workers_s": best[2],
        "ratio": best[1] / best[2],
        "same_bits": len(digests) == 1,
    }


def paragraph(document: dict[str, Any]) -> str:
    """What docs/how-to-deploy.md says of it."""
    ratios = [f"{row['ratio']:.2f} for {NAMES[row['sum']]}" for row in document["rows"]]
    return (
        f"With {document['workers']} workers on {document['machine']['cpus']} cores, times in process over times with "
        f"workers were {', '.join(ratios[:-1])} and {ratios[-1]}, bits the same"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--paper-clients", type=int, default=16)
    parser.add_argument("--dim", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with open_pool(given.workers) as pool:
        sums = sealed_sums(given.clients, given.dim, pool) | paper_sums(given.paper_clients, given.dim, pool)
        rows = [{"sum": name, **measure(ways, given.repeat)} for name, ways in sums.items()]
    document = {
        "workers": given.workers,
        "clients": given.clients,
        "paper_clients": given.paper_clients,
        "dim": given.dim,
        "clusters": CLUSTERS,
        "rows": rows,
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
    }
    text = json.dumps(document, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
