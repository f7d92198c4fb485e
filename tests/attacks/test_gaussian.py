"""Gaussian updates have the stated mean and deviation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from attack_views import generator, make_view

from ebscfl.attacks import gaussian
from ebscfl.errors import UsageError

DIM = 20_000
# Mean of DIM standard normal draws: standard error 1 / sqrt(DIM); their deviation: 1 / sqrt(2 DIM). Five of each.
MEAN_TOLERANCE = 5 / math.sqrt(DIM)
SPREAD_TOLERANCE = 5 / math.sqrt(2 * DIM)


@pytest.mark.parametrize("kind", ["noise", "additive"])
def test_noise_is_as_large_as_the_own_update_times_the_scale(kind: str) -> None:
    view = make_view(d=DIM, full=False)
    own = np.asarray(view.own)
    crafted = np.asarray(gaussian.craft(view, rng=generator(), kind=kind, scale=3.0))
    noise = (crafted - (own if kind == "additive" else 0.0)) / np.sqrt(np.mean(own**2, axis=1, keepdims=True)) / 3.0
    np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=MEAN_TOLERANCE)
    np.testing.assert_allclose(noise.std(axis=1), 1.0, atol=SPREAD_TOLERANCE)
    assert abs(float(np.corrcoef(noise)[0, 1])) < MEAN_TOLERANCE  # attackers draw independently


def test_fitted_follows_mean_and_deviation_of_each_coordinate() -> None:
    view = make_view(f=4, d=DIM, full=False)
    own = np.asarray(view.own)
    crafted = np.asarray(gaussian.craft(view, rng=generator(), kind="fitted"))
    standard = (crafted - own.mean(axis=0)) / own.std(axis=0)
    np.testing.assert_allclose(standard.mean(axis=1), 0.0, atol=MEAN_TOLERANCE)
    np.testing.assert_allclose(standard.std(axis=1), 1.0, atol=SPREAD_TOLERANCE)


@pytest.mark.parametrize("settings", [{"scale": 0.0}, {"scale": math.inf}, {"kind": "uniform"}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        gaussian.craft(make_view(), rng=generator(), **settings)
