"""The seam between RFCA and the protocol that computes its aggregate: plain arithmetic, or encoded updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ebscfl.arrays import as_tensor
from ebscfl.errors import ConfigError
from ebscfl.rules.rfca import rfca

PROTOCOLS = ("plain",)


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


def aggregate_clustered(
    updates: Tensor,
    clusters: Tensor,
    server_updates: Tensor,
    *,
    normalize: str,
    protocol: str,
    root: bytes,
    round_id: int,
) -> ClusteredOutcome:
    """Weigh (n, d) updates by their trust and sum them per cluster, by the named protocol."""
    if protocol != "plain":
        raise ConfigError(f"protocol must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    result = rfca(updates, clusters=clusters, server_updates=server_updates, normalize=normalize)
    return ClusteredOutcome(
        as_tensor(result.aggregates, name="aggregates", ndim=2),
        as_tensor(result.weights, name="weights", ndim=1),
        as_tensor(result.scores, name="scores", ndim=1),
        as_tensor(result.cluster_weight, name="cluster weights", ndim=1),
    )
