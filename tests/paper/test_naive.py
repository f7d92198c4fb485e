"""The dense scoring key is Eq. (alpha_dot), and its scores are the weights' encodings."""

import numpy as np
from paper_rounds import SMALL, Round

from ebscfl.linalg import join
from ebscfl.paper import score
from ebscfl.paper.dealing import dense_twin
from ebscfl.paper.naive import dense_score, dense_scoring_key


def test_dense_key_by_hand():
    value = np.array([[[[1.0, 2.0]]]])  # one group, one slot, one segment, u = 2
    mask = np.array([[[10.0, 0.0]]])
    maps = np.array([[[1.0, 0.0, 0.0, 3.0], [0.0, 1.0, 1.0, 0.0]]])  # q = 2
    key = dense_scoring_key(value, mask, maps)
    assert key.dense[0, 0].tolist() == [[1.0, 10.0, 10.0, 3.0], [2.0, 0.0, 0.0, 6.0]]
    assert dense_score(key, 0, np.array([[1.0, -1.0]])).tolist() == [[-1.0, 10.0], [10.0, -3.0]]


def test_scores_hide_the_cosine_as_the_paper_says():
    # alpha_i = w_i M_i^T R'_i M_i + M_{i+n}^T R'_i M_{i+n}, cosines from plain RFCA, maps from the dealer.
    for name in ("naive", "pairs, last group half full"):
        done = Round(SMALL[name], lean=0.5)
        params = done.params
        maps = join(done.dealt.secret.weight_maps)
        _, _, cosines = done.plain()
        for i, upload in enumerate(done.uploads):
            group, slot = params.group_of(i), params.slot_of(i)
            expected = cosines[i] * maps[group, slot] + maps[group, params.group_size + slot]
            alpha = score(params, done.server_key, i, upload)
            assert np.abs(alpha.reshape(-1) - expected).max() < 1e-13


def test_the_naive_key_is_its_own_dense_twin():
    done = Round(SMALL["naive"])
    twin = dense_twin(done.params, done.dealt.secret, done.server_updates)
    assert np.array_equal(twin.dense, done.server_key.scoring_key.dense)
