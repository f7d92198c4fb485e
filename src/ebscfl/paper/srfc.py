"""SRFC: secure ReLU function computation (EBS-CFL, AAAI-25, Theorem 2).

The server holds alpha_i, which hides a number x_i, and keys beta, tau_1, tau_2, tau_3. From the alphas it computes
the *encoded* sum of ReLU(x_i), never a single ReLU(x_i): x + |x| = 2 ReLU(x), where |x| comes from squaring entries
and taking signed roots, with random terms R0, R1, R2 that keep the entries apart and cancel in the sum.

Squaring and taking the root again costs half the digits of a small x, so everything here also runs on numpy's
longdouble, and the schemes run it so: keys are held as pairs of float64 (`linalg.split`), scores as longdouble.

Shapes: a key space has q columns and holds 2 blocks (p, q) for each of its c clients: M_i for the value, M_{i+n} for
the mask. Leading axes ``...`` (one per leaf group) are batch axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ebscfl.linalg import F64, Real, orthogonal_blocks, signed_root, signed_square
from ebscfl.paper.keys import SecretArrays
from ebscfl.rng import SecretStream

SCORE_BOUND = 1.0
"""Largest |x_i| the keys are made for: a cosine is at most 1, also a hostile client's."""

COVER = 1 / 16
"""Smallest R2, in units of bound^2 / q, see `draw_masks`."""

_REDRAWS = 64
_REDRAW_COLS = 64


@dataclass(frozen=True, eq=False, repr=False)
class ReluKeys(SecretArrays):
    """What the server needs to turn alphas into the encoded ReLU sum."""

    sum_basis: Real  # (..., p, q) beta, the sum of all 2c blocks
    relu_key_1: Real  # (..., q, q) tau_1: decodes x_i
    relu_key_2: Real  # (..., q, q) tau_2: decodes the square of |x_i| M_i + R1_i, up to
    relu_key_3: Real  # (..., q, q) tau_3: the cross term 2 |x_i| M_i o R1_i


@dataclass(frozen=True, eq=False, repr=False)
class ReluMasks(SecretArrays):
    """The random terms of `relu_keys`; nobody but the key center (and a test) ever holds them."""

    start: Real  # (..., c, p, q) R0 = R - R1 with the R_i of a key space summing to zero
    shift: Real  # (..., c, p, q) R1: positive where M_i <= 0, else 0
    cover: Real  # (..., c, p, q) R2: positive where M_i > 0, else 0


def draw_bases(stream: SecretStream, *, slots: int, rows: int, batch: tuple[int, ...] = ()) -> tuple[F64, F64]:
    """The blocks M_1..M_c and M_{c+1}..M_{2c} of square key spaces: two (*batch, slots, rows, 2·slots·rows) arrays.

    Rounding in x^2 M_jk^2 reaches |x| M_jk multiplied by 1 / (2 |x M_jk|), so one tiny entry of a value block costs
    digits in the whole aggregate. Spaces with an entry below `entry_floor` are drawn again, up to a fixed number of
    times; what is left is still a random frame, conditioned on that event.
    """
    cols = 2 * slots * rows

    def draw(count: int) -> F64:
        return orthogonal_blocks(stream, count=2 * slots, rows=rows, cols=cols, batch=(count,))

    floor = entry_floor(slots=slots, rows=rows)
    bases = draw(math.prod(batch))
    for _ in range(_REDRAWS if cols <= _REDRAW_COLS else _REDRAWS // 8):
        smallest = np.abs(bases[:, :slots]).min(axis=(1, 2, 3))
        low = np.flatnonzero(smallest < floor)
        if not low.size:
            break
        fresh = draw(low.size)
        better = np.abs(fresh[:, :slots]).min(axis=(1, 2, 3)) > smallest[low]
        bases[low[better]] = fresh[better]
    bases = bases.reshape(*batch, 2 * slots, rows, cols)
    value, mask = np.split(bases, 2, axis=-3)
    return np.ascontiguousarray(value), np.ascontiguousarray(mask)


def entry_floor(*, slots: int, rows: int) -> float:
    """Smallest |entry| `draw_bases` wants in the value blocks; about one draw in sixteen has it.

    An entry of a random unit vector in R^q has density at most sqrt(q / 2 pi) around 0, so all N = slots·rows·q
    entries stay above f with probability about exp(-2 N f sqrt(q / 2 pi)): exp(-2.8) for the f below.
    """
    cols = 2 * slots * rows
    return 1.4 / (slots * rows * cols * math.sqrt(cols / (2.0 * math.pi)))


def draw_masks(stream: SecretStream, value_basis: Real, present: F64, *, bound: float = SCORE_BOUND) -> ReluMasks:
    """R0, R1, R2 for value blocks (..., c, p, q); ``present`` (..., c) is 1 for slots that hold a client, else 0.

    R1 >= bound·|M_jk| wherever M_jk <= 0, otherwise |x| M + R1 turns negative and its root loses the sign: the printed
    interval (0, max|x|) starts too low. We draw from [b, 5b/4] with b = bound·max(|M_jk|, 1/sqrt(q)), and R2 from
    bound^2/q·[1/16, 3/32]: both are added to x^2 M^2 and taken off again, so being much larger than M^2 costs digits,
    and so does being much smaller, because their own roots are taken (docs/explanation-paper-protocol.md).
    """
    q = value_basis.shape[-1]
    base = bound * np.maximum(np.abs(value_basis), q**-0.5)
    noise = stream.uniform(value_basis.shape)
    positive = value_basis > 0.0
    shift = np.where(positive, 0.0, base * (1.0 + 0.25 * noise))
    cover = np.where(positive, COVER * bound**2 / q * (1.0 + 0.5 * noise), 0.0)
    weight = present[..., None, None]
    total = stream.normal(value_basis.shape) * (weight / np.sqrt(q))
    count = np.maximum(weight.sum(axis=-3, keepdims=True), 1.0)
    total -= weight * total.sum(axis=-3, keepdims=True) / count
    return ReluMasks(start=total - shift, shift=shift, cover=cover)


def relu_keys(masks: ReluMasks, value_basis: Real, mask_basis: Real, scramble_inverse: Real, zeta: Real) -> ReluKeys:
    """beta, tau_1, tau_2, tau_3 (Eq. ReLU_params); ``scramble_inverse`` is R'^-1 and all inputs are (..., c, ., .)."""
    value_t, mask_t = np.swapaxes(value_basis, -1, -2), np.swapaxes(mask_basis, -1, -2)
    inverse_2 = scramble_inverse @ scramble_inverse
    tau_1 = value_t @ scramble_inverse @ value_basis + mask_t @ scramble_inverse @ (masks.start + zeta @ mask_basis)
    tau_2 = value_t @ inverse_2 @ (value_basis * value_basis) + mask_t @ inverse_2 @ (
        masks.shift * masks.shift + masks.cover
    )
    tau_3 = value_t @ inverse_2 @ signed_square(2.0 * value_basis * masks.shift) - mask_t @ inverse_2 @ signed_square(
        masks.cover
    )
    return ReluKeys(
        sum_basis=(value_basis + mask_basis).sum(axis=-3),
        relu_key_1=tau_1.sum(axis=-3),
        relu_key_2=tau_2.sum(axis=-3),
        relu_key_3=tau_3.sum(axis=-3),
    )


def hide(value: Real, value_basis: Real, mask_basis: Real, scramble: Real) -> Real:
    """alpha_i = x_i M_i^T R'_i M_i + M_{i+n}^T R'_i M_{i+n}; ``value`` (...) against blocks (..., p, q)."""
    core, mask = hidden_maps(value_basis, mask_basis, scramble)
    return value[..., None, None] * core + mask


def hidden_maps(value_basis: Real, mask_basis: Real, scramble: Real) -> tuple[Real, Real]:
    """The two fixed matrices alpha_i is made of: M_i^T R'_i M_i and M_{i+n}^T R'_i M_{i+n}, (..., q, q)."""
    core: Real = np.swapaxes(value_basis, -1, -2) @ scramble @ value_basis
    mask: Real = np.swapaxes(mask_basis, -1, -2) @ scramble @ mask_basis
    return core, mask


def linear_term(keys: ReluKeys, alphas: Real) -> Real:
    """Eq. (t_1): beta (sum_i alpha_i) tau_1 = sum_i x_i M_i + R0_i + zeta_i M_{i+n}; alphas (..., c, q, q)."""
    encoded: Real = keys.sum_basis @ alphas.sum(axis=-3) @ keys.relu_key_1
    return encoded


def cross_term(keys: ReluKeys, squared: Real) -> Real:
    """Eq. (t_2), corrected: F^-1(beta alpha_i^2 tau_3) = 2 |x_i| M_i o R1_i - R2_i, from beta alpha_i^2."""
    return signed_root(squared @ keys.relu_key_3[..., None, :, :])


def absolute_term(keys: ReluKeys, alphas: Real) -> Real:
    """Eq. (t_3): F^-1(beta alpha_i^2 tau_2 + F^-1(beta alpha_i^2 tau_3)) = |x_i| M_i + R1_i, (..., c, p, q)."""
    squared = keys.sum_basis[..., None, :, :] @ alphas @ alphas  # beta alpha_i^2: thin times square, twice
    return signed_root(squared @ keys.relu_key_2[..., None, :, :] + cross_term(keys, squared))


def relu_encode(keys: ReluKeys, alphas: Real) -> Real:
    """Eq. (ReLU_encode): the encoded sum of ReLU(x_i) over the c clients of each key space, (..., p, q)."""
    absolute: Real = absolute_term(keys, alphas).sum(axis=-3)
    return 0.5 * (linear_term(keys, alphas) + absolute)


def relu_decode(encoded: Real, sum_basis: Real) -> Real:
    """Eq. (ReLU_decode), corrected: the trace of E beta^T over its p rows (not l), (...).

    In one key space the zeta_i must sum to zero or to trace zero for this to be the sum of ReLU(x_i).
    """
    trace: Real = np.einsum("...pq,...pq->...", encoded, sum_basis)
    value: Real = trace / encoded.shape[-2]
    return value
