"""IFCA, Iterative Federated Clustering Algorithm (Ghosh, Chung, Yin, Ramchandran; NeurIPS 2020, arXiv 2006.04088)."""

from __future__ import annotations

import torch

from ebscfl.algorithms.environment import (
    Algorithm,
    Environment,
    RoundReport,
    ServerState,
    Stopwatch,
    admit,
    collect,
    fill_empty,
    remembered,
    share_body,
    shares,
)
from ebscfl.algorithms.initialization import cluster_models


def init(env: Environment) -> ServerState:
    """m models."""
    return ServerState(cluster_models(env))


def round(env: Environment, state: ServerState, round_id: int) -> tuple[ServerState, RoundReport]:
    """Clients train the model with the lowest loss; each model becomes the mean of its clients'.

    ``averaging="model"`` (Option II) divides by the cluster's clients; "gradient" by all clients and is Option I
    exactly when ``local.steps`` is 1. An empty cluster keeps its model in both.
    """
    clock = Stopwatch(env.device)
    clusters, uploads = collect(env, state, round_id, clock)
    with clock.phase("aggregate"):
        kept, events = admit(uploads)
        claimed = clusters[kept]
        sums = torch.zeros_like(state.models).index_add_(0, claimed, uploads.updates[kept])
        counts = torch.bincount(claimed, minlength=state.models.shape[0])
        if env.server.averaging == "model":
            step = sums / counts.clamp(min=1)[:, None]
        else:
            step = sums / env.num_clients
        step = share_body(env, step, counts.to(step.dtype))
        models = fill_empty(env, state.models + env.server.eta * step, clusters, counts > 0)
    weights = shares(torch.ones(len(kept)), kept, env.num_clients)
    if len(kept) == 0:
        events = (*events, "no usable update: no step this round")
    report = RoundReport(tuple(clusters.tolist()), weights, clock.seconds, events=events)
    return ServerState(models, choices=remembered(env, clusters)), report


ALGORITHM = Algorithm("ifca", init, round, clustered=True)
