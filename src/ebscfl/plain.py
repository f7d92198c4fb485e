"""RFCA's aggregation in the clear, numpy only: the function every protocol must compute, and the oracle of its tests.

With unit updates u_i = g_i / |g_i|, claimed clusters c_i and unit server updates s_k = g0^k / |g0^k|:

    w_i   = <u_i, s_{c_i}>                        the score, a cosine
    S_k   = sum over i with c_i = k of ReLU(w_i) u_i
    W_k   = sum over i with c_i = k of ReLU(w_i)
    aggregate of cluster k = S_k / W_k            normalize = "cluster", paper eq. (1)
                           = S_k / sum_k W_k      normalize = "global", the paper's algorithm listing

The rule for models on any device is `ebscfl.rules.rfca`; this twin exists because roles import no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl.errors import UsageError

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """Per-cluster weighted sums: what a round reveals before it is normalized."""

    weighted_sum: Floats  # (m, l)
    weight: Floats  # (m,)

    def aggregates(self, normalize: str) -> Floats:
        """The (m, l) aggregates; a cluster (or a round) without weight gives zeros: no step."""
        check_normalize(normalize)
        total = self.weight if normalize == "cluster" else np.full_like(self.weight, self.weight.sum())
        safe = np.where(total > 0, total, 1.0)
        scale = np.where(total > 0, 1.0 / safe, 0.0).astype(self.weighted_sum.dtype)
        return self.weighted_sum * scale[:, None]


def check_normalize(normalize: str) -> None:
    """Refuse anything but the two published normalizations."""
    if normalize not in ("cluster", "global"):
        raise UsageError(f"normalize must be 'cluster' or 'global', not {normalize!r}")


def unit_rows(matrix: Floats) -> Floats:
    """Rows scaled to norm one; a zero row stays zero (it has no direction and earns no trust)."""
    norms = np.sqrt(np.einsum("ij,ij->i", matrix, matrix))
    return matrix / np.where(norms > 0, norms, 1.0)[:, None].astype(matrix.dtype)


def rfca_sums(updates: Floats, clusters: Sequence[int], server_updates: Floats) -> tuple[ClusterSums, Floats]:
    """Weighted sums of every cluster and the (n,) scores, in the dtype of ``updates``."""
    index = np.asarray(clusters, dtype=np.int64)
    if updates.ndim != 2 or index.shape != (len(updates),):
        raise UsageError(f"{len(index)} clusters do not fit updates of shape {updates.shape}")
    if server_updates.ndim != 2 or server_updates.shape[1] != updates.shape[1]:
        raise UsageError(f"server updates {server_updates.shape} do not fit updates {updates.shape}")
    num_clusters = len(server_updates)
    if len(index) and not (index.min() >= 0 and index.max() < num_clusters):
        raise UsageError(f"a cluster lies outside 0..{num_clusters - 1}")
    unit = unit_rows(updates)
    scores = np.einsum("ij,ij->i", unit, unit_rows(server_updates).astype(updates.dtype)[index])
    trust = np.maximum(scores, 0)
    choice = np.zeros((num_clusters, len(index)), dtype=updates.dtype)
    choice[index, np.arange(len(index))] = trust
    return ClusterSums(choice @ unit, choice.sum(axis=1)), scores


def rfca_round(
    updates: Floats, clusters: Sequence[int], server_updates: Floats, *, normalize: str = "global"
) -> tuple[Floats, float]:
    """Aggregates (m, l) and the total weight of one round."""
    sums, _ = rfca_sums(updates, clusters, server_updates)
    return sums.aggregates(normalize), float(sums.weight.sum())


def fedavg_round(updates: Floats) -> Floats:
    """The plain mean: the cost floor every protocol is measured against."""
    return np.asarray(updates.mean(axis=0))
