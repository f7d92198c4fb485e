"""What the key center alone can say about an update and its cluster.

Under `paper` it sees root updates and deals keys; no upload passes it, so its best guess of an update is the mean of
the root updates. Under `sealed` it removes the pads from the server's products and holds, for every client, the score
<x, G> and 256 numbers of a random linear sketch S x. From these the best linear estimate is a Gaussian posterior:

    given cluster k:   x = w g_k + one half at count k + e,   e ~ N(0, (1 - w^2)/l) in slot k
    likelihood of k    from y = S x, a Gaussian of mean S(w g_k + count_k / 2) and covariance (1 - w^2)/l · S_k S_k^T
    estimate of x      w g_k + S_k^T (S_k S_k^T)^+ (y - mean)

The estimate's cosine is about sqrt(w^2 + (1 - w^2)·min(1, 256/l)): it fades with the length of the update. The cluster
does not: S is an isometry up to 1/16, so y tells which g_k, and which count, is inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.audit.views import Estimate, Floats, View, nothing, stacked
from ebscfl.plain import unit_rows
from ebscfl.protocol.messages import Commitment, ScoreRequest
from ebscfl.protocol.sealed import parameters
from ebscfl.protocol.sealed.words import from_wire
from ebscfl.sealed import (
    NUM_PRODUCTS,
    SealedParameters,
    Sketch,
    batch_seed,
    client_keys,
    make_sketch,
    master_key,
    pads,
    products,
)
from ebscfl.sealed.sketch import BUCKETS, COARSE, ROWS, WINDOW


def kdc_view(view: View) -> Estimate:
    """The key center's best estimate of every update and cluster."""
    if view.has(ScoreRequest):
        return _from_sketches(view)
    server_updates = view.rounds[-1].server_updates
    if view.public.protocol == "plain" or server_updates is None:
        return nothing(view, "there is no key center")
    n = view.public.num_clients
    guess = unit_rows(server_updates).mean(axis=0)
    note = "no upload passes the key center: its best guess is the mean of the root updates, for everybody the same"
    return stacked(view, [(i, guess, -1) for i in range(n)], note=note)


def _from_sketches(view: View) -> Estimate:
    params = parameters(view.public)
    run, round_id = view.public.run_id.hex(), view.rounds[-1].round_id
    # The committed row is what the key center keeps between rounds.
    row = np.ascontiguousarray(view.last(Commitment).row)
    directions = row.reshape(params.num_clusters, params.slot_size).astype(np.float64) * 2.0**-params.server_bits
    key = _sketch_key(view, round_id)
    claims: list[tuple[int, Floats, int]] = []
    scores = []
    for _, request in view.of(ScoreRequest):
        if request.round_id != round_id:
            continue
        sketch = make_sketch(params, batch_seed(key, request.batch))
        model = SketchModel.of(params, sketch, directions)
        shape = (len(request.clients), 2, NUM_PRODUCTS)
        sent = from_wire(params.field, np.asarray(request.products), shape, name="products")
        for client, rows in zip(request.clients, sent, strict=True):
            keys = client_keys(params, master_key(view.secret, run, client), run, round_id, client)
            own = products(params, pads(params, keys), row, sketch)
            values = params.field.lift(params.field.subtract(rows[0], own[0])).astype(np.float64)
            score = float(values[0]) * 2.0 ** -(params.update_bits + params.server_bits)
            update, cluster = model.estimate(score, values[2:] * 2.0**-params.update_bits)
            claims.append((client, update, cluster))
            scores.append(score)
    note = "score and 256 sketch numbers a client: the update fades with its length, the cluster does not"
    return stacked(view, claims, scores=np.array(scores), note=note)


def _sketch_key(view: View, round_id: int) -> bytes:
    """The round's sketch key is the key center's own choice; it derives it as its role does."""
    return rng.derive(view.secret, rng.USAGE_SEALED_SKETCH, view.public.run_id.hex(), round_id)


@dataclass(frozen=True, eq=False, repr=False)
class SketchModel:
    """S restricted to each slot, as bucket and sign of every coordinate in every row, and its Gram matrices."""

    buckets: npt.NDArray[np.int64]  # (ROWS, m, slot_size) in 0..255
    signs: npt.NDArray[np.float64]  # the same shape
    directions: Floats  # (m, slot_size) g_k
    solvers: Floats  # (m, 256, 256) pseudo-inverse of S_k S_k^T
    log_volumes: Floats  # (m,) log pseudo-determinant of S_k S_k^T
    ranks: npt.NDArray[np.int64]  # (m,)

    @classmethod
    def of(cls, params: SealedParameters, sketch: Sketch, directions: Floats) -> SketchModel:
        """Unroll the two stages of the sketch."""
        shape = (ROWS, params.num_clusters, params.slot_size)
        places, flips = unrolled(params, sketch)
        buckets, signs = places.reshape(shape), flips.reshape(shape)
        solvers, volumes, ranks = [], [], []
        for k in range(params.num_clusters):
            gram = _gram(buckets[:, k, :-1], signs[:, k, :-1])
            values, vectors = np.linalg.eigh(gram)
            kept = values > 1e-9 * values[-1]
            solvers.append((vectors[:, kept] / values[kept]) @ vectors[:, kept].T)
            volumes.append(float(np.log(values[kept]).sum()))
            ranks.append(int(kept.sum()))
        return cls(buckets, signs, directions, np.stack(solvers), np.array(volumes), np.array(ranks))

    def apply(self, k: int, vector: Floats) -> Floats:
        """S of a vector that lies in slot k: (256,)."""
        out = np.zeros(ROWS * BUCKETS)
        for row in range(ROWS):
            out += np.bincount(self.buckets[row, k], self.signs[row, k] * vector, ROWS * BUCKETS)
        return out

    def estimate(self, score: float, sketched: Floats) -> tuple[Floats, int]:
        """(update, cluster) of largest posterior from w and S x."""
        width = self.directions.shape[1]
        spread = max(1.0 - score * score, 1e-6) / (width - 1)  # variance of one coordinate of what w does not explain
        best = -math.inf
        found: tuple[Floats, int] = (np.zeros(width - 1), -1)
        for k in range(len(self.directions)):
            mean = score * self.directions[k]
            mean[-1] = 0.5
            rest = sketched - self.apply(k, mean)
            inside = self.solvers[k] @ rest
            # Outside the range of S_k nothing but rounding may be left: weigh it as if it were of that size.
            gram_part = float(rest @ inside)
            outside = max(0.0, float(rest @ rest) - float(np.sum(self._project(k, inside) * rest)))
            likelihood = -0.5 * (gram_part / spread + self.log_volumes[k] + self.ranks[k] * math.log(spread))
            likelihood -= 0.5 * outside / 1e-6
            if likelihood > best:
                back = (self.signs[:, k] * inside[self.buckets[:, k]]).sum(axis=0)
                best, found = likelihood, ((mean + back)[:-1], k)
        return found

    def _project(self, k: int, inside: Floats) -> Floats:
        """S_k S_k^T applied to the solution: what of the rest lies in the range of S_k."""
        back = (self.signs[:, k] * inside[self.buckets[:, k]]).sum(axis=0)
        back[-1] = 0.0
        return self.apply(k, back)


def unrolled(params: SealedParameters, sketch: Sketch) -> tuple[npt.NDArray[np.int64], Floats]:
    """(ROWS, width) bucket in 0..255 and sign of every coordinate: the sketch as the sparse matrix it is."""
    places = np.arange(params.width)
    windows, inside = places // WINDOW, places % WINDOW
    buckets, signs = [], []
    for row in range(ROWS):
        table = row // 2
        coarse = (sketch.starts[table, windows] + inside) % COARSE
        code = sketch.hashes[row, coarse].astype(np.int64)
        flips = sketch.signs.astype(np.int64) + (code >> 6)
        buckets.append(row * BUCKETS + (code & (BUCKETS - 1)))
        signs.append(1.0 - 2.0 * (flips & 1))
    return np.stack(buckets), np.stack(signs)


def _gram(buckets: npt.NDArray[np.int64], signs: Floats) -> Floats:
    """S_k S_k^T from the sparse form: entry (a, b) sums the sign products of coordinates that lie in both buckets."""
    size = ROWS * BUCKETS
    gram = np.zeros(size * size)
    for one in range(ROWS):
        for two in range(ROWS):
            gram += np.bincount(buckets[one] * size + buckets[two], signs[one] * signs[two], size * size)
    return gram.reshape(size, size)
