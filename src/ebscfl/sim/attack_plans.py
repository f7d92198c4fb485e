"""Attacks as a run names them (``label-flip``), with their options typed and complete."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

from ebscfl.attacks import ATTACKS as SPECS
from ebscfl.attacks import AttackSpec
from ebscfl.errors import ConfigError
from ebscfl.settings_table import convert, nearest

ATTACKS: dict[str, AttackSpec] = {name.replace("_", "-"): spec for name, spec in SPECS.items()}
"""Every attack a run can name. Names of runs use dashes throughout, as the published names do."""


def attack_options(name: str, given: Mapping[str, Any], *, knowledge: str | None = None) -> dict[str, Any]:
    """All options of an attack: its defaults, then the run's ``knowledge``, then what is ``given``.

    ``knowledge`` only reaches attacks that have the choice between full and partial (Sine has its own three names).
    """
    spec = ATTACKS[name]
    hints: dict[str, Any] = {}
    for half in (spec.poison, spec.craft):
        hints.update(typing.get_type_hints(half) if half else {})
    options = dict(spec.defaults)
    if knowledge is not None and options.get("knowledge") in ("full", "partial"):
        options["knowledge"] = knowledge
    for key, raw in given.items():
        option = key.replace("-", "_")
        if option not in options:
            raise ConfigError(f"attack.{name}.{key}: unknown key; {nearest(option, list(options))}")
        if isinstance(raw, bool) and hints[option] is str:
            raw = str(raw).lower()  # base = true means "true", not a truth value
        options[option] = convert(raw, hints[option], f"attack.{name}.{key}")
    return options
