"""Random matrices with exact structure, from a secret stream: orthogonal blocks, zero-sum unit rows, bounded condition.

Everything here is float64 and a pure function of the stream it is given. Leading ``batch`` axes are
independent draws; nothing loops over them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ebscfl.errors import UsageError
from ebscfl.rng import SecretStream

F64 = npt.NDArray[np.float64]
Real = npt.NDArray[np.floating]
"""float64 or, where a function says so, numpy's longdouble."""

ZERO_SUM_TOLERANCE = 1e-12
"""How far `zero_sum_unit_rows` may be from its two conditions: length of the sum, and of any row from 1."""

PRODUCT_BLOCK = 3 << 16
"""Multiplications in one call of a product with a tall, thin matrix. OpenBLAS starts its threads at 2^18: such products
are bound by memory, so a second core gains microseconds on an idle machine, while waiting for a core that is busy costs
a thousand times more. Blocks of this size also stay in the cache (docs/explanation-paper-protocol.md)."""

DOT_BLOCK = 1 << 13
"""The same for inner products, where OpenBLAS starts its threads at 10 000 elements."""

_MAX_SWEEPS = 500
_MAX_DRAWS = 64


def orthogonal_blocks(stream: SecretStream, *, count: int, rows: int, cols: int, batch: tuple[int, ...] = ()) -> F64:
    """``count`` blocks B_i of shape (rows, cols) with B_i B_j^T = I if i = j else 0: shape (*batch, count, rows, cols).

    The blocks are slices of a Haar-distributed orthonormal frame: QR of a Gaussian matrix, with the sign of R's
    diagonal moved into Q (without that Q's distribution depends on the QR routine).
    """
    total = count * rows
    if min(count, rows) < 1 or total > cols:
        raise UsageError(f"{count} orthogonal blocks of {rows} rows need at least {total} columns, not {cols}")
    q, r = np.linalg.qr(stream.normal((*batch, cols, total)))
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    q *= np.where(diagonal < 0.0, -1.0, 1.0)[..., None, :]
    return np.ascontiguousarray(np.swapaxes(q, -2, -1)).reshape(*batch, count, rows, cols)


def extended_orthogonal(frame: F64) -> Real:
    """The (..., k, k) orthogonal ``frame`` with the digits of longdouble: two Newton-Schulz steps 3/2 F - 1/2 F F^T F.

    Where longdouble is no wider than float64 (some platforms) this returns the frame's own precision.
    """
    result: Real = frame.astype(np.longdouble)
    for _ in range(2):
        result = 1.5 * result - 0.5 * (result @ np.swapaxes(result, -1, -2) @ result)
    return result


def extended_inverse(matrix: F64, inverse: F64) -> Real:
    """``inverse`` of ``matrix`` with the digits of longdouble: two Newton steps X (2 I - A X)."""
    result: Real = inverse.astype(np.longdouble)
    twice = 2.0 * np.eye(matrix.shape[-1], dtype=np.longdouble)
    for _ in range(2):
        result = result @ (twice - matrix.astype(np.longdouble) @ result)
    return result


def split(values: Real) -> F64:
    """A longdouble array as two float64 arrays that sum to it, (2, ...): how such numbers are stored and sent."""
    leading = values.astype(np.float64)
    return np.stack([leading, (values - leading).astype(np.float64)])


def join(parts: F64) -> Real:
    """The inverse of `split`."""
    leading: Real = parts[0].astype(np.longdouble)
    whole: Real = leading + parts[1]
    return whole


def zero_sum_unit_rows(stream: SecretStream, *, count: int, dim: int) -> F64:
    """``count`` random unit vectors of length ``dim`` that sum to zero, both to `ZERO_SUM_TOLERANCE`: (count, dim).

    Centring and normalising are alternated until both conditions hold. Every iterate is a combination W r of the
    drawn rows r, so the sweeps run on the (count, count) matrix W against the Gram matrix of r, and the long rows are
    touched twice in all. One vector cannot sum to zero; in one dimension the vectors are signs and come in pairs.
    """
    if count < 2:
        raise UsageError("unit vectors that sum to zero need at least 2 of them: one client alone has no mask")
    if dim < 1:
        raise UsageError(f"vectors need at least one dimension, not {dim}")
    if dim == 1:
        return _balanced_signs(stream, count)
    for _ in range(_MAX_DRAWS):
        rows = _alternate(stream.normal((count, dim)))
        if rows is not None:
            return rows
    raise UsageError(
        f"no {count} zero-sum unit vectors of dimension {dim} after {_MAX_DRAWS} draws"
    )  # pragma: no cover


def _balanced_signs(stream: SecretStream, count: int) -> F64:
    if count % 2:
        raise UsageError(
            f"{count} one-dimensional unit vectors cannot sum to zero: use an even number of clients or longer segments"
        )
    signs = np.repeat([1.0, -1.0], count // 2)
    return np.ascontiguousarray(signs[np.argsort(stream.uniform(count), kind="stable")][:, None])


def _alternate(drawn: F64) -> F64 | None:
    """Alternating projections from ``drawn``; None if this start does not converge (low dimensions only)."""
    gram = drawn @ drawn.T
    weights = np.eye(len(drawn))
    for _ in range(_MAX_SWEEPS):
        weights -= weights.mean(axis=0)
        squares = np.einsum("ij,ij->i", weights @ gram, weights)
        if not np.all(squares > 0.0):
            return None
        weights /= np.sqrt(squares)[:, None]
        total = weights.sum(axis=0)
        if total @ gram @ total <= (0.1 * ZERO_SUM_TOLERANCE) ** 2:
            break
    rows: F64 = weights @ drawn
    # The Gram matrix carries its own rounding, so the promise is checked on the rows themselves.
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    good = np.abs(length - 1.0).max() <= ZERO_SUM_TOLERANCE and np.linalg.norm(rows.sum(axis=0)) <= ZERO_SUM_TOLERANCE
    return rows if good else None


def row_blocks(rows: int, cost: int) -> Iterator[slice]:
    """The rows of a product that costs ``cost`` multiplications a row, in blocks of at most `PRODUCT_BLOCK`."""
    step = max(1, PRODUCT_BLOCK // max(1, cost))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def add_product(tall: F64, thin: F64, onto: F64, *, out: F64) -> None:
    """out = onto + tall · thin, (r, k) x (k, c), block by block; ``out`` may be ``onto`` itself."""
    blocks = list(row_blocks(len(tall), thin.size))
    space = np.empty((blocks[0].stop, thin.shape[1]))
    for block in blocks:
        part = space[: block.stop - block.start]
        np.matmul(tall[block], thin, out=part)
        np.add(onto[block], part, out=out[block])


def inner_product(one: F64, two: F64) -> float:
    """<one, two> of two contiguous arrays of the same size, as a sum of partial sums over `DOT_BLOCK` elements."""
    first, second = one.reshape(-1), two.reshape(-1)
    whole = first.size - first.size % DOT_BLOCK
    parts = np.matmul(first[:whole].reshape(-1, 1, DOT_BLOCK), second[:whole].reshape(-1, DOT_BLOCK, 1))
    return float(parts.sum() + np.dot(first[whole:], second[whole:]))


def column_sums(tall: F64) -> F64:
    """Sum of the rows of an (r, c) matrix, as blocks of products with ones."""
    step = max(1, DOT_BLOCK // tall.shape[1])
    whole = len(tall) - len(tall) % step
    ones = np.ones((1, step))
    total: F64 = np.matmul(ones, tall[:whole].reshape(-1, step, tall.shape[1])).sum(axis=(0, 1))
    total += ones[0, : len(tall) - whole] @ tall[whole:]
    return total


def signed_square(values: Real) -> Real:
    """F of the paper: elementwise sign(a)·a^2."""
    return values * np.abs(values)


def signed_root(values: Real) -> Real:
    """F^-1 of the paper: elementwise sign(a)·sqrt(|a|), the inverse of `signed_square`; 0 stays 0."""
    return np.copysign(np.sqrt(np.abs(values)), values)


def conditioned_pair(
    stream: SecretStream, *, size: int, condition: float, batch: tuple[int, ...] = ()
) -> tuple[F64, F64]:
    """Random (*batch, size, size) matrices and their inverses, condition number at most ``condition``.

    Q1 diag(s) Q2^T with Q1, Q2 Haar-orthogonal and log s uniform in ±log(condition)/2: the bound holds by
    construction, and the inverse Q2 diag(1/s) Q1^T costs no solve and loses no digits.
    """
    if size < 1 or not condition >= 1.0:
        raise UsageError(f"a matrix of size {size} with condition number {condition} does not exist")
    left = orthogonal_blocks(stream, count=1, rows=size, cols=size, batch=batch)[..., 0, :, :]
    right = orthogonal_blocks(stream, count=1, rows=size, cols=size, batch=batch)[..., 0, :, :]
    spread = np.exp((stream.uniform((*batch, size)) - 0.5) * math.log(condition))
    matrix = (left * spread[..., None, :]) @ np.swapaxes(right, -2, -1)
    inverse = (right / spread[..., None, :]) @ np.swapaxes(left, -2, -1)
    return matrix, inverse


def traceless_invertible(stream: SecretStream, *, size: int) -> F64:
    """A random symmetric (size, size) matrix with trace zero and singular values in [1/2, 2].

    Its eigenvalues come as pairs ±a with a in [1/2, 1], and one triple (a, a, -2a) if ``size`` is odd.
    """
    if size < 2:
        raise UsageError("a 1 x 1 matrix of trace zero is not invertible: use longer segments or more clusters")
    frame = orthogonal_blocks(stream, count=1, rows=size, cols=size)[0]
    sizes = 0.5 * (1.0 + stream.uniform(size // 2))
    values = np.concatenate([sizes, -sizes])
    if size % 2:
        values = np.concatenate([values[1 : size // 2], values[size // 2 + 1 :], sizes[0] * np.array([1.0, 1.0, -2.0])])
    matrix: F64 = (frame * values) @ frame.T
    return matrix


def zero_sum_matrices(
    stream: SecretStream, *, count: int, size: int, condition: float, total: F64 | None = None
) -> tuple[F64, F64]:
    """``count`` invertible (size, size) matrices that sum to ``total`` (default zero), and their inverses.

    All but one come from `conditioned_pair` with condition number 2, scaled down by sqrt(count) so that sums stay of
    order one; the last one is what is missing, and the draw is repeated until its singular values lie within a factor
    ``condition`` of each other and above 1 / ``condition``.
    """
    if count < 2:
        raise UsageError("matrices that sum to zero need at least 2 of them")
    goal = np.zeros((size, size)) if total is None else total
    scale = 1.0 / math.sqrt(count)
    for _ in range(_MAX_DRAWS):
        free, free_inverse = conditioned_pair(stream, size=size, condition=2.0, batch=(count - 1,))
        last = goal - scale * free.sum(axis=0)
        values = np.linalg.svd(last, compute_uv=False)
        if values[-1] * condition >= max(values[0], 1.0):
            matrices = np.concatenate([scale * free, last[None]])
            return matrices, np.concatenate([free_inverse / scale, np.linalg.inv(last)[None]])
    raise UsageError(f"no zero-sum matrices of size {size} with condition number below {condition}")


def zero_sum_blocks(stream: SecretStream, *, count: int, shape: tuple[int, ...]) -> F64:
    """``count`` Gaussian arrays of ``shape``, centred: they sum to zero up to rounding. One alone is zero."""
    drawn = stream.normal((count, *shape))
    drawn -= drawn.mean(axis=0)
    return drawn
