"""The key center's estimate: the unrolled sketch is the protocol's own, and the leakage is what arithmetic predicts."""

from __future__ import annotations

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.audit.kdc_view import SketchModel, _gram, unrolled
from ebscfl.audit.kdc_view import kdc_view as estimate_of_kdc
from ebscfl.audit.record import cosines, example_truth, judge, kdc_view, play
from ebscfl.plain import unit_rows
from ebscfl.sealed import make_sketch, plan
from ebscfl.sealed.sketch import sketch_pair

ROOT = rng.root_from_seed(6)


def test_unrolled_sketch_gives_the_protocols_products() -> None:
    params = plan(5, 2500, 2)  # three windows: two full ones and a short one
    sketch = make_sketch(params, ROOT)
    x = rng.numpy_generator(ROOT, rng.USAGE_AUDIT, "x").integers(-99, 99, params.width)
    pair = np.stack([params.field.embed(x)] * 2)
    _, rows = sketch_pair(params, pair, np.zeros(params.width, dtype=np.int32), sketch)
    buckets, signs = unrolled(params, sketch)
    want = sum(np.bincount(b, s * x, 256) for b, s in zip(buckets, signs, strict=True))
    assert np.array_equal(params.field.lift(rows[0].astype(params.field.dtype)), want)
    model = SketchModel.of(params, sketch, np.zeros((2, params.slot_size)))
    both = model.apply(0, x[: params.slot_size].astype(float)) + model.apply(1, x[params.slot_size :].astype(float))
    assert np.array_equal(both, want)


def test_gram_is_the_dense_product() -> None:
    params = plan(5, 700, 1)
    buckets, signs = unrolled(params, make_sketch(params, ROOT))
    dense = np.zeros((256, params.width))
    for row in range(4):
        dense[buckets[row], np.arange(params.width)] += signs[row]
    assert np.array_equal(_gram(buckets, signs), dense @ dense.T)


@pytest.mark.parametrize("dim", [1000, 4000])
def test_under_sealed_it_knows_score_and_cluster_and_a_fading_share_of_the_update(dim: int) -> None:
    truth = example_truth(10, 2, dim, ROOT, opposed=0.3)
    record = play("sealed", [truth], seed=6)
    estimate = estimate_of_kdc(kdc_view(record))
    assert estimate.scores is not None
    assert np.abs(estimate.scores - truth.scores()).max() < 1e-3  # fixed point
    assert judge("kdc-view", record, estimate).clusters_recovered == 10
    # E cos^2 = w^2 + (1 - w^2) rank(S_k) / l, with the rank at most 256.
    square = truth.scores() ** 2
    predicted = np.sqrt(square + (1 - square) * 256 / dim)
    assert abs(np.median(cosines(estimate.updates, truth.updates) / predicted) - 1) < 0.1


def test_an_update_shorter_than_the_sketch_is_recovered_whole() -> None:
    truth = example_truth(6, 2, 60, ROOT)
    record = play("sealed", [truth], seed=6)
    assert judge("kdc-view", record, estimate_of_kdc(kdc_view(record))).updates_recovered == 6


def test_under_paper_it_guesses_the_mean_of_the_root_updates() -> None:
    truth = example_truth(6, 2, 300, ROOT)
    estimate = estimate_of_kdc(kdc_view(play("paper", [truth], seed=6)))
    assert np.allclose(estimate.updates, unit_rows(truth.server_updates).mean(axis=0))
    assert (estimate.clusters == -1).all()


def test_under_plain_there_is_none() -> None:
    estimate = estimate_of_kdc(kdc_view(play("plain", [example_truth(6, 2, 30, ROOT)], seed=6)))
    assert not estimate.updates.any()
