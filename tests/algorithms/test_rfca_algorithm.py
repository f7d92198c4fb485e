from __future__ import annotations

import math

import torch
from tiny_federation import DIM, LIKES_0, LIKES_1, basis, environment, federation
from torch import Tensor

from ebscfl.algorithms import ALGORITHMS, ServerState
from ebscfl.algorithms.rfca import clustered_root_updates

RFCA = ALGORITHMS["rfca"]
MODELS = torch.stack([LIKES_0, LIKES_1])
DATA = federation(((0,), (1,), (0,), (0,)))  # clients 0, 2, 3 choose model 0, client 1 model 1
SERVER = torch.stack([basis(0, 2.0), basis(1, 5.0)])
STATE = ServerState(MODELS, SERVER)


def step_of(likes: int, label: int) -> Tensor:
    """The step of learning rate 1 that image (1, 0) with ``label`` gives the model whose bias for ``likes`` is 3."""
    wrong = 1 / (1 + math.exp(3.0)) if likes == label else 1 / (1 + math.exp(-3.0))
    sign = 1.0 if label == 0 else -1.0
    return sign * wrong * torch.tensor([1.0, 0.0, -1.0, 0.0, 1.0, -1.0])


def uploads() -> Tensor:
    tilted = basis(0, 3.0) + basis(2, 4.0)  # cosine 3/5 with the root update of cluster 0
    return torch.stack([basis(0, 7.0), basis(1, 0.1), tilted, basis(0, -9.0)])


def test_round_follows_equation_1() -> None:
    env = environment(DATA, uploads(), root_updates="fixed", eta=0.5)
    state, report = RFCA.round(env, STATE, 1)
    unit_tilted = basis(0, 0.6) + basis(2, 0.8)
    expected_0 = LIKES_0 + 0.5 * 2.0 * (1.0 * basis(0) + 0.6 * unit_tilted) / (1.0 + 0.6)
    assert torch.allclose(state.models[0], expected_0)
    assert torch.allclose(state.models[1], LIKES_1 + 0.5 * 5.0 * basis(1))
    assert report.clusters == (0, 1, 0, 0)
    assert torch.allclose(torch.tensor(report.weights), torch.tensor([1.0, 1.0, 0.6, 0.0]) / 2.6)
    assert report.scores is not None
    assert torch.allclose(torch.tensor(report.scores), torch.tensor([1.0, 1.0, 0.6, -1.0]))


def test_global_normalization_divides_by_all_trust() -> None:
    env = environment(DATA, uploads(), root_updates="fixed", normalize="global")
    state, _ = RFCA.round(env, STATE, 1)
    assert torch.allclose(state.models[1], LIKES_1 + 5.0 * basis(1) / 2.6)


def test_fixed_root_updates_never_change() -> None:
    env = environment(DATA, root_updates="fixed")
    state = RFCA.init(env)
    first = state.server_updates
    assert first is not None
    assert bool(first.any())
    for round_id in (1, 2):
        state, _ = RFCA.round(env, state, round_id)
    assert state.server_updates is not None
    assert torch.equal(state.server_updates, first)


def test_root_parts_train_the_model_they_like_and_are_summed_as_printed() -> None:
    env = environment(federation(((0,),), root=((0,), (0,), (1,))))
    last = torch.zeros(2, DIM)
    paper = clustered_root_updates(env, MODELS, last, 1)
    # m / parts = 2 / 3; parts 0 and 1 choose model 0, part 2 model 1.
    assert torch.allclose(paper[0], (2 / 3) * 2 * step_of(0, 0), atol=1e-6)
    assert torch.allclose(paper[1], (2 / 3) * step_of(1, 1), atol=1e-6)
    env = environment(federation(((0,),), root=((0,), (0,), (1,))), root_scale="mean")
    mean = clustered_root_updates(env, MODELS, last, 1)
    assert torch.allclose(mean[0], step_of(0, 0), atol=1e-6)


def test_a_cluster_no_part_chose_keeps_its_last_root_update() -> None:
    env = environment(federation(((0,),), root=((0,), (0,))))
    last = torch.stack([basis(3, 4.0), basis(2, 7.0)])
    fresh = clustered_root_updates(env, MODELS, last, 1)
    assert torch.equal(fresh[1], last[1])
    assert not torch.equal(fresh[0], last[0])


def test_root_updates_are_recomputed_every_round_by_default() -> None:
    env = environment(DATA)
    state = RFCA.init(env)
    assert state.server_updates is not None
    assert not bool(state.server_updates.any())
    state, _ = RFCA.round(env, state, 1)
    one = state.server_updates
    state, _ = RFCA.round(env, state, 2)
    assert one is not None
    assert state.server_updates is not None
    assert not torch.equal(state.server_updates, one)


def test_no_trust_at_all_is_no_step_and_said() -> None:
    env = environment(
        DATA, torch.stack([basis(0, -1.0), basis(1, -1.0), basis(0, -2.0), basis(2)]), root_updates="fixed"
    )
    state, report = RFCA.round(env, STATE, 1)
    assert torch.equal(state.models, MODELS)
    assert report.weights == (0.0, 0.0, 0.0, 0.0)
    assert report.events == ("all trust weights are zero: no step this round",)


def test_broken_uploads_are_dropped_and_the_round_goes_on() -> None:
    broken = uploads()
    broken[0, 0] = float("nan")
    env = environment(DATA, broken, root_updates="fixed", malformed=(2,))
    state, report = RFCA.round(env, STATE, 1)
    assert torch.equal(state.models[0], LIKES_0)  # only the opposing client 3 is left in cluster 0
    assert torch.allclose(state.models[1], LIKES_1 + 5.0 * basis(1))
    assert len(report.events) == 2
    env = environment(DATA, broken, root_updates="fixed", malformed=(0, 1, 2, 3))
    state, report = RFCA.round(env, STATE, 1)
    assert torch.equal(state.models, MODELS)
    assert report.weights == (0.0,) * 4


def test_a_diverged_cluster_trusts_nobody_and_leaves_the_others_alone() -> None:
    for mixed in ("cluster", "mixed"):
        for scale in ("paper", "part"):
            env = environment(DATA, uploads(), root_scale=scale, root_direction=mixed)
            broken = torch.stack([LIKES_0, torch.full((DIM,), 1e30)])
            broken[1, 5] = float("nan")
            state, report = RFCA.round(env, ServerState(broken, torch.zeros(2, DIM)), 1)
            assert set(report.clusters) == {0}  # NaN is nobody's lowest loss
            assert torch.isfinite(state.models[0]).all()
            assert not torch.equal(state.models[0], LIKES_0)
            assert report.events[0].startswith("no root update for models [1]")
    env = environment(DATA, root_lr=3e38)  # the root updates overflow
    state, report = RFCA.round(env, STATE, 1)
    assert torch.equal(state.models, MODELS)
    assert report.events[0].startswith("no root update for models [0, 1]")
    assert report.events[-1] == "all trust weights are zero: no step this round"
