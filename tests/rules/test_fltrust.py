"""FLTrust against equations (3) to (5) of its paper, one client at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.errors import UsageError
from ebscfl.rules.fltrust import fltrust

ROOT = rng.root_from_seed(2)


def loop_fltrust(updates: np.ndarray, server: np.ndarray) -> tuple[np.ndarray, list[float]]:
    server_norm = math.sqrt(sum(v * v for v in server))
    trust, total, step = [], 0.0, np.zeros(len(server))
    for update in updates:
        norm = math.sqrt(sum(v * v for v in update))
        cosine = sum(a * b for a, b in zip(update, server, strict=True)) / (norm * server_norm)
        trust.append(max(cosine, 0.0))
        total += trust[-1]
        step = step + trust[-1] * (server_norm / norm) * update
    return step / total, [t / total for t in trust]


def test_equals_the_loop() -> None:
    generator = rng.numpy_generator(ROOT, "test-fltrust/1")
    updates, server = generator.standard_normal((9, 40)), generator.standard_normal(40)
    result = fltrust(updates, server_update=server)
    aggregate, weights = loop_fltrust(updates, server)
    assert np.allclose(result.aggregate, aggregate, rtol=1e-12, atol=1e-14)
    assert np.allclose(result.weights, weights, rtol=1e-12, atol=0)
    assert 0 < np.count_nonzero(result.weights) < 9  # some are turned away, some not


def test_by_hand() -> None:
    # g0 = (2, 0); cosines 1, 3/5, -1; lengths all become 2.
    updates = np.array([[10.0, 0.0], [3.0, 4.0], [-1.0, 0.0]])
    result = fltrust(updates, server_update=np.array([2.0, 0.0]))
    total = 1 + 3 / 5
    assert np.allclose(result.weights, [1 / total, 0.6 / total, 0.0])
    assert np.allclose(result.aggregate, [(1 * 2 + 0.6 * 2 * 3 / 5) / total, 0.6 * 2 * 4 / 5 / total])


@pytest.mark.parametrize("factor", [1e-9, 1e-3, 1e9])
def test_the_length_of_an_update_does_not_matter(factor: float) -> None:
    updates = np.array([[1.0, 2.0], [3.0, 1.0]])
    server = np.array([1.0, 1.0])
    longer = updates * [[factor], [1.0]]
    one, two = fltrust(updates, server_update=server), fltrust(longer, server_update=server)
    assert np.allclose(one.aggregate, two.aggregate, rtol=1e-14)
    assert np.allclose(one.weights, two.weights, rtol=1e-14)


def test_the_step_is_never_longer_than_the_server_update() -> None:
    updates = rng.numpy_generator(ROOT, "test-fltrust/1").standard_normal((30, 5)) * 1e6
    server = np.array([0.0, 0.0, 3.0, 4.0, 0.0])
    assert np.linalg.norm(fltrust(updates, server_update=server).aggregate) <= 5.0 * (1 + 1e-12)


def test_a_zero_update_weighs_nothing() -> None:
    result = fltrust(np.array([[0.0, 0.0], [1.0, 0.0]]), server_update=np.array([1.0, 0.0]))
    assert np.array_equal(result.weights, [0, 1])
    assert np.array_equal(result.aggregate, [1, 0])


@pytest.mark.parametrize("server", [[0.0, 0.0], [-1.0, -1.0]])
def test_without_trust_there_is_no_step(server: list[float]) -> None:
    result = fltrust(np.array([[1.0, 1.0], [2.0, 1.0]]), server_update=np.array(server))
    assert not result.aggregate.any()
    assert not result.weights.any()


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (np.ones(3), "must have length 2"),
        (np.ones((1, 2)), "must have 1 axes"),
        (np.ones(2, dtype=np.float32), "agree in dtype"),
        (np.array([1.0, np.nan]), "server_update holds NaN"),
        (np.array([], dtype=np.float64), "must have length 2"),
    ],
)
def test_a_bad_server_update_is_the_callers_fault(server: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fltrust(np.ones((4, 2)), server_update=server)
