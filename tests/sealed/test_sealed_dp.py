"""The sampler against the exact distribution, calibration against the closed form of the Renyi bound."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from sealed_round import ROOT, play

from ebscfl.errors import ConfigError, UsageError
from ebscfl.rng import SecretStream
from ebscfl.sealed import (
    NoiseSettings,
    aggregates,
    calibrate,
    decide_slots,
    discrete_gaussian,
    open_counts,
    plan,
    release,
    round_noise,
    spent_epsilon,
    unseal,
)
from ebscfl.sealed.dp import bernoulli_exp, noise_sigma


def stream(label: str) -> SecretStream:
    return SecretStream(ROOT, "test", label)


@pytest.mark.parametrize("sigma", [1, 3, 20])
def test_samples_follow_the_discrete_gaussian(sigma: int) -> None:
    """Chi-square with cells of at least 20 expected samples: mean k - 1, sd sqrt(2 (k - 1)); six sd."""
    size = 100_000
    samples = discrete_gaussian(sigma, size, stream(f"sigma {sigma}"))
    support = np.arange(-12 * sigma, 12 * sigma + 1)
    mass = np.exp(-(support.astype(np.float64) ** 2) / (2 * sigma**2))
    expected = size * mass / mass.sum()
    observed = np.array([(samples == value).sum() for value in support])
    assert observed.sum() == size
    wide = expected >= 20
    chi = ((observed - expected) ** 2 / expected)[wide].sum()
    rest = expected[~wide].sum()
    chi += (observed[~wide].sum() - rest) ** 2 / rest
    degrees = int(wide.sum())
    assert abs(chi - degrees) < 6 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("sigma", [2**24 + 3, 2**50])
def test_wide_samples_have_the_right_moments(sigma: int) -> None:
    """Of N normal samples the variance has relative sd sqrt(2 / N), the mean sd sigma / sqrt(N)."""
    size = 40_000
    samples = discrete_gaussian(sigma, size, stream("wide")).astype(np.float64) / sigma
    assert abs(samples.mean()) < 6 / math.sqrt(size)
    assert abs(samples.var() - 1) < 6 * math.sqrt(2 / size)
    assert abs((samples**4).mean() - 3) < 6 * math.sqrt(96 / size)


def test_float_decisions_are_the_exact_ones() -> None:
    """Sent through fractions one and all (margin 1), the same draws decide the same way."""
    numerators = np.arange(1, 301)
    gamma = numerators / 97.0

    def exact(i: int) -> Fraction:
        return Fraction(int(numerators[i]), 97)

    fast = bernoulli_exp(gamma, exact, stream("decide"))
    slow = bernoulli_exp(gamma, exact, stream("decide"), margin=1.0)
    assert np.array_equal(fast, slow)
    assert 0 < fast.sum() < fast.size


def test_sigma_outside_the_exact_range_is_refused() -> None:
    for sigma in (0, 2**53):
        with pytest.raises(UsageError, match="sigma"):
            discrete_gaussian(sigma, 1, stream("x"))
    assert discrete_gaussian(3, 0, stream("x")).size == 0


@pytest.mark.parametrize("bad", [(0.0, 1e-5, 1), (math.nan, 1e-5, 1), (1.0, 0.0, 1), (1.0, 1.0, 1), (1.0, 1e-5, 0)])
def test_budgets_are_checked(bad: tuple[float, float, int]) -> None:
    with pytest.raises(ConfigError):
        NoiseSettings(*bad)


@pytest.mark.parametrize("rounds", [1, 50])
def test_calibration_meets_the_budget_and_the_closed_form(rounds: int) -> None:
    """T Gaussian releases are T / (2 z^2)-concentrated: epsilon = rho + 2 sqrt(rho log(1/delta)) bounds the cost."""
    settings = NoiseSettings(2.0, 1e-5, rounds)
    multiplier = calibrate(settings)
    assert spent_epsilon(multiplier, rounds, 1e-5) <= 2.0 + 1e-3
    assert spent_epsilon(0.99 * multiplier, rounds, 1e-5) > 2.0
    rho = rounds / (2 * multiplier**2)
    bound = rho + 2 * math.sqrt(rho * math.log(1e5))
    assert 0.75 * bound < 2.0 <= bound


def test_more_rounds_cost_more() -> None:
    costs = [spent_epsilon(8.0, rounds, 1e-5) for rounds in (1, 4, 16)]
    assert costs == sorted(costs)
    assert costs[0] < costs[2]


def test_noise_is_in_the_release_and_has_the_calibrated_size() -> None:
    played = play("m31", n=6, dim=400, m=2, noise_multiplier=1.5)
    params = played.params
    noise = round_noise(params, ROOT, "test", 1)
    assert noise is not None
    sigma = math.ceil(1.5 * math.sqrt((2**params.update_bits + 20) ** 2 + params.one_half**2) * 2**params.weight_bits)
    assert noise_sigma(params) == sigma
    assert abs((noise / sigma).var() - 1) < 6 * math.sqrt(2 / noise.size)
    decision = decide_slots(params, open_counts(params, played.y), played.pads_sum, played.lam, played.weight, noise)
    opened = unseal(params, played.y, release(params, played.pads_sum, decision, noise))
    shown = np.concatenate([opened.sums, opened.counts[:, None]], axis=1)
    added = (shown - played.integer_reference()).astype(np.int64)
    expected = np.where(decision.released[:, None], noise.reshape(2, -1), added)
    assert np.array_equal(added, expected)
    assert np.isfinite(aggregates(params, opened)).all()
    assert not np.array_equal(noise, round_noise(params, ROOT, "test", 2))


def test_noise_and_settings_go_together() -> None:
    played = play("m31", n=2)
    assert round_noise(played.params, ROOT, "test", 1) is None
    decision = decide_slots(
        played.params, open_counts(played.params, played.y), played.pads_sum, played.lam, played.weight
    )
    with pytest.raises(ConfigError, match="if and only if"):
        release(played.params, played.pads_sum, decision, np.zeros(played.params.width, dtype=np.int64))
    assert plan(2, 10, 1).noise_multiplier == 0
