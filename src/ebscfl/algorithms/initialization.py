"""First models of every method: one, or m that the root parts can tell apart."""

from __future__ import annotations

import torch
from torch import Tensor

from ebscfl.algorithms.environment import Environment, root_settings
from ebscfl.learning.local import cluster_losses, draw_batches
from ebscfl.rng import USAGE_ROOT_BATCHES


def single_model(env: Environment) -> Tensor:
    """(1, d): the first of the models `cluster_models` would draw first."""
    return _draw(env, 1, 0)


def cluster_models(env: Environment) -> Tensor:
    """(m, d) first cluster models.

    Independent random models may make every client choose the same one; the other clusters then never train. IFCA's
    CIFAR code redraws until every model attracts enough clients. "covering" does the same with the server's own root
    parts, so that no client is asked: it redraws until every model is the best of at least one part (or, with fewer
    parts than clusters, until all parts differ), and takes the best draw when ``init_tries`` run out.
    """
    server = env.server
    best = _draw(env, server.clusters, 0)
    if server.cluster_init == "independent" or server.clusters == 1:
        return best
    settings = root_settings(env)
    batches = draw_batches(env.data.root_rows, 1, settings.batch_size, env.root, USAGE_ROOT_BATCHES, 0)
    wanted = min(server.clusters, len(env.data.root_rows))
    most = 0
    for attempt in range(server.init_tries):
        models = _draw(env, server.clusters, attempt)
        choices = cluster_losses(env.model, models, env.data, batches, settings).argmin(dim=1)
        covered = len(set(choices.tolist()))
        if covered > most:
            best, most = models, covered
        if most == wanted:
            break
    return best


def _draw(env: Environment, count: int, attempt: int) -> Tensor:
    return torch.stack([env.model.init(env.root, attempt, k) for k in range(count)]).to(env.device)
