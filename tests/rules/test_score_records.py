"""Weight by record (RFCA-H as it is run on skewed labels): laws, a slow twin, and behavior of all kinds of clients.

Measured over 20 seeds with the cosines of ``test_score_history.py`` (20 clients; `naive` is ReLU(score), no history):

    share of weight                                     score     record    equal     naive
    8 hostile, rounds 11 to 40                          0.021     0.014     0.034     0.226
    2 on-off (and 6 hostile), their hostile phases      0.032     0.059     0.052     0.055
    12 hostile, rounds 11 to 40                         0.392     0.272     0.557     0.392
    equal clients the late weights are worth, of 20     9.6       17.0      13.9

So a record tells steady attackers apart best and uses most of the honest clients, but on-off attackers, whose record is
a mean of both phases, keep what they would have without any history: this round's score is what costs them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ebscfl import rng
from ebscfl.errors import CheckpointError
from ebscfl.rules.score_history import (
    MEDIANS,
    NORMAL_MEDIAN,
    OUTLIER,
    TRUSTED_SHARE,
    WEIGHTS,
    History,
    HistorySettings,
    Judgment,
    advance,
    find_cut,
    history_from_json,
    outlier_floor,
    record_weights,
)

Floats = npt.NDArray[np.float64]
ROOT = rng.root_from_seed(7)
RECORD = HistorySettings(weight="record")
HONEST, HOSTILE, NOISE = 0.25, 0.10, 0.1
SEEDS, ROUNDS, SETTLED = 20, 40, 10


# --- a slow twin: one client after the other, with the words of the module's own description -------------------------


class SlowHistory:
    """Python floats and dicts; numpy only for medians and quantiles."""

    def __init__(self, settings: HistorySettings) -> None:
        self.settings = settings
        self.seen: dict[int, int] = {}
        self.average: dict[int, float] = {}
        self.standing: dict[int, float] = {}
        self.level: dict[int, float] = {}

    def weights(self, scores: dict[int, float]) -> dict[int, float]:
        settings = self.settings
        middle = float(np.median(list(scores.values())))
        for client, score in scores.items():
            seen = self.seen[client] = self.seen.get(client, 0) + 1
            rate = max(1.0 - settings.decay, 1.0 / seen)
            average = self.average.get(client, 0.0)
            average = self.average[client] = average + rate * (score - middle - average)
            level = self.level.get(client, 0.0)
            self.level[client] = level + rate * (score - level)
            standing = self.standing.get(client, 0.0)
            climbed = standing + settings.recovery * (average - standing)
            self.standing[client] = average if seen <= settings.warmup else min(average, climbed)
        settled = [self.standing[client] for client in scores if self.seen[client] >= settings.warmup]
        cut = find_cut(np.array(settled), settings)
        found = {}
        for client, score in scores.items():
            worth = {
                "score": max(score, 0.0),
                "equal": float(score > 0.0),
                "record": self.by_record(client, scores) if settings.weight == "record" else 0.0,
            }[settings.weight]
            trusted = cut is None or self.standing[client] >= cut
            found[client] = worth * min(1.0, self.seen[client] / settings.warmup) if trusted else 0.0
        return found

    def by_record(self, client: int, scores: dict[int, float]) -> float:
        middle = float(np.median(list(scores.values())))
        above = [score - middle for score in scores.values() if score > middle]
        deviation = NORMAL_MEDIAN * float(np.median(above)) if above else 0.0
        if scores[client] <= min(0.0, middle - OUTLIER * deviation):
            return 0.0
        levels = [max(self.level[other], 0.0) for other in scores]
        top = min(float(np.quantile(levels, TRUSTED_SHARE)), MEDIANS * float(np.median(levels)))
        if top <= 0.0:
            return 0.0
        return min(max((max(self.level[client], 0.0) - top / 3.0) / (top / 3.0), 0.0), 1.0)


rounds_of_scores = st.lists(
    st.dictionaries(st.integers(0, 11), st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=1, max_size=12),
    min_size=1,
    max_size=8,
)


@given(rounds_of_scores, st.sampled_from(WEIGHTS), st.sampled_from([0.0, 0.5, 0.9]), st.integers(1, 4))
def test_every_round_is_the_slow_twin_s(rounds: list[dict[int, float]], weight: str, decay: float, warmup: int) -> None:
    settings = HistorySettings(weight=weight, decay=decay, warmup=warmup)
    history, slow = History(), SlowHistory(settings)
    for scores in rounds:
        ids = list(scores)
        history, verdict = advance(history, ids, np.array([scores[i] for i in ids]), settings)
        expected = slow.weights(scores)
        np.testing.assert_allclose(verdict.weights, [expected[i] for i in ids], rtol=0.0, atol=1e-9)
    for name in ("seen", "average", "standing", "level"):
        kept = getattr(slow, name)
        np.testing.assert_allclose(getattr(history, name), [kept[i] for i in sorted(kept)], rtol=0.0, atol=1e-12)


# --- laws -----------------------------------------------------------------------------------------------------------

levels_of_clients = hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1, 1).map(lambda x: round(x, 4)))


@given(levels_of_clients)
def test_record_weights_grow_with_the_level_from_a_third_to_two_thirds(levels: Floats) -> None:
    weights = record_weights(levels)
    assert ((weights >= 0.0) & (weights <= 1.0)).all()
    assert (weights[levels <= 0.0] == 0.0).all()
    order = np.argsort(levels, kind="stable")
    assert (np.diff(weights[order]) >= -1e-12).all()
    positive = np.maximum(levels, 0.0)
    top = min(float(np.quantile(positive, TRUSTED_SHARE)), MEDIANS * float(np.median(positive)))
    if top > 0.0:
        assert (weights[levels <= top / 3 * (1 - 1e-9)] == 0.0).all()
        assert (weights[levels >= 2 * top / 3 * (1 + 1e-9)] == 1.0).all()
    else:
        assert not weights.any()


@given(levels_of_clients, st.floats(0.1, 1.0))
def test_record_weights_do_not_depend_on_the_unit(levels: Floats, unit: float) -> None:
    np.testing.assert_allclose(record_weights(unit * levels), record_weights(levels), atol=1e-9)


def test_record_weights_by_hand() -> None:
    levels = np.array([0.3, 0.3, 0.3, 0.3, 0.3, 0.1, 0.15, 0.2, -0.4])
    # q = 0.3, the quantile; the median is 0.3 too.
    assert record_weights(levels).tolist() == pytest.approx([1, 1, 1, 1, 1, 0, 0.5, 1, 0])
    # Two of seven at 0.9: q would be 0.78, two medians are 0.4, so 0.2 is just half way up.
    flattered = np.array([0.9, 0.9, 0.2, 0.2, 0.3, 0.2, 0.2])
    assert record_weights(flattered).tolist() == pytest.approx([1, 1, 0.5, 0.5, 1, 0.5, 0.5])


@given(
    hnp.arrays(np.float64, st.integers(3, 20), elements=st.floats(0.01, 0.9)),
    hnp.arrays(np.float64, st.integers(0, 20), elements=st.floats(-1, 1)),
)
def test_fewer_than_half_move_the_top_by_two_medians_at_most(honest: Floats, others: Floats) -> None:
    others = others[: len(honest) - 2]  # with the probe still fewer than the honest
    best = float(honest.max())
    # Whatever the others do, a record of MEDIANS times the best honest one would have its full weight two thirds up.
    probe = record_weights(np.concatenate([honest, others, [2.0 / 3.0 * MEDIANS * best]]))
    assert probe[-1] == pytest.approx(1.0)


scores_of_clients = hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1, 1).map(lambda x: round(x, 3)))


@given(scores_of_clients, st.data())
def test_the_outlier_floor_looks_at_the_upper_half_only(scores: Floats, data: st.DataObject) -> None:
    floor = outlier_floor(scores)
    assert floor <= 0.0
    assert floor <= float(np.median(scores)) or floor == 0.0
    middle = np.median(scores)
    below = np.flatnonzero(scores < np.sort(scores)[(len(scores) - 1) // 2])  # strictly below both middle ones
    moved = scores.copy()
    for i in below:
        moved[i] = data.draw(st.floats(-1.0, float(scores[i])))
    assert np.median(moved) == middle
    assert outlier_floor(moved) == floor


@pytest.mark.parametrize(
    ("scores", "floor"),
    [
        ([0.3], 0.0),
        ([-0.3], -0.3),
        ([0.2, 0.2, 0.2], 0.0),
        ([-0.2, -0.2, -0.2], -0.2),
        ([0.0, 0.0], 0.0),
        # Median 0.1; above it by 0.1 and 0.2, so a deviation of 1.4826 * 0.15.
        ([-0.9, -0.8, 0.1, 0.2, 0.3], 0.1 - 2 * 1.4826 * 0.15),
        ([-0.9, -0.8, 0.4, 0.41, 0.42], 0.0),
    ],
)
def test_the_outlier_floor_by_hand(scores: list[float], floor: float) -> None:
    assert outlier_floor(np.array(scores)) == pytest.approx(floor)


@given(scores_of_clients, st.integers(0, 2**20))
def test_laws_of_a_verdict_by_record(scores: Floats, seed: int) -> None:
    ids = np.arange(len(scores))
    history, _ = advance(History(), ids, scores[::-1].copy(), RECORD)
    for _ in range(3):
        history, judgment = advance(history, ids, scores, RECORD)
    assert ((judgment.weights >= 0.0) & (judgment.weights <= 1.0)).all()
    assert (judgment.weights[~judgment.trusted] == 0.0).all()
    assert (judgment.weights[scores <= outlier_floor(scores)] == 0.0).all()
    assert (judgment.weights[history.level <= 0.0] == 0.0).all()
    assert (np.abs(history.level) <= 1.0).all()
    order = rng.numpy_generator(ROOT, "test-record-order/1", seed).permutation(len(scores))
    _, verdict = advance(history, ids, scores, RECORD)
    _, shuffled = advance(history, ids[order], scores[order], RECORD)
    assert np.array_equal(verdict.weights[order], shuffled.weights)


@given(scores_of_clients)
def test_the_weight_decides_nothing_but_the_weight(scores: Floats) -> None:
    ids = np.arange(len(scores))
    verdicts: dict[str, Judgment] = {}
    for weight in WEIGHTS:
        history = History()
        for _ in range(4):
            history, verdicts[weight] = advance(history, ids, scores, HistorySettings(weight=weight))
    for weight in WEIGHTS:
        assert verdicts[weight].cut == verdicts["score"].cut
        assert np.array_equal(verdicts[weight].standing, verdicts["score"].standing)
    assert np.array_equal(verdicts["equal"].weights > 0, verdicts["score"].weights > 0)
    assert set(verdicts["equal"].weights) <= {0.0, 1.0}


# --- behavior -------------------------------------------------------------------------------------------------------


def play(scores: Floats, settings: HistorySettings = RECORD, absent: Sequence[tuple[int, int]] = ()) -> Floats:
    """(rounds, clients) weights; ``absent`` are (round, client)."""
    history, weights = History(), np.zeros(scores.shape)
    for r, row in enumerate(np.clip(scores, -1, 1)):
        here = np.array([i for i in range(len(row)) if (r, i) not in absent])
        history, judgment = advance(history, here, row[here], settings)
        weights[r, here] = judgment.weights
    return weights


def noisy(means: Floats, seed: int) -> Floats:
    return means + NOISE * rng.numpy_generator(ROOT, "test-record/1", seed).standard_normal(means.shape)


def means(num_clients: int, num_hostile: int, rounds: int = ROUNDS) -> Floats:
    table = np.full((rounds, num_clients), HONEST)
    table[:, :num_hostile] = HOSTILE
    return table


def share(weights: Floats, clients: slice) -> float:
    total = weights.sum(axis=1)
    return float(np.mean(weights[total > 0][:, clients].sum(axis=1) / total[total > 0]))


@pytest.mark.parametrize(("weight", "bound"), [("score", 0.03), ("record", 0.02), ("equal", 0.04)])
def test_hostile_clients_lose_their_weight(weight: str, bound: float) -> None:
    settings = HistorySettings(weight=weight)
    shares = [share(play(noisy(means(20, 8), seed), settings)[SETTLED:], slice(0, 8)) for seed in range(SEEDS)]
    assert np.mean(shares) < bound


def test_honest_clients_weigh_nearly_alike_late_in_training() -> None:
    """Cosines decay to noise around 0.05; a single one says nothing, their record still does."""
    fading = means(20, 0, 60)
    fading[20:] = 0.05
    for seed in range(SEEDS):
        scores = noisy(fading, seed)
        late = slice(30, 60)
        record, score = play(scores)[late], play(scores, HistorySettings())[late]

        def effective(weights: Floats) -> float:
            """How many equal clients the weights are worth, (sum w)^2 / sum w^2."""
            return float(np.mean(weights.sum(axis=1) ** 2 / np.maximum((weights**2).sum(axis=1), 1e-12)))

        assert effective(record) > effective(score)


def test_without_hostile_clients_nobody_is_cut_and_all_weigh_one() -> None:
    steady = np.full((10, 8), 0.3) + 0.01 * np.sin(np.arange(80)).reshape(10, 8)
    assert (play(steady)[3:] == 1.0).all()
    # Noise as large as that of a real round: the mean weight of an honest client stays high.
    late = [play(noisy(means(20, 0), seed))[SETTLED:] for seed in range(SEEDS)]
    assert np.mean(late) > 0.95
    assert np.mean([(weights == 0).mean() for weights in late]) < 0.01


@pytest.mark.parametrize("value", [-0.4, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 2, 5, 6, 20])
def test_equal_scores_weigh_equally(value: float, count: int) -> None:
    weights = play(np.full((4, count), value))
    expected = 1.0 if value > 0 else 0.0
    warmup = RECORD.warmup
    for seen, row in enumerate(weights, start=1):
        assert row.tolist() == pytest.approx([expected * min(1.0, seen / warmup)] * count)


def test_one_client_alone_is_trusted_while_its_record_is_positive() -> None:
    scores = np.array([[0.3], [0.3], [0.3], [-0.1], [0.3]])
    # The fourth is at the floor of a round of one; the record survives it.
    assert play(scores)[:, 0].tolist() == pytest.approx([1 / 3, 2 / 3, 1.0, 0.0, 1.0])


def test_a_lucky_newcomer_gets_its_share_of_the_warmup_and_no_more() -> None:
    rows = np.full((12, 9), 0.3)
    rows[:, 8] = 0.9
    absent = [(r, 8) for r in range(9)]
    weights = play(rows, absent=absent)
    assert weights[8, :8].tolist() == pytest.approx([1.0] * 8)
    assert weights[9:, 8].tolist() == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert weights[9:, :8].min() == 1.0  # one newcomer does not move what is asked of the others


def test_a_bad_record_is_not_cleared_by_one_lucky_round_or_a_new_cluster() -> None:
    """A history belongs to the client: nothing tells it of clusters, so only rounds can change a record."""
    rows = means(20, 8, 30)
    rows[-1, :8] = 0.9
    weights = [play(noisy(rows, seed))[-1, :8] for seed in range(SEEDS)]
    alone = [np.maximum(noisy(rows, seed)[-1, :8], 0.0) for seed in range(SEEDS)]
    assert np.mean(weights) < 0.1
    assert np.mean(alone) > 0.8  # what one round would have given


def test_sleepers_keep_weight_for_the_rounds_the_decay_allows() -> None:
    """Five clients are too few for a cut, so the record works alone: zero cosines after a level of 0.3."""
    asleep, awake = np.full((20, 5), 0.3), np.full((14, 5), 0.3)
    awake[:, 0] = 1e-9
    weights = play(np.concatenate([asleep, awake]))[20:, 0]
    # level 0.3 * 0.9^t against q = 0.3: all the weight down to 2/3, none from 1/3 on.
    expected = [min(max(3.0 * 0.9**t - 1.0, 0.0), 1.0) for t in range(1, 15)]
    assert weights.tolist() == pytest.approx(expected, abs=1e-6)
    assert expected.index(0.0) + 1 == math.ceil(math.log(1 / 3) / math.log(0.9)) == 11


def test_sleepers_are_cut_sooner_where_there_is_somebody_to_compare_with() -> None:
    turn = 20
    rows = means(20, 0, 45)
    rows[turn:, :6] = 0.0
    weights = np.mean([play(noisy(rows, seed)) for seed in range(SEEDS)], axis=0)
    assert weights[turn - 5 : turn, :6].mean() > 0.9
    assert weights[turn + 10 :, :6].mean() < 0.02
    assert weights[turn + 10 :, 6:].mean() > 0.95


def test_a_sleeper_that_points_away_is_an_outlier_at_once() -> None:
    rows = np.full((10, 8), 0.3) + 0.02 * np.cos(np.arange(80)).reshape(10, 8)
    rows[-1, 0] = -0.2
    weights = play(rows)[-1]
    assert weights[0] == 0.0
    assert weights[1:].tolist() == [1.0] * 7


@pytest.mark.parametrize("weight", WEIGHTS)
def test_on_off_attackers_gain_less_than_without_history(weight: str) -> None:
    rounds, period = 60, 5
    hostile_now = (np.arange(rounds) // period) % 2 == 1
    rows = means(20, 6, rounds)
    rows[:, 6:8] = HONEST
    rows[hostile_now, 6:8] = HOSTILE
    late = (np.arange(rounds) >= 20) & hostile_now
    traces = [noisy(rows, seed) for seed in range(SEEDS)]
    ours = np.mean([share(play(scores, HistorySettings(weight=weight))[late], slice(6, 8)) for scores in traces])
    forgetful = HistorySettings(weight=weight, recovery=1.0)
    without = np.mean([share(play(scores, forgetful)[late], slice(6, 8)) for scores in traces])
    assert ours < without


def test_a_hostile_majority_with_lower_scores_is_weighed_down_but_not_cut() -> None:
    """Nothing is promised beyond a half. Twelve of twenty: no cut, but records still tell who is who."""
    rows = means(20, 12)
    for seed in range(SEEDS):
        scores = noisy(rows, seed)
        weights = play(scores)[SETTLED:]
        naive = np.maximum(scores, 0.0)[SETTLED:]
        assert share(weights, slice(0, 12)) < share(naive, slice(0, 12))
        assert weights[:, 12:].mean() > 0.9


def test_a_majority_that_averages_below_zero_stops_everybody() -> None:
    rows = np.full((6, 9), 0.3)
    rows[:, :5] = -0.1
    assert not play(rows).any()
    rows[:, 0] = 0.2  # four of nine: the others go on
    assert play(rows)[-1, 5:].tolist() == pytest.approx([1.0] * 4)


@given(levels_of_clients.filter(lambda levels: np.median(levels) > 0))
def test_the_median_client_always_has_half_of_the_full_weight(levels: Floats) -> None:
    weights = record_weights(levels)
    assert (weights[levels >= np.median(levels)] >= 0.5 - 1e-9).all()


def test_clients_that_score_three_times_the_median_at_most_double_their_share() -> None:
    """And the limit the module names: what flatterers keep when they turn."""
    rows = np.full((34, 20), 0.2)
    rows[:20, :8] = 0.65
    rows[20:, :8] = 0.01
    weights = play(rows)
    assert weights[19].tolist() == pytest.approx([1.0] * 8 + [0.5] * 12)
    shares = weights[:, :8].sum(axis=1) / weights.sum(axis=1)
    assert shares[20] > 0.5
    assert shares[31] == pytest.approx(0.4)  # all alike: the twelfth hostile round
    assert not shares[32:].any()
    by_score = play(rows, HistorySettings())
    assert by_score[20, :8].sum() / by_score[20].sum() < 0.05
    fewer = rows.copy()
    fewer[:, 3:8] = 0.2  # three of twenty are less than a fifth
    assert (play(fewer)[3:, 3:] == 1.0).all()


def test_histories_with_and_without_levels_are_not_mixed_up() -> None:
    older = {"clients": [1], "seen": [1], "average": [0.0], "standing": [0.0]}
    with pytest.raises(CheckpointError, match="fields clients, seen, average, standing, level"):
        history_from_json(older)


def test_absence_changes_no_level() -> None:
    history, _ = advance(History(), [1, 2, 3], np.array([0.1, 0.2, 0.3]), RECORD)
    later, _ = advance(history, [1, 3], np.array([0.3, 0.1]), RECORD)
    assert later.level.tolist() == pytest.approx([0.2, 0.2, 0.2])
    assert later.level[1] == history.level[1]


def test_level_is_a_plain_mean_first_then_exponential() -> None:
    settings = replace(RECORD, decay=0.75)
    scores = [0.4, 0.0, 0.2, 0.6, -0.2, 0.8]
    history = History()
    for score in scores:
        history, _ = advance(history, [0, 1], np.array([score, 0.1]), settings)
    expected = sum(scores[:4]) / 4  # 1 / (1 - 0.75) rounds
    for score in scores[4:]:
        expected += 0.25 * (score - expected)
    assert history.level[0] == pytest.approx(expected)
