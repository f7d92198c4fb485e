"""Masks cancel in pairs, are one key stream however the vector is cut, and match a slow twin."""

from __future__ import annotations

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.secagg.masking import BLOCK_WORDS, apply_mask, pair_sign

SEED = rng.root_from_seed(2)


@pytest.mark.parametrize("size", [1, BLOCK_WORDS - 1, BLOCK_WORDS, 2 * BLOCK_WORDS + 3])
def test_a_mask_is_the_key_stream_modulo_2_32(size: int) -> None:
    start = np.arange(size, dtype=np.uint32)
    got = start.copy()
    apply_mask(got, SEED, 4)
    words = rng.SecretStream(SEED, rng.USAGE_SECAGG, "mask", 4).uint32(size)
    few = range(0, size, max(1, size // 50))
    assert [int(got[i]) for i in few] == [(int(start[i]) + int(words[i])) % 2**32 for i in few]
    apply_mask(got, SEED, 4, subtract=True)
    assert np.array_equal(got, start)


def test_other_rounds_and_seeds_have_other_masks() -> None:
    masks = []
    for seed, round_id in ((SEED, 1), (SEED, 2), (rng.root_from_seed(3), 1)):
        vector = np.zeros(100, dtype=np.uint32)
        apply_mask(vector, seed, round_id)
        masks.append(vector.tobytes())
    assert len(set(masks)) == len(masks)


def test_one_of_two_subtracts() -> None:
    assert all(pair_sign(i, j) != pair_sign(j, i) for i in range(5) for j in range(i))
