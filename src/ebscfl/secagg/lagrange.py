# mypy: disallow-untyped-decorators=False
"""Lagrange coding as LightSecAgg prints it (So et al., MLSys 2022): the slow relative of `ramp`, O(l n).

The polynomial goes through K pieces and T uniform ones at points n+1 .. n+K+T; client j holds its value at point j + 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from ebscfl.rng import USAGE_SECAGG
from ebscfl.secagg import ntt
from ebscfl.secagg.ntt import NTT_PRIME
from ebscfl.secagg.ramp import CodeShape

Words = npt.NDArray[np.uint32]

_P = np.uint64(NTT_PRIME)


@njit(cache=True, nogil=True)
def _multiply(matrix: Words, rows: Words, out: Words) -> None:
    """out = matrix @ rows mod p. A product is below 2^62, so three and the remainder of the last fit one word."""
    block = 1024
    sums = np.empty(block, dtype=np.uint64)
    for left in range(0, rows.shape[1], block):
        size = min(block, rows.shape[1] - left)
        for i in range(matrix.shape[0]):
            sums[:] = 0
            for k in range(matrix.shape[1]):
                factor = np.uint64(matrix[i, k])
                row = rows[k, left : left + size]
                for c in range(row.size):
                    sums[c] += factor * np.uint64(row[c])
                if k % 3 == 2:
                    for c in range(size):
                        sums[c] %= _P
            for c in range(size):
                out[i, left + c] = np.uint32(sums[c] % _P)


def lagrange_matrix(points: Sequence[int], at: Sequence[int]) -> Words:
    """(at, points): row j turns values at ``points`` into the value at ``at[j]``."""
    p = NTT_PRIME
    below = []
    for x in points:
        product = 1
        for other in points:
            if other != x:
                product = product * (x - other) % p
        below.append(pow(product, -1, p))
    rows = []
    for y in at:
        if y in points:
            rows.append([int(x == y) for x in points])
            continue
        whole = 1
        for x in points:
            whole = whole * (y - x) % p
        rows.append([whole * pow(y - x, -1, p) * b % p for x, b in zip(points, below, strict=True)])
    return np.array(rows, dtype=np.uint32)


@dataclass(frozen=True)
class LagrangeCode:
    """The code with dense matrices."""

    shape: CodeShape

    def _secret_points(self) -> list[int]:
        n = self.shape.num_shares
        return list(range(n + 1, n + self.shape.needed + 1))

    def share(self, vector: Words, root: bytes, round_id: int) -> Words:
        """(n, columns); row i is client i's."""
        shape = self.shape
        pieces = shape.cut(vector)
        columns = pieces.shape[1]
        noise = ntt.uniform(shape.privacy * columns, root, USAGE_SECAGG, "ramp", round_id)
        rows = np.concatenate([pieces, noise.reshape(shape.privacy, columns)])
        matrix = lagrange_matrix(self._secret_points(), range(1, shape.num_shares + 1))
        out = np.empty((shape.num_shares, columns), dtype=np.uint32)
        _multiply(matrix, rows, out)
        return out

    def decode(self, shares: Mapping[int, Words], width: int) -> Words:
        """The first K pieces from any K + T shares."""
        used = self.shape.enough(shares)
        matrix = lagrange_matrix([i + 1 for i in used], self._secret_points()[: self.shape.pieces])
        rows = np.stack([shares[i] for i in used]).astype(np.uint32)
        out = np.empty((self.shape.pieces, rows.shape[1]), dtype=np.uint32)
        _multiply(matrix, rows, out)
        return out.reshape(-1)[:width]
