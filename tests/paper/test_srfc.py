"""SRFC alone: the identities t_1, t_2, t_3 of the proof, both ReLU equations, and the errata behind them."""

import numpy as np
import pytest

from ebscfl.linalg import conditioned_pair, signed_root, signed_square, zero_sum_matrices
from ebscfl.paper import srfc
from ebscfl.rng import USAGE_BENCH, SecretStream, root_from_seed

P, SLOTS, GROUPS = 3, 2, 4
VALUES = np.array([[0.7, -0.4], [0.05, 1.0], [-1.0, 0.0], [-0.3, 0.2]])


class Setting:
    def __init__(self, seed, *, bound=srfc.SCORE_BOUND):
        stream = SecretStream(root_from_seed(seed), USAGE_BENCH)
        self.value, self.mask = srfc.draw_bases(stream, slots=SLOTS, rows=P, batch=(GROUPS,))
        self.scramble, inverse = conditioned_pair(stream, size=P, condition=2.0, batch=(GROUPS, SLOTS))
        zeta, _ = zero_sum_matrices(stream, count=GROUPS * SLOTS, size=P, condition=200.0)
        self.zeta = zeta.reshape(GROUPS, SLOTS, P, P)
        self.masks = srfc.draw_masks(stream, self.value, np.ones((GROUPS, SLOTS)), bound=bound)
        self.keys = srfc.relu_keys(self.masks, self.value, self.mask, inverse, self.zeta)
        self.alphas = srfc.hide(VALUES, self.value, self.mask, self.scramble)


@pytest.fixture(params=range(3), name="setting")
def _setting(request):
    return Setting(request.param)


X = VALUES[..., None, None]


def test_t1_decodes_values_with_their_random_terms(setting):
    expected = (X * setting.value + setting.masks.start + setting.zeta @ setting.mask).sum(axis=1)
    assert np.abs(srfc.linear_term(setting.keys, setting.alphas) - expected).max() < 1e-13


def test_t2_with_the_absolute_value_the_paper_leaves_out(setting):
    squared = setting.keys.sum_basis[:, None] @ setting.alphas @ setting.alphas
    found = srfc.cross_term(setting.keys, squared)
    expected = 2 * np.abs(X) * setting.value * setting.masks.shift - setting.masks.cover
    assert np.abs(found - expected).max() < 1e-7  # entries that are zero come back as sqrt(eps)
    printed = 2 * X * setting.value * setting.masks.shift - setting.masks.cover
    assert np.abs(found - printed).max() > 0.1


def test_t3_gives_the_absolute_value(setting):
    found = srfc.absolute_term(setting.keys, setting.alphas)
    assert np.abs(found - (np.abs(X) * setting.value + setting.masks.shift)).max() < 1e-7


def test_relu_encode_and_trace_decode(setting):
    encoded = srfc.relu_encode(setting.keys, setting.alphas)
    expected = (np.maximum(X, 0) * setting.value + 0.5 * setting.zeta @ setting.mask).sum(axis=1)
    assert np.abs(encoded - expected).max() < 1e-7
    decoded = srfc.relu_decode(encoded, setting.keys.sum_basis).sum()  # the traces of zeta cancel over all groups
    assert decoded == pytest.approx(np.maximum(VALUES, 0).sum(), abs=1e-7)
    # Erratum 4: dividing the trace by l, the update's length, instead of by the p rows is wrong unless m = 1.
    trace = np.einsum("gpq,gpq->", encoded, setting.keys.sum_basis)
    assert abs(trace / (P + 1) - np.maximum(VALUES, 0).sum()) > 0.1


def test_random_terms_follow_the_sign_of_the_basis_and_cancel(setting):
    masks, value = setting.masks, setting.value
    assert np.all((masks.shift > 0) == (value <= 0))
    assert np.all((masks.cover > 0) == (value > 0))
    assert np.all(masks.shift[value <= 0] >= srfc.SCORE_BOUND * np.abs(value[value <= 0]))
    assert np.all(masks.cover < 2 * srfc.SCORE_BOUND**2)
    assert np.abs((masks.start + masks.shift).sum(axis=1)).max() < 1e-14  # R_i = R0 + R1 sums to zero


def test_random_terms_below_the_bound_flip_signs():
    # Erratum 2: masks made for |x| <= 0.05 break for larger x, where |x| M + R1 turns negative.
    small = Setting(0, bound=0.05)
    found = srfc.absolute_term(small.keys, small.alphas)
    expected = np.abs(X) * small.value + small.masks.shift
    negative = expected < -0.01
    assert negative.any()
    assert np.all(found[negative] > 0)


def test_empty_slots_stay_out_of_the_zero_sum():
    stream = SecretStream(root_from_seed(1), USAGE_BENCH)
    value, _ = srfc.draw_bases(stream, slots=3, rows=2, batch=(1,))
    masks = srfc.draw_masks(stream, value, np.array([[1.0, 1.0, 0.0]]))
    total = masks.start + masks.shift
    assert np.abs(total[0, :2].sum(axis=0)).max() < 1e-14
    assert np.all(total[0, 2] == 0.0)


def test_bases_avoid_tiny_entries():
    stream = SecretStream(root_from_seed(3), USAGE_BENCH)
    value, mask = srfc.draw_bases(stream, slots=1, rows=4, batch=(20,))
    assert np.abs(value).min(axis=(1, 2, 3)).min() >= srfc.entry_floor(slots=1, rows=4)
    frame = np.concatenate([value, mask], axis=1).reshape(20, 8, 8)
    assert np.abs(frame @ np.swapaxes(frame, 1, 2) - np.eye(8)).max() < 1e-13


def test_the_entrywise_definition_of_the_square_is_the_papers():
    a = np.array([-1.5, 0.25])
    assert np.allclose(signed_square(a), a**3 / np.abs(a), rtol=1e-15)
    assert np.allclose(signed_root(a), a * np.sqrt(np.abs(a)) / np.abs(a), rtol=1e-15)
