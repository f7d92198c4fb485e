"""Every table and figure of the paper: what it is called here, and what makes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebscfl.errors import ConfigError

SCALES = ("smoke", "small", "full")


@dataclass(frozen=True)
class Item:
    """One table or figure. ``maker`` is "module:function", or empty where nothing makes it."""

    name: str
    label: str  # in the paper's source
    title: str
    maker: str = ""
    folder: str = "efficiency"
    missing: str = "not available yet"

    @property
    def available(self) -> bool:
        """Whether `make` can make it."""
        return bool(self.maker)


_HERE = "ebscfl.reproduce"
_RUNS = f"{_HERE}.experiments:make"
ITEMS = (
    Item("table-features", "tab:compare", "Table 1: features of related schemes", f"{_HERE}.features:table_features"),
    Item(
        "table-complexity", "tab:communication_computation", "Table 2: communication and computation",
        f"{_HERE}.complexity:table_complexity",
    ),
    Item(
        "figure-communication-clients", "fig:communication1", "client bytes at 794 KB, against n, m and t",
        f"{_HERE}.efficiency:figure_communication_clients",
    ),
    Item(
        "figure-communication-model", "fig:communication2", "client bytes at n = 20, against l and m",
        f"{_HERE}.efficiency:figure_communication_model",
    ),
    Item(
        "figure-computation", "fig:computation", "server time against FedAvg, m = 2",
        f"{_HERE}.efficiency:figure_computation",
    ),
    Item("table-noniid", "tab:data_heterogeneous_byzantine_attacks", "attacks on non-i.i.d. data", _RUNS, ""),
    Item("table-iid", "tab:byzantine_attacks", "attacks on i.i.d. data", _RUNS, ""),
    Item("figure-model-accuracy", "fig:model_accuracy", "accuracy over rounds, n = 10 and 20", _RUNS, ""),
    Item("figure-cifar100-lf", "fig:CIFAR100_LF", "label flipping on CIFAR-100", _RUNS, ""),
    Item("figure-convergence", "th:convergence", "the convergence theorem, simulated", _RUNS, ""),
    Item("sweep-noniid", "-", "ASR of label flipping against n and rounds", _RUNS, ""),
    Item("search", "-", "settings the paper leaves open, by no-attack accuracy", _RUNS, ""),
    Item("study-options", "-", "our own: options of the clustered rule", _RUNS, ""),
    Item("study-worlds", "-", "our own: rotations and label permutations", _RUNS, ""),
    Item("study-behavior", "-", "our own: sleepers, on-off attackers, own clusters", _RUNS, ""),
    Item("study-attacks", "-", "our own: attacks the paper did not try", _RUNS, ""),
    Item("figure-overview", "fig:RFCA", "overview of RFCA", missing="a drawing: nothing is measured"),
    Item("figure-rotation", "fig:sum_mo", "rotation of orthogonal matrices", missing="a drawing: nothing is measured"),
)  # fmt: skip
BY_NAME = {item.name: item for item in ITEMS}


def make(name: str, out: Path, *, scale: str = "full", seed: int | None = None, **running: Any) -> list[Path]:
    """Make one item; the files it wrote. ``running``: how an accuracy experiment runs (`experiments.make`); without a
    seed those run all of theirs."""
    if name not in BY_NAME:
        raise ConfigError(f"the paper has no {name!r}; `ebs-cfl reproduce --list` names what it has")
    if scale not in SCALES:
        raise ConfigError(f"scale must be {' or '.join(SCALES)}, not {scale!r}")
    item = BY_NAME[name]
    if not item.available:
        raise ConfigError(f"{name} is {item.missing}")
    module, function = item.maker.split(":")
    maker: Callable[..., list[Path]] = getattr(importlib.import_module(module), function)
    if item.maker == _RUNS:
        return maker(name, out, scale=scale, seeds=None if seed is None else (seed,), **running)
    return maker(out / item.folder, scale=scale, seed=seed or 0)
