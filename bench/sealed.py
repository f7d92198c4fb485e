"""Times one round of `sealed` beside plain float32 aggregation in the same run; prints one JSON object.

    python bench/sealed.py [--dim 200000] [--clusters 2] [--clients 100] [--threads 2] [--field m31] [--repeat 5]

"work" calls what the roles call, without messages. Server: sketch, fused products of every upload and folding it in,
batch by batch. Key center: sketch, pads, their products, the verdict and folding. Client: encode and seal, one thread.
"roles" plays whole rounds through the real roles, with codec and checks. Plain: `ebscfl.plain.rfca_sums` on the clear
float32 updates, and the fastest clear aggregation we could write (norms and cosines while a row is in cache, BLAS).

Wall times are the best of ``repeat`` and use all threads; on a busy machine they say little. CPU times add up all
threads: divided by the cores they are what an idle machine would take at best.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ebscfl.ids import KDC, SERVER, Address
from ebscfl.plain import rfca_sums, unit_rows
from ebscfl.protocol import codec
from ebscfl.protocol.roles import Outgoing
from ebscfl.protocol.rounds import round_id_of
from ebscfl.protocol.run import Session
from ebscfl.protocol.sealed.pad_work import Claim, PadWork, Rows
from ebscfl.rng import USAGE_BENCH, SecretStream, numpy_generator, root_from_seed
from ebscfl.sealed import (
    Answer,
    SealedParameters,
    Upload,
    Workers,
    aggregates,
    batch_seed,
    client_keys,
    decide_slots,
    encode,
    fold,
    guard_products,
    guard_row,
    guard_scalar,
    kdc_check,
    make_sketch,
    master_key,
    new_sum,
    open_counts,
    pads,
    plan,
    products_many,
    quantize_server_updates,
    release,
    seal,
    seal_blind,
    unseal,
)

ROOT = root_from_seed(20)
RUN, ROUND = "bench", 1


class Timer:
    """The least wall and CPU milliseconds of an action that is run again and again."""

    def __init__(self) -> None:
        self.wall = self.cpu = float("inf")

    def run(self, action: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = action()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self.wall, self.cpu = min(self.wall, 1e3 * wall), min(self.cpu, 1e3 * cpu)
        return result

    def each(self, parts: int) -> dict[str, float]:
        return {"wall_ms": round(self.wall / parts, 3), "cpu_ms": round(self.cpu / parts, 3)}


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
        self.workers, self.batch = Workers(args.threads), args.batch
        self.params: SealedParameters = plan(n, dim, m, args.field)
        self.server = draws.standard_normal((m, dim), dtype=np.float32)
        self.clusters = np.arange(n) % m
        self.updates = 0.5 * self.server[self.clusters] + draws.standard_normal((n, dim), dtype=np.float32)
        self.row = quantize_server_updates(self.params, self.server)
        self.lam = guard_scalar(self.params, ROOT, RUN, ROUND)
        self.keys = [client_keys(self.params, master_key(ROOT, RUN, i), RUN, ROUND, i) for i in range(n)]
        self.pad_work = PadWork(self.params)
        self.uploads: list[Upload] = [self.client(i) for i in range(n)]
        self.blinds = [seal_blind(self.params, keys, ROOT, ROUND) for keys in self.keys]
        self.claims = [self.claim(i) for i in range(n)]
        self.answers: list[Answer] = []
        self.weight = 0

    def client(self, i: int, out: Any = None) -> Upload:
        encoded = encode(self.params, self.updates[i], int(self.clusters[i]), ROOT, ROUND, i)
        return seal(self.params, encoded, self.keys[i], out)

    def rows(self, batch: int) -> Rows:
        seed = batch_seed(ROOT, batch)
        return Rows(self.row, make_sketch(self.params, seed), guard_row(self.params, seed), self.lam)

    def claim(self, i: int) -> Claim:
        """What an honest server says about upload i."""
        rows, upload = self.rows(i // self.batch), self.uploads[i]
        (sent,) = products_many(self.params, [upload.words], self.row, rows.sketch)
        counts = upload.words[0, self.params.dim :: self.params.slot_size]
        guard = guard_products(self.params, counts, upload.guard, self.blinds[i], rows.guard_row)
        return Claim(self.keys[i], sent, guard)

    def batches(self) -> list[slice]:
        return [slice(low, low + self.batch) for low in range(0, len(self.uploads), self.batch)]

    def kdc_pass(self) -> Any:
        """All verdicts and P."""
        total, verdicts = new_sum(self.params), []
        for number, part in enumerate(self.batches()):
            verdicts += self.pad_work.judge(total, self.rows(number), self.claims[part])
        self.answers = [verdict.answer for verdict in verdicts if verdict.answer is not None]
        if len(self.answers) < len(self.uploads):
            raise RuntimeError("an honest upload was refused")
        self.weight = sum(verdict.weight for verdict in verdicts)
        return total

    def server_pass(self) -> Any:
        """All products and y."""
        total = new_sum(self.params)
        for number, part in enumerate(self.batches()):
            words, guards = zip(*((u.words, u.guard) for u in self.uploads[part]), strict=True)
            products_many(self.params, words, self.row, self.rows(number).sketch, workers=self.workers)
            fold(self.params, total, self.answers[part], words, guards, workers=self.workers)
        return total

    def error(self, total: Any, pads_sum: Any) -> float:
        """Of the decoded aggregates, relative to float64 on the clear updates."""
        params = self.params
        decision = decide_slots(params, open_counts(params, total), pads_sum, self.lam, self.weight)
        secure = aggregates(params, unseal(params, total, release(params, pads_sum, decision)))
        wide = plain_rfca(self.updates.astype(np.float64), self.clusters, self.server.astype(np.float64))
        return float(np.linalg.norm(secure - wide) / np.linalg.norm(wide))


def work(args: argparse.Namespace) -> dict[str, Any]:
    """Kernels and pipelines, and the aggregation in the clear, turn about so that a busy moment hits all of them."""
    bench, n = Bench(args), args.clients
    names = ("kdc", "server", "client", "plain_rfca", "plain_rfca_blas", "fedavg")
    timers = {name: Timer() for name in names}
    buffer = bench.params.field.zeros((2, bench.params.width))
    for _ in range(args.repeat):
        pads_sum = timers["kdc"].run(bench.kdc_pass)
        timers["plain_rfca"].run(lambda: rfca_sums(bench.updates, list(bench.clusters), bench.server))
        total = timers["server"].run(bench.server_pass)
        timers["plain_rfca_blas"].run(lambda: plain_rfca(bench.updates, bench.clusters, bench.server))
        timers["fedavg"].run(lambda: bench.updates.mean(axis=0))
        for i in range(min(10, n)):
            timers["client"].run(partial(bench.client, i, buffer))
    return {
        "server_total": timers["server"].each(1),
        **{name: timers[name].each(1) for name in ("plain_rfca", "plain_rfca_blas", "fedavg")},
        "server_over_plain": ratios(timers["server"], timers["plain_rfca"]),
        "server_over_plain_blas": ratios(timers["server"], timers["plain_rfca_blas"]),
        "client": timers["client"].each(1),
        "kdc_per_client": timers["kdc"].each(n),
        "kdc_cpu_ms_per_client_and_core": round(timers["kdc"].cpu / n / (os.cpu_count() or 1), 3),
        "kdc_steps_cpu_ms_per_client": kdc_steps(bench),
        "relative_error": bench.error(total, pads_sum),
    }


def kdc_steps(bench: Bench) -> dict[str, float]:
    """CPU milliseconds a client that the key center spends on each step, one thread: the least of many repetitions."""
    params, rows, claim = bench.params, bench.rows(0), bench.claims[0]
    buffers = [params.field.zeros((2, params.width)) for _ in range(4)]
    own = products_many(params, [pads(params, claim.keys, buffers[0])], bench.row, rows.sketch)[0]
    guards, total = [claim.keys.guard_pad] * 4, new_sum(params)
    steps: dict[str, Callable[[int], object]] = {
        "pads": lambda i: pads(params, claim.keys, buffers[i % 4]),
        "products": lambda i: products_many(params, [buffers[i % 4]], bench.row, rows.sketch),
        "verdict": lambda _: kdc_check(params, claim.products, own, claim.keys, bench.lam),
        "fold_of_four": lambda _: fold(params, total, bench.answers[:4], buffers, guards),
        "sketch_of_a_batch": lambda _: bench.rows(0),
    }
    timers = {name: Timer() for name in steps}
    for i in range(40):
        for name, step in steps.items():
            timers[name].run(partial(step, i))
    shared = {"fold_of_four": 4, "sketch_of_a_batch": bench.batch}
    return {name: round(timer.cpu / shared.get(name, 1), 3) for name, timer in timers.items()}


def ratios(ours: Timer, theirs: Timer) -> dict[str, float]:
    return {"wall": round(ours.wall / theirs.wall, 2), "cpu": round(ours.cpu / theirs.cpu, 2)}


class RoleMeter:
    """Rounds through the real roles, with the wall and CPU seconds that each role spends."""

    def __init__(self, args: argparse.Namespace) -> None:
        draws = numpy_generator(ROOT, USAGE_BENCH, "roles")
        self.server_updates = unit_rows(draws.standard_normal((args.clusters, args.dim), dtype=np.float32))
        self.clusters = [i % args.clusters for i in range(args.clients)]
        own = unit_rows(draws.standard_normal((args.clients, args.dim), dtype=np.float32))
        self.updates = unit_rows(own + 0.5 * self.server_updates[self.clusters])
        options = {} if args.field is None else {"field": args.field}
        self.session = Session(
            "sealed", num_clients=args.clients, num_clusters=args.clusters, dim=args.dim, root=ROOT,
            options=options, keep_transcript=False,
        )  # fmt: skip
        self.seconds: dict[Address, list[float]] = {}

    def act(self, address: Address, step: Callable[[], list[Outgoing]]) -> None:
        """A local step and everything that follows from it."""
        queue = [(address, step)]
        while queue:
            who, call = queue.pop(0)
            wall, cpu = time.perf_counter(), time.process_time()
            outgoing = call()
            spent = self.seconds.setdefault(who, [0.0, 0.0])
            spent[0] += time.perf_counter() - wall
            spent[1] += time.process_time() - cpu
            for to, message in outgoing:
                data = codec.encode(message, self.session.bus.run_tag)
                queue.append((to, partial(self.session.bus.roles[to].receive, who, data)))

    def round(self, round_id: int) -> dict[Address, list[float]]:
        """Seconds (wall, CPU) of each role in one round."""
        self.seconds = {}
        server = self.session.server
        self.act(SERVER, lambda: server.start_round(round_id, range(len(self.clusters)), self.server_updates))
        for i, client in enumerate(self.session.clients):
            self.act(client.address, partial(client.encode, round_id, self.updates[i], self.clusters[i]))
        for step in (server.close_uploads, server.close_uploads, server.finish_round):
            self.act(SERVER, step)
        if server.outcome is None or len(server.outcome.included) < len(self.clusters):
            raise RuntimeError("an honest round failed")
        return self.seconds


def roles(args: argparse.Namespace) -> dict[str, Any]:
    """The same numbers through the real roles: decoding, range checks, the store in memory, opening and release too."""
    meter, n, plain = RoleMeter(args), args.clients, Timer()
    meter.session.round(meter.updates, meter.clusters, meter.server_updates)  # compiles, commits
    rounds = []
    for k in range(args.repeat):
        rounds.append(meter.round(round_id_of(2 + k)))
        plain.run(lambda: rfca_sums(meter.updates, meter.clusters, meter.server_updates))
    least = {who: [1e3 * min(one[who][k] for one in rounds) for k in (0, 1)] for who in rounds[0]}
    clients = [1e3 * min(one[c.address][k] for one in rounds for c in meter.session.clients) for k in (0, 1)]
    return {
        "server_total": {"wall_ms": round(least[SERVER][0], 2), "cpu_ms": round(least[SERVER][1], 2)},
        "plain_rfca": plain.each(1),
        "server_over_plain": {
            "wall": round(least[SERVER][0] / plain.wall, 2),
            "cpu": round(least[SERVER][1] / plain.cpu, 2),
        },
        "client": {"wall_ms": round(clients[0], 3), "cpu_ms": round(clients[1], 3)},
        "kdc_per_client": {"wall_ms": round(least[KDC][0] / n, 3), "cpu_ms": round(least[KDC][1] / n, 3)},
    }


def machine() -> dict[str, Any]:
    """What the numbers rest on: cores, how busy they are, and the speed of the key stream that pads are made of."""
    out, timer = np.empty(1 << 20, dtype=np.uint8), Timer()
    stream = SecretStream(ROOT, USAGE_BENCH, "speed")
    for _ in range(50):
        timer.run(lambda: stream.fill(out))
    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "aes_ctr_gb_per_s": round(out.nbytes / timer.cpu / 1e6, 2),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    params = plan(args.clients, args.dim, args.clusters, args.field)
    before = machine()
    return {
        "clients": args.clients,
        "dim": args.dim,
        "clusters": args.clusters,
        "threads": args.threads,
        "field": params.field_name,
        "parameters": params.describe(),
        "upload_bytes": params.upload_bytes,
        "machine": before,
        "key_stream_ms_per_client": round(
            2 * params.width * params.field.word_size / before["aes_ctr_gb_per_s"] / 1e6, 3
        ),
        "targets": {"server_over_plain": 3.0, "client_ms": 2.0, "kdc_ms_per_client": 0.6},
        "work": work(args),
        "roles": roles(args),
        "load_average_after": round(os.getloadavg()[0], 1),
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
