"""Discrete Gaussian noise inside P (Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", 2020).

The sampler follows their algorithms 1-3 and is exact: every accept-reject decision compares a uniform number, of as
many bits as it takes, with exp(-gamma) for a rational gamma. A decision is taken in floating point when the numbers
are further apart than any rounding can bring them, and with fractions otherwise; so nothing rests on libm's last bit.

The discrete Gaussian satisfies the same concentrated and Renyi bounds as the continuous one of the same sigma and
sensitivity (theorem 4 there, any dimension). Calibration and composition are therefore left to the Renyi accountant
of `dp_accounting` with its Gaussian event. Neighbors differ in one honest client's upload, zeroed or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError, DependencyError, UsageError
from ebscfl.field import Signed
from ebscfl.rng import USAGE_SEALED_DP, SecretStream
from ebscfl.sealed.masks import VERSION
from ebscfl.sealed.parameters import MAX_SIGMA, SealedParameters

MARGIN = 2.0**-38
"""Float decisions closer than this go to fractions. gamma is off by less than 2^-44 wherever exp(-gamma) > 2^-40."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NoiseSettings:
    """A privacy budget for a whole run."""

    epsilon: float
    delta: float
    rounds: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"epsilon must be positive, not {self.epsilon}")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie between 0 and 1, not {self.delta}")
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, not {self.rounds}")


def spent_epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """The epsilon that ``rounds`` releases with sigma = noise_multiplier * sensitivity have cost at ``delta``."""
    dp = _accounting()
    accountant = dp.rdp.RdpAccountant()
    accountant.compose(dp.GaussianDpEvent(noise_multiplier), rounds)
    return float(accountant.get_epsilon(delta))


def calibrate(settings: NoiseSettings) -> float:
    """The smallest noise multiplier (to 1e-4) that stays within the budget over all rounds."""
    dp = _accounting()
    value = dp.calibrate_dp_mechanism(
        dp.rdp.RdpAccountant,
        lambda sigma: dp.SelfComposedDpEvent(dp.GaussianDpEvent(sigma), settings.rounds),
        settings.epsilon,
        settings.delta,
        dp.LowerEndpointAndGuess(0.0, 1.0),
        tol=1e-4,
    )
    return float(value)


def noise_sigma(params: SealedParameters) -> int:
    """sigma of one coordinate in integer units, rounded up."""
    return math.ceil(params.noise_multiplier * params.sensitivity)


def round_noise(params: SealedParameters, kdc_root: bytes, run_id: str, round_id: int) -> Signed | None:
    """The noise vector of a round, (width,), or None when the run has none."""
    if params.noise_multiplier == 0:
        return None
    stream = SecretStream(kdc_root, USAGE_SEALED_DP, VERSION, run_id, round_id)
    return discrete_gaussian(noise_sigma(params), params.width, stream)


def discrete_gaussian(sigma: int, size: int, stream: SecretStream) -> Signed:
    """``size`` exact samples with P(y) proportional to exp(-y^2 / (2 sigma^2)) on the integers."""
    if not 1 <= sigma <= MAX_SIGMA:
        raise UsageError(f"sigma must be an integer in 1..2^52, not {sigma}")
    scale = sigma + 1  # of the discrete Laplace candidates
    parts: list[Signed] = []
    missing = size
    while missing > 0:
        candidates = _discrete_laplace(scale, 2 * missing + 16, stream)
        kept = candidates[_gaussian_accepts(candidates, sigma, scale, stream)][:missing]
        parts.append(kept)
        missing -= kept.size
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _gaussian_accepts(candidates: Signed, sigma: int, scale: int, stream: SecretStream) -> npt.NDArray[np.bool_]:
    """Accept y with probability exp(-(|y| - sigma^2 / scale)^2 / (2 sigma^2))."""
    sizes = np.abs(candidates)
    gamma = (sizes.astype(np.float64) / sigma - sigma / scale) ** 2 / 2

    def exact(i: int) -> Fraction:
        return (int(sizes[i]) - Fraction(sigma * sigma, scale)) ** 2 / (2 * sigma * sigma)

    return bernoulli_exp(gamma, exact, stream)


def _discrete_laplace(scale: int, size: int, stream: SecretStream) -> Signed:
    """About ``size`` times 0.63 samples with P(y) proportional to exp(-|y| / scale)."""
    low = _uniform_below(scale, size, stream)
    low = low[bernoulli_exp(low / scale, lambda i: Fraction(int(low[i]), scale), stream)]
    repeats = np.zeros(low.size, dtype=np.int64)
    running = np.arange(low.size)
    while running.size:  # a geometric count: how many times exp(-1) succeeds
        running = running[bernoulli_exp(np.ones(running.size), lambda _: Fraction(1), stream)]
        repeats[running] += 1
    values = low + scale * repeats
    negative = (stream.uint32(values.size) & np.uint32(1)).astype(bool)
    keep = ~(negative & (values == 0))  # or zero would come twice as often
    return np.asarray(np.where(negative, -values, values)[keep], dtype=np.int64)


def _uniform_below(bound: int, size: int, stream: SecretStream) -> Signed:
    """Uniform integers in [0, bound) by rejection."""
    mask = np.uint64((1 << max(1, (bound - 1).bit_length())) - 1)
    out = (stream.uint64(size) & mask).astype(np.int64)
    bad = np.flatnonzero(out >= bound)
    while bad.size:
        out[bad] = (stream.uint64(bad.size) & mask).astype(np.int64)
        bad = bad[out[bad] >= bound]
    return out


def bernoulli_exp(
    gamma: Floats, exact: Callable[[int], Fraction], stream: SecretStream, *, margin: float = MARGIN
) -> npt.NDArray[np.bool_]:
    """True with probability exp(-gamma_i), exactly; ``exact(i)`` is gamma_i as a fraction."""
    draws = stream.uint64(gamma.size)
    gap = np.exp(-gamma) - draws * 2.0**-64
    accepted = gap > 0
    for i in np.flatnonzero(np.abs(gap) <= margin):
        accepted[i] = _decide_exactly(int(draws[i]), exact(int(i)), stream)
    return np.asarray(accepted)


def _decide_exactly(draw: int, gamma: Fraction, stream: SecretStream) -> bool:
    """Whether the uniform number whose first 64 bits are ``draw`` lies below exp(-gamma); draws bits as needed."""
    bits = 64
    while True:
        low, high = _exp_bounds(gamma, bits + 16)
        if Fraction(draw + 1, 1 << bits) <= low:
            return True
        if Fraction(draw, 1 << bits) >= high:
            return False
        draw = (draw << 64) | int(stream.uint64(1)[0])
        bits += 64


def _exp_bounds(gamma: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Rationals around exp(-gamma), at most 2^-bits apart: 1 / exp(gamma) from the series with its tail bound."""
    limit = Fraction(1, 1 << bits)
    total, term, k = Fraction(1), Fraction(1), 0
    # From k + 2 > 2 gamma on the tail after `term` is at most `term` (a geometric series of ratio one half).
    while True:
        k += 1
        term *= gamma / k
        total += term
        if 2 * gamma < k + 1 and term < limit:
            return 1 / (total + term), 1 / total


def _accounting() -> Any:
    """`dp_accounting`, imported when noise is asked for."""
    try:
        import dp_accounting
    except ImportError as error:
        raise DependencyError("differential privacy needs the package dp-accounting: install it and retry") from error
    return dp_accounting
