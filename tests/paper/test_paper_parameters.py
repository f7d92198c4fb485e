"""Sizes, slots and the configurations that cannot work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebscfl.errors import CapacityError, ConfigError
from ebscfl.paper import PaperParameters


def test_sizes_by_hand():
    params = PaperParameters(num_clients=7, num_clusters=3, dim=10, segment_len=4, group_size=2)
    assert (params.num_segments, params.width, params.num_groups) == (3, 12, 4)
    assert (params.weight_width, params.update_width) == (2 * 12 * 2, 3 * 12 * 2)
    assert params.upload_shape == (3, 72)
    assert list(params.members(3)) == [6]
    assert params.occupied().tolist() == [[1, 1], [1, 1], [1, 1], [1, 0]]


def test_the_naive_scheme_is_one_segment_and_one_group():
    params = PaperParameters(num_clients=3, num_clusters=2, dim=5, scheme="naive", segment_len=2)
    assert (params.segment_len, params.num_segments, params.group_size, params.num_groups) == (5, 1, 3, 1)


@given(clients=st.integers(2, 40), group=st.integers(1, 6), dim=st.integers(1, 50), length=st.integers(2, 9))
def test_every_client_has_one_slot(clients, group, dim, length):
    params = PaperParameters(
        num_clients=clients, num_clusters=2, dim=dim, segment_len=length, group_size=min(group, clients)
    )
    places = [(params.group_of(i), params.slot_of(i)) for i in range(clients)]
    assert len(set(places)) == clients
    assert params.occupied().sum() == clients
    assert [i for g in range(params.num_groups) for i in params.members(g)] == list(range(clients))
    by_slot = params.by_slot(np.arange(clients) + 1.0)
    assert all(by_slot[place] == i + 1.0 for i, place in enumerate(places))
    assert params.num_segments * params.segment_len >= dim > (params.num_segments - 1) * params.segment_len


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_clients": 1}, "at least 2 clients"),
        ({"num_clusters": 0}, "num_clusters"),
        ({"dim": 0}, "dim"),
        ({"segment_len": 0}, "segment_len"),
        ({"group_size": 5}, "group_size"),
        ({"scheme": "fast"}, "scheme"),
        ({"zeta": "none"}, "zeta"),
        ({"num_clients": 3, "num_clusters": 1, "segment_len": 1}, "even number"),
        ({"num_clusters": 1, "segment_len": 1, "zeta": "traceless"}, "not invertible"),
    ],
)
def test_impossible_configurations_are_refused(change, message):
    base = {"num_clients": 4, "num_clusters": 2, "dim": 6}
    with pytest.raises(ConfigError, match=message):
        PaperParameters(**(base | change))


def test_a_naive_key_that_cannot_fit_is_refused():
    with pytest.raises(CapacityError, match="compressed"):
        PaperParameters(num_clients=20, num_clusters=2, dim=100, scheme="naive")
