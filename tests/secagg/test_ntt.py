"""Transforms and field kernels against Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.errors import DecodeError, UsageError
from ebscfl.secagg import ntt
from ebscfl.secagg.ntt import GENERATOR, NTT_PRIME, TWO_ADICITY

P = NTT_PRIME
ROOT = rng.root_from_seed(7)


def residues(*shape: int, seed: int = 0) -> np.ndarray:
    words = ntt.uniform(int(np.prod(shape)), ROOT, rng.USAGE_SECAGG, "test", seed)
    return words.reshape(shape)


def test_the_prime_and_its_generator() -> None:
    assert P == 15 * 2**27 + 1 < 2**31
    assert all(P % q for q in range(2, int(P**0.5) + 1))
    assert all(pow(GENERATOR, (P - 1) // q, P) != 1 for q in (2, 3, 5))
    root = pow(GENERATOR, (P - 1) >> TWO_ADICITY, P)
    assert pow(root, 2 ** (TWO_ADICITY - 1), P) == P - 1


@pytest.mark.parametrize("size", [1, 2, 8, 32])
def test_forward_is_evaluation_at_the_points(size: int) -> None:
    rows = residues(size, 300)
    rows[0, 0], rows[-1, 1] = P - 1, 0
    plan = ntt.transform(size)
    got = rows.copy()
    plan.forward(got)
    points = plan.points()
    assert len(set(points)) == size
    for column in (0, 1, 255, 256, 299):
        coefficients = [int(v) for v in rows[:, column]]
        want = [sum(c * pow(x, k, P) for k, c in enumerate(coefficients)) % P for x in points]
        assert [int(v) for v in got[:, column]] == want


@pytest.mark.parametrize("size", [1, 4, 64])
def test_inverse_undoes_forward_up_to_the_size(size: int) -> None:
    rows = residues(size, 5)
    got = rows.copy()
    plan = ntt.transform(size)
    plan.forward(got)
    plan.inverse(got)
    assert got.tolist() == [[int(v) * size % P for v in row] for row in rows]


def test_row_kernels() -> None:
    a, b = residues(3, 50, seed=1), residues(3, 50, seed=2)
    a[0, 0] = b[0, 0] = P - 1
    a[0, 1], b[0, 1] = 0, 0
    scaled = a.copy()
    ntt.scale_rows(scaled, [P - 1, 2, -1])
    assert scaled.tolist() == [[int(v) * f % P for v in row] for row, f in zip(a, (P - 1, 2, -1), strict=True)]
    total = a[0].copy()
    ntt.add_into(total, b[0])
    assert total.tolist() == [(int(x) + int(y)) % P for x, y in zip(a[0], b[0], strict=True)]
    ntt.subtract_from(total, b[0])
    assert np.array_equal(total, a[0])


def test_uniform_draws_are_below_p_and_spread() -> None:
    words = residues(40_000)
    assert words.max() < P
    # The mean of uniform residues: deviation p / sqrt(12 * 40 000).
    assert abs(words.mean() - (P - 1) / 2) < 5 * P / (12 * 40_000) ** 0.5
    assert words[:100].tolist() == residues(40_000)[:100].tolist()


def test_bad_cases() -> None:
    with pytest.raises(UsageError, match="power of two"):
        ntt.transform(12)
    good = np.arange(3, dtype=np.uint32)
    assert ntt.check_residues(good, name="x", size=3) is good
    with pytest.raises(DecodeError, match="words"):
        ntt.check_residues(good, name="x", size=4)
    with pytest.raises(DecodeError, match="outside"):
        ntt.check_residues(np.array([P], dtype=np.uint32), name="x", size=1)
