"""The Trim attack lands beyond every clean value, on the side the model would not go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attack_views import generator, make_view

from ebscfl.attacks import trim_attack
from ebscfl.attacks.view import AttackView
from ebscfl.errors import UsageError


@pytest.mark.parametrize("seed", range(3))
def test_full_knowledge_lies_beyond_the_extreme_within_the_reach(seed: int) -> None:
    view = make_view(d=200, seed=seed)
    everyone = np.asarray(view.everyone)
    crafted = np.asarray(trim_attack.craft(view, rng=generator()))
    up = everyone.sum(axis=0) > 0
    low, high = everyone.min(axis=0), everyone.max(axis=0)
    assert (crafted[:, up] <= low[up]).all()
    assert (crafted[:, ~up] >= high[~up]).all()
    extreme = np.where(up, low, high)
    ratio = crafted / extreme
    assert ((ratio > 0.5) & (ratio < 2.0)).all()
    # All four cases of the definition occur and no draw is shared between attackers.
    assert {(bool(u), bool(e > 0)) for u, e in zip(up, extreme, strict=True)} == {
        (True, True),
        (True, False),
        (False, True),
        (False, False),
    }
    assert len(np.unique(np.abs(np.log(ratio)))) == ratio.size


def test_a_coordinate_without_direction_stays_zero() -> None:
    everyone = np.array([[1.0, 1.0], [-1.0, 2.0], [0.0, 3.0]])
    view = AttackView(own=everyone[:1], attackers=(0,), num_clients=3, everyone=everyone)
    crafted = np.asarray(trim_attack.craft(view, rng=generator()))
    assert crafted[0, 0] == 0.0
    assert 0.5 <= crafted[0, 1] <= 1.0


def test_partial_knowledge_lies_three_to_four_deviations_against_the_mean() -> None:
    view = make_view(f=5, d=200, full=False)
    own = np.asarray(view.own)
    crafted = np.asarray(trim_attack.craft(view, rng=generator(), knowledge="partial"))
    mean, deviation = own.mean(axis=0), own.std(axis=0)
    steps = (mean - crafted) * np.sign(mean) / deviation
    assert ((steps >= 3.0 - 1e-9) & (steps <= 4.0 + 1e-9)).all()


@pytest.mark.parametrize("settings", [{"reach": 1.0}, {"sigmas": (4.0, 3.0)}, {"sigmas": (3.0,)}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        trim_attack.craft(make_view(), rng=generator(), **settings)
