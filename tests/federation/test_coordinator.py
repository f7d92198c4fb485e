"""The server's run without Flower: it learns, and it goes on from its files whenever it is killed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from ebscfl.config import load_preset
from ebscfl.errors import CheckpointError, ConfigError, VerificationError
from ebscfl.federation.coordinator import Coordinator
from ebscfl.federation.loopback import DirectExchange, Loopback
from ebscfl.federation.rounds import Deadlines
from ebscfl.federation.training import Training, load_config, setup_of
from ebscfl.kdc_service.deployment import open_stub, write_durably
from ebscfl.kdc_service.service import KdcService
from ebscfl.protocol.rounds import round_id_of
from ebscfl.protocol.sealed.kdc import SealedKdc
from ebscfl.sim.cell import build_cell, build_world

CONFIG = load_preset("smoke", ("data.clients=4", "data.groups=2", "rounds=3", "attacks=[]", "protocol=sealed"))
TRAINING = Training(CONFIG)
QUICK = Deadlines(first_s=2.0, last_s=2.0, quorum=3, pause_s=0.001)


class TrainingClients(DirectExchange):
    """Clients that train when they are asked."""

    def __init__(self, loop: Loopback, training: Training = TRAINING) -> None:
        super().__init__(self._upload)
        self.training = training
        self.agents = {i: loop.client(i) for i in range(training.config.data.clients)}
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
        return self.agents[client].upload(round_id, *self.training.update(client, self.models, round_id))


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
    assert TRAINING.method == "rfca"


HISTORY = load_preset(
    "smoke",
    (
        *("data.clients=8", "data.groups=2", "rounds=4", "attacks=[]", "protocol=sealed", "methods=rfca-h"),
        *("server.history_weight=record", "server.history_warmup=2", "server.root_direction=mixed"),
    ),
)


def test_rfca_h_is_the_simulators_and_its_history_outlives_the_key_centre(tmp_path: Path):
    """The same models as `ebs-cfl run` makes, up to the rounding of uploads; scores of all rounds are in the store."""
    training = Training(HISTORY)
    assert training.method == "rfca-h"
    with Loopback(tmp_path / "real", setup_of(HISTORY, b"run-tag!")) as loop:
        write_durably(loop.server_dir / "config.toml", HISTORY.to_toml().encode())
        boss = Coordinator(loop.server_dir, training, open_stub(loop.server_dir), QUICK)
        loop._closing.append(boss.close)
        clients = TrainingClients(loop, training)
        for step in range(1, 5):
            boss.step(clients)
            if step == 2:
                loop.restart_service()
        assert boss.results()[0]["method"] == "rfca-h"
        models = boss.checkpoint.state.models
        assert isinstance(loop.service, KdcService)
        assert loop.service._hosted is not None
        assert isinstance(loop.service._hosted.role, SealedKdc)
        kept = loop.service._hosted.role.score_history()
    cell = build_cell(build_world(dataclasses.replace(HISTORY, protocol="direct")), "rfca-h", "none")
    state = cell.algorithm.init(cell.env)
    for step in range(1, 5):
        state, _ = cell.algorithm.round(cell.env, state, step)
    torch.testing.assert_close(models, state.models, rtol=0, atol=3e-4)
    assert kept.seen.tolist() == state.histories[0].seen.tolist() == [4] * 8
    np.testing.assert_allclose(kept.level, state.histories[0].level, atol=5e-3)
    # And it is not what plain RFCA makes of the same rounds.
    plain = build_cell(build_world(dataclasses.replace(HISTORY, protocol="direct", methods=("rfca",))), "rfca", "none")
    other = plain.algorithm.init(plain.env)
    for step in range(1, 5):
        other, _ = plain.algorithm.round(plain.env, other, step)
    assert float((other.models - models).abs().max()) > 3e-3


@pytest.mark.parametrize(
    ("sets", "attack", "word"),
    [
        (("server.hysteresis=0.1",), "none", "hysteresis"),
        (("server.empty_cluster=follow",), "none", "empty_cluster"),
        (("attack.start_round=2", "attacks=label-flip"), "label-flip", "start_round"),
        (("attack.period=2", "attacks=label-flip"), "label-flip", "period"),
    ],
)
def test_what_no_party_of_a_federation_could_do_is_refused(sets: tuple[str, ...], attack: str, word: str):
    with pytest.raises(ConfigError, match=word):
        Training(load_preset("smoke", sets), attack)
