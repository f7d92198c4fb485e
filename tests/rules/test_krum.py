"""Krum against a loop over pairs, and what defines it: neighbors, squares, ties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ebscfl import rng
from ebscfl.errors import UsageError
from ebscfl.rules.krum import krum, krum_scores

ROOT = rng.root_from_seed(2)


def loop_scores(updates: npt.NDArray[np.floating], faulty: int) -> list[float]:
    """Sum of squared distances to the n - f - 2 nearest others."""
    num_clients = len(updates)
    scores = []
    for i in range(num_clients):
        with np.errstate(over="ignore"):  # an infinite distance is one that is never among the nearest
            others = sorted(float(((updates[i] - updates[j]) ** 2).sum()) for j in range(num_clients) if j != i)
        scores.append(sum(others[: num_clients - faulty - 2]))
    return scores


@pytest.mark.parametrize(("num_clients", "faulty"), [(3, 0), (7, 2), (20, 8), (20, 3)])
def test_equals_the_loop(num_clients: int, faulty: int) -> None:
    updates = rng.numpy_generator(ROOT, "test-krum/1", num_clients, faulty).standard_normal((num_clients, 60))
    expected = loop_scores(updates, faulty)
    assert np.allclose(krum_scores(torch.from_numpy(updates), faulty), expected, rtol=1e-12)
    result = krum(updates, faulty=faulty)
    tied = [i for i, score in enumerate(expected) if np.isclose(score, min(expected), rtol=1e-12)]
    chosen = int(np.argmax(result.weights))
    assert chosen in tied
    assert np.array_equal(result.aggregate, updates[chosen])
    assert np.array_equal(result.weights, np.eye(num_clients)[chosen])


def test_distances_are_squared() -> None:
    # n = 5, f = 0: three nearest. Client 2 (at 0): 1 + 9 + 9 = 19 squared, 1 + 3 + 3 = 7 plain; client 1 (at 1):
    # 1 + 4 + 16 = 21 squared but 1 + 2 + 4 = 7 plain. With plain distances the two would tie.
    updates = np.array([[-3.0], [1.0], [0.0], [3.0], [40.0]])
    scores = krum_scores(torch.from_numpy(updates), 0)
    assert scores.tolist()[1:3] == [1 + 4 + 16, 1 + 9 + 9]
    assert float(krum(updates, faulty=0).aggregate[0]) == 0.0


def test_one_neighbor_more_or_less_would_choose_otherwise() -> None:
    updates = rng.numpy_generator(ROOT, "test-krum/1", 99).standard_normal((9, 2))
    by_faulty = {f: int(np.argmin(loop_scores(updates, f))) for f in (0, 1, 2)}
    for faulty, chosen in by_faulty.items():
        assert np.array_equal(krum(updates, faulty=faulty).aggregate, updates[chosen])


def test_hostile_cluster_below_the_bound_is_never_chosen() -> None:
    honest = rng.numpy_generator(ROOT, "test-krum/1").standard_normal((12, 30))
    hostile = np.full((8, 30), 50.0)  # identical, so their mutual distances are 0
    result = krum(np.concatenate([hostile, honest]), faulty=8)
    assert int(np.argmax(result.weights)) >= 8


def test_a_giant_does_not_drown_the_honest_distances() -> None:
    # Centered on the mean, the giant would leave rounding errors of (1e12 / 6)^2 * 2^-53, about 3e6.
    honest = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.5], [0.0, 4.75], [0.0, 6.0]])
    for giant in (1e12, 1e200):
        updates = np.concatenate([honest, [[giant, 0.0]]])
        assert np.allclose(krum_scores(torch.from_numpy(updates), 1)[:5], loop_scores(updates, 1)[:5], rtol=1e-12)


def test_ties_do_not_depend_on_the_order() -> None:
    pair = np.array([[0.0, 1.0], [1.0, 0.0], [9.0, 9.0]])  # the first two are each other's nearest
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        assert np.array_equal(krum(pair[order], faulty=0).aggregate, [0.0, 1.0])


def test_the_aggregate_is_a_copy() -> None:
    updates = np.ones((3, 2))
    krum(updates, faulty=0).aggregate[0] = 7.0
    assert (updates == 1).all()


@pytest.mark.parametrize(("num_clients", "faulty"), [(10, 4), (2, 0), (4, 1), (6, 2)])
def test_too_few_clients(num_clients: int, faulty: int) -> None:
    with pytest.raises(UsageError, match=f"faulty = {faulty}, n = {num_clients}; use at least {2 * faulty + 3}"):
        krum(np.zeros((num_clients, 2)), faulty=faulty)
    krum(np.zeros((2 * faulty + 3, 2)), faulty=faulty)


@pytest.mark.parametrize("faulty", [-1, 0.5, True])
def test_faulty_is_a_count(faulty: int) -> None:
    with pytest.raises(UsageError, match="faulty must be"):
        krum(np.zeros((9, 2)), faulty=faulty)
