"""The compressed scheme (EBS-CFL, AAAI-25): segments, leaf groups, factored alpha' and the reassociated decode.

Two exact rewritings make it fast; neither changes what anybody holds:

* alpha' of one leaf group is a map of rank 2·xi_1, so it travels as rank factors behind a random gauge T;
* the decode multiplies keys first: K = tk dk'^T is (u, p), and sum_i delta_i K_i never fills the n-slot space.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ebscfl.linalg import (
    F64,
    Real,
    add_product,
    column_sums,
    conditioned_pair,
    inner_product,
    join,
    orthogonal_blocks,
    row_blocks,
    split,
    zero_sum_blocks,
)
from ebscfl.paper import skt
from ebscfl.paper.keys import FactoredScoringKey, TransformKeys
from ebscfl.paper.parameters import PaperParameters
from ebscfl.pool import IN_PLACE, Pool, spans
from ebscfl.rng import SecretStream

GAUGE_CONDITION = 4.0


def scoring_columns(
    params: PaperParameters, cluster_basis: F64, update_basis: F64, masks: F64, server_updates: F64
) -> tuple[F64, F64]:
    """b_jk = M'_j^T sum_c A_c^T g0^c_k, (G, xi_1, s, u), and d_j = M'_{j+2n}^T mu_j^-1 / s, (G, xi_1, u).

    delta_ik b_jk summed over k is the cosine w_i if j is client i's slot, else 0; delta_ik d_j likewise gives 1, where
    mu_j^-1 = mu_j^T / |mu_j|^2.
    """
    size = params.group_size
    spread = spread_over_clusters(params, cluster_basis, server_updates)  # (s, p)
    value = spread @ update_basis[:, :size]
    # mu_j M'_{j+2n} as it stands, rounded, in ek^1: scaling by its own length makes the hidden 1 exact to one ulp.
    carried = (params.by_slot(masks)[:, :, None, :] @ update_basis[:, 2 * size :])[:, :, 0, :]
    squares = np.einsum("gcu,gcu->gc", carried, carried)[:, :, None]
    mask = np.divide(carried, params.num_segments * squares, out=np.zeros_like(carried), where=squares > 0.0)
    return value, mask


def spread_over_clusters(params: PaperParameters, cluster_basis: F64, per_cluster: F64) -> F64:
    """sum_c g^c_k A_c for all segments k: (m, l) -> (s, p)."""
    m, t, s = params.num_clusters, params.segment_len, params.num_segments
    padded = np.zeros((m, s * t))
    padded[:, : params.dim] = per_cluster
    segments = padded.reshape(m, s, t).transpose(1, 0, 2).reshape(s, m * t)
    return segments @ cluster_basis.reshape(m * t, params.width)


def factored_scoring_key(stream: SecretStream, value_columns: F64, mask_columns: F64, maps: Real) -> FactoredScoringKey:
    """The rank factors of the dense alpha' behind a random invertible gauge: [B_k T | ...]·T^-1 C.

    T is block triangular, T = [[P, 0], [Q, S]]: the second block of columns stays free of the value columns and so
    the same for all segments, which halves the key. The dense alpha' tells as much: its differences between segments
    span the value columns, and the part outside that span is the mask columns, constant in k.
    """
    groups, slots, segments, width = value_columns.shape
    top, top_inverse = conditioned_pair(stream, size=slots, condition=GAUGE_CONDITION, batch=(groups,))
    low, low_inverse = conditioned_pair(stream, size=slots, condition=GAUGE_CONDITION, batch=(groups,))
    mix = stream.normal((groups, slots, slots)) / np.sqrt(slots)
    # [B | D] T = [B P + D Q | D S], and T^-1 [C; E] = [P^-1 C; S^-1 (E - Q P^-1 C)]
    flat = np.swapaxes(top, 1, 2) @ value_columns.reshape(groups, slots, segments * width)
    value = flat.reshape(groups, slots, segments, width)
    value += (np.swapaxes(mix, 1, 2) @ mask_columns)[:, :, None, :]
    mask = np.swapaxes(low, 1, 2) @ mask_columns
    first = top_inverse @ maps[:, :slots]
    second = low_inverse @ (maps[:, slots:] - mix @ first)
    return FactoredScoringKey(value_factor=value, mask_factor=mask, maps=split(np.concatenate([first, second], axis=1)))


def factored_score(key: FactoredScoringKey, group: int, delta: F64) -> Real:
    """alpha_i of one upload (s, u) -> (q, q) longdouble: 2·xi_1 inner products, then one small combination."""
    factors = key.value_factor[group]
    # One dot a slot streams the factor once; BLAS's matrix-vector product is slower for this few rows.
    by_value = [inner_product(factor, delta) for factor in factors]
    by_mask = key.mask_factor[group] @ column_sums(delta)
    size = round(key.maps.shape[-1] ** 0.5)
    coefficients = np.concatenate([by_value, by_mask])
    alpha: Real = coefficients @ join(key.maps[:, group])
    return alpha.reshape(size, size)


def transform_keys(
    params: PaperParameters,
    stream: SecretStream,
    *,
    weight_basis: tuple[F64, F64],
    update_basis: F64,
    zeta_inverse: F64,
    masks: F64,
) -> tuple[TransformKeys, F64]:
    """tk of weights and updates from the leaf key spaces into the n-slot spaces, and dk between those.

    ``weight_basis`` is the pair M_i, M_{i+n} by (group, slot); ``update_basis`` holds the three kinds of M'. Fresh
    masks: S_i with sum S_i = 0 behind zeta_i^-1 for the weights; T_i with sum mu_i T_i = 0 in the third block of the
    updates (erratum 6).
    """
    n, p, size = params.num_clients, params.width, params.group_size
    present = params.occupied()[:, :, None, None]
    slots_w = orthogonal_blocks(stream, count=2 * n, rows=p, cols=2 * n * p)
    slots_u = orthogonal_blocks(stream, count=3 * n, rows=p, cols=3 * n * p)
    fresh_w = zero_sum_blocks(stream, count=n, shape=(p, 2 * n * p)) / np.sqrt(2 * n * p)
    weight_key = skt.transform_key(
        weight_basis[0] * present,
        weight_basis[1] * present,
        params.by_slot(slots_w[:n]),
        params.by_slot(slots_w[n:]),
        params.by_slot(zeta_inverse),
        params.by_slot(fresh_w),
    )
    value, second, third = (update_basis[:, k * size : (k + 1) * size] * present for k in range(3))
    update_key = skt.transform_key(
        value,
        third,
        params.by_slot(slots_u[:n]),
        params.by_slot(slots_u[2 * n :]),
        np.eye(p),
        params.by_slot(_annihilated(params, stream, masks)),
    ) + np.swapaxes(second, -1, -2) @ params.by_slot(slots_u[n : 2 * n])
    keys = TransformKeys(weight_key=weight_key.sum(axis=1), update_key=update_key.sum(axis=1))
    return keys, decode_key(slots_w, slots_u)


def _annihilated(params: PaperParameters, stream: SecretStream, masks: F64) -> F64:
    """Random T_i (n, p, 3pn) with sum_i mu_i T_i = 0: mu_i^-1 rho_i, rows rho_i of sum zero, plus what mu_i kills."""
    n, p = params.num_clients, params.width
    cols = 3 * n * p
    free = stream.normal((n, p, cols)) / np.sqrt(cols)
    squares = np.einsum("np,np->n", masks, masks)
    inverse = masks / squares[:, None]  # mu_i^-1, the right inverse of mu_i as a column
    rho = zero_sum_blocks(stream, count=n, shape=(1, cols)) * np.sqrt(squares[:, None, None] / cols)
    tied: F64 = free + inverse[:, :, None] @ (rho - masks[:, None, :] @ free)
    return tied


def decode_key(weight_slots: F64, update_slots: F64) -> F64:
    """dk = sum_i M_i^T M'_i + M_{i+n}^T sum_j (M'_{j+n} + M'_{j+2n}) from 2n and 3n blocks: (2pn, 3pn)."""
    n = len(weight_slots) // 2
    p = weight_slots.shape[1]
    value = weight_slots[:n].reshape(n * p, -1).T @ update_slots[:n].reshape(n * p, -1)
    key: F64 = value + weight_slots[n:].sum(axis=0).T @ update_slots[n:].sum(axis=0)
    return key


def decode_uploads(
    params: PaperParameters,
    deltas: Sequence[F64] | F64,
    update_keys: F64 | None,
    decoder: F64,
    cluster_basis: F64,
    pool: Pool = IN_PLACE,
) -> F64:
    """sum_i delta_i tk_i dk'^T A_c^T for every cluster c, keys multiplied first: (m, l).

    ``decoder`` is dk', (p, 3pn) with a transformation and (p, u) without (``update_keys`` None, the naive scheme).
    ``pool`` shares the rows (segments) out, cut where `add_product` cuts them, so that every product of blocks and
    every sum over clients is the one of a single process.
    """
    m, t, s = params.num_clusters, params.segment_len, params.num_segments
    last = decoder.T @ cluster_basis.reshape(m * t, params.width).T  # dk'^T A^T, (columns of the n-slot space, m·t)
    keys = last[None] if update_keys is None else update_keys @ last  # K_i of every group, (G, u, m·t)
    (block, *_) = row_blocks(s, keys[0].size)
    shares = [([delta[rows] for delta in deltas],) for rows in spans(s, max(1, pool.workers), step=block.stop)]
    total = np.concatenate(pool.map(decode_rows, (keys, params.group_size), shares, spare=True))
    aggregates = total.reshape(s, m, t).transpose(1, 0, 2).reshape(m, s * t)
    return np.ascontiguousarray(aggregates[:, : params.dim])


def decode_rows(common: tuple[F64, int], deltas: Sequence[F64]) -> F64:
    """sum_i delta_i K_i over some of the rows, client after client: (rows, m·t)."""
    keys, group_size = common
    total = np.zeros((len(deltas[0]), keys.shape[2]))
    for client, delta in enumerate(deltas):
        add_product(delta, keys[client // group_size], total, out=total)
    return total
