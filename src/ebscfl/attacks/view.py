"""What an attacker sees, and the few quantities several attacks share.

The view is frozen and says nothing about the defence: an attack cannot ask which rule runs. Omniscience is granted by
whoever builds the view: ``everyone`` and ``base`` are None unless the experiment's settings grant them.

All vectors are **movements**, ``theta_after - theta_before``. Most cited attack code works on gradients instead,
where ``movement = -learning_rate * gradient``. Attacks that are odd (negating every input negates the output: sign
flip, Krum, Trim, adaptive, min-max with "unit" and "sign") read the same in both; the others say in their docstring
what changed sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ebscfl.arrays import Array, as_tensor, as_updates, like
from ebscfl.errors import UsageError

FULL = "full"
PARTIAL = "partial"


@dataclass(frozen=True, eq=False)
class AttackView:
    """One aggregation group (all clients that claim the same model) as its attackers see it in one round.

    ``own`` are the updates the attackers got by ordinary training; for an attack that also poisons samples they were
    trained on the poisoned ones.
    """

    own: Array  # (f, d)
    attackers: tuple[int, ...]  # positions among the n clients of this group
    num_clients: int  # n
    everyone: Array | None = None  # (n, d) all clean updates, only under full knowledge
    base: Array | None = None  # (d,) the server's root update or the attackers' proxy of it, if granted
    round_id: int = 1  # counts from 1

    def __post_init__(self) -> None:
        own = as_updates(self.own, name="own")
        if len(self.attackers) != own.shape[0]:
            raise UsageError(
                f"own has {own.shape[0]} rows for {len(self.attackers)} attackers: give one row an attacker"
            )
        if len(set(self.attackers)) != len(self.attackers):
            raise UsageError(f"attackers {self.attackers} name a client twice")
        if not all(0 <= i < self.num_clients for i in self.attackers):
            raise UsageError(f"attackers {self.attackers} must be positions below num_clients = {self.num_clients}")
        if self.everyone is not None:
            everyone = as_updates(self.everyone, name="everyone")
            _same_kind(self.own, self.everyone, "everyone")
            if tuple(everyone.shape) != (self.num_clients, own.shape[1]):
                raise UsageError(
                    f"everyone must have shape {(self.num_clients, own.shape[1])}, not {tuple(everyone.shape)}"
                )
        if self.base is not None:
            base = as_tensor(self.base, name="base", ndim=1)
            _same_kind(self.own, self.base, "base")
            if base.shape[0] != own.shape[1]:
                raise UsageError(f"base must have length {own.shape[1]}, not {base.shape[0]}")
            if not bool(torch.isfinite(base).all()):
                raise UsageError("base holds NaN or infinity")


def _same_kind(own: Array, other: Array, name: str) -> None:
    """Refuse to mix numpy with torch, float32 with float64, or two devices in one view."""
    if type(own) is not type(other) or own.dtype != other.dtype:
        raise UsageError(f"{name} and own must be the same kind of array with the same dtype")
    if isinstance(own, torch.Tensor) and isinstance(other, torch.Tensor) and own.device != other.device:
        raise UsageError(f"{name} is on {other.device} but own on {own.device}: move one")


def own_updates(view: AttackView) -> torch.Tensor:
    """(f, d): the attackers' own updates. Shares memory with the view: never write into it."""
    return as_tensor(view.own, name="own", ndim=2)


def all_updates(view: AttackView, attack: str) -> torch.Tensor:
    """(n, d): all clean updates, which only full knowledge grants."""
    if view.everyone is None:
        raise UsageError(f"{attack} with full knowledge needs view.everyone: grant it or ask for partial knowledge")
    return as_tensor(view.everyone, name="everyone", ndim=2)


def benign_updates(view: AttackView, attack: str) -> torch.Tensor:
    """(n - f, d): the clean updates of the clients that are not attackers (full knowledge)."""
    everyone = all_updates(view, attack)
    keep = torch.ones(view.num_clients, dtype=torch.bool)
    keep[list(view.attackers)] = False
    if not bool(keep.any()):
        raise UsageError(
            f"{attack} with full knowledge needs at least one benign client: all {view.num_clients} attack"
        )
    return everyone[keep.to(everyone.device)]


def base_update(view: AttackView, attack: str, source: str) -> torch.Tensor:
    """(d,): the update an attack steers by. ``source`` is "true" or "proxy" (both read ``view.base``; whoever builds
    the view fills it accordingly) or "colluders": the mean of the attackers' own updates, which needs no grant."""
    if source == "colluders":
        return own_updates(view).mean(dim=0)
    if source not in ("true", "proxy"):
        raise UsageError(f"base must be 'true', 'proxy' or 'colluders', not {source!r}")
    if view.base is None:
        raise UsageError(f"{attack} needs view.base: grant it or set base='colluders'")
    return as_tensor(view.base, name="base", ndim=1)


def is_full(knowledge: str) -> bool:
    """Whether a ``knowledge`` setting means full; anything but "full" and "partial" is refused."""
    if knowledge not in (FULL, PARTIAL):
        raise UsageError(f"knowledge must be '{FULL}' or '{PARTIAL}', not {knowledge!r}")
    return knowledge == FULL


def observed_updates(view: AttackView, attack: str, knowledge: str) -> torch.Tensor:
    """The sample an attack estimates benign behavior from: benign rows (full) or the attackers' own (partial)."""
    return benign_updates(view, attack) if is_full(knowledge) else own_updates(view)


def finish(crafted: torch.Tensor, view: AttackView) -> Array:
    """``crafted`` in the view's dtype and kind of array, in memory of its own."""
    own = own_updates(view)
    result = crafted.to(own.dtype).expand(own.shape).clone()
    if not bool(torch.isfinite(result).all()):
        raise UsageError("the crafted updates overflow: the attack's scale is too large for these updates")
    if isinstance(view.own, np.ndarray):
        return like(result, view.own)
    return result


def uniform(rng: np.random.Generator, low: float, high: float, like_rows: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in [low, high) with the shape, dtype and device of ``like_rows``; the stream is numpy's."""
    draws = torch.from_numpy(rng.random(tuple(like_rows.shape)))
    return (low + (high - low) * draws).to(like_rows)
