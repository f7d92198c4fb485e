"""Exactness of the aggregate, merging, the quorum, and the guard on slots with little weight."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sealed_round import Round, generator, play

from ebscfl.errors import ConfigError, DecodeError, RoundAborted, UsageError, VerificationError
from ebscfl.sealed import (
    OpenedSums,
    SlotDecision,
    Workers,
    aggregates,
    check_quorum,
    decide_slots,
    fold,
    merge,
    new_sum,
    open_counts,
    release,
    slot_weights,
    unseal,
)

both = pytest.mark.parametrize("field", ["m31", "m61"])


def decide(played: Round, opening: np.ndarray | None = None) -> SlotDecision:
    opening = open_counts(played.params, played.y) if opening is None else opening
    return decide_slots(played.params, opening, played.pads_sum, played.lam, played.weight)


def opened(played: Round) -> OpenedSums:
    return unseal(played.params, played.y, release(played.params, played.pads_sum, decide(played)))


def rfca(played: Round, normalize: str) -> np.ndarray:
    """Eq. (1) in float64: the oracle."""
    units = played.updates / np.linalg.norm(played.updates, axis=1, keepdims=True)
    server = played.server / np.linalg.norm(played.server, axis=1, keepdims=True)
    weights = np.maximum((units * server[played.clusters]).sum(axis=1), 0)
    clusters = np.array(played.clusters)
    sums = np.stack([(weights[clusters == k, None] * units[clusters == k]).sum(axis=0) for k in range(len(server))])
    totals = np.array([weights[clusters == k].sum() for k in range(len(server))])
    return sums / (totals[:, None] if normalize == "cluster" else totals.sum())


@both
@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_sum_is_the_integer_reference_bit_for_bit(field: str, m: int) -> None:
    played = play(field, n=9, dim=120, m=m)
    result = opened(played)
    expected = played.integer_reference()
    assert result.sums.tolist() == expected[:, :-1].tolist()
    assert result.counts.tolist() == expected[:, -1].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("field", "bound"), [("m31", 5e-3), ("m61", 1e-5)])
def test_aggregate_at_full_size_is_rfca_within_the_stated_error(field: str, bound: float) -> None:
    """l = 200 000, planned for 100 clients (the headroom decides the bits), played with 12."""
    played = play(field, n=12, dim=200_000, m=2, num_clients=100)
    secure, plain = aggregates(played.params, opened(played)), rfca(played, "cluster")
    assert np.linalg.norm(secure - plain) / np.linalg.norm(plain) < bound
    result = opened(played)
    assert np.array_equal(result.sums, played.integer_reference()[:, :-1].astype(np.int64))


@both
@pytest.mark.parametrize("normalize", ["cluster", "global"])
def test_aggregates_are_rfca_within_the_planned_error(field: str, normalize: str) -> None:
    """Ten times the planner's expectation, plus the rounding of the scores themselves."""
    played = play(field, n=12, dim=300, m=2)
    secure, plain = aggregates(played.params, opened(played), normalize), rfca(played, normalize)
    limit = 10 * played.params.expected_error + 10 * 2.0**-played.params.server_bits
    assert np.linalg.norm(secure - plain) / np.linalg.norm(plain) < limit


def test_a_slot_without_weight_gives_zeros_and_a_wrong_normalization_is_refused() -> None:
    played = play("m31", n=2, dim=30, m=3)
    result = opened(played)
    assert result.counts[2] == 0
    assert not aggregates(played.params, result)[2].any()
    assert np.allclose(slot_weights(played.params, result), decide(played).weights)
    with pytest.raises(ConfigError, match="normalize"):
        aggregates(played.params, result, "mean")


@both
def test_partial_sums_merge_in_any_order_and_grouping(field: str) -> None:
    played = play(field, n=6, dim=50)
    params = played.params
    answers = [v.answer for v in played.verdicts if v.answer is not None]
    parts = []
    for low in range(0, 6, 2):
        part = new_sum(params)
        chosen = slice(low, low + 2)
        uploads = played.uploads[chosen]
        fold(params, part, answers[chosen], [u.words for u in uploads], [u.guard for u in uploads], workers=Workers(2))
        parts.append(part)
    for order in itertools.permutations(parts):
        left = merge(params, [merge(params, order[:2]), order[2]])
        right = merge(params, [order[0], merge(params, order[1:])])
        for total in (left, right):
            assert np.array_equal(total.words, played.y.words)
            assert np.array_equal(total.guard, played.y.guard)
    with pytest.raises(UsageError, match="do not match"):
        fold(params, new_sum(params), answers, [], [])
    assert repr(parts[0]) == "RunningSum(<redacted>)"


def test_a_client_that_is_not_answered_is_simply_not_in_the_sum() -> None:
    played = play("m31", n=5, dim=40)
    params = played.params
    y, pads_sum = new_sum(params), new_sum(params)
    stay = [0, 1, 4]
    for i in stay:
        answer = played.verdicts[i].answer
        assert answer is not None
        fold(params, y, [answer], [played.uploads[i].words], [played.uploads[i].guard])
        fold(params, pads_sum, [answer], [played.pads[i]], [played.keys[i].guard_pad])
    weight = sum(played.verdicts[i].weight for i in stay)
    decision = decide_slots(params, open_counts(params, y), pads_sum, played.lam, weight)
    result = unseal(params, y, release(params, pads_sum, decision))
    expected = np.zeros((2, params.slot_size), dtype=np.int64)
    for i in stay:
        expected[played.clusters[i]] += played.verdicts[i].weight * played.inputs[i].slot
    assert np.array_equal(np.concatenate([result.sums, result.counts[:, None]], axis=1), expected)


def test_the_quorum_binds() -> None:
    params = play("m31", n=4, quorum=3).params
    check_quorum(params, 3)
    with pytest.raises(RoundAborted, match="quorum of 3"):
        check_quorum(params, 2)


def test_a_slot_with_too_little_weight_stays_closed() -> None:
    """Three slots, four clients: slots 1 and 2 have one member each, of weight about 0.45 and 0.45."""
    played = play("m31", n=4, dim=200, m=3, seed=2, min_slot_weight=0.0)
    weights = decide(played).weights
    limit = float(np.sort(weights)[1] + 1e-6)
    played = play("m31", n=4, dim=200, m=3, seed=2, min_slot_weight=limit)
    decision = decide(played)
    assert decision.released.tolist() == [bool(w >= limit) for w in weights]
    assert decision.released.sum() == 1
    shown = release(played.params, played.pads_sum, decision)
    slots = shown.words.reshape(3, -1)
    result = unseal(played.params, played.y, shown)
    for k in range(3):
        assert slots[k].any() == decision.released[k]
        assert result.sums[k].any() == decision.released[k]
        assert bool(aggregates(played.params, result)[k].any()) == decision.released[k]


@both
def test_moving_weight_between_slots_in_the_opening_is_caught(field: str) -> None:
    """The total stays right, so only the second tag can tell: 2 000 random moves and the plainest one."""
    played = play(field, n=6, dim=40, min_slot_weight=0.5)
    params, p = played.params, played.params.field.modulus
    honest = open_counts(params, played.y)
    draws = generator(4)
    for shift in [1, *(int(s) for s in draws.integers(1, p, 2000))]:
        moved = honest.copy()
        moved[0, 0] = (int(moved[0, 0]) + shift) % p
        moved[0, 1] = (int(moved[0, 1]) - shift) % p
        with pytest.raises(VerificationError, match="tag"):
            decide(played, moved)
    decide(played, honest)


def test_openings_of_the_wrong_round_total_or_kind_are_refused() -> None:
    played, other = play("m31", n=4), play("m31", n=4, round_id=2)
    with pytest.raises(VerificationError, match="tag"):
        decide(played, open_counts(other.params, other.y))
    opening = open_counts(played.params, played.y)
    with pytest.raises(VerificationError, match="add up"):
        decide_slots(played.params, opening, played.pads_sum, played.lam, played.weight + 1)
    with pytest.raises(DecodeError):
        decide(played, opening[:, :1])
    shown = release(played.params, played.pads_sum, decide(played))
    with pytest.raises(DecodeError):
        unseal(played.params, played.y, type(shown)(shown.words[:-1], shown.released))
