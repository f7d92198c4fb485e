"""Coordinate-wise median (Yin, Chen, Ramchandran, Bartlett, ICML 2018).

For an even number of clients it is the mean of the two middle values, as in numpy (torch.median would return the
lower one). It is the trimmed mean that keeps only the middle, and so are its weights: the weight of a client is the
share of coordinates in which its value is the median (half a coordinate each for two middle values; equal values
share).
"""

from __future__ import annotations

from ebscfl.arrays import Array, as_updates
from ebscfl.rules.result import RuleResult, rule_result
from ebscfl.rules.trimmed_mean import trim_columns


def median(updates: Array) -> RuleResult:
    """Median of (n, d) ``updates`` per coordinate."""
    rows = as_updates(updates)
    aggregate, weights = trim_columns(rows, (rows.shape[0] - 1) // 2)
    return rule_result(aggregate, weights, updates)
