"""RFCA, Robust Federated Clustering Algorithm: Algorithms 1 and 2 of EBS-CFL (AAAI 2025).

Differences from the printed pseudocode, all switches of `ServerSettings`: the root updates are recomputed every round
(``root_updates="fixed"`` prints them once), each cluster is divided by its own trust (``normalize="global"`` divides by
all), and the loop over root parts runs over all n parts (its printed bound m is a slip).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ebscfl.algorithms.aggregation import Memory
from ebscfl.algorithms.environment import (
    Algorithm,
    Environment,
    RoundReport,
    ServerState,
    Stopwatch,
    admit,
    collect,
    fill_empty,
    finite_rows,
    remembered,
    root_batches,
    root_settings,
    share_body,
    shares,
    without_direction,
)
from ebscfl.algorithms.initialization import cluster_models
from ebscfl.learning.local import cluster_losses, local_updates


def clustered_root_updates(env: Environment, models: Tensor, last: Tensor, round_id: int) -> Tensor:
    """(m, d) root updates g_0^j: every root part trains the model it likes best (Algorithm 2, lines 3-9).

    A cluster no part chose keeps the row of ``last``, or gets none where ``unsupported`` is "distrust". Where training
    diverged there is none either.
    """
    settings = root_settings(env)
    batches = root_batches(env, env.data.root_rows, round_id)
    # j, g <- ClusteredModelUpdate(models, D_0^i, ...), all parts i at once
    seen = batches[:, : env.server.choice_steps]
    chosen = cluster_losses(env.model, models, env.data, seen, settings).argmin(dim=1)
    moves = local_updates(env.model, models[chosen], env.data, batches, settings)
    # g_0^j <- g_0^j + (m / parts) * g
    total = finite_rows(torch.zeros_like(models).index_add_(0, chosen, moves))
    counts = torch.bincount(chosen, minlength=models.shape[0])
    if env.server.root_scale == "paper":
        fresh = total * (models.shape[0] / len(env.data.root_rows))
    else:
        fresh = total / counts.clamp(min=1)[:, None]
    if env.server.root_scale == "part":
        lengths = torch.linalg.vector_norm(moves, dim=1)
        wanted = torch.zeros_like(fresh[:, 0]).index_add_(0, chosen, lengths) / counts.clamp(min=1)
        fresh = finite_rows(normalize(fresh, dim=1) * wanted[:, None])
    if env.server.root_direction == "mixed":
        fresh = _mixed(env, fresh, total.sum(dim=0))
    if env.server.root_momentum > 0:
        # The first root update of a cluster has nothing to be mixed with.
        begun = last.any(dim=1, keepdim=True)
        mixed = env.server.root_momentum * last + (1 - env.server.root_momentum) * fresh
        fresh = torch.where(begun, mixed, fresh)
    otherwise = last if env.server.unsupported == "keep" else torch.zeros_like(last)
    return torch.where((counts > 0)[:, None], fresh, otherwise)


def _mixed(env: Environment, rows: Tensor, everyone: Tensor) -> Tensor:
    """(m, d) root updates turned halfway towards ``everyone`` (d,), as long as they were."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    seen = slice(0, env.model.head) if env.server.share == "body" and env.model.head else slice(None)
    turned = torch.zeros_like(rows)
    turned[:, seen] = normalize(rows[:, seen], dim=1) + normalize(everyone[seen], dim=0)
    directed: Tensor = normalize(turned, dim=1) * lengths
    return directed


def init(env: Environment) -> ServerState:
    """Server initialization: m models and, where they stay fixed, their root updates."""
    models = cluster_models(env)
    server_updates = torch.zeros_like(models)
    if env.server.root_updates == "fixed":
        server_updates = clustered_root_updates(env, models, server_updates, 0)
    return ServerState(models, server_updates)


def round(env: Environment, state: ServerState, round_id: int) -> tuple[ServerState, RoundReport]:
    """One global iteration of Algorithm 2."""
    clock = Stopwatch(env.device)
    assert state.server_updates is not None
    # Server: g_0^j for the models it is about to broadcast.
    if env.server.root_updates == "each-round":
        with clock.phase("train"):
            fresh = clustered_root_updates(env, state.models, state.server_updates, round_id)
        state = replace(state, server_updates=fresh)
    server_updates = state.server_updates
    assert server_updates is not None
    # Clients: choose a cluster, train its model, send (s_i, g_i).
    clusters, uploads = collect(env, state, round_id, clock)
    # Server: c_i = ReLU(cosine with the root update of the claimed cluster), then the weighted sums.
    with clock.phase("aggregate"):
        kept, events = admit(uploads)
        events = (*events, *without_direction(server_updates))
        report = RoundReport(tuple(clusters.tolist()), (0.0,) * env.num_clients, clock.seconds, events=events)
        if len(kept) == 0:
            return state, report
        outcome = env.aggregator(
            uploads.updates[kept],
            clusters[kept],
            server_updates,
            clients=kept,
            normalize=env.server.normalize,
            round_id=round_id,
            memory=Memory(env.server.history, state.histories) if state.histories else None,
        )
        # theta_j <- theta_j + eta * ||g_0^j|| * aggregate_j; a cluster without trusted members gets a zero aggregate.
        lengths = torch.linalg.vector_norm(server_updates, dim=1, keepdim=True)
        moved = outcome.cluster_weight > 0
        step = share_body(env, env.server.eta * lengths * outcome.aggregates, outcome.cluster_weight)
        models = fill_empty(env, state.models + step, clusters, moved)
    scores = torch.zeros(env.num_clients, dtype=torch.float64)
    scores[kept.cpu()] = outcome.scores.cpu().double()
    if float(outcome.cluster_weight.sum()) <= 0:
        events = (*events, "all trust weights are zero: no step this round")
    after = ServerState(models, server_updates, remembered(env, clusters), outcome.histories)
    return after, RoundReport(
        report.clusters,
        shares(outcome.weights, kept, env.num_clients),
        clock.seconds,
        tuple(scores.tolist()),
        (*events, *outcome.events),
        outcome.bytes,
        outcome.role_seconds,
        outcome.privacy,
    )


ALGORITHM = Algorithm("rfca", init, round, clustered=True)
