"""What a round of each protocol costs: CPU seconds and exact bytes per role, for `ebs-cfl bench secure-aggregation`.

Seconds are CPU time of the process while a role acts, so a busy machine changes little; bytes are codec sizes. Where
all masks of all clients would take minutes, a few clients are measured and the others upload a stand-in of the same
size: `sampled_clients` says how many were measured, and neither the server's work nor any size changes by it.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ebscfl import rng
from ebscfl.errors import ConfigError
from ebscfl.ids import KDC, SERVER, Role, client_address
from ebscfl.protocol.bus import Bus, Carried
from ebscfl.protocol.messages_secagg import MaskedInput
from ebscfl.protocol.registry import PROTOCOLS, SECURE_SUMS
from ebscfl.protocol.roles import Floats, Outgoing
from ebscfl.protocol.run import Session
from ebscfl.protocol.secagg.parameters import MASKED
from ebscfl.protocol.secagg.roles import SumClient
from ebscfl.protocol.secagg.run import SecureSumSession, cpu_bus
from ebscfl.protocol.states import Step

HEADLINE = ("plain", "sealed", *SECURE_SUMS)
PAPER_KEY_WORDS = 10_000_000
"""Largest n m l at which the paper's keys are dealt here: they are 3 n m l float64, 240 MB at this size."""
MASK_WORDS = 1_000_000_000
"""Masks of all clients together, in words, above which only a sample of clients is measured (a word takes 1 ns)."""
SAMPLE = 5

Row = dict[str, Any]


class SampledSession(SecureSumSession):
    """A masked-sum session in which only ``measured`` clients make their masks; the others upload zeros."""

    measured: frozenset[int] = frozenset()

    def upload(self, client: SumClient, round_id: int, update: Floats, cluster: int) -> list[Outgoing]:
        if client.client in self.measured:
            return super().upload(client, round_id, update, cluster)
        client.advance(Step.ENCODE)
        return [Outgoing(SERVER, MaskedInput(round_id, np.zeros(client.params.width, dtype=np.uint32)))]


def names() -> tuple[str, ...]:
    """Every protocol that can be measured."""
    return (*PROTOCOLS, *SECURE_SUMS)


def example_updates(num_clients: int, dim: int, seed: int) -> Floats:
    """One random unit update, seen ``num_clients`` times without a copy: costs do not depend on the values."""
    draw = rng.numpy_generator(rng.root_from_seed(seed), rng.USAGE_BENCH, "secure-sums")
    update = draw.standard_normal(dim).astype(np.float32)
    return np.broadcast_to(update / np.linalg.norm(update), (num_clients, dim))


def leavers(num_clients: int, share: float) -> tuple[int, ...]:
    """The last ``share`` of the clients: they drop out before they upload."""
    if not 0 <= share < 1:
        raise ConfigError(f"the share of drop-outs lies in [0, 1), not {share}")
    return tuple(range(num_clients - round(share * num_clients), num_clients))


def measure(
    protocol: str,
    *,
    clients: int,
    dim: int,
    clusters: int = 1,
    dropouts: float = 0.0,
    repeats: int = 1,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Row:
    """One row: medians over ``repeats`` rounds after one that warms caches (and deals keys, where keys last)."""
    if protocol not in names():
        raise ConfigError(f"unknown protocol {protocol!r}; there are: {', '.join(names())}")
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, not {repeats}")
    gone = leavers(clients, dropouts)
    play = _sum_rounds if protocol in SECURE_SUMS else _scored_rounds
    rounds, sampled = play(protocol, clients, dim, clusters, gone, repeats, seed, dict(options or {}))
    return {
        "protocol": protocol,
        "clients": clients,
        "dim": dim,
        "clusters": clusters,
        "dropouts": dropouts,
        **{key: statistics.median(one[key] for one in rounds) for key in rounds[0]},
        "sampled_clients": sampled,
    }


def _costs(bus: Bus, clients: Collection[int], num_clients: int) -> Row:
    def flow(sender: Role, receiver: Role) -> int:
        return sum(size for (a, b, _), size in bus.bytes.items() if (a, b) == (sender, receiver))

    up = flow(Role.CLIENT, Role.SERVER)
    return {
        "client_cpu_s": statistics.fmean(bus.seconds.get(client_address(i), 0.0) for i in clients),
        "server_cpu_s": bus.seconds.get(SERVER, 0.0),
        "kdc_cpu_s": bus.seconds.get(KDC, 0.0),
        "client_upload_bytes": up / num_clients,
        "client_download_bytes": (flow(Role.SERVER, Role.CLIENT) + flow(Role.KDC, Role.CLIENT)) / num_clients,
        "server_download_bytes": up + flow(Role.KDC, Role.SERVER),
        "server_upload_bytes": flow(Role.SERVER, Role.CLIENT) + flow(Role.SERVER, Role.KDC),
    }


def _sum_rounds(
    protocol: str, n: int, dim: int, m: int, gone: Sequence[int], repeats: int, seed: int, options: dict[str, Any]
) -> tuple[list[Row], int]:
    session = SampledSession(
        protocol, num_clients=n, num_clusters=m, dim=dim, root=rng.root_from_seed(seed), options=options,
        keep_transcript=False,
    )  # fmt: skip
    peers = {"secagg": n, "secagg-plus": session.server.params.degree}.get(
        protocol, round(n * session.server.params.edge_probability)
    )
    staying = [i for i in range(n) if i not in gone]
    few = protocol in MASKED and n * peers * m * dim > MASK_WORDS
    chosen = staying[:: max(1, len(staying) // SAMPLE)][:SAMPLE] if few else staying
    session.measured = frozenset(chosen) if few else frozenset(range(n))
    updates, slots = example_updates(n, dim, seed), [i % m for i in range(n)]
    # FastSecAgg's inputs are in once they are shared, so its leavers leave after that.
    point = "open" if protocol == "fastsecagg" else "upload"
    rounds = []
    for number in range(repeats + (0 if few or n * n * 100 + n * m * dim > 10_000_000 else 1)):
        if number == 0:
            warm_up(protocol, dim, m, options)
        session.round(updates, slots, dropouts={point: gone})
        rounds.append(_costs(session.bus, chosen, n))
    return rounds[-repeats:], len(chosen)


def warm_up(protocol: str, dim: int, m: int, options: dict[str, Any]) -> None:
    """A small round of the same width, so that no compilation or first touch is billed."""
    small = {name: value for name, value in options.items() if name in ("clip", "code")}
    session = SecureSumSession(
        protocol, num_clients=6, num_clusters=m, dim=min(dim, 1000), root=rng.root_from_seed(1), options=small,
        keep_transcript=False,
    )  # fmt: skip
    session.round(example_updates(6, min(dim, 1000), 1), [0] * 6)


def _scored_rounds(
    protocol: str, n: int, dim: int, m: int, gone: Sequence[int], repeats: int, seed: int, options: dict[str, Any]
) -> tuple[list[Row], int]:
    if protocol.startswith("paper") and n * dim * m > PAPER_KEY_WORDS:
        raise ConfigError(f"{protocol} deals keys of 3 n m l numbers: {n} clients of dimension {dim} are too many here")
    root = rng.root_from_seed(seed)
    session = Session(
        protocol, num_clients=n, num_clusters=m, dim=dim, root=root, normalize="global", options=options,
        keep_transcript=False,
    )  # fmt: skip
    session.bus = cpu_bus(session.bus.roles, session.bus.run_tag, keep_transcript=False)
    lost = _Lost(gone)
    session.bus.wire = lost if gone else None
    updates, slots = example_updates(n, dim, seed), [i % m for i in range(n)]
    server = np.broadcast_to(updates[0], (m, dim)).astype(np.float64)
    rounds = []
    for _ in range(repeats + 1):  # the first deals keys
        lost.bytes = 0
        session.round(updates, slots, server)
        costs = _costs(session.bus, [i for i in range(n) if i not in gone], n)
        costs["client_upload_bytes"] -= lost.bytes / n
        costs["server_download_bytes"] -= lost.bytes
        rounds.append(costs)
    return rounds[1:], n - len(gone)


class _Lost:
    """A wire on which nothing of the leavers arrives; their bytes are not billed."""

    def __init__(self, gone: Collection[int]) -> None:
        self._gone = {client_address(i) for i in gone}
        self.bytes = 0

    def __call__(self, carried: Carried) -> Iterable[Carried]:
        if carried.sender not in self._gone:
            return (carried,)
        self.bytes += len(carried.data)
        return ()


def bench(
    *,
    clients: int = 100,
    dim: int = 200_000,
    clusters: int = 1,
    dropouts: float = 0.1,
    protocols: Iterable[str] = HEADLINE,
    repeats: int = 3,
    seed: int = 0,
) -> dict[str, Any]:
    """The document `ebs-cfl bench secure-aggregation --json` prints: every protocol without and with drop-outs."""
    shares = (0.0, dropouts) if dropouts else (0.0,)
    rows = [
        measure(name, clients=clients, dim=dim, clusters=clusters, dropouts=share, repeats=repeats, seed=seed)
        for name in protocols
        for share in shares
    ]
    return {"rows": rows, "targets": targets(rows)}


def targets(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Ratios the project asked for, computed from one run: what, how much, and whether it is reached."""
    found = {(row["protocol"], row["dropouts"] > 0): row for row in rows}
    out = []

    def ratio(text: str, over: tuple[str, bool], under: tuple[str, bool], key: str, wanted: float, least: bool) -> None:
        if over in found and under in found and found[under][key] > 0:
            value = found[over][key] / found[under][key]
            reached = value >= wanted if least else value <= wanted
            out.append({"target": text, "wanted": wanted, "measured": value, "reached": bool(reached)})

    for peer, wanted in (("secagg", 20), ("secagg-plus", 3), ("lightsecagg", 3)):
        text = f"client CPU: {peer} over sealed, at least {wanted}"
        ratio(text, (peer, False), ("sealed", False), "client_cpu_s", wanted, True)
    text = "client upload: sealed over plain, at most 2.1"
    ratio(text, ("sealed", False), ("plain", False), "client_upload_bytes", 2.1, False)
    text = "server CPU with drop-outs: secagg over sealed, at least 10"
    ratio(text, ("secagg", True), ("sealed", True), "server_cpu_s", 10, True)
    return out


def markdown(document: Mapping[str, Any]) -> str:
    """The rows as a table: CPU milliseconds, and megabytes a client."""
    lines = [
        "| protocol | drop-outs | client ms | server ms | key centre ms | client up MB | client down MB | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        times = " | ".join(f"{1e3 * row[key]:.2f}" for key in ("client_cpu_s", "server_cpu_s", "kdc_cpu_s"))
        sizes = " | ".join(f"{row[key] / 1e6:.3f}" for key in ("client_upload_bytes", "client_download_bytes"))
        lines.append(
            f"| {row['protocol']} | {100 * row['dropouts']:.0f} % | {times} | {sizes} | {row['sampled_clients']} |"
        )
    return "\n".join(lines) + "\n"


def targets_markdown(document: Mapping[str, Any]) -> str:
    """The targets as a table."""
    lines = ["| target | measured | |", "|---|---|---|"]
    lines += [
        f"| {one['target']} | {one['measured']:.2f} | {'reached' if one['reached'] else 'not reached'} |"
        for one in document["targets"]
    ]
    return "\n".join(lines) + "\n"
