"""Times one round of `sealed` beside plain float32 aggregation in the same run; prints one JSON object.

    python bench/sealed.py [--dim 200000] [--clusters 2] [--clients 100] [--threads 2] [--field m31] [--repeat 5]

Server: fused products of every upload and folding it in, batch by batch. Client: encode and seal. Key center: pads,
their products, the verdict and folding. Plain: the same clustered aggregation (norms, cosines, weighted sums) on the
clear float32 updates, and FedAvg. Every time is the best of ``repeat``; key center and client are per upload and
measured on the whole pool, so their throughput uses all threads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed
from ebscfl.sealed import (
    Answer,
    SealedParameters,
    Upload,
    aggregates,
    batch_seed,
    client_keys,
    decide_slots,
    encode,
    fold,
    guard_scalar,
    kdc_check,
    make_sketch,
    master_key,
    new_sum,
    open_counts,
    pads,
    plan,
    products,
    products_many,
    quantize_server_updates,
    release,
    seal,
    unseal,
)

ROOT = root_from_seed(20)
RUN, ROUND = "bench", 1


def best_ms(repeat: int, action: Callable[[], object]) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def best_cpu_ms(repeat: int, action: Callable[[], object]) -> float:
    """CPU time of the process: what a single thread would take on an idle core."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def plain_rfca(updates: np.ndarray, clusters: np.ndarray, server: np.ndarray) -> np.ndarray:
    """Eq. (1) on float32: BLAS for everything that is a product, norm and cosine of a row while it is in cache."""
    server = server / np.linalg.norm(server, axis=1, keepdims=True)
    norms = np.empty(len(updates), dtype=updates.dtype)
    cosines = np.empty_like(norms)
    for i, row in enumerate(updates):
        norms[i] = np.sqrt(row @ row)
        cosines[i] = (row @ server[clusters[i]]) / norms[i]
    weights = np.maximum(cosines, 0)
    mixing = np.zeros((len(server), len(updates)), dtype=np.float32)
    mixing[clusters, np.arange(len(updates))] = weights / norms
    totals = np.bincount(clusters, weights=weights, minlength=len(server)).astype(np.float32)
    return (mixing @ updates) / totals[:, None]


class Bench:
    """The data of one configuration."""

    def __init__(self, args: argparse.Namespace) -> None:
        draws = numpy_generator(ROOT, USAGE_BENCH, "updates")
        n, m, dim = args.clients, args.clusters, args.dim
        self.repeat, self.threads, self.batch = args.repeat, args.threads, args.batch
        self.params: SealedParameters = plan(n, dim, m, args.field)
        self.server = draws.standard_normal((m, dim), dtype=np.float32)
        self.clusters = np.arange(n) % m
        self.updates = 0.5 * self.server[self.clusters] + draws.standard_normal((n, dim), dtype=np.float32)
        self.row = quantize_server_updates(self.params, self.server)
        self.sketch = make_sketch(self.params, batch_seed(ROOT, 0))
        self.lam = guard_scalar(self.params, ROOT, RUN, ROUND)
        self.keys = [client_keys(self.params, master_key(ROOT, RUN, i), RUN, ROUND, i) for i in range(n)]
        self.buffers = [self.params.field.zeros((2, self.params.width)) for _ in range(args.threads)]
        self.uploads: list[Upload] = [self.client(i) for i in range(n)]
        self.answers: list[Answer] = []
        self.weight = 0

    def client(self, i: int, out: Any = None) -> Upload:
        encoded = encode(self.params, self.updates[i], int(self.clusters[i]), ROOT, ROUND, i)
        return seal(self.params, encoded, self.keys[i], out)

    def kdc_pass(self) -> Any:
        """All verdicts and the running P: each thread its own clients, buffer and partial sum."""
        sent = products_many(self.params, [u.words for u in self.uploads], self.row, self.sketch, threads=self.threads)

        def share(which: int) -> Any:
            total, weight, answers = new_sum(self.params), 0, {}
            for i in range(which, len(self.uploads), self.threads):
                own = pads(self.params, self.keys[i], self.buffers[which])
                mine = products(self.params, own, self.row, self.sketch)
                verdict = kdc_check(self.params, sent[i], mine, self.keys[i], self.lam)
                if verdict.answer is None:
                    raise RuntimeError(f"honest upload {i} refused: {verdict.reason}")
                fold(self.params, total, [verdict.answer], [own], [self.keys[i].guard_pad])
                answers[i] = verdict.answer
                weight += verdict.weight
            return total, weight, answers

        start, start_cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(self.threads) as pool:
            parts = list(pool.map(share, range(self.threads)))
        elapsed, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        merged = new_sum(self.params)
        found: dict[int, Answer] = {}
        for total, _, answers in parts:
            merged.words[:] = self.params.field.add(merged.words, total.words)
            merged.guard[:] = self.params.field.add(merged.guard, total.guard)
            found |= answers
        self.answers = [found[i] for i in range(len(self.uploads))]
        self.weight = sum(weight for _, weight, _ in parts)
        return merged, elapsed, cpu

    def server_pass(self) -> Any:
        total = new_sum(self.params)
        for low in range(0, len(self.uploads), self.batch):
            part = slice(low, low + self.batch)
            words = [u.words for u in self.uploads[part]]
            products_many(self.params, words, self.row, self.sketch, threads=self.threads)
            guards = [u.guard for u in self.uploads[part]]
            fold(self.params, total, self.answers[part], words, guards, threads=self.threads)
        return total

    def client_ms(self, timer: Callable[[int, Callable[[], object]], float]) -> float:
        """One upload with one thread, in a warm buffer: the best over several clients."""
        buffer = self.params.field.zeros((2, self.params.width))
        return min(timer(self.repeat, lambda i=i: self.client(i, buffer)) for i in range(min(4, len(self.uploads))))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(args)
    n = args.clients
    passes = [bench.kdc_pass() for _ in range(args.repeat)]
    pads_sum = passes[-1][0]
    elapsed, kdc_cpu = (min(run[i] for run in passes) for i in (1, 2))
    total = bench.server_pass()
    decision = decide_slots(bench.params, open_counts(bench.params, total), pads_sum, bench.lam, bench.weight)
    opened = unseal(bench.params, total, release(bench.params, pads_sum, decision))
    secure = aggregates(bench.params, opened)
    wide = plain_rfca(bench.updates.astype(np.float64), bench.clusters, bench.server.astype(np.float64))
    plain, server = [], []
    for _ in range(args.repeat):  # interleaved, so that a busy moment of the machine hits both
        plain.append(best_ms(2, lambda: plain_rfca(bench.updates, bench.clusters, bench.server)))
        server.append(best_ms(2, bench.server_pass))
    plain_cpu = best_cpu_ms(args.repeat, lambda: plain_rfca(bench.updates, bench.clusters, bench.server))
    server_cpu = best_cpu_ms(args.repeat, bench.server_pass)
    return {
        "clients": n,
        "dim": args.dim,
        "clusters": args.clusters,
        "threads": args.threads,
        "field": bench.params.field_name,
        "parameters": bench.params.describe(),
        "plain_rfca_ms": round(min(plain), 2),
        "fedavg_ms": round(best_ms(args.repeat, lambda: bench.updates.mean(axis=0)), 2),
        "server_ms": round(min(server), 2),
        "server_over_plain": round(min(server) / min(plain), 2),
        "server_over_plain_median": round(float(np.median(np.array(server) / np.array(plain))), 2),
        "plain_rfca_cpu_ms": round(plain_cpu, 2),
        "server_cpu_ms": round(server_cpu, 2),
        "server_over_plain_cpu": round(server_cpu / plain_cpu, 2),
        "client_ms": round(bench.client_ms(best_ms), 3),
        "client_cpu_ms": round(bench.client_ms(best_cpu_ms), 3),
        "kdc_ms_per_client": round(1e3 * elapsed / n, 3),
        "kdc_cpu_ms_per_client": round(1e3 * kdc_cpu / n, 3),
        "upload_bytes": bench.params.upload_bytes,
        "relative_error": float(np.linalg.norm(secure - wide) / np.linalg.norm(wide)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=200_000)
    parser.add_argument("--clusters", type=int, default=2)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--field", default=None, choices=["m31", "m61"])
    print(json.dumps(measure(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
