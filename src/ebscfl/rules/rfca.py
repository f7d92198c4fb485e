"""RFCA, the robust clustered rule of EBS-CFL (AAAI 2025), equation (1).

Every client i claims a cluster c_i, every cluster k has a server update g0^k from the root set. With unit vectors ĝ
and score ``w_i = <ĝ_i, ĝ0^{c_i}>``, the aggregate of cluster k is::

    sum_{i: c_i = k} ReLU(w_i) ĝ_i / W_k,    W_k = sum of ReLU(w_i) over cluster k   (normalize = "cluster")
                                             or over all clusters                    (normalize = "global")

Equation (1) has the first; the secure scheme decodes with the second (paper-protocol: "What the round computes").
The model then moves by ``eta * |g0^k| * aggregate_k``: that factor is the caller's. A zero update, and every member of
a cluster whose server update is zero, scores 0 and weighs 0; a cluster without weight gets a zero aggregate.

`cluster_scores` and `combine_clusters` are the two halves, for rules that weigh by more than this round's score
(`ebscfl.rules.score_history`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ebscfl.arrays import Array, as_tensor, as_updates
from ebscfl.errors import UsageError
from ebscfl.rules.geometry import cosines, directions
from ebscfl.rules.result import ClusteredResult, as_server_updates, clustered_result

Clusters = Sequence[int] | npt.NDArray[np.integer] | torch.Tensor
NORMALIZATIONS = ("cluster", "global")


def rfca(updates: Array, *, clusters: Clusters, server_updates: Array, normalize: str = "cluster") -> ClusteredResult:
    """Aggregate (n, d) ``updates`` per cluster: ``clusters`` (n,) in [0, m), ``server_updates`` (m, d)."""
    rows = as_updates(updates)
    servers = as_server_updates(server_updates, rows, name="server_updates", ndim=2)
    labels = as_clusters(clusters, rows.shape[0], servers.shape[0], rows.device)
    scores = cluster_scores(rows, labels, servers)
    weights = scores.clamp(min=0.0)
    aggregates, cluster_weight = combine_clusters(rows, labels, weights, servers.shape[0], normalize)
    return clustered_result(aggregates, weights, scores, cluster_weight, updates)


def rfca_weighted(
    updates: Array, *, clusters: Clusters, weights: Array, scores: Array, num_clusters: int, normalize: str = "cluster"
) -> ClusteredResult:
    """The same aggregation with ``weights`` (n,) decided elsewhere; ``scores`` are passed through."""
    rows = as_updates(updates)
    labels = as_clusters(clusters, rows.shape[0], num_clusters, rows.device)
    trust = as_tensor(weights, name="weights", ndim=1).to(device=rows.device, dtype=torch.float64)
    cosine = as_tensor(scores, name="scores", ndim=1).to(device=rows.device, dtype=torch.float64)
    if trust.shape != labels.shape or cosine.shape != labels.shape:
        raise UsageError(f"weights and scores must hold one number per client ({rows.shape[0]})")
    if not bool(torch.isfinite(trust).all()) or bool((trust < 0).any()):
        raise UsageError("weights must be finite and non-negative")
    aggregates, cluster_weight = combine_clusters(rows, labels, trust, num_clusters, normalize)
    return clustered_result(aggregates, trust, cosine, cluster_weight, updates)


def cluster_scores(rows: torch.Tensor, labels: torch.Tensor, servers: torch.Tensor) -> torch.Tensor:
    """(n,) float64: cosine of each row with the server update of its own cluster."""
    return cosines(directions(rows), directions(servers)).gather(1, labels[:, None])[:, 0]


def combine_clusters(
    rows: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, num_clusters: int, normalize: str = "cluster"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sums (m, d) of unit rows per cluster, normalized, and the total weight (m,) of each cluster."""
    if normalize not in NORMALIZATIONS:
        raise UsageError(f"normalize must be one of {', '.join(NORMALIZATIONS)}, not {normalize!r}")
    membership = labels[None, :] == torch.arange(num_clusters, device=rows.device)[:, None]  # (m, n)
    shares = torch.where(membership, weights[None, :], torch.zeros_like(weights[None, :]))
    cluster_weight = shares.sum(dim=1)
    divisor = cluster_weight if normalize == "cluster" else cluster_weight.sum().expand(num_clusters)
    # Without weight the shares are all zero: dividing by 1 leaves the zero aggregate.
    shares = shares / torch.where(divisor > 0, divisor, torch.ones_like(divisor))[:, None]
    return directions(rows).weighted_units(shares), cluster_weight


def as_clusters(clusters: Clusters, num_clients: int, num_clusters: int, device: torch.device) -> torch.Tensor:
    """(n,) int64 cluster of each client, checked."""
    labels = torch.as_tensor(np.asarray(clusters) if isinstance(clusters, Sequence) else clusters)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        raise UsageError(f"clusters must be integers, not {labels.dtype}")
    if labels.shape != (num_clients,):
        raise UsageError(f"clusters must hold one number per client ({num_clients}), not shape {tuple(labels.shape)}")
    labels = labels.to(device=device, dtype=torch.int64)
    if bool((labels < 0).any()) or bool((labels >= num_clusters).any()):
        raise UsageError(f"clusters must lie in 0 .. {num_clusters - 1}")
    return labels
