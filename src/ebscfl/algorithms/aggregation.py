"""The seam between RFCA and whoever computes its aggregate: plain arithmetic here, or the roles of a protocol.

``direct`` is the rule itself on the device that trains; everything else plays the three roles of `ebscfl.protocol`,
on the same updates, and must give the same function. Scores and weights for the metrics come from the rule in every
case: a simulation may know what the server of a private protocol may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ebscfl.arrays import as_tensor
from ebscfl.errors import RoundAborted
from ebscfl.rng import USAGE_ROLE, derive, numpy_generator
from ebscfl.rules.rfca import rfca

if TYPE_CHECKING:
    from ebscfl.protocol import Session

DIRECT = "direct"
PROTOCOLS = (DIRECT, "plain", "paper", "paper-naive", "sealed")
GLOBAL_ONLY = ("paper", "paper-naive")
"""Protocols that reveal one total weight, so they cannot divide each cluster by its own."""
SET_UP_MESSAGES = frozenset({"EnrolRequest", "Enrolment", "ClientKeyPackage", "ServerKeyPackage"})
"""Sent once a run (and again by a resumed one), so not part of what a round costs."""


@dataclass(frozen=True, eq=False)
class ClusteredOutcome:
    """Result of one clustered aggregation; ``aggregates`` are not yet scaled by the root updates' norms."""

    aggregates: Tensor  # (m, d)
    weights: Tensor  # (n,) ReLU of the cosine
    scores: Tensor  # (n,) the cosine
    cluster_weight: Tensor  # (m,) sum of weights
    events: tuple[str, ...] = ()
    bytes: Mapping[str, int] | None = None
    role_seconds: Mapping[str, float] | None = None
    privacy: Mapping[str, float] | None = None


Aggregator = Callable[..., ClusteredOutcome]
"""(updates, clusters, server_updates, *, clients, normalize, round_id) -> outcome; row i belongs to ``clients[i]``."""


def aggregate_directly(
    updates: Tensor, clusters: Tensor, server_updates: Tensor, *, clients: Tensor, normalize: str, round_id: int
) -> ClusteredOutcome:
    """Weigh (k, d) updates by their trust and sum them per cluster, in the clear."""
    result = rfca(updates, clusters=clusters, server_updates=server_updates, normalize=normalize)
    aggregates, weights, scores, cluster_weight = (
        as_tensor(part, name="result", ndim=part.ndim)
        for part in (result.aggregates, result.weights, result.scores, result.cluster_weight)
    )
    return ClusteredOutcome(aggregates, weights, scores, cluster_weight)


def normalization(protocol: str, asked: str) -> str:
    """What ``protocol`` can give: the paper's schemes divide by the weight of all clusters only."""
    return "global" if protocol in GLOBAL_ONLY else asked


class ProtocolAggregator:
    """One run of a protocol: its roles and keys live as long as this object."""

    def __init__(self, protocol: str, num_clients: int, root: bytes, options: Mapping[str, Any] | None = None) -> None:
        self._protocol = protocol
        self._num_clients = num_clients
        self._root = derive(root, USAGE_ROLE, "session", protocol)
        self._options = dict(options or {})
        self._session: Session | None = None
        self._spent = 0.0

    def __call__(
        self,
        updates: Tensor,
        clusters: Tensor,
        server_updates: Tensor,
        *,
        clients: Tensor,
        normalize: str,
        round_id: int,
    ) -> ClusteredOutcome:
        """Play one round through the roles. A zero update cannot be scaled to length one: its client stays silent."""
        direct = aggregate_directly(
            updates, clusters, server_updates, clients=clients, normalize=normalize, round_id=round_id
        )
        events: list[str] = []
        present = torch.linalg.vector_norm(updates, dim=1) > 0
        if not bool(present.all()):
            zero = [int(i) for i in clients[~present]]
            events.append(f"zero updates of clients {zero} are not sent")
        session = self._open(updates, server_updates, normalize)
        rows = np.zeros((self._num_clients, updates.shape[1]), dtype=updates.cpu().numpy().dtype)
        claimed = [0] * self._num_clients
        taking_part = [int(i) for i in clients[present]]
        rows[taking_part] = updates[present].cpu().numpy()
        for client, cluster in zip(taking_part, clusters[present].tolist(), strict=True):
            claimed[client] = int(cluster)
        try:
            result = session.round(
                rows,
                claimed,
                self._directions(server_updates, round_id),
                clients=taking_part,
                training_round=round_id,
            )
        except RoundAborted as error:
            nothing = torch.zeros_like(direct.aggregates)
            return ClusteredOutcome(
                nothing, direct.weights * 0, direct.scores, direct.cluster_weight * 0, (*events, f"no step: {error}")
            )
        events += [f"{who}: {why}" for who, why in sorted(result.culprits.items())]
        if result.restarts:
            events.append(f"the round was restarted {result.restarts} times")
        spent, before = float(result.details.get("epsilon_spent", 0.0)), self._spent
        self._spent = spent
        return ClusteredOutcome(
            torch.as_tensor(result.aggregates, dtype=direct.aggregates.dtype, device=updates.device),
            direct.weights,
            direct.scores,
            direct.cluster_weight,
            (*events, *result.events),
            {name: size for name, size in result.bytes_by_message.items() if name not in SET_UP_MESSAGES},
            {name: result.seconds[name] for name in ("kdc", "server", "clients", "codec")},
            {"epsilon": spent - before, "epsilon_total": spent, "delta": float(self._options["delta"])}
            if spent
            else None,
        )

    def _open(self, updates: Tensor, server_updates: Tensor, normalize: str) -> Session:
        from ebscfl.protocol import Session  # numba and cryptography only where a protocol is asked for

        if self._session is None:
            self._session = Session(
                self._protocol,
                num_clients=self._num_clients,
                num_clusters=server_updates.shape[0],
                dim=updates.shape[1],
                root=self._root,
                normalize=normalize,
                options=self._options,
                keep_transcript=False,
            )
        return self._session

    def _directions(self, server_updates: Tensor, round_id: int) -> Any:
        """The root updates; a cluster without one gets a random direction, since no protocol can hide a zero.

        Its step is scaled by its zero length, so what lands there moves nothing.
        """
        rows = server_updates.cpu().numpy().copy()
        for k in np.flatnonzero(~rows.any(axis=1)):
            rows[k] = numpy_generator(self._root, USAGE_ROLE, "no-root-update", round_id, int(k)).standard_normal(
                rows.shape[1], dtype=rows.dtype
            )
        return rows


def make_aggregator(
    protocol: str, num_clients: int, root: bytes, options: Mapping[str, Any] | None = None
) -> Aggregator:
    """The aggregator of a cell."""
    if protocol == DIRECT:
        return aggregate_directly
    return ProtocolAggregator(protocol, num_clients, root, options)
