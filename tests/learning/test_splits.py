"""Ways to split: laws that hold for every draw, and the definition of each against counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebscfl.errors import ConfigError
from ebscfl.learning import splits
from ebscfl.rng import USAGE_PARTITION, numpy_generator, root_from_seed


def generator(seed: int) -> np.random.Generator:
    return numpy_generator(root_from_seed(seed), USAGE_PARTITION, "test")


SEEDS = st.integers(0, 1000)
LABELS = st.lists(st.integers(0, 3), min_size=20, max_size=200).map(lambda items: np.array(items, dtype=np.int64))
CLIENTS = st.integers(4, 12)


def positions(split):
    return np.sort(np.concatenate(split)).tolist()


@given(SEEDS, LABELS, CLIENTS, st.sampled_from(["iid", "group", "dirichlet", "writer"]), st.floats(0.01, 5))
def test_complete_and_disjoint(seed, labels, clients, kind, alpha):
    rng, n = generator(seed), len(labels)
    split = {
        "iid": lambda: splits.split_iid(n, clients, rng),
        "group": lambda: splits.split_by_group(labels, clients, min(alpha, 1.0), 4, rng),
        "dirichlet": lambda: splits.split_by_dirichlet(labels, clients, alpha, rng),
        "writer": lambda: splits.split_by_writer(np.arange(n) % 12, clients, rng),
    }[kind]()
    assert len(split) == clients
    assert positions(split) == list(range(n))


@given(SEEDS, LABELS, CLIENTS, st.floats(0.001, 100))
def test_client_dirichlet_has_equal_sizes_without_replacement(seed, labels, clients, alpha):
    split = splits.split_by_client_dirichlet(labels, clients, alpha, generator(seed))
    assert [len(part) for part in split] == [len(labels) // clients] * clients
    assert len(set(positions(split))) == clients * (len(labels) // clients)


@given(SEEDS, st.integers(1, 100), st.integers(1, 20))
def test_iid_sizes_differ_by_at_most_one(seed, n, clients):
    sizes = [len(part) for part in splits.split_iid(n, clients, generator(seed))]
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1


def test_full_skew_gives_each_client_one_class():
    labels = np.arange(1000) % 4
    split = splits.split_by_group(labels, 8, 1.0, 4, generator(1))
    assert [len(np.unique(labels[part])) for part in split] == [1] * 8
    assert sorted(int(labels[part][0]) for part in split) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("skew", [0.25, 0.5, 0.8])
def test_group_skew_is_the_probability_of_the_own_group(skew):
    """With one client a group, the share of its most frequent class estimates q; 1/L makes all shares 1/L."""
    n, classes = 40_000, 4
    labels = np.arange(n) % classes
    split = splits.split_by_group(labels, classes, skew, classes, generator(2))
    held = np.array([np.bincount(labels[part], minlength=classes) for part in split]) / (n / classes)
    expected = (1 - skew) / (classes - 1)
    tolerance = 5 * np.sqrt(0.25 / (n / classes))  # five standard deviations of a binomial share
    for row in held:
        own = int(np.argmin(np.abs(row - skew)))
        assert abs(row[own] - skew) < tolerance
        assert np.all(np.abs(np.delete(row, own) - expected) < tolerance)


def test_group_needs_a_client_per_class():
    with pytest.raises(ConfigError, match="at least one client per class: 4, not 3"):
        splits.split_by_group(np.zeros(9, dtype=np.int64), 3, 0.5, 4, generator(0))


@pytest.mark.parametrize("split", [splits.split_by_dirichlet, splits.split_by_client_dirichlet])
def test_small_alpha_is_more_heterogeneous(split):
    """Mean largest class share of a client: near 1 for tiny alpha, near 1/L for huge alpha."""
    labels = np.arange(4000) % 10

    def mean_top_share(alpha):
        parts = [part for part in split(labels, 10, alpha, generator(3)) if len(part)]
        return np.mean([np.bincount(labels[part], minlength=10).max() / len(part) for part in parts])

    # 400 samples a client: an i.i.d. share has standard deviation 0.015, the largest of ten stays below 0.1 + 5 of it.
    assert mean_top_share(1e4) < 0.1 + 5 * 0.015
    assert mean_top_share(0.01) > 0.5
    assert mean_top_share(0.01) > mean_top_share(1.0) > mean_top_share(1e4)


def test_dirichlet_follows_its_shares():
    """A slow twin: the same draws, one sample at a time."""
    labels, clients, alpha = np.arange(103) % 3, 5, 0.7
    fast = splits.split_by_dirichlet(labels, clients, alpha, generator(4))
    rng, slow = generator(4), [[] for _ in range(clients)]
    for label in range(3):
        members = rng.permutation(np.flatnonzero(labels == label))
        edges = np.floor(np.cumsum(rng.dirichlet([alpha] * clients))[:-1] * len(members))
        for rank, member in enumerate(members):
            slow[int(sum(edge <= rank for edge in edges))].append(int(member))
    assert [part.tolist() for part in fast] == slow


@given(SEEDS, st.integers(2, 8), st.integers(8, 30))
def test_writers_stay_whole(seed, clients, num_writers):
    writers = (np.arange(300) ** 2) % num_writers
    if len(np.unique(writers)) < clients:
        with pytest.raises(ConfigError, match="as many writers"):
            splits.split_by_writer(writers, clients, generator(seed))
        return
    split = splits.split_by_writer(writers, clients, generator(seed))
    owners = [set(writers[part].tolist()) for part in split]
    assert all(owners)
    assert sum(len(owner) for owner in owners) == len(set().union(*owners))
    # The greedy rule: two clients never differ by more than the largest writer.
    sizes = [len(part) for part in split]
    assert max(sizes) - min(sizes) <= np.bincount(writers).max()
