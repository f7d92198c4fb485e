"""Block-wise float64 geometry against direct computation, with argued bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ebscfl import rng
from ebscfl.rules.geometry import BLOCK, column_blocks, cosines, directions, squared_distances, weighted_sum

ROOT = rng.root_from_seed(2)
UNIT_ROUNDOFF = 2.0**-53


def draw(num_rows: int, dim: int) -> torch.Tensor:
    return torch.from_numpy(rng.numpy_generator(ROOT, "test-geometry/1").standard_normal((num_rows, dim)))


@pytest.mark.parametrize("dim", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_blocks_cover_every_column_once(dim: int) -> None:
    assert [c for block in column_blocks(dim) for c in range(dim)[block]] == list(range(dim))


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_equal_direct_ones(dtype: torch.dtype, offset: float) -> None:
    rows = (draw(6, BLOCK + 7) + offset).to(dtype)
    direct = torch.stack([(rows.double() - row.double()).square().sum(dim=1) for row in rows])
    # A dot product of length d has error at most d u |x| |y| to first order, the three terms 4 d u (|a|^2 + |b|^2) / 2
    # in all, and centering adds 3 more roundings an entry. |a - z|^2 is itself one of the distances.
    bound = 2 * (rows.shape[1] + 3) * UNIT_ROUNDOFF * 2 * direct.max()
    computed = squared_distances(rows)
    assert float((computed - direct).abs().max()) <= float(bound)
    # The bound means something: it is far below the distances themselves, offset or not.
    assert float(bound) < 1e-9 * float(direct[0, 1])
    assert torch.equal(computed, computed.T)
    assert not computed.diagonal().any()


def test_equal_rows_have_distance_zero_or_rounding() -> None:
    rows = draw(1, 100).expand(4, -1)
    assert not squared_distances(rows).any()


def test_weighted_sum_equals_the_loop() -> None:
    rows, weights = draw(3, BLOCK + 1), torch.tensor([0.5, 0.0, -2.0], dtype=torch.float64)
    expected = 0.5 * rows[0] - 2.0 * rows[2]
    assert torch.allclose(weighted_sum(rows, weights), expected, rtol=1e-14, atol=1e-15)
    assert torch.equal(weighted_sum(rows, torch.stack([weights, -weights]))[1], -weighted_sum(rows, weights))


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (1e-300, torch.float64),
        (1.0, torch.float64),
        (1e300, torch.float64),
        (2.0**-120, torch.float32),
        (2.0**120, torch.float32),
    ],
)
def test_norms_and_cosines_neither_overflow_nor_underflow(size: float, dtype: torch.dtype) -> None:
    rows = (torch.tensor([[3.0, 4.0], [4.0, -3.0], [0.0, 0.0], [-3.0, -4.0]], dtype=torch.float64) * size).to(dtype)
    split = directions(rows)
    assert torch.allclose(split.norms / size, torch.tensor([5.0, 5.0, 0.0, 5.0], dtype=torch.float64))
    assert np.allclose(cosines(split, directions(rows[:1])), [[1], [0], [0], [-1]], atol=1e-15)
    coefficients = torch.tensor([5.0, 0.0, 9.0, -5.0], dtype=torch.float64)
    expected = [(5 * 3 + 5 * 3) / 5, (5 * 4 + 5 * 4) / 5]
    assert np.allclose(split.weighted_units(coefficients), expected)


def test_cosines_equal_the_loop() -> None:
    left, right = draw(4, 2 * BLOCK + 1), draw(6, 2 * BLOCK + 1)[4:]
    expected = [[float(a @ b / (a @ a).sqrt() / (b @ b).sqrt()) for b in right] for a in left]
    assert np.allclose(cosines(directions(left), directions(right)), expected, atol=1e-12)
