"""Exact structure of the random matrices, for many sizes and seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebscfl import linalg
from ebscfl.errors import UsageError
from ebscfl.rng import USAGE_BENCH, SecretStream, root_from_seed


def stream(*context):
    return SecretStream(root_from_seed(7), USAGE_BENCH, *context)


@pytest.mark.parametrize(
    ("count", "rows", "cols", "batch"), [(1, 1, 1, ()), (3, 2, 6, ()), (2, 3, 10, (4,)), (5, 1, 5, (2, 3))]
)
def test_orthogonal_blocks_multiply_to_identity_or_zero(count, rows, cols, batch):
    blocks = linalg.orthogonal_blocks(stream(count, cols), count=count, rows=rows, cols=cols, batch=batch)
    assert blocks.shape == (*batch, count, rows, cols)
    products = np.einsum("...iac,...jbc->...iajb", blocks, blocks)
    expected = np.einsum("ij,ab->iajb", np.eye(count), np.eye(rows))
    assert np.abs(products - expected).max() < 1e-13


def test_orthogonal_blocks_have_no_preferred_sign():
    # Without the sign fix, QR leaves the diagonal of R negative: the first row would always point against the draw.
    first = linalg.orthogonal_blocks(stream("sign"), count=1, rows=1, cols=3, batch=(400,))[:, 0, 0]
    assert np.all(np.abs((first > 0).mean(axis=0) - 0.5) < 4 * 0.5 / np.sqrt(400))


def test_too_many_blocks_for_the_space_is_an_error():
    with pytest.raises(UsageError, match="at least 6 columns"):
        linalg.orthogonal_blocks(stream(), count=3, rows=2, cols=5)


@pytest.mark.parametrize(("count", "dim"), [(2, 1), (6, 1), (2, 2), (3, 2), (5, 2), (7, 3), (20, 4), (20, 5000)])
def test_zero_sum_unit_rows_meet_both_conditions(count, dim):
    for seed in range(5):
        rows = linalg.zero_sum_unit_rows(stream(seed, count, dim), count=count, dim=dim)
        assert rows.shape == (count, dim)
        assert np.linalg.norm(rows.sum(axis=0)) <= linalg.ZERO_SUM_TOLERANCE
        assert np.abs(np.linalg.norm(rows, axis=1) - 1.0).max() <= linalg.ZERO_SUM_TOLERANCE


def test_zero_sum_unit_rows_equal_the_loop_on_the_rows_themselves():
    fast = linalg.zero_sum_unit_rows(stream("twin"), count=6, dim=40)
    rows = stream("twin").normal((6, 40))
    for _ in range(60):
        rows = rows - rows.mean(axis=0)
        rows = rows / np.linalg.norm(rows, axis=1)[:, None]
    assert np.abs(fast - rows).max() < 1e-11


@pytest.mark.parametrize(
    ("count", "dim", "message"), [(1, 5, "at least 2"), (3, 1, "even number"), (4, 0, "dimension")]
)
def test_impossible_zero_sums_are_errors(count, dim, message):
    with pytest.raises(UsageError, match=message):
        linalg.zero_sum_unit_rows(stream(), count=count, dim=dim)


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=20))
def test_signed_root_undoes_signed_square(values):
    array = np.array(values)
    square = linalg.signed_square(array)
    assert np.all(square * array >= 0)
    back = linalg.signed_root(square)
    assert np.all(np.abs(back - array) <= 4 * np.finfo(float).eps * np.abs(array) + 1e-150)


def test_signed_square_and_root_by_hand():
    assert linalg.signed_square(np.array([-3.0, 0.0, 2.0])).tolist() == [-9.0, 0.0, 4.0]
    assert linalg.signed_root(np.array([-9.0, 0.0, 4.0])).tolist() == [-3.0, 0.0, 2.0]


@pytest.mark.parametrize("size", [1, 2, 5, 12])
@pytest.mark.parametrize("condition", [1.0, 2.0, 50.0])
def test_condition_numbers_stay_below_their_bound(size, condition):
    matrices, inverses = linalg.conditioned_pair(stream(size), size=size, condition=condition, batch=(30,))
    assert np.linalg.cond(matrices).max() <= condition * (1 + 1e-12)
    assert np.abs(matrices @ inverses - np.eye(size)).max() < 1e-13 * condition
    with pytest.raises(UsageError, match="does not exist"):
        linalg.conditioned_pair(stream(), size=size, condition=0.5)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9])
def test_traceless_matrices_are_invertible(size):
    for seed in range(5):
        matrix = linalg.traceless_invertible(stream(seed), size=size)
        assert abs(np.trace(matrix)) < 1e-14 * size
        values = np.linalg.svd(matrix, compute_uv=False)
        assert values[-1] >= 0.5 - 1e-12
        assert values[0] <= 2.0 + 1e-12


def test_a_traceless_number_is_not_invertible():
    with pytest.raises(UsageError, match="not invertible"):
        linalg.traceless_invertible(stream(), size=1)


@pytest.mark.parametrize(("count", "size"), [(2, 1), (3, 1), (2, 4), (20, 4), (5, 16)])
@pytest.mark.parametrize("with_total", [False, True])
def test_zero_sum_matrices_sum_and_invert(count, size, with_total):
    total = 0.25 * np.eye(size) if with_total else None
    condition = 64.0 * size
    matrices, inverses = linalg.zero_sum_matrices(
        stream(count), count=count, size=size, condition=condition, total=total
    )
    assert np.abs(matrices.sum(axis=0) - (total if with_total else 0.0)).max() < 1e-14
    assert np.linalg.cond(matrices).max() <= condition
    assert np.abs(matrices @ inverses - np.eye(size)).max() < 1e-10


def test_zero_sum_matrices_that_cannot_exist_are_errors():
    with pytest.raises(UsageError, match="at least 2"):
        linalg.zero_sum_matrices(stream(), count=1, size=2, condition=10.0)
    # Two matrices sum to a projection of rank one only if the second makes up for it; condition 1 is out of reach.
    with pytest.raises(UsageError, match="condition number"):
        linalg.zero_sum_matrices(stream(), count=2, size=3, condition=1.0, total=np.diag([9.0, 0.0, 0.0]))


def test_zero_sum_blocks_are_centred():
    blocks = linalg.zero_sum_blocks(stream(), count=5, shape=(2, 3))
    assert blocks.shape == (5, 2, 3)
    assert np.abs(blocks.sum(axis=0)).max() < 1e-14
    assert np.all(linalg.zero_sum_blocks(stream(), count=1, shape=(4,)) == 0.0)


def test_extended_matrices_have_the_digits_of_longdouble():
    eps = float(np.finfo(np.longdouble).eps)
    frame = linalg.orthogonal_blocks(stream(), count=2, rows=4, cols=8, batch=(3,)).reshape(3, 8, 8)
    extended = linalg.extended_orthogonal(frame)
    assert np.abs(extended @ np.swapaxes(extended, -1, -2) - np.eye(8)).max() < 32 * eps
    assert np.abs(extended - frame).max() < 1e-14
    matrix, inverse = linalg.conditioned_pair(stream(), size=5, condition=4.0)
    product = matrix.astype(np.longdouble) @ linalg.extended_inverse(matrix, inverse)
    assert np.abs(product - np.eye(5)).max() < 128 * eps


def test_split_and_join_lose_nothing():
    values = np.array([1.0, -3.0, 0.0], dtype=np.longdouble) / 7
    pair = linalg.split(values)
    assert pair.dtype == np.float64
    assert np.all(linalg.join(pair) == values)
    assert np.all(np.abs(pair[1]) <= np.spacing(np.abs(pair[0])))


@pytest.mark.parametrize("rows", [1, 7, 5000, 2 * linalg.DOT_BLOCK + 3])
def test_blocked_products_equal_plain_ones(rows):
    draw = stream("blocks", rows)
    tall, onto, thin = draw.normal((rows, 12)), draw.normal((rows, 4)), draw.normal((12, 4))
    out = np.empty_like(onto)
    linalg.add_product(tall, thin, onto, out=out)
    assert np.abs(out - (onto + tall @ thin)).max() < 1e-13
    same = onto.copy()
    linalg.add_product(tall, thin, same, out=same)
    assert np.array_equal(same, out)
    other = draw.normal((rows, 12))
    assert linalg.inner_product(tall, other) == pytest.approx(math.fsum((tall * other).ravel()), abs=1e-10)
    assert linalg.column_sums(tall) == pytest.approx(tall.sum(axis=0), abs=1e-10)


def test_blocks_cover_every_row_once_and_stay_below_the_limit():
    for rows, cost in ((1, 1), (100_000, 24), (5, 10 * linalg.PRODUCT_BLOCK)):
        blocks = list(linalg.row_blocks(rows, cost))
        assert [i for block in blocks for i in (block.start, block.stop)][1:-1:2] == [b.start for b in blocks[1:]]
        assert (blocks[0].start, blocks[-1].stop) == (0, rows)
        assert all((b.stop - b.start) * cost <= linalg.PRODUCT_BLOCK or b.stop - b.start == 1 for b in blocks)
