"""What an algorithm sees of the world, and the steps all of them share.

An algorithm is two functions. ``init(env) -> state`` makes the server's first state; ``round(env, state, round_id) ->
(state, report)`` plays one global round. State is frozen: a round returns a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from ebscfl.algorithms.aggregation import Aggregator, aggregate_directly
from ebscfl.algorithms.settings import ServerSettings
from ebscfl.arrays import Array, as_tensor
from ebscfl.learning.federation import FederatedData
from ebscfl.learning.local import LocalSettings, cluster_losses, draw_batches, local_updates
from ebscfl.learning.models import FlatModel
from ebscfl.rng import USAGE_BATCHES, USAGE_ROOT_BATCHES
from ebscfl.rules.score_history import History

PHASES = ("train", "cluster", "attack", "aggregate", "evaluate")


@dataclass(frozen=True, eq=False)
class ClientRound:
    """What the clients of a round have before they upload: the adversary's raw material."""

    round_id: int
    models: Tensor  # (m, d) the models the server sent
    clusters: Tensor  # (n,) which of them each client trained
    updates: Tensor  # (n, d) what an honest client would upload
    server_updates: Tensor | None  # (m, d) the server's root updates, where the method has them


@dataclass(frozen=True, eq=False)
class Uploads:
    """What reaches the server. ``malformed`` clients sent something that is not a vector of the right length."""

    updates: Tensor  # (n, d); the rows of malformed clients mean nothing
    malformed: tuple[int, ...] = ()
    events: tuple[str, ...] = ()


class Adversary(Protocol):
    """Turns honest uploads into what the server receives; never learns which method runs."""

    def corrupt(self, clients: ClientRound) -> Uploads:
        """The uploads of all clients, the attackers' replaced."""


@dataclass(frozen=True)
class NoAdversary:
    """Everybody is honest."""

    def corrupt(self, clients: ClientRound) -> Uploads:
        """The honest uploads as they are."""
        return Uploads(clients.updates)


@dataclass(frozen=True, eq=False)
class Environment:
    """Read-only surroundings of a cell: data as the clients hold it (poison included), model, settings, adversary."""

    root: bytes
    model: FlatModel
    data: FederatedData
    local: LocalSettings
    server: ServerSettings
    faulty: int = 0
    adversary: Adversary = field(default_factory=NoAdversary)
    aggregator: Aggregator = aggregate_directly
    """Who computes RFCA's aggregate."""
    choice_data: FederatedData | None = None
    """Data clients choose their cluster with, where it is not what they train on (attackers that claim the cluster of
    their clean data)."""

    @property
    def num_clients(self) -> int:
        """n."""
        return len(self.data.client_rows)

    @property
    def device(self) -> torch.device:
        """Where the data lives, and so everything else."""
        return self.data.x.device


@dataclass(frozen=True, eq=False)
class ServerState:
    """All a method carries from one round to the next."""

    models: Tensor  # (m, d); m = 1 for methods with one global model
    server_updates: Tensor | None = None  # (m, d) root updates in force
    choices: Tensor | None = None  # (n,) the cluster each client trained last; -1: none yet (hysteresis only)
    histories: tuple[History, ...] = ()  # RFCA-H: one for all clients, or one per cluster

    def to(self, device: torch.device) -> ServerState:
        """The same state with its tensors on ``device``."""
        updates, choices = self.server_updates, self.choices
        return ServerState(
            self.models.to(device),
            None if updates is None else updates.to(device),
            None if choices is None else choices.to(device),
            self.histories,
        )


@dataclass(frozen=True, eq=False)
class RoundReport:
    """What a round did, for the metrics."""

    clusters: tuple[int, ...]  # (n,) the cluster each client claimed
    weights: tuple[float, ...]  # (n,) share of the aggregate; sums to 1, or all 0 when no step was taken
    seconds: dict[str, float]
    scores: tuple[float, ...] | None = None
    events: tuple[str, ...] = ()
    bytes: Mapping[str, int] | None = None
    role_seconds: Mapping[str, float] | None = None
    privacy: Mapping[str, float] | None = None  # epsilon of this round, epsilon_total of the run so far, delta


@dataclass(frozen=True)
class Algorithm:
    """A published method: its two functions and how many models it keeps."""

    name: str
    init: Callable[[Environment], ServerState]
    round: Callable[[Environment, ServerState, int], tuple[ServerState, RoundReport]]
    clustered: bool = False
    check: Callable[[ServerSettings, int, int], None] | None = None
    """(settings, clients, faulty): raises ConfigError before anything starts."""


class Stopwatch:
    """Wall time per phase of one round."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to ``name``."""
        start = self._now()
        yield
        self.seconds[name] += self._now() - start

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()  # kernels run on after the call that started them
        return time.perf_counter()


# --- steps every method shares, in the order of a round ----------------------------------------------------------


def client_batches(env: Environment, round_id: int, data: FederatedData | None = None) -> Tensor:
    """(n, steps, batch) rows: the batches every client uses in this round."""
    rows = (data or env.data).client_rows
    return draw_batches(rows, env.local.steps, env.local.batch_size, env.root, USAGE_BATCHES, round_id)


def choose_clusters(env: Environment, models: Tensor, round_id: int, last: Tensor | None = None) -> Tensor:
    """(n,) index of the model with the lowest loss on each client's batches of the round (Algorithm 1, line 2).

    With ``server.hysteresis`` a client stays with its ``last`` choice (n,) unless the best is better by that share.
    """
    if models.shape[0] == 1:
        return torch.zeros(env.num_clients, dtype=torch.int64, device=models.device)
    data = env.choice_data or env.data
    batches = client_batches(env, round_id, data)[:, : env.server.choice_steps]
    losses = cluster_losses(env.model, models, data, batches, env.local)
    best = losses.argmin(dim=1)
    if last is None or env.server.hysteresis == 0:
        return best
    lowest, stay = losses.gather(1, best[:, None])[:, 0], losses.gather(1, last.clamp(min=0)[:, None])[:, 0]
    leaves = (last < 0) | (lowest < (1 - env.server.hysteresis) * stay)
    return torch.where(leaves, best, last)


def share_body(env: Environment, rows: Tensor, weights: Tensor) -> Tensor:
    """``rows`` (m, d), models or steps of the clusters, with all but the last layer the mean by ``weights`` (m,).

    Rows as they are where nothing is shared or nothing weighs.
    """
    total = weights.sum()
    if env.server.share == "none" or not float(total) > 0:
        return rows
    shared = rows.clone()
    body = slice(0, env.model.head)
    shared[:, body] = (weights.to(rows) / total.to(rows)) @ rows[:, body]
    return shared


def remembered(env: Environment, clusters: Tensor) -> Tensor | None:
    """What the state keeps of the choices: nothing, unless hysteresis asks for them."""
    return clusters if env.server.hysteresis > 0 else None


def fill_empty(env: Environment, models: Tensor, clusters: Tensor, moved: Tensor) -> Tensor:
    """``models`` (m, d) where clusters that did not move (m,) ``follow`` the one most clients chose, if they may."""
    if env.server.empty_cluster == "keep" or bool(moved.all()) or not bool(moved.any()):
        return models
    counts = torch.bincount(clusters, minlength=models.shape[0]).masked_fill(~moved, -1)
    return torch.where(moved[:, None], models, models[counts.argmax()])


def collect(env: Environment, state: ServerState, round_id: int, clock: Stopwatch) -> tuple[Tensor, Uploads]:
    """The clients' half of a round: choose a model, train it, upload. Returns ((n,) clusters, uploads)."""
    with clock.phase("cluster"):
        clusters = choose_clusters(env, state.models, round_id, state.choices)
    with clock.phase("train"):
        batches = client_batches(env, round_id)
        updates = local_updates(env.model, state.models[clusters], env.data, batches, env.local)
    with clock.phase("attack"):
        uploads = env.adversary.corrupt(ClientRound(round_id, state.models, clusters, updates, state.server_updates))
    return clusters, uploads


def admit(uploads: Uploads) -> tuple[Tensor, tuple[str, ...]]:
    """Which uploads the server can use: ((k,) client indices, events naming the ones dropped for this round)."""
    events = list(uploads.events)
    usable = torch.isfinite(uploads.updates).all(dim=1)
    if uploads.malformed:
        usable[list(uploads.malformed)] = True  # counted once, as malformed
    broken = (~usable).nonzero()[:, 0].tolist()
    if broken:
        events.append(f"dropped clients {broken}: update holds NaN or infinity")
    if uploads.malformed:
        events.append(f"dropped clients {sorted(uploads.malformed)}: update has the wrong shape")
        usable[list(uploads.malformed)] = False
    return usable.nonzero()[:, 0], tuple(events)


def finite_rows(rows: Tensor) -> Tensor:
    """``rows`` (m, d) of root updates, zero where they have no finite length: the models diverged on the root set."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # not finite either where they overflow
    return torch.where(torch.isfinite(lengths), rows, torch.zeros_like(rows))


def without_direction(rows: Tensor) -> tuple[str, ...]:
    """An event that names the root updates (m, d) that are zero, if there are any."""
    zero = (~rows.any(dim=1)).nonzero()[:, 0].tolist()
    if not zero:
        return ()
    return (f"no root update for models {zero} (no root part likes them, or they diverged): nobody is trusted there",)


def root_settings(env: Environment) -> LocalSettings:
    """Local settings of a root update: [local] where [server] says nothing else."""
    server, local = env.server, env.local
    return replace(
        local,
        steps=server.root_steps or local.steps,
        lr=server.root_lr or local.lr,
        batch_size=server.root_batch or local.batch_size,
    )


def root_batches(env: Environment, rows: tuple[Tensor, ...], round_id: int) -> Tensor:
    """(parts, steps, batch) rows of root parts for this round; a batch larger than every part would only repeat it."""
    settings = root_settings(env)
    size = min(settings.batch_size, max(len(part) for part in rows))
    return draw_batches(rows, settings.steps, size, env.root, USAGE_ROOT_BATCHES, round_id)


def shares(weights: Array, kept: Tensor, num_clients: int) -> tuple[float, ...]:
    """Weights of the kept clients as shares of all n clients that sum to 1 (or are all 0)."""
    full = torch.zeros(num_clients, dtype=torch.float64)
    full[kept.cpu()] = as_tensor(weights, name="weights", ndim=1).cpu().double()
    total = float(full.sum())
    return tuple((full / total).tolist()) if total > 0 else (0.0,) * num_clients
