"""The code itself over F_3: every key enumerated through `seal`, `guard_tags`, `seal_blind`, `kdc_check` and `fold`.

`test_hiding.py` enumerates the equations of c, t, alpha and P; here the functions that run in a round are called, with
all five messages a client's server sees and the two words of the blinding, so that a sign that flips in the source
flips here. One coordinate and its count, one slot: keys r (2), b (2), kappa, b', kappa', r_s, b'_s, which are 3^9.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from sealed_round import ROOT, RUN, generator, play

from ebscfl.errors import VerificationError
from ebscfl.field import M31, M61, Field, FieldStream
from ebscfl.rng import SecretStream
from ebscfl.sealed import (
    NUM_PRODUCTS,
    ClientKeys,
    EncodedInput,
    OpenedSums,
    RunningSum,
    aggregates,
    batch_seed,
    client_keys,
    decide_slots,
    fold,
    kdc_check,
    master_key,
    plan,
    quantize_server_updates,
    release,
    seal,
)
from ebscfl.sealed.encode import guard_tags
from ebscfl.sealed.guard import blind_pads, guard_holds, guard_products, guard_row, seal_blind
from ebscfl.sealed.masks import pads

P = 3
# By name: the package exports a function of the module's own name.
encode_module, guard_module = (import_module(f"ebscfl.sealed.{name}") for name in ("encode", "guard"))


def tiny_kernels() -> ModuleType:
    """What `Field` and `seal` ask of a kernel module, on Python integers."""
    module = ModuleType("tiny")

    def add_slot(slot: np.ndarray, kappa: int, c: np.ndarray, t: np.ndarray) -> None:
        for i, value in enumerate(slot):
            c[i] = (int(c[i]) + int(value)) % P
            t[i] = (int(t[i]) + int(kappa) * int(value)) % P

    def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        out[:] = [int(x) * int(y) % P for x, y in zip(a, b, strict=True)]

    def add(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        out[:] = [(int(x) + int(y)) % P for x, y in zip(a, b, strict=True)]

    def subtract(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        out[:] = [(int(x) - int(y)) % P for x, y in zip(a, b, strict=True)]

    def dot(a: np.ndarray, b: np.ndarray) -> int:
        return sum(int(x) * int(y) for x, y in zip(a, b, strict=True)) % P

    def fold1(y: np.ndarray, alpha: int, c: np.ndarray, t: np.ndarray) -> None:
        y[:] = [(int(v) + int(alpha) * int(one) + int(two)) % P for v, one, two in zip(y, c, t, strict=True)]

    def mask_words(stream: np.ndarray) -> int:
        stream &= P
        return int((stream == P).sum())

    for function in (add_slot, add, subtract, multiply, dot, fold1, mask_words):
        setattr(module, function.__name__, function)
    return module


FIELD = Field("tiny", 2, tiny_kernels())
PARAMS = SimpleNamespace(
    field=FIELD, field_name="tiny", num_clusters=1, dim=1, slot_size=2, width=2,
    one_half=1, update_bits=0, server_bits=0, weight_bits=0, quorum=1, min_slot_weight=0.0, noise_multiplier=0.0,
)  # fmt: skip


def words(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def sealed_view(monkeypatch: pytest.MonkeyPatch, x: int, lam: int, key: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """((c, t, t', alpha, alpha') under one key, rho); checks y - P = rho x and y' - P' = lambda rho x on the way.

    The score is x times G = 1, so rho = ReLU(x), as 0 or 1.
    """
    r, b, kappa, guard_pad, guard_kappa = key[:2], key[2:4], key[4], key[5], key[6]
    keys = ClientKeys(kappa, guard_kappa, words(guard_pad), b"")
    own_pads = np.stack([words(*r), words(*b)])
    monkeypatch.setattr(encode_module, "pads", lambda *_: own_pads.copy())
    upload = seal(PARAMS, EncodedInput(0, np.array([x, 1], dtype=np.int64)), keys)  # type: ignore[arg-type]
    sent, own = FIELD.zeros((2, NUM_PRODUCTS)), FIELD.zeros((2, NUM_PRODUCTS))
    for out, pair in ((sent, upload.words), (own, own_pads)):  # rows (1, 0) and (0, 1): the score and the count
        out[:, 0], out[:, 1] = pair[:, 0], pair[:, 1]
    verdict = kdc_check(PARAMS, sent, own, keys, lam)  # type: ignore[arg-type]
    assert verdict.answer is not None
    sums = [RunningSum(FIELD.zeros(2), FIELD.zeros(1)) for _ in range(2)]
    fold(PARAMS, sums[0], [verdict.answer], [upload.words], [upload.guard])  # type: ignore[arg-type]
    fold(PARAMS, sums[1], [verdict.answer], [own_pads], [keys.guard_pad])  # type: ignore[arg-type]
    rho = verdict.weight
    assert FIELD.lift(FIELD.subtract(sums[0].words, sums[1].words)).tolist() == [rho * x, rho]
    assert int(FIELD.subtract(sums[0].guard, sums[1].guard)[0]) == lam * rho % P
    seen = (*upload.words.reshape(-1), *upload.guard, verdict.answer.alpha, verdict.answer.guard_alpha)
    return tuple(int(v) for v in seen), rho


@pytest.mark.parametrize("x", [-1, 0, 1])
@pytest.mark.parametrize("lam", [0, 1, 2])
def test_keys_to_messages_is_a_bijection_for_every_input_and_lambda(
    monkeypatch: pytest.MonkeyPatch, x: int, lam: int
) -> None:
    """So the messages are uniform and independent of (x, rho, lambda); P follows from them and from rho x."""
    seen = [sealed_view(monkeypatch, x, lam, key) for key in itertools.product(range(P), repeat=7)]
    assert len({view for view, _ in seen}) == P**7
    assert {rho for _, rho in seen} == {max(x, 0)}


@dataclass
class Fixed:
    """A `FieldStream` that gives one word."""

    value: int

    def words(self, size: int) -> np.ndarray:
        return words(*[self.value] * size)


@pytest.mark.parametrize("s", range(P))
def test_the_blinding_word_is_uniform_to_the_server_and_hides_the_slot_from_the_key_center(
    monkeypatch: pytest.MonkeyPatch, s: int
) -> None:
    """Through `seal_blind`, for every kappa' and pads; with an honest tag the check holds and a false one fails."""
    monkeypatch.setattr(guard_module, "FieldStream", lambda *_: Fixed(s))
    for guard_kappa, guard_pad in itertools.product(range(P), repeat=2):
        keys = ClientKeys(0, guard_kappa, words(guard_pad), b"")
        views = set()
        for r_s, b_s in itertools.product(range(P), repeat=2):
            own = words(r_s, b_s)
            monkeypatch.setattr(guard_module, "blind_pads", lambda *_, own=own: own)
            blind = seal_blind(PARAMS, keys, ROOT, 1)  # type: ignore[arg-type]
            views.add(tuple(blind.tolist()))
            for r_count, h in itertools.product(range(P), range(P)):
                counts, row = words((1 + r_count) % P), words(h, 1)
                tags = guard_tags(PARAMS, words(1), keys)  # type: ignore[arg-type]
                mine = guard_products(PARAMS, words(r_count), keys.guard_pad, own, row)  # type: ignore[arg-type]
                sent = guard_products(PARAMS, counts, tags, blind, row)  # type: ignore[arg-type]
                assert guard_holds(PARAMS, sent, mine, keys)  # type: ignore[arg-type]
                assert int(FIELD.subtract(sent, mine)[0]) == (h + s) % P  # uniform over s, whatever h is
                sent[1] = (int(sent[1]) + 1) % P
                assert not guard_holds(PARAMS, sent, mine, keys)  # type: ignore[arg-type]
        assert len(views) == P * P


def test_an_opening_passes_for_one_lambda_only() -> None:
    """Every shift (d, d') of an opened count against every lambda: only d' = lambda d, and the sum must still fit."""
    for lam, d, d2 in itertools.product(range(P), repeat=3):
        opening = np.array([[(1 + d) % P], [(lam + d2) % P]], dtype=np.uint32)
        empty = RunningSum(FIELD.zeros(2), FIELD.zeros(1))
        weight = int(FIELD.lift(opening[0])[0])  # grant the total, so that the tag alone decides
        false = d2 != lam * d % P
        with pytest.raises(VerificationError, match="tag") if false else nullcontext():
            decide_slots(PARAMS, opening, empty, lam, weight)  # type: ignore[arg-type]


def secrets_of(keys: ClientKeys) -> Iterator[int]:
    yield keys.kappa
    yield keys.guard_kappa
    yield from (int(v) for v in keys.guard_pad)


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_every_one_time_secret_is_its_own(field: str) -> None:
    """Scalars, guard pads, first words of r, b and the blinding pads: over rounds, runs and clients none repeats."""
    played = play(field, n=2, dim=20, m=3)
    params = played.params
    master = master_key(ROOT, RUN, 0)
    every = [
        client_keys(params, master, RUN, 1, 0),
        client_keys(params, master, RUN, 2, 0),
        client_keys(params, master, RUN + "x", 1, 0),
        client_keys(params, master, RUN, 1, 1),
        client_keys(params, master_key(ROOT, RUN, 1), RUN, 1, 0),
    ]
    found: list[int] = []
    for keys in every:
        found += secrets_of(keys)
        found += [int(v) for v in blind_pads(params, keys)]
        found += [int(v) for row in pads(params, keys) for v in row[:4]]
    assert len(set(found)) == len(found)  # a chance repetition: below 3000 / 2^31
    seeds = [batch_seed(ROOT, batch) for batch in range(4)]
    assert len({tuple(guard_row(params, seed).tolist()) for seed in seeds}) == 4


def test_the_released_slots_depend_on_the_noise_and_not_on_the_exact_weights() -> None:
    """With differential privacy a slot is judged by what the release will show of it."""
    played = play("m31", n=4, dim=30, m=2, min_slot_weight=0.1, noise_multiplier=0.1)
    params = played.params
    opening = np.stack([played.y.words[params.dim :: params.slot_size], played.y.guard])
    noise = np.zeros(params.width, dtype=np.int64)
    plain = decide_slots(params, opening, played.pads_sum, played.lam, played.weight, noise)
    noise[params.dim] = -round(plain.weights[0] * params.one_half * 2**params.weight_bits)
    noisy = decide_slots(params, opening, played.pads_sum, played.lam, played.weight, noise)
    assert plain.released.tolist() == [True, True]
    assert noisy.released.tolist() == [False, True]
    assert not release(params, played.pads_sum, noisy, noise).words[: params.slot_size].any()


@pytest.mark.parametrize(("n", "dim"), [(5, 1_000_000), (5, 4_000_000)])
def test_the_planner_leaves_enough_bits_for_the_server_updates(n: int, dim: int) -> None:
    """A score against the rounded G is the cosine: with one coordinate worth less than half a unit all would be lost.

    x = G here, so the score is |G|^2 before rounding. Coordinates are cubes of normals: many small, few large, as
    in a real update.
    """
    params = plan(n, dim, 1)
    g = generator(5).standard_normal((1, dim)) ** 3
    row = quantize_server_updates(params, g)
    score = float(row[:-1] @ (g[0] / np.linalg.norm(g))) * 2.0**-params.server_bits
    assert abs(score - 1) < 0.01


def test_split_counts_cannot_blow_up_a_cluster_mean() -> None:
    """Negative counts take a slot's weight away; a mean of unit updates is no longer than one all the same."""
    params = play("m31", n=1, dim=30, m=2).params
    sums = np.zeros((2, 30), dtype=np.int64)
    sums[:, 0] = 1 << (params.update_bits + params.weight_bits)
    one_weight = params.one_half << params.weight_bits
    opened = OpenedSums(sums, np.array([one_weight // 1000, one_weight]), np.array([True, True]))
    means = aggregates(params, opened)
    longest = 1 + 30**0.5 * 2.0**-params.update_bits
    assert np.linalg.norm(means[0]) == pytest.approx(longest, rel=1e-12)
    assert means[1, 0] == 1.0  # an honest mean is not touched, to the bit


@pytest.mark.parametrize("field", [M31, M61])
def test_a_rejected_word_is_drawn_again_from_the_spare_stream(field: Field) -> None:
    """Rejections come once in 2^31 words, so they are put there: two words equal to p, between two that are not."""
    stream = FieldStream(field, ROOT, "review", 1)
    got = np.array([field.modulus, 5, field.modulus, 6], dtype=field.dtype)
    stream.replace_rejected(got)
    spare = SecretStream(ROOT, "review", 1, "spare")
    draw = spare.uint32 if field.bits == 31 else spare.uint64
    expected = [int(v) & field.modulus for v in draw(2)]
    assert got.tolist() == [expected[0], 5, expected[1], 6]


def test_rejection_leaves_every_residue_equally_likely() -> None:
    """Over F_3, where a quarter of all draws is rejected; 5 sd of a binomial share."""
    size = 30_000
    counts = np.bincount(FieldStream(FIELD, ROOT, "review", 2).words(size), minlength=P)
    assert counts.sum() == size
    assert len(counts) == P
    assert np.all(abs(counts - size / 3) < 5 * (size * 2 / 9) ** 0.5)
