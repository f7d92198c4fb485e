"""Local training of n clients: samples a second of the batched program against one client after the other.

    python bench/simulation.py [--clients 100] [--repeat 5]

``--table`` measures only the full-scale non-i.i.d. table's local training (20 clients, batches of 64, 40 steps), with
no compilation: a quarter of a minute on a GPU.

Prints one JSON document. Ratios come from runs that alternate within one process, so a busy machine slows both sides;
each side counts with its fastest repeat. Peak memory is the high-water mark of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebscfl import rng
from ebscfl.learning.federation import FederatedData
from ebscfl.learning.local import LocalSettings, draw_batches, local_updates, local_updates_sequential
from ebscfl.learning.models import make_model

ROOT = rng.root_from_seed(0)
BATCH = 32
MNIST = (1, 28, 28)
CIFAR = (3, 32, 32)


def random_data(clients: int, shape: tuple[int, int, int], device: str) -> FederatedData:
    """Noise images, 64 a client: their content does not change the time."""
    generator = rng.torch_generator(ROOT, rng.USAGE_BENCH)
    total = 64 * clients
    return FederatedData(
        x=torch.randint(0, 256, (total, *shape), generator=generator, dtype=torch.uint8),
        y=torch.randint(0, 10, (total,), generator=generator),
        client_rows=tuple(torch.split(torch.arange(total), 64)),
        root_rows=(),
        test_x=torch.zeros(1, 1, *shape, dtype=torch.uint8),
        test_y=torch.zeros(1, 1, dtype=torch.int64),
        client_domain=torch.zeros(clients, dtype=torch.int64),
        client_label_share=torch.full((clients, 10), 0.1, dtype=torch.float64),
        scale=torch.ones(shape[0]),
        shift=torch.zeros(shape[0]),
        num_classes=10,
    ).to(device)


def fastest(runs: dict[str, Callable[[], Tensor]], repeat: int, device: str) -> dict[str, float]:
    """Seconds of the fastest of ``repeat`` alternating calls of each, after one to warm up."""
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(repeat + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def speed(name: str, shape: tuple[int, int, int], clients: int, repeat: int, device: str) -> dict[str, Any]:
    """Batched against sequential, one local step, all clients starting from the same model and each from its own."""
    model = make_model(name, shape, 10)
    data = random_data(clients, shape, device)
    batches = draw_batches(data.client_rows, 1, BATCH, ROOT, rng.USAGE_BENCH, 1)
    shared = model.init(ROOT).to(device)
    own = shared.repeat(clients, 1)
    settings = LocalSettings(steps=1, batch_size=BATCH, lr=0.1)
    runs = {
        "sequential": lambda: local_updates_sequential(model, own, data, batches, settings),
        "batched_own_start": lambda: local_updates(model, own, data, batches, settings),
        "batched_shared_start": lambda: local_updates(model, shared, data, batches, settings),
    }
    if device == "cuda":
        for label, changed in {
            "batched_bfloat16": replace(settings, dtype="bfloat16"),
            "batched_compiled": replace(settings, compile_step=True),
            "batched_compiled_bfloat16": replace(settings, compile_step=True, dtype="bfloat16"),
        }.items():
            runs[label] = partial(local_updates, model, own, data, batches, changed)
    else:
        runs["batched_vmap"] = lambda: local_updates(model, own, data, batches, replace(settings, method="vmap"))
    seconds = fastest(runs, repeat, device)
    return {
        "model": name,
        "device": device,
        "clients": clients,
        "batch": BATCH,
        "samples_per_s": {label: round(clients * BATCH / value) for label, value in seconds.items()},
        "times_sequential": {
            label: round(seconds["sequential"] / value, 2) for label, value in seconds.items() if label != "sequential"
        },
    }


def table_speed(clients: int, repeat: int, device: str) -> dict[str, Any]:
    """Samples a second of one client round as table-noniid trains it, each way there is."""
    model = make_model("cifar-cnn", CIFAR, 10)
    data = random_data(clients, CIFAR, device)
    settings = LocalSettings(steps=40, batch_size=64, lr=0.05, memory_mb=8192)
    batches = draw_batches(data.client_rows, settings.steps, settings.batch_size, ROOT, rng.USAGE_BENCH, 1)
    own = model.init(ROOT).to(device).repeat(clients, 1)
    ways: dict[str, Callable[[], Tensor]] = {
        "sequential": partial(local_updates_sequential, model, own, data, batches[:, :4], settings)
    }
    for method in ("vmap", "lowered"):
        for dtype in ("float32", "bfloat16"):
            changed = replace(settings, method=method, dtype=dtype)
            ways[f"{method}_{dtype}"] = partial(local_updates, model, own, data, batches, changed)
    seconds = fastest(ways, repeat, device)
    seconds["sequential"] *= 10  # it took 4 of the 40 steps
    samples = batches.numel()
    return {
        "model": "cifar-cnn",
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "clients": clients,
        "batch": settings.batch_size,
        "steps": settings.steps,
        "samples_per_s": {way: round(samples / value) for way, value in seconds.items()},
        "times_sequential": {way: round(seconds["sequential"] / value, 2) for way, value in seconds.items()},
    }


def scaling(clients: int, repeat: int) -> dict[str, Any]:
    """Time of 10 n clients over time of n, MLP."""
    model = make_model("mlp", MNIST, 10)
    start = model.init(ROOT)
    settings = LocalSettings(steps=1, batch_size=BATCH)
    runs: dict[str, Callable[[], Tensor]] = {}
    for count in (clients, 10 * clients):
        data = random_data(count, MNIST, "cpu")
        batches = draw_batches(data.client_rows, 1, BATCH, ROOT, rng.USAGE_BENCH, 1)
        runs[str(count)] = partial(local_updates, model, start, data, batches, settings)
    seconds = fastest(runs, repeat, "cpu")
    return {
        "model": "mlp",
        "clients": [clients, 10 * clients],
        "ratio": round(seconds[str(10 * clients)] / seconds[str(clients)], 2),
    }


def _peak(method: str, clients: int, memory_mb: int, answer: Any) -> None:
    model = make_model("cnn", MNIST, 10)
    data = random_data(clients, MNIST, "cpu")
    batches = draw_batches(data.client_rows, 1, BATCH, ROOT, rng.USAGE_BENCH, 1)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # start a new high-water mark
    local_updates(model, model.init(ROOT), data, batches, LocalSettings(steps=1, memory_mb=memory_mb, method=method))
    # The result itself grows with n; what the chunks need on top must not.
    answer.put(_resident("VmHWM") - before - clients * model.dim * 4 / (1 << 20))


def _resident(field: str) -> float:
    """MiB that Linux reports for this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def peak_memory() -> list[dict[str, Any]]:
    """Peak MiB of training beyond the ``(n, dim)`` result, vmapped CNN: follows ``memory_mb``, not n."""
    context = multiprocessing.get_context("spawn")
    rows = []
    for clients, memory_mb in ((20, 64), (100, 64), (100, 256)):
        answer: Any = context.Queue()
        process = context.Process(target=_peak, args=("vmap", clients, memory_mb, answer))
        process.start()
        rows.append({"clients": clients, "memory_mb": memory_mb, "peak_mib": round(answer.get())})
        process.join()
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        print(
            json.dumps({"torch": torch.__version__, **table_speed(options.clients, options.repeat, device)}, indent=2)
        )
        return
    rows = [speed(name, MNIST, options.clients, options.repeat, "cpu") for name in ("mlp", "cnn")]
    if torch.cuda.is_available():
        rows.append(speed("cifar-cnn", CIFAR, options.clients, options.repeat, "cuda"))
    document = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "speed": rows,
        "scaling": scaling(options.clients, options.repeat),
        "peak_memory": peak_memory() if sys.platform == "linux" else None,
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
