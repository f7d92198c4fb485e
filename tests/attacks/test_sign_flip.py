"""Sign flip is minus the own update, or minus the attackers' mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attack_views import generator, make_view

from ebscfl.attacks import sign_flip
from ebscfl.errors import UsageError


def test_each_sends_its_own_backwards() -> None:
    view = make_view(full=False)
    crafted = np.asarray(sign_flip.craft(view, rng=generator(), scale=2.0))
    np.testing.assert_array_equal(crafted, -2.0 * np.asarray(view.own))


def test_together_they_send_their_mean_backwards() -> None:
    view = make_view(f=3, full=False)
    crafted = np.asarray(sign_flip.craft(view, rng=generator(), of="mean"))
    np.testing.assert_allclose(crafted, [-np.asarray(view.own).mean(axis=0)] * 3)


@pytest.mark.parametrize("settings", [{"scale": 0.0}, {"scale": float("nan")}, {"of": "all"}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        sign_flip.craft(make_view(), rng=generator(), **settings)
