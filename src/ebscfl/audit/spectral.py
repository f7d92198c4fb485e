"""Attack on the paper's protocol: the spectrum of alpha_i opens every upload (docs/explanation-audit.md, "spectral").

The server computes alpha_i = w_i M_i^T R'_i M_i + M_{i+n}^T R'_i M_{i+n} for each client. The two terms live in
orthogonal spaces and have the same shape R'_i, so alpha_i falls into two blocks, one of which is w_i times the other:

    ratio of the blocks              -> the score w_i, sign included
    row space of the smaller block   -> span(M_i);  beta projected onto it is M_i
    M_i · (tk) · dk                  -> M'_i;       delta_i M'_i^T = g_i A_c, the update in its cluster's slot

Everything but the last product works on (q x q) matrices, q = 2·p·xi_1, whatever the length of the update.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ebscfl.audit.paper_keys import Received, read_slots, receive
from ebscfl.audit.views import Estimate, Floats, View, stacked
from ebscfl.linalg import F64

NOISE = 1e-11
"""Relative size below which a singular value of alpha_i is rounding."""


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """alpha_i taken apart."""

    score: float  # w_i
    value_space: F64  # (p, q) orthonormal rows that span M_i
    mask_space: F64  # (p, q) the same for M_{i+n}


def spectral(view: View) -> Estimate:
    """Every client's score, cluster and update from the server's own view."""
    got = receive(view)
    claims: list[tuple[int, Floats, int]] = []
    scores = []
    for place, client in enumerate(got.clients):
        split = split_spectrum(got.alpha(place), got.params.width)
        if split is None:
            claims.append((client, np.zeros(got.params.dim), -1))
            scores.append(0.0)
            continue
        columns = update_columns(got, place, split)
        update, cluster = read_slots(got.params, got.key, got.uploads[place] @ columns)
        claims.append((client, update, cluster))
        scores.append(split.score)
    return stacked(view, claims, scores=np.array(scores), note="alpha_i alone, no accomplice, no second round")


def split_spectrum(alpha: F64, width: int) -> Split | None:
    """The two blocks of alpha (q, q) of rank 2·width, or None where the score is rounding and says nothing.

    Singular vectors of one block overlap with each other and with none of the other block: cutting the weakest link
    of a maximum spanning tree over these overlaps separates the blocks without a tolerance.
    """
    left, values, right = np.linalg.svd(alpha)
    rank = 2 * width
    if values[0] == 0.0:
        return None
    if values[rank - 1] <= NOISE * values[0]:
        return _score_is_zero(right, values, width)
    left, right = left[:, :rank].T, right[:rank]
    overlap = np.abs(left @ right.T)
    first = _one_side_of_weakest_link(overlap + overlap.T)
    if first.sum() != width:
        return None
    sizes = [float(np.linalg.norm(values[:rank][side])) for side in (first, ~first)]
    value = first if sizes[0] < sizes[1] else ~first  # a cosine is at most one: the smaller block carries it
    space, mask_space = right[value], right[~value]
    ratio = min(sizes) / max(sizes)
    return Split(ratio * _sign(space @ alpha @ space.T, mask_space @ alpha @ mask_space.T), space, mask_space)


def _score_is_zero(right: F64, values: F64, width: int) -> Split | None:
    """A score of zero leaves only the mask block; with one client a group, the rest of the space is span(M_i)."""
    alone = len(values) == 2 * width and values[width] <= NOISE * values[0] < values[width - 1]
    return Split(0.0, right[width:], right[:width]) if alone else None


def _one_side_of_weakest_link(weights: F64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Grow a maximum spanning tree (Prim); the weakest edge, taken away, leaves two sides: True for one of them."""
    count = len(weights)
    order, links = [0], [np.inf]
    best = weights[0].copy()
    best[0] = -1.0
    for _ in range(count - 1):
        nearest = int(best.argmax())
        links.append(float(best[nearest]))
        order.append(nearest)
        best = np.maximum(best, weights[nearest])
        best[order] = -1.0
    # Prim finishes one block before it crosses to the other, so the cut is at the smallest link of the order.
    side = np.zeros(count, dtype=bool)
    side[order[: int(np.argmin(links))]] = True
    return side


def _sign(value_block: F64, mask_block: F64) -> float:
    """The sign of w in value_block ~ w·mask_block (equal up to rotation): odd powers keep it in their traces."""
    best, sign = -1.0, 1.0
    value_power, mask_power = value_block, mask_block
    for _ in range(3):
        size = float(np.linalg.norm(mask_power))
        trace = float(np.trace(mask_power))
        if abs(trace) / size > best:
            best, sign = abs(trace) / size, float(np.sign(np.trace(value_power) * trace))
        value_power = value_power @ value_block @ value_block
        mask_power = mask_power @ mask_block @ mask_block
    return sign


def update_columns(got: Received, place: int, split: Split) -> F64:
    """The (u, p) matrix that turns delta_i into g_i A_c."""
    group = got.params.group_of(place)
    key = got.key
    value_basis = got.sum_basis(group) @ split.value_space.T @ split.value_space  # M_i
    if key.transform is None:
        return np.asarray((value_basis @ key.decode_key).T)  # M'_i = M_i dk
    slot = value_basis @ key.transform.weight_key[group] @ key.decode_key  # M'_a of the client's slot a
    columns: F64 = got.without_mu(group) @ (key.transform.update_key[group] @ slot.T)
    return columns
