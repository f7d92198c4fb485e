"""The search for the settings that the paper leaves open, on runs without attack only.

For each candidate the no-attack accuracy (own distribution, mean of FedAvg, FLTrust, IFCA and RFCA at all three alphas)
is compared; one knob is varied at a time from the values of `noniid.SCALES`. Attacks play no part, so nothing is tuned
to look robust.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebscfl.report.tables import method_name
from ebscfl.reproduce import tables
from ebscfl.reproduce.accuracy import Experiment, Setting, make_config, summaries
from ebscfl.reproduce.noniid import ALPHAS, SCALES, dirichlet

METHODS = ("fedavg", "fltrust", "ifca", "rfca")
KNOBS: dict[str, dict[str, Any]] = {
    "base": {},
    "lr x 1/2": {"local": {"lr": 0.5}},
    "lr x 2": {"local": {"lr": 2.0}},
    "steps x 2": {"local": {"steps": 2.0}},
    "m = 2": {"server": {"clusters": 2}},
    "m = 3": {"server": {"clusters": 3}},
    "root x 3": {"data": {"root_size": 3.0}},
}
FACTORS = ("lr", "steps", "root_size")
"""Knobs given as a factor of the scale's own value."""


def search_settings(scale: str) -> list[Setting]:
    """Knob x alpha."""
    settings = []
    alphas = ALPHAS if scale != "smoke" else (0.5,)
    for knob, change in list(KNOBS.items())[: 3 if scale == "smoke" else None]:
        for alpha in alphas:
            table = {part: {k: _scaled(scale, part, k, v) for k, v in own.items()} for part, own in change.items()}
            config = make_config(SCALES[scale], dirichlet(alpha), {"methods": METHODS, "attacks": []}, table)
            settings.append(Setting({"knob": knob, "alpha": alpha}, config))
    return settings


def _scaled(scale: str, part: str, key: str, value: Any) -> Any:
    if key not in FACTORS:
        return value
    base = SCALES[scale][part][key]
    return type(base)(base * value)


def render_search(document: Mapping[str, Any]) -> str:
    """No-attack accuracy of each method per knob, mean over the alphas, best knob first."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in summaries(document, ("knob", "alpha")):
        found.setdefault(row["knob"], {}).setdefault(row["method"], []).append(row["own"]["fa"][0])
    means = {knob: {m: sum(v) / len(v) for m, v in methods.items()} for knob, methods in found.items()}
    ranked = sorted(means, key=lambda knob: -sum(means[knob].values()) / len(means[knob]))
    body = [
        [
            knob,
            f"{sum(means[knob].values()) / len(means[knob]):.1f}",
            *(f"{means[knob][m]:.1f}" if m in means[knob] else tables.MISSING for m in METHODS),
        ]
        for knob in ranked
    ]
    head = ["setting", "mean", *map(method_name, METHODS)]
    return f"{tables.header(document)}\n\n{tables.markdown_table(head, body, 1)}\n"


EXPERIMENTS = {
    "search": Experiment("search", "Settings left open, by no-attack accuracy", search_settings, render_search)
}
