"""ALIE, "A Little Is Enough": a shift hidden inside the benign spread (Baruch, Baruch, Goldberg, NeurIPS 2019).

All attackers send ``mu + z * sigma`` per coordinate, with mu and the population standard deviation sigma estimated from
the attackers' own updates (partial knowledge, as published) or from the benign ones (full). z is the largest shift that
leaves ``floor(n / 2 + 1) - f`` benign clients farther out, so that the attackers pass for the majority:
``z = Phi^-1((n - f - s) / (n - f))``, ``s = floor(n / 2 + 1) - f``.

The published code sends ``mean - z * std`` of *gradients*; a movement is minus a positive multiple of a gradient, so
here it is ``mean + z * std``. Small groups can give a negative z, which is the formula's own answer.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from ebscfl.arrays import Array
from ebscfl.attacks.view import AttackView, finish, observed_updates
from ebscfl.errors import UsageError


def largest_shift(num_clients: int, attackers: int) -> float:
    """z for n clients of which f attack; refused where the formula has no finite value."""
    supporters = num_clients // 2 + 1 - attackers
    benign = num_clients - attackers
    if supporters <= 0 or benign - supporters <= 0:
        raise UsageError(
            f"ALIE has no finite z for {attackers} attackers among {num_clients} clients: "
            "it needs n >= 3 and f < n/2 + 1; set z by hand"
        )
    return NormalDist().inv_cdf((benign - supporters) / benign)


def craft(view: AttackView, *, rng: np.random.Generator, knowledge: str = "partial", z: float | None = None) -> Array:
    """Every row is ``mu + z * sigma``; ``z=None`` computes it from n and f. One attacker alone sees no spread: mu."""
    if z is not None and not math.isfinite(z):
        raise UsageError(f"z must be finite, not {z}")
    shift = largest_shift(view.num_clients, len(view.attackers)) if z is None else z
    observed = observed_updates(view, "ALIE", knowledge)
    return finish(observed.mean(dim=0) + shift * observed.std(dim=0, correction=0), view)
