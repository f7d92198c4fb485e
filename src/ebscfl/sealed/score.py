"""Scores without updates: products of an upload with public rows, and the key center's verdict on them.

The rows are q = G (the server's updates), the sum of all counts, and 256 sketch rows. The server takes products with
c and t; the key center takes the same products with r and b, subtracts, and sees <x, q> and kappa <x, q>: whoever
changed a product by e without knowing kappa is caught, except with probability 1/p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ebscfl.errors import DecodeError
from ebscfl.field import Words
from ebscfl.sealed.masks import ClientKeys
from ebscfl.sealed.parameters import SealedParameters
from ebscfl.sealed.sketch import BUCKETS, ROWS, Sketch, norm_accepted, row_norms, sketch_pair
from ebscfl.sealed.workers import Workers

NUM_PRODUCTS = 2 + ROWS * BUCKETS
"""Score, count, sketch."""

REASON_TAG = "tag"
REASON_COUNT = "count"
REASON_NORM = "norm"


@dataclass(frozen=True)
class Answer:
    """What the key center sends for an accepted upload; both words are uniform for whoever lacks the keys."""

    alpha: int
    guard_alpha: int


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the key center learns from one upload. ``answer`` is None if and only if it is refused.

    ``reason`` is "tag" (the upload or the server's products are not what was sealed), "count" or "norm"; the score
    and the norms mean something only once the tag holds.
    """

    reason: str
    answer: Answer | None
    score: float
    weight: int  # rho
    norms: npt.NDArray[np.float64]  # (4,)

    @property
    def accepted(self) -> bool:
        """Whether all checks passed."""
        return self.answer is not None

    def __repr__(self) -> str:
        return f"Verdict(accepted={self.accepted}, reason={self.reason!r})"


def products(params: SealedParameters, pair: Words, server_row: npt.NDArray[np.int32], sketch: Sketch) -> Words:
    """(2, 258) products of both vectors of ``pair``: of an upload (server) or of the pads (key center)."""
    scores, rows = sketch_pair(params, pair, server_row, sketch)
    out = params.field.zeros((2, NUM_PRODUCTS))
    out[:, 0] = scores
    counts = pair[:, params.dim :: params.slot_size].astype(np.uint64)
    # Reduced after every slot: m residues of 61 bits would overflow from m = 8 on.
    total = np.zeros(2, dtype=np.uint64)
    for k in range(params.num_clusters):
        total = (total + counts[:, k]) % np.uint64(params.field.modulus)
    out[:, 1] = total
    out[:, 2:] = rows
    return out


def products_many(
    params: SealedParameters,
    pairs: Sequence[Words],
    server_row: npt.NDArray[np.int32],
    sketch: Sketch,
    *,
    workers: Workers | None = None,
) -> list[Words]:
    """`products` of many pairs, in parallel over them."""
    return (workers or Workers(1)).map(lambda pair: products(params, pair, server_row, sketch), pairs)


def kdc_check(params: SealedParameters, sent: Words, own: Words, keys: ClientKeys, lam: int) -> Verdict:
    """The key center's verdict: ``sent`` are the server's products, ``own`` those of the pads, both (2, 258).

    lam: the round's secret of `ebscfl.sealed.masks.guard_scalar`.
    """
    field = params.field
    if sent.shape != (2, NUM_PRODUCTS) or sent.dtype != field.dtype:
        raise DecodeError(f"products must be (2, {NUM_PRODUCTS}) words of {field.dtype}")
    field.check(sent, name="products", shape=(2, NUM_PRODUCTS))
    plain, tagged = field.subtract(sent, own)  # <x, q>; kappa <x, q> if nobody lied
    refused = np.full(ROWS, np.nan)
    if not np.array_equal(tagged, field.multiply(plain, keys.kappa)):
        return Verdict(REASON_TAG, None, float("nan"), 0, refused)
    values = field.lift(plain)
    score = float(values[0]) * 2.0 ** -(params.update_bits + params.server_bits)
    norms = row_norms(params, values[2:])
    if int(values[1]) != params.one_half:
        return Verdict(REASON_COUNT, None, score, 0, norms)
    if not norm_accepted(norms):
        return Verdict(REASON_NORM, None, score, 0, norms)
    rho = trust_weight(params, int(values[0]))
    return Verdict("", masked(params, keys, lam, rho), score, rho, norms)


def masked(params: SealedParameters, keys: ClientKeys, lam: int, rho: int) -> Answer:
    """The answer that lets the server weigh an upload by ``rho`` without learning it."""
    p = params.field.modulus
    return Answer((rho - keys.kappa) % p, (lam * rho - keys.guard_kappa) % p)


def reweighed(params: SealedParameters, verdict: Verdict, keys: ClientKeys, lam: int, weight: float) -> Verdict:
    """An accepted verdict with another ``weight`` (0..1): what a score history makes of it."""
    rho = round(2**params.weight_bits * min(max(weight, 0.0), 1.0))
    return replace(verdict, answer=masked(params, keys, lam, rho), weight=rho)


def trust_weight(params: SealedParameters, raw_score: int) -> int:
    """rho = round(2^weight_bits * ReLU(w)), at most 2^weight_bits: a cosine is at most one, and an input that spreads
    over slots or passes the norm check from above must not weigh more than an honest one can."""
    one = 1 << (params.update_bits + params.server_bits)
    clipped = min(max(raw_score, 0), one)
    return ((clipped << params.weight_bits) + one // 2) // one
