"""Compiled fixed-point kernels: the norm of an update, and unbiased rounding to integers, one pass each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit


@njit(cache=True, nogil=True)
def round_randomly(values: Any, scale: float, draws: npt.NDArray[np.uint32], out: npt.NDArray[np.int64]) -> None:
    """out = floor(scale * values + u) with u = draws / 2^32: the expectation is scale * values."""
    for i in range(values.size):
        out[i] = np.int64(np.floor(scale * np.float64(values[i]) + np.float64(draws[i]) * 2.0**-32))


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def square_sum(values: Any) -> float:
    """Sum of squares in double precision, whatever the input's; terms may be added in any order."""
    total = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        total += value * value
    return total
