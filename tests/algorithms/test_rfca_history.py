"""RFCA-H: one round is RFCA's with the history's weights; behavior over rounds on scores that are given."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiny_federation import DIM, LIKES_0, LIKES_1, basis, environment, federation
from torch import Tensor

from ebscfl.algorithms import ALGORITHMS, ServerState
from ebscfl.algorithms.aggregation import Memory, aggregate_directly, judge
from ebscfl.rules.score_history import History, HistorySettings

RFCA_H = ALGORITHMS["rfca-h"]
CLIENTS = 10
HOSTILE = (7, 8, 9)
ROOT = torch.stack([basis(0, 2.0), basis(1, 3.0)])


def leaning(cosine: float, cluster: int = 0) -> Tensor:
    """A unit vector with this cosine to the root update of its cluster."""
    return cosine * basis(cluster) + math.sqrt(1.0 - cosine * cosine) * basis(2 + cluster)


def play(cosines: list[list[float]], clusters: list[list[int]] | None = None, scopes: int = 1) -> list[Tensor]:
    """Weights of every round when client i's update has cosine ``cosines[t][i]``."""
    memory = Memory(HistorySettings(), (History(),) * scopes)
    rounds = []
    for t, row in enumerate(cosines):
        own = [0] * len(row) if clusters is None else clusters[t]
        updates = torch.stack([leaning(c, k) for c, k in zip(row, own, strict=True)])
        outcome = aggregate_directly(
            updates,
            torch.tensor(own),
            ROOT,
            clients=torch.arange(len(row)),
            normalize="cluster",
            round_id=t + 1,
            memory=memory,
        )
        memory = Memory(memory.settings, outcome.histories)
        rounds.append(outcome.weights)
    return rounds


def honest_row(t: int, count: int) -> list[float]:
    """Cosines about 0.6 that differ a little between clients and rounds."""
    return [0.6 + 0.01 * ((i * 7 + t * 3) % 5) for i in range(count)]


def test_the_first_rounds_weigh_as_rfca_does() -> None:
    data = federation(((0,), (1,), (0,), (0,)))
    uploads = torch.stack([basis(0, 7.0), basis(1, 0.1), basis(0, 3.0) + basis(2, 4.0), basis(0, -9.0)])
    env = environment(data, uploads, root_updates="fixed")
    start = ServerState(torch.stack([LIKES_0, LIKES_1]), torch.stack([basis(0, 2.0), basis(1, 5.0)]))
    with_history = ServerState(start.models, start.server_updates, histories=(History(),))
    plain, report = ALGORITHMS["rfca"].round(env, start, 1)
    ours, judged = RFCA_H.round(env, with_history, 1)
    # Four clients are too few to compare, and all newcomers count the same share of their score.
    assert judged.weights == pytest.approx(report.weights)
    assert torch.allclose(ours.models, plain.models)
    assert ours.histories[0].clients.tolist() == [0, 1, 2, 3]
    assert ours.histories[0].seen.tolist() == [1, 1, 1, 1]
    assert plain.histories == ()


def test_init_keeps_one_history_or_one_per_cluster() -> None:
    data = federation(((0,), (1,)))
    assert len(RFCA_H.init(environment(data)).histories) == 1
    assert len(RFCA_H.init(environment(data, history_scope="cluster")).histories) == 2


def test_attackers_with_a_lower_average_lose_their_weight() -> None:
    rounds = play([[*honest_row(t, 7), 0.2, 0.2, 0.2] for t in range(8)])
    assert rounds[-1][list(HOSTILE)].tolist() == [0.0, 0.0, 0.0]
    expected = torch.tensor(honest_row(7, 7), dtype=torch.float64)
    assert torch.allclose(rounds[-1][:7], expected, atol=1e-6)


def test_one_lucky_round_does_not_bring_an_attacker_back() -> None:
    rows = [[*honest_row(t, 7), 0.2, 0.2, 0.2] for t in range(10)]
    rows[-1] = [*honest_row(9, 7), 0.95, 0.95, 0.95]
    assert play(rows)[-1][list(HOSTILE)].tolist() == [0.0, 0.0, 0.0]


def test_sleepers_are_cut_within_a_few_hostile_rounds() -> None:
    asleep = [honest_row(t, 10) for t in range(12)]
    awake = [[*honest_row(t, 7), 0.2, 0.2, 0.2] for t in range(12, 24)]
    rounds = play(asleep + awake)
    assert bool((rounds[11] > 0).all())  # nobody was cut while everybody was honest
    first_cut = next(t for t in range(12, 24) if not bool(rounds[t][list(HOSTILE)].any()))
    assert first_cut - 12 <= 5
    assert not bool(torch.stack(rounds[first_cut:])[:, list(HOSTILE)].any())


def test_a_sleeper_that_points_away_weighs_nothing_at_once() -> None:
    rows = [honest_row(t, 10) for t in range(6)] + [honest_row(6, 7) + [-0.4] * 3]
    assert play(rows)[-1][list(HOSTILE)].tolist() == [0.0, 0.0, 0.0]


def test_on_off_attackers_live_with_their_bad_phases() -> None:
    rows = []
    for t in range(32):
        hostile = (t // 4) % 2 == 0
        rows.append(honest_row(t, 7) + ([0.1, 0.1, 0.1] if hostile else honest_row(t, 10)[7:]))
    weights = torch.stack(play(rows))[:, list(HOSTILE)]
    # After two periods they are out in nearly all rounds, hostile or not.
    assert float((weights[16:] > 0).double().mean()) < 0.1


def test_newcomers_earn_their_weight_over_the_warmup() -> None:
    memory = Memory(HistorySettings(), (History(),))
    for _ in range(6):
        ids = torch.arange(9)
        scores = torch.tensor(honest_row(0, 9), dtype=torch.float64)
        _, histories = judge(memory, ids, torch.zeros(9, dtype=torch.int64), scores, torch.ones(9, dtype=torch.bool))
        memory = Memory(memory.settings, histories)
    shares = []
    for _ in range(4):
        scores = torch.tensor(honest_row(0, 10), dtype=torch.float64)
        every = torch.ones(10, dtype=torch.bool)
        weights, histories = judge(memory, torch.arange(10), torch.zeros(10, dtype=torch.int64), scores, every)
        memory = Memory(memory.settings, histories)
        shares.append(float(weights[9] / scores[9]))
    assert shares == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])


def test_changing_the_cluster_launders_nothing_and_costs_nothing() -> None:
    rows = [[*honest_row(t, 7), 0.2, 0.2, 0.2] for t in range(10)]
    moves = [[(i + t) % 2 for i in range(10)] for t in range(10)]
    weights = play(rows, moves)
    assert weights[-1][list(HOSTILE)].tolist() == [0.0, 0.0, 0.0]
    assert bool((weights[-1][:7] > 0.5).all())


def test_per_cluster_histories_do_not_compare_clusters() -> None:
    """Honest clients of a hard cluster score like attackers of an easy one: only its own history is fair to them."""
    clusters = [[0] * 7 + [1] * 7] * 8
    rows = [honest_row(t, 7) + [c - 0.4 for c in honest_row(t, 7)] for t in range(8)]
    assert not bool(play(rows, clusters)[-1][7:].any())
    assert bool((play(rows, clusters, scopes=2)[-1] > 0).all())


def test_a_zero_update_is_absent() -> None:
    memory = Memory(HistorySettings(), (History(),))
    updates = torch.stack([leaning(0.5), torch.zeros(DIM), leaning(0.7)])
    outcome = aggregate_directly(
        updates,
        torch.zeros(3, dtype=torch.int64),
        ROOT,
        clients=torch.tensor([4, 5, 6]),
        normalize="cluster",
        round_id=1,
        memory=memory,
    )
    assert outcome.histories[0].clients.tolist() == [4, 6]
    third = HistorySettings().warmup
    assert np.allclose(outcome.weights.numpy(), [0.5 / third, 0.0, 0.7 / third])
