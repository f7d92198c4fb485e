"""What the key center computes: all keys once, masks every round, alpha' again when the server updates change.

Every draw is a function of (root, usage, context): `deal` uses USAGE_PAPER_BASIS for key spaces and USAGE_PAPER_KEYS
for everything random inside keys, `refresh` USAGE_PAPER_ROUND with the round id.
"""

from __future__ import annotations

import numpy as np

from ebscfl.errors import UsageError
from ebscfl.linalg import (
    F64,
    conditioned_pair,
    orthogonal_blocks,
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
    ServerKey,
    ServerRoundKey,
    TransformKeys,
)
from ebscfl.paper.parameters import PaperParameters
from ebscfl.rng import USAGE_PAPER_BASIS, USAGE_PAPER_KEYS, USAGE_PAPER_ROUND, SecretStream

SCRAMBLE_CONDITION = 2.0
"""Bound on the condition number of R'_i; alpha_i^2 times tau_2 meets its fourth power."""


def zeta_condition(width: int) -> float:
    """Bound on the condition number of zeta_i: the last of them is a sum, so it grows with its size."""
    return 64.0 * width


def deal(params: PaperParameters, server_updates: F64, secret: bytes) -> Dealt:
    """All keys of a run for the (m, l) server updates; ``secret`` is a 32-byte root that only the key center knows."""
    p, q, size = params.width, params.weight_width, params.group_size
    updates = unit_server_updates(params, server_updates)
    basis = SecretStream(secret, USAGE_PAPER_BASIS)
    stream = SecretStream(secret, USAGE_PAPER_KEYS)
    cluster_basis = orthogonal_blocks(basis, count=params.num_clusters, rows=params.segment_len, cols=p)
    value, mask = srfc.draw_bases(basis, slots=size, rows=p, batch=(params.num_groups,))
    update_basis = orthogonal_blocks(
        basis, count=3 * size, rows=p, cols=params.update_width, batch=(params.num_groups,)
    )

    scramble, scramble_inverse = conditioned_pair(
        stream, size=p, condition=SCRAMBLE_CONDITION, batch=(params.num_groups, size)
    )
    total = traceless_invertible(stream, size=p) if params.zeta == "traceless" else None
    zeta, zeta_inverse = zero_sum_matrices(
        stream, count=params.num_clients, size=p, condition=zeta_condition(p), total=total
    )
    masks = zero_sum_unit_rows(stream, count=params.num_clients, dim=p) / np.sqrt(params.num_segments)
    relu = srfc.relu_keys(
        srfc.draw_masks(stream, value, params.occupied()), value, mask, scramble_inverse, params.by_slot(zeta)
    )
    verifiers = stream.normal((params.num_clients, params.num_segments, params.segment_len))
    core, cover = srfc.hidden_maps(value, mask, scramble)
    kept = DealerSecret(
        root=np.frombuffer(secret, dtype=np.uint8).copy(),
        cluster_basis=cluster_basis.copy(),
        update_basis=update_basis,
        masks=masks,
        weight_maps=np.concatenate([core, cover], axis=1).reshape(params.num_groups, 2 * size, q * q),
        verifiers=verifiers,
    )
    transform, decode_key = _transformation(params, stream, (value, mask), update_basis, zeta_inverse, masks)
    server_key = ServerKey(
        cluster_basis=cluster_basis.copy(),
        scoring_key=_scoring_key(params, kept, updates),
        sum_basis=relu.sum_basis,
        relu_key_1=relu.relu_key_1,
        relu_key_2=relu.relu_key_2,
        relu_key_3=relu.relu_key_3,
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


def refresh(params: PaperParameters, dealer_secret: DealerSecret, round_id: int) -> RoundKeys:
    """Fresh masks for one round: only R'' is drawn, so only ek^1 and the verification scalars change.

    Cost O(n m l) time and memory: 3ml numbers a client, which cannot be replaced by a seed because the client must
    know neither R'' nor M'.
    """
    n, (s, u) = params.num_clients, params.upload_shape
    m, t, p, size = params.num_clusters, params.segment_len, params.width, params.group_size
    stream = SecretStream(dealer_secret.root.tobytes(), USAGE_PAPER_ROUND, round_id)
    # Unit length over clusters and segments together (erratum 1), zero sum over clients in every coordinate.
    spread = zero_sum_unit_rows(stream, count=n, dim=s * p).reshape(n, s, p)
    tags = np.einsum("nsmt,nst->n", spread.reshape(n, s, m, t), dealer_secret.verifiers, optimize=True)
    mixing = dealer_secret.cluster_basis.reshape(m * t, p)
    clients = []
    for i in range(n):
        blocks = dealer_secret.update_basis[params.group_of(i)]
        slot = params.slot_of(i)
        mask = np.empty((s, u))
        np.matmul(spread[i], mixing @ blocks[size + slot], out=mask)
        mask += dealer_secret.masks[i] @ blocks[2 * size + slot]
        clients.append(ClientRoundKey(round_id=round_id, mask=mask))
    return RoundKeys(client=tuple(clients), server=ServerRoundKey(round_id=round_id, tags=tags))


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
    return naive.dense_scoring_key(value, mask, dealer_secret.weight_maps)


def _scoring_key(
    params: PaperParameters, kept: DealerSecret, unit_updates: F64
) -> DenseScoringKey | FactoredScoringKey:
    value, mask = compressed.scoring_columns(params, kept.cluster_basis, kept.update_basis, kept.masks, unit_updates)
    if params.scheme == "naive":
        return naive.dense_scoring_key(value, mask, kept.weight_maps)
    # The gauge T is the same in every deal of a run: it hides nothing that alpha' of the paper would not show.
    stream = SecretStream(kept.root.tobytes(), USAGE_PAPER_KEYS, "gauge")
    return compressed.factored_scoring_key(stream, value, mask, kept.weight_maps)


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
    params: PaperParameters,
    stream: SecretStream,
    weight_basis: tuple[F64, F64],
    update_basis: F64,
    zeta_inverse: F64,
    masks: F64,
) -> tuple[TransformKeys | None, F64]:
    if params.scheme == "naive":
        n = params.num_clients
        blocks = np.concatenate([weight_basis[0][0], weight_basis[1][0]])
        return None, compressed.decode_key(blocks, update_basis[0, : 3 * n])
    return compressed.transform_keys(
        params,
        stream,
        weight_basis=weight_basis,
        update_basis=update_basis,
        zeta_inverse=zeta_inverse,
        masks=masks,
    )
