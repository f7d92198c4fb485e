"""Kernels against Python integers, sampling against the uniform distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebscfl.errors import ConfigError, DecodeError, UsageError
from ebscfl.field import FIELDS, M31, M61, Field, FieldStream, field_by_name
from ebscfl.field.fixed import round_randomly, square_sum
from ebscfl.rng import root_from_seed

ROOT = root_from_seed(7)
both = pytest.mark.parametrize("field", [M31, M61], ids=["m31", "m61"])


def edge_words(field: Field, size: int, label: str) -> np.ndarray:
    """Uniform words with 0, 1, p - 1 and p // 2 among them."""
    words = FieldStream(field, ROOT, "test", label).words(size)
    p = field.modulus
    words[:6] = [0, 1, p - 1, p - 2, p // 2, p // 2 + 1]
    return words


def as_ints(words: np.ndarray) -> list[int]:
    return [int(w) for w in words]


@both
def test_element_operations_match_python_integers(field: Field) -> None:
    a = np.repeat(edge_words(field, 40, "a"), 40)
    b = np.tile(edge_words(field, 40, "b"), 40)
    p = field.modulus
    pairs = list(zip(as_ints(a), as_ints(b), strict=True))
    assert as_ints(field.add(a, b)) == [(x + y) % p for x, y in pairs]
    assert as_ints(field.subtract(a, b)) == [(x - y) % p for x, y in pairs]
    assert as_ints(field.multiply(a, b)) == [x * y % p for x, y in pairs]
    assert as_ints(field.multiply(a, p - 1)) == [x * (p - 1) % p for x, _ in pairs]
    assert field.dot(a, b) == sum(x * y for x, y in pairs) % p


@both
def test_pairwise_operations_keep_shapes_and_refuse_what_does_not_pair(field: Field) -> None:
    p, grid = field.modulus, edge_words(field, 24, "grid").reshape(4, 6)
    column = grid[:, 1]  # not contiguous
    assert as_ints(field.add(column, column)) == [2 * v % p for v in as_ints(column)]
    assert not field.subtract(grid, grid).any()
    assert field.subtract(field.zeros((4, 6)), grid).shape == (4, 6)
    other = np.uint64 if field is M31 else np.uint32
    for bad in (grid[:1], grid.astype(other), column):
        with pytest.raises(UsageError, match="do not pair"):
            field.add(grid, bad)


@both
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9])
def test_fold_is_the_sum_of_alpha_c_plus_t(field: Field, count: int) -> None:
    p = field.modulus
    size = 37
    worst = np.full(size, p - 1, dtype=field.dtype)
    pairs = [np.stack([edge_words(field, size, f"c{k}"), edge_words(field, size, f"t{k}")]) for k in range(count)]
    if count >= 4:
        pairs[:4] = [np.stack([worst, worst])] * 4
    alphas = [p - 1] * min(count, 4) + list(range(2, 2 + max(0, count - 4)))
    y = worst.copy()
    field.fold(y, alphas, pairs)
    expected = [
        (p - 1 + sum(al * int(pair[0][j]) + int(pair[1][j]) for al, pair in zip(alphas, pairs, strict=True))) % p
        for j in range(size)
    ]
    assert as_ints(y) == expected


@both
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_embed_and_lift_are_inverse(field: Field, data: st.DataObject) -> None:
    half = field.modulus // 2
    values = np.array(data.draw(st.lists(st.integers(-half, half), max_size=20)), dtype=np.int64)
    words = field.embed(values)
    assert as_ints(words) == [int(v) % field.modulus for v in values]
    assert field.lift(words).tolist() == values.tolist()


@both
def test_embed_refuses_what_would_change_sign(field: Field) -> None:
    half = field.modulus // 2
    with pytest.raises(UsageError, match="does not fit"):
        field.embed(np.array([half + 1], dtype=np.int64))
    with pytest.raises(UsageError, match="does not fit"):
        field.embed(np.array([-half - 1], dtype=np.int64))


@both
def test_check_refuses_wrong_shape_type_and_range(field: Field) -> None:
    good = field.zeros(3)
    assert field.check(good, name="x", shape=(3,)) is good
    for bad in (field.zeros(4), np.zeros(3, dtype=np.int64), np.full(3, field.modulus, dtype=field.dtype)):
        with pytest.raises(DecodeError):
            field.check(bad, name="x", shape=(3,))


def test_unknown_field_is_a_config_error() -> None:
    assert field_by_name("m61") is FIELDS["m61"]
    with pytest.raises(ConfigError, match="m31, m61"):
        field_by_name("m127")


@both
def test_scan_matches_integer_sums(field: Field) -> None:
    """The fused pass against a loop over Python integers, with a last block that is short."""
    p, window, buckets, size = field.modulus, 8, 16, 29
    c, t = edge_words(field, size, "c"), edge_words(field, size, "t")
    draws = np.random.Generator(np.random.PCG64(3))
    limit = 1 << (14 if field is M31 else 20)
    g = draws.integers(-limit, limit, size, endpoint=True).astype(np.int32)
    g[:2] = [limit, -limit]
    signs = draws.integers(0, 2, size).astype(np.uint8)
    starts = draws.integers(0, buckets, (2, 4)).astype(np.int64)
    tables = field.zeros((4, buckets + window))
    first, second = field.kernels.scan(c, t, g, signs, starts, window, tables)
    assert first == sum(int(a) * int(b) for a, b in zip(c, g, strict=True)) % p
    assert second == sum(int(a) * int(b) for a, b in zip(t, g, strict=True)) % p
    field.kernels.wrap_tables(tables, buckets)
    for row, (vector, table) in enumerate([(c, 0), (c, 1), (t, 0), (t, 1)]):
        expected = [0] * buckets
        for j in range(size):
            sign = -1 if signs[j] else 1
            expected[(starts[table, j // window] + j % window) % buckets] += sign * int(vector[j])
        assert [int(v) % p for v in tables[row, :buckets]] == [v % p for v in expected]


@both
def test_fine_rows_match_integer_sums(field: Field) -> None:
    table = edge_words(field, 300, "table")
    table[7] = field.modulus  # a lazy zero
    hashes = np.random.Generator(np.random.PCG64(4)).integers(0, 128, 300).astype(np.uint8)
    out = np.empty(64, dtype=np.uint64)
    field.kernels.fine_rows(table, hashes, out)
    expected = [0] * 64
    for value, code in zip(table, hashes, strict=True):
        expected[code & 63] += -int(value) if code & 64 else int(value)
    assert [int(v) % field.modulus for v in out] == [v % field.modulus for v in expected]


@both
def test_add_slot_matches_python_integers(field: Field) -> None:
    p = field.modulus
    slot = field.lift(edge_words(field, 50, "s"))
    c, t = (edge_words(field, 50, label) for label in ("c", "t"))
    kappa = p - 3
    expected_c = [(int(a) + int(s)) % p for a, s in zip(c, slot, strict=True)]
    expected_t = [(int(b) + kappa * int(s)) % p for b, s in zip(t, slot, strict=True)]
    field.kernels.add_slot(slot, np.uint64(kappa), c, t)
    assert as_ints(c) == expected_c
    assert as_ints(t) == expected_t


@both
def test_uniform_words_pass_a_chi_square_on_every_byte_and_stay_in_range(field: Field) -> None:
    """256 cells, 255 degrees of freedom: mean 255, sd 22.6; six sd either way."""
    words = FieldStream(field, ROOT, "test", "uniform").words(200_000)
    assert int(words.max()) < field.modulus
    for shift in range(0, field.bits - 8, 8):
        counts = np.bincount(((words >> np.array(shift, dtype=words.dtype)) & 255).astype(np.int64), minlength=256)
        statistic = float(((counts - words.size / 256) ** 2).sum() / (words.size / 256))
        assert abs(statistic - 255) < 6 * np.sqrt(2 * 255)


@both
def test_rejected_words_are_drawn_again_whatever_the_block_size(field: Field) -> None:
    """p never occurs by chance in a test, so rejection is driven by hand."""
    words = np.array([3, field.modulus, 5, field.modulus], dtype=field.dtype)
    assert field.kernels.mask_words(words) == 2
    FieldStream(field, ROOT, "test", "spare").replace_rejected(words)
    assert words[0] == 3
    assert words[2] == 5
    assert int(words.max()) < field.modulus
    whole = FieldStream(field, ROOT, "test", "cut").words(70_000)
    cut = FieldStream(field, ROOT, "test", "cut")
    assert np.array_equal(whole, np.concatenate([cut.words(16_384 * 2), cut.words(70_000 - 16_384 * 2)]))


def test_a_stream_never_prints_its_key() -> None:
    assert repr(FieldStream(M31, ROOT, "test")) == "FieldStream(<redacted>)"


def test_rounding_is_floor_of_value_plus_draw() -> None:
    values = np.array([0.0, 0.25, -0.25, 3.75, -3.75, 1e-9], dtype=np.float64)
    for draw in (0, 1 << 30, 3 << 30, (1 << 32) - 1):
        out = np.empty(values.size, dtype=np.int64)
        round_randomly(values, 4.0, np.full(values.size, draw, dtype=np.uint32), out)
        assert out.tolist() == [math.floor(4.0 * v + draw / 2**32) for v in values]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_square_sum_is_taken_in_double_precision(dtype: type) -> None:
    """Float32 squares of 1e25 overflow. Bound: 1000 additions, one unit of rounding each."""
    values = (np.random.Generator(np.random.PCG64(5)).standard_normal(1000) * 1e25).astype(dtype)
    assert square_sum(values) == pytest.approx(math.fsum(float(v) ** 2 for v in values), rel=1000 * 2.0**-52)
