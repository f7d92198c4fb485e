"""What a round costs and how exact it is: the numbers behind ``ebs-cfl round`` and the protocol benchmarks.

Updates are random unit vectors with a known share of agreement with their cluster's server update. The first
round pays for dealing keys; the following ones are the steady state. Plain float32 RFCA and FedAvg are timed in the
same run, since only ratios mean something on a busy machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import ConfigError
from ebscfl.plain import fedavg_round, rfca_round, unit_rows
from ebscfl.protocol.registry import protocol_info
from ebscfl.protocol.run import RoundResult, Session

Floats = npt.NDArray[np.floating]
AGREEMENT = 0.5
"""Weight of the server update in an honest example update; one client in five points the other way."""


def example_round(num_clients: int, num_clusters: int, dim: int, root: bytes) -> tuple[Floats, tuple[int, ...], Floats]:
    """Unit updates (n, l), their clusters, and unit server updates (m, l)."""
    draw = rng.numpy_generator(root, rng.USAGE_BENCH, "example-round")
    server = unit_rows(draw.standard_normal((num_clusters, dim)))
    clusters = tuple(int(k) for k in draw.integers(0, num_clusters, num_clients))
    sign = np.where(np.arange(num_clients) % 5 == 4, -1.0, 1.0)
    noise = unit_rows(draw.standard_normal((num_clients, dim)))
    return unit_rows(noise + (AGREEMENT * sign)[:, None] * server[list(clusters)]), clusters, server


def relative_errors(got: Floats, want: Floats) -> list[float]:
    """|got_k - want_k| / |want_k| for every cluster; an aggregate that should be zero counts absolutely."""
    norms = np.linalg.norm(want, axis=1)
    return [float(e) for e in np.linalg.norm(got - want, axis=1) / np.where(norms > 0, norms, 1.0)]


def measure_round(
    protocol: str,
    *,
    num_clients: int,
    num_clusters: int,
    dim: int,
    seed: int = 0,
    repeats: int = 3,
    normalize: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The document ``ebs-cfl round --json`` prints."""
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, not {repeats}")
    root = rng.root_from_seed(seed)
    normalization = normalize or protocol_info(protocol).normalizations[-1]
    updates, clusters, server = example_round(num_clients, num_clusters, dim, root)
    session = Session(
        protocol, num_clients=num_clients, num_clusters=num_clusters, dim=dim, root=root,
        normalize=normalization, options=options, keep_transcript=False,
    )  # fmt: skip
    first = session.round(updates, clusters, server)
    rounds = [session.round(updates, clusters, server) for _ in range(repeats)]
    want, weight = rfca_round(updates, clusters, server, normalize=normalization)
    light_updates, light_server = updates.astype(np.float32), server.astype(np.float32)
    kdc_round = _median(rounds, "kdc")
    last = rounds[-1]
    return {
        "protocol": protocol,
        "clients": num_clients,
        "clusters": num_clusters,
        "dim": dim,
        "seed": seed,
        "normalize": normalization,
        "options": options,
        "relative_error": max(relative_errors(last.aggregates, want)),
        "relative_errors": relative_errors(last.aggregates, want),
        "total_weight": last.total_weight,
        "total_weight_error": abs(last.total_weight - weight) / weight if weight > 0 else abs(last.total_weight),
        "culprits": sorted(last.culprits),
        "bytes": {name: _per_client(size, num_clients) for name, size in last.bytes.items()},
        "bytes_total": last.bytes,
        "bytes_setup": {name: size - last.bytes[name] for name, size in first.bytes.items()},
        "bytes_by_message": last.bytes_by_message,
        "seconds": {
            "kdc_setup": max(0.0, first.seconds["kdc"] - kdc_round),
            "kdc_round": kdc_round,
            "client": _median(rounds, "client"),
            "client_encode": _median(rounds, "client_encode"),
            "server": _median(rounds, "server"),
            "server_keys": _median(rounds, "server_keys"),
            "codec": _median(rounds, "codec"),
            "plain_rfca": _time(lambda: rfca_round(light_updates, clusters, light_server), repeats),
            "fedavg": _time(lambda: fedavg_round(light_updates), repeats),
        },
        "details": last.details,
    }


def _per_client(size: int, num_clients: int) -> int:
    return round(size / num_clients)


def _median(rounds: list[RoundResult], role: str) -> float:
    return statistics.median(result.seconds[role] for result in rounds)


def _time(call: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(max(3, repeats)):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
