"""Gaussian attack: random updates in place of trained ones (Blanchard et al. NIPS 2017; fitted form: Fang et al. 2020).

Sizes are relative to the attackers' own updates, because an absolute standard deviation means something else for every
model and learning rate. The distributions are symmetric about their centers: no sign depends on movement or gradient.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ebscfl.arrays import Array
from ebscfl.attacks.view import AttackView, finish, own_updates
from ebscfl.errors import UsageError

KINDS = ("noise", "additive", "fitted")


def craft(view: AttackView, *, rng: np.random.Generator, kind: str = "noise", scale: float = 1.0) -> Array:
    """Independent normal coordinates for every attacker.

    * ``noise``: mean 0, standard deviation ``scale`` times the root mean square of the attacker's own update, so the
      norm is about ``scale`` times the honest one;
    * ``additive``: the same noise on top of the own update;
    * ``fitted``: per coordinate, mean and ``scale`` times deviation of the attackers' own updates (Fang et al.).
    """
    if kind not in KINDS:
        raise UsageError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if not (scale > 0.0 and math.isfinite(scale)):
        raise UsageError(f"scale must be positive and finite, not {scale}")
    own = own_updates(view)
    draws = torch.from_numpy(rng.standard_normal(tuple(own.shape))).to(own)
    if kind == "fitted":
        return finish(own.mean(dim=0) + scale * own.std(dim=0, correction=0) * draws, view)
    noise = scale * own.norm(dim=1, keepdim=True) / math.sqrt(own.shape[1]) * draws
    return finish(own + noise if kind == "additive" else noise, view)
