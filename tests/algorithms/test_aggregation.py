"""Every protocol computes the rule's aggregate, round after round, and says what it left out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ebscfl.algorithms.aggregation import (
    DIRECT,
    GLOBAL_ONLY,
    PROTOCOLS,
    ProtocolAggregator,
    aggregate_directly,
    make_aggregator,
    normalization,
)
from ebscfl.protocol.registry import PROTOCOLS as KNOWN
from ebscfl.protocol.registry import protocol_info
from ebscfl.rng import root_from_seed, torch_generator

ROOT = root_from_seed(3)
N, M, D = 4, 2, 5  # small enough for the naive scheme
TOLERANCE = {"plain": 1e-6, "paper": 1e-6, "paper-naive": 1e-6, "sealed": 5e-3}  # float32 models; fixed point
CLUSTERS = torch.tensor([0, 1, 0, 1])
EVERYBODY = torch.arange(N)
SECURE = [name for name in PROTOCOLS if name != DIRECT]


def example(seed: int) -> tuple[Tensor, Tensor]:
    draw = torch_generator(ROOT, "test-aggregation/1", seed)
    server = torch.randn(M, D, generator=draw)
    return torch.randn(N, D, generator=draw) + server[CLUSTERS], server


def normalizations(protocol: str) -> list[str]:
    return ["global"] if protocol in GLOBAL_ONLY else ["cluster", "global"]


def test_the_seam_knows_every_protocol() -> None:
    assert {DIRECT, *KNOWN} >= set(PROTOCOLS) > {DIRECT}
    for name in SECURE:
        assert set(normalizations(name)) == set(protocol_info(name).normalizations)
        assert normalization(name, "cluster") == normalizations(name)[0]
    assert normalization(DIRECT, "cluster") == "cluster"
    assert make_aggregator(DIRECT, N, ROOT) is aggregate_directly


@pytest.mark.parametrize("protocol", SECURE)
def test_aggregates_are_the_rules_over_several_rounds(protocol: str) -> None:
    for normalize in normalizations(protocol):
        aggregator = make_aggregator(protocol, N, ROOT)
        for round_id in (1, 2, 5):
            updates, server = example(round_id)
            told = {"clients": EVERYBODY, "normalize": normalize, "round_id": round_id}
            want = aggregate_directly(updates, CLUSTERS, server, **told)
            got = aggregator(updates, CLUSTERS, server, **told)
            assert float((got.aggregates - want.aggregates).norm() / want.aggregates.norm()) < TOLERANCE[protocol]
            assert torch.equal(got.weights, want.weights)
            assert got.events == ()
            assert got.bytes is not None
            assert sum(got.bytes.values()) > 0
            assert got.role_seconds is not None
            assert set(got.role_seconds) == {"kdc", "server", "clients", "codec"}


@pytest.mark.parametrize("protocol", SECURE)
def test_a_resumed_run_repeats_itself(protocol: str) -> None:
    updates, server = example(9)
    told = {"clients": EVERYBODY, "normalize": normalizations(protocol)[-1]}
    unbroken = make_aggregator(protocol, N, ROOT)
    unbroken(updates, CLUSTERS, server, round_id=1, **told)
    want = unbroken(updates, CLUSTERS, server, round_id=2, **told)
    resumed = make_aggregator(protocol, N, ROOT)(updates, CLUSTERS, server, round_id=2, **told)
    assert torch.equal(resumed.aggregates, want.aggregates)


@pytest.mark.parametrize("protocol", SECURE)
def test_absent_clients_and_zero_updates_are_left_out(protocol: str) -> None:
    updates, server = example(4)
    updates[2] = 0.0
    kept = torch.tensor([0, 1, 2])
    told = {"normalize": "global", "round_id": 1}
    got = make_aggregator(protocol, N, ROOT, {"quorum": 2} if protocol == "sealed" else None)(
        updates[kept], CLUSTERS[kept], server, clients=kept, **told
    )
    want = aggregate_directly(updates[:2], CLUSTERS[:2], server, clients=kept[:2], **told)
    assert float((got.aggregates - want.aggregates).norm() / want.aggregates.norm()) < TOLERANCE[protocol]
    assert got.events == ("zero updates of clients [2] are not sent",)


@pytest.mark.parametrize("protocol", SECURE)
def test_a_cluster_without_root_update_gets_a_direction(protocol: str) -> None:
    updates, server = example(6)
    server[1] = 0.0
    told = {"clients": EVERYBODY, "normalize": normalizations(protocol)[0], "round_id": 1}
    got = make_aggregator(protocol, N, ROOT)(updates, CLUSTERS, server, **told)
    assert bool(torch.isfinite(got.aggregates).all())
    if "cluster" in normalizations(protocol):
        want = aggregate_directly(updates, CLUSTERS, server, **told).aggregates[0]
        assert float((got.aggregates[0] - want).norm() / want.norm()) < TOLERANCE[protocol]


def test_a_round_below_the_quorum_makes_no_step() -> None:
    updates, server = example(7)
    aggregator = ProtocolAggregator("sealed", N, ROOT, {"quorum": 4})
    told = {"normalize": "cluster", "round_id": 1}
    got = aggregator(updates[:3], CLUSTERS[:3], server, clients=EVERYBODY[:3], **told)
    assert not bool(got.aggregates.any())
    assert not bool(got.weights.any())
    assert "quorum" in got.events[0]
    again = aggregator(updates, CLUSTERS, server, clients=EVERYBODY, normalize="cluster", round_id=2)
    assert bool(again.aggregates.any())  # the next round is played as if nothing had been


def test_privacy_spent_is_reported_and_grows() -> None:
    aggregator = ProtocolAggregator(
        "sealed", N, ROOT, {"epsilon": 8.0, "delta": 1e-5, "dp_rounds": 3, "field": "m61", "quorum": 2}
    )
    spent = []
    for round_id in (1, 2, 3):
        updates, server = example(round_id)
        got = aggregator(updates, CLUSTERS, server, clients=EVERYBODY, normalize="cluster", round_id=round_id)
        assert got.privacy is not None
        spent.append(got.privacy["epsilon_total"])
    assert 0 < spent[0] < spent[1] < spent[2] <= 8.0
    assert spent[2] > 0.99 * 8.0  # calibrated to the budget
