"""The convergence study: exact contraction where it is arithmetic, the bound's rate, and attackers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ebscfl.reproduce import convergence
from ebscfl.reproduce.convergence import Study, World, bound_rate, distances, floor_of, measured_rate, step
from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed

EXACT = Study(dim=5, clusters=1, clients=4, samples=10, noise=0.0, curvature=0.25, rounds=30)


def noiseless(study: Study, start: np.ndarray) -> World:
    """Every holder has exactly the second moments H and no noise, so gradients are H (theta - theta*)."""
    spectrum = np.diag(np.linspace(study.curvature, 1.0, study.dim))
    minima = np.stack([10.0 * j + np.arange(study.dim, dtype=float) for j in range(study.clusters)])
    members = np.arange(study.clients) % study.clusters
    holders = [*members.tolist(), *range(study.clusters)]
    targets = np.stack([spectrum @ minima[j] for j in holders])
    energies = np.array([minima[j] @ spectrum @ minima[j] for j in holders])
    return World(np.stack([spectrum] * len(holders)), targets, energies, minima, members, minima + start)


@pytest.mark.parametrize("rule", ["ifca", "theorem", "rfca"])
def test_one_cluster_without_noise_contracts_by_its_eigenvalues(rule: str) -> None:
    start = np.array([1.0, -2.0, 0.5, 3.0, 1.5])
    found = distances(EXACT, noiseless(EXACT, start), rule)
    eigenvalues = np.linspace(0.25, 1.0, 5)
    # Step 1 / L = 1: every eigendirection shrinks by 1 - its eigenvalue.
    expected = [np.linalg.norm((1.0 - eigenvalues) ** t * start) for t in range(EXACT.rounds + 1)]
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("rule", "share"), [("ifca", 0.5), ("theorem", 0.5), ("rfca", 1.0)])
def test_two_clusters_share_the_step_as_the_rule_says(rule: str, share: float) -> None:
    study = replace(EXACT, clusters=2)
    start = np.array([1.0, -2.0, 0.5, 3.0, 1.5])
    found = distances(study, noiseless(study, start), rule)
    # Rules that divide by all clients move a model by p = 1/2; Algorithm 2 per cluster has its own divisor.
    eigenvalues = np.linspace(0.25, 1.0, 5)
    expected = [np.linalg.norm((1.0 - share * eigenvalues) ** t * start) for t in range(study.rounds + 1)]
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_a_fixed_root_update_never_shortens_its_step() -> None:
    """Printed as in Algorithm 2, every step is as long as the first root update: it cannot settle."""
    start = np.array([3.0, 0.0, 0.0, 0.0, 0.0])
    world = noiseless(EXACT, start)
    found = distances(EXACT, world, "fixed")
    length = 0.25 * 3.0  # |H start|
    assert np.allclose(found[:4], [3.0, 3.0 - length, 3.0 - 2 * length, 3.0 - 3 * length])
    assert found[5] == pytest.approx(found[4])  # past the minimum the gradients turn round and weigh nothing
    assert found[-1] == pytest.approx(abs(3.0 - 4 * length), abs=1e-9)


def test_gradients_and_losses_are_those_of_samples() -> None:
    study = Study(dim=6, clusters=2, clients=4, samples=9, root_samples=7)
    rng = numpy_generator(root_from_seed(0), USAGE_BENCH)
    world = convergence.make_world(study, 3)
    x = rng.standard_normal((9, 6))
    y = rng.standard_normal(9)
    one = replace_holder(world, x, y)
    models = rng.standard_normal((2, 6))
    for m, theta in enumerate(models):
        residual = x @ theta - y
        assert np.allclose(convergence.gradients(one, models)[0, m], x.T @ residual / 9)
        assert convergence.losses(one, models)[0, m] == pytest.approx(0.5 * float(residual @ residual) / 9)


def replace_holder(world: World, x: np.ndarray, y: np.ndarray) -> World:
    moments, targets, energies = world.moments.copy(), world.targets.copy(), world.energies.copy()
    moments[0], targets[0], energies[0] = x.T @ x / len(x), x.T @ y / len(x), float(y @ y) / len(x)
    return World(moments, targets, energies, world.minima, world.members, world.first)


def test_hostile_gradients_that_point_away_weigh_nothing() -> None:
    root = np.array([[2.0, 0.0]])
    own = np.array([[1.0, 0.0], [4.0, 0.0], [-3.0, 1.0]])
    clusters = np.zeros(3, dtype=np.int64)
    assert np.allclose(step("theorem", own, clusters, root, 1), [[-2.5, 0.0]])
    assert np.allclose(step("rfca", own, clusters, root, 1), [[-2.0, 0.0]])
    assert np.allclose(step("ifca", own, clusters, root, 1), [[-2.0 / 3, -1.0 / 3]])
    nobody = step("rfca", own[2:], clusters[2:], root, 1)
    assert np.array_equal(nobody, np.zeros((1, 2)))


def test_bound_and_measured_rate_by_hand() -> None:
    assert bound_rate(Study(clusters=4, clients=40, curvature=0.5)) == 1 - 0.25 * 0.5 / 8
    assert bound_rate(Study(clusters=3, clients=10, curvature=0.8)) == pytest.approx(1 - 0.3 * 0.8 / 8)
    curve = np.array([0.5**t for t in range(6)] + [2.0**-6] * 30)
    assert floor_of(curve) == 2.0**-6
    assert measured_rate(curve) == pytest.approx(0.5)
    assert measured_rate(np.full(8, 3.0)) is None


def test_with_attackers_rfca_keeps_the_rate_and_ifca_does_not() -> None:
    for share in (0.0, 0.4):
        study = Study(dim=20, clusters=2, clients=10, samples=60, root_samples=60, rounds=60, attackers=share)
        world = convergence.make_world(study, 1)
        rate = measured_rate(distances(study, world, "rfca"))
        assert rate is not None
        assert rate <= bound_rate(study)
        ends = {rule: floor_of(distances(study, world, rule)) for rule in ("ifca", "rfca")}
        assert (ends["ifca"] > 2 * ends["rfca"]) is (share > 0)


def test_attackers_are_the_same_share_of_every_cluster() -> None:
    study = Study(clusters=4, clients=40, attackers=0.4)
    hostile = convergence.hostile_clients(study)
    assert [sum(i % 4 == j for i in hostile) for j in range(4)] == [4] * 4


def test_files(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    paths = convergence.figure_convergence(tmp_path, scale="smoke", seeds=(1,))
    assert {path.name for path in paths} == {"results.json", "results.md", "curves.png", "curves.svg"}
    text = paths[1].read_text()
    assert math.isclose(bound_rate(convergence.studies("smoke")["0%"]), 1 - 0.5 * 0.5 / 8)
    assert f"{1 - 0.5 * 0.5 / 8:.4f}" in text
