"""Statistics over many rounds: is a reading of `sealed` uploads distinguishable from noise, and how surely.

Under the null hypothesis (the server's view is uniform whatever the inputs are) every test statistic below has a known
distribution, so a p-value is exact up to the normal approximation of sums of thousands of terms. Several readings are
tried; the p-value reported is Bonferroni's.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl.audit.record import RECOVERED, Finding, Record, binomial_p, cosines, normal_p
from ebscfl.audit.sealed_uploads import READINGS, read_uploads, weigh
from ebscfl.audit.views import View

ALARM = 1e-6
"""A p-value below this turns the audit red; by luck that happens once in a million audits."""


@dataclass(frozen=True)
class Reading:
    """One reading over all rounds."""

    name: str
    z: float  # mean cosine in standard errors
    hits: int  # clusters guessed right
    trials: int
    recovered: int
    median: float

    def p_values(self, chance: float) -> tuple[float, float]:
        """Of the cosines and of the cluster guesses."""
        return normal_p(self.z), binomial_p(self.hits, self.trials, chance)


def uploads_finding(record: Record, view: View) -> list[Finding]:
    """Two findings: what the uploads say about the updates, and what they say about the clusters."""
    started = time.perf_counter()
    chance = 1.0 / record.setup.num_clusters
    readings = [_over_rounds(record, view, name) for name in READINGS]
    seconds = time.perf_counter() - started
    best = max(readings, key=lambda r: abs(r.z))
    p_update = min(1.0, len(readings) * normal_p(best.z))
    luckiest = min(readings, key=lambda r: r.p_values(chance)[1])
    p_cluster = min(1.0, len(readings) * luckiest.p_values(chance)[1])
    rounds = len(record.truths)
    updates = Finding(
        "uploads", record.setup.protocol, best.recovered, best.trials, best.hits, best.median, chance, seconds,
        statistic=best.z, p_value=p_update,
        note=f"best of {len(readings)} readings: {best.name!r}, over {rounds} rounds; z of the mean cosine",
    )  # fmt: skip
    share = luckiest.hits / luckiest.trials
    clusters = Finding(
        "clusters", record.setup.protocol, luckiest.recovered, luckiest.trials, luckiest.hits, luckiest.median, chance,
        seconds, statistic=share, p_value=p_cluster,
        note=f"best of {len(readings)} readings: {luckiest.name!r}; share of clusters right, exact binomial test",
    )  # fmt: skip
    return [updates, clusters]


def _over_rounds(record: Record, view: View, name: str) -> Reading:
    found: list[npt.NDArray[np.float64]] = []
    hits = trials = 0
    for position, estimate in read_uploads(view, name):
        truth = record.truths[position]
        targets = list(estimate.targets)
        found.append(cosines(estimate.updates, truth.updates[targets]))
        hits += int((estimate.clusters == np.array(truth.clusters)[targets]).sum())
        trials += len(targets)
    if not found:
        return Reading(name, 0.0, 0, 0, 0, 0.0)
    values = np.concatenate(found)
    # A uniform direction has cosine of variance exactly 1/l with any fixed unit vector.
    z = float(values.mean()) * math.sqrt(record.setup.dim * values.size)
    return Reading(name, z, hits, trials, int((values >= RECOVERED).sum()), float(np.median(values)))


def weights_finding(record: Record, view: View) -> Finding:
    """Whether answers tell anything about the trust weights: correlation, Fisher's z."""
    started = time.perf_counter()
    weights = np.array([np.maximum(truth.scores(), 0.0) for truth in record.truths])  # (rounds, n)
    changes = weights[1::2] - weights[: len(weights) // 2 * 2 : 2]
    wanted = {"answers": weights, "differences": changes, "refusals": (weights == 0).astype(np.float64)}
    readings = {name: _fisher_z(values, wanted[name]) for name, values in weigh(view).items()}
    name = max(readings, key=lambda key: abs(readings[key]))
    n = record.setup.num_clients
    return Finding(
        "weights", record.setup.protocol, 0, n, 0, 0.0, 1.0 / record.setup.num_clusters,
        time.perf_counter() - started, statistic=readings[name],
        p_value=min(1.0, len(readings) * normal_p(readings[name])),
        note=f"best of {len(readings)} readings: {name!r}; Fisher's z of its correlation with the trust weight",
    )  # fmt: skip


def _fisher_z(one: npt.NDArray[np.float64], two: npt.NDArray[np.float64]) -> float:
    a, b = one.reshape(-1), two.reshape(-1)
    if a.size < 4 or a.std() == 0 or b.std() == 0:
        return 0.0
    r = float(np.clip(np.corrcoef(a, b)[0, 1], -1 + 1e-12, 1 - 1e-12))
    return math.atanh(r) * math.sqrt(a.size - 3)
