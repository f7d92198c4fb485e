from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebscfl.errors import CapacityError, ConfigError
from ebscfl.sealed import SealedParameters, plan
from ebscfl.sealed.parameters import MAX_SIGMA

HALF31 = (2**31 - 1) // 2


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 10**7), dim=st.integers(1, 10**7), m=st.integers(1, 8), noise=st.sampled_from([0.0, 1.0, 7.5]))
def test_a_plan_never_overflows(n: int, dim: int, m: int, noise: float) -> None:
    params = plan(n, dim, m, noise_multiplier=noise)
    half = params.field.modulus // 2
    one = 2 ** (params.update_bits + params.weight_bits)
    assert n * one <= half
    assert (n + 10 * noise * math.sqrt(1.25)) * one <= half
    # A score of one, and the slack of rounding, stay below p/2.
    assert 1.5 * 2 ** (params.update_bits + params.server_bits) <= half
    assert params.update_bits >= 14
    assert params.weight_bits >= 6


def test_the_small_field_ends_where_the_headroom_rule_says() -> None:
    last = HALF31 >> 20
    assert plan(last, 1000, 2).field_name == "m31"
    assert plan(last + 1, 1000, 2).field_name == "m61"
    assert last == 1023


def test_a_dimension_too_coarse_for_the_small_field_moves_to_the_large_one() -> None:
    """At n = 1000 the updates get 14 bits: sqrt(l / 6) / 2^14 passes 2 % above l = 6.4e5."""
    assert math.sqrt(10**6 / 6) / 2**14 > 0.02
    assert plan(1000, 10**6, 2).field_name == "m61"


def test_what_does_not_fit_is_refused_with_what_to_do() -> None:
    with pytest.raises(CapacityError, match="m61"):
        plan(1024, 1000, 2, "m31")
    with pytest.raises(CapacityError, match="overflow"):
        SealedParameters("m31", 100, 2, 10, 20, 10, 8, 1)
    with pytest.raises(CapacityError, match="scores"):
        SealedParameters("m31", 2, 2, 10, 20, 6, 13, 1)
    with pytest.raises(CapacityError, match="too coarse"):
        SealedParameters("m31", 2, 2, 10, 13, 6, 13, 1)
    with pytest.raises(CapacityError, match="server_bits"):
        SealedParameters("m31", 2, 2, 10, 14, 6, 15, 1)
    with pytest.raises(CapacityError, match="quorum"):
        plan(3, 10, 1, quorum=4)
    with pytest.raises(CapacityError, match="fewer"):
        plan(2**42, 10, 1)


@pytest.mark.parametrize("bad", [{"num_clients": 0}, {"dim": 0}, {"num_clusters": 0}])
def test_counts_start_at_one(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        plan(**{"num_clients": 2, "dim": 2, "num_clusters": 2, **bad})


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_guards_and_noise_are_finite_and_not_negative(value: float) -> None:
    with pytest.raises(ConfigError):
        plan(2, 2, 2, min_slot_weight=value)
    with pytest.raises(ConfigError):
        SealedParameters("m31", 2, 2, 10, 14, 6, 13, 1, 0.0, value)


def test_upload_and_error_are_the_formulas() -> None:
    params = plan(100, 200_000, 2, "m31")
    assert params.upload_bytes == 8 * 2 * 200_001 + 4 * 2
    update = math.sqrt(200_000 / 6) / 2**params.update_bits
    weight = 1 / (0.5 * math.sqrt(12) * 2**params.weight_bits)
    assert params.expected_error == pytest.approx(math.hypot(update, weight))
    assert "field m31" in params.describe()
    assert params.sensitivity >= math.sqrt(1.25) * 2 ** (params.update_bits + params.weight_bits)


def test_noise_leaves_room_for_the_exact_sampler() -> None:
    params = plan(4, 10, 2, "m61", noise_multiplier=2.0)
    assert params.noise_multiplier * params.sensitivity <= MAX_SIGMA
    with pytest.raises(CapacityError, match="exact sampler"):
        replace(params, update_bits=params.update_bits + 1, server_bits=8)
