"""FedAvg against its definition, client by client."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ebscfl.errors import UsageError
from ebscfl.rules.fedavg import fedavg

UPDATES = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])


def test_weights_by_size() -> None:
    result = fedavg(UPDATES, sizes=[1, 2, 5])
    assert np.allclose(result.weights, [1 / 8, 2 / 8, 5 / 8], rtol=1e-15)
    expected = [(1 * 1 + 2 * 0 + 5 * 4) / 8, (1 * 0 + 2 * 2 + 5 * 4) / 8]
    assert np.allclose(result.aggregate, expected, rtol=1e-15)


def test_without_sizes_everyone_counts_the_same() -> None:
    result = fedavg(UPDATES)
    assert np.allclose(result.aggregate, [(1 + 0 + 4) / 3, (0 + 2 + 4) / 3], rtol=1e-15)
    assert np.allclose(result.weights, 1 / 3)


def test_a_size_of_zero_removes_the_client() -> None:
    assert np.allclose(fedavg(UPDATES, sizes=[1, 1, 0]).aggregate, fedavg(UPDATES[:2]).aggregate)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_sizes_may_be_a_list_an_array_or_a_tensor(kind: type) -> None:
    assert np.allclose(fedavg(UPDATES, sizes=kind([3, 1, 0])).weights, [0.75, 0.25, 0.0])


def test_huge_sizes_do_not_overflow() -> None:
    assert np.allclose(fedavg(UPDATES, sizes=[1e308, 1e308, 1e308]).weights, 1 / 3)


@pytest.mark.parametrize("sizes", [[0, 0, 0], [1, -1, 1], [1, float("nan"), 1], [1, float("inf"), 1]])
def test_senseless_sizes_are_refused(sizes: list[float]) -> None:
    with pytest.raises(UsageError, match="finite, non-negative and not all zero"):
        fedavg(UPDATES, sizes=sizes)


def test_one_size_per_client() -> None:
    with pytest.raises(UsageError, match=r"one number per client \(3\)"):
        fedavg(UPDATES, sizes=[1, 2])
