"""Attacks by name. An attack sees a frozen `AttackView`, never which defence runs.

`ATTACKS` maps each name to an `AttackSpec`: how it acts (on samples before training, on updates after it, or both),
its settings with their defaults, and what it must be granted for given settings. "none" is not an attack: no entry.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ebscfl.attacks import (
    adaptive,
    alie,
    backdoor,
    gaussian,
    insider,
    krum_attack,
    label_flip,
    min_max,
    sign_flip,
    sine,
    trim_attack,
)
from ebscfl.attacks.view import AttackView
from ebscfl.errors import ConfigError, UsageError
from ebscfl.rng import USAGE_ATTACK, numpy_generator

__all__ = ["ATTACKS", "AttackSpec", "AttackView", "get_attack"]

Settings = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class AttackSpec:
    """One attack: its two possible halves and their settings.

    ``craft(view, *, rng, **for_craft(settings)) -> (f, d)`` replaces the attackers' updates;
    ``poison(images, labels, *, num_classes, rng, **for_poison(settings)) -> (images, labels)`` replaces the samples of
    one attacker before training. The half an attack does not have is None.
    """

    name: str
    craft: Callable[..., Any] | None = None
    poison: Callable[..., Any] | None = None

    @property
    def kind(self) -> str:
        """ "update", "data" or "both"."""
        if self.craft is not None and self.poison is not None:
            return "both"
        return "data" if self.craft is None else "update"

    @property
    def defaults(self) -> Settings:
        """Every setting with its default, read from the two signatures: they are said once."""
        return MappingProxyType({**_defaults(self.poison), **_defaults(self.craft)})

    def for_craft(self, settings: Settings | None = None) -> dict[str, Any]:
        """Complete keyword settings of ``craft``; an unknown name anywhere in ``settings`` is a `ConfigError`."""
        return self._resolve(settings, self.craft)

    def for_poison(self, settings: Settings | None = None) -> dict[str, Any]:
        """Complete keyword settings of ``poison``, checked likewise."""
        return self._resolve(settings, self.poison)

    def needs(self, settings: Settings | None = None) -> frozenset[str]:
        """What the view must grant beyond the attackers' own updates: "everyone", and "base" (the server's root update)
        or "proxy" (one from the attackers' proxy data), both in ``view.base``."""
        chosen = self.for_craft(settings)
        granted = set()
        if chosen.get("knowledge") in ("full", "fn"):
            granted.add("everyone")
        if chosen.get("base") in ("true", "proxy"):
            granted.add("base" if chosen["base"] == "true" else "proxy")
        return frozenset(granted)

    def check(self, settings: Settings, *, num_classes: int, image_shape: tuple[int, ...]) -> None:
        """Refuse values the attack cannot take (`ConfigError`) before a run begins.

        Each half checks its own settings when it is called, so it is called: on two blank images of the run's shape,
        and on the made-up updates of ten clients, four of them attackers.
        """
        rng = numpy_generator(bytes(32), USAGE_ATTACK, self.name, "check")
        try:
            if self.poison is not None:
                images, labels = np.zeros((2, *image_shape), dtype=np.uint8), np.arange(2)
                self.poison(images, labels, num_classes=num_classes, rng=rng, **self.for_poison(settings))
            # The defaults are known to work; not calling them saves compiling a kernel nobody may need.
            if self.craft is not None and self.for_craft(settings) != self.for_craft():
                everyone = rng.standard_normal((10, 12))
                view = AttackView(everyone[:4], (0, 1, 2, 3), 10, everyone, everyone.mean(axis=0), 1)
                self.craft(view, rng=rng, **self.for_craft(settings))
        except UsageError as error:
            raise ConfigError(f"attack.{self.name.replace('_', '-')}: {error}") from None

    def _resolve(self, settings: Settings | None, half: Callable[..., Any] | None) -> dict[str, Any]:
        given = settings or {}
        for key in given:
            if key not in self.defaults:
                raise ConfigError(f"attack {self.name} has no setting {key!r}{_nearest(key, self.defaults)}")
        return {key: given.get(key, default) for key, default in _defaults(half).items()}


def get_attack(name: str) -> AttackSpec:
    """The attack called ``name``; an unknown one is a `ConfigError` that names the nearest."""
    if name not in ATTACKS:
        raise ConfigError(f"there is no attack {name!r}{_nearest(name, ATTACKS)}")
    return ATTACKS[name]


def _defaults(half: Callable[..., Any] | None) -> dict[str, Any]:
    """Keyword-only parameters that have a default: exactly the settings (``rng`` and ``num_classes`` have none)."""
    if half is None:
        return {}
    parameters = inspect.signature(half).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known)) or 'none'}"


ATTACKS: Mapping[str, AttackSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            AttackSpec("label_flip", poison=label_flip.poison_samples),
            AttackSpec("backdoor", craft=backdoor.craft, poison=backdoor.poison_samples),
            AttackSpec("krum_attack", craft=krum_attack.craft),
            AttackSpec("trim_attack", craft=trim_attack.craft),
            AttackSpec("adaptive", craft=adaptive.craft),
            AttackSpec("sine", craft=sine.craft),
            AttackSpec("sign_flip", craft=sign_flip.craft),
            AttackSpec("gaussian", craft=gaussian.craft),
            AttackSpec("alie", craft=alie.craft),
            AttackSpec("min_max", craft=min_max.craft),
            AttackSpec("insider", craft=insider.craft),
        )
    }
)
