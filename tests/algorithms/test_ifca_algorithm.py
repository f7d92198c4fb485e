from __future__ import annotations

import torch
from tiny_federation import HOPELESS, LIKES_0, LIKES_1, basis, environment, federation

from ebscfl.algorithms import ALGORITHMS, ServerState

DATA = federation(((0,), (1,), (0,)))
STATE = ServerState(torch.stack([LIKES_0, LIKES_1, HOPELESS]))
UPDATES = torch.stack([basis(0), basis(1), basis(0, 3.0)])


def test_model_averaging_is_the_mean_over_the_cluster() -> None:
    state, report = ALGORITHMS["ifca"].round(environment(DATA, UPDATES, clusters=3), STATE, 1)
    assert report.clusters == (0, 1, 0)
    assert torch.allclose(state.models[0], LIKES_0 + basis(0, (1 + 3) / 2))
    assert torch.allclose(state.models[1], LIKES_1 + basis(1))
    assert report.weights == (1 / 3, 1 / 3, 1 / 3)


def test_gradient_averaging_divides_by_all_clients() -> None:
    state, _ = ALGORITHMS["ifca"].round(environment(DATA, UPDATES, clusters=3, averaging="gradient"), STATE, 1)
    assert torch.allclose(state.models[0], LIKES_0 + basis(0, (1 + 3) / 3))
    assert torch.allclose(state.models[1], LIKES_1 + basis(1, 1 / 3))


def test_an_empty_cluster_keeps_its_model() -> None:
    for averaging in ("model", "gradient"):
        state, _ = ALGORITHMS["ifca"].round(environment(DATA, UPDATES, clusters=3, averaging=averaging), STATE, 1)
        assert torch.equal(state.models[2], HOPELESS)


def test_dropped_uploads_leave_the_mean_of_the_rest() -> None:
    state, report = ALGORITHMS["ifca"].round(environment(DATA, UPDATES, clusters=3, malformed=(2,)), STATE, 1)
    assert torch.allclose(state.models[0], LIKES_0 + basis(0))
    assert report.weights == (0.5, 0.5, 0.0)
    state, report = ALGORITHMS["ifca"].round(environment(DATA, UPDATES, clusters=3, malformed=(0, 1, 2)), STATE, 1)
    assert torch.equal(state.models, STATE.models)
    assert report.events[-1] == "no usable update: no step this round"
