"""Shamir's sharing: any t shares give the secret, t - 1 tell nothing, and the dealer's fast rule is a polynomial."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebscfl import rng
from ebscfl.errors import DecodeError, UsageError
from ebscfl.field import M61, FieldStream
from ebscfl.secagg import shamir

ROOT = rng.root_from_seed(5)
P = M61.modulus


def stream(*context: int) -> FieldStream:
    return FieldStream(M61, ROOT, rng.USAGE_SECAGG, *context)


@given(st.binary(min_size=32, max_size=32))
def test_words_round_trip(secret: bytes) -> None:
    assert shamir.from_words(shamir.to_words(secret)) == secret


@settings(max_examples=25, deadline=None)  # the first call loads compiled kernels
@given(st.data(), st.integers(1, 9))
def test_any_threshold_shares_give_every_secret(data: st.DataObject, count: int) -> None:
    threshold = data.draw(st.integers(1, count))
    points = data.draw(st.lists(st.integers(1, 10**6), min_size=count, max_size=count, unique=True))
    secrets = [rng.derive(ROOT, "test", i) for i in range(2)]
    shares = shamir.share(secrets, threshold, points, stream(count))
    chosen = data.draw(st.permutations(range(count)))[:threshold]
    weights = shamir.coefficients([points[i] for i in chosen])
    assert [shamir.combine(weights, shares[chosen, s]) for s in range(2)] == secrets


def test_shares_are_values_of_a_polynomial_with_the_stream_as_coefficients() -> None:
    secret, points, threshold = rng.derive(ROOT, "test"), [1, 2, 77], 3
    got = shamir.share([secret], threshold, points, stream(1))
    drawn = stream(1).words((threshold - 1) * shamir.WORDS).reshape(threshold - 1, shamir.WORDS)
    for row, x in zip(got[:, 0], points, strict=True):
        for word in range(shamir.WORDS):
            want = int(shamir.to_words(secret)[word])
            want += sum(int(drawn[k, word]) * x ** (k + 1) for k in range(threshold - 1))
            assert int(row[word]) == want % P


def test_fewer_shares_are_compatible_with_every_secret() -> None:
    """t - 1 shares and any guessed constant have an interpolating polynomial: the shares rule nothing out."""
    points, threshold = [1, 2, 3], 3
    shares = shamir.share([bytes(32)], threshold, points, stream(2))[:2, 0, 0]
    for guess in (0, 1, 12345):
        values = dict(zip([0, 1, 2], [guess, *map(int, shares)], strict=True))
        third = 0  # Lagrange at 3 through 0, 1, 2
        for x, value in values.items():
            above = below = 1
            for other in values:
                if other != x:
                    above, below = above * (3 - other), below * (x - other)
            third += value * above * pow(below, -1, P)
        weights = shamir.coefficients(points)
        rebuilt = weights[0] * int(shares[0]) + weights[1] * int(shares[1]) + weights[2] * third
        assert rebuilt % P == guess


def test_wrong_shares_are_noticed_or_give_another_secret() -> None:
    shares = shamir.share([rng.derive(ROOT, "test")], 2, [1, 2, 3], stream(3))[:, 0].copy()
    shares[0, 4] += np.uint64(1 << 55)
    with pytest.raises(DecodeError, match="one 32-byte secret"):
        shamir.combine(shamir.coefficients([1, 2]), shares[:2])


def test_bad_cases() -> None:
    with pytest.raises(UsageError, match="threshold"):
        shamir.share([bytes(32)], 3, [1, 2], stream())
    with pytest.raises(UsageError, match="distinct"):
        shamir.share([bytes(32)], 1, [1, 1], stream())
    with pytest.raises(UsageError, match="distinct"):
        shamir.share([bytes(32)], 1, [0, 1], stream())
    with pytest.raises(UsageError, match="distinct"):
        shamir.coefficients([4, 4])
    with pytest.raises(UsageError, match="32 bytes"):
        shamir.to_words(b"short")
