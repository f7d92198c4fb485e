"""Federated algorithms by published name; read `environment` first, then `rfca`."""

from __future__ import annotations

from ebscfl.algorithms import fedavg, fltrust, ifca, rfca, rfca_history, robust
from ebscfl.algorithms.environment import (
    Adversary,
    Algorithm,
    ClientRound,
    Environment,
    NoAdversary,
    RoundReport,
    ServerState,
    Uploads,
)
from ebscfl.algorithms.settings import ServerSettings

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        fedavg.ALGORITHM,
        robust.MEDIAN,
        robust.TRIMMED_MEAN,
        robust.KRUM,
        robust.MULTI_KRUM,
        fltrust.ALGORITHM,
        ifca.ALGORITHM,
        rfca.ALGORITHM,
        rfca_history.ALGORITHM,
    )
}
"""Every method a run can name."""

__all__ = [
    "ALGORITHMS",
    "Adversary",
    "Algorithm",
    "ClientRound",
    "Environment",
    "NoAdversary",
    "RoundReport",
    "ServerSettings",
    "ServerState",
    "Uploads",
]
