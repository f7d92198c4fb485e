"""The statistics are calibrated: exact small cases, and right rates under a null made of real random words."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.audit.evidence import _fisher_z, _over_rounds
from ebscfl.audit.record import (
    Finding,
    Record,
    binomial_p,
    cosines,
    example_truth,
    judge,
    normal_p,
    play,
    server_view,
)  # fmt: skip
from ebscfl.audit.run import AuditSettings, alarms_of, run_audit
from ebscfl.audit.sealed_uploads import READINGS, SeenRound, guess, read_uploads, seen_rounds, weigh
from ebscfl.audit.views import stacked
from ebscfl.errors import ConfigError
from ebscfl.sealed import plan


@pytest.mark.parametrize(("hits", "trials", "chance"), [(0, 5, 0.5), (3, 5, 0.5), (5, 5, 0.5), (7, 20, 0.25)])
def test_binomial_tail_is_the_sum_of_fractions(hits: int, trials: int, chance: float) -> None:
    p = Fraction(chance)
    want = sum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(hits, trials + 1))
    assert binomial_p(hits, trials, chance) == pytest.approx(float(want), rel=1e-12)


def test_binomial_edges() -> None:
    assert binomial_p(0, 0, 0.5) == 1.0
    assert binomial_p(4, 4, 1.0) == 1.0  # one cluster: every guess is right and says nothing


def test_normal_tail() -> None:
    assert normal_p(0.0) == 1.0
    assert normal_p(1.959963984540054) == pytest.approx(0.05, rel=1e-9)
    assert normal_p(-3.0) == normal_p(3.0)


def test_fisher_z_of_a_known_correlation() -> None:
    x = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    y = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0])  # r = 4/8
    assert _fisher_z(x, y) == pytest.approx(math.atanh(0.5) * math.sqrt(5))
    assert _fisher_z(x, np.ones(8)) == 0.0
    assert _fisher_z(x[:3], y[:3]) == 0.0


def test_cosines_of_uniform_words_have_the_variance_of_the_null() -> None:
    dim, count = 200, 4000
    draw = rng.numpy_generator(rng.root_from_seed(0), rng.USAGE_AUDIT, "null")
    words = draw.integers(-(2**30), 2**30, (count, dim)).astype(np.float64)
    fixed = np.tile(draw.standard_normal(dim), (count, 1))
    found = cosines(words, fixed)
    assert abs(found.mean()) * math.sqrt(dim * count) < 4
    # The variance of a chi-squared mean: relative error sqrt(2 / count), four of them.
    assert abs(found.var() * dim - 1) < 4 * math.sqrt(2 / count)


def sealed_record(rounds: int = 3) -> Record:
    truths = [example_truth(5, 2, 50, rng.root_from_seed(1), i, opposed=0.3) for i in range(rounds)]
    return play("sealed", truths, seed=1)


def test_seen_rounds_are_the_uploads_answers_and_releases() -> None:
    seen = list(seen_rounds(server_view(sealed_record())))
    assert [s.clients for s in seen] == [tuple(range(5))] * 3
    assert all(s.pairs.shape == (5, 2, 2 * 51) and len(s.releases) == 1 and not s.refused.any() for s in seen)


def test_the_answered_reading_opens_a_round_of_one() -> None:
    """With P of the whole set and one client in it, the reading gives rho x exactly: the oracle of that formula."""
    record = sealed_record(1)
    view = server_view(record)
    (seen,) = seen_rounds(view)
    total = seen.pairs[0, 0] * 0
    for pair, alpha in zip(seen.pairs, seen.alphas, strict=True):
        total = seen.field.add(total, seen.field.add(seen.field.multiply(pair[0].copy(), int(alpha)), pair[1]))
    sums = seen.field.lift(seen.field.subtract(total, seen.releases[0])).reshape(2, 51)
    weight = 2.0 ** (seen.params.update_bits + seen.params.weight_bits)
    want = view.rounds[0].sums
    assert want is not None
    assert np.allclose(sums[:, :-1] / weight, want, atol=1e-9)
    released = READINGS["answered"](seen, None)
    assert released is not None


def fake_round(slots: np.ndarray) -> SeenRound:
    params = plan(5, slots.shape[-1] - 1, slots.shape[1])
    words = params.field.embed(slots.reshape(len(slots), -1))
    pairs = np.stack([words, words], axis=1)
    n = len(slots)
    return SeenRound(params, 1, tuple(range(n)), pairs, np.zeros(n, np.uint64), np.zeros(n, bool), ())


def test_readings_find_an_input_that_is_not_masked() -> None:
    draw = rng.numpy_generator(rng.root_from_seed(2), rng.USAGE_AUDIT, "x")
    slots = np.zeros((2, 3, 41), dtype=np.int64)
    for client, cluster in enumerate((2, 0)):
        slots[client, cluster, :-1] = draw.integers(-900, 900, 40)
    seen = fake_round(slots)
    slots[0, 2, -1] = slots[1, 0, -1] = seen.params.one_half
    seen = fake_round(slots)
    for name in ("masked", "counted"):  # t = kappa x with kappa = 1 is an instance of kappa x
        words = READINGS[name](seen, None)
        assert words is not None
        updates, clusters = guess(seen, words)
        assert clusters.tolist() == [2, 0]
        true = np.stack([slots[0, 2, :-1], slots[1, 0, :-1]]).astype(np.float64)
        assert np.allclose(cosines(updates, true), 1.0)
    assert READINGS["repeated"](seen, None) is None
    assert READINGS["answered"](seen, None) is None
    again = READINGS["repeated"](seen, seen)
    assert again is not None
    assert not again.any()


def test_weights_are_read_per_round_and_per_pair_of_rounds() -> None:
    found = weigh(server_view(sealed_record(5)))
    assert {name: values.shape for name, values in found.items()} == {
        "answers": (5, 5), "differences": (2, 5), "refusals": (5, 5),
    }  # fmt: skip
    assert not found["refusals"].any()


def test_judging_counts_hits_at_the_stated_cosine() -> None:
    record = sealed_record(1)
    truth = record.truths[0]
    view = server_view(record)
    claims = [(i, truth.updates[i] if i else -truth.updates[i], truth.clusters[i]) for i in range(5)]
    finding = judge("all but the sign of one", record, stacked(view, claims))
    assert (finding.updates_recovered, finding.of, finding.clusters_recovered) == (4, 5, 5)
    assert finding.chance == 0.5
    assert "statistic" not in finding.to_json()


@pytest.mark.slow
def test_statistics_of_real_sealed_rounds_are_standard_normal() -> None:
    """Six statistics of each of sixteen independent runs: mean 0 and variance 1, four standard errors allowed."""
    found = []
    for seed in range(16):
        root = rng.root_from_seed(5000 + seed)
        truths = [example_truth(8, 2, 100, root, i, opposed=0.2) for i in range(16)]
        record = play("sealed", truths, seed=5000 + seed)
        view = server_view(record)
        found += [_over_rounds(record, view, name).z for name in READINGS]
        weights = np.array([np.maximum(truth.scores(), 0.0) for truth in truths])
        readings = weigh(view)
        found.append(_fisher_z(readings["answers"], weights))
        found.append(_fisher_z(readings["differences"], weights[1::2] - weights[::2]))
    z = np.array(found)
    # Readings of one run share uploads, so count a run's six as two independent ones at least.
    independent = len(z) / 3
    assert abs(z.mean()) < 4 / math.sqrt(independent)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / independent)


def test_reading_gives_one_estimate_a_round() -> None:
    view = server_view(sealed_record(3))
    assert [position for position, _ in read_uploads(view, "masked")] == [0, 1, 2]
    assert [position for position, _ in read_uploads(view, "repeated")] == [1, 2]


def test_alarms_concern_only_what_a_private_protocol_promises() -> None:
    def finding(name: str, protocol: str, recovered: int, p: float | None) -> Finding:
        return Finding(name, protocol, recovered, 5, 0, 0.0, 0.5, 0.0, None if p is None else 1.0, p)

    assert alarms_of(finding("spectral", "paper", 5, None)) == []
    assert alarms_of(finding("spectral", "paper, groups of 4", 5, None)) == []
    assert alarms_of(finding("differencing", "sealed", 1, None)) == []
    assert alarms_of(finding("uploads", "sealed", 0, 0.5)) == []
    assert len(alarms_of(finding("uploads", "sealed", 1, 1e-9))) == 2
    assert len(alarms_of(finding("kdc-view", "sealed", 1, None))) == 1


def test_settings_are_checked() -> None:
    for wrong in ({"protocol": "cloud"}, {"clients": 3}, {"rounds": 1}, {"dim": 1}, {"clusters": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong)) if "protocol" not in wrong else "cloud"):
            AuditSettings(**wrong)  # type: ignore[arg-type]


def test_the_whole_audit_at_small_size() -> None:
    report = run_audit(clients=6, clusters=2, dim=600, seed=2, rounds=6)
    by_name = {(f.protocol, f.name): f for f in report.findings}
    for key in (("plain", "read"), ("paper", "spectral"), ("paper", "decode"), ("paper, zeta traceless", "spectral")):
        assert (by_name[key].updates_recovered, by_name[key].clusters_recovered) == (6, 6)
    assert by_name["sealed", "uploads"].updates_recovered == 0
    assert report.alarms == ()
    document = report.to_json()
    wanted = {"name", "protocol", "updates_recovered", "of", "clusters_recovered", "median_cosine", "chance", "seconds"}
    assert all(wanted <= attack.keys() for attack in document["attacks"])
    assert run_audit("plain", 6, 2, 60).settings.protocols == ("plain",)
