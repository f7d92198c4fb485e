"""Pairwise and self masks modulo 2^32 (Bonawitz et al., CCS 2017, section 4): AES-CTR words from a 32-byte seed.

The modulus is 2^32, so a mask word is a key-stream word as it comes and addition is the processor's own: a mask costs
one pass of AES and one addition a coordinate. Blocks stay in the first-level cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ebscfl.rng import USAGE_SECAGG, SecretStream

Words = npt.NDArray[np.uint32]

BLOCK_WORDS = 1 << 14
"""64 KiB of key stream at a time: `SecretStream.fill` works in blocks of this size."""


def apply_mask(vector: Words, seed: bytes, round_id: int, *, subtract: bool = False) -> None:
    """vector += PRG(seed), or -=, in place modulo 2^32."""
    stream = SecretStream(seed, USAGE_SECAGG, "mask", round_id)
    block = np.empty(min(BLOCK_WORDS, len(vector)), dtype=np.uint32)
    combine = np.subtract if subtract else np.add
    for start in range(0, len(vector), BLOCK_WORDS):
        part = vector[start : start + BLOCK_WORDS]
        words = block[: len(part)]
        stream.fill(words)
        combine(part, words, out=part)


def pair_sign(one: int, other: int) -> bool:
    """Whether client ``one`` subtracts the mask it shares with ``other``: the higher number does."""
    return one > other
