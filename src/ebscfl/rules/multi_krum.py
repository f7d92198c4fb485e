"""Multi-Krum (Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017): the mean of the m updates Krum likes best.

Scores are those of `ebscfl.rules.krum`, computed once; m defaults to ``n - f``.
"""

from __future__ import annotations

import torch

from ebscfl.arrays import Array, as_updates
from ebscfl.errors import UsageError
from ebscfl.rules.geometry import weighted_sum
from ebscfl.rules.krum import best, krum_scores
from ebscfl.rules.result import RuleResult, as_count, rule_result


def multi_krum(updates: Array, *, faulty: int, select: int | None = None) -> RuleResult:
    """The mean of the ``select`` best of the (n, d) ``updates`` by Krum score (default: n - faulty)."""
    rows = as_updates(updates)
    num_clients = rows.shape[0]
    scores = krum_scores(rows, faulty)
    count = num_clients - faulty if select is None else as_count(select, name="select", minimum=1)
    if count > num_clients:
        raise UsageError(f"Multi-Krum cannot select {count} of {num_clients} clients; select fewer")
    weights = torch.zeros_like(scores)
    weights[best(rows, scores, count)] = 1.0 / count
    return rule_result(weighted_sum(rows, weights), weights, updates)
