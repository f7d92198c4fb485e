"""Sign flip: attackers send their update, or the mean of theirs, backwards (Li et al., RSA, AAAI 2019).

Odd in its input: the same for movements and gradients.
"""

from __future__ import annotations

import math

import numpy as np

from ebscfl.arrays import Array
from ebscfl.attacks.view import AttackView, finish, own_updates
from ebscfl.errors import UsageError


def craft(view: AttackView, *, rng: np.random.Generator, scale: float = 1.0, of: str = "own") -> Array:
    """``-scale`` times each attacker's own update (``of="own"``) or the mean of the attackers' (``of="mean"``)."""
    if not (scale > 0.0 and math.isfinite(scale)):
        raise UsageError(f"scale must be positive and finite, not {scale}")
    if of not in ("own", "mean"):
        raise UsageError(f"of must be 'own' or 'mean', not {of!r}")
    own = own_updates(view)
    return finish(-scale * (own if of == "own" else own.mean(dim=0)), view)
