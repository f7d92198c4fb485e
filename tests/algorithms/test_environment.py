from __future__ import annotations

import torch
from tiny_federation import DIM, LIKES_0, LIKES_1, basis, environment, federation

from ebscfl.algorithms import ServerState, Uploads
from ebscfl.algorithms.environment import Stopwatch, admit, choose_clusters, collect, root_settings, shares


def test_clients_choose_the_model_with_the_lowest_loss() -> None:
    env = environment(federation(((0,), (1,), (0, 0))))
    assert choose_clusters(env, torch.stack([LIKES_0, LIKES_1]), 1).tolist() == [0, 1, 0]
    assert choose_clusters(env, torch.stack([LIKES_1, LIKES_0]), 1).tolist() == [1, 0, 1]


def test_one_model_needs_no_choice() -> None:
    env = environment(federation(((0,), (1,))))
    assert choose_clusters(env, LIKES_0[None], 1).tolist() == [0, 0]


def test_choice_data_decides_the_cluster_but_not_the_update() -> None:
    poisoned = federation(((1,), (1,)))
    env = environment(poisoned)
    env = type(env)(**{**env.__dict__, "choice_data": federation(((0,), (1,)))})
    state = ServerState(torch.stack([LIKES_0, LIKES_1]))
    clusters, uploads = collect(env, state, 1, Stopwatch(env.device))
    assert clusters.tolist() == [0, 1]
    # Client 0 trains model 0 on label 1: the bias of class 1 rises.
    assert uploads.updates[0, 5] > 0 > uploads.updates[0, 4]


def test_admit_drops_and_names_what_cannot_be_used() -> None:
    updates = torch.stack([basis(0), basis(1), basis(2), basis(3)])
    updates[1, 0] = float("nan")
    updates[3, 0] = float("inf")
    kept, events = admit(Uploads(updates, malformed=(2,)))
    assert kept.tolist() == [0]
    assert events == (
        "dropped clients [1, 3]: update holds NaN or infinity",
        "dropped clients [2]: update has the wrong shape",
    )


def test_admit_keeps_everything_that_is_well_formed() -> None:
    kept, events = admit(Uploads(torch.zeros(3, DIM)))
    assert kept.tolist() == [0, 1, 2]
    assert events == ()


def test_shares_are_over_all_clients_and_sum_to_one() -> None:
    assert shares(torch.tensor([1.0, 3.0]), torch.tensor([0, 2]), 4) == (0.25, 0.0, 0.75, 0.0)
    assert shares(torch.tensor([0.0, 0.0]), torch.tensor([0, 2]), 3) == (0.0, 0.0, 0.0)


def test_root_settings_fall_back_on_local_ones() -> None:
    data = federation(((0,),))
    assert root_settings(environment(data)).lr == 1.0
    changed = root_settings(environment(data, root_lr=0.25, root_steps=7, root_batch=3))
    assert (changed.lr, changed.steps, changed.batch_size) == (0.25, 7, 3)


def test_stopwatch_adds_up_per_phase() -> None:
    clock = Stopwatch(torch.device("cpu"))
    with clock.phase("train"):
        pass
    first = clock.seconds["train"]
    with clock.phase("train"):
        pass
    assert clock.seconds["train"] > first > 0
    assert clock.seconds["evaluate"] == 0
