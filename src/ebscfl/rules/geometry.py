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
    """Vectors split into direction and length, without overflow: ``rows[i] = lengths * unit``.

    ``rows[i] / scale[i]`` has largest entry 1 and norm ``stretched[i]``, between 1 and sqrt(d): squares of very small
    or very large float64 entries stay in range. A zero row has scale 1 and ``stretched`` 0.
    """

    rows: torch.Tensor
    scale: torch.Tensor
    stretched: torch.Tensor

    @property
    def nonzero(self) -> torch.Tensor:
        """(n,) bool: which rows have a direction."""
        return self.stretched > 0

    @property
    def norms(self) -> torch.Tensor:
        """(n,) Euclidean norms."""
        return self.scale * self.stretched

    def block(self, columns: slice) -> torch.Tensor:
        """Some columns of ``rows / scale``, in float64."""
        return self.rows[:, columns].double() / self.scale[:, None]

    def weighted_units(self, coefficients: torch.Tensor) -> torch.Tensor:
        """``sum_i coefficients[..., i] * unit_i``: (..., n) to (..., d). Zero rows count as zero vectors."""
        per_row = torch.where(self.nonzero, coefficients / self.stretched.clamp(min=1), torch.zeros_like(coefficients))
        out = torch.empty((*coefficients.shape[:-1], self.rows.shape[1]), dtype=torch.float64, device=self.rows.device)
        for columns in column_blocks(self.rows.shape[1]):
            out[..., columns] = per_row @ self.block(columns)
        return out


def directions(rows: torch.Tensor) -> Directions:
    """Split every row of an (n, d) matrix into direction and length."""
    scale = rows.abs().amax(dim=1).double()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
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
    # A zero row has only zero dot products: any positive divisor gives the 0 we want.
    dots /= left.stretched.clamp(min=1)[:, None] * right.stretched.clamp(min=1)[None, :]
    return dots.clamp(-1.0, 1.0)


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
