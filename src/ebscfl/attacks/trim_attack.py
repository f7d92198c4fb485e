"""Trim attack: directed deviation against coordinate-wise rules (Fang, Cao, Jia, Gong, USENIX Security 2020).

Let s_j be the sign of the sum of coordinate j over the clean updates: where the model would go. The attackers push
every coordinate the other way, just beyond all clean values, so that trimming drops benign values in their place.

The attack is odd, so it reads the same for movements as for the gradients of the cited code: with s > 0 the crafted
value lies at or below the smallest clean one, with s < 0 at or above the largest.

* full knowledge: over all n clean updates, the attackers' own included. The value is ``extreme / r`` where the extreme
  has the sign s and ``extreme * r`` where it has the other, r ~ U(1, 2) per attacker and coordinate. (The official
  FLTrust code also counts the server's update among the clean ones; the paper does not, nor do we.)
* partial knowledge: mean mu and population standard deviation sigma of the attackers' own clean updates;
  ``mu - s * sigma * U(3, 4)`` with s = sign(mu).
"""

from __future__ import annotations

import numpy as np
import torch

from ebscfl.arrays import Array
from ebscfl.attacks.view import AttackView, all_updates, finish, is_full, own_updates, uniform
from ebscfl.errors import UsageError


def craft(
    view: AttackView,
    *,
    rng: np.random.Generator,
    knowledge: str = "full",
    reach: float = 2.0,
    sigmas: tuple[float, float] = (3.0, 4.0),
) -> Array:
    """``reach`` is the paper's b (upper end of r, full knowledge), ``sigmas`` the range under partial knowledge."""
    if not reach > 1.0:
        raise UsageError(f"reach must be above 1, not {reach}")
    if len(sigmas) != 2 or not 0.0 <= sigmas[0] <= sigmas[1]:
        raise UsageError(f"sigmas must be an ascending pair of non-negative numbers, not {sigmas}")
    own = own_updates(view)
    if not is_full(knowledge):
        mean = own.mean(dim=0)
        spread = own.std(dim=0, correction=0)
        return finish(mean - mean.sign() * spread * uniform(rng, sigmas[0], sigmas[1], own), view)
    everyone = all_updates(view, "trim attack")
    direction = everyone.sum(dim=0).sign()
    extreme = torch.where(direction > 0, everyone.amin(dim=0), everyone.amax(dim=0)) * direction.abs()
    ratio = uniform(rng, 1.0, reach, own)
    return finish(torch.where(direction * extreme > 0, extreme / ratio, extreme * ratio), view)
