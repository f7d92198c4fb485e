"""Factored scoring and reassociated decode against their dense, printed twins."""

import numpy as np
import pytest
from paper_rounds import SMALL, Round

from ebscfl.linalg import join
from ebscfl.paper import decoder, relu_sum, score
from ebscfl.paper.compressed import spread_over_clusters
from ebscfl.paper.dealing import dense_twin
from ebscfl.paper.naive import dense_score

COMPRESSED = [name for name, params in SMALL.items() if params.scheme == "compressed"]


@pytest.mark.parametrize("name", COMPRESSED)
def test_factored_scores_equal_dense_scores(name):
    done = Round(SMALL[name], seed=3)
    twin = dense_twin(done.params, done.dealt.secret, done.server_updates)
    for i, upload in enumerate(done.uploads):
        dense = dense_score(twin, done.params.group_of(i), upload)
        assert np.abs(score(done.params, done.server_key, i, upload) - dense).max() < 1e-12


@pytest.mark.parametrize("name", COMPRESSED)
def test_the_factors_multiply_to_the_dense_key(name):
    done = Round(SMALL[name], seed=4)
    dense = dense_twin(done.params, done.dealt.secret, done.server_updates).dense  # (G, s, u, q·q)
    key = done.server_key.scoring_key
    fixed = np.broadcast_to(key.mask_factor[:, :, None], key.value_factor.shape)
    columns = np.concatenate([key.value_factor, fixed], axis=1)  # (G, 2·xi_1, s, u)
    assert np.abs(np.einsum("gcsu,gcx->gsux", columns, join(key.maps).astype(float)) - dense).max() < 1e-12


@pytest.mark.parametrize("name", COMPRESSED)
def test_the_decode_equals_the_one_through_the_n_slot_space(name):
    # Slow twin: transform every upload, sum in the n-slot space, decode with dk', then read off each cluster.
    done = Round(SMALL[name], seed=5, lean=0.3)
    params, key = done.params, done.server_key
    alphas = [score(params, key, i, upload) for i, upload in enumerate(done.uploads)]
    decode = decoder(params, key, relu_sum(params, key, alphas))
    moved = sum(upload @ key.transform.update_key[params.group_of(i)] for i, upload in enumerate(done.uploads))
    slow = np.einsum("sp,mtp->mst", moved @ decode.T, key.cluster_basis).reshape(params.num_clusters, -1)
    fast, _ = done.aggregate()
    assert np.abs(fast - slow[:, : params.dim]).max() < 1e-12


def test_transformed_masks_cancel_over_all_clients():
    # Erratum 6: what the third block carries, T_i, cancels against mu_i; nobody's upload alone is free of it.
    done = Round(SMALL["one client a group"])
    params, kept = done.params, done.dealt.secret
    third = np.einsum("np,npu->nu", kept.masks, kept.update_basis[:, 2])  # mu_i M'_{i+2n}
    moved = np.einsum("nu,nux->nx", third, done.server_key.transform.update_key)
    slots = np.linalg.norm(moved.sum(axis=0)) ** 2
    # In the sum only the orthogonal mu_i N'_{i+2n} are left: n vectors of squared length 1/s.
    assert slots == pytest.approx(params.num_clients / params.num_segments, rel=1e-12)
    assert all(np.linalg.norm(row) ** 2 > 1.1 / params.num_segments for row in moved)


def test_spreading_over_clusters_by_loop():
    params = SMALL["three clusters, padded"]
    done = Round(params)
    basis = done.server_key.cluster_basis
    expected = np.zeros((params.num_segments, params.width))
    for k in range(params.num_segments):
        for c in range(params.num_clusters):
            piece = np.zeros(params.segment_len)
            part = done.server_updates[c, k * params.segment_len : (k + 1) * params.segment_len]
            piece[: len(part)] = part
            expected[k] += piece @ basis[c]
    assert np.abs(spread_over_clusters(params, basis, done.server_updates) - expected).max() < 1e-13
