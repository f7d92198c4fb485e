"""The auditor's side: plays rounds it knows the truth of, cuts views out of the transcripts, and scores estimates.

Nothing here is visible to an attack. `judge` is the one place where an estimate meets the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ebscfl import rng
from ebscfl.audit.views import Estimate, Floats, OwnRound, View
from ebscfl.errors import UsageError
from ebscfl.ids import KDC, SERVER, Address, client_address
from ebscfl.plain import unit_rows
from ebscfl.protocol.bus import FaultyWire, Received
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.run import RoundResult, Session

RECOVERED = 0.99
"""Cosine from which an update counts as recovered."""

AGREEMENT = 0.5
"""Weight of the server update in an example update; the cosine is then about 0.45."""


@dataclass(frozen=True, eq=False, repr=False)
class Truth:
    """The inputs of one round."""

    updates: Floats  # (n, l)
    clusters: tuple[int, ...]
    server_updates: Floats  # (m, l)

    def scores(self) -> Floats:
        """(n,) cosines with the own cluster's server update."""
        pairs = unit_rows(self.updates), unit_rows(self.server_updates)[list(self.clusters)]
        scores: Floats = np.einsum("ij,ij->i", *pairs)
        return scores


@dataclass(frozen=True, eq=False, repr=False)
class Record:
    """Some rounds of one session with everything anybody received in them."""

    setup: Setup
    truths: tuple[Truth, ...]
    results: tuple[RoundResult, ...]
    round_ids: tuple[int, ...]
    transcript: dict[Address, list[Received]]
    root: bytes  # the key center's


@dataclass(frozen=True)
class Finding:
    """One line of the audit. ``chance``: the share of clusters that blind guessing gets right."""

    name: str
    protocol: str
    updates_recovered: int
    of: int
    clusters_recovered: int
    median_cosine: float
    chance: float
    seconds: float
    statistic: float | None = None
    p_value: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The JSON object; a statistic that was not computed is left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def example_truth(
    num_clients: int, num_clusters: int, dim: int, root: bytes, index: int = 0, *, opposed: float = 0.0
) -> Truth:
    """Unit updates that agree with their cluster's server update (cosine about 0.45), clusters drawn at random.

    The server updates and the clusters do not depend on ``index``, the clients' updates do: the rounds of one run.
    A share ``opposed`` of the clients, others in every round, points the other way and earns no trust.
    """
    draw = rng.numpy_generator(root, rng.USAGE_AUDIT, "run")
    server = unit_rows(draw.standard_normal((num_clusters, dim)))
    clusters = tuple(int(k) for k in draw.integers(0, num_clusters, num_clients))
    fresh = rng.numpy_generator(root, rng.USAGE_AUDIT, "round", index)
    noise = unit_rows(fresh.standard_normal((num_clients, dim)))
    sign = np.where(fresh.random(num_clients) < opposed, -1.0, 1.0)
    updates = unit_rows(noise + (AGREEMENT * sign)[:, None] * server[list(clusters)])
    return Truth(np.asarray(updates, dtype=np.float64), clusters, np.asarray(server, dtype=np.float64))


def play(
    protocol: str,
    truths: Sequence[Truth],
    *,
    seed: int = 0,
    normalize: str = "global",
    wire: FaultyWire | None = None,
    **options: Any,
) -> Record:
    """Play the rounds of ``truths`` with all roles and keep every message."""
    first = truths[0]
    num_clusters, dim = first.server_updates.shape
    root = rng.root_from_seed(seed)
    session = Session(
        protocol, num_clients=len(first.updates), num_clusters=num_clusters, dim=dim, root=root,
        normalize=normalize, options=options, wire=wire,
    )  # fmt: skip
    results, round_ids = [], []
    for truth in truths:
        results.append(session.round(truth.updates, truth.clusters, truth.server_updates))
        round_ids.append(session.server.round_id)
    return Record(session.setup, tuple(truths), tuple(results), tuple(round_ids), results[-1].transcript, root)


def server_view(record: Record, corrupt: Sequence[int] = ()) -> View:
    """What the server knows, alone or together with ``corrupt`` clients."""
    messages = list(record.transcript[SERVER])
    for client in corrupt:
        messages += record.transcript[client_address(client)]
    rounds = tuple(
        OwnRound(
            round_id,
            truth.server_updates,
            _sums(record.setup, result),
            result.included,
            tuple((i, truth.updates[i], truth.clusters[i]) for i in corrupt),
        )
        for round_id, truth, result in zip(record.round_ids, record.truths, record.results, strict=True)
    )
    role = "server" if not corrupt else f"server + {len(corrupt)} clients"
    return View(role, tuple(messages), record.setup, rounds)


def kdc_view(record: Record) -> View:
    """What the key center knows: what the server sends it, and its own root, from which every key follows."""
    sealed = record.setup.protocol == "sealed"  # where the session derives the key center's root from the run's
    secret = rng.derive(record.root, rng.USAGE_ROLE, "kdc") if sealed else record.root
    rounds = tuple(
        OwnRound(round_id, truth.server_updates)
        for round_id, truth in zip(record.round_ids, record.truths, strict=True)
    )
    return View("kdc", tuple(record.transcript.get(KDC, ())), record.setup, rounds, secret=secret)


def _sums(setup: Setup, result: RoundResult) -> Floats:
    """Undo the normalization: the sums are what the result tells its receiver."""
    if setup.normalize == "global":
        return np.asarray(result.aggregates * result.total_weight)
    if result.cluster_weight is None:
        raise UsageError("a result normalized by cluster comes with the weight of each cluster")
    return np.asarray(result.aggregates * result.cluster_weight[:, None])


def cosines(estimated: Floats, true: Floats) -> Floats:
    """Row by row; a zero row has cosine zero."""
    return np.asarray(np.einsum("ij,ij->i", unit_rows(estimated), unit_rows(true)))


def judge(name: str, record: Record, estimate: Estimate, seconds: float = 0.0, *, protocol: str = "") -> Finding:
    """How much of the last round's truth an estimate hit."""
    truth = record.truths[-1]
    targets = list(estimate.targets)
    cosine = cosines(estimate.updates, truth.updates[targets])
    right = estimate.clusters == np.array(truth.clusters, dtype=np.int64)[targets]
    return Finding(
        name=name,
        protocol=protocol or record.setup.protocol,
        updates_recovered=int((cosine >= RECOVERED).sum()),
        of=len(targets),
        clusters_recovered=int(right.sum()),
        median_cosine=float(np.median(cosine)) if targets else 0.0,
        chance=1.0 / record.setup.num_clusters,
        seconds=seconds,
        note=estimate.note,
    )


def normal_p(statistic: float) -> float:
    """Two-sided p-value of a standard normal statistic."""
    return math.erfc(abs(statistic) / math.sqrt(2.0))


def binomial_p(hits: int, trials: int, chance: float) -> float:
    """Probability of at least ``hits`` right guesses by luck (one-sided, exact)."""
    if trials == 0 or hits == 0:
        return 1.0
    logs = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(chance) + (trials - k) * math.log1p(-chance)
        for k in range(hits, trials + 1)
    ] if chance < 1.0 else [0.0]  # fmt: skip
    top = max(logs)
    return min(1.0, math.exp(top) * math.fsum(math.exp(value - top) for value in logs))
