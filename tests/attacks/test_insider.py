"""The insider scores as honest clients do and pushes against what they share."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from attack_views import benign, generator, make_view

from ebscfl.attacks import insider
from ebscfl.errors import UsageError
from ebscfl.rules.fltrust import fltrust


def unit(rows: Any) -> Any:
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_the_vector_by_hand(knowledge: str) -> None:
    view = make_view()
    seen = unit(benign(view) if knowledge == "full" else view.own)
    base = np.asarray(view.base)
    cosines = seen @ unit(base)
    assert (cosines > 0).all()
    crafted = np.asarray(insider.craft(view, rng=generator(), knowledge=knowledge))
    assert np.linalg.norm(crafted, axis=1) == pytest.approx(np.linalg.norm(base))
    np.testing.assert_allclose(unit(crafted) @ unit(base), cosines.mean(), rtol=1e-9)
    # What is not along the base lies against the mean of the honest directions and nowhere else.
    across = seen.mean(axis=0) - cosines.mean() * unit(base)
    rest = crafted[0] - (crafted[0] @ unit(base)) * unit(base)
    np.testing.assert_allclose(unit(rest), -unit(across), atol=1e-9)


def test_fltrust_weighs_it_like_an_honest_client_and_its_aggregate_turns_away() -> None:
    view = make_view(n=20, f=8, d=200)
    rows = np.array(view.everyone, dtype=np.float64)
    clean = fltrust(rows, server_update=view.base)
    rows[list(view.attackers)] = insider.craft(view, rng=generator())
    attacked = fltrust(rows, server_update=view.base)
    weights = np.asarray(attacked.weights)
    share = weights[list(view.attackers)].sum() / weights.sum()
    assert share == pytest.approx(8 / 20, rel=1e-9)
    honest = unit(benign(view)).mean(axis=0)
    assert unit(np.asarray(attacked.aggregate)) @ honest < unit(np.asarray(clean.aggregate)) @ honest


@pytest.mark.parametrize("score", [0.0, 0.25, 1.0])
def test_a_score_can_be_asked_for(score: float) -> None:
    view = make_view()
    crafted = np.asarray(insider.craft(view, rng=generator(), score=score))
    np.testing.assert_allclose(unit(crafted) @ unit(view.base), score, atol=1e-9)


@pytest.mark.parametrize("settings", [{"score": 1.5}, {"score": float("nan")}, {"knowledge": "some"}, {"base": "best"}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        insider.craft(make_view(), rng=generator(), **settings)


def test_without_a_direction_there_is_nothing_to_hide_behind() -> None:
    view = make_view()
    with pytest.raises(UsageError, match="zero"):
        insider.craft(dataclasses.replace(view, base=np.zeros_like(np.asarray(view.base))), rng=generator())
