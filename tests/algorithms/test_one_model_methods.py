"""FedAvg and the robust rules on one global model."""

from __future__ import annotations

import pytest
import torch
from tiny_federation import DIM, LIKES_0, basis, environment, federation

from ebscfl.algorithms import ALGORITHMS, ServerSettings, ServerState
from ebscfl.errors import ConfigError

STATE = ServerState(LIKES_0[None])


def test_fedavg_weighs_by_samples_and_scales_by_eta() -> None:
    env = environment(federation(((0,), (1, 1, 1))), torch.stack([basis(0), basis(1)]), eta=2.0)
    state, report = ALGORITHMS["fedavg"].round(env, STATE, 1)
    assert torch.allclose(state.models[0], LIKES_0 + 2.0 * (1 * basis(0) + 3 * basis(1)) / 4)
    assert report.weights == (0.25, 0.75)
    assert report.clusters == (0, 0)


def test_fedavg_goes_on_without_a_broken_upload() -> None:
    updates = torch.stack([basis(0), torch.full((DIM,), float("nan"))])
    state, report = ALGORITHMS["fedavg"].round(environment(federation(((0,), (1,))), updates), STATE, 1)
    assert torch.allclose(state.models[0], LIKES_0 + basis(0))
    assert report.weights == (1.0, 0.0)
    assert report.events == ("dropped clients [1]: update holds NaN or infinity",)


def test_nobody_usable_is_no_step() -> None:
    updates = torch.zeros(2, DIM)
    env = environment(federation(((0,), (1,))), updates, malformed=(0, 1))
    state, report = ALGORITHMS["fedavg"].round(env, STATE, 1)
    assert torch.equal(state.models, STATE.models)
    assert report.weights == (0.0, 0.0)
    assert "no step" in report.events[-1]


def test_median_and_trimmed_mean_ignore_one_outlier() -> None:
    updates = torch.stack([basis(0, 1.0), basis(0, 2.0), basis(0, 1000.0)])
    data = federation(((0,), (0,), (0,)))
    for name in ("median", "trimmed-mean"):
        state, _ = ALGORITHMS[name].round(environment(data, updates, faulty=1), STATE, 1)
        assert torch.allclose(state.models[0], LIKES_0 + basis(0, 2.0)), name


def test_krum_takes_one_of_the_crowd_and_multi_krum_their_mean() -> None:
    crowd = [basis(0, 1.0), basis(0, 1.1), basis(0, 1.2), basis(0, 1.3)]
    updates = torch.stack([*crowd, basis(1, 50.0)])
    data = federation(((0,),) * 5)
    state, report = ALGORITHMS["krum"].round(environment(data, updates, faulty=1), STATE, 1)
    assert sorted(report.weights) == [0, 0, 0, 0, 1]
    assert report.weights[4] == 0
    state, report = ALGORITHMS["multi-krum"].round(environment(data, updates, faulty=1), STATE, 1)
    assert torch.allclose(state.models[0], LIKES_0 + basis(0, (1.0 + 1.1 + 1.2 + 1.3) / 4))
    assert report.weights == (0.25, 0.25, 0.25, 0.25, 0.0)


def test_krum_with_too_few_usable_updates_does_not_move() -> None:
    updates = torch.stack([basis(0)] * 5)
    env = environment(federation(((0,),) * 5), updates, faulty=1, malformed=(4,))
    state, report = ALGORITHMS["krum"].round(env, STATE, 1)
    assert torch.equal(state.models, STATE.models)
    assert "4 usable updates are too few" in report.events[-1]


@pytest.mark.parametrize(("name", "clients", "faulty"), [("krum", 10, 4), ("multi-krum", 4, 1), ("trimmed-mean", 4, 2)])
def test_too_few_clients_are_refused_before_anything_starts(name: str, clients: int, faulty: int) -> None:
    check = ALGORITHMS[name].check
    assert check is not None
    with pytest.raises(ConfigError, match=r"server\.faulty"):
        check(ServerSettings(), clients, faulty)
    check(ServerSettings(), clients + 1, faulty)


def test_multi_krum_cannot_select_more_than_it_trusts() -> None:
    check = ALGORITHMS["multi-krum"].check
    assert check is not None
    with pytest.raises(ConfigError, match=r"server\.select"):
        check(ServerSettings(select=9), 11, 3)
