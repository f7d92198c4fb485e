"""Segments and layouts lose nothing and add only zeros."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebscfl.errors import UsageError
from ebscfl.vectors import Layout, join_segments, segment_length, split_segments

LAYOUT = Layout(("w", "b"), ((2, 3), (2,)))


@given(st.integers(1, 40), st.data(), st.sampled_from(["numpy", "torch"]))
def test_segments_hold_the_vector_then_zeros(dim: int, draw: st.DataObject, kind: str) -> None:
    t = draw.draw(st.integers(1, dim))
    values = np.arange(1.0, 2 * dim + 1).reshape(2, dim)
    v = values if kind == "numpy" else torch.from_numpy(values)
    length = segment_length(dim, t)
    segments = split_segments(v, t)
    assert type(segments) is type(v)
    assert tuple(segments.shape) == (2, t, length)
    flat = np.asarray(segments).reshape(2, t * length)
    assert np.array_equal(flat[:, :dim], values)
    assert not flat[:, dim:].any()
    assert np.array_equal(np.asarray(join_segments(segments, dim)), values)


def test_inner_products_survive_the_cut() -> None:
    one, two = np.arange(7.0), np.arange(7.0) ** 2
    product = (split_segments(one, 3) * split_segments(two, 3)).sum()
    assert product == one @ two == sum(i**3 for i in range(7))


@pytest.mark.parametrize("t", [0, -1, 8])
def test_split_refuses_impossible_cuts(t: int) -> None:
    with pytest.raises(UsageError, match="cannot cut 7 entries"):
        split_segments(np.zeros(7), t)


def test_join_refuses_segments_of_another_vector() -> None:
    segments = split_segments(np.zeros(7), 3)
    with pytest.raises(UsageError, match="do not come from"):
        join_segments(segments, 10)
    with pytest.raises(UsageError, match="2 axes"):
        join_segments(np.zeros(3), 3)
    with pytest.raises(UsageError, match="scalar"):
        split_segments(np.float64(1.0).reshape(()), 1)


def test_layout_views_share_memory_and_flatten_inverts_them() -> None:
    flat = torch.arange(2.0 * 8).view(2, 8)
    views = LAYOUT.views(flat)
    assert LAYOUT.slices() == (slice(0, 6), slice(6, 8))
    assert views["w"].shape == (2, 2, 3)
    assert views["b"].tolist() == [[6.0, 7.0], [14.0, 15.0]]
    assert torch.equal(LAYOUT.flatten(views), flat)
    views["b"].zero_()
    assert flat[:, 6:].abs().sum() == 0


def test_layout_refuses_what_does_not_fit() -> None:
    with pytest.raises(UsageError, match="holds 8 entries"):
        LAYOUT.views(torch.zeros(9))
    with pytest.raises(UsageError, match="expected parameters"):
        LAYOUT.flatten({"w": torch.zeros(2, 3)})
    with pytest.raises(UsageError, match="must end in shape"):
        LAYOUT.flatten({"w": torch.zeros(3, 2), "b": torch.zeros(2)})
    with pytest.raises(UsageError, match="distinct name"):
        Layout(("w", "w"), ((1,), (1,)))
