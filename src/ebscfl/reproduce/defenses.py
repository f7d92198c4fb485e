"""Which of our own options pay: clusters that collapse, attackers among themselves, noisy root updates, score history.

Not in the paper. One option at a time on top of RFCA, on label skew (Dirichlet 0.5, where clusters collapse) and on
rotated worlds, without attack and under label flipping; then, on label skew, attackers that choose their cluster with
poisoned data, that sleep, or that come and go. Nothing is tuned on the attacked runs: every option has the value it was
written down with.
"""

from __future__ import annotations

from typing import Any

from ebscfl.reproduce import tables
from ebscfl.reproduce.accuracy import Experiment, Setting, make_config
from ebscfl.reproduce.noniid import SCALES, dirichlet

OPTIONS: dict[str, dict[str, Any]] = {
    "baseline": {"methods": ["ifca", "rfca", "rfca-h"]},
    "hysteresis 0.1": {"methods": ["rfca"], "server": {"hysteresis": 0.1}},
    "follow": {"methods": ["rfca"], "server": {"empty_cluster": "follow"}},
    "distrust": {"methods": ["rfca"], "server": {"unsupported": "distrust"}},
    "momentum 0.7": {"methods": ["rfca"], "server": {"root_momentum": 0.7}},
    "root x 3": {"methods": ["rfca"], "data": {"root_size": 900}},
    "history per cluster": {"methods": ["rfca-h"], "server": {"history_scope": "cluster"}},
    "history, momentum": {"methods": ["rfca-h"], "server": {"root_momentum": 0.7}},
}
WORLDS: dict[str, dict[str, Any]] = {
    "dirichlet 0.5": dirichlet(0.5),
    "rotation": {"data": {"kind": "rotation", "groups": 4, "root_parts": "domains"}},
}
BEHAVIORS: dict[str, dict[str, Any]] = {
    "always": {"attack": {"claim": "clean"}},
    "poisoned choice": {"attack": {"claim": "poisoned"}},
    "sleeper": {"attack": {"start_round": 11}},
    "on-off": {"attack": {"period": 3}},
}
"""How label flippers behave; all but the first are tried on the first world with the plain rules only."""


def option_settings(scale: str) -> list[Setting]:
    """World x option; below full scale only the world where clusters collapse."""
    worlds = list(WORLDS) if scale == "full" else list(WORLDS)[:1]
    options = list(OPTIONS)[:2] if scale == "smoke" else list(OPTIONS)
    attack = {"attacks": ["label-flip"], "attack": {"fraction": 0.4}}
    # In the smoke world a root set of 900 would leave too little for the clients.
    return [
        Setting({"world": world, "option": option}, make_config(SCALES[scale], WORLDS[world], attack, OPTIONS[option]))
        for world in worlds
        for option in options
    ]


def behavior_settings(scale: str) -> list[Setting]:
    """How attackers behave, on label skew 0.5."""
    attack = {"attacks": ["label-flip"], "attack": {"fraction": 0.4}, "methods": ["ifca", "rfca", "rfca-h"]}
    return [
        Setting({"behavior": name}, make_config(SCALES[scale], WORLDS["dirichlet 0.5"], attack, own))
        for name, own in BEHAVIORS.items()
    ]


BEYOND = ("alie", "min-max", "sign-flip", "backdoor", "adaptive")
"""Attacks the paper did not try on non-i.i.d. data; the backdoor is bounded to the norm of an honest update."""


def beyond_settings(scale: str) -> list[Setting]:
    """Label skew 0.5 under other attacks."""
    attack = {"attacks": BEYOND, "attack": {"fraction": 0.4, "backdoor": {"norm_bound": 1.0}}}
    methods = {"methods": ["fltrust", "rfca", "rfca-h"]}
    return [Setting({"alpha": 0.5}, make_config(SCALES[scale], WORLDS["dirichlet 0.5"], attack, methods))]


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "study-options", "Options of the clustered rule", option_settings, tables.by_setting("world", "option")
        ),
        Experiment(
            "study-behavior", "Sleepers, on-off, own clusters", behavior_settings, tables.by_setting("behavior")
        ),
        Experiment("study-attacks", "Attacks the paper did not try", beyond_settings, tables.by_setting("alpha")),
    )
}
