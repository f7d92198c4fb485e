"""Rates of the norm check over >= 10 000 fresh sketches, with Wilson intervals at 99.9 %.

Expected rates come from the chi-square law: four rows of 64 buckets of a spread input of squared norm N have a sum of
squares of N/64 * chi2(256). Inputs are in integer units of 2^update_bits; spikes are residues of any size.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2
from sealed_round import ROOT, generator

from ebscfl.field import Field
from ebscfl.rng import derive
from ebscfl.sealed import SealedParameters, make_sketch, plan
from ebscfl.sealed.sketch import (
    BUCKETS,
    COARSE,
    MEAN_LIMIT,
    ROW_LIMIT,
    ROWS,
    WINDOW,
    batch_seed,
    norm_accepted,
    row_norms,
    sketch_pair,
)

TRIALS = 10_000
Z = 3.29  # 99.9 % two-sided


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Confidence interval of a rate."""
    share = hits / trials
    center = (share + Z**2 / (2 * trials)) / (1 + Z**2 / trials)
    half = Z / (1 + Z**2 / trials) * math.sqrt(share * (1 - share) / trials + Z**2 / (4 * trials**2))
    return center - half, center + half


def params_of(dim: int, field: str = "m31") -> SealedParameters:
    return plan(100, dim, 2, field)


def spread_input(params: SealedParameters, norm_squared: float, counts: tuple[float, float], seed: int) -> np.ndarray:
    """A Gaussian update of this squared norm in slot 0 and these counts, in halves, in both slots."""
    x = np.zeros((2, params.slot_size), dtype=np.int64)
    update = generator(seed).standard_normal(params.dim)
    x[0, :-1] = np.rint(update / np.linalg.norm(update) * math.sqrt(norm_squared) * 2**params.update_bits)
    x[:, -1] = [round(c * params.one_half) for c in counts]
    return x.reshape(-1)


def trial_norms(params: SealedParameters, inputs: np.ndarray, trials: int, label: str) -> np.ndarray:
    """(trials, 2, 4): squared row norms of both inputs (words) under fresh sketches."""
    row = np.zeros(params.width, dtype=np.int32)
    root = derive(ROOT, "test", label)
    out = np.empty((trials, 2, ROWS))
    for trial in range(trials):
        _, values = sketch_pair(params, inputs, row, make_sketch(params, batch_seed(root, trial)))
        for which in range(2):
            out[trial, which] = row_norms(params, params.field.lift(values[which].astype(params.field.dtype)))
    return out


def passes(norms: np.ndarray) -> int:
    return int(((norms.mean(axis=1) <= MEAN_LIMIT) & (norms.max(axis=1) <= ROW_LIMIT)).sum())


def expected_pass_rate(norm_squared: float) -> float:
    """By the mean alone: the bound on single rows hardly ever decides."""
    return float(chi2.cdf(MEAN_LIMIT * ROWS * BUCKETS / norm_squared, ROWS * BUCKETS))


def words(field: Field, *inputs: np.ndarray) -> np.ndarray:
    return np.stack([field.embed(x) for x in inputs])


def test_honest_updates_are_not_rejected() -> None:
    """20 000 trials: spread over all coordinates, and all in one coordinate. Expected: below 1e-5 a trial."""
    params = params_of(4000)
    spike = np.zeros(params.width, dtype=np.int64)
    spike[17], spike[params.dim] = 2**params.update_bits, params.one_half
    norms = trial_norms(params, words(params.field, spread_input(params, 1, (1, 0), 1), spike), TRIALS, "honest")
    assert 1 - expected_pass_rate(1.25) < 1e-5
    for which in range(2):
        low, high = wilson(TRIALS - passes(norms[:, which]), TRIALS)
        assert passes(norms[:, which]) == TRIALS, (low, high)
        assert high < 2e-3
        # The estimate is unbiased: the mean of the trials has sd 1.25 sqrt(2 / 256 / trials) at most.
        assert abs(norms[:, which].mean() - 1.25) < 6 * 1.25 * math.sqrt(2 / 240 / TRIALS)


def test_too_large_updates_are_rejected_at_the_stated_rates() -> None:
    """Squared norm 2 (2.25 with the count) passes about 0.9 %, squared norm 3 (3.25) never."""
    params = params_of(4000)
    inputs = words(params.field, spread_input(params, 2, (1, 0), 2), spread_input(params, 3, (1, 0), 3))
    norms = trial_norms(params, inputs, TRIALS, "large")
    low, high = wilson(passes(norms[:, 0]), TRIALS)
    assert low <= expected_pass_rate(2.25) <= high
    assert low > 0.004
    assert high < 0.015
    assert expected_pass_rate(3.25) < 1e-8
    assert passes(norms[:, 1]) == 0


def test_counts_split_with_opposite_signs_are_rejected_at_the_stated_rates() -> None:
    """(2, -1) halves add up to one: 0.5 % pass. (3, -2) never. Both sums of counts are right."""
    params = params_of(4000)
    inputs = words(params.field, spread_input(params, 1, (2, -1), 4), spread_input(params, 1, (3, -2), 5))
    norms = trial_norms(params, inputs, TRIALS, "counts")
    low, high = wilson(passes(norms[:, 0]), TRIALS)
    assert low < 0.008
    assert high < 0.012
    assert passes(norms[:, 1]) == 0


@pytest.mark.parametrize("kind", ["opposite", "half of p", "half of p, whole windows"])
def test_huge_cancelling_spikes_never_pass(kind: str) -> None:
    """Spikes +v, -v; two words near p/2, which cancel with any signs; two whole windows of those.

    One row alone lets a pair through at no more than 1/64 + 1/4096 (twice the coarse term for slack); the row passes
    are counted too, so that the bound of the module docstring is tested where it can be seen.
    """
    params = params_of(4 * WINDOW)
    p = params.field.modulus
    pair = params.field.zeros((2, params.width))
    if kind == "opposite":
        pair[:, 5], pair[:, 3 * WINDOW + 5] = p // 3, p - p // 3
    elif kind == "half of p":
        pair[:, 5], pair[:, 3 * WINDOW + 5] = p // 2, p // 2
    else:
        pair[:, :WINDOW] = p // 2
        pair[:, 2 * WINDOW : 3 * WINDOW] = p // 2
    norms = trial_norms(params, pair, TRIALS, kind)[:, 0]
    assert passes(norms) == 0
    low, high = wilson(int((norms <= ROW_LIMIT).sum()), TRIALS * ROWS)
    pairs_meet = {"opposite": 1 / 128 + 0.5 / COARSE, "half of p": 1 / 64 + 1 / COARSE}
    if kind in pairs_meet:
        assert low <= pairs_meet[kind] <= high
    else:
        assert low < 2 / COARSE
        assert high < 1 / 64


def test_the_window_must_be_shorter_than_the_circle() -> None:
    """What the docstring of the module rests on."""
    assert 2 * WINDOW <= COARSE
    assert COARSE & (COARSE - 1) == 0


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_the_sketch_is_linear_and_matches_a_direct_sum(field: str) -> None:
    """The slow twin: every coordinate to its bucket through both stages, on Python integers."""
    params = params_of(1500, field)
    p = params.field.modulus
    sketch = make_sketch(params, batch_seed(ROOT, 3))
    x = params.field.embed(spread_input(params, 1, (1, 0), 6))
    y = params.field.embed(spread_input(params, 2, (2, -1), 7))
    row = np.zeros(params.width, dtype=np.int32)
    _, values = sketch_pair(params, np.stack([x, y]), row, sketch)
    expected = [[0] * BUCKETS for _ in range(ROWS)]
    for j, value in enumerate(x):
        for r in range(ROWS):
            table = r // 2
            coarse = (int(sketch.starts[table, j // WINDOW]) + j % WINDOW) % COARSE
            code = int(sketch.hashes[r, coarse])
            flips = int(sketch.signs[j]) ^ (code >> 6)
            expected[r][code & 63] += -int(value) if flips else int(value)
    assert [int(v) for v in values[0]] == [v % p for r in expected for v in r]
    _, both = sketch_pair(params, np.stack([params.field.add(x, y), y]), row, sketch)
    assert [int(v) for v in both[0]] == [(int(a) + int(b)) % p for a, b in zip(values[0], values[1], strict=True)]


def test_limits_are_inclusive_and_both_bind() -> None:
    assert norm_accepted(np.array([MEAN_LIMIT] * 4))
    assert not norm_accepted(np.array([MEAN_LIMIT] * 3 + [MEAN_LIMIT + 0.01]))
    assert norm_accepted(np.array([ROW_LIMIT, 1, 1, 1]))
    assert not norm_accepted(np.array([ROW_LIMIT + 0.01, 1, 1, 1]))
