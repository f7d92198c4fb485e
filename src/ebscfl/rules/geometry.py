"""Norms, dot products, squared distances and weighted sums of n long vectors, in float64, a block of columns at a time.

Whatever the dtype of the updates, products are accumulated in float64, and no float64 copy of the whole (n, d) matrix
is ever made: memory beyond the input is O(n * BLOCK + n^2 + d).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

BLOCK = 16384
"""Columns converted at a time: 100 clients make a 13 MB float64 block, large enough for GEMM to reach its speed."""


def column_blocks(dim: int, size: int = BLOCK) -> Iterator[slice]:
    """Slices that cover ``range(dim)``."""
    for start in range(0, dim, size):
        yield slice(start, min(start + size, dim))


def weighted_sum(rows: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """``coefficients @ rows`` in float64: (..., n) and (n, d) give (..., d)."""
    out = torch.empty((*coefficients.shape[:-1], rows.shape[1]), dtype=torch.float64, device=rows.device)
    for block in column_blocks(rows.shape[1]):
        out[..., block] = coefficients @ rows[:, block].double()
    return out


@dataclass(frozen=True, eq=False)
class Directions:
    """Vectors split into direction and length, without overflow in the squares.

    Squares of float32 entries always fit float64. Float64 rows are divided by their largest entry first (``scale``);
    what remains has norm ``stretched``, between 1 and sqrt(d), or 0 for a zero row.
    """

    rows: torch.Tensor
    scale: torch.Tensor | None
    stretched: torch.Tensor

    @property
    def norms(self) -> torch.Tensor:
        """(n,) Euclidean norms."""
        return self.stretched if self.scale is None else self.scale * self.stretched

    @property
    def divisors(self) -> torch.Tensor:
        """(n,) what makes a row of `block` a unit vector; 1 for a zero row, which stays zero."""
        return torch.where(self.stretched > 0, self.stretched, torch.ones_like(self.stretched))

    def block(self, columns: slice) -> torch.Tensor:
        """Some columns of the (scaled) rows, in float64."""
        wide = self.rows[:, columns].double()
        return wide if self.scale is None else wide / self.scale[:, None]

    def weighted_units(self, coefficients: torch.Tensor) -> torch.Tensor:
        """``sum_i coefficients[..., i] * unit_i``: (..., n) to (..., d). Zero rows count as zero vectors."""
        per_row = coefficients / self.divisors
        out = torch.empty((*coefficients.shape[:-1], self.rows.shape[1]), dtype=torch.float64, device=self.rows.device)
        for columns in column_blocks(self.rows.shape[1]):
            out[..., columns] = per_row @ self.block(columns)
        return out


def directions(rows: torch.Tensor) -> Directions:
    """Split every row of an (n, d) matrix into direction and length."""
    scale: torch.Tensor | None = None
    if rows.dtype is torch.float64:
        largest = rows.abs().amax(dim=1)
        scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    squares = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    split = Directions(rows, scale, squares)
    for columns in column_blocks(rows.shape[1]):
        squares += split.block(columns).square().sum(dim=1)
    return Directions(rows, scale, squares.sqrt())


def cosines(left: Directions, right: Directions) -> torch.Tensor:
    """(n, m) cosines between the rows of two matrices, in [-1, 1]; 0 where either row is zero."""
    dots = torch.zeros((left.rows.shape[0], right.rows.shape[0]), dtype=torch.float64, device=left.rows.device)
    for columns in column_blocks(left.rows.shape[1]):
        dots += left.block(columns) @ right.block(columns).T
    # One after the other: the product of two tiny norms would underflow.
    return (dots / left.divisors[:, None] / right.divisors[None, :]).clamp(-1.0, 1.0)


def squared_distances(rows: torch.Tensor) -> torch.Tensor:
    """(n, n) squared Euclidean distances from one Gram matrix, symmetric with a zero diagonal.

    ``|a - b|^2 = |a - z|^2 + |b - z|^2 - 2 <a - z, b - z>`` holds for every center z; its rounding error is at most
    about ``4 d u (|a - z|^2 + |b - z|^2)`` with u = 2^-53, so z should be near the rows that matter. z is the row
    with the middle norm: as long as fewer than half of the rows are hostile, its norm does not exceed the largest
    honest one, so nobody can push z away and drown the honest distances in rounding; and a large offset common to
    all rows disappears. Without a center, float32 loses the distance of updates that are nearly parallel.
    """
    middle = int(torch.linalg.vector_norm(rows, dim=1).argsort()[(rows.shape[0] - 1) // 2])
    gram = torch.zeros((rows.shape[0], rows.shape[0]), dtype=torch.float64, device=rows.device)
    for columns in column_blocks(rows.shape[1]):
        block = rows[:, columns].double()
        centered = block - block[middle]  # not in place: a float64 block is the caller's memory
        gram.addmm_(centered, centered.T)
    gram = (gram + gram.T) / 2  # GEMM need not round both triangles alike
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0.0)
    # A row so long that its square overflows gives inf - inf; it is infinitely far from the others.
    distances = torch.where(distances.isnan(), torch.inf, distances)
    distances.fill_diagonal_(0.0)
    return distances
