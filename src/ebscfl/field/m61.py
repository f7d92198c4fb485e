"""Compiled kernels for p = 2^61 - 1: a word is a ``uint64`` in [0, p). Same functions as ``m31``.

A product has 122 bits and is taken apart into 32-bit limbs; 2^64 = 8 and 2^61 = 1 in this field, so reduction is
shifts and adds. Negation is ``v ^ p`` as in ``m31``. The server's row is at most 2^20 in size, so a word split
into 31 + 30 bits can be summed over 2^11 coordinates in signed 64-bit words: (31 + 20 + 11 = 62).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Words = npt.NDArray[np.uint64]

_P = np.uint64((1 << 61) - 1)
_SHIFT = np.uint64(61)
_LOW32 = np.uint64(0xFFFFFFFF)
_LOW29 = np.uint64((1 << 29) - 1)
_LOW31 = np.uint64((1 << 31) - 1)
_U3 = np.uint64(3)
_U29 = np.uint64(29)
_U31 = np.uint64(31)
_U32 = np.uint64(32)


@njit(nogil=True, inline="always")
def _times(a: Any, b: Any) -> Any:
    """a * b in [0, p): with a = a1 2^32 + a0 the four partial products are a1 b1, the middle sum and a0 b0."""
    a0, a1 = a & _LOW32, a >> _U32
    b0, b1 = b & _LOW32, b >> _U32
    low = a0 * b0  # below 2^64
    middle = a1 * b0 + a0 * b1  # below 2^62
    high = a1 * b1  # below 2^58
    z = (high << _U3) + (middle >> _U29) + ((middle & _LOW29) << _U32) + (low & _P) + (low >> _SHIFT)  # below 2^63
    z = (z & _P) + (z >> _SHIFT)
    return z - _P if z >= _P else z


@njit(nogil=True, inline="always")
def _plus(a: Any, b: Any) -> Any:
    z = a + b
    return z - _P if z >= _P else z


@njit(cache=True, nogil=True)
def mask_words(words: Words) -> int:
    """Keep the low 61 bits of each word in place; how many are p and must be drawn again."""
    rejected = 0
    for i in range(words.size):
        word = words[i] & _P
        words[i] = word
        rejected += 1 if word == _P else 0
    return rejected


@njit(cache=True, nogil=True)
def add(a: Words, b: Words, out: Words) -> None:
    """out = a + b, element by element."""
    for i in range(out.size):
        out[i] = _plus(a[i], b[i])


@njit(cache=True, nogil=True)
def subtract(a: Words, b: Words, out: Words) -> None:
    """out = a - b, element by element."""
    for i in range(out.size):
        out[i] = a[i] - b[i] if a[i] >= b[i] else a[i] + (_P - b[i])


@njit(cache=True, nogil=True)
def multiply(a: Words, b: Words, out: Words) -> None:
    """out = a * b, element by element."""
    for i in range(out.size):
        out[i] = _times(a[i], b[i])


@njit(cache=True, nogil=True)
def dot(a: Words, b: Words) -> int:
    """<a, b> in the field."""
    total = np.uint64(0)
    for i in range(a.size):
        total = _plus(total, _times(a[i], b[i]))
    return int(total)


@njit(cache=True, nogil=True)
def fold1(y: Words, alpha: int, c: Words, t: Words) -> None:
    """y += alpha * c + t."""
    factor = np.uint64(alpha)
    for i in range(y.size):
        y[i] = _plus(_plus(y[i], t[i]), _times(factor, c[i]))


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
    """y += sum of alpha_k * c_k + t_k over four uploads: one read and one write of y."""
    a0, a1, a2, a3 = alphas[0], alphas[1], alphas[2], alphas[3]
    for i in range(y.size):
        # Nine terms below 2^61 would pass 2^64, so the products and the rest are reduced apart.
        z = _times(a0, c0[i]) + _times(a1, c1[i]) + _times(a2, c2[i]) + _times(a3, c3[i])
        w = t0[i] + t1[i] + t2[i] + t3[i] + y[i]
        z = (z & _P) + (z >> _SHIFT) + (w & _P) + (w >> _SHIFT)
        z = (z & _P) + (z >> _SHIFT)
        y[i] = z - _P if z >= _P else z


@njit(nogil=True, inline="always")
def _residue(value: Any) -> Any:
    """A signed 64-bit number as a word."""
    return np.uint64(value % np.int64((1 << 61) - 1))


@njit(nogil=True, inline="always")
def _dot_block(v: Words, g: npt.NDArray[np.int32]) -> Any:
    low = np.int64(0)
    high = np.int64(0)
    for i in range(g.size):
        factor = np.int64(g[i])
        low += np.int64(v[i] & _LOW31) * factor
        high += np.int64(v[i] >> _U31) * factor
    return _plus(_residue(low), _times(_residue(high), np.uint64(1 << 31)))


@njit(nogil=True, inline="always")
def _spread(v: Words, signs: npt.NDArray[np.uint8], a: Words, b: Words) -> None:
    for i in range(v.size):
        word = v[i] ^ ((np.uint64(0) - np.uint64(signs[i])) & _P)
        a[i] = _plus(a[i], word)
        b[i] = _plus(b[i], word)


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
    first = np.uint64(0)
    second = np.uint64(0)
    for block in range(starts.shape[1]):
        low = block * window
        high = min(c.size, low + window)
        size = high - low
        first = _plus(first, _dot_block(c[low:high], g[low:high]))
        second = _plus(second, _dot_block(t[low:high], g[low:high]))
        one, two = starts[0, block], starts[1, block]
        sign = signs[low:high]
        _spread(c[low:high], sign, tables[0, one : one + size], tables[1, two : two + size])
        _spread(t[low:high], sign, tables[2, one : one + size], tables[3, two : two + size])
    return int(first), int(second)


@njit(cache=True, nogil=True)
def fine_rows(table: Words, hashes: npt.NDArray[np.uint8], out: Words) -> None:
    """One row of 64 signed buckets from a coarse table: hash byte = bucket (6 bits) + sign (bit 6)."""
    out[:] = 0
    for i in range(table.size):
        code = np.uint64(hashes[i])
        flip = (np.uint64(0) - ((code >> np.uint64(6)) & np.uint64(1))) & _P
        bucket = code & np.uint64(63)
        out[bucket] = _plus(out[bucket], table[i] ^ flip)


@njit(cache=True, nogil=True)
def wrap_tables(tables: Any, buckets: int) -> None:
    """Fold what stands behind the end of each circular table back to its start."""
    for row in range(tables.shape[0]):
        for i in range(tables.shape[1] - buckets):
            tables[row, i] = _plus(tables[row, i], tables[row, buckets + i])


@njit(cache=True, nogil=True)
def add_slot(slot: npt.NDArray[np.int64], kappa: int, c: Words, t: Words) -> None:
    """c += slot and t += kappa * slot, in place on one slot of the pads; slot holds integers of size at most p/2."""
    factor = np.uint64(kappa)
    for i in range(slot.size):
        word = np.uint64(slot[i] + (np.int64((1 << 61) - 1) & (slot[i] >> np.int64(63))))
        c[i] = _plus(c[i], word)
        t[i] = _plus(t[i], _times(factor, word))
