"""Min-max meets its distance constraint with equality, and equals the published search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attack_views import Matrix, benign, generator, make_view

from ebscfl.attacks import min_max
from ebscfl.attacks.view import AttackView
from ebscfl.errors import UsageError


def widest(rows: Matrix) -> float:
    return max(float(np.linalg.norm(a - b)) for a in rows for b in rows)


def farthest(point: Matrix, rows: Matrix) -> float:
    return max(float(np.linalg.norm(point - row)) for row in rows)


def slow_gamma(rows: Matrix, push: Matrix) -> float:
    """Bisection between a gamma that meets the constraint and one that does not."""
    low, high = 0.0, 1.0
    while farthest(rows.mean(axis=0) + high * push, rows) <= widest(rows):
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if farthest(rows.mean(axis=0) + middle * push, rows) <= widest(rows):
            low = middle
        else:
            high = middle
    return low


@pytest.mark.parametrize("knowledge", ["full", "partial"])
@pytest.mark.parametrize("kind", min_max.PERTURBATIONS)
def test_the_constraint_is_tight_and_gamma_is_the_searched_one(knowledge: str, kind: str) -> None:
    view = make_view(f=4)
    rows = benign(view) if knowledge == "full" else np.asarray(view.own)
    crafted = np.asarray(min_max.craft(view, rng=generator(), knowledge=knowledge, perturbation=kind))
    np.testing.assert_array_equal(crafted, np.repeat(crafted[:1], 4, axis=0))
    assert farthest(crafted[0], rows) == pytest.approx(widest(rows), rel=1e-9)
    push = {"unit": -rows.mean(0) / np.linalg.norm(rows.mean(0)), "std": rows.std(0), "sign": -np.sign(rows.mean(0))}
    gamma = slow_gamma(rows, push[kind])
    np.testing.assert_allclose(crafted[0], rows.mean(axis=0) + gamma * push[kind], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["unit", "sign"])
def test_the_push_is_against_the_mean(kind: str) -> None:
    view = make_view()
    mean = benign(view).mean(axis=0)
    assert float((np.asarray(min_max.craft(view, rng=generator(), perturbation=kind))[0] - mean) @ mean) < 0


def test_equal_updates_leave_no_room() -> None:
    view = make_view(noise=0.0)
    np.testing.assert_allclose(np.asarray(min_max.craft(view, rng=generator())), np.asarray(view.own), rtol=1e-6)
    zeros = AttackView(own=np.zeros((2, 3)), attackers=(0, 1), num_clients=4)
    assert not np.asarray(min_max.craft(zeros, rng=generator(), knowledge="partial")).any()
    alone = make_view(f=1, full=False)
    np.testing.assert_allclose(np.asarray(min_max.craft(alone, rng=generator(), knowledge="partial")), alone.own)


def test_unknown_perturbations_are_refused() -> None:
    with pytest.raises(UsageError, match="unit, std, sign"):
        min_max.craft(make_view(), rng=generator(), perturbation="random")
    assert not min_max.perturbation_of(torch.ones(2, 3), torch.zeros(3), "unit").any()
