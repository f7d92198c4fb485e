"""Options against collapsing clusters and noisy root updates."""

from __future__ import annotations

import pytest
import torch
from tiny_federation import LIKES_0, LIKES_1, basis, environment, federation

from ebscfl.algorithms import ALGORITHMS, ServerSettings, ServerState
from ebscfl.algorithms.environment import choose_clusters, fill_empty
from ebscfl.algorithms.rfca import clustered_root_updates
from ebscfl.errors import ConfigError
from ebscfl.learning.local import cluster_losses

DATA = federation(((0,), (1,), (0,), (0,)))
MODELS = torch.stack([LIKES_0, LIKES_1])


def test_hysteresis_keeps_a_client_unless_the_gain_is_large_enough() -> None:
    near = LIKES_0 + 0.01 * (LIKES_1 - LIKES_0)  # almost as good for label 0 as LIKES_0
    models = torch.stack([LIKES_0, near])
    last = torch.tensor([1, 1, -1, 0])
    free = choose_clusters(environment(DATA), models, 1, last)
    assert free.tolist() == [0, 1, 0, 0]
    kept = choose_clusters(environment(DATA, hysteresis=0.5), models, 1, last)
    assert kept.tolist() == [1, 1, 0, 0]  # client 0 stays; client 2 has no last choice
    far = choose_clusters(environment(DATA, hysteresis=0.5), MODELS, 1, torch.tensor([1, 0, 0, 0]))
    assert far.tolist() == [0, 1, 0, 0]  # a loss ten times as high is left in spite of it


def test_hysteresis_compares_with_the_share_it_names() -> None:
    env = environment(DATA)
    models = torch.stack([LIKES_0, 0.5 * LIKES_0])
    rows = torch.stack([r[:1] for r in DATA.client_rows])[:, None]
    losses = cluster_losses(env.model, models, DATA, rows, env.local)
    share = float(1 - losses[0, 0] / losses[0, 1])  # how much lower the best loss of client 0 is
    last = torch.tensor([1, 0, 0, 0])
    assert choose_clusters(environment(DATA, hysteresis=share - 0.01), models, 1, last)[0] == 0
    assert choose_clusters(environment(DATA, hysteresis=share + 0.01), models, 1, last)[0] == 1


def test_choices_are_kept_only_with_hysteresis() -> None:
    for method in ("ifca", "rfca"):
        algorithm = ALGORITHMS[method]
        env = environment(DATA)
        state, _ = algorithm.round(env, algorithm.init(env), 1)
        assert state.choices is None
        env = environment(DATA, hysteresis=0.1)
        state, report = algorithm.round(env, algorithm.init(env), 1)
        assert state.choices is not None
        assert tuple(state.choices.tolist()) == report.clusters


def test_an_empty_cluster_follows_the_largest() -> None:
    models = torch.stack([basis(0), basis(1), basis(2)])
    clusters = torch.tensor([1, 1, 2, 1])
    moved = torch.tensor([False, True, True])
    kept = fill_empty(environment(DATA), models, clusters, moved)
    assert torch.equal(kept, models)
    filled = fill_empty(environment(DATA, empty_cluster="follow"), models, clusters, moved)
    assert torch.equal(filled, torch.stack([basis(1), basis(1), basis(2)]))
    nobody = fill_empty(environment(DATA, empty_cluster="follow"), models, clusters, torch.zeros(3, dtype=torch.bool))
    assert torch.equal(nobody, models)


def test_ifca_without_members_follows() -> None:
    data = federation(((0,), (0,), (0,), (0,)))
    env = environment(data, empty_cluster="follow")
    state, _ = ALGORITHMS["ifca"].round(env, ServerState(MODELS), 1)
    assert torch.equal(state.models[1], state.models[0])


def test_root_momentum_mixes_the_last_root_update_in() -> None:
    data = federation(((0,),), root=((0,), (1,)))
    last = torch.stack([basis(3, 4.0), torch.zeros(6)])
    fresh = clustered_root_updates(environment(data), MODELS, last, 1)
    mixed = clustered_root_updates(environment(data, root_momentum=0.75), MODELS, last, 1)
    assert torch.allclose(mixed[0], 0.75 * last[0] + 0.25 * fresh[0])
    assert torch.allclose(mixed[1], fresh[1])  # nothing to be mixed with yet


def test_a_cluster_no_clean_part_chooses_is_distrusted() -> None:
    data = federation(((0,), (1,), (1,), (0,)), root=((0,), (0,)))  # no root part likes model 1
    uploads = torch.stack([basis(0), basis(1), basis(1), basis(0)])
    last = torch.stack([basis(0), basis(1)])
    kept, report = ALGORITHMS["rfca"].round(environment(data, uploads), ServerState(MODELS, last), 1)
    assert report.weights[1] > 0
    env = environment(data, uploads, unsupported="distrust")
    state, report = ALGORITHMS["rfca"].round(env, ServerState(MODELS, last), 1)
    assert report.weights[1] == report.weights[2] == 0.0
    assert torch.equal(state.models[1], LIKES_1)
    assert not torch.equal(kept.models[1], LIKES_1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hysteresis", 1.0),
        ("root_momentum", -0.1),
        ("unsupported", "trust"),
        ("empty_cluster", "drop"),
        ("history_scope", "client"),
        ("history_decay", 1.5),
        ("history_warmup", 0),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        ServerSettings(**{name: value})  # type: ignore[arg-type]
