"""Norm check by count-sketch (Charikar, Chen, Farach-Colton 2002) in two stages, so that the long one vectorizes.

Stage one gives every coordinate a random sign and reads the input in windows of 2048 neighbors. Each window is added,
for each of two tables, to 2048 neighboring buckets of a circle of 4096 that start at a random offset: one streaming
add, no scatter. Stage two hashes each of the 4096 buckets on its own to 64 signed buckets, twice. Two tables, two rows
each: four rows of 64, all of them linear in the input, so they can be computed on c, t, r and b alike.

Why the spike bound holds. Let a row pass only if its 64 buckets lie within s. If some coordinate is far from zero
(|x_j| > 2s, as a residue), fix everything but its window's offset: the other windows leave a pattern of buckets
beyond s, and the offset must put this window exactly on that pattern. A window covers less than the whole circle, so
a shifted copy of it covers the same large coordinates at one offset only, and 1 of 4096 offsets can pass. (Were the
window as long as the circle, two windows full of words near p/2, for which +v and -v are nearly the same word, would
cancel at any offset.) What survives stage one large is hashed alone in stage two, and passes a row at 1 of 64. A
table so lets a spike through with probability about 1/4096 + 1/64^2, both tables with (1/2048)^2 = 2.4e-7, whatever
the spikes are; spikes +v, -v also need matching signs. (A block of values that change slowly from neighbor to
neighbor would fit at a few neighboring offsets; the random signs make no block slow, except where +v and -v agree,
near 0 and p/2, and there the block's end, where large meets zero, still fits at one offset only.)

The price of stage one is a little more variance: relative variance of a table 2/4096 against 2/64 of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl.field import Words
from ebscfl.rng import USAGE_SEALED_SKETCH, SecretStream, derive
from ebscfl.sealed.parameters import SealedParameters

WINDOW = 2048
COARSE = 4096
TABLES = 2
ROWS = 4
BUCKETS = 64

MEAN_LIMIT = 1.8
"""Bound on the mean of the four squared row norms; an honest input has 1.25, and (1.8 - 1.25) is 5 sd away."""
ROW_LIMIT = 2.8
"""Bound on each of them; stops an input that hides in one row."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """The random linear map of one batch of uploads; public once those uploads are in."""

    signs: npt.NDArray[np.uint8]  # (width,) 1 = negated, in both tables
    starts: npt.NDArray[np.int64]  # (TABLES, windows) first bucket of a window
    hashes: npt.NDArray[np.uint8]  # (ROWS, COARSE) bucket and sign of a coarse bucket; rows 0, 1 read table 0


def batch_seed(round_key: bytes, batch: int) -> bytes:
    """The sketch seed of batch number ``batch`` of a round.

    The key center hands the round key to the server when the round opens and takes every batch number once, and none
    beyond the number of clients. So the server has few seeds to choose from (among many it would find one under which
    a guessed update is refused), and a client knows none before its upload is in.
    """
    return derive(round_key, USAGE_SEALED_SKETCH, "batch", batch)


def make_sketch(params: SealedParameters, seed: bytes) -> Sketch:
    """The sketch of a seed: server and key center make the same one."""
    signs = np.empty(params.width, dtype=np.uint8)
    SecretStream(seed, USAGE_SEALED_SKETCH, "signs").fill(signs)
    signs &= np.uint8(1)
    windows = -(-params.width // WINDOW)
    # COARSE divides 2^32, so the low bits of a uniform word are uniform.
    offsets = SecretStream(seed, USAGE_SEALED_SKETCH, "starts").uint32(TABLES * windows)
    starts = (offsets & np.uint32(COARSE - 1)).astype(np.int64).reshape(TABLES, windows)
    hashes = np.empty((ROWS, COARSE), dtype=np.uint8)
    SecretStream(seed, USAGE_SEALED_SKETCH, "hashes").fill(hashes)
    hashes &= np.uint8(127)
    return Sketch(signs, starts, hashes)


def sketch_pair(
    params: SealedParameters, pair: Words, server_row: npt.NDArray[np.int32], sketch: Sketch
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """One pass over both vectors of ``pair``: their products with the server's row (2,), and rows (2, 256)."""
    kernels = params.field.kernels
    tables = params.field.zeros((2 * TABLES, COARSE + WINDOW))
    scores = kernels.scan(pair[0], pair[1], server_row, sketch.signs, sketch.starts, WINDOW, tables)
    kernels.wrap_tables(tables, COARSE)
    rows = np.empty((2, ROWS, BUCKETS), dtype=np.uint64)
    for vector in range(2):
        for row in range(ROWS):
            table = tables[TABLES * vector + row // 2, :COARSE]
            kernels.fine_rows(table, sketch.hashes[row], rows[vector, row])
    return np.array(scores, dtype=np.uint64), rows.reshape(2, ROWS * BUCKETS)


def row_norms(params: SealedParameters, values: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Squared norms of the four rows, in units where an honest update has norm one."""
    scaled = values.reshape(ROWS, BUCKETS).astype(np.float64) * 2.0**-params.update_bits
    return np.asarray((scaled**2).sum(axis=1))


def norm_accepted(norms: npt.NDArray[np.float64]) -> bool:
    """Whether squared row norms pass."""
    return bool(norms.mean() <= MEAN_LIMIT and norms.max() <= ROW_LIMIT)
