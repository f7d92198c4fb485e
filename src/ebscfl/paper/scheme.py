"""The steps of a round as pure functions: the client encodes; the server verifies, scores and aggregates.

Each function takes only what its role holds. Both schemes (naive and compressed) go through the same functions; the
keys know which they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl.errors import UsageError, VerificationError
from ebscfl.linalg import F64, Real, add_product, inner_product, join
from ebscfl.paper import compressed, naive, srfc
from ebscfl.paper.keys import ClientKey, ClientRoundKey, DenseScoringKey, ServerKey, ServerRoundKey
from ebscfl.paper.parameters import PaperParameters
from ebscfl.pool import IN_PLACE, Pool

SQUARED_NORM = 3.0
"""|delta_i|^2 of an honest upload: 1 each for the unit update, for R''_i and for mu_i."""

NORM_TOLERANCE = 1e-10
"""Allowed deviation from `SQUARED_NORM`: the masks' lengths are exact to 1e-12 (`linalg.ZERO_SUM_TOLERANCE`),
orthogonality and summation add less than 1e-13; the rest is room. A client gains nothing from a length off by 1e-10."""

TAG_SLACK = 32.0
"""The verification equation is a sum of N = s·u products. Its rounding error behaves like a random walk, about
eps·sqrt(N)·|vk|·|delta| at worst; 32 times that is accepted. A guessed mask change d passes with probability about
TAG_SLACK·eps·N / |d|."""

WEIGHT_FLOOR = 2.0**-24
"""Total weight per client below which there is nothing to aggregate: |x| M below sqrt(eps) = 2^-26 is rounding."""


@dataclass(frozen=True, eq=False)
class ReluSum:
    """The encoded sum of trust weights: per leaf group in its own key space, and decoded over all clients."""

    encoded: F64  # (G, p, q)
    total_weight: float


def encode(
    params: PaperParameters,
    client_key: ClientKey,
    round_key: ClientRoundKey,
    update: npt.NDArray[np.floating],
    cluster: int,
    *,
    out: F64 | None = None,
) -> F64:
    """Client: delta_i = g_i/|g_i| A_c ek^0 + ek^1, (s, u), for a flat update of length l.

    The length is divided out of the small key A_c ek^0, not out of the update. ``out`` takes the result; it may be the
    memory of ek^1 itself, which then is gone.
    """
    if update.shape != (params.dim,):
        raise UsageError(f"the update must have shape ({params.dim},), not {update.shape}")
    if not 0 <= cluster < params.num_clusters:
        raise UsageError(f"cluster must be between 0 and {params.num_clusters - 1}, not {cluster}")
    values = np.ascontiguousarray(update, dtype=np.float64)
    with np.errstate(over="ignore"):
        square = inner_product(values, values)
    if not np.isfinite(square) or square == 0.0:
        raise UsageError("the update is zero, not finite, or too long to be squared: it cannot be scaled to length one")
    s, t = params.num_segments, params.segment_len
    if s * t != params.dim:
        values = np.concatenate([values, np.zeros(s * t - params.dim)])
    place = client_key.cluster_basis[cluster] @ client_key.encode_key  # A_c M'_i, (t, u)
    place /= np.sqrt(square)
    delta = np.empty(round_key.mask.shape) if out is None else out
    add_product(values.reshape(s, t), place, round_key.mask, out=delta)
    return delta


def verify(params: PaperParameters, server_key: ServerKey, round_key: ServerRoundKey, client: int, delta: F64) -> None:
    """Server: shape, finite, |delta_i|^2 = 3 and the vk equation, or `VerificationError` naming the client.

    What passing proves and what not is in docs/explanation-paper-protocol.md: only the R'' block is bound by vk.
    """
    if not 0 <= client < params.num_clients:
        raise VerificationError(f"there is no client {client} in this round", culprits=[client])
    if delta.shape != params.upload_shape or delta.dtype != np.float64:
        raise VerificationError(
            f"client {client}: the upload must be float64 of shape {params.upload_shape}, not {delta.dtype} of shape "
            f"{delta.shape}",
            culprits=[client],
        )
    with np.errstate(over="ignore", invalid="ignore"):
        square = inner_product(delta, delta)
    if not abs(square - SQUARED_NORM) <= NORM_TOLERANCE:
        raise VerificationError(
            f"client {client}: the upload has squared length {square:.12g}, not {SQUARED_NORM:g}: not a unit update "
            "under its masks",
            culprits=[client],
        )
    key = server_key.verification_key[params.group_of(client)]
    error = abs(inner_product(key, delta) - float(round_key.tags[client]))
    if not error <= tag_tolerance(params):
        raise VerificationError(
            f"client {client}: the verification equation fails: the masks in its upload are not the ones dealt to it "
            f"for round {round_key.round_id}",
            culprits=[client],
        )


def tag_tolerance(params: PaperParameters) -> float:
    """Rounding allowed in the verification equation, see `TAG_SLACK`.

    |vk| is not measured: per client its square is m times a chi-square number with s·t degrees of freedom.
    """
    s, u = params.upload_shape
    length = np.sqrt(params.group_size * params.num_clusters * s * params.segment_len)
    return float(TAG_SLACK * np.finfo(np.float64).eps * np.sqrt(s * u * SQUARED_NORM) * length)


def score(params: PaperParameters, server_key: ServerKey, client: int, delta: F64) -> Real:
    """Server: alpha_i, (q, q) float64 or longdouble: it hides the cosine of the update with its server update."""
    key = server_key.scoring_key
    group = params.group_of(client)
    if isinstance(key, DenseScoringKey):
        return naive.dense_score(key, group, delta)
    return compressed.factored_score(key, group, delta)


def relu_sum(params: PaperParameters, server_key: ServerKey, alphas: Sequence[Real] | Real) -> ReluSum:
    """Server: the encoded sum of ReLU(w_i) of all n clients and, by the trace, its value."""
    stacked = np.asarray(alphas, dtype=np.longdouble)
    if stacked.shape[:1] != (params.num_clients,):
        raise UsageError(f"the sum is over all {params.num_clients} clients, got {stacked.shape[0]} scores")
    keys = relu_keys(server_key)
    encoded = srfc.relu_encode(keys, params.by_slot(stacked))
    # In one group the zeta_i do not cancel; their traces do over all groups.
    total = float(srfc.relu_decode(encoded, keys.sum_basis).sum())
    return ReluSum(encoded=encoded.astype(np.float64), total_weight=total)


def relu_keys(server_key: ServerKey) -> srfc.ReluKeys:
    """The SRFC part of the server's key, in longdouble."""
    return srfc.ReluKeys(
        sum_basis=join(server_key.sum_basis),
        relu_key_1=join(server_key.relu_key_1),
        relu_key_2=join(server_key.relu_key_2),
        relu_key_3=join(server_key.relu_key_3),
    )


def decoder(params: PaperParameters, server_key: ServerKey, weights: ReluSum) -> F64:
    """Server: dk' = (sum_i E(ReLU(w_i))) dk / sum_i ReLU(w_i), (p, columns of the update key space)."""
    encoded = weights.encoded
    if server_key.transform is None:
        moved = encoded[0]
    else:
        key = server_key.transform.weight_key  # one product over all groups: sum_g E_g tk_g
        moved = encoded.transpose(1, 0, 2).reshape(params.width, -1) @ key.reshape(-1, key.shape[-1])
    decode: F64 = moved @ server_key.decode_key / weights.total_weight
    return decode


def aggregate(params: PaperParameters, server_key: ServerKey, deltas: Sequence[F64] | F64) -> tuple[F64, float]:
    """Server: score, sum and decode all n uploads: (m, l) aggregates, divided by the total weight, and that weight.

    When no client is trusted (total below `WEIGHT_FLOOR` a client), the aggregates are zero and so is the weight.
    """
    if len(deltas) != params.num_clients:
        raise UsageError(f"aggregation needs the uploads of all {params.num_clients} clients, got {len(deltas)}")
    alphas = [score(params, server_key, i, delta) for i, delta in enumerate(deltas)]
    return combine(params, server_key, deltas, relu_sum(params, server_key, alphas))


def combine(
    params: PaperParameters,
    server_key: ServerKey,
    deltas: Sequence[F64] | F64,
    weights: ReluSum,
    pool: Pool = IN_PLACE,
) -> tuple[F64, float]:
    """Server: the second half of `aggregate`, for a server that scores uploads as they come."""
    if weights.total_weight <= WEIGHT_FLOOR * params.num_clients:
        return np.zeros((params.num_clusters, params.dim)), 0.0
    update_keys = None if server_key.transform is None else server_key.transform.update_key
    aggregates = compressed.decode_uploads(
        params, deltas, update_keys, decoder(params, server_key, weights), server_key.cluster_basis, pool
    )
    return aggregates, weights.total_weight
