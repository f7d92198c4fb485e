"""Score history on simulated cosines: honest N(0.25, 0.1), hostile N(0.10, 0.1); rates over many seeds.

Rates over 100 seeds, rounds 11 to 40, which the bounds below leave room around (`naive` is ReLU(score), no history):

    clients (hostile)    hostile accepted    honest cut    hostile share of weight    naive share
    10 (4)               0.097               0.008         0.021                      0.221
    20 (8)               0.094               0.002         0.022                      0.224
    50 (20)              0.149               0.001         0.034                      0.225

Without hostile clients, rounds 1 to 40, clients cut by mistake: 0.045 of 6, 0.022 of 10, 0.005 of 20, 0.001 of 50.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ebscfl import rng
from ebscfl.errors import CheckpointError, ConfigError, ProtocolError, UsageError
from ebscfl.rules.score_history import (
    SMALL_SAMPLE,
    History,
    HistorySettings,
    advance,
    find_cut,
    history_from_json,
    history_to_json,
)

ROOT = rng.root_from_seed(2)
SETTINGS = HistorySettings()
SEEDS, ROUNDS, SETTLED = 20, 40, 10
HONEST, HOSTILE, NOISE = 0.25, 0.10, 0.1
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """(rounds, clients) of one simulated history; absent clients are NaN in weights and False in trusted."""

    weights: Floats
    naive: Floats
    trusted: npt.NDArray[np.bool_]
    present: npt.NDArray[np.bool_]
    cuts: npt.NDArray[np.bool_]

    def share(self, clients: object, rounds: object) -> float:
        """Mean share of the weight that ``clients`` have in ``rounds``."""
        kept = self.weights[rounds]
        return float(np.mean(kept[:, clients].sum(axis=1) / kept.sum(axis=1)))

    def naive_share(self, clients: object, rounds: object) -> float:
        kept = self.naive[rounds]
        return float(np.mean(kept[:, clients].sum(axis=1) / kept.sum(axis=1)))

    def trust_rate(self, clients: object, rounds: object) -> float:
        """How often ``clients`` are trusted when present."""
        return float(self.trusted[rounds][:, clients][self.present[rounds][:, clients]].mean())


def play(scores: Floats, present: npt.NDArray[np.bool_] | None = None, settings: HistorySettings = SETTINGS) -> Trace:
    scores = np.clip(scores, -1, 1)
    here = np.ones(scores.shape, dtype=np.bool_) if present is None else present
    history, weights, trusted, cuts = History(), np.zeros(scores.shape), np.zeros(scores.shape, dtype=np.bool_), []
    for r, row in enumerate(scores):
        clients = np.flatnonzero(here[r])
        history, judgment = advance(history, clients, row[clients], settings)
        weights[r, clients], trusted[r, clients] = judgment.weights, judgment.trusted
        cuts.append(judgment.cut is not None)
    return Trace(weights, np.maximum(scores, 0) * here, trusted, here, np.array(cuts))


def noisy(means: Floats, seed: int) -> Floats:
    return means + NOISE * rng.numpy_generator(ROOT, "test-history/1", seed).standard_normal(means.shape)


def levels(num_clients: int, num_hostile: int, rounds: int = ROUNDS) -> Floats:
    means = np.full((rounds, num_clients), HONEST)
    means[:, :num_hostile] = HOSTILE
    return means


def mean_over_seeds(measure: Callable[[int], float]) -> float:
    return float(np.mean([measure(seed) for seed in range(SEEDS)]))


LATE = slice(SETTLED, None)


@pytest.mark.parametrize(
    ("num_clients", "num_hostile", "accepted", "share"),
    [(10, 4, 0.12, 0.03), (20, 8, 0.10, 0.025), (50, 20, 0.20, 0.05)],
)
def test_two_groups_are_told_apart(num_clients: int, num_hostile: int, accepted: float, share: float) -> None:
    traces = [play(noisy(levels(num_clients, num_hostile), seed)) for seed in range(SEEDS)]
    hostile, honest = slice(0, num_hostile), slice(num_hostile, None)
    assert np.mean([t.trust_rate(hostile, LATE) for t in traces]) < accepted
    assert np.mean([t.trust_rate(honest, LATE) for t in traces]) > 0.985
    assert np.mean([t.share(hostile, LATE) for t in traces]) < share
    assert np.mean([t.naive_share(hostile, LATE) for t in traces]) > 0.2  # what history is worth


@pytest.mark.parametrize(("num_clients", "cut_share"), [(6, 0.08), (10, 0.045), (20, 0.01), (50, 0.002)])
def test_without_a_second_group_hardly_anybody_is_cut(num_clients: int, cut_share: float) -> None:
    traces = [play(noisy(levels(num_clients, 0), seed)) for seed in range(SEEDS)]
    assert 1 - np.mean([t.trust_rate(slice(None), slice(None)) for t in traces]) < cut_share


def test_the_luck_of_a_round_and_decay_of_cosines_do_not_matter() -> None:
    def share(seed: int) -> float:
        generator = rng.numpy_generator(ROOT, "test-history-common/1", seed)
        common = generator.normal(0, 0.1, (60, 1))
        fading = np.linspace(1.0, 0.6, 60)[:, None]
        scores = fading * (levels(20, 8, 60) + 0.6 * (noisy(levels(20, 8, 60), seed) - levels(20, 8, 60))) + common
        present = np.zeros(scores.shape, dtype=np.bool_)
        for row in present:
            row[generator.choice(20, 14, replace=False)] = True
        trace = play(scores, present)
        return trace.trust_rate(slice(8, None), slice(20, None)) - trace.trust_rate(slice(0, 8), slice(20, None))

    assert mean_over_seeds(share) > 0.8


def test_a_constant_added_to_a_round_changes_no_verdict() -> None:
    scores = noisy(levels(12, 4), 1) / 2
    shifts = np.linspace(-0.2, 0.2, ROUNDS)[:, None]
    assert np.array_equal(play(scores).trusted, play(scores + shifts).trusted)


def test_newcomers_start_small_and_do_not_move_the_cut() -> None:
    history = History()
    settled = np.array([0.10, 0.11, 0.12, 0.30, 0.31, 0.32, 0.33, 0.34])
    for _ in range(10):
        history, before = advance(history, np.arange(8), settled, SETTINGS)
    ids, scores = np.arange(10), np.append(settled, [0.30, 0.12])
    for visit in (1, 2, 3):
        history, judgment = advance(history, ids, scores, SETTINGS)
        assert judgment.weights[8] == pytest.approx(0.30 * visit / SETTINGS.warmup)
        assert judgment.weights[9] == 0.0
        assert judgment.cut is not None
        assert 0.12 - 0.34 < judgment.cut < 0.05
    assert before.cut is not None
    # The newcomers shift the median of the round and so all of its excesses, never the gap's place between the groups.
    assert judgment.trusted.tolist() == [False] * 3 + [True] * 6 + [False]


def test_newcomers_between_the_groups_do_not_hide_the_gap() -> None:
    history = History()
    settled = np.array([0.10, 0.11, 0.12, 0.30, 0.31, 0.32, 0.33, 0.34])
    for _ in range(10):
        history, _ = advance(history, np.arange(8), settled, SETTINGS)
    # Five that would leave no gap wider than 0.03, and five that keep the median where it was, at 0.305.
    crowd = np.array([0.15, 0.18, 0.21, 0.24, 0.27, 0.32, 0.33, 0.34, 0.35, 0.36])
    ids = np.arange(8 + len(crowd))
    _, judgment = advance(history, ids, np.append(settled, crowd), SETTINGS)
    assert judgment.cut is not None
    assert judgment.trusted[:8].tolist() == [False] * 3 + [True] * 5
    everybody_settled = find_cut(np.append(settled, crowd), SETTINGS)
    assert everybody_settled is None


def test_when_all_are_new_the_weights_are_proportional_to_the_scores() -> None:
    scores = np.array([0.3, 0.2, -0.1, 0.1, 0.25, 0.15])
    _, judgment = advance(History(), np.arange(6), scores, SETTINGS)
    assert np.allclose(judgment.weights * SETTINGS.warmup, np.maximum(scores, 0))
    assert judgment.cut is None


def test_sleepers_are_dropped_within_about_two_memories() -> None:
    turn, rounds = 30, 60
    means = levels(20, 6, rounds)
    means[turn:, 6:8] = HOSTILE
    traces = [play(noisy(means, seed)) for seed in range(SEEDS)]
    sleepers = slice(6, 8)
    memory = round(1 / (1 - SETTINGS.decay))
    assert np.mean([t.trust_rate(sleepers, slice(turn - 10, turn)) for t in traces]) > 0.95
    assert np.mean([t.trust_rate(sleepers, slice(turn + memory, turn + 2 * memory)) for t in traces]) < 0.25
    assert np.mean([t.share(sleepers, slice(turn + 2 * memory, None)) for t in traces]) < 0.01


def test_a_sleeper_that_opposes_the_server_update_gains_nothing_even_at_first() -> None:
    history = History()
    for _ in range(20):
        history, _ = advance(history, np.arange(8), np.full(8, 0.3), SETTINGS)
    _, judgment = advance(history, np.arange(8), np.array([-0.2] + [0.3] * 7), SETTINGS)
    assert judgment.weights.tolist() == [0.0] + [0.3] * 7


@pytest.mark.parametrize("period", [5, 10])
def test_on_off_attackers_pay_for_bad_phases_longer_than_they_last(period: int) -> None:
    rounds = 60
    hostile_now = (np.arange(rounds) // period) % 2 == 1
    means = levels(20, 6, rounds)
    means[hostile_now, 6:8] = HOSTILE
    late = np.arange(rounds) >= 20
    forgetful = HistorySettings(recovery=1.0)
    traces = [play(noisy(means, seed)) for seed in range(SEEDS)]
    without_memory = [play(noisy(means, seed), settings=forgetful) for seed in range(SEEDS)]
    for phase in (late & hostile_now, late & ~hostile_now):
        assert np.mean([t.trust_rate(slice(6, 8), phase) for t in traces]) < np.mean(
            [t.trust_rate(slice(6, 8), phase) for t in without_memory]
        )
    attacking = np.mean([t.share(slice(6, 8), late & hostile_now) for t in traces])
    naive = np.mean([t.naive_share(slice(6, 8), late & hostile_now) for t in traces])
    assert attacking < 0.7 * naive


def test_a_client_that_changes_cluster_keeps_its_record() -> None:
    """Two poor rounds after a change cost an honest client nothing; a hostile one is not cleared by two good ones."""
    means = levels(20, 8)
    means[20:22, 19] = HOSTILE
    means[20:22, 0] = HONEST
    traces = [play(noisy(means, seed)) for seed in range(SEEDS)]
    assert np.mean([t.trust_rate(slice(19, 20), slice(20, 25)) for t in traces]) > 0.9
    assert np.mean([t.trust_rate(slice(0, 1), slice(20, 25)) for t in traces]) < 0.2


def test_absence_changes_nothing() -> None:
    history, _ = advance(History(), [1, 2, 3], np.array([0.1, 0.2, 0.3]), SETTINGS)
    later, _ = advance(history, [1, 3], np.array([0.2, 0.2]), SETTINGS)
    assert later.clients.tolist() == [1, 2, 3]
    assert later.seen.tolist() == [2, 1, 2]
    assert later.average[1] == history.average[1]
    assert later.standing[1] == history.standing[1]


def test_average_and_standing_by_hand() -> None:
    settings = HistorySettings(decay=0.5, recovery=0.25, warmup=1)
    history = History()
    # The median is always 0.2: excesses of client 0 are +0.1, -0.3, +0.1.
    for score in (0.3, -0.1, 0.3):
        history, judgment = advance(history, [0, 1, 2], np.array([score, 0.2, 0.2]), settings)
    after_two = 0.1 + 0.5 * (-0.3 - 0.1)
    after_three = after_two + 0.5 * (0.1 - after_two)
    assert history.average[0] == pytest.approx(after_three)
    assert history.standing[0] == pytest.approx(after_two + 0.25 * (after_three - after_two))
    assert judgment.standing[0] == history.standing[0]


def test_the_cut_goes_through_the_gap() -> None:
    tight = np.array([0.30, 0.31, 0.32, 0.33, 0.34, 0.10, 0.12])
    assert find_cut(tight, SETTINGS) == pytest.approx((0.30 + 0.12) / 2)
    scattered = np.array([0.30, 0.31, 0.32, 0.33, 0.34, 0.12, -0.4, -0.9])
    assert find_cut(scattered, SETTINGS) == pytest.approx((0.30 + 0.12) / 2)


@pytest.mark.parametrize(
    ("standings", "why"),
    [
        ([0.3, 0.3, 0.3, 0.1, 0.1], "fewer than min_clients"),
        ([0.3] * 4 + [0.1] * 5, "the upper group is the minority"),
        ([0.30] * 5 + [0.285] * 3, "the gap is narrower than min_gap"),
        ([0.30] * 8, "one group"),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], "evenly spread"),
    ],
)
def test_no_second_group_no_cut(standings: list[float], why: str) -> None:
    assert find_cut(np.array(standings), SETTINGS) is None, why


def test_the_gap_asked_for_grows_for_small_groups() -> None:
    upper = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    needed = SETTINGS.gap_ratio * (1 + SMALL_SAMPLE / 5) * upper.std(ddof=1)
    assert find_cut(np.append(upper, -needed * 1.001), SETTINGS) == pytest.approx(-needed * 1.001 / 2)
    assert find_cut(np.append(upper, -needed * 0.999), SETTINGS) is None


@given(hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1, 1)), st.integers(0, 2**20))
def test_laws_of_a_verdict(scores: Floats, seed: int) -> None:
    ids = np.arange(len(scores))
    history, _ = advance(History(), ids, scores[::-1].copy(), SETTINGS)
    for _ in range(3):
        history, judgment = advance(history, ids, scores, SETTINGS)
    assert ((judgment.weights == 0) | (judgment.trusted & (scores > 0))).all()
    assert (judgment.weights <= np.maximum(scores, 0)).all()
    assert judgment.trusted.mean() >= SETTINGS.min_trusted
    assert (history.standing <= history.average + 1e-12).all()
    order = rng.numpy_generator(ROOT, "test-order/1", seed).permutation(len(scores))
    one, verdict = advance(history, ids, scores, SETTINGS)
    two, shuffled = advance(history, ids[order], scores[order], SETTINGS)
    assert np.array_equal(verdict.weights[order], shuffled.weights)
    assert history_to_json(one) == history_to_json(two)


def test_advance_is_pure_and_states_are_read_only() -> None:
    scores = np.array([0.1, 0.2, 0.3])
    history, _ = advance(History(), [5, 1, 3], scores, SETTINGS)
    before = history_to_json(history)
    advance(history, [1, 3, 9], scores, SETTINGS)
    assert history_to_json(history) == before
    assert scores.tolist() == [0.1, 0.2, 0.3]
    assert history.clients.tolist() == [1, 3, 5]
    with pytest.raises(ValueError, match="read-only"):
        history.average[0] = 1.0


def test_a_history_survives_json_exactly() -> None:
    history = History()
    for seed, row in enumerate(noisy(levels(9, 3, 5), 3)):
        history, _ = advance(history, np.arange(9) + 2 * seed, row, SETTINGS)
    again = history_from_json(json.loads(json.dumps(history_to_json(history))))
    for name, value in vars(history).items():
        assert np.array_equal(value, getattr(again, name))
        assert value.dtype == getattr(again, name).dtype


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seen": [1]}, "differ in length"),
        ({"clients": [2, 1]}, "ascend"),
        ({"clients": [1, 1]}, "ascend"),
        ({"seen": [1, 0]}, "have been seen"),
        ({"average": [0.0, float("nan")]}, "NaN or infinity"),
        ({"average": [0.0, "x"]}, "corrupt"),
        ({"clients": [1, 2**70]}, "corrupt"),
        ({"standing": [[0.0], [0.0]]}, "differ in length"),
        ({"level": [0.0]}, "differ in length"),
        ({"level": [0.0, float("inf")]}, "NaN or infinity"),
        ({"clients": [1, 2.5]}, "whole numbers"),
        ({"seen": [1.5, 1]}, "whole numbers"),
        ({"seen": [True, 1]}, "whole numbers"),
        ({"clients": 3}, "corrupt"),
        ({"clients": None}, "corrupt"),
        ({"extra": []}, "has the fields"),
    ],
)
def test_a_corrupt_history_is_refused(change: dict[str, list[object]], message: str) -> None:
    means = {key: [0.0, 0.1] for key in ("average", "standing", "level")}
    good: dict[str, object] = {"clients": [1, 2], "seen": [1, 1], **means}
    assert history_from_json(good).clients.tolist() == [1, 2]
    with pytest.raises(CheckpointError, match=message):
        history_from_json({**good, **change})


@pytest.mark.parametrize(
    ("clients", "scores", "message"),
    [
        ([], [], "non-empty"),
        ([1, 1], [0.1, 0.2], "distinct"),
        ([1, 2], [0.1], "one per client"),
        ([1.0, 2.0], [0.1, 0.2], "client ids"),
        ([1, 2], [1, 0], "must be floats"),
    ],
)
def test_bad_arguments_are_refused(clients: list[int], scores: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        advance(History(), clients, np.array(scores), SETTINGS)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.1, -2.0])
def test_what_is_no_cosine_names_its_client(bad: float) -> None:
    with pytest.raises(ProtocolError, match=r"clients \[7\]") as caught:
        advance(History(), [4, 7], np.array([0.5, bad]), SETTINGS)
    assert caught.value.culprits == (7,)


def test_a_history_of_unequal_columns_is_refused() -> None:
    with pytest.raises(UsageError, match="same length"):
        History(clients=np.array([1, 2]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"decay": 1.0},
        {"decay": -0.1},
        {"recovery": 0.0},
        {"warmup": 0},
        {"gap_ratio": -1.0},
        {"min_gap": float("nan")},
        {"min_trusted": 0.0},
        {"min_clients": 2},
        {"weight": "cosine"},
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        HistorySettings(**wrong)
