"""Byzantine-robust rules on one global model: median, trimmed mean, Krum, Multi-Krum, and FedAvg's mean."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ebscfl.algorithms.environment import (
    Algorithm,
    Environment,
    RoundReport,
    ServerState,
    Stopwatch,
    admit,
    collect,
    shares,
)
from ebscfl.algorithms.initialization import single_model
from ebscfl.algorithms.settings import ServerSettings
from ebscfl.arrays import as_tensor
from ebscfl.errors import ConfigError
from ebscfl.rules.krum import krum
from ebscfl.rules.median import median
from ebscfl.rules.multi_krum import multi_krum
from ebscfl.rules.result import RuleResult
from ebscfl.rules.trimmed_mean import trimmed_mean

Rule = Callable[[Environment, Tensor, Tensor], RuleResult]
"""(env, (k, d) usable updates, (k,) whose they are) -> aggregate."""


def init(env: Environment) -> ServerState:
    """One global model."""
    return ServerState(single_model(env))


def one_model(
    name: str, rule: Rule, fewest: Callable[[int], int], check: Callable[[ServerSettings, int, int], None] | None = None
) -> Algorithm:
    """A method that moves one model by ``rule``; with fewer than ``fewest(faulty)`` usable updates it does not move."""

    def round(env: Environment, state: ServerState, round_id: int) -> tuple[ServerState, RoundReport]:
        clock = Stopwatch(env.device)
        clusters, uploads = collect(env, state, round_id, clock)
        claimed = tuple(clusters.tolist())
        with clock.phase("aggregate"):
            kept, events = admit(uploads)
            if len(kept) < fewest(env.faulty):
                events = (*events, f"{name}: {len(kept)} usable updates are too few: no step this round")
                return state, RoundReport(claimed, (0.0,) * env.num_clients, clock.seconds, events=events)
            result = rule(env, uploads.updates[kept], kept)
            models = state.models + env.server.eta * as_tensor(result.aggregate, name="aggregate", ndim=1)
            weights = shares(result.weights, kept, env.num_clients)
        return ServerState(models), RoundReport(claimed, weights, clock.seconds, events=events)

    return Algorithm(name, init, round, check=check)


def _check_krum(server: ServerSettings, clients: int, faulty: int) -> None:
    if 2 * faulty + 2 >= clients:
        raise ConfigError(
            f"server.faulty: krum needs 2 * faulty + 2 < clients, but faulty = {faulty} and clients = {clients}; "
            "raise data.clients or lower attack.fraction"
        )
    if server.select is not None and server.select > clients - faulty:
        raise ConfigError(f"server.select: multi-krum can select at most {clients - faulty}, not {server.select}")


def _check_trim(server: ServerSettings, clients: int, faulty: int) -> None:
    if 2 * faulty >= clients:
        raise ConfigError(
            f"server.faulty: the trimmed mean needs 2 * faulty < clients, but faulty = {faulty} and clients = {clients}"
        )


def _multi_krum(env: Environment, updates: Tensor, kept: Tensor) -> RuleResult:
    most = len(kept) - env.faulty
    select = None if env.server.select is None else min(env.server.select, most)
    return multi_krum(updates, faulty=env.faulty, select=select)


MEDIAN = one_model("median", lambda env, updates, kept: median(updates), lambda faulty: 1)
TRIMMED_MEAN = one_model(
    "trimmed-mean",
    lambda env, updates, kept: trimmed_mean(updates, trim=env.faulty),
    lambda faulty: 2 * faulty + 1,
    _check_trim,
)
KRUM = one_model(
    "krum", lambda env, updates, kept: krum(updates, faulty=env.faulty), lambda faulty: 2 * faulty + 3, _check_krum
)
MULTI_KRUM = one_model("multi-krum", _multi_krum, lambda faulty: 2 * faulty + 3, _check_krum)
