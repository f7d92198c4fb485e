"""ALIE stays z deviations from the mean, with z from the normal quantile."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from attack_views import benign, generator, make_view

from ebscfl.attacks import alie
from ebscfl.errors import UsageError


@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_every_coordinate_is_z_deviations_above_the_mean(knowledge: str) -> None:
    view = make_view(n=20, f=6)
    seen = benign(view) if knowledge == "full" else np.asarray(view.own)
    crafted = np.asarray(alie.craft(view, rng=generator(), knowledge=knowledge))
    z = alie.largest_shift(20, 6)
    np.testing.assert_allclose((crafted - seen.mean(axis=0)) / seen.std(axis=0), z, rtol=1e-9)
    assert z > 0


@pytest.mark.parametrize(("n", "f"), [(3, 1), (10, 4), (50, 24), (100, 20)])
def test_z_leaves_the_missing_supporters_farther_out(n: int, f: int) -> None:
    supporters = math.floor(n / 2 + 1) - f
    below = 0.5 * (1.0 + math.erf(alie.largest_shift(n, f) / math.sqrt(2.0)))  # the normal distribution function
    assert (1.0 - below) * (n - f) == pytest.approx(supporters)


def test_more_attackers_reach_farther() -> None:
    shifts = [alie.largest_shift(50, f) for f in range(1, 25)]
    assert shifts == sorted(shifts)


@pytest.mark.parametrize(("n", "f"), [(1, 1), (2, 1), (10, 6), (5, 5)])
def test_groups_without_a_finite_z_are_refused_unless_z_is_given(n: int, f: int) -> None:
    with pytest.raises(UsageError, match="no finite z"):
        alie.largest_shift(n, f)
    view = make_view(n=n, f=f)
    own = np.asarray(view.own)
    crafted = np.asarray(alie.craft(view, rng=generator(), z=1.5))
    np.testing.assert_allclose(crafted, [own.mean(axis=0) + 1.5 * own.std(axis=0)] * f)


@pytest.mark.parametrize("settings", [{"z": math.inf}, {"knowledge": "some"}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        alie.craft(make_view(n=20, f=6), rng=generator(), **settings)
