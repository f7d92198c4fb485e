from __future__ import annotations

import pytest
import torch
from tiny_federation import basis, environment, federation

from ebscfl.algorithms import ServerSettings
from ebscfl.algorithms.initialization import cluster_models, farthest_first, single_model
from ebscfl.errors import ConfigError


def test_one_cluster_starts_like_a_method_with_one_model() -> None:
    env = environment(federation(((0,), (1,))), clusters=1)
    assert torch.equal(cluster_models(env), single_model(env))


def test_farthest_first_takes_the_longest_then_the_least_similar() -> None:
    vectors = torch.stack([basis(0, 1.0), basis(0, 3.0) + basis(1, 0.1), basis(1, 2.0), basis(0, -1.0)])
    assert farthest_first(vectors, 3) == [1, 3, 2]


def test_root_parts_of_different_worlds_get_models_of_their_own() -> None:
    env = environment(federation(((0,), (1,)), root=((0,), (1,), (0,), (1,))))
    models = cluster_models(env)
    start = single_model(env)[0]
    moved = models - start
    # Bias gradients have opposite signs for the two labels.
    assert sorted((moved[:, 4] > 0).tolist()) == [False, True]


def test_clusters_beyond_the_root_parts_are_fresh_models() -> None:
    env = environment(federation(((0,), (1,)), root=((0,),)), clusters=3)
    models = cluster_models(env)
    assert len({tuple(model.tolist()) for model in models}) == 3


def test_independent_models_differ_and_depend_on_the_seed_alone() -> None:
    env = environment(federation(((0,), (1,))), cluster_init="independent")
    models = cluster_models(env)
    assert not torch.equal(models[0], models[1])
    assert torch.equal(models, cluster_models(env))


def test_covering_redraws_until_every_model_is_somebodys_best() -> None:
    env = environment(federation(((0,), (1,))), cluster_init="covering")
    models = cluster_models(env)
    says = [env.model.apply(theta, torch.tensor([[[[1.0, 0.0]]]])).argmax().item() for theta in models]
    logits = [env.model.apply(theta, torch.tensor([[[[1.0, 0.0]]]]))[0] for theta in models]
    margins = [float(row[0] - row[1]) for row in logits]
    assert margins[0] != margins[1], says
    few = environment(federation(((0,), (0,)), root=((0,),)), cluster_init="covering", init_tries=1)
    assert cluster_models(few).shape == (2, 6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clusters": 0},
        {"cluster_init": "x"},
        {"normalize": "x"},
        {"root_updates": "x"},
        {"root_scale": "x"},
        {"averaging": "x"},
        {"eta": 0.0},
        {"root_lr": float("nan")},
        {"faulty": -1},
        {"select": 0},
        {"root_steps": 0},
        {"root_batch": 0},
        {"init_tries": 0},
    ],
)
def test_settings_out_of_range_name_themselves(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ServerSettings(**wrong)  # type: ignore[arg-type]
