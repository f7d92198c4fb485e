"""FLTrust (Cao, Fang, Liu, Gong; NDSS 2021, arXiv 2012.13995): trust by cosine with the server's own update.

One global model; the root update is computed on the whole root set every round, as published.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ebscfl.algorithms.environment import (
    Algorithm,
    Environment,
    RoundReport,
    ServerState,
    Stopwatch,
    admit,
    collect,
    finite_rows,
    root_batches,
    root_settings,
    shares,
    without_direction,
)
from ebscfl.algorithms.initialization import single_model
from ebscfl.arrays import as_tensor
from ebscfl.learning.local import local_updates
from ebscfl.rules.fltrust import fltrust
from ebscfl.rules.geometry import cosines, directions


def root_update(env: Environment, models: Tensor, round_id: int) -> Tensor:
    """(1, d) update of the global model on all root parts together."""
    pooled = (torch.cat(env.data.root_rows),)
    batches, settings = root_batches(env, pooled, round_id), root_settings(env)
    return finite_rows(local_updates(env.model, models, env.data, batches, settings))


def init(env: Environment) -> ServerState:
    """One global model."""
    return ServerState(single_model(env))


def round(env: Environment, state: ServerState, round_id: int) -> tuple[ServerState, RoundReport]:
    """g_0, then the clients' updates rescaled to its length and weighted by ReLU(cosine)."""
    clock = Stopwatch(env.device)
    with clock.phase("train"):
        server_update = root_update(env, state.models, round_id)
    state = ServerState(state.models, server_update)
    clusters, uploads = collect(env, state, round_id, clock)
    claimed = tuple(clusters.tolist())
    with clock.phase("aggregate"):
        kept, events = admit(uploads)
        events = (*events, *without_direction(server_update))
        if len(kept) == 0:
            return state, RoundReport(claimed, (0.0,) * env.num_clients, clock.seconds, events=events)
        usable = uploads.updates[kept]
        result = fltrust(usable, server_update=server_update[0])
        models = state.models + env.server.eta * as_tensor(result.aggregate, name="aggregate", ndim=1)
    scores = torch.zeros(env.num_clients, dtype=torch.float64)
    scores[kept.cpu()] = _cosines(usable, server_update[0]).cpu().double()
    weights = shares(result.weights, kept, env.num_clients)
    if sum(weights) == 0:
        events = (*events, "all trust weights are zero: no step this round")
    return ServerState(models, server_update), RoundReport(
        claimed, weights, clock.seconds, tuple(scores.tolist()), events
    )


def _cosines(updates: Tensor, server_update: Tensor) -> Tensor:
    """(k,) cosines, 0 for a zero vector: what the report shows beside the weights."""
    return cosines(directions(updates), directions(server_update[None, :]))[:, 0]


ALGORITHM = Algorithm("fltrust", init, round)
