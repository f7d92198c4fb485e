"""Krum selects a Krum attacker, whose vector points against the benign direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attack_views import after, benign, generator, krum_index, make_view

from ebscfl.attacks import krum_attack
from ebscfl.attacks.view import AttackView
from ebscfl.errors import UsageError
from ebscfl.rules.krum import krum


@pytest.mark.parametrize(("n", "f"), [(11, 3), (20, 8), (30, 5)])
@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_krum_selects_an_attacker_and_would_not_at_twice_the_step(n: int, f: int, noise: float) -> None:
    view = make_view(n=n, f=f, d=60, noise=noise)
    crafted = np.asarray(krum_attack.craft(view, rng=generator()))
    assert krum_index(after(view, crafted), f) in view.attackers
    clean = np.asarray(view.everyone)
    direction = np.sign(clean[krum_index(clean, f)])
    scale = -crafted[0] * direction
    np.testing.assert_allclose(scale, scale[0])
    assert scale[0] > 0
    between, norms = benign(view), np.sum(benign(view) ** 2, axis=1)
    pairs = np.sort(np.sum((between[:, None] - between[None]) ** 2, axis=2), axis=1)
    nearest = pairs[:, 1 : n - f - 1].sum(axis=1).min()
    start = np.sqrt(nearest / ((n - 2 * f - 1) * 60)) + np.sqrt(norms.max() / 60)
    halvings = np.log2(start / scale[0])
    assert halvings == pytest.approx(round(halvings), abs=1e-9)
    if round(halvings) > 0:  # the search stopped at the largest halving that works
        doubled = np.repeat(2.0 * crafted[:1], f, axis=0)
        assert krum_index(after(view, doubled), f) not in view.attackers


def test_followers_stay_within_epsilon_of_the_leader_and_differ() -> None:
    crafted = np.asarray(krum_attack.craft(make_view(f=4), rng=generator(), epsilon=0.01))
    gaps = np.linalg.norm(crafted[1:] - crafted[0], axis=1) / np.linalg.norm(crafted[0])
    assert ((gaps > 0.0) & (gaps <= 0.01)).all()
    same = np.asarray(krum_attack.craft(make_view(f=4), rng=generator(), epsilon=0.0))
    np.testing.assert_array_equal(same, np.repeat(same[:1], 4, axis=0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_packages_own_krum_gives_all_weight_to_an_attacker(dtype: type) -> None:
    view = make_view(n=20, f=8, d=500)
    crafted = np.asarray(krum_attack.craft(view, rng=generator()))
    weights = np.asarray(krum(after(view, crafted).astype(dtype), faulty=8).weights)
    assert weights[list(view.attackers)].sum() == 1.0


def test_no_movement_leaves_nothing_to_reverse() -> None:
    still = AttackView(own=np.zeros((2, 3)), attackers=(0, 1), num_clients=4)
    assert not np.asarray(krum_attack.craft(still, rng=generator(), knowledge="partial")).any()


@pytest.mark.parametrize("f", [1, 2, 5])
def test_partial_knowledge_goes_against_the_attackers_mean(f: int) -> None:
    view = make_view(f=f, full=False)
    crafted = np.asarray(krum_attack.craft(view, rng=generator(), knowledge="partial"))
    direction = np.sign(np.asarray(view.own).mean(axis=0))
    assert (crafted[0] * direction < 0).all()


def test_partial_knowledge_fools_krum_when_benign_updates_spread() -> None:
    view = make_view(n=20, f=8, d=200, noise=4.0)
    crafted = np.asarray(krum_attack.craft(view, rng=generator(), knowledge="partial"))
    assert krum_index(after(view, crafted), 8) in view.attackers


def test_the_step_scales_with_the_updates() -> None:
    small, large = make_view(), make_view()
    large = type(large)(
        own=1e-3 * np.asarray(small.own),
        attackers=small.attackers,
        num_clients=small.num_clients,
        everyone=1e-3 * np.asarray(small.everyone),
    )
    np.testing.assert_allclose(
        np.asarray(krum_attack.craft(large, rng=generator())),
        1e-3 * np.asarray(krum_attack.craft(small, rng=generator())),
        rtol=1e-9,
    )


def test_selection_matches_krum_in_loops() -> None:
    rows = generator(3).standard_normal((9, 6))
    squared = torch.from_numpy(((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    assert krum_attack._select(squared, 2) == krum_index(rows, 2)


@pytest.mark.parametrize("settings", [{"epsilon": 1.0}, {"epsilon": -0.1}, {"floor": 0.0}, {"floor": 1.0}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        krum_attack.craft(make_view(), rng=generator(), **settings)


def test_all_clients_attacking_leaves_nothing_to_measure_against() -> None:
    with pytest.raises(UsageError, match="at least one benign"):
        krum_attack.craft(make_view(n=3, f=3), rng=generator())
