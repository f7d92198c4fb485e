"""First models of every method: one, or m that clients of different worlds can tell apart."""

from __future__ import annotations

import torch
from torch import Tensor

from ebscfl.algorithms.environment import Environment, root_batches, root_settings, share_body
from ebscfl.learning.local import cluster_losses, draw_batches, local_updates
from ebscfl.rng import USAGE_ROOT_BATCHES


def single_model(env: Environment) -> Tensor:
    """(1, d): the model every draw of `cluster_models` begins with."""
    return _draw(env, 1, 0)


def cluster_models(env: Environment) -> Tensor:
    """(m, d) first cluster models, the same for all clustered methods of a run.

    Independent random models differ more from one another than the worlds of the clients do under any of them: most
    clients then choose the same one, and clusters nobody chose never train. So by default the server separates them
    with its root parts, as EBS-CFL has it ("initializing cluster-specific models on the server using a root dataset").
    """
    server = env.server
    if server.clusters == 1:
        return single_model(env)
    if server.cluster_init == "root":
        models = _trained_on_root(env)
    elif server.cluster_init == "covering":
        models = _covering(env)
    else:
        models = _draw(env, server.clusters, 0)
    return share_body(env, models, torch.ones(server.clusters))


def _trained_on_root(env: Environment) -> Tensor:
    """One random model, moved once per cluster by the mean update of a group of similar root parts.

    Groups: the part with the longest update is the first center; each further center is the part least similar (largest
    smallest cosine distance) to the centers so far; every part joins its most similar center.
    """
    start = single_model(env)
    batches = root_batches(env, env.data.root_rows, 0)
    starts = start.expand(len(env.data.root_rows), -1).contiguous()
    moves = local_updates(env.model, starts, env.data, batches, root_settings(env))
    centers = farthest_first(moves, min(env.server.clusters, len(moves)))
    directions = torch.nn.functional.normalize(moves, dim=1)
    group = (directions @ directions[centers].T).argmax(dim=1)
    models = start.repeat(env.server.clusters, 1)
    for k in range(len(centers)):
        models[k] += moves[group == k].mean(dim=0)
    # With fewer parts than clusters the rest are fresh random models.
    models[len(centers) :] = _draw(env, env.server.clusters, 0)[len(centers) :]
    return models


def farthest_first(vectors: Tensor, count: int) -> list[int]:
    """``count`` rows of (n, d), each as dissimilar by cosine to the ones before it as possible (Gonzalez 1985)."""
    directions = torch.nn.functional.normalize(vectors, dim=1)
    chosen = [int(torch.linalg.vector_norm(vectors, dim=1).argmax())]
    while len(chosen) < count:
        closest = (directions @ directions[chosen].T).amax(dim=1)
        closest[chosen] = float("inf")
        chosen.append(int(closest.argmin()))
    return chosen


def _covering(env: Environment) -> Tensor:
    """Random models, redrawn until every one is the best of some root part (the best draw when tries run out).

    IFCA's CIFAR code does the same with clients; with the server's own parts no client is asked.
    """
    server, settings = env.server, root_settings(env)
    batches = draw_batches(env.data.root_rows, 1, settings.batch_size, env.root, USAGE_ROOT_BATCHES, 0)
    best, most = _draw(env, server.clusters, 0), 0
    for attempt in range(server.init_tries):
        models = _draw(env, server.clusters, attempt)
        choices = cluster_losses(env.model, models, env.data, batches, settings).argmin(dim=1)
        covered = len(set(choices.tolist()))
        if covered > most:
            best, most = models, covered
        if most == min(server.clusters, len(env.data.root_rows)):
            break
    return best


def _draw(env: Environment, count: int, attempt: int) -> Tensor:
    return torch.stack([env.model.init(env.root, attempt, k) for k in range(count)]).to(env.device)
