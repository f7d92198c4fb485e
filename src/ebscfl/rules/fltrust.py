"""FLTrust (Cao, Fang, Liu, Gong, NDSS 2021, arXiv 2012.13995, equations 3 to 5).

The server trains on a small clean root set and obtains its own update g0. A client's trust score is
``ReLU(cos(g_i, g0))``; every update is brought to the length of g0, and the aggregate is the mean weighted by trust::

    g = sum_i TS_i * (|g0| / |g_i|) * g_i / sum_i TS_i

The official code adds 1e-9 to norms and to the sum, which changes the value; here nothing is added. A zero update, or
a zero g0, has no direction: its trust is 0. If all trust is 0, the step is zero and so are all weights.
"""

from __future__ import annotations

import torch

from ebscfl.arrays import Array, as_updates
from ebscfl.rules.geometry import cosines, directions
from ebscfl.rules.result import RuleResult, as_server_updates, rule_result


def fltrust(updates: Array, *, server_update: Array) -> RuleResult:
    """Aggregate (n, d) ``updates`` by their trust under the (d,) ``server_update``."""
    rows = as_updates(updates)
    server = directions(as_server_updates(server_update, rows, name="server_update", ndim=1)[None, :])
    clients = directions(rows)
    trust = cosines(clients, server)[:, 0].clamp(min=0.0)  # (n,)
    total = trust.sum()
    weights = trust / total if float(total) > 0 else torch.zeros_like(trust)
    return rule_result(server.norms[0] * clients.weighted_units(weights), weights, updates)
