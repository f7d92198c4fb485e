# mypy: disallow-untyped-decorators=False
"""Number-theoretic transforms over p = 15 * 2^27 + 1 = 2013265921, on all columns of a matrix at once.

2^31 - 1, the field of the other comparators' code bases, has no root of unity of order above 2. This prime is the
largest below 2^31 with roots of order 2^27: words stay 32 bits on the wire and products 64 in the kernels. `forward`
leaves rows in bit-reversed order and `inverse` takes them so: no permutation is ever made. A twiddle w comes with
floor(2^32 w / p) (Shoup's trick), so a product mod p is three multiplications. Slow twins on Python integers are in the
tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ebscfl.errors import DecodeError, UsageError
from ebscfl.rng import Context, SecretStream

Words = npt.NDArray[np.uint32]
Twiddles = npt.NDArray[np.uint32]

NTT_PRIME = 15 * (1 << 27) + 1
GENERATOR = 31
"""31 generates the units: 31^((p-1)/q) is not 1 for q = 2, 3, 5, the prime factors of p - 1 (a test checks)."""
TWO_ADICITY = 27

_P = np.uint64(NTT_PRIME)
_S32 = np.uint64(32)
_COLUMNS = 256
"""Columns a block: 128 rows of 256 words are 128 KiB, which stay in the second-level cache."""


@njit(nogil=True, inline="always")
def _shoup(x: Any, w: Any, quotient: Any) -> Any:
    """x w mod p for x < 2^32 and quotient = floor(2^32 w / p): the difference below lies in [0, 2p).

    Every factor passes through 32 bits, so that the compiler takes the vector unit's 32 x 32 -> 64 product.
    """
    x, w, quotient = np.uint64(np.uint32(x)), np.uint64(w), np.uint64(quotient)
    r = x * w - ((x * quotient) >> _S32) * _P
    return r - _P if r >= _P else r


@njit(cache=True, nogil=True)
def _decimate(rows: Words, twiddles: Twiddles) -> None:
    """Gentleman-Sande butterflies, natural order in, bit-reversed out."""
    size, columns = rows.shape
    for left in range(0, columns, _COLUMNS):
        right = min(columns, left + _COLUMNS)
        half = size // 2
        while half >= 1:
            stride = size // (2 * half)
            for start in range(0, size, 2 * half):
                for k in range(half):
                    w, quotient = twiddles[0, k * stride], twiddles[1, k * stride]
                    upper, lower = rows[start + k, left:right], rows[start + k + half, left:right]
                    for c in range(upper.size):
                        a, b = np.uint64(upper[c]), np.uint64(lower[c])
                        total = a + b
                        upper[c] = np.uint32(total - _P if total >= _P else total)
                        lower[c] = np.uint32(_shoup(a + _P - b, w, quotient))
            half //= 2


@njit(cache=True, nogil=True)
def _gather(rows: Words, twiddles: Twiddles) -> None:
    """Cooley-Tukey butterflies, bit-reversed order in, natural out; not scaled."""
    size, columns = rows.shape
    for left in range(0, columns, _COLUMNS):
        right = min(columns, left + _COLUMNS)
        half = 1
        while half < size:
            stride = size // (2 * half)
            for start in range(0, size, 2 * half):
                for k in range(half):
                    w, quotient = twiddles[0, k * stride], twiddles[1, k * stride]
                    upper, lower = rows[start + k, left:right], rows[start + k + half, left:right]
                    for c in range(upper.size):
                        a, b = np.uint64(upper[c]), _shoup(np.uint64(lower[c]), w, quotient)
                        total = a + b
                        upper[c] = np.uint32(total - _P if total >= _P else total)
                        rest = a + _P - b
                        lower[c] = np.uint32(rest - _P if rest >= _P else rest)
            half *= 2


@njit(cache=True, nogil=True)
def _scale(rows: Words, factors: Twiddles) -> None:
    for i in range(rows.shape[0]):
        w, quotient = factors[0, i], factors[1, i]
        row = rows[i]
        for c in range(row.size):
            row[c] = np.uint32(_shoup(np.uint64(row[c]), w, quotient))


@njit(cache=True, nogil=True)
def add_into(total: Words, row: Words) -> None:
    """total += row mod p, in place."""
    for i in range(total.size):
        z = np.uint64(total[i]) + np.uint64(row[i])
        total[i] = np.uint32(z - _P if z >= _P else z)


@njit(cache=True, nogil=True)
def subtract_from(total: Words, row: Words) -> None:
    """total -= row mod p, in place."""
    for i in range(total.size):
        z = np.uint64(total[i]) + _P - np.uint64(row[i])
        total[i] = np.uint32(z - _P if z >= _P else z)


@njit(cache=True, nogil=True)
def _keep_residues(words: Words, out: Words, filled: int) -> int:
    """Append to ``out`` the words whose low 31 bits are below p."""
    for i in range(words.size):
        if filled == out.size:
            break
        word = words[i] & np.uint32(0x7FFFFFFF)
        out[filled] = word
        filled += 1 if np.uint64(word) < _P else 0
    return filled


def with_quotients(values: list[int]) -> Twiddles:
    """Multipliers and their Shoup quotients, (2, len)."""
    return np.array([values, [(w << 32) // NTT_PRIME for w in values]], dtype=np.uint32)


@dataclass(frozen=True, eq=False)
class Transform:
    """Transforms of one size, a power of two."""

    size: int
    root: int
    twiddles: Twiddles
    inverse_twiddles: Twiddles

    def forward(self, rows: Words) -> None:
        """Row i becomes the values at root^bit_reverse(i) of the polynomials whose coefficients the columns held."""
        _decimate(rows, self.twiddles)

    def inverse(self, rows: Words) -> None:
        """Undo `forward` up to the factor ``size``, which callers fold into their own scaling."""
        _gather(rows, self.inverse_twiddles)

    def points(self) -> list[int]:
        """The points the rows stand for after `forward`."""
        bits = self.size.bit_length() - 1
        powers = [1]
        for _ in range(self.size - 1):
            powers.append(powers[-1] * self.root % NTT_PRIME)
        return [powers[int(format(i, f"0{bits}b")[::-1], 2) if bits else 0] for i in range(self.size)]


def scale_rows(rows: Words, factors: list[int]) -> None:
    """Row i times factors[i], in place."""
    _scale(rows, with_quotients([f % NTT_PRIME for f in factors]))


@lru_cache(maxsize=32)
def transform(size: int) -> Transform:
    """The transform of ``size`` points."""
    if size < 1 or size & (size - 1) or size > 1 << TWO_ADICITY:
        raise UsageError(f"transforms have a power of two as size, not {size}")
    root = pow(GENERATOR, (NTT_PRIME - 1) // size, NTT_PRIME)
    half = max(1, size // 2)
    powers, inverse = [1], [1]
    back = pow(root, -1, NTT_PRIME)
    for _ in range(half - 1):
        powers.append(powers[-1] * root % NTT_PRIME)
        inverse.append(inverse[-1] * back % NTT_PRIME)
    return Transform(size, root, with_quotients(powers), with_quotients(inverse))


def uniform(size: int, root: bytes, usage: str, *context: Context) -> Words:
    """Uniform residues by rejection: 15/16 of the 31-bit words are below p."""
    stream = SecretStream(root, usage, *context)
    out = np.empty(size, dtype=np.uint32)
    filled = 0
    while filled < size:
        # Seven per cent above the need, so that one draw nearly always suffices.
        filled = int(_keep_residues(stream.uint32((size - filled) * 16 // 15 + 1024), out, filled))
    return out


def check_residues(words: Words, *, name: str, size: int) -> Words:
    """``words`` if there are ``size`` of them, all below p, else `DecodeError`."""
    if words.dtype != np.uint32 or words.shape != (size,):
        raise DecodeError(f"{name} must be {size} words, not {words.shape} of {words.dtype}")
    if int(words.max()) >= NTT_PRIME:
        raise DecodeError(f"{name} holds a word outside the field")
    return words
