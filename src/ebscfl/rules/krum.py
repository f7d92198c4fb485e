"""Krum (Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017).

The score of a client is the sum of the squared distances from its update to the ``n - f - 2`` nearest others, f being
the number of faulty clients reckoned with; the update with the smallest score is the aggregate. Needs ``2 f + 2 < n``.

Implementations differ: some take n - f - 1 neighbors (ByzFL), or n - f - 3 (counting the client itself), or distances
that are not squared. This one is the paper's. The paper breaks ties by identifier; here the update that comes first in
lexicographic order wins, so that the order of the clients does not matter.
"""

from __future__ import annotations

from functools import cmp_to_key

import torch

from ebscfl.arrays import Array, as_updates
from ebscfl.errors import UsageError
from ebscfl.rules.geometry import squared_distances
from ebscfl.rules.result import RuleResult, as_count, rule_result


def krum(updates: Array, *, faulty: int) -> RuleResult:
    """The one of the (n, d) ``updates`` nearest to its neighbors, ``faulty`` of which may be hostile."""
    rows = as_updates(updates)
    scores = krum_scores(rows, faulty)
    chosen = best(rows, scores, 1)
    weights = torch.zeros_like(scores)
    weights[chosen] = 1.0
    return rule_result(rows[chosen[0]].clone(), weights, updates)


def krum_scores(rows: torch.Tensor, faulty: int) -> torch.Tensor:
    """(n,) float64 scores, smaller is better; a `UsageError` unless ``2 * faulty + 2 < n``."""
    faulty = as_count(faulty, name="faulty")
    num_clients = rows.shape[0]
    if 2 * faulty + 2 >= num_clients:
        raise UsageError(
            f"Krum needs 2 * faulty + 2 < n: faulty = {faulty}, n = {num_clients}; "
            f"use at least {2 * faulty + 3} clients or reckon with fewer faulty ones"
        )
    distances = squared_distances(rows)
    distances.fill_diagonal_(torch.inf)  # a client is not its own neighbor
    return distances.sort(dim=1).values[:, : num_clients - faulty - 2].sum(dim=1)


def best(rows: torch.Tensor, scores: torch.Tensor, count: int) -> list[int]:
    """Positions of the ``count`` smallest scores; ties go to the lexicographically first rows."""
    border = float(scores.sort().values[count - 1])
    chosen = [int(i) for i in (scores < border).nonzero()[:, 0]]
    tied: list[int] = [int(i) for i in (scores == border).nonzero()[:, 0]]
    missing = count - len(chosen)
    if missing < len(tied):

        def by_row(i: int, j: int) -> int:
            return _compare(rows[i], rows[j])

        tied.sort(key=cmp_to_key(by_row))
    return sorted(chosen + tied[:missing])


def _compare(left: torch.Tensor, right: torch.Tensor) -> int:
    """-1, 0 or 1 as ``left`` comes before, equals or comes after ``right`` in lexicographic order."""
    different = (left != right).nonzero()
    if different.numel() == 0:
        return 0
    first = int(different[0, 0])
    return -1 if bool(left[first] < right[first]) else 1
