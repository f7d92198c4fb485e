"""Updates as integers modulo 2^32 or a prime: what the comparators add up exactly.

With n clients and modulus q, a coordinate may be at most floor((q - 1) / 2) // n in size, so that no sum wraps and the
server reads it back as a signed integer. Rounding is to nearest: the sum's error is at most n/2 units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import CapacityError, ConfigError, UsageError

Words = npt.NDArray[np.uint32]
Signed = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FixedPoint:
    """Clip to +-``clip``, scale to integers, and back."""

    modulus: int
    num_clients: int
    clip: float = 1.0

    def __post_init__(self) -> None:
        if not 2 < self.modulus <= 1 << 32:
            raise ConfigError(f"the modulus must lie in 3..2^32, not {self.modulus}")
        if not (np.isfinite(self.clip) and self.clip > 0):
            raise ConfigError(f"clip must be above zero, not {self.clip}")
        if self.limit < 1 << 7:
            raise CapacityError(f"{self.num_clients} clients leave fewer than 8 bits a coordinate below {self.modulus}")

    @property
    def limit(self) -> int:
        """The largest integer one client may add."""
        return (self.modulus - 1) // 2 // self.num_clients

    @property
    def scale(self) -> float:
        """Integer units in 1.0."""
        return self.limit / self.clip

    def encode(self, update: npt.NDArray[Any]) -> Signed:
        """Integers in [-limit, limit]; NaN and infinity are the caller's mistake."""
        if not np.isfinite(update).all():
            raise UsageError("an update with NaN or infinity cannot be encoded")
        scaled: npt.NDArray[np.float64] = np.multiply(update, self.scale, dtype=np.float64)
        np.clip(scaled, -self.limit, self.limit, out=scaled)
        np.rint(scaled, out=scaled)
        return scaled.astype(np.int64)

    def embed(self, values: Signed) -> Words:
        """Signed integers as residues."""
        if self.modulus == 1 << 32:
            return values.astype(np.uint32)  # two's complement is the residue
        return np.where(values < 0, values + self.modulus, values).astype(np.uint32)

    def lift(self, words: Words) -> Signed:
        """Residues of a sum as signed integers."""
        values = words.astype(np.int64)
        return np.where(values > (self.modulus - 1) // 2, values - self.modulus, values)

    def decode(self, values: Signed) -> npt.NDArray[np.float64]:
        """Integers as update units."""
        return values / self.scale
