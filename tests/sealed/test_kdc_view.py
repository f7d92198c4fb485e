"""What a curious key center can infer: clusters, from the sketch. The security model says so; this measures it."""

from __future__ import annotations

import numpy as np
from sealed_round import ROOT, play

from ebscfl.sealed import batch_seed, make_sketch, products
from ebscfl.sealed.sketch import BUCKETS, ROWS


def test_the_sketch_gives_the_cluster_to_the_key_center() -> None:
    """Estimate <x, e_k> for the count coordinate of every slot k and take the largest.

    Each of four rows adds noise of variance 1/64 (the update) to one half, so the mean of four has sd 1/16: eight
    sd between the right slot and the others.
    """
    played = play("m31", n=60, dim=6000, m=3)
    params = played.params
    sketch = make_sketch(params, batch_seed(ROOT, 0))
    zero = np.zeros(params.width, dtype=np.int32)
    places = []
    for k in range(3):
        probe = params.field.zeros((2, params.width))
        probe[:, k * params.slot_size + params.dim] = 1
        places.append(params.field.lift(products(params, probe, zero, sketch)[0, 2:]))
    right = 0
    for i in range(60):
        sent = products(params, played.uploads[i].words, played.server_row, sketch)
        own = products(params, played.pads[i], played.server_row, sketch)
        seen = params.field.lift(params.field.subtract(sent[0], own[0]))[2:]
        estimates = [float(seen @ place) / ROWS / 2**params.update_bits for place in places]
        right += int(np.argmax(estimates)) == played.clusters[i]
    assert seen.size == ROWS * BUCKETS
    assert right >= 58
