"""Trimmed mean and its weights against a loop over coordinates."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ebscfl import rng
from ebscfl.errors import UsageError
from ebscfl.rules.trimmed_mean import SORT_BLOCK, trimmed_mean

ROOT = rng.root_from_seed(2)


def loop_trimmed_mean(updates: npt.NDArray[np.floating], trim: int) -> tuple[list[float], list[float]]:
    """Sort every column; equal values share the places that are kept."""
    num_clients, dim = updates.shape
    kept = num_clients - 2 * trim
    aggregate, shares = [], [Fraction(0)] * num_clients
    for k in range(dim):
        column = [float(v) for v in updates[:, k]]
        middle = sorted(column)[trim : num_clients - trim]
        aggregate.append(sum(middle) / kept)
        for i, value in enumerate(column):
            shares[i] += Fraction(middle.count(value), column.count(value) * kept * dim)
    return aggregate, [float(s) for s in shares]


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 6)), elements=st.integers(-3, 3).map(float)),
    st.data(),
)
def test_equals_the_loop_with_many_ties(updates: npt.NDArray[np.float64], data: st.DataObject) -> None:
    trim = data.draw(st.integers(0, (len(updates) - 1) // 2))
    result = trimmed_mean(updates, trim=trim)
    aggregate, shares = loop_trimmed_mean(updates, trim)
    assert np.allclose(result.aggregate, aggregate, rtol=0, atol=1e-14)
    assert np.allclose(result.weights, shares, rtol=0, atol=1e-14)


def test_equals_the_loop_across_block_borders() -> None:
    updates = rng.numpy_generator(ROOT, "test-trim/1").standard_normal((7, SORT_BLOCK + 3))
    result = trimmed_mean(updates, trim=2)
    aggregate, shares = loop_trimmed_mean(updates, 2)
    assert np.allclose(result.aggregate, aggregate, rtol=1e-13, atol=1e-15)
    assert np.allclose(result.weights, shares, rtol=1e-12)


def test_extremes_at_either_end_have_no_influence() -> None:
    updates = np.array([[1.0], [2.0], [3.0], [1e30], [-1e30]])
    result = trimmed_mean(updates, trim=1)
    assert float(result.aggregate[0]) == (1 + 2 + 3) / 3
    assert np.allclose(result.weights, [1 / 3, 1 / 3, 1 / 3, 0, 0])


@pytest.mark.parametrize(("num_clients", "trim"), [(4, 2), (5, 3), (1, 1)])
def test_something_must_be_left(num_clients: int, trim: int) -> None:
    with pytest.raises(UsageError, match=f"2 \\* trim < n: trim = {trim}, n = {num_clients}"):
        trimmed_mean(np.zeros((num_clients, 2)), trim=trim)


@pytest.mark.parametrize("trim", [-1, 1.0, True])
def test_trim_is_a_count(trim: int) -> None:
    with pytest.raises(UsageError, match="trim must be"):
        trimmed_mean(np.zeros((5, 2)), trim=trim)
