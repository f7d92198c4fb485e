"""Degrees, symmetry, connectivity, and the hypergeometric bound against plain counting."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebscfl import rng
from ebscfl.errors import CapacityError, ConfigError
from ebscfl.secagg.graphs import (
    Graph,
    complete,
    edge_probability,
    erdos_renyi,
    harary,
    harary_degree,
    neighborhood_risk,
)


def draw(seed: int = 0) -> np.random.Generator:
    return rng.numpy_generator(rng.root_from_seed(seed), rng.USAGE_SECAGG)


def check(graph: Graph, num_clients: int) -> None:
    assert len(graph.neighbors) == num_clients
    for i, others in enumerate(graph.neighbors):
        assert i not in others
        assert list(others) == sorted(set(others))
        assert all(i in graph.neighbors[j] for j in others)
    assert graph.is_connected()


@settings(max_examples=30)
@given(st.integers(2, 40), st.integers(0, 5))
def test_every_graph_is_simple_undirected_and_connected(num_clients: int, seed: int) -> None:
    check(complete(num_clients), num_clients)
    degree = harary_degree(num_clients)
    regular = harary(num_clients, degree, draw(seed))
    check(regular, num_clients)
    assert {regular.degree(i) for i in range(num_clients)} == {degree}
    check(erdos_renyi(num_clients, edge_probability(num_clients, 1.5), draw(seed)), num_clients)


def test_sizes() -> None:
    assert harary_degree(100) == 2 * math.ceil(1.5 * math.log2(100)) == 20
    assert edge_probability(100) == math.sqrt(math.log(100) / 100)
    degrees = [len(others) for others in erdos_renyi(400, 0.2, draw()).neighbors]
    # A degree is binomial(399, 0.2); the mean over 400 clients has deviation sqrt(2 * 0.16 / 400 * 399) < 0.6.
    assert abs(np.mean(degrees) - 399 * 0.2) < 4 * 0.6


def test_harary_places_clients_at_random() -> None:
    assert harary(30, 4, draw(1)) != harary(30, 4, draw(2))
    assert harary(30, 4, draw(1)) == harary(30, 4, draw(1))


def test_two_islands_are_not_connected() -> None:
    assert not Graph(((1,), (0,), (3,), (2,))).is_connected()


def test_risk_is_the_union_bound_of_a_count() -> None:
    others, degree, bad, at_least = 6, 3, 2, 2
    hit = sum(len(set(some) & set(range(bad))) >= at_least for some in itertools.combinations(range(others), degree))
    want = (others + 1) * hit / math.comb(others, degree)
    assert neighborhood_risk(others + 1, degree, bad, at_least) == min(1.0, want)
    assert neighborhood_risk(100, 20, 5, 11) == 0.0  # five colluders never reach a threshold of eleven


def test_bad_cases() -> None:
    with pytest.raises(ConfigError, match="two clients"):
        complete(1)
    with pytest.raises(ConfigError, match="even"):
        harary(30, 5, draw())
    with pytest.raises(ConfigError, match="probability"):
        erdos_renyi(30, 0.0, draw())
    with pytest.raises(CapacityError, match="connected"):
        erdos_renyi(40, 1e-4, draw())
    with pytest.raises(ConfigError, match="neighborhood"):
        neighborhood_risk(5, 9, 1, 1)
