"""Clients that lie are rejected and named through the real roles; rates over 10 000 uploads with Wilson intervals.

A rate is measured where the randomness is: through encode, seal, the server's products and the key centre's verdict,
with a fresh key and a fresh sketch for every upload.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sealed_lab import ROOT, Lab, make_lab

from ebscfl import rng
from ebscfl.ids import client_address
from ebscfl.plain import unit_rows
from ebscfl.protocol.messages import Refusal, ScoreAnswer, SealedUpload
from ebscfl.protocol.sealed.words import to_wire
from ebscfl.protocol.states import State
from ebscfl.sealed import (
    ClientKeys,
    SealedParameters,
    Verdict,
    batch_seed,
    client_keys,
    guard_scalar,
    kdc_check,
    make_sketch,
    master_key,
    pads,
    plan,
    products,
    quantize_server_updates,
)
from ebscfl.sealed.encode import guard_tags
from ebscfl.sealed.guard import seal_blind

TRIALS = 10_000
Z = 3.29  # 99.9 %, two-sided
LIAR = 2


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Confidence interval of a rate."""
    share, spread = hits / trials, Z**2 / trials
    center = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return center - half, center + half


def keys_of(lab: Lab, client: int, round_id: int = 1) -> ClientKeys:
    run = lab.setup.run_id.hex()
    master = master_key(rng.derive(ROOT, rng.USAGE_ROLE, "kdc"), run, client)
    return client_keys(lab.params, master, run, round_id, client)


Sealed = tuple[np.ndarray, np.ndarray, np.ndarray]


def seal_any(params: SealedParameters, x: np.ndarray, keys: ClientKeys) -> Sealed:
    """Words, guard and blinding word of any integer input of all slots, properly sealed."""
    field = params.field
    words = pads(params, keys)
    x_words = (x.reshape(-1).astype(object) % field.modulus).astype(field.dtype)
    sealed = np.stack([field.add(words[0], x_words), field.add(words[1], field.multiply(x_words, keys.kappa))])
    guard = guard_tags(params, x_words[params.dim :: params.slot_size].copy(), keys)
    return sealed, guard, seal_blind(params, keys, ROOT, 1)


def honest_input(params: SealedParameters, direction: np.ndarray, slot: int = 0, length: float = 1.0) -> np.ndarray:
    x = np.zeros((params.num_clusters, params.slot_size), dtype=np.int64)
    x[slot, :-1] = np.rint(direction / np.linalg.norm(direction) * length * 2**params.update_bits)
    x[slot, -1] = params.one_half
    return x


def twice_as_long(params: SealedParameters, direction: np.ndarray) -> np.ndarray:
    return honest_input(params, direction, length=2.0)


def opposite_counts(params: SealedParameters, direction: np.ndarray) -> np.ndarray:
    """5 - 4 = 1: the sum of counts is right, their size is not."""
    x = honest_input(params, direction)
    x[:, -1] = [5 * params.one_half, -4 * params.one_half]
    return x


def cancelling_spikes(params: SealedParameters, direction: np.ndarray) -> np.ndarray:
    x = honest_input(params, direction)
    x[0, 3], x[1, 7] = params.field.modulus // 3, -(params.field.modulus // 3)
    return x


def wrong_count(params: SealedParameters, direction: np.ndarray) -> np.ndarray:
    x = honest_input(params, direction)
    x[0, -1] += 1
    return x


def no_count(params: SealedParameters, direction: np.ndarray) -> np.ndarray:
    x = honest_input(params, direction)
    x[0, -1] = 0
    return x


INPUTS: dict[str, tuple[Callable[[SealedParameters, np.ndarray], np.ndarray], str]] = {
    "twice as long": (twice_as_long, "longer than one"),
    "opposite counts": (opposite_counts, "longer than one"),
    "cancelling spikes": (cancelling_spikes, "longer than one"),
    "wrong count": (wrong_count, "count is not one half"),
    "no count": (no_count, "count is not one half"),
}
UPLOADS = (
    "wrong round key",
    "other client's key",
    "random words",
    "swapped halves",
    "one bit",
    "false guard",
    "moved guard",
    "false blind",
)


def bad_upload(lab: Lab, kind: str) -> Sealed:
    x = honest_input(lab.params, lab.updates[LIAR])
    if kind == "wrong round key":
        return seal_any(lab.params, x, keys_of(lab, LIAR, 2))
    if kind == "other client's key":
        return seal_any(lab.params, x, keys_of(lab, LIAR + 1))
    words, guard, blind = seal_any(lab.params, x, keys_of(lab, LIAR))
    if kind == "random words":
        draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "noise")
        return draw.integers(0, lab.params.field.modulus, words.shape).astype(words.dtype), guard, blind
    if kind == "one bit":
        words[0, 9] ^= 1
    if kind in ("false guard", "moved guard"):  # would make an honest server's opening fail, unseen until then
        guard = lab.params.field.add(guard, np.array([5, 0 if kind == "false guard" else 2**31 - 6], dtype=guard.dtype))
    if kind == "false blind":
        blind = lab.params.field.add(blind, np.array([0, 1], dtype=blind.dtype))
    return (words[::-1].copy() if kind == "swapped halves" else words), guard, blind


def play(lab: Lab, words: np.ndarray, guard: np.ndarray, blind: np.ndarray) -> None:
    lab.start(1)
    for i, upload in enumerate(lab.uploads(1)):
        message = SealedUpload(1, to_wire(words), to_wire(guard), to_wire(blind)) if i == LIAR else upload
        lab.deliver(lab.to_server(message, client_address(i)))
    lab.close()
    lab.deliver(lab.server.finish_round())


@pytest.mark.parametrize("lie", sorted(INPUTS))
def test_a_lying_input_is_rejected_and_named_and_the_rest_is_exact(lie: str) -> None:
    lab = make_lab()
    make, why = INPUTS[lie]
    play(lab, *seal_any(lab.params, make(lab.params, lab.server_updates[0]), keys_of(lab, LIAR)))
    rest = [i for i in range(8) if i != LIAR]
    assert list(lab.server.culprits) == [client_address(LIAR)]
    assert why in lab.server.culprits[client_address(LIAR)]
    assert lab.server.outcome is not None
    assert lab.server.outcome.included == tuple(rest)
    assert np.array_equal(lab.server.outcome.aggregates, lab.reference(rest))


@pytest.mark.parametrize("kind", UPLOADS)
def test_an_upload_that_was_not_sealed_so_is_rejected_named_and_barred(kind: str) -> None:
    lab = make_lab()
    play(lab, *bad_upload(lab, kind))
    rest = [i for i in range(8) if i != LIAR]
    assert "not what it sealed" in lab.server.culprits[client_address(LIAR)]
    assert lab.server.outcome is not None
    assert np.array_equal(lab.server.outcome.aggregates, lab.reference(rest))
    assert lab.kdc._store.barred().keys() == {LIAR}
    assert lab.kdc.state is State.SERVING


def test_a_client_cannot_end_the_round_or_speak_for_others() -> None:
    lab = make_lab()
    lab.start(1)
    uploads = lab.uploads(1)
    lab.to_server(Refusal(1, "it is over"), client_address(3))
    lab.to_server(ScoreAnswer(1, 0, (0,), np.zeros((1, 2), dtype=np.uint64), ("",)), client_address(3))
    assert lab.server.refusal is None
    assert "only the key centre" in lab.server.culprits[client_address(3)]
    for i, upload in enumerate(uploads):
        lab.deliver(lab.to_server(upload, client_address(i)))
    lab.close()
    lab.deliver(lab.server.finish_round())
    assert lab.server.outcome is not None
    assert lab.server.outcome.included == tuple(range(8))


class Trials:
    """One liar after the other: fresh keys, fresh sketch, no other costs."""

    def __init__(self, dim: int = 300) -> None:
        self.params = plan(20, dim, 2, "m31")
        draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "trials")
        self.server = unit_rows(draw.standard_normal((2, dim)))
        self.row = quantize_server_updates(self.params, self.server)
        self.lam = guard_scalar(self.params, ROOT, "trials", 1)

    def verdict(self, x: np.ndarray, trial: int, spoil: Callable[[np.ndarray], None] | None = None) -> Verdict:
        keys = client_keys(self.params, master_key(ROOT, "trials", trial), "trials", 1, trial)
        words, _, _ = seal_any(self.params, x, keys)
        if spoil is not None:
            spoil(words)
        sketch = make_sketch(self.params, batch_seed(ROOT, trial))
        sent = products(self.params, words, self.row, sketch)
        own = products(self.params, pads(self.params, keys), self.row, sketch)
        return kdc_check(self.params, sent, own, keys, self.lam)


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["twice as long", "opposite counts", "cancelling spikes", "wrong count"])
def test_rates_of_lying_inputs(lie: str) -> None:
    """None of 10 000 passes: by Wilson, less than 0.11 % would."""
    trials = Trials()
    x = INPUTS[lie][0](trials.params, trials.server[0])
    passed = sum(trials.verdict(x, trial).accepted for trial in range(TRIALS))
    low, high = wilson(passed, TRIALS)
    assert low == pytest.approx(0.0, abs=1e-12)
    assert high < 1.1e-3


@pytest.mark.slow
def test_rates_of_random_words_and_of_honest_uploads() -> None:
    trials = Trials()
    draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "random words")
    x = honest_input(trials.params, trials.server[0])

    def scramble(words: np.ndarray) -> None:
        words[...] = draw.integers(0, trials.params.field.modulus, words.shape)

    scrambled = sum(trials.verdict(x, trial, scramble).accepted for trial in range(TRIALS))
    honest = sum(trials.verdict(x, trial).accepted for trial in range(TRIALS))
    assert scrambled == 0
    assert wilson(scrambled, TRIALS)[1] < 1.1e-3
    assert honest == TRIALS
    assert wilson(honest, TRIALS)[0] > 1 - 1.1e-3


def test_an_update_spread_over_two_slots_moves_no_more_than_an_honest_one_could() -> None:
    """Nobody can see it; through the roles the sums move by rho x, of norm at most sqrt(1.8 / (1 - 6 sd)) each.

    A row norm estimates |x|^2 with relative sd sqrt(2 / 256), and rho <= 2^weight_bits.
    """
    sizes: list[Any] = [(1.0, 0.0, 1.0, 0.0), (0.7, 0.7, 0.5, 0.5), (0.9, 0.4, 1.5, -0.5), (0.6, 0.6, -1.0, 2.0)]
    bound = math.sqrt(1.8 / (1 - 6 * math.sqrt(2 / 256)))
    for a, b, count_a, count_b in sizes:
        lab = make_lab()
        x = np.zeros((2, lab.params.slot_size), dtype=np.int64)
        for slot, (size, count) in enumerate(((a, count_a), (b, count_b))):
            direction = lab.server_updates[slot] / np.linalg.norm(lab.server_updates[slot])
            x[slot, :-1] = np.rint(size * direction * 2**lab.params.update_bits)
            x[slot, -1] = round(count * lab.params.one_half)
        play(lab, *seal_any(lab.params, x, keys_of(lab, LIAR)))
        rest = [i for i in range(8) if i != LIAR]
        assert lab.server.outcome is not None
        if LIAR not in lab.server.outcome.included:
            assert float((x.astype(float) ** 2).sum()) > 1.5 * 4.0**lab.params.update_bits
            continue
        sums, counts = lab.integer_sums(rest)
        got_total = lab.server.outcome.total_weight * 2**lab.params.weight_bits
        one = 2.0**lab.params.update_bits
        got = lab.server.outcome.aggregates * got_total
        moved = got - np.array([[float(v) for v in row] for row in sums]) / one
        assert np.linalg.norm(moved) <= bound * 2**lab.params.weight_bits
        assert abs(got_total - float(counts.sum())) <= 2**lab.params.weight_bits + 1e-6
