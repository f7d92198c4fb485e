"""What each party computes between messages: the server's half of RFCA and one client's half, from one configuration.

Server and clients hold the same ``config.toml`` (each its own copy: nothing of it comes over the network). A client
touches its own rows only. The steps are those of `ebscfl.algorithms.rfca`; only the aggregate comes from elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ebscfl.algorithms.environment import ServerState, share_body
from ebscfl.algorithms.rfca import clustered_root_updates, init
from ebscfl.config import NO_ATTACK, RunConfig, parse_config
from ebscfl.errors import ConfigError, VerificationError
from ebscfl.ids import SERVER
from ebscfl.learning.local import cluster_losses, confusion_counts, draw_batches, local_updates
from ebscfl.protocol.roles import Outcome, Setup
from ebscfl.protocol.rounds import training_round_of
from ebscfl.rng import USAGE_BATCHES, USAGE_ROLE, numpy_generator
from ebscfl.sim.cell import Cell, build_cell, build_world
from ebscfl.sim.evaluate import Evaluation, evaluate

Float32s = npt.NDArray[np.float32]


def load_config(directory: Path) -> RunConfig:
    """``config.toml`` of a party's directory."""
    path = directory / "config.toml"
    try:
        return parse_config(path.read_text(encoding="utf-8"), source=str(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; put the run's configuration there") from None


def setup_of(config: RunConfig, run_id: bytes) -> Setup:
    """What all parties of a federation with this configuration agree on."""
    training, options = Training(config), config.secure.options(config.protocol, config.rounds)
    if training.method == "rfca-h":
        options |= {"history": True, "history_settings": asdict(config.server.history)}
    return Setup(
        config.protocol, config.data.clients, config.server.clusters, training.cell.env.model.dim, run_id,
        config.server.normalize, options,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Training:
    """A configuration made into data and models. ``attack``: "none", or one that poisons data."""

    config: RunConfig
    attack: str = NO_ATTACK
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what no party of a federation could do."""
        server, attack = self.config.server, self.config.attack
        if server.hysteresis > 0:
            raise ConfigError("server.hysteresis: clients of a federation do not keep their last cluster; use 0")
        if server.empty_cluster == "follow":
            raise ConfigError("server.empty_cluster: the server of a federation does not know the clusters; use keep")
        if self.attack != NO_ATTACK and (attack.start_round, attack.period) != (1, None):
            raise ConfigError("attack: clients of a federation attack in every round; leave out start_round and period")

    @property
    def method(self) -> str:
        """RFCA-H where the configuration names it, else RFCA."""
        return "rfca-h" if "rfca-h" in self.config.methods else "rfca"

    @cached_property
    def cell(self) -> Cell:
        """The method with the attackers' samples poisoned (each attacker poisons its own)."""
        return build_cell(build_world(self.config, self.data_dir), self.method, self.attack)

    # --- server -----------------------------------------------------------------------------------------------------

    def start(self) -> ServerState:
        """The first models."""
        return init(self.cell.env)

    def root_updates(self, state: ServerState, step: int) -> ServerState:
        """``state`` with this step's root updates g_0^j; a function of models and step alone."""
        assert state.server_updates is not None
        if self.config.server.root_updates == "fixed":
            return state
        return ServerState(
            state.models, clustered_root_updates(self.cell.env, state.models, state.server_updates, step)
        )

    def directions(self, state: ServerState, step: int) -> npt.NDArray[np.float64]:
        """(m, l) root updates for the protocol; a cluster without one gets a random direction, which moves nothing."""
        assert state.server_updates is not None
        rows = state.server_updates.cpu().numpy().astype(np.float64)
        for k in np.flatnonzero(np.linalg.norm(rows, axis=1) == 0):
            draw = numpy_generator(self.cell.env.root, USAGE_ROLE, "no-root-update", step, int(k))
            rows[k] = draw.standard_normal(rows.shape[1])
        return rows

    def move(self, state: ServerState, outcome: Outcome) -> ServerState:
        """theta_j += eta |g_0^j| aggregate_j."""
        assert state.server_updates is not None
        lengths = torch.linalg.vector_norm(state.server_updates, dim=1, keepdim=True)
        aggregates = torch.as_tensor(outcome.aggregates, dtype=state.models.dtype)
        step = self.config.server.eta * lengths * aggregates
        if outcome.cluster_weight is not None:  # a protocol that hides it is refused where a body is shared
            step = share_body(self.cell.env, step, torch.as_tensor(outcome.cluster_weight))
        return ServerState(state.models + step, state.server_updates)

    def evaluate(self, state: ServerState, step: int) -> Evaluation:
        """Accuracies for honest clients, as `ebs-cfl run` measures them."""
        return evaluate(self.cell.env, state.models, self.cell.honest, step)

    # --- one client -------------------------------------------------------------------------------------------------

    def update(self, client: int, models: Float32s, round_id: int) -> tuple[Float32s, int]:
        """Choose the model with the lowest loss on this round's batches and train it: (update, cluster)."""
        env = self.cell.env
        theta = self.check_models(models)
        choice = env.choice_data or env.data
        seen = self._batches(choice.client_rows[client], client, round_id)[:, : env.server.choice_steps]
        losses = cluster_losses(env.model, theta, choice, seen, env.local)
        cluster = int(losses[0].argmin())
        rows = self._batches(env.data.client_rows[client], client, round_id)
        update = local_updates(env.model, theta[cluster], env.data, rows, env.local)[0]
        return update.numpy().astype(np.float32), cluster

    def scores(self, client: int, models: Float32s) -> dict[str, list[float]]:
        """Per cluster model: mean loss on the client's samples and accuracy in percent on its domain's test set."""
        env, theta = self.cell.env, self.check_models(models)
        rows = env.data.client_rows[client][None, None, :]
        losses = cluster_losses(env.model, theta, env.data, rows, env.local)[0]
        counts = confusion_counts(env.model, theta, env.data, env.local)[:, int(env.data.client_domain[client])]
        right = counts.diagonal(dim1=1, dim2=2).sum(dim=1).double() / counts.sum(dim=(1, 2))
        return {"loss": [float(x) for x in losses], "accuracy": [100 * float(x) for x in right]}

    def check_models(self, models: Any) -> Tensor:
        """(m, d) finite float32 models, or the server's fault."""
        shape = (self.config.server.clusters, self.cell.env.model.dim)
        if not isinstance(models, np.ndarray) or models.dtype != np.float32 or models.shape != shape:
            raise VerificationError(f"the server's models are not float32 of shape {shape}", culprits=(SERVER,))
        if not np.isfinite(models).all():
            raise VerificationError("the server's models hold NaN or infinity", culprits=(SERVER,))
        return torch.from_numpy(np.array(models))

    def _batches(self, rows: Tensor, client: int, round_id: int) -> Tensor:
        local, root = self.config.local, self.cell.env.root
        step = training_round_of(round_id)  # as in the simulator: a second attempt trains the very same update
        return draw_batches([rows], local.steps, local.batch_size, root, USAGE_BATCHES, step, ids=[client])
