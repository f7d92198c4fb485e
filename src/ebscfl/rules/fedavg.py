"""FedAvg: the average weighted by data size (McMahan et al., AISTATS 2017). No defense at all.

``aggregate = sum_i sizes_i * g_i / sum_i sizes_i``; without sizes, every client counts the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ebscfl.arrays import Array, as_updates
from ebscfl.errors import UsageError
from ebscfl.rules.geometry import weighted_sum
from ebscfl.rules.result import RuleResult, rule_result

Sizes = Sequence[float] | npt.NDArray[np.generic] | torch.Tensor


def fedavg(updates: Array, *, sizes: Sizes | None = None) -> RuleResult:
    """Average (n, d) ``updates``; ``sizes`` are n non-negative numbers, usually sample counts, not all zero."""
    rows = as_updates(updates)
    num_clients = rows.shape[0]
    if sizes is None:
        counts = torch.ones(num_clients, dtype=torch.float64, device=rows.device)
    else:
        numbers = sizes if isinstance(sizes, torch.Tensor) else torch.from_numpy(np.array(sizes, dtype=np.float64))
        counts = numbers.to(device=rows.device, dtype=torch.float64)
    if counts.shape != (num_clients,):
        raise UsageError(f"sizes must hold one number per client ({num_clients}), not shape {tuple(counts.shape)}")
    if not bool(torch.isfinite(counts).all()) or bool((counts < 0).any()) or not bool((counts > 0).any()):
        raise UsageError("sizes must be finite, non-negative and not all zero")
    weights = counts / counts.amax()  # first: the sum of huge counts must not overflow
    weights = weights / weights.sum()
    return rule_result(weighted_sum(rows, weights), weights, updates)
