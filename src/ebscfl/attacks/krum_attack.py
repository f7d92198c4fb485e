"""Krum attack: the largest step backwards that Krum would still select (Fang, Cao, Jia, Gong, USENIX Security 2020).

All attackers send nearly the same vector ``-lambda * s`` where s is the sign of the estimated benign update; because
they lie close together, Krum's score of each is small. lambda starts at an upper bound and is halved until Krum,
played by the attackers on what they know, selects one of them. The attack is odd: it reads the same for movements and
gradients (the model moves to ``theta + movement``, so ``-lambda * s`` moves it against the benign direction).

Details and where they differ from public code, which does not agree with itself:

* Krum is played with squared distances and n - f - 2 neighbors (at least one: below Krum's 2f + 2 < n the attackers
  play the nearest thing to it instead of giving up);
* the start is the paper's bound, ``sqrt(min_i sum D^2 / ((n - 2f - 1) d)) + max_i ||u_i|| / sqrt(d)`` over benign i
  (quoted from memory, not confirmed). The released code starts at 1.0 for every data set, which has no meaning for
  movements, whose size carries the learning rate. The search stops at ``floor`` times the start (the code: 1e-5);
* attackers after the first add noise of norm U(0, 1) * ``epsilon`` times the norm of the crafted vector, so that the
  rows are not literally equal (the code: 0.01, absolute).
* partial knowledge: s from the mean of the attackers' own updates; these play the benign clients, against k = 1, 2, ...
  fake ones, until Krum selects a fake.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ebscfl.arrays import Array
from ebscfl.attacks.view import (
    AttackView,
    all_updates,
    benign_updates,
    finish,
    is_full,
    own_updates,
    uniform,
)
from ebscfl.errors import UsageError
from ebscfl.rules.geometry import squared_distances


def craft(
    view: AttackView,
    *,
    rng: np.random.Generator,
    knowledge: str = "full",
    epsilon: float = 0.01,
    floor: float = 1e-5,
) -> Array:
    """Row 0 is ``-lambda * s``; the other rows are within ``epsilon`` of it, relative to its norm."""
    if not 0.0 <= epsilon < 1.0 or not 0.0 < floor < 1.0:
        raise UsageError(f"epsilon must be in [0, 1) and floor in (0, 1), not {epsilon} and {floor}")
    own = own_updates(view)
    faulty = own.shape[0]
    if is_full(knowledge):
        everyone = all_updates(view, "krum attack")
        benign = benign_updates(view, "krum attack")
        direction = everyone[_select(squared_distances(everyone), faulty)].sign()
        scale, _ = _search(benign, direction, fakes=faulty, faulty=faulty, floor=floor)
    else:
        direction = own.mean(dim=0).sign()
        scale = 0.0
        # At k = f + 1 fakes the neighbors of a fake are all fakes, at distance 0: the search cannot fail there.
        for fakes in range(1, faulty + 2):
            scale, selected = _search(own, direction, fakes=fakes, faulty=fakes, floor=2.0 * floor)
            if selected:
                break
    leader = -scale * direction
    noise = uniform(rng, -0.5, 0.5, own)
    length = epsilon * uniform(rng, 0.0, 1.0, own[:, :1]) * leader.norm()
    noise = noise * (length / noise.norm(dim=1, keepdim=True))
    noise[0] = 0.0
    return finish(leader + noise, view)


def _search(
    benign: torch.Tensor, direction: torch.Tensor, *, fakes: int, faulty: int, floor: float
) -> tuple[float, bool]:
    """The largest halving of the start lambda at which Krum selects a fake, and whether there was one above the floor.

    The distance of ``-lambda * s`` to a benign u is ``||u||^2 + 2 lambda <s, u> + lambda^2 ||s||^2``: every trial
    costs O(n^2 log n), not O(n^2 d).
    """
    between = squared_distances(benign)
    wide = benign.double()
    norms = (wide * wide).sum(dim=1)
    along = wide @ direction.double()
    energy = float((direction != 0).sum())
    start = _upper_bound(between, norms, dim=benign.shape[1], num_clients=benign.shape[0] + fakes, faulty=faulty)
    total = benign.shape[0] + fakes
    scale = start
    while scale > floor * start:
        distances = between.new_zeros((total, total))
        distances[fakes:, fakes:] = between
        to_benign = (norms + 2.0 * scale * along + scale * scale * energy).clamp_min(0.0)
        distances[:fakes, fakes:] = to_benign
        distances[fakes:, :fakes] = to_benign[:, None]
        if _select(distances, faulty) < fakes:
            return scale, True
        scale *= 0.5
    return scale, False


def _upper_bound(between: torch.Tensor, norms: torch.Tensor, *, dim: int, num_clients: int, faulty: int) -> float:
    """The paper's upper bound on lambda, with its denominator kept at 1 or above."""
    neighbors = min(max(1, num_clients - faulty - 2), between.shape[0] - 1)
    nearest = between.sort(dim=1).values[:, 1 : 1 + neighbors].sum(dim=1).min()  # column 0 is the row itself
    spread = float(nearest) / (max(1, num_clients - 2 * faulty - 1) * dim)
    return math.sqrt(spread) + math.sqrt(float(norms.max()) / dim)


def _select(distances: torch.Tensor, faulty: int) -> int:
    """Krum's choice from squared distances: smallest sum over the n - f - 2 nearest others."""
    total = distances.shape[0]
    neighbors = max(1, total - faulty - 2)
    others = distances.clone().fill_diagonal_(math.inf)
    return int(others.sort(dim=1).values[:, :neighbors].sum(dim=1).argmin())
