"""Differencing: two rounds whose cohorts differ in one client, and what the two published sums tell apart.

This works on results alone, so no aggregation protocol without noise stops it *when the other clients send the same
updates again*. What limits it in practice: updates change between rounds, the quorum keeps a round from being played
with too few, and differential privacy (sealed: ``epsilon``) hides the difference for good.
"""

from __future__ import annotations

import numpy as np

from ebscfl.audit.views import Estimate, View, nothing, stacked
from ebscfl.errors import UsageError


def differencing(view: View) -> Estimate:
    """Subtract the sums of the last two rounds: the slot that changed most shows the clients that are new."""
    if len(view.rounds) < 2:
        raise UsageError("differencing needs two rounds")
    before, after = view.rounds[-2:]
    if before.sums is None or after.sums is None:
        return nothing(view, "this party sees no sums")
    new = sorted(set(after.included) - set(before.included))
    gap = after.sums - before.sums  # (m, l)
    cluster = int(np.einsum("ml,ml->m", gap, gap).argmax())
    note = "two published sums, nothing else: inherent in every exact sum over repeated inputs"
    return stacked(view, [(i, gap[cluster], cluster) for i in new], note=note)
