"""RFCA-H, RFCA with a score history: our own variant of EBS-CFL's rule (see `ebscfl.rules.score_history`).

A round is RFCA's, except that a client's weight comes from all rounds it was seen in. The histories are part of the
server's state, so a checkpoint holds them. Under the protocol ``sealed`` the key center keeps the history and decides.
"""

from __future__ import annotations

from dataclasses import replace

from ebscfl.algorithms import rfca
from ebscfl.algorithms.environment import Algorithm, Environment, ServerState
from ebscfl.rules.score_history import History


def init(env: Environment) -> ServerState:
    """RFCA's first state, and nobody seen yet."""
    count = env.server.clusters if env.server.history_scope == "cluster" else 1
    return replace(rfca.init(env), histories=(History(),) * count)


ALGORITHM = Algorithm("rfca-h", init, rfca.round, clustered=True)
