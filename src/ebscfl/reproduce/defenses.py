"""Our rule beyond the paper's tables: what each part of it brings, other worlds, other behaviors, other attacks.

`study-options` builds RFCA-H up from RFCA on the most skewed labels; `study-worlds` has clusters that differ in their
images or label names; then attackers that choose their cluster with poisoned data, that sleep, or that come and go; and
attacks the paper did not try.
"""

from __future__ import annotations

from typing import Any

from ebscfl.reproduce import tables
from ebscfl.reproduce.accuracy import Experiment, Setting, make_config
from ebscfl.reproduce.noniid import OURS, SCALES, dirichlet

OPTIONS: dict[str, dict[str, Any]] = {
    "RFCA": {"methods": ["rfca"]},
    "+ history": {"methods": ["rfca-h"]},
    "+ length of one part": {"server": {"root_scale": "part"}},
    "+ shared body": {"server": {"share": "body"}},
    "+ mixed direction": {"server": {"root_direction": "mixed"}},
    "+ weight by record (ours)": {"server": {"history_weight": "record"}},
}
"""From the paper's rule to ours, each on top of those before."""
WORLDS: dict[str, dict[str, Any]] = {
    "dirichlet 0.1": dirichlet(0.1),
    "rotation": {"data": {"kind": "rotation", "groups": 4, "root_parts": "domains"}},
    "label permutation": {"data": {"kind": "permutation", "groups": 4, "root_parts": "domains"}},
}
RULES: dict[str, dict[str, Any]] = {
    "paper": {"methods": ["rfca"]},
    "ours": {"methods": ["rfca-h"], "server": OURS},
}
BEHAVIORS: dict[str, dict[str, Any]] = {
    "always": {"attack": {"claim": "clean"}},
    "poisoned choice": {"attack": {"claim": "poisoned"}},
    "sleeper": {"attack": {"start_round": 11}},
    "on-off": {"attack": {"period": 3}},
}
"""How label flippers behave; all but the first are tried on the first world with the plain rules only."""


LABEL_FLIP: dict[str, Any] = {"attacks": ["label-flip"], "attack": {"fraction": 0.4}}


def option_settings(scale: str) -> list[Setting]:
    """Our rule built up from the paper's, where labels are skewed most."""
    world = [SCALES[scale], WORLDS["dirichlet 0.1"], LABEL_FLIP]
    # What sharing features is worth without any defense.
    settings = [
        Setting({"option": f"IFCA, {name}"}, make_config(*world, {"methods": ["ifca"], "server": {"share": share}}))
        for name, share in (("nothing shared", "none"), ("shared body", "body"))
    ]
    sofar = [*world]
    for option, own in list(OPTIONS.items())[: 2 if scale == "smoke" else None]:
        sofar.append(own)
        settings.append(Setting({"option": option}, make_config(*sofar)))
    return settings


def world_settings(scale: str) -> list[Setting]:
    """Clustered data: four worlds that differ in their images or in their labels."""
    variants: dict[str, dict[str, Any]] = {
        "plain": {"methods": ["ifca", "rfca"]},
        "ours": {"methods": ["rfca-h"], "server": {**OURS, "share": "none"}},
        "ours, shared body": {"methods": ["rfca-h"], "server": OURS},
    }
    return [
        Setting({"world": world, "variant": name}, make_config(SCALES[scale], WORLDS[world], LABEL_FLIP, own))
        for world in ("rotation", "label permutation")
        for name, own in variants.items()
    ]


def behavior_settings(scale: str) -> list[Setting]:
    """How attackers behave, on label skew 0.5, against the paper's rule and ours."""
    return [
        Setting(
            {"behavior": name, "variant": variant},
            make_config(SCALES[scale], dirichlet(0.5), LABEL_FLIP, own, rule),
        )
        for name, own in BEHAVIORS.items()
        for variant, rule in RULES.items()
    ]


BEYOND = ("alie", "min-max", "sign-flip", "backdoor", "adaptive", "insider")
"""Attacks the paper did not try on non-i.i.d. data; the backdoor is bounded to the norm of an honest update, the last
two know the rule and the root update of their own cluster."""


def beyond_settings(scale: str) -> list[Setting]:
    """Label skew 0.5 under other attacks."""
    attack = {"attacks": BEYOND, "attack": {"fraction": 0.4, "backdoor": {"norm_bound": 1.0}}}
    variants = {"plain": {"methods": ["fltrust", "ifca"]}, **RULES}
    return [
        Setting({"variant": name}, make_config(SCALES[scale], dirichlet(0.5), attack, own))
        for name, own in variants.items()
    ]


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "study-options",
            "From the paper's rule to ours",
            option_settings,
            tables.by_setting("option"),
            seeds={"full": (4,)},
        ),
        Experiment(
            "study-worlds",
            "Clustered data: rotations and label permutations",
            world_settings,
            tables.by_setting("world", "variant"),
            seeds={"full": (4, 5)},
        ),
        Experiment(
            "study-behavior",
            "Sleepers, on-off, own clusters",
            behavior_settings,
            tables.by_setting("behavior", "variant"),
            seeds={"full": (4,)},
        ),
        Experiment(
            "study-attacks",
            "Attacks the paper did not try",
            beyond_settings,
            tables.by_setting("variant"),
            seeds={"full": (4,)},
        ),
    )
}
