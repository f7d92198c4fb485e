"""Median against the statistics module, and its weights by hand."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.rules.median import median

ROOT = rng.root_from_seed(2)


@pytest.mark.parametrize("num_clients", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_the_median_of_each_column(num_clients: int, dtype: type) -> None:
    updates = rng.numpy_generator(ROOT, "test-median/1", num_clients).standard_normal((num_clients, 50)).astype(dtype)
    expected = [statistics.median(float(v) for v in column) for column in updates.T]
    # The mean of the two middle values is rounded once, to the dtype of the updates.
    assert np.allclose(median(updates).aggregate, expected, rtol=np.finfo(dtype).eps, atol=0)


def test_an_even_number_takes_the_mean_of_the_two_middle_values() -> None:
    result = median(np.array([[1.0], [2.0], [4.0], [100.0]]))
    assert float(result.aggregate[0]) == (2 + 4) / 2
    assert np.array_equal(result.weights, [0, 0.5, 0.5, 0])


def test_weights_are_shares_of_coordinates() -> None:
    updates = np.array([[1.0, 5.0, 0.0, 7.0], [2.0, 4.0, 0.0, 8.0], [3.0, 6.0, 9.0, 9.0]])
    # The median is client 1's, client 0's, shared by clients 0 and 1 (both 0), client 1's.
    assert np.allclose(median(updates).weights, [(0 + 1 + 0.5 + 0) / 4, (1 + 0 + 0.5 + 1) / 4, 0])


def test_a_minority_moves_it_only_within_the_honest_range() -> None:
    honest = rng.numpy_generator(ROOT, "test-median/1").standard_normal((6, 40))
    hostile = np.full((5, 40), 1e9)
    aggregate = median(np.concatenate([honest, hostile])).aggregate
    assert (aggregate <= honest.max(axis=0)).all()
    assert (aggregate >= honest.min(axis=0)).all()
