"""A whole round of `sealed` by direct calls, with every intermediate value kept: shared by the tests of this folder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ebscfl.field import Words
from ebscfl.rng import root_from_seed
from ebscfl.sealed import (
    ClientKeys,
    EncodedInput,
    RunningSum,
    SealedParameters,
    Upload,
    Verdict,
    batch_seed,
    client_keys,
    encode,
    fold,
    guard_scalar,
    kdc_check,
    make_sketch,
    master_key,
    new_sum,
    pads,
    plan,
    products,
    quantize_server_updates,
    seal,
)

ROOT = root_from_seed(11)
RUN = "test"


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@dataclass
class Round:
    params: SealedParameters
    updates: np.ndarray
    clusters: list[int]
    server: np.ndarray
    server_row: np.ndarray
    keys: list[ClientKeys]
    inputs: list[EncodedInput]
    uploads: list[Upload]
    pads: list[Words]
    verdicts: list[Verdict]
    y: RunningSum
    pads_sum: RunningSum
    lam: int

    @property
    def weight(self) -> int:
        return sum(verdict.weight for verdict in self.verdicts)

    def integer_reference(self) -> np.ndarray:
        """Sum of rho * x as Python integers, (m, dim + 1)."""
        total = np.zeros((self.params.num_clusters, self.params.slot_size), dtype=object)
        for verdict, encoded in zip(self.verdicts, self.inputs, strict=True):
            total[encoded.cluster] += verdict.weight * encoded.slot.astype(object)
        return total


def make_updates(n: int, dim: int, m: int, seed: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Updates at a cosine of about 0.45 to their cluster's server update; every fourth points away."""
    draws = generator(seed)
    server = draws.standard_normal((m, dim))
    clusters = [i % m for i in range(n)]
    pull = np.array([-0.5 if i % 4 == 3 else 0.5 for i in range(n)])
    updates = pull[:, None] * server[clusters] + draws.standard_normal((n, dim))
    return updates, server, clusters


def play(
    field: str, *, n: int = 6, dim: int = 300, m: int = 2, seed: int = 0, round_id: int = 1, **planned: object
) -> Round:
    """n clients play one round; ``planned`` goes to `plan`, whose num_clients may be larger than n."""
    params = plan(**{"num_clients": n, "dim": dim, "num_clusters": m, "field": field, "quorum": 1, **planned})
    updates, server, clusters = make_updates(n, dim, m, seed)
    row = quantize_server_updates(params, server)
    sketch = make_sketch(params, batch_seed(ROOT, 0))
    lam = guard_scalar(params, ROOT, RUN, round_id)
    result = Round(params, updates, clusters, server, row, [], [], [], [], [], new_sum(params), new_sum(params), lam)
    for i in range(n):
        keys = client_keys(params, master_key(ROOT, RUN, i), RUN, round_id, i)
        encoded = encode(params, updates[i], clusters[i], ROOT, round_id, i)
        upload = seal(params, encoded, keys)
        own = pads(params, keys)
        verdict = kdc_check(
            params, products(params, upload.words, row, sketch), products(params, own, row, sketch), keys, lam
        )
        result.keys.append(keys)
        result.inputs.append(encoded)
        result.uploads.append(upload)
        result.pads.append(own)
        result.verdicts.append(verdict)
        assert verdict.answer is not None
        fold(params, result.y, [verdict.answer], [upload.words], [upload.guard])
        fold(params, result.pads_sum, [verdict.answer], [own], [keys.guard_pad])
    return result
