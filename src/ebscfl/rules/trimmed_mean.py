"""Coordinate-wise trimmed mean (Yin, Chen, Ramchandran, Bartlett, ICML 2018).

Per coordinate, the ``trim`` largest and the ``trim`` smallest of the n values are dropped and the rest averaged.

The weight of a client is the share its values have in the averages, over all coordinates: a kept value counts
``1 / (n - 2 trim)``, a dropped one 0. Where equal values meet the border, it is undecided which of them is dropped, so
they share what is kept: the weights do not depend on the order of the clients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ebscfl.arrays import Array, as_updates
from ebscfl.errors import UsageError
from ebscfl.rules.geometry import column_blocks
from ebscfl.rules.result import RuleResult, as_count, rule_result

SORT_BLOCK = 4096
"""Columns sorted at a time: 100 clients make a 1.6 MB float32 block, which stays in a core's cache."""


def trimmed_mean(updates: Array, *, trim: int) -> RuleResult:
    """Average (n, d) ``updates`` per coordinate without the ``trim`` values at each end; needs ``2 * trim < n``."""
    rows = as_updates(updates)
    trim = as_count(trim, name="trim")
    if 2 * trim >= rows.shape[0]:
        raise UsageError(f"trimmed mean needs 2 * trim < n: trim = {trim}, n = {rows.shape[0]}; trim less")
    aggregate, weights = trim_columns(rows, trim)
    return rule_result(aggregate, weights, updates)


def trim_columns(rows: torch.Tensor, trim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The float64 trimmed mean (d,) of (n, d) ``rows`` and each row's share in it (n,)."""
    num_rows, dim = rows.shape
    kept = num_rows - 2 * trim
    aggregate = torch.empty(dim, dtype=torch.float64, device=rows.device)
    dropped = torch.zeros(num_rows, dtype=torch.float64, device=rows.device)  # values dropped, per row
    for columns in column_blocks(dim, SORT_BLOCK):
        block = rows[:, columns]
        ordered = _sort_columns(block)
        aggregate[columns] = ordered[trim : num_rows - trim].double().mean(dim=0)
        if trim:
            dropped += _dropped(block, ordered, trim)
    return aggregate, ((dim - dropped) / (dim * kept)).clamp(min=0.0)


def _sort_columns(block: torch.Tensor) -> torch.Tensor:
    """``block`` with every column sorted, smallest first."""
    if block.device.type == "cpu":
        # numpy sorts short contiguous runs with vector instructions: ten times faster than torch.sort here.
        by_column = block.T.clone(memory_format=torch.contiguous_format).numpy()
        by_column.sort(axis=1)
        return torch.from_numpy(by_column).T
    return torch.sort(block, dim=0).values


def _dropped(block: torch.Tensor, ordered: torch.Tensor, trim: int) -> torch.Tensor:
    """(n,) how many values of each row fall to the trimming, ties shared."""
    num_rows = block.shape[0]
    low, high = ordered[trim], ordered[num_rows - trim - 1]
    lost = (_count(block, low, torch.lt) + _count(block, high, torch.gt)).double()
    # Only where an equal value lies on the other side of the border is the choice open.
    tied = (ordered[trim - 1] == low) | (ordered[num_rows - trim] == high)
    if bool(tied.any()):
        lost += _lost_by_tie(block[:, tied], low[tied], high[tied], trim)
    return lost


def _count(block: torch.Tensor, border: torch.Tensor, compare: Callable[..., torch.Tensor]) -> torch.Tensor:
    """(n,) in how many columns ``compare(value, border)`` holds."""
    holds = compare(block, border)
    if holds.device.type == "cpu":
        return torch.from_numpy(np.count_nonzero(holds.numpy(), axis=1))  # torch is far slower at summing bools
    return holds.sum(dim=1)


def _lost_by_tie(block: torch.Tensor, low: torch.Tensor, high: torch.Tensor, trim: int) -> torch.Tensor:
    """(n,) the shares that values equal to a border lose, in columns with such ties."""
    at_low, at_high = block == low, block == high
    short_low = trim - (block < low).sum(dim=0)  # so many of those at the border still have to go
    short_high = trim - (block > high).sum(dim=0)
    loss_low = short_low.double() / at_low.sum(dim=0)
    loss_high = short_high.double() / at_high.sum(dim=0)
    # If low == high, the same values stand at both borders, and both losses fall on them.
    return (at_low * loss_low + at_high * loss_high).sum(dim=1)
