"""The spectral attack: every variant of the paper's protocol, scores with sign, and its slow twin on eigenvalues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebscfl import rng
from ebscfl.audit.decode import decode
from ebscfl.audit.paper_keys import receive
from ebscfl.audit.record import cosines, example_truth, judge, play, server_view
from ebscfl.audit.spectral import spectral, split_spectrum

EXACT = 1e-10  # 1 - cosine: float64 through one eigenproblem of condition 2 and a product of keys

VARIANTS: list[tuple[str, tuple[int, int, int], dict[str, Any]]] = [
    ("paper", (8, 2, 301), {}),
    ("paper", (8, 2, 301), {"zeta": "traceless"}),
    ("paper", (8, 3, 100), {"segment": 1}),
    ("paper", (7, 2, 100), {"group": 3}),  # the last group has one client
    ("paper", (8, 2, 100), {"group": 8, "segment": 3}),
    ("paper", (8, 1, 100), {"segment": 2}),
    ("paper-naive", (4, 2, 5), {}),
    ("paper-naive", (4, 2, 5), {"zeta": "traceless"}),
]


@pytest.mark.parametrize(("protocol", "sizes", "options"), VARIANTS)
def test_every_variant_falls(protocol: str, sizes: tuple[int, int, int], options: dict[str, Any]) -> None:
    n, m, dim = sizes
    truth = example_truth(n, m, dim, rng.root_from_seed(5), opposed=0.3)
    record = play(protocol, [truth], seed=5, **options)
    estimate = spectral(server_view(record))
    assert cosines(estimate.updates, truth.updates).min() > 1 - EXACT
    assert estimate.clusters.tolist() == list(truth.clusters)
    assert estimate.scores is not None
    assert np.abs(estimate.scores - truth.scores()).max() < EXACT
    if n > 4:  # both signs were tried
        assert (truth.scores() < 0).any()
        assert (truth.scores() > 0).any()
    finding = judge("spectral", record, estimate)
    assert (finding.updates_recovered, finding.clusters_recovered, finding.of) == (n, n, n)


def test_the_last_of_several_rounds_is_opened_with_the_keys_of_the_first() -> None:
    truths = [example_truth(6, 2, 80, rng.root_from_seed(2), index) for index in range(3)]
    record = play("paper", truths, seed=2)
    assert cosines(spectral(server_view(record)).updates, truths[-1].updates).min() > 1 - EXACT


def test_decode_gets_the_trusted_clients_when_zeta_sums_to_zero() -> None:
    truth = example_truth(8, 2, 200, rng.root_from_seed(1), opposed=0.3)
    trusted = truth.scores() > 0
    for options in ({}, {"group": 4}):
        estimate = decode(server_view(play("paper", [truth], seed=1, **options)))
        assert cosines(estimate.updates, truth.updates)[trusted].min() > 1 - EXACT
        assert (estimate.clusters == np.array(truth.clusters))[trusted].all()
        # ReLU(w) = 0: the key has no share of them, and what is left is rounding.
        lengths = np.linalg.norm(estimate.updates, axis=1)
        assert lengths[~trusted].max() < 1e-6 * lengths[trusted].min()


def test_a_traceless_zeta_masks_the_single_decode_but_not_the_spectrum() -> None:
    truth = example_truth(8, 2, 200, rng.root_from_seed(1))
    view = server_view(play("paper", [truth], seed=1, zeta="traceless"))
    assert (cosines(decode(view).updates, truth.updates) < 0.99).all()
    assert (cosines(spectral(view).updates, truth.updates) > 1 - EXACT).all()


def by_eigenvalues(alpha: np.ndarray, width: int) -> float:
    """The slow twin: try every ratio of two eigenvalues as w and keep the one that pairs the whole spectrum best."""
    values = np.linalg.eigvals(alpha)
    values = values[np.argsort(-np.abs(values))][: 2 * width]
    best, found = np.inf, 0.0
    for candidate in values[1:] / values[0]:
        if abs(candidate.imag) > 1e-7:
            continue
        rest, worst = list(values), 0.0
        while rest:
            partner = candidate.real * rest.pop(0)
            nearest = int(np.argmin([abs(value - partner) for value in rest]))
            worst = max(worst, abs(rest.pop(nearest) - partner))
        if worst < best:
            best, found = worst, float(candidate.real)
    return found


def test_scores_agree_with_the_pairing_of_eigenvalues() -> None:
    truth = example_truth(8, 2, 60, rng.root_from_seed(9), opposed=0.3)
    view = server_view(play("paper", [truth], seed=9))
    got = receive(view)
    for place in range(8):
        alpha = got.alpha(place)
        split = split_spectrum(alpha, got.params.width)
        assert split is not None
        assert abs(split.score - by_eigenvalues(alpha, got.params.width)) < 1e-8
        assert abs(split.score - truth.scores()[place]) < EXACT


def built(seed: int, width: int, cols: int, score: float) -> tuple[np.ndarray, np.ndarray]:
    """alpha from its definition, and the value space it must be taken apart into."""
    draw = rng.numpy_generator(rng.root_from_seed(seed), rng.USAGE_AUDIT, "alpha")
    frame = np.linalg.qr(draw.standard_normal((cols, cols)))[0]
    value, mask = frame[:width], frame[width : 2 * width]
    scramble = np.linalg.qr(draw.standard_normal((width, width)))[0] * np.exp(0.3 * draw.random(width))
    return score * value.T @ scramble @ value + mask.T @ scramble @ mask, value


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    width=st.integers(2, 6),
    spare=st.integers(0, 5),
    size=st.floats(1e-5, 0.99),
    negative=st.booleans(),
)
def test_split_finds_score_and_space(seed: int, width: int, spare: int, size: float, negative: bool) -> None:
    score = -size if negative else size
    alpha, value = built(seed, width, 2 * width + spare, score)
    split = split_spectrum(alpha, width)
    assert split is not None
    assert abs(abs(split.score) - size) < 1e-7
    outside = value - value @ split.value_space.T @ split.value_space
    assert np.abs(outside).max() < 1e-4  # rounding over the gap between two close singular values


def test_a_score_of_zero_is_known_when_the_space_has_no_spare_room() -> None:
    alpha, value = built(1, 4, 8, 0.0)
    split = split_spectrum(alpha, 4)
    assert split is not None
    assert split.score == 0.0
    assert np.abs(value - value @ split.value_space.T @ split.value_space).max() < EXACT
    assert split_spectrum(built(1, 4, 9, 0.0)[0], 4) is None
    assert split_spectrum(np.zeros((8, 8)), 4) is None
