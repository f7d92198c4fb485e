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
from ebscfl.rules.rfca import rfca, rfca_weighted
from ebscfl.rules.score_history import History, HistorySettings, advance, history_to_json

if TYPE_CHECKING:
    from ebscfl.protocol import Session

DIRECT = "direct"
PROTOCOLS = (DIRECT, "plain", "paper", "paper-naive", "sealed")
GLOBAL_ONLY = ("paper", "paper-naive")
"""Protocols that reveal one total weight, so they cannot divide each cluster by its own."""
SET_UP_MESSAGES = frozenset({"EnrolRequest", "Enrolment", "ClientKeyPackage", "ServerKeyPackage"})
"""Sent once a run (and again by a resumed one), so not part of what a round costs."""


@dataclass(frozen=True, eq=False)
class Memory:
    """The score histories an aggregation may judge by (RFCA-H): one for all clients, or one per cluster."""

    settings: HistorySettings
    histories: tuple[History, ...]


@dataclass(frozen=True, eq=False)
class ClusteredOutcome:
    """Result of one clustered aggregation; ``aggregates`` are not yet scaled by the root updates' norms."""

    aggregates: Tensor  # (m, d)
    weights: Tensor  # (n,) ReLU of the cosine, times what the score history says of the client
    scores: Tensor  # (n,) the cosine
    cluster_weight: Tensor  # (m,) sum of weights
    events: tuple[str, ...] = ()
    bytes: Mapping[str, int] | None = None
    role_seconds: Mapping[str, float] | None = None
    privacy: Mapping[str, float] | None = None
    histories: tuple[History, ...] = ()  # after this round


Aggregator = Callable[..., ClusteredOutcome]
"""(updates, clusters, server_updates, *, clients, normalize, round_id, memory) -> outcome; row i belongs to
``clients[i]``."""


def aggregate_directly(
    updates: Tensor,
    clusters: Tensor,
    server_updates: Tensor,
    *,
    clients: Tensor,
    normalize: str,
    round_id: int,
    memory: Memory | None = None,
) -> ClusteredOutcome:
    """Weigh (k, d) updates by their trust and sum them per cluster, in the clear."""
    result = rfca(updates, clusters=clusters, server_updates=server_updates, normalize=normalize)
    histories: tuple[History, ...] = ()
    if memory is not None:
        scores = as_tensor(result.scores, name="scores", ndim=1).double()
        # A zero update has no direction to judge; its sender is absent this round.
        present = torch.linalg.vector_norm(updates, dim=1) > 0
        trust, histories = judge(memory, clients, clusters, scores, present)
        result = rfca_weighted(
            updates,
            clusters=clusters,
            weights=trust,
            scores=scores,
            num_clusters=server_updates.shape[0],
            normalize=normalize,
        )
    aggregates, weights, scores, cluster_weight = (
        as_tensor(part, name="result", ndim=part.ndim)
        for part in (result.aggregates, result.weights, result.scores, result.cluster_weight)
    )
    return ClusteredOutcome(aggregates, weights, scores, cluster_weight, histories=histories)


def judge(
    memory: Memory, clients: Tensor, clusters: Tensor, scores: Tensor, present: Tensor
) -> tuple[Tensor, tuple[History, ...]]:
    """(k,) trust weights of one round from its (k,) scores, and the histories after it."""
    weights = torch.zeros(len(clients), dtype=torch.float64)
    ids, cosine = clients.cpu(), scores.cpu().clamp(-1.0, 1.0)
    claimed, here = clusters.cpu(), present.cpu()
    histories = list(memory.histories)
    for k, history in enumerate(memory.histories):
        compared = here & (claimed == k) if len(histories) > 1 else here
        if bool(compared.any()):
            histories[k], verdict = advance(history, ids[compared].numpy(), cosine[compared].numpy(), memory.settings)
            weights[compared] = torch.from_numpy(verdict.weights)
    return weights.to(scores.device), tuple(histories)


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
        memory: Memory | None = None,
    ) -> ClusteredOutcome:
        """Play one round through the roles. A zero update cannot be scaled to length one: its client stays silent.

        With ``memory`` the key center judges by its own history, which begins with the one given.
        """
        direct = aggregate_directly(
            updates, clusters, server_updates, clients=clients, normalize=normalize, round_id=round_id, memory=memory
        )
        events: list[str] = []
        present = torch.linalg.vector_norm(updates, dim=1) > 0
        if not bool(present.all()):
            zero = [int(i) for i in clients[~present]]
            events.append(f"zero updates of clients {zero} are not sent")
        session = self._open(updates, server_updates, normalize, memory)
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
                nothing,
                direct.weights * 0,
                direct.scores,
                direct.cluster_weight * 0,
                (*events, f"no step: {error}"),
                histories=self._histories(session, memory),
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
            self._histories(session, memory),
        )

    @staticmethod
    def _histories(session: Session, memory: Memory | None) -> tuple[History, ...]:
        """What the key center remembers: the simulator keeps it so that a resumed run goes on with the same."""
        if memory is None:
            return ()
        from ebscfl.protocol.sealed.kdc import SealedKdc

        assert isinstance(session.kdc, SealedKdc)
        return (session.kdc.score_history(),)

    def _open(self, updates: Tensor, server_updates: Tensor, normalize: str, memory: Memory | None) -> Session:
        from ebscfl.protocol import Session  # numba and cryptography only where a protocol is asked for

        if self._session is None:
            self._session = Session(
                self._protocol,
                num_clients=self._num_clients,
                num_clusters=server_updates.shape[0],
                dim=updates.shape[1],
                root=self._root,
                normalize=normalize,
                options=self._options | _memory_options(memory),
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


def _memory_options(memory: Memory | None) -> dict[str, Any]:
    if memory is None:
        return {}
    (history,) = memory.histories  # one per cluster is refused by the config: nobody here may know the clusters
    return {"history": True, "history_settings": memory.settings, "history_start": history_to_json(history)}


def make_aggregator(
    protocol: str, num_clients: int, root: bytes, options: Mapping[str, Any] | None = None
) -> Aggregator:
    """The aggregator of a cell."""
    if protocol == DIRECT:
        return aggregate_directly
    return ProtocolAggregator(protocol, num_clients, root, options)
