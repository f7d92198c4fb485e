"""At full size: views made from the output alone cannot be told from real ones by statistics or a trained classifier.

The simulator draws c, t and alpha uniformly and computes P from them and the output. Thresholds are six standard
deviations of the statistic under the hypothesis that both are alike (one false alarm in 10^9).
"""

from __future__ import annotations

import numpy as np
import pytest
from sealed_round import ROOT, Round, generator, play

from ebscfl.field import FieldStream, Words

both = pytest.mark.parametrize("field", ["m31", "m61"])


def real_view(played: Round) -> list[Words]:
    """c and t of all clients, the answers, and P."""
    answers = [v.answer for v in played.verdicts if v.answer is not None]
    words = np.concatenate([u.words for u in played.uploads])
    alphas = np.array([a.alpha for a in answers], dtype=played.params.field.dtype)
    return [words, alphas, played.pads_sum.words]


def simulated_view(played: Round, label: int) -> list[Words]:
    """The same without any input: only the integer output and the number of clients are used."""
    field, n = played.params.field, len(played.uploads)
    stream = FieldStream(field, ROOT, "simulator", label)
    words = stream.words(2 * n * played.params.width).reshape(2 * n, -1)
    alphas = stream.words(n)
    y = field.zeros(played.params.width)
    field.fold(y, [int(a) for a in alphas], [words[2 * i : 2 * i + 2] for i in range(n)])
    output = played.integer_reference().reshape(-1).astype(np.int64)
    return [words, alphas, field.subtract(y, field.embed(output))]


def byte_statistics(words: Words, bits: int) -> list[float]:
    """Chi-square of each byte of the words in standard deviations from its mean (255 degrees of freedom)."""
    found = []
    for shift in range(0, bits - 8, 8):
        limb = ((words.reshape(-1) >> np.array(shift, dtype=words.dtype)) & 255).astype(np.int64)
        expected = limb.size / 256
        chi = float(((np.bincount(limb, minlength=256) - expected) ** 2).sum() / expected)
        found.append((chi - 255) / np.sqrt(2 * 255))
    return found


@both
def test_limbs_of_real_and_simulated_views_are_uniform(field: str) -> None:
    played = play(field, n=4, dim=25_000, m=2)
    for view in (real_view(played), simulated_view(played, 0)):
        for words in (view[0], view[2]):
            assert max(abs(s) for s in byte_statistics(words, played.params.field.bits)) < 6


@both
def test_no_word_of_the_view_correlates_with_the_inputs(field: str) -> None:
    """The correlation of D independent pairs has standard deviation 1 / sqrt(D)."""
    played = play(field, n=4, dim=25_000, m=2)
    lift = played.params.field.lift
    for i, encoded in enumerate(played.inputs):
        x = encoded.dense(played.params).astype(np.float64)
        vectors = [*played.uploads[i].words, played.uploads[(i + 1) % 4].words[0], played.pads_sum.words]
        for vector in vectors:
            assert abs(np.corrcoef(x, lift(vector).astype(np.float64))[0, 1]) < 6 / np.sqrt(x.size)


def features(view: list[Words], p: int) -> np.ndarray:
    """Words scaled to [-1, 1), their absolute values (sizes), and products of neighbors."""
    flat = np.concatenate([part.reshape(-1) for part in view]).astype(np.float64) / p * 2 - 1
    return np.concatenate([flat, np.abs(flat), flat[1:] * flat[:-1], [1.0]])


def distinguish(first: np.ndarray, second: np.ndarray) -> float:
    """Accuracy on held-out views of a logistic regression trained to tell ``first`` from ``second``."""
    x = np.concatenate([first, second])
    y = np.concatenate([np.zeros(len(first)), np.ones(len(second))])
    order = generator(3).permutation(len(x))
    x, y = x[order], y[order]
    half = len(x) // 2
    center, spread = x[:half].mean(axis=0), x[:half].std(axis=0) + 1e-9
    x = (x - center) / spread
    weights = np.zeros(x.shape[1])
    for _ in range(300):
        probability = 1 / (1 + np.exp(-np.clip(x[:half] @ weights, -30, 30)))
        weights -= 0.1 * (x[:half].T @ (probability - y[:half]) / half + 1e-3 * weights)
    return float(((x[half:] @ weights > 0) == (y[half:] > 0.5)).mean())


def test_a_trained_distinguisher_stays_at_chance_and_would_see_a_leak() -> None:
    """600 views each; on the 600 held-out ones chance has standard deviation 0.5 / sqrt(600)."""
    rounds = [play("m31", n=2, dim=3, m=2, seed=0, round_id=k) for k in range(600)]
    p = rounds[0].params.field.modulus
    real = np.array([features(real_view(played), p) for played in rounds])
    simulated = np.array([features(simulated_view(played, k), p) for k, played in enumerate(rounds)])
    chance = 0.5 / np.sqrt(600)
    assert abs(distinguish(real, simulated) - 0.5) < 6 * chance
    # Without kappa an answer is the weight itself: a small number, which the same classifier finds.
    leaky = []
    for played in rounds:
        words, _, pads = real_view(played)
        weights = np.array([v.weight for v in played.verdicts], dtype=words.dtype)
        leaky.append(features([words, weights, pads], p))
    assert distinguish(np.array(leaky), simulated) > 0.5 + 12 * chance
