"""The server's run over a network, step by step, with a checkpoint after each: Flower does not resume a killed run.

In the server's directory: ``checkpoint.npz`` (models after the last whole step), ``round.journal`` (the open round),
``last-round`` (round ids are used up before they are used) and ``metrics.jsonl``. Killed at any moment and started
again, the run goes on: an open round is replayed from its journal, and a round that is in the checkpoint already is
not applied twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import struct
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ebscfl.algorithms.environment import ServerState
from ebscfl.errors import CheckpointError, ConfigError, RoundAborted
from ebscfl.federation.journal import Event, Journal
from ebscfl.federation.rounds import Deadlines, Exchange, RoundEnd, play
from ebscfl.federation.server_agent import ServerAgent
from ebscfl.federation.training import Training
from ebscfl.kdc_service.deployment import RunFile, server_role, write_durably
from ebscfl.kdc_service.stub import KdcStub
from ebscfl.pool import IN_PLACE, Pool
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.rounds import next_round_id
from ebscfl.sim.journal import Journal as Metrics
from ebscfl.sim.metrics import accuracies

LOG = logging.getLogger("ebscfl.federation")


class TrainingExchange(Exchange, Protocol):
    """An exchange that also carries models, and knows who is there."""

    def broadcast(self, models: npt.NDArray[np.float32]) -> None:
        """The models that go with every question from now on."""

    def clients(self) -> Sequence[int]:
        """Clients that can be asked now."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where the run stands."""

    step: int  # training steps completed
    round_id: int  # the protocol round of the last one; -1 before the first
    state: ServerState


class Coordinator:
    """One server process. Only one may use a directory at a time."""

    def __init__(
        self, directory: Path, training: Training, stub: KdcStub, deadlines: Deadlines, pool: Pool = IN_PLACE
    ) -> None:
        self.directory = directory
        self.training = training
        self.deadlines = deadlines
        self._stub = stub
        self._held = contextlib.ExitStack()
        self._held.callback(stub.close)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            check_fit(RunFile.load(directory).setup, training)
            self._held.callback(_exclusive(directory / "lock").close)
            self._journal = Journal(directory / "round.journal")
            self._held.callback(self._journal.close)
            self._metrics = Metrics(directory / "metrics.jsonl")
            self.checkpoint = self._load() or Checkpoint(0, -1, training.start())
            self._newest = stub.hello()
            self.agent = ServerAgent(lambda: server_role(directory, pool), stub, self._journal)
            self._resumed = self._resume()
            undo.pop_all()

    def close(self) -> None:
        """Give the directory back and hang up."""
        self._held.close()

    def run(self, exchange: TrainingExchange, steps: int, *, after: Callable[[int], None] = lambda step: None) -> None:
        """Train until ``steps`` steps are done. ``after`` is told of each."""
        failures = 0
        while self.checkpoint.step < steps:
            try:
                self.step(exchange)
            except RoundAborted as error:
                failures += 1
                if failures == self.deadlines.attempts:
                    raise
                LOG.warning("step %d is played again: %s", self.checkpoint.step + 1, error)
                continue
            failures = 0
            after(self.checkpoint.step)

    def step(self, exchange: TrainingExchange) -> RoundEnd:
        """One training step: root updates, one round with the clients, move, checkpoint, metrics."""
        started, done = time.perf_counter(), self.checkpoint
        step = done.step + 1
        state = self.training.root_updates(done.state, step)
        exchange.broadcast(state.models.cpu().numpy().astype(np.float32))
        resumed, self._resumed = self._resumed, False
        clients = self.agent.role.expected if resumed else exchange.clients()
        end = play(
            self.agent, exchange, clients, self.training.directions(state, step),
            fresh_round=partial(self._fresh_round, step), deadlines=self.deadlines, resumed=resumed,
        )  # fmt: skip
        self.checkpoint = Checkpoint(step, end.round_id, self.training.move(state, end.outcome))
        self._save()
        self._metrics.keep(lambda line: line["kind"] != "round" or line["round"] < step)
        self._metrics.append(self._line(step, end, time.perf_counter() - started))
        return end

    def results(self) -> list[dict[str, Any]]:
        """One row like those of results.json. A private protocol does not show whose weight is whose: no ASR."""
        rounds = self._metrics.rounds(self.training.method, self.training.attack)
        curve = accuracies(rounds, self.training.config.evaluation)
        if not curve:
            return []
        fa, ma, attacked = curve[-1], max(curve), bool(self.training.cell.attackers)
        na = None if attacked else fa  # the run without attack is another one
        return [
            {
                "method": self.training.method, "attack": self.training.attack, "fa": fa, "ma": ma, "na": na,
                "asr": None, "air_printed": None, "air_points": None, "attacker_weight_share": None,
            }
        ]  # fmt: skip

    # --- parts ------------------------------------------------------------------------------------------------------

    def _resume(self) -> bool:
        entries = self._journal.entries
        if not entries or entries[0].event is not Event.START:
            return False
        (round_id,) = struct.unpack_from("<Q", entries[0].data)
        if round_id <= self.checkpoint.round_id:
            self._journal.clear()  # it died between the checkpoint and the next round: nothing is open
            return False
        return self.agent.resume()

    def _fresh_round(self, step: int) -> int:
        """The next attempt at this step; the key centre releases one attempt of a step at most."""
        path = self.directory / "last-round"
        last = int(path.read_text()) if path.exists() else -1
        fresh = next_round_id(step, max(last, self._newest, self._stub.newest_round))
        write_durably(path, str(fresh).encode())
        return fresh

    def _line(self, step: int, end: RoundEnd, seconds: float) -> dict[str, Any]:
        result = self.training.evaluate(self.checkpoint.state, step)
        events = [f"{who}: {why}" for who, why in sorted(end.culprits.items())]
        return {
            "kind": "round", "method": self.training.method, "attack": self.training.attack, "round": step,
            "accuracy_own": result.own, "accuracy_global": result.union, "accuracy_clusters": list(result.clusters),
            "clusters": list(result.choices), "weights": [], "scores": None, "attacker_weight_share": None,
            "attackers_accepted": 0, "backdoor": None, "seconds": {"round": end.seconds, "step": seconds},
            "bytes": None, "role_seconds": None, "events": [*events, *end.outcome.events],
            "protocol_round": end.round_id, "included": list(end.outcome.included),
            "asked_again": list(end.asked_again), "aggregate_sha256": _digest(end),
        }  # fmt: skip

    def _save(self) -> None:
        done = self.checkpoint
        header = {"step": done.step, "round": done.round_id, "config": self.training.config.digest()}
        assert done.state.server_updates is not None
        buffer = io.BytesIO()
        np.savez(
            buffer,
            allow_pickle=False,
            header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8),
            models=done.state.models.cpu().numpy(),
            server_updates=done.state.server_updates.cpu().numpy(),
        )
        write_durably(self.directory / "checkpoint.npz", buffer.getvalue())

    def _load(self) -> Checkpoint | None:
        path = self.directory / "checkpoint.npz"
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
                header = json.loads(archive["header"].tobytes())
                models, updates = (torch.from_numpy(archive[name]) for name in ("models", "server_updates"))
            step, round_id, digest = int(header["step"]), int(header["round"]), header["config"]
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"{path} is corrupt ({type(error).__name__}): restore it or start a new run"
            ) from None
        if digest != self.training.config.digest():
            raise CheckpointError(f"{path} belongs to another configuration: restore config.toml or start a new run")
        return Checkpoint(step, round_id, ServerState(models, updates))


def check_fit(setup: Setup, training: Training) -> None:
    """The federation's run.json and the server's config.toml must speak of the same run."""
    config = training.config
    wanted = {
        "protocol": config.protocol, "num_clients": config.data.clients, "num_clusters": config.server.clusters,
        "dim": training.cell.env.model.dim, "normalize": config.server.normalize,
    }  # fmt: skip
    for name, value in wanted.items():
        if getattr(setup, name) != value:
            raise ConfigError(f"run.json has {name} = {getattr(setup, name)!r}, config.toml asks for {value!r}")


def _digest(end: RoundEnd) -> str:
    return hashlib.sha256(np.ascontiguousarray(end.outcome.aggregates).tobytes()).hexdigest()


def _exclusive(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "w", encoding="ascii")  # noqa: SIM115 - held as long as the coordinator lives
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(f"another server runs in {path.parent}: stop it first") from None
    return file
