"""What every aggregation rule returns, and how a rule's tensors become that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ebscfl.arrays import Array, as_tensor, like
from ebscfl.errors import UsageError


@dataclass(frozen=True, eq=False)
class RuleResult:
    """One aggregate of n updates. Arrays are of the caller's kind (numpy or torch, same device)."""

    aggregate: Array
    """(d,) in the dtype of the updates."""
    weights: Array
    """(n,) float64: share of each client in the aggregate, non-negative, sums to 1, or all 0 if nobody counts."""


@dataclass(frozen=True, eq=False)
class ClusteredResult:
    """One aggregate a cluster, from n updates that each claim a cluster."""

    aggregates: Array
    """(m, d) in the dtype of the updates; not yet scaled by the norm of the server updates. A cluster nobody counts
    in has a zero row."""
    weights: Array
    """(n,) float64: trust weight of each client, not normalized."""
    scores: Array
    """(n,) float64: cosine of each update with its own cluster's server update."""
    cluster_weight: Array
    """(m,) float64: sum of the weights of each cluster's members."""


def rule_result(aggregate: torch.Tensor, weights: torch.Tensor, updates: Array) -> RuleResult:
    """``aggregate`` in the dtype, and both in the kind, of ``updates``."""
    dtype = as_tensor(updates, name="updates", ndim=2).dtype
    return RuleResult(_like(aggregate.to(dtype), updates), _like(weights, updates))


def clustered_result(
    aggregates: torch.Tensor,
    weights: torch.Tensor,
    scores: torch.Tensor,
    cluster_weight: torch.Tensor,
    updates: Array,
) -> ClusteredResult:
    """``aggregates`` in the dtype, and all four in the kind, of ``updates``."""
    dtype = as_tensor(updates, name="updates", ndim=2).dtype
    return ClusteredResult(
        _like(aggregates.to(dtype), updates),
        _like(weights, updates),
        _like(scores, updates),
        _like(cluster_weight, updates),
    )


def as_server_updates(values: Array, updates: torch.Tensor, *, name: str, ndim: int) -> torch.Tensor:
    """The server's own update(s), beside ``updates``: same dtype, device and length, finite.

    Unlike a client's, a bad server update is the caller's fault: always a `UsageError`.
    """
    server = as_tensor(values, name=name, ndim=ndim)
    if server.dtype != updates.dtype or server.device != updates.device:
        raise UsageError(
            f"{name} and updates must agree in dtype and device: "
            f"{server.dtype} on {server.device}, {updates.dtype} on {updates.device}"
        )
    if server.shape[-1] != updates.shape[1]:
        raise UsageError(f"{name} must have length {updates.shape[1]}, as the updates have, not {server.shape[-1]}")
    if server.shape[0] == 0:
        raise UsageError(f"{name} is empty: shape {tuple(server.shape)}")
    if not bool(torch.isfinite(server).all()):
        raise UsageError(f"{name} holds NaN or infinity: check the root set and the learning rate")
    return server


def as_count(value: int, *, name: str, minimum: int = 0) -> int:
    """A whole number of clients, at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, not {value!r}")
    if value < minimum:
        raise UsageError(f"{name} must be at least {minimum}, not {value}")
    return value


def _like(result: torch.Tensor, original: Array) -> Array:
    if isinstance(original, torch.Tensor):
        return like(result, original)
    return like(result, np.asarray(original))
