"""Multi-Krum against a sort of loop-made scores."""

from __future__ import annotations

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.errors import UsageError
from ebscfl.rules.krum import krum
from ebscfl.rules.multi_krum import multi_krum

ROOT = rng.root_from_seed(2)
UPDATES = rng.numpy_generator(ROOT, "test-multi-krum/1").standard_normal((11, 25))


def loop_order(faulty: int) -> list[int]:
    """Clients from best to worst."""
    scores = []
    for i, one in enumerate(UPDATES):
        others = sorted(float(((one - two) ** 2).sum()) for j, two in enumerate(UPDATES) if j != i)
        scores.append(sum(others[: len(UPDATES) - faulty - 2]))
    return sorted(range(len(UPDATES)), key=scores.__getitem__)


@pytest.mark.parametrize("select", [1, 2, 6, 11])
def test_mean_of_the_best(select: int) -> None:
    chosen = loop_order(3)[:select]
    result = multi_krum(UPDATES, faulty=3, select=select)
    assert np.allclose(result.aggregate, sum(UPDATES[i] for i in chosen) / select, rtol=1e-13, atol=1e-15)
    assert np.array_equal(result.weights, [1 / select if i in chosen else 0.0 for i in range(11)])


def test_by_default_all_but_the_faulty_count() -> None:
    assert np.count_nonzero(multi_krum(UPDATES, faulty=4).weights) == 11 - 4


def test_one_selected_is_krum() -> None:
    one, two = multi_krum(UPDATES, faulty=2, select=1), krum(UPDATES, faulty=2)
    assert np.array_equal(one.aggregate, two.aggregate)
    assert np.array_equal(one.weights, two.weights)


@pytest.mark.parametrize("select", [0, 12, 2.0])
def test_select_is_between_one_and_all(select: int) -> None:
    with pytest.raises(UsageError, match="select"):
        multi_krum(UPDATES, faulty=2, select=select)
