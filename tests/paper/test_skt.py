"""SKT in general: transfer between key spaces, merging slots, and what merging does to weighted sums."""

import numpy as np
import pytest

from ebscfl.linalg import conditioned_pair, orthogonal_blocks, zero_sum_blocks
from ebscfl.paper import skt, vomca
from ebscfl.rng import USAGE_BENCH, SecretStream, root_from_seed

N, P = 4, 2


class Space:
    """n clients with keys of their own, and a new space of ``slots`` slots."""

    def __init__(self, seed, converse, *, slots):
        stream = SecretStream(root_from_seed(seed), USAGE_BENCH)
        old = orthogonal_blocks(stream, count=2 * N, rows=P, cols=2 * N * P)
        new = orthogonal_blocks(stream, count=2 * slots, rows=P, cols=2 * slots * P)
        self.masks, inverses = conditioned_pair(stream, size=P, condition=4.0, batch=(N,))
        self.fresh = zero_sum_blocks(stream, count=N, shape=(P, 2 * slots * P))
        self.new_value, self.new_mask = new[:slots], new[slots:]
        self.old_value, self.old_mask = old[:N], old[N:]
        c = list(converse)
        self.keys = skt.transform_key(
            self.old_value, self.old_mask, self.new_value[c], self.new_mask[c], inverses, self.fresh
        )
        self.converse = c

    def encode(self, values):
        return [vomca.encode(values[i], self.masks[i], self.old_value[i], self.old_mask[i]) for i in range(N)]

    def move(self, values):
        return [skt.transform(chi, self.keys[i]) for i, chi in enumerate(self.encode(values))]


@pytest.mark.parametrize(
    ("converse", "slots"), [((0, 1, 2, 3), 4), ((3, 0, 1, 2), 4), ((0, 0, 1, 1), 2), ((0,) * 4, 1)]
)
def test_transformed_encodings_are_the_new_ones_plus_fresh_masks(converse, slots):
    space = Space(1, converse, slots=slots)
    values = SecretStream(root_from_seed(2), USAGE_BENCH).normal((N, P, P))
    for i, moved in enumerate(space.move(values)):
        a = space.converse[i]
        plain = vomca.encode(values[i], space.masks[i], space.new_value[a], space.new_mask[a])
        assert np.abs(moved - (plain + space.fresh[i])).max() < 1e-12


@pytest.mark.parametrize(("converse", "slots"), [((0, 1, 2, 3), 4), ((0, 0, 1, 1), 2), ((0,) * 4, 1)])
def test_transfer_decode_gives_the_sum_also_when_slots_merge(converse, slots):
    space = Space(3, converse, slots=slots)
    values = SecretStream(root_from_seed(4), USAGE_BENCH).normal((N, P, P))
    decoded = skt.transfer_decode(sum(space.move(values)), space.new_value)
    assert np.abs(decoded - values.sum(axis=0)).max() < 1e-12
    one = skt.transfer_decode(space.move(values)[0], space.new_value)
    assert np.abs(one - values[0]).max() > 0.01  # a single one is still under its fresh mask


def test_chains_of_merging_levels_are_right_for_plain_sums():
    # Two levels, 4 -> 2 -> 1, without fresh masks on the second: the masks of the first level are what it carries on.
    stream = SecretStream(root_from_seed(5), USAGE_BENCH)
    first = Space(5, (0, 0, 1, 1), slots=2)
    values = stream.normal((N, P, P))
    level_1 = first.move(values)
    last = orthogonal_blocks(stream, count=1, rows=P, cols=2 * P)
    second = sum(first.new_value[a].T @ last[0] for a in range(2))
    moved = sum(skt.transform(chi, second) for chi in level_1)
    assert np.abs(skt.transfer_decode(moved, last) - values.sum(axis=0)).max() < 1e-12


@pytest.mark.parametrize(("converse", "slots", "per_client"), [((0, 1, 2, 3), 4, True), ((0, 0, 1, 1), 2, False)])
def test_merging_breaks_weighted_sums(converse, slots, per_client):
    # Erratum 6: the weights decode updates slot by slot, so a shared slot gives (sum w)(sum x), not sum w x.
    space = Space(6, converse, slots=slots)
    values = SecretStream(root_from_seed(7), USAGE_BENCH).normal((N, P, P))
    weights = np.array([0.5, 0.0, 1.0, 0.25])
    encoded_weights = sum(weights[i] * space.new_value[space.converse[i]] for i in range(N))
    decoded = sum(space.move(values)) @ encoded_weights.T
    # the fresh masks cancel in the sum and the old ones sit in mask slots
    wanted = np.einsum("n,npq->pq", weights, values)
    slotwise = sum(
        sum(weights[i] for i in range(N) if space.converse[i] == a)
        * sum(values[i] for i in range(N) if space.converse[i] == a)
        for a in range(slots)
    )
    assert np.abs(decoded - slotwise).max() < 1e-12
    assert bool(np.abs(decoded - wanted).max() < 1e-12) == per_client
