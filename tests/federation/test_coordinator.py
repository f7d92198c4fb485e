"""The server's run without Flower: it learns, and it goes on from its files whenever it is killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ebscfl.config import load_preset
from ebscfl.errors import CheckpointError, ConfigError, VerificationError
from ebscfl.federation import coordinator as module
from ebscfl.federation.coordinator import Coordinator
from ebscfl.federation.loopback import DirectExchange, Loopback
from ebscfl.federation.rounds import Deadlines
from ebscfl.federation.training import Training, load_config, setup_of
from ebscfl.kdc_service.deployment import open_stub, write_durably
from ebscfl.protocol.rounds import round_id_of

CONFIG = load_preset("smoke", ("data.clients=4", "data.groups=2", "rounds=3", "attacks=[]", "protocol=sealed"))
TRAINING = Training(CONFIG)
QUICK = Deadlines(first_s=2.0, last_s=2.0, quorum=3, pause_s=0.001)


class TrainingClients(DirectExchange):
    """Four clients that train when they are asked."""

    def __init__(self, loop: Loopback) -> None:
        super().__init__(self._upload)
        self.agents = {i: loop.client(i) for i in range(4)}
        self.models = np.zeros((0, 0), np.float32)
        self.trained = 0

    def broadcast(self, models: np.ndarray) -> None:
        self.models = models

    def clients(self) -> tuple[int, ...]:
        return tuple(self.agents)

    def _upload(self, round_id: int, client: int) -> bytes:
        known = self.agents[client].sent(round_id)
        if known is not None:
            return known
        self.trained += 1
        return self.agents[client].upload(round_id, *TRAINING.update(client, self.models, round_id))


@pytest.fixture
def loop(tmp_path: Path):
    with Loopback(tmp_path, setup_of(CONFIG, b"run-tag!")) as made:
        write_durably(made.server_dir / "config.toml", CONFIG.to_toml().encode())
        yield made


def start(loop: Loopback) -> Coordinator:
    made = Coordinator(loop.server_dir, TRAINING, open_stub(loop.server_dir), QUICK)
    loop._closing.append(made.close)
    return made


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("where", ["in the round", "before the checkpoint", "after the checkpoint"])
def test_a_killed_server_trains_the_same_models(loop: Loopback, where: str, monkeypatch: pytest.MonkeyPatch):
    """Dying in step 2 gives the very models of the run that goes on, each client trained once a step."""
    clients, first = TrainingClients(loop), start(loop)
    first.step(clients)

    def die(*_: object, **__: object) -> None:
        raise Killed

    if where == "in the round":
        monkeypatch.setattr(first.agent, "finish", die)
    elif where == "before the checkpoint":
        monkeypatch.setattr(first, "_save", die)
    else:
        monkeypatch.setattr(first, "_line", die)
    with pytest.raises(Killed):
        first.step(clients)
    first.close()
    again = start(loop)
    assert again.checkpoint.step == (2 if where == "after the checkpoint" else 1)
    again.run(clients, 2)
    assert again.checkpoint.round_id == round_id_of(2)  # the same round: nothing was summed a second time
    assert clients.trained == 8
    again.run(clients, 3)
    assert clients.trained == 12
    assert (again.checkpoint.step, again.checkpoint.round_id) == (3, round_id_of(3))


def test_one_server_a_directory_and_only_its_own_checkpoint(loop: Loopback):
    boss = start(loop)
    boss.step(TrainingClients(loop))
    with pytest.raises(ConfigError, match="another server runs"):
        start(loop)
    boss.close()
    path = loop.server_dir / "checkpoint.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="corrupt"):
        start(loop)
    path.write_bytes(whole)
    other = Training(load_preset("smoke", ("data.clients=4", "data.groups=2", "rounds=7", "attacks=[]")))
    with pytest.raises(CheckpointError, match="another configuration"):
        Coordinator(loop.server_dir, other, open_stub(loop.server_dir), QUICK)


def test_clients_check_the_models_they_are_sent():
    shape = (CONFIG.server.clusters, TRAINING.cell.env.model.dim)
    good = np.zeros(shape, np.float32)
    TRAINING.check_models(good)
    bad = good.copy()
    bad[0, 0] = np.nan
    for wrong in (None, bad, good[:1], good.astype(np.float64)):
        with pytest.raises(VerificationError):
            TRAINING.check_models(wrong)


def test_scores_are_losses_and_accuracies(loop: Loopback):
    scores = TRAINING.scores(0, TRAINING.start().models.numpy())
    assert len(scores["loss"]) == len(scores["accuracy"]) == CONFIG.server.clusters
    assert all(0 <= value <= 100 for value in scores["accuracy"])
    with pytest.raises(ConfigError, match=r"config\.toml"):
        load_config(loop.client_dir(0))
    assert module.METHOD == "rfca"
