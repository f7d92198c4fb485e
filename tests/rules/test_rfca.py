"""RFCA's clustered aggregation against equation (1), client by client."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ebscfl import rng
from ebscfl.errors import UsageError
from ebscfl.rules.fltrust import fltrust
from ebscfl.rules.rfca import rfca, rfca_weighted

ROOT = rng.root_from_seed(2)
GENERATOR = rng.numpy_generator(ROOT, "test-rfca/1")
UPDATES = GENERATOR.standard_normal((12, 30))
SERVERS = GENERATOR.standard_normal((4, 30))
CLUSTERS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])  # nobody in cluster 3


def loop_rfca(normalize: str) -> tuple[np.ndarray, list[float]]:
    sums, totals, scores = np.zeros_like(SERVERS), [0.0] * 4, []
    for update, k in zip(UPDATES, CLUSTERS, strict=True):
        unit = update / np.sqrt((update**2).sum())
        score = float((unit * SERVERS[k]).sum() / np.sqrt((SERVERS[k] ** 2).sum()))
        scores.append(score)
        if score > 0:
            sums[k] += score * unit
            totals[k] += score
    for k in range(4):
        divisor = totals[k] if normalize == "cluster" else sum(totals)
        if totals[k] > 0:
            sums[k] /= divisor
    return sums, scores


@pytest.mark.parametrize("normalize", ["cluster", "global"])
def test_equals_the_loop(normalize: str) -> None:
    result = rfca(UPDATES, clusters=CLUSTERS, server_updates=SERVERS, normalize=normalize)
    aggregates, scores = loop_rfca(normalize)
    assert np.allclose(result.aggregates, aggregates, rtol=1e-12, atol=1e-14)
    assert np.allclose(result.scores, scores, atol=1e-14)
    assert np.array_equal(result.weights, np.maximum(result.scores, 0.0))
    expected = [sum(max(s, 0) for s, c in zip(scores, CLUSTERS, strict=True) if c == k) for k in range(4)]
    assert np.allclose(result.cluster_weight, expected)


def test_an_empty_cluster_has_a_zero_aggregate() -> None:
    result = rfca(UPDATES, clusters=CLUSTERS, server_updates=SERVERS)
    assert not result.aggregates[3].any()
    assert result.cluster_weight[3] == 0


def test_members_of_a_cluster_without_server_update_weigh_nothing() -> None:
    servers = SERVERS.copy()
    servers[1] = 0.0
    result = rfca(UPDATES, clusters=CLUSTERS, server_updates=servers)
    assert not result.weights[CLUSTERS == 1].any()
    assert not result.scores[CLUSTERS == 1].any()
    assert not result.aggregates[1].any()
    untouched = rfca(UPDATES, clusters=CLUSTERS, server_updates=SERVERS)
    assert np.array_equal(result.aggregates[0], untouched.aggregates[0])


@pytest.mark.parametrize("normalize", ["cluster", "global"])
def test_without_any_trust_all_is_zero(normalize: str) -> None:
    opposed = -SERVERS[CLUSTERS]
    result = rfca(opposed, clusters=CLUSTERS, server_updates=SERVERS, normalize=normalize)
    assert np.allclose(result.scores, -1.0)
    assert not result.aggregates.any()
    assert not result.weights.any()


def test_one_cluster_is_fltrust_without_the_length_of_g0() -> None:
    clustered = rfca(UPDATES, clusters=[0] * 12, server_updates=SERVERS[:1])
    plain = fltrust(UPDATES, server_update=SERVERS[0])
    assert np.allclose(clustered.aggregates[0] * np.linalg.norm(SERVERS[0]), plain.aggregate, rtol=1e-12, atol=1e-15)
    assert np.allclose(clustered.weights / clustered.cluster_weight[0], plain.weights, rtol=1e-12)


def test_both_normalizations_differ_by_the_cluster_share() -> None:
    own = rfca(UPDATES, clusters=CLUSTERS, server_updates=SERVERS)
    everyone = rfca(UPDATES, clusters=CLUSTERS, server_updates=SERVERS, normalize="global")
    share = own.cluster_weight / own.cluster_weight.sum()
    assert np.allclose(everyone.aggregates, own.aggregates * share[:, None], atol=1e-15)


@pytest.mark.parametrize("normalize", ["cluster", "global"])
def test_given_its_own_weights_back_it_agrees(normalize: str) -> None:
    one = rfca(UPDATES, clusters=CLUSTERS, server_updates=SERVERS, normalize=normalize)
    two = rfca_weighted(
        UPDATES, clusters=CLUSTERS, weights=one.weights, scores=one.scores, num_clusters=4, normalize=normalize
    )
    for name in ("aggregates", "weights", "scores", "cluster_weight"):
        assert np.array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("weights", [np.full(12, -1.0), np.full(12, np.nan), np.ones(11)])
def test_given_weights_are_checked(weights: np.ndarray) -> None:
    with pytest.raises(UsageError, match="weights"):
        rfca_weighted(UPDATES, clusters=CLUSTERS, weights=weights, scores=np.zeros(12), num_clusters=4)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_clusters_may_be_a_list_an_array_or_a_tensor(kind: type) -> None:
    result = rfca(UPDATES, clusters=kind(CLUSTERS.tolist()), server_updates=SERVERS)
    assert np.array_equal(result.scores, rfca(UPDATES, clusters=CLUSTERS, server_updates=SERVERS).scores)


@pytest.mark.parametrize(
    ("clusters", "message"),
    [
        ([0] * 11, "one number per client"),
        ([4] + [0] * 11, r"0 \.\. 3"),
        ([-1] + [0] * 11, r"0 \.\. 3"),
        ([0.0] * 12, "integers"),
        ([True] * 12, "integers"),
    ],
)
def test_bad_clusters_are_refused(clusters: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rfca(UPDATES, clusters=clusters, server_updates=SERVERS)


def test_a_bad_server_update_or_normalization_is_refused() -> None:
    with pytest.raises(UsageError, match="server_updates holds NaN"):
        rfca(UPDATES, clusters=CLUSTERS, server_updates=np.full_like(SERVERS, np.nan))
    with pytest.raises(UsageError, match="server_updates is empty"):
        rfca(UPDATES, clusters=CLUSTERS, server_updates=SERVERS[:0])
    with pytest.raises(UsageError, match="one of cluster, global, not 'sum'"):
        rfca(UPDATES, clusters=CLUSTERS, server_updates=SERVERS, normalize="sum")
