from __future__ import annotations

import math

import numpy as np
import pytest
from sealed_round import ROOT, RUN, Round, generator, play

from ebscfl.errors import DecodeError
from ebscfl.sealed import (
    NUM_PRODUCTS,
    Verdict,
    Workers,
    batch_seed,
    client_keys,
    encode,
    kdc_check,
    make_sketch,
    master_key,
    products,
    products_many,
    seal,
)
from ebscfl.sealed.encode import EncodedInput
from ebscfl.sealed.score import trust_weight

SKETCH_BATCH = 0
both = pytest.mark.parametrize("field", ["m31", "m61"])


def judge(played: Round, words: np.ndarray, client: int = 0) -> Verdict:
    """The verdict on any words that arrive under the client's name."""
    sketch = make_sketch(played.params, batch_seed(ROOT, SKETCH_BATCH))
    sent = products(played.params, words, played.server_row, sketch)
    own = products(played.params, played.pads[client], played.server_row, sketch)
    return kdc_check(played.params, sent, own, played.keys[client], played.lam)


def sealed_input(played: Round, x: np.ndarray, client: int = 0) -> np.ndarray:
    """A dishonest client seals any x of all slots with its own keys."""
    field = played.params.field
    words = field.embed(x.astype(np.int64))
    r, b = played.pads[client]
    return np.stack([field.add(words, r), field.add(field.multiply(words, played.keys[client].kappa), b)])


@both
def test_products_match_python_integers(field: str) -> None:
    played = play(field, n=1, dim=40, m=3)
    params, p = played.params, played.params.field.modulus
    sketch = make_sketch(params, batch_seed(ROOT, 0))
    got = products(params, played.uploads[0].words, played.server_row, sketch)
    for which in range(2):
        vector = [int(v) for v in played.uploads[0].words[which]]
        assert int(got[which, 0]) == sum(v * int(g) for v, g in zip(vector, played.server_row, strict=True)) % p
        assert int(got[which, 1]) == sum(vector[params.dim :: params.slot_size]) % p


@both
def test_score_is_the_cosine_and_negative_ones_weigh_nothing(field: str) -> None:
    """Error of a score: rounding G and x moves it by less than their rounding noise, 6 sd."""
    played = play(field, n=8, dim=300, m=2)
    params = played.params
    bound = 6 * (2.0**-params.server_bits + 2.0**-params.update_bits) / 2
    for i, verdict in enumerate(played.verdicts):
        u, g = played.updates[i], played.server[played.clusters[i]]
        cosine = float(u @ g / np.linalg.norm(u) / np.linalg.norm(g))
        assert abs(verdict.score - cosine) < bound
        assert abs(verdict.weight - max(0.0, verdict.score) * 2**params.weight_bits) <= 0.5
        assert verdict.accepted
        if i % 4 == 3:
            assert cosine < 0
            assert verdict.weight == 0
            assert verdict.answer is not None


def test_answers_hide_the_weight_under_kappa() -> None:
    played = play("m31", n=4)
    p = played.params.field.modulus
    for verdict, keys in zip(played.verdicts, played.keys, strict=True):
        assert verdict.answer is not None
        assert (verdict.answer.alpha + keys.kappa) % p == verdict.weight
        assert (verdict.answer.guard_alpha + keys.guard_kappa) % p == played.lam * verdict.weight % p
    assert "weight" not in repr(played.verdicts[0])


def test_a_weight_is_at_most_one_and_rounds_to_nearest() -> None:
    params = play("m31", n=1).params
    one = 1 << (params.update_bits + params.server_bits)
    top = 1 << params.weight_bits
    for raw in (-(10**6), -1, 0, 1, one // 3, one // 2, one - 1, one, 2 * one):
        share = min(max(raw, 0), one) / one
        assert trust_weight(params, raw) == math.floor(share * top + 0.5)


@both
def test_threads_do_not_change_products(field: str) -> None:
    played = play(field, n=3)
    sketch = make_sketch(played.params, batch_seed(ROOT, 1))
    words = [u.words for u in played.uploads]
    one = products_many(played.params, words, played.server_row, sketch)
    two = products_many(played.params, words, played.server_row, sketch, workers=Workers(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@both
def test_a_lie_about_any_product_is_caught(field: str) -> None:
    """Every row of c or t, shifted by 1, and 10 000 random shifts of random rows: 1/p each would pass."""
    played = play(field, n=1)
    params, modulus = played.params, played.params.field.modulus
    sketch = make_sketch(params, batch_seed(ROOT, 0))
    honest = products(params, played.uploads[0].words, played.server_row, sketch)
    own = products(params, played.pads[0], played.server_row, sketch)
    draws = generator(9)
    lies = [(which, row, 1) for which in range(2) for row in range(NUM_PRODUCTS)]
    lies += [
        (int(draws.integers(2)), int(draws.integers(NUM_PRODUCTS)), int(draws.integers(1, modulus)))
        for _ in range(10_000)
    ]
    for which, row, shift in lies:
        sent = honest.copy()
        sent[which, row] = (int(sent[which, row]) + shift) % modulus
        assert kdc_check(params, sent, own, played.keys[0], played.lam).reason == "tag"
    assert kdc_check(params, honest, own, played.keys[0], played.lam).accepted


@both
def test_uploads_that_were_not_sealed_for_this_round_fail_the_tag(field: str) -> None:
    played = play(field, n=2)
    params = played.params
    late = client_keys(params, master_key(ROOT, RUN, 0), RUN, 2, 0)
    encoded = encode(params, played.updates[0], 0, ROOT, 1, 0)
    noise = np.stack([played.pads[1][0], played.pads[1][1]])
    changed = played.uploads[0].words.copy()
    changed[0, 7] = (int(changed[0, 7]) + 1) % params.field.modulus
    swapped = played.uploads[0].words[::-1].copy()
    for words in (seal(params, encoded, late).words, played.uploads[1].words, noise, changed, swapped):
        verdict = judge(played, words)
        assert verdict.reason == "tag"
        assert verdict.answer is None
        assert math.isnan(verdict.score)


@both
def test_wrong_counts_and_norms_are_told_apart(field: str) -> None:
    played = play(field, n=1, dim=400)
    honest = played.inputs[0].dense(played.params).reshape(2, -1)
    none, twice, negative = honest.copy(), honest.copy(), honest.copy()
    none[:, -1], twice[0, -1], negative[0, -1] = 0, 2 * honest[0, -1], -honest[0, -1]
    for wrong in (none, twice, negative):
        assert judge(played, sealed_input(played, wrong.reshape(-1))).reason == "count"
    loud = honest.copy()
    loud[0, :-1] *= 3
    assert judge(played, sealed_input(played, loud.reshape(-1))).reason == "norm"
    split = honest.copy()
    split[:, -1] = [4 * honest[0, -1], -3 * honest[0, -1]]
    assert judge(played, sealed_input(played, split.reshape(-1))).reason == "norm"
    assert judge(played, sealed_input(played, honest.reshape(-1))).accepted


def test_an_update_over_two_slots_is_not_seen_and_stays_within_the_norm_bound() -> None:
    """10 000 random splits of one upload over two slots: those accepted add no more than the limit allows.

    A row norm estimates ||x||^2 with relative sd 0.09; what passes at 1.8 has ||x||^2 < 1.8 / (1 - 6 * 0.09), and
    its weight is at most one.
    """
    played = play("m31", n=1, dim=100)
    params, draws = played.params, generator(12)
    unit = [played.server[k] / np.linalg.norm(played.server[k]) for k in range(2)]
    accepted, worst = 0, 0.0
    for _ in range(10_000):
        sizes = draws.uniform(0, 1.5, 2)
        share = draws.uniform(-0.5, 1.5)
        x = np.zeros((2, params.slot_size))
        for k in range(2):
            x[k, :-1] = sizes[k] * unit[k] * 2**params.update_bits
            x[k, -1] = round((share if k == 0 else 1 - share) * params.one_half)
        x = np.rint(x).astype(np.int64)
        x[1, -1] = params.one_half - x[0, -1]
        verdict = judge(played, sealed_input(played, x.reshape(-1)))
        if verdict.accepted:
            accepted += 1
            assert verdict.weight <= 2**params.weight_bits
            worst = max(worst, float((x.astype(np.float64) ** 2).sum()) * 4.0**-params.update_bits)
    assert accepted > 1000
    assert worst < 1.8 / (1 - 6 * math.sqrt(2 / 256))


def test_products_of_the_wrong_kind_are_refused() -> None:
    played = play("m31", n=1)
    good = played.params.field.zeros((2, NUM_PRODUCTS))
    for bad in (good[:, :-1], good.astype(np.int64), np.full_like(good, 2**31 - 1)):
        with pytest.raises(DecodeError):
            kdc_check(played.params, bad, good, played.keys[0], played.lam)
    assert isinstance(played.inputs[0], EncodedInput)
