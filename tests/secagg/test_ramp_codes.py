"""One suite for both ramp codes: linear, decodes from any K + T shares, and T shares are uniform."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebscfl import rng
from ebscfl.errors import CapacityError, ConfigError, RoundAborted
from ebscfl.secagg import NTT_PRIME, CodeShape, LagrangeCode, RampCode, ntt
from ebscfl.secagg.lagrange import lagrange_matrix
from ebscfl.secagg.ramp import Code

P = NTT_PRIME
ROOT = rng.root_from_seed(3)
CODES = {"ramp": RampCode, "lagrange": LagrangeCode}


def vector(size: int, seed: int = 0) -> np.ndarray:
    return ntt.uniform(size, ROOT, rng.USAGE_SECAGG, "vector", seed)


def make(name: str, *shape: int) -> Code:
    code: Code = CODES[name](CodeShape(*shape))
    return code


@pytest.mark.parametrize("name", CODES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_enough_shares_decode(name: str, data: st.DataObject) -> None:
    num = data.draw(st.integers(2, 20))
    privacy = data.draw(st.integers(1, num - 1))
    pieces = data.draw(st.integers(1, num - privacy))
    width = data.draw(st.integers(1, 50))
    code = make(name, num, pieces, privacy)
    shares = code.share(vector(width), ROOT, 1)
    assert shares.shape == (num, -(-width // pieces))
    chosen = data.draw(st.permutations(range(num)))[: code.shape.needed]
    assert np.array_equal(code.decode({i: shares[i] for i in chosen}, width), vector(width))


@pytest.mark.parametrize("name", CODES)
def test_sums_of_shares_are_shares_of_the_sum(name: str) -> None:
    code = make(name, 7, 3, 2)
    total = np.zeros((7, 7), dtype=np.uint32)
    want = np.zeros(20, dtype=np.int64)
    for client in range(4):
        shares = code.share(vector(20, client), rng.derive(ROOT, "client", client), 1)
        for row, share in zip(total, shares, strict=True):
            ntt.add_into(row, share)
        want = (want + vector(20, client)) % P
    assert code.decode({i: total[i] for i in (6, 0, 2, 4, 5)}, 20).tolist() == want.tolist()


def _solve(matrix: list[list[int]], right: list[int]) -> list[int]:
    """Gauss over F_p, for the slow twin."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        pivot = next(k for k in range(i, len(rows)) if rows[k][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        inverse = pow(rows[i][i], -1, P)
        rows[i] = [v * inverse % P for v in rows[i]]
        for k in range(len(rows)):
            if k != i and rows[k][i]:
                rows[k] = [(a - rows[k][i] * b) % P for a, b in zip(rows[k], rows[i], strict=True)]
    return [row[-1] for row in rows]


def test_ramp_decoding_is_solving_the_linear_system() -> None:
    code = RampCode(CodeShape(11, 4, 3))
    shares = code.share(vector(8), ROOT, 1)
    points = ntt.transform(16).points()
    for chosen in ((0, 1, 2, 3, 4, 5, 6), (4, 5, 6, 7, 8, 9, 10), (0, 2, 4, 6, 8, 9, 10)):
        matrix = [[pow(points[i], k, P) for k in range(7)] for i in chosen]
        got = code.decode({i: shares[i] for i in chosen}, 8).reshape(4, 2)
        for column in range(2):
            assert got[:, column].tolist() == _solve(matrix, [int(shares[i, column]) for i in chosen])[3:]


def test_lagrange_shares_lie_on_the_polynomial_through_the_pieces() -> None:
    matrix = lagrange_matrix([4, 5, 6], [1, 5])
    for coefficients in ((1, 0, 0), (5, 7, 11)):
        values = [sum(c * x**k for k, c in enumerate(coefficients)) for x in (4, 5, 6)]
        want = [sum(c * x**k for k, c in enumerate(coefficients)) % P for x in (1, 5)]
        assert [sum(int(m) * v for m, v in zip(row, values, strict=True)) % P for row in matrix] == want


@pytest.mark.parametrize("name", CODES)
def test_any_t_shares_fit_every_secret(name: str) -> None:
    """The map from the T uniform words to T shares is invertible for every set of T clients: shares are uniform."""
    num, pieces, privacy = 6, 2, 2
    if name == "ramp":
        points = ntt.transform(8).points()
        noise = [[pow(points[i], k, P) for k in range(privacy)] for i in range(num)]
    else:
        matrix = lagrange_matrix(list(range(num + 1, num + 5)), range(1, num + 1))
        noise = [[int(v) for v in row[pieces:]] for row in matrix]
    for one, two in itertools.combinations(noise, 2):
        assert (one[0] * two[1] - one[1] * two[0]) % P != 0


@pytest.mark.parametrize("name", CODES)
def test_too_few_shares_abort_and_name_the_missing(name: str) -> None:
    code = make(name, 5, 2, 2)
    shares = code.share(vector(4), ROOT, 1)
    with pytest.raises(RoundAborted, match=r"3 shares .* 4 are needed; missing: clients \[1, 3\]") as caught:
        code.decode({i: shares[i] for i in (0, 2, 4)}, 4)
    assert caught.value.culprits == (1, 3)


def test_shapes_that_cannot_be() -> None:
    with pytest.raises(CapacityError, match="only 4"):
        CodeShape(4, 3, 2)
    with pytest.raises(ConfigError, match="privacy"):
        CodeShape(4, 3, 0)
