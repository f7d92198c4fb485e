"""Compiled kernels for p = 2^31 - 1: a word is a ``uint32`` in [0, p).

Two facts about this prime carry every loop. Negation is ``v ^ p``, because p is all ones (zero becomes p, which the
lazy sums accept and every final step reduces). Four products of residues fit one 64-bit word, because
4(p-1)^2 + 4(p-1) + p < 2^64, so four uploads are folded with one reduction. All loops are plain, so that LLVM
vectorizes them, and release the GIL, so that threads run them over clients or coordinate ranges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Words = npt.NDArray[np.uint32]

_P = np.uint64(0x7FFFFFFF)
_P32 = np.uint32(0x7FFFFFFF)
_SHIFT = np.uint64(31)


@njit(cache=True, nogil=True)
def mask_words(words: Words) -> int:
    """Keep the low 31 bits of each word in place; how many are p and must be drawn again."""
    rejected = np.uint32(0)
    for i in range(words.size):
        word = np.uint32(words[i] & _P32)
        words[i] = word
        rejected += np.uint32(word == _P32)
    return int(rejected)


@njit(cache=True, nogil=True)
def add(a: Words, b: Words, out: Words) -> None:
    """out = a + b, element by element."""
    for i in range(out.size):
        z = np.uint32(a[i] + b[i])
        less = np.uint32(z - _P32)  # wraps to a huge value when z < p, so the minimum is the residue
        out[i] = z if z < less else less


@njit(cache=True, nogil=True)
def subtract(a: Words, b: Words, out: Words) -> None:
    """out = a - b, element by element."""
    for i in range(out.size):
        z = np.uint32(a[i] - b[i])  # wraps to a huge value when it is negative, and then p brings it back
        more = np.uint32(z + _P32)
        out[i] = z if z < more else more


@njit(cache=True, nogil=True)
def multiply(a: Words, b: Words, out: Words) -> None:
    """out = a * b, element by element."""
    for i in range(out.size):
        z = np.uint64(a[i]) * np.uint64(b[i])
        z = (z & _P) + (z >> _SHIFT)
        z = (z & _P) + (z >> _SHIFT)
        out[i] = np.uint32(z - _P if z >= _P else z)


@njit(cache=True, nogil=True)
def dot(a: Words, b: Words) -> int:
    """<a, b> in the field."""
    total = np.uint64(0)
    for i in range(a.size):
        z = np.uint64(a[i]) * np.uint64(b[i])
        total += (z & _P) + (z >> _SHIFT)  # below 2^32 each: 2^32 coordinates fit
    return int(total % _P)


@njit(cache=True, nogil=True)
def fold1(y: Words, alpha: int, c: Words, t: Words) -> None:
    """y += alpha * c + t."""
    factor = np.uint64(alpha)
    for i in range(y.size):
        z = factor * np.uint64(c[i]) + np.uint64(t[i]) + np.uint64(y[i])
        z = (z & _P) + (z >> _SHIFT)
        z = (z & _P) + (z >> _SHIFT)
        low = np.uint32(z)
        less = np.uint32(low - _P32)  # wraps to a huge value when low < p, so the minimum is the residue
        y[i] = low if low < less else less


@njit(cache=True, nogil=True)
def fold4(
    y: Words,
    alphas: npt.NDArray[np.uint64],
    c0: Words,
    t0: Words,
    c1: Words,
    t1: Words,
    c2: Words,
    t2: Words,
    c3: Words,
    t3: Words,
) -> None:
    """y += sum of alpha_k * c_k + t_k over four uploads, with one reduction (bound in the module docstring)."""
    a0, a1, a2, a3 = alphas[0], alphas[1], alphas[2], alphas[3]
    for i in range(y.size):
        z = a0 * np.uint64(c0[i]) + a1 * np.uint64(c1[i]) + a2 * np.uint64(c2[i]) + a3 * np.uint64(c3[i])
        z += np.uint64(t0[i]) + np.uint64(t1[i]) + np.uint64(t2[i]) + np.uint64(t3[i]) + np.uint64(y[i])
        z = (z & _P) + (z >> _SHIFT)
        z = (z & _P) + (z >> _SHIFT)
        z = (z & _P) + (z >> _SHIFT)
        low = np.uint32(z)
        less = np.uint32(low - _P32)
        y[i] = low if low < less else less


@njit(nogil=True, inline="always")
def _dot_pair(c: Words, t: Words, g: npt.NDArray[np.int32]) -> tuple[Any, Any]:
    """Signed dot products of a block with the server's row: |g| <= 2^16 and 2^12 coordinates stay below 2^59."""
    first = np.int64(0)
    second = np.int64(0)
    for i in range(g.size):
        factor = np.int64(g[i])
        first += np.int64(np.int32(c[i])) * factor
        second += np.int64(np.int32(t[i])) * factor
    return first, second


@njit(nogil=True, inline="always")
def _spread(v: Words, signs: npt.NDArray[np.uint8], a: Words, b: Words) -> None:
    """Add a block with its random signs to a window of each coarse table, a and b."""
    for i in range(v.size):
        word = np.uint32(v[i] ^ np.uint32(np.uint32(-np.int32(signs[i])) & _P32))
        z = np.uint32(a[i] + word)
        less = np.uint32(z - _P32)
        a[i] = z if z < less else less
        z = np.uint32(b[i] + word)
        less = np.uint32(z - _P32)
        b[i] = z if z < less else less


@njit(cache=True, nogil=True)
def scan(
    c: Words,
    t: Words,
    g: npt.NDArray[np.int32],
    signs: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    window: int,
    tables: Words,
) -> tuple[int, int]:
    """The fused pass: reads c and t once, returns (<c,g>, <t,g>) and adds to the four coarse ``tables``.

    tables: (4, buckets + window), rows (c table 0, c table 1, t table 0, t table 1); starts: (2, blocks);
    signs: 1 where a coordinate is negated.
    """
    prime = np.int64(0x7FFFFFFF)
    first = np.int64(0)
    second = np.int64(0)
    for block in range(starts.shape[1]):
        low = block * window
        high = min(c.size, low + window)
        size = high - low
        u, v = _dot_pair(c[low:high], t[low:high], g[low:high])
        first = (first + u) % prime
        second = (second + v) % prime
        one, two = starts[0, block], starts[1, block]
        sign = signs[low:high]
        _spread(c[low:high], sign, tables[0, one : one + size], tables[1, two : two + size])
        _spread(t[low:high], sign, tables[2, one : one + size], tables[3, two : two + size])
    return int(first), int(second)


@njit(cache=True, nogil=True)
def fine_rows(table: Words, hashes: npt.NDArray[np.uint8], out: npt.NDArray[np.uint64]) -> None:
    """One row of 64 signed buckets from a coarse table: hash byte = bucket (6 bits) + sign (bit 6)."""
    out[:] = 0
    for i in range(table.size):
        code = np.uint32(hashes[i])
        flip = np.uint32(np.uint32(-np.int32((code >> 6) & 1)) & _P32)
        out[code & 63] += np.uint64(np.uint32(table[i] ^ flip))
    for i in range(out.size):
        out[i] %= _P


@njit(cache=True, nogil=True)
def wrap_tables(tables: Any, buckets: int) -> None:
    """Fold what stands behind the end of each circular table back to its start."""
    for row in range(tables.shape[0]):
        for i in range(tables.shape[1] - buckets):
            z = np.uint32(tables[row, i] + tables[row, buckets + i])
            less = np.uint32(z - _P32)
            tables[row, i] = z if z < less else less


@njit(cache=True, nogil=True)
def add_slot(slot: npt.NDArray[np.int64], kappa: int, c: Words, t: Words) -> None:
    """c += slot and t += kappa * slot, in place on one slot of the pads; slot holds integers of size at most p/2."""
    factor = np.uint64(kappa)
    for i in range(slot.size):
        word = np.uint32(slot[i] + (np.int64(0x7FFFFFFF) & (slot[i] >> np.int64(63))))
        z = np.uint32(c[i] + word)
        less = np.uint32(z - _P32)
        c[i] = z if z < less else less
        w = factor * np.uint64(word) + np.uint64(t[i])
        w = (w & _P) + (w >> _SHIFT)
        w = (w & _P) + (w >> _SHIFT)
        low = np.uint32(w)
        rest = np.uint32(low - _P32)
        t[i] = low if low < rest else rest
