"""What the key center computes: all keys once, masks every round, alpha' again when the server updates change.

Every draw is a function of (root, usage, context): `deal` uses USAGE_PAPER_BASIS for key spaces and USAGE_PAPER_KEYS
for everything random inside keys, `refresh` USAGE_PAPER_ROUND with the round id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ebscfl.errors import UsageError
from ebscfl.linalg import (
    F64,
    add_product,
    conditioned_pair,
    extended_inverse,
    extended_orthogonal,
    join,
    orthogonal_blocks,
    split,
    traceless_invertible,
    zero_sum_matrices,
    zero_sum_unit_rows,
)
from ebscfl.paper import compressed, naive, srfc, vomca
from ebscfl.paper.keys import (
    ClientKey,
    ClientRoundKey,
    DealerSecret,
    Dealt,
    DenseScoringKey,
    FactoredScoringKey,
    RoundKeys,
    SecretArrays,
    ServerKey,
    ServerRoundKey,
    TransformKeys,
)
from ebscfl.paper.parameters import PaperParameters
from ebscfl.pool import IN_PLACE, Pool
from ebscfl.rng import USAGE_PAPER_BASIS, USAGE_PAPER_KEYS, USAGE_PAPER_ROUND, SecretStream

SCRAMBLE_CONDITION = 2.0
"""Bound on the condition number of R'_i; alpha_i^2 times tau_2 meets its fourth power."""


def zeta_condition(width: int) -> float:
    """Bound on the condition number of zeta_i: the last of them is a sum, so it grows with its size."""
    return 64.0 * width


def deal(params: PaperParameters, server_updates: F64, secret: bytes) -> Dealt:
    """All keys of a run for the (m, l) server updates; ``secret`` is a 32-byte root that only the key center knows."""
    updates = unit_server_updates(params, server_updates)
    basis = SecretStream(secret, USAGE_PAPER_BASIS)
    stream = SecretStream(secret, USAGE_PAPER_KEYS)
    cluster_basis = orthogonal_blocks(basis, count=params.num_clusters, rows=params.segment_len, cols=params.width)
    update_basis = orthogonal_blocks(
        basis, count=3 * params.group_size, rows=params.width, cols=params.update_width, batch=(params.num_groups,)
    )
    weights = _weight_space(params, basis, stream)
    masks = zero_sum_unit_rows(stream, count=params.num_clients, dim=params.width) / np.sqrt(params.num_segments)
    kept = DealerSecret(
        root=np.frombuffer(secret, dtype=np.uint8).copy(),
        cluster_basis=cluster_basis.copy(),
        update_basis=update_basis,
        masks=masks,
        weight_maps=weights.maps,
        verifiers=stream.normal((params.num_clients, params.num_segments, params.segment_len)),
    )
    transform, decode_key = _transformation(params, stream, weights, update_basis, masks)
    server_key = ServerKey(
        cluster_basis=cluster_basis.copy(),
        scoring_key=_scoring_key(params, kept, updates),
        sum_basis=split(weights.relu.sum_basis),
        relu_key_1=split(weights.relu.relu_key_1),
        relu_key_2=split(weights.relu.relu_key_2),
        relu_key_3=split(weights.relu.relu_key_3),
        decode_key=decode_key,
        verification_key=_verification_key(params, kept),
        transform=transform,
    )
    client_keys = tuple(
        ClientKey(
            encode_key=update_basis[params.group_of(i), params.slot_of(i)].copy(), cluster_basis=cluster_basis.copy()
        )
        for i in range(params.num_clients)
    )
    return Dealt(client_keys=client_keys, server_key=server_key, secret=kept)


@dataclass(frozen=True, eq=False, repr=False)
class _WeightSpace(SecretArrays):
    """The key spaces of the weights while they are dealt."""

    value_basis: F64  # (G, xi_1, p, q) M_i
    mask_basis: F64  # (G, xi_1, p, q) M_{i+n}
    zeta_inverse: F64  # (n, p, p)
    maps: F64  # (2, G, 2·xi_1, q·q), see DealerSecret
    relu: srfc.ReluKeys


def _weight_space(params: PaperParameters, basis: SecretStream, stream: SecretStream) -> _WeightSpace:
    """M, R', zeta and the SRFC keys made of them; M and R'^-1 carry longdouble digits until they are split."""
    p, q, size, groups = params.width, params.weight_width, params.group_size, params.num_groups
    drawn = srfc.draw_bases(basis, slots=size, rows=p, batch=(groups,))
    frame = np.concatenate(drawn, axis=1).reshape(groups, q, q)
    bases = extended_orthogonal(frame).reshape(groups, 2 * size, p, q)
    value, mask = bases[:, :size], bases[:, size:]
    scramble, inverse = conditioned_pair(stream, size=p, condition=SCRAMBLE_CONDITION, batch=(groups, size))
    total = traceless_invertible(stream, size=p) if params.zeta == "traceless" else None
    zeta, zeta_inverse = zero_sum_matrices(
        stream, count=params.num_clients, size=p, condition=zeta_condition(p), total=total
    )
    masks = srfc.draw_masks(stream, value, params.occupied())
    core, cover = srfc.hidden_maps(value, mask, scramble)
    return _WeightSpace(
        value_basis=value.astype(np.float64),
        mask_basis=mask.astype(np.float64),
        zeta_inverse=zeta_inverse,
        maps=split(np.concatenate([core, cover], axis=1).reshape(groups, 2 * size, q * q)),
        relu=srfc.relu_keys(masks, value, mask, extended_inverse(scramble, inverse), params.by_slot(zeta)),
    )


def unit_server_updates(params: PaperParameters, server_updates: F64) -> F64:
    """The (m, l) server updates, checked and scaled to length one each."""
    shape = (params.num_clusters, params.dim)
    if server_updates.shape != shape:
        raise UsageError(f"server updates must have shape {shape}, not {server_updates.shape}")
    updates = np.asarray(server_updates, dtype=np.float64)
    lengths = np.linalg.norm(updates, axis=1)
    bad = [int(k) for k in np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0.0)))]
    if bad:
        raise UsageError(
            f"the server updates of clusters {bad} are zero or not finite: they give no direction to trust"
        )
    scaled: F64 = updates / lengths[:, None]
    return scaled


def refresh(params: PaperParameters, dealer_secret: DealerSecret, round_id: int, pool: Pool = IN_PLACE) -> RoundKeys:
    """Fresh masks for one round: only R'' is drawn, so only ek^1 and the verification scalars change.

    Memory O(n m l); time O(n^2 m l), the Gram matrix of the masks. A client gets 3ml numbers, which cannot
    be replaced by a seed because it must know neither R'' nor M'. ``pool`` shares out the clients' masks; the Gram
    matrix is one product and stays in this process.
    """
    n, s = params.num_clients, params.num_segments
    m, t, p, size = params.num_clusters, params.segment_len, params.width, params.group_size
    stream = SecretStream(dealer_secret.root.tobytes(), USAGE_PAPER_ROUND, round_id)
    # Unit length over clusters and segments together (erratum 1), zero sum over clients in every coordinate.
    spread = zero_sum_unit_rows(stream, count=n, dim=s * p).reshape(n, s, p)
    tags = np.einsum("nsmt,nst->n", spread.reshape(n, s, m, t), dealer_secret.verifiers, optimize=True)
    mixing = dealer_secret.cluster_basis.reshape(m * t, p)
    shares = []
    for i in range(n):
        blocks, slot = dealer_secret.update_basis[params.group_of(i)], params.slot_of(i)
        shares.append((spread[i], mixing @ blocks[size + slot], dealer_secret.masks[i] @ blocks[2 * size + slot]))
    masks = pool.map(masked_rows, params.upload_shape, shares)
    clients = tuple(ClientRoundKey(round_id=round_id, mask=mask) for mask in masks)
    return RoundKeys(client=clients, server=ServerRoundKey(round_id=round_id, tags=tags))


def masked_rows(shape: tuple[int, int], spread: F64, mixing: F64, third: F64) -> F64:
    """One client's ek^1: its part R'' of zero through its own key space, and the fixed third term in every row."""
    mask = np.empty(shape)
    add_product(spread, mixing, np.broadcast_to(third, shape), out=mask)
    return mask


def re_deal_alpha(
    params: PaperParameters, dealer_secret: DealerSecret, server_updates: F64
) -> DenseScoringKey | FactoredScoringKey:
    """A new scoring key for new server updates; no other key depends on them."""
    return _scoring_key(params, dealer_secret, unit_server_updates(params, server_updates))


def dense_twin(params: PaperParameters, dealer_secret: DealerSecret, server_updates: F64) -> DenseScoringKey:
    """The scoring key written out as alpha' of the paper, whatever the scheme: the oracle of the factored one."""
    value, mask = compressed.scoring_columns(
        params,
        dealer_secret.cluster_basis,
        dealer_secret.update_basis,
        dealer_secret.masks,
        unit_server_updates(params, server_updates),
    )
    return naive.dense_scoring_key(value, mask, dealer_secret.weight_maps[0])


def _scoring_key(
    params: PaperParameters, kept: DealerSecret, unit_updates: F64
) -> DenseScoringKey | FactoredScoringKey:
    value, mask = compressed.scoring_columns(params, kept.cluster_basis, kept.update_basis, kept.masks, unit_updates)
    if params.scheme == "naive":
        return naive.dense_scoring_key(value, mask, kept.weight_maps[0])
    # The gauge T is the same in every deal of a run: it hides nothing that alpha' of the paper would not show.
    stream = SecretStream(kept.root.tobytes(), USAGE_PAPER_KEYS, "gauge")
    return compressed.factored_scoring_key(stream, value, mask, join(kept.weight_maps))


def _verification_key(params: PaperParameters, kept: DealerSecret) -> F64:
    """Per group and segment, sum_i V_ik sum_j A_j M'_{i+n}: (G, s, u)."""
    size = params.group_size
    blocks = kept.cluster_basis.sum(axis=0) @ kept.update_basis[:, size : 2 * size]  # (G, xi_1, t, u)
    keys = [
        vomca.verification_key(kept.verifiers[list(params.members(g))], blocks[g, : len(params.members(g))])
        for g in range(params.num_groups)
    ]
    return np.stack(keys)


def _transformation(
    params: PaperParameters, stream: SecretStream, weights: _WeightSpace, update_basis: F64, masks: F64
) -> tuple[TransformKeys | None, F64]:
    if params.scheme == "naive":
        blocks = np.concatenate([weights.value_basis[0], weights.mask_basis[0]])
        return None, compressed.decode_key(blocks, update_basis[0])
    return compressed.transform_keys(
        params,
        stream,
        weight_basis=(weights.value_basis, weights.mask_basis),
        update_basis=update_basis,
        zeta_inverse=weights.zeta_inverse,
        masks=masks,
    )
