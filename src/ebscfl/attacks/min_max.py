"""Min-max attack: as far out as the benign updates are from one another (Shejwalkar, Houmansadr, NDSS 2021).

All attackers send ``m = mean + gamma * p`` with the largest gamma such that m is no farther from any benign update than
the two farthest benign updates are from each other. The perturbation p is, for movements:

* ``unit``: ``-mean / ||mean||`` and ``sign``: ``-sign(mean)`` (odd, the same for gradients);
* ``std``: ``+std`` (population). Published as ``-std`` of gradients; the sign turns with movements.

Published as a search by halving. The constraint is quadratic in gamma for each benign update,
``||p||^2 gamma^2 + 2 gamma <p, mean - u_i> + ||mean - u_i||^2 <= D^2``, and holds at gamma = 0, so the largest gamma is
the smallest of the positive roots: exact, in one pass. The tests keep the search as its slow twin.
"""

from __future__ import annotations

import numpy as np
import torch

from ebscfl.arrays import Array
from ebscfl.attacks.view import AttackView, finish, observed_updates
from ebscfl.errors import UsageError
from ebscfl.rules.geometry import squared_distances

PERTURBATIONS = ("unit", "std", "sign")


def craft(view: AttackView, *, rng: np.random.Generator, knowledge: str = "full", perturbation: str = "unit") -> Array:
    """The benign updates are the group's (full) or the attackers' own (partial; with one attacker gamma is then 0)."""
    observed = observed_updates(view, "min-max", knowledge).double()
    mean = observed.mean(dim=0)
    push = perturbation_of(observed, mean, perturbation)
    energy = push.dot(push)
    if float(energy) == 0.0:
        return finish(mean, view)  # all benign updates are equal or zero: there is no direction to go
    limit = squared_distances(observed).max()
    from_mean = mean - observed
    half = from_mean @ push / energy
    # The mean is never farther from u_i than the farthest benign update is, so the room is not negative.
    room = (limit - (from_mean * from_mean).sum(dim=1)).clamp_min(0.0) / energy
    gamma = (torch.sqrt(half * half + room) - half).min().clamp_min(0.0)
    return finish(mean + gamma * push, view)


def perturbation_of(observed: torch.Tensor, mean: torch.Tensor, kind: str) -> torch.Tensor:
    """(d,): the direction p of the module's first lines."""
    if kind == "unit":
        norm = mean.norm()
        return -mean / norm if float(norm) > 0.0 else torch.zeros_like(mean)
    if kind == "std":
        return observed.std(dim=0, correction=0)
    if kind == "sign":
        return -mean.sign()
    raise UsageError(f"perturbation must be one of {', '.join(PERTURBATIONS)}, not {kind!r}")
