"""The naive secure aggregation scheme (EBS-CFL, AAAI-25): whole updates, one key space, alpha' dense as printed.

It is the compressed scheme with one segment (t = l, s = 1) and one group of all clients, without key transformation.
Its scoring key grows like (l m n)^3, so it serves as the readable definition and as the oracle of the factored
scoring key, not as a way to train.
"""

from __future__ import annotations

import numpy as np

from ebscfl.linalg import F64
from ebscfl.paper.keys import DenseScoringKey


def dense_scoring_key(value_columns: F64, mask_columns: F64, maps: F64) -> DenseScoringKey:
    """Eq. (alpha_dot), erratum 5: alpha'_k = sum_j b_jk (x) M_j^T R'_j M_j + d_j (x) M_{j+n}^T R'_j M_{j+n}.

    ``value_columns`` (G, xi_1, s, u) holds b_jk = M'_j^T sum_c A_c^T g0^c_k, ``mask_columns`` (G, xi_1, u) holds
    d_j = M'_{j+2n}^T mu_j^-1 / s, ``maps`` (G, 2·xi_1, q·q) the two kinds of matrices. Built entry by entry as outer
    products, the slow and obvious way.
    """
    slots = value_columns.shape[1]
    groups, _, segments, width = value_columns.shape
    dense = np.zeros((groups, segments, width, maps.shape[-1]))
    for group in range(groups):
        for slot in range(slots):
            dense[group] += value_columns[group, slot][:, :, None] * maps[group, slot]
            dense[group] += mask_columns[group, slot][:, None] * maps[group, slots + slot]
    return DenseScoringKey(dense=dense)


def dense_score(key: DenseScoringKey, group: int, delta: F64) -> F64:
    """(alpha_i)_j = delta_i alpha'_j, summed over segments: (s, u) -> (q, q)."""
    size = int(np.sqrt(key.dense.shape[-1]))
    flat: F64 = np.einsum("su,sux->x", delta, key.dense[group])
    return flat.reshape(size, size)
