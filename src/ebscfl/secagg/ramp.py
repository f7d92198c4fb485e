"""Ramp secret sharing by number-theoretic transform: the core of FastSecAgg (Kadhe et al., 2020) and LightSecAgg.

A vector is cut into K pieces. Column by column they are coefficients T .. T+K-1 of a polynomial whose first T
coefficients are uniform and whose others, up to the transform's size N, are zero; client i holds the value at its own
root of unity. Any T values are uniform (a T x T Vandermonde block is invertible) and any K + T give the polynomial
back.

FastShare puts its zeros where a product code of two short codes can peel erasures, which a random 10 % of drop-outs
survives. Here the zeros are consecutive, which makes one Reed-Solomon code: *every* pattern of n - K - T erasures is
decoded, at the same O(l log n), by one division in the transform domain (`RampCode.decode`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ebscfl.errors import CapacityError, ConfigError, RoundAborted
from ebscfl.rng import USAGE_SECAGG
from ebscfl.secagg import ntt
from ebscfl.secagg.ntt import NTT_PRIME

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class CodeShape:
    """n shares of a vector in K pieces, any T of them tell nothing, any K + T tell all."""

    num_shares: int
    pieces: int
    privacy: int

    def __post_init__(self) -> None:
        if self.pieces < 1 or self.privacy < 1:
            raise ConfigError(f"a ramp needs at least one piece and privacy 1, not {self.pieces} and {self.privacy}")
        if self.needed > self.num_shares:
            raise CapacityError(
                f"{self.pieces} pieces and privacy {self.privacy} need {self.needed} shares, "
                f"there are only {self.num_shares}"
            )

    @property
    def needed(self) -> int:
        """Shares that give the secret back."""
        return self.pieces + self.privacy

    def columns(self, width: int) -> int:
        """Words in one share of a vector of ``width`` words."""
        return -(-width // self.pieces)

    def cut(self, vector: Words) -> Words:
        """The vector as (K, columns), padded with zeros."""
        padded = np.zeros(self.pieces * self.columns(len(vector)), dtype=np.uint32)
        padded[: len(vector)] = vector
        return padded.reshape(self.pieces, -1)

    def enough(self, shares: Mapping[int, Words]) -> list[int]:
        """The shares to decode from, or `RoundAborted`."""
        if len(shares) < self.needed:
            missing = sorted(set(range(self.num_shares)) - set(shares))
            raise RoundAborted(
                f"{len(shares)} shares of the sum arrived, {self.needed} are needed; missing: clients {missing}",
                culprits=missing,
            )
        return sorted(shares)[: self.needed]


class Code(Protocol):
    """A linear ramp code: sums of shares are shares of the sum."""

    @property
    def shape(self) -> CodeShape:
        """How many shares, pieces and colluders."""

    def share(self, vector: Words, root: bytes, round_id: int) -> Words:
        """(n, columns); row i is client i's."""

    def decode(self, shares: Mapping[int, Words], width: int) -> Words:
        """The vector of ``width`` words from any ``shape.needed`` shares."""


@dataclass(frozen=True)
class RampCode:
    """The code with both directions in O(l log n)."""

    shape: CodeShape

    @property
    def size(self) -> int:
        """N, the transform's size."""
        return 1 << (self.shape.num_shares - 1).bit_length()

    def share(self, vector: Words, root: bytes, round_id: int) -> Words:
        """One transform of N rows: T uniform ones, K of data, the rest zero."""
        shape = self.shape
        pieces = shape.cut(vector)
        columns = pieces.shape[1]
        rows = np.zeros((self.size, columns), dtype=np.uint32)
        noise = ntt.uniform(shape.privacy * columns, root, USAGE_SECAGG, "ramp", round_id)
        rows[: shape.privacy] = noise.reshape(shape.privacy, columns)
        rows[shape.privacy : shape.needed] = pieces
        ntt.transform(self.size).forward(rows)
        return rows[: shape.num_shares]

    def decode(self, shares: Mapping[int, Words], width: int) -> Words:
        """Erasure decoding with locator L(x) = product over missing points e of (x - e).

        f L has fewer than N coefficients, and its values are known everywhere: zero at the missing points. So one
        inverse transform gives f L; on the coset g * roots, where L has no zero, one transform, a division and one
        inverse transform give f.
        """
        used = self.shape.enough(shares)
        plan = ntt.transform(self.size)
        points = plan.points()
        missing = [points[i] for i in range(self.size) if i not in set(used)]
        rows = np.zeros((self.size, self.shape.columns(width)), dtype=np.uint32)
        for i in used:
            rows[i] = shares[i]
        # The inverse transform's factor 1/N is folded in: once here, once in the division below.
        inverse_size = pow(self.size, -1, NTT_PRIME)
        weights = _locator(missing, points)
        ntt.scale_rows(rows, [w * inverse_size for w in weights])
        plan.inverse(rows)
        shift = ntt.GENERATOR  # g generates all units, so g times a root of unity is never one
        ntt.scale_rows(rows, _powers(shift, self.size))
        plan.forward(rows)
        on_coset = _locator(missing, [shift * x % NTT_PRIME for x in points])
        ntt.scale_rows(rows, [pow(w, -1, NTT_PRIME) * inverse_size for w in on_coset])
        plan.inverse(rows)
        ntt.scale_rows(rows, _powers(pow(shift, -1, NTT_PRIME), self.size))
        return rows[self.shape.privacy : self.shape.needed].reshape(-1)[:width]


def _locator(missing: list[int], points: list[int]) -> list[int]:
    values = []
    for x in points:
        value = 1
        for e in missing:
            value = value * (x - e) % NTT_PRIME
        values.append(value)
    return values


def _powers(base: int, size: int) -> list[int]:
    out = [1]
    for _ in range(size - 1):
        out.append(out[-1] * base % NTT_PRIME)
    return out
