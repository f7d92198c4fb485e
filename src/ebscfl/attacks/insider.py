"""Insider: an attacker that knows the rule, its own cluster's root update and how well honest clients score. Our own.

Trust by cosine looks at one number of an update: its cosine with the root update e_0. So every attacker sends a vector
with the very cosine honest clients have, and uses all the freedom that is left against them: with rho the mean of
ReLU(cosine) of the observed updates and w the direction of what their unit vectors share across e_0,

    ``u = ||base|| (rho e_0 - sqrt(1 - rho^2) w)``.

No rule that judges by these cosines, of one round or all, can tell such a client from an honest one. What it can do
is bounded, because along e_0 it must push the right way. The attack shows that bound. ``score`` replaces rho: higher
buys more weight under rules that weigh by the score and leaves less to push with.

Odd: negating every input negates the output, so it reads the same for movements and gradients.
"""

from __future__ import annotations

import math

import numpy as np

from ebscfl.arrays import Array
from ebscfl.attacks.adaptive import unit_rows
from ebscfl.attacks.view import PARTIAL, AttackView, base_update, finish, is_full, observed_updates
from ebscfl.errors import UsageError


def craft(
    view: AttackView,
    *,
    rng: np.random.Generator,
    knowledge: str = "full",
    base: str = "true",
    score: float | None = None,
) -> Array:
    """Every row is the vector above. ``knowledge``: rho and w from the benign updates, or ("partial") from the own."""
    if score is not None and not 0.0 <= score <= 1.0:
        raise UsageError(f"score must be a cosine in 0..1, not {score}")
    steer = base_update(view, "insider attack", base)
    length = steer.norm()
    if float(length) == 0.0:
        raise UsageError("the base update is zero: it has no direction to stay close to")
    unit_base = steer / length
    alone = len(view.attackers) == view.num_clients and is_full(knowledge)  # then their own are all there is to see
    observed = unit_rows(observed_updates(view, "insider attack", PARTIAL if alone else knowledge))
    cosines = observed @ unit_base
    rho = min(1.0, float(cosines.clamp_min(0.0).mean())) if score is None else score
    shared = observed.mean(dim=0)
    across = unit_rows((shared - (shared @ unit_base) * unit_base)[None])[0]
    return finish(length * (rho * unit_base - math.sqrt(1.0 - rho * rho) * across), view)
