"""VOMCA: verifiable orthogonal matrix confusion for aggregation (EBS-CFL, AAAI-25, first mechanism).

Client i hides x_i as chi_i = x_i M_i + R_i M_{i+n}, where all M are mutually orthogonal blocks and the R_i sum to
zero. One chi_i times the decode key gives x_i + R_i; the sum of all gives the sum of the x_i. A verification key holds
secret multiples of the mask blocks, so that a chi_i whose mask part was changed fails its equation (Theorem 1).

Shapes here: x_i and R_i are (rows, width), M_i is (width, cols). Leading axes are batch axes.
"""

from __future__ import annotations

import numpy as np

from ebscfl.errors import VerificationError
from ebscfl.linalg import F64


def encode(value: F64, mask: F64, value_basis: F64, mask_basis: F64) -> F64:
    """chi_i = x_i M_i + R_i M_{i+n}."""
    return value @ value_basis + mask @ mask_basis


def decode_key(value_bases: F64, mask_bases: F64) -> F64:
    """dk, the sum of all 2n blocks (n, width, cols) + (n, width, cols) -> (width, cols)."""
    key: F64 = value_bases.sum(axis=0) + mask_bases.sum(axis=0)
    return key


def decode(encoded: F64, key: F64) -> F64:
    """chi dk^T: the hidden value plus its mask; for the sum over all clients the masks are gone."""
    return encoded @ key.T


def verification_key(secrets: F64, mask_bases: F64) -> F64:
    """The shared part of vk: the sum over clients of V_i M_{i+n}, (n, rows, width) x (n, width, cols)."""
    key: F64 = (secrets @ mask_bases).sum(axis=0)
    return key


def verification_tag(secret: F64, mask: F64) -> F64:
    """Client i's part of vk: V_i R_i^T, (rows, rows)."""
    return secret @ mask.T


def verification_residual(encoded: F64, key: F64, tag: F64) -> float:
    """Largest entry of vk chi^T - V_i R_i^T, over what rounding alone can reach by the lengths involved.

    Orthogonality makes the difference zero for every value x_i: only a change of the mask part shows.
    """
    scale = np.linalg.norm(key) * np.linalg.norm(encoded)
    return float(np.abs(key @ encoded.T - tag).max() / max(scale, np.finfo(np.float64).tiny))


def verify(client: int, encoded: F64, key: F64, tag: F64, *, tolerance: float = 1e-12) -> None:
    """Raise `VerificationError` naming ``client`` unless the verification equation holds."""
    if not verification_residual(encoded, key, tag) <= tolerance:
        raise VerificationError(f"client {client}: the mask of its upload was changed", culprits=[client])
