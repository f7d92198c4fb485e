"""A view that does not fit together is refused in one line that says what is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import make_view

from ebscfl.attacks import view as views
from ebscfl.attacks.view import AttackView
from ebscfl.errors import EbscflError, ProtocolError, UsageError

OWN = np.ones((2, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attackers": (0,)}, "one row an attacker"),
        ({"attackers": (1, 1)}, "twice"),
        ({"attackers": (0, 4)}, "below num_clients"),
        ({"everyone": np.ones((3, 3))}, "shape"),
        ({"everyone": np.ones((4, 3), dtype=np.float32)}, "same kind"),
        ({"everyone": torch.ones(4, 3, dtype=torch.float64)}, "same kind"),
        ({"base": np.ones(4)}, "length 3"),
        ({"base": np.array([1.0, np.nan, 0.0])}, "NaN"),
        ({"own": np.ones((2, 3), dtype=np.int64)}, "float32 or float64"),
        ({"own": np.empty((0, 3)), "attackers": ()}, "empty"),
    ],
)
def test_a_view_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"own": OWN, "attackers": (0, 2), "num_clients": 4}
    AttackView(**good)
    with pytest.raises(UsageError, match=message):
        AttackView(**{**good, **change})


def test_a_view_with_nan_names_the_row() -> None:
    with pytest.raises(ProtocolError) as caught:
        AttackView(own=np.array([[1.0], [np.inf]]), attackers=(0, 1), num_clients=3)
    assert caught.value.culprits == (1,)


def test_a_view_is_frozen_and_knows_no_defense() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_view().round_id = 2  # type: ignore[misc]
    names = {field.name for field in dataclasses.fields(AttackView)}
    assert names == {"own", "attackers", "num_clients", "everyone", "base", "round_id"}


def test_benign_updates_leave_the_attackers_out() -> None:
    view = make_view(n=5, f=2)
    rows = views.benign_updates(view, "test").numpy()
    others = [i for i in range(5) if i not in view.attackers]
    np.testing.assert_array_equal(rows, np.asarray(view.everyone)[others])
    with pytest.raises(UsageError, match="at least one benign"):
        views.benign_updates(make_view(n=3, f=3), "test")


def test_arrays_on_two_devices_are_refused() -> None:
    base = torch.ones(3, dtype=torch.float64, device="meta")
    with pytest.raises(UsageError, match="move one"):
        AttackView(own=torch.ones(2, 3, dtype=torch.float64), attackers=(0, 1), num_clients=4, base=base)


def test_overflow_is_an_error_and_not_infinity() -> None:
    view = AttackView(own=np.ones((1, 2), dtype=np.float32), attackers=(0,), num_clients=2)
    with pytest.raises(EbscflError, match="overflow"):
        views.finish(torch.full((1, 2), 1e300, dtype=torch.float64), view)


def test_base_source_is_closed() -> None:
    view = make_view(full=False)
    np.testing.assert_allclose(views.base_update(view, "x", "colluders").numpy(), np.asarray(view.own).mean(axis=0))
    with pytest.raises(UsageError, match="grant it"):
        views.base_update(view, "x", "proxy")
    with pytest.raises(UsageError, match="must be"):
        views.base_update(view, "x", "server")
    with pytest.raises(UsageError, match="knowledge"):
        views.is_full("most")
