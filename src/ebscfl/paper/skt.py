"""SKT: secure key transformation (EBS-CFL, AAAI-25): move an encoding into another key space without opening it.

chi_i = x_i M_i + R_i M_{i+n} times tk_i becomes x_i M'_a + R_i M'_b + R'_i, where a = C(i) and b = C(i+n) are the
slots the converse function C chooses and the fresh R'_i sum to zero over the clients.

When C sends several clients to one slot, what comes out is the encoding of their *sum*. That is right for plain sums.
It is wrong for weighted sums, where weights and updates go through transformations of their own: the slot then
decodes to (sum of weights)·(sum of updates), not to the sum of weight times update. The compressed scheme therefore
gives every client a slot of its own (x = 2 levels); the paper's log n levels serve unweighted sums only.
"""

from __future__ import annotations

import numpy as np

from ebscfl.linalg import F64


def transform_key(
    value_basis: F64, mask_basis: F64, new_value_basis: F64, new_mask_basis: F64, mask_inverse: F64, fresh_mask: F64
) -> F64:
    """tk_i = M_i^T M'_C(i) + M_{i+n}^T (M'_C(i+n) + R_i^-1 R'_i).

    ``mask_inverse`` is R_i^-1 (or any right inverse: R_i R_i^-1 = I) and ``fresh_mask`` R'_i; leading axes are clients.
    """
    value_t, mask_t = np.swapaxes(value_basis, -1, -2), np.swapaxes(mask_basis, -1, -2)
    key: F64 = value_t @ new_value_basis + mask_t @ (new_mask_basis + mask_inverse @ fresh_mask)
    return key


def transform(encoded: F64, key: F64) -> F64:
    """T(chi_i, tk_i) = chi_i tk_i."""
    return encoded @ key


def transfer_decode(transformed_sum: F64, new_value_bases: F64) -> F64:
    """Eq. (transfer_decode): (sum_i chi'_i) dk'^T = sum_i x_i with dk' the sum of the new *value* blocks."""
    value: F64 = transformed_sum @ new_value_bases.sum(axis=0).T
    return value
