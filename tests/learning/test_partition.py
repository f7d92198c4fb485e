"""Partitions: a function of the seed root, disjoint, complete, root set exact and clean."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_fixtures import make_dataset

from ebscfl.errors import ConfigError
from ebscfl.learning.partition import KINDS, ROOT_PARTS, PartitionSettings, make_partition, stratified_sample
from ebscfl.rng import USAGE_ROOT_SET, numpy_generator, root_from_seed

DATASET = make_dataset(size=600, classes=5, writers=60)
ROOT = root_from_seed(7)


def settings_for(kind: str, **changes) -> PartitionSettings:
    return PartitionSettings(kind=kind, **({"clients": 8, "min_size": 3, "root_size": 20} | changes))


def rows_of(parts) -> np.ndarray:
    return np.concatenate([part.indices for part in parts])


def same(a, b) -> bool:
    pairs = [*zip(a.clients, b.clients, strict=True), *zip(a.root, b.root, strict=True)]
    return all(np.array_equal(p.indices, q.indices) and p.domain == q.domain for p, q in pairs) and all(
        np.array_equal(p.label_map, q.label_map) for p, q in zip(a.domains, b.domains, strict=True)
    )


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(ROOT_PARTS),
    st.integers(0, 10_000),
    st.integers(5, 12),
    st.integers(12, 60),
    st.integers(1, 8),
)
def test_laws_of_every_kind(kind, root_parts, seed, clients, root_size, min_size):
    wanted = PartitionSettings(
        kind=kind, clients=clients, root_size=root_size, min_size=min_size, root_parts=root_parts, alpha=1.0
    )
    partition = make_partition(DATASET, wanted, root_from_seed(seed))
    held, root = rows_of(partition.clients), rows_of(partition.root)
    everything = np.concatenate([held, root])
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < 600
    assert len(root) == root_size
    assert len(partition.clients) == clients
    assert len(partition.root) == {"clients": clients, "domains": len(partition.domains), "balanced": 1}[root_parts]
    assert min(len(part.indices) for part in partition.clients) >= min_size
    assert all(len(part.indices) >= 1 for part in partition.root)
    assert all(0 <= part.domain < len(partition.domains) for part in (*partition.clients, *partition.root))
    if kind == "dirichlet-client":  # equal sizes leave up to n - 1 samples to nobody
        assert 600 - clients < len(everything) <= 600
    else:
        assert len(everything) == 600
    assert same(partition, make_partition(DATASET, wanted, root_from_seed(seed)))


@pytest.mark.parametrize("kind", KINDS)
def test_another_root_gives_another_partition(kind):
    a, b = (make_partition(DATASET, settings_for(kind), root_from_seed(seed)) for seed in (1, 2))
    assert not all(np.array_equal(p.indices, q.indices) for p, q in zip(a.clients, b.clients, strict=True))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(0, 80), st.integers(0, 500))
def test_stratified_sample_keeps_the_mix(labels, size, seed):
    labels = np.array(labels, dtype=np.int64)
    size = min(size, len(labels))
    drawn = stratified_sample(labels, size, numpy_generator(root_from_seed(seed), USAGE_ROOT_SET))
    assert len(np.unique(drawn)) == len(drawn) == size
    for label in np.unique(labels):
        exact = size * np.mean(labels == label)
        assert abs(np.sum(labels[drawn] == label) - exact) < 1 + 1e-9  # rounded down or up


def test_stratified_sample_is_fair():
    """Every position is drawn with probability size / n, here 3/7; 2000 draws, five standard deviations."""
    labels, draws = np.array([0, 0, 0, 0, 1, 1, 2]), 2000
    counts = np.zeros(7)
    for seed in range(draws):
        counts[stratified_sample(labels, 3, numpy_generator(root_from_seed(seed), USAGE_ROOT_SET))] += 1
    assert np.all(np.abs(counts / draws - 3 / 7) < 5 * np.sqrt(3 / 7 * 4 / 7 / draws))


@pytest.mark.parametrize("kind", ["group", "dirichlet", "dirichlet-client", "rotation", "permutation"])
def test_client_root_parts_follow_their_client(kind):
    """Part i has client i's domain, and each class count is the exact share of the client's world, rounded."""
    wanted = settings_for(kind, root_size=100, alpha=0.5, skew=0.8)
    partition = make_partition(DATASET, wanted, ROOT)
    sizes = [len(part.indices) for part in partition.root]
    assert max(sizes) - min(sizes) <= 1
    for client, part in zip(partition.clients, partition.root, strict=True):
        assert part.domain == client.domain
        world = DATASET.y_train[np.concatenate([client.indices, part.indices])]
        exact = len(part.indices) * np.bincount(world, minlength=5) / len(world)
        assert np.all(np.abs(np.bincount(DATASET.y_train[part.indices], minlength=5) - exact) < 1 + 1e-9)


def test_writer_root_parts_come_from_the_clients_writers():
    partition = make_partition(DATASET, settings_for("writer"), ROOT)
    for client, part in zip(partition.clients, partition.root, strict=True):
        assert set(DATASET.writers_train[part.indices]) <= set(DATASET.writers_train[client.indices])


@pytest.mark.parametrize(("groups", "turns"), [(1, [0]), (2, [0, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 3])])
def test_rotation_domains(groups, turns):
    partition = make_partition(DATASET, settings_for("rotation", groups=groups), ROOT)
    assert [domain.quarter_turns for domain in partition.domains] == turns
    assert all(np.array_equal(domain.label_map, range(5)) for domain in partition.domains)


@pytest.mark.parametrize("kind", ["rotation", "permutation"])
def test_clients_are_spread_evenly_over_domains(kind):
    partition = make_partition(DATASET, settings_for(kind, clients=10, groups=4), ROOT)
    counts = np.bincount([part.domain for part in partition.clients])
    assert sorted(counts.tolist()) == [2, 2, 3, 3]
    sizes = [len(part.indices) for part in partition.clients]
    assert max(sizes) - min(sizes) <= 1


def test_label_maps_are_different_permutations_and_the_first_is_identity():
    partition = make_partition(DATASET, settings_for("permutation", groups=8), ROOT)
    maps = [tuple(domain.label_map.tolist()) for domain in partition.domains]
    assert maps[0] == (0, 1, 2, 3, 4)
    assert len(set(maps)) == 8
    assert all(sorted(label_map) == [0, 1, 2, 3, 4] for label_map in maps)
    assert {domain.quarter_turns for domain in partition.domains} == {0}


def test_two_classes_have_two_label_maps():
    tiny = make_dataset(size=200, classes=2)
    assert len(make_partition(tiny, settings_for("permutation", groups=2), ROOT).domains) == 2
    with pytest.raises(ConfigError, match="2 classes have fewer than 3 label maps"):
        make_partition(tiny, settings_for("permutation", groups=3), ROOT)


@pytest.mark.parametrize("kind", ["rotation", "permutation"])
def test_domain_root_parts(kind):
    partition = make_partition(DATASET, settings_for(kind, root_parts="domains", root_size=22), ROOT)
    assert [part.domain for part in partition.root] == [0, 1, 2, 3]
    assert [len(part.indices) for part in partition.root] == [6, 6, 5, 5]


@pytest.mark.parametrize(("bias", "ones"), [(0.0, 0), (0.1, 3), (0.2, 5), (0.5, 13), (1.0, 25)])
def test_balanced_root_set(bias, ones):
    """Class 1 holds its share (0.5 rounds up), the other four differ by at most one sample."""
    partition = make_partition(DATASET, settings_for("iid", root_parts="balanced", root_size=25, root_bias=bias), ROOT)
    counts = np.bincount(DATASET.y_train[partition.root[0].indices], minlength=5)
    assert counts[1] == ones
    others = np.delete(counts, 1)
    assert others.sum() == 25 - ones
    assert others.max() - others.min() <= 1


def test_fewer_samples():
    partition = make_partition(DATASET, settings_for("iid", samples=101), ROOT)
    rows = np.concatenate([rows_of(partition.clients), rows_of(partition.root)])
    assert len(np.unique(rows)) == 101
    counts = np.bincount(DATASET.y_train[rows])
    assert counts.max() - counts.min() <= 1
    with pytest.raises(ConfigError, match="samples is 601, but synthetic has 600"):
        make_partition(DATASET, settings_for("iid", samples=601), ROOT)


def test_min_size_redraws_until_it_holds():
    """Some first draws leave a client too little; the draws that are kept never do."""
    wanted = settings_for("dirichlet", alpha=0.5, min_size=25)
    smallest = {1: [], 25: []}
    for min_size, seen in smallest.items():
        for seed in range(10):
            drawn = make_partition(DATASET, dataclasses.replace(wanted, min_size=min_size), root_from_seed(seed))
            seen.append(min(len(part.indices) for part in drawn.clients))
    assert min(smallest[1]) < 25 <= min(smallest[25])


def test_impossible_min_size():
    with pytest.raises(ConfigError, match="8 clients of at least 73 samples and a root set of 20 need 604"):
        make_partition(DATASET, settings_for("iid", min_size=73), ROOT)
    with pytest.raises(ConfigError, match=r"no dirichlet split among 200 draws .* needs 7[45]; lower min_size"):
        make_partition(DATASET, settings_for("dirichlet", alpha=0.1, min_size=72), ROOT)


def test_the_tightest_even_split_fits():
    """8 x 72 + 24 = 600: every client keeps exactly its minimum."""
    partition = make_partition(DATASET, settings_for("iid", min_size=72, root_size=24), ROOT)
    assert [len(part.indices) for part in partition.clients] == [72] * 8


def test_writers_must_be_known():
    anonymous = dataclasses.replace(DATASET, writers_train=None)
    with pytest.raises(ConfigError, match="does not say who wrote"):
        make_partition(anonymous, settings_for("writer"), ROOT)


def test_biased_root_set_needs_enough_of_class_1():
    with pytest.raises(ConfigError, match="needs 150 samples of class 1; there are 120"):
        make_partition(DATASET, settings_for("iid", root_parts="balanced", root_size=150, root_bias=1.0), ROOT)


def test_domain_root_set_needs_a_sample_a_domain():
    with pytest.raises(ConfigError, match="at least 4, one sample a domain, not 3"):
        make_partition(DATASET, settings_for("rotation", root_parts="domains", root_size=3), ROOT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "IID"}, "kind must be one of iid, group"),
        ({"root_parts": "all"}, "root_parts must be one of clients"),
        ({"clients": 0}, "clients must be at least 1, not 0"),
        ({"groups": 0}, "groups must be at least 1"),
        ({"min_size": 0}, "min_size must be at least 1"),
        ({"root_size": 0}, "root_size must be at least 1"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"alpha": 0.0}, "alpha must be a positive number"),
        ({"alpha": float("nan")}, "alpha must be a positive number"),
        ({"alpha": float("inf")}, "alpha must be a positive number"),
        ({"skew": 1.1}, r"skew must lie in 0..1"),
        ({"skew": float("nan")}, r"skew must lie in 0..1"),
        ({"root_bias": -0.1}, r"root_bias must lie in 0..1"),
        ({"kind": "rotation", "groups": 5}, "4 quarter turns"),
        ({"kind": "rotation", "clients": 3}, "need at least as many clients, not 3"),
        ({"kind": "permutation", "clients": 3}, "need at least as many clients, not 3"),
        ({"root_size": 19}, "root_size must be at least 20"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ConfigError, match=message):
        PartitionSettings(**changes)
