from __future__ import annotations

import torch
from tiny_federation import basis, environment, federation

from ebscfl.algorithms import ALGORITHMS, ServerState
from ebscfl.algorithms.fltrust import root_update

ZERO = ServerState(torch.zeros(1, 6))
# Gradient of the cross entropy of theta = 0 on image (1, 0) with label 0: probabilities are 1/2, so the step of
# learning rate 1 is +1/2 on weight[0, 0] and bias[0], -1/2 on weight[1, 0] and bias[1].
STEP_0 = torch.tensor([0.5, 0.0, -0.5, 0.0, 0.5, -0.5])


def test_root_update_is_one_local_training_on_the_root_set() -> None:
    env = environment(federation(((0,),), root=((0,), (0,))))
    assert torch.allclose(root_update(env, ZERO.models, 1)[0], STEP_0)


def test_updates_are_rescaled_to_the_root_update_and_weighed_by_cosine() -> None:
    # Client 0 agrees with the root update (cosine 1), client 1 opposes it, client 2 is orthogonal.
    updates = torch.stack([STEP_0 * 10, -STEP_0, basis(1)])
    env = environment(federation(((0,), (0,), (0,)), root=((0,),)), updates)
    state, report = ALGORITHMS["fltrust"].round(env, ZERO, 1)
    assert torch.allclose(state.models[0], STEP_0, atol=1e-6)
    assert report.weights == (1.0, 0.0, 0.0)
    assert report.scores is not None
    assert torch.allclose(torch.tensor(report.scores), torch.tensor([1.0, -1.0, 0.0]), atol=1e-6)


def test_scores_are_cosines_whatever_the_lengths() -> None:
    """Squares of these leave float32: a score that is no number could not be written to the metrics."""
    updates = torch.stack([STEP_0 * 1e30, STEP_0 * -1e30, STEP_0 * 1e-30, basis(1, 1e38), torch.zeros(6)])
    env = environment(federation(((0,),) * 5, root=((0,),)), updates)
    _, report = ALGORITHMS["fltrust"].round(env, ZERO, 1)
    assert report.scores is not None
    assert torch.allclose(torch.tensor(report.scores), torch.tensor([1.0, -1.0, 1.0, 0.0, 0.0]), atol=1e-6)
    assert report.weights == (0.5, 0.0, 0.5, 0.0, 0.0)


def test_no_trust_at_all_is_no_step_and_said() -> None:
    updates = torch.stack([-STEP_0, -STEP_0])
    env = environment(federation(((0,), (0,)), root=((0,),)), updates)
    state, report = ALGORITHMS["fltrust"].round(env, ZERO, 1)
    assert torch.equal(state.models, ZERO.models)
    assert report.events == ("all trust weights are zero: no step this round",)


def test_a_diverged_root_update_is_no_step_and_said() -> None:
    env = environment(federation(((0,), (0,)), root=((0,),)), torch.stack([STEP_0, STEP_0]))
    broken = ServerState(torch.full((1, 6), float("nan")))
    _, report = ALGORITHMS["fltrust"].round(env, broken, 1)
    assert report.weights == (0.0, 0.0)
    assert report.events[0].startswith("no root update for models [0]")
