"""Runs that take a fraction of a second: a made-up data set whose classes are bright rows, seen through rotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ebscfl.config import RunConfig, parse_config
from ebscfl.learning.data import Dataset
from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed

TOML = """
rounds = 4
checkpoint_every = 2
methods = ["fedavg", "rfca"]
attacks = ["label-flip"]
[data]
dataset = "rows"
kind = "rotation"
groups = 2
clients = 6
min_size = 2
root_size = 16
root_parts = "domains"
[model]
name = "linear"
[local]
steps = 3
batch_size = 8
lr = 0.5
[server]
clusters = 2
[attack]
fraction = 0.34
placement = "per-domain"
"""


def make_rows(name: str = "rows", data_dir: Path | None = None) -> Dataset:
    """240 + 80 noisy 6 x 6 images of 4 classes; class c has a bright row c + 1."""
    rng = numpy_generator(root_from_seed(3), USAGE_BENCH)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count, dtype=np.int64) % 4
        images = rng.integers(0, 80, size=(count, 1, 6, 6)).astype(np.uint8)
        images[np.arange(count), 0, labels + 1] += 150
        return images, labels

    (x_train, y_train), (x_test, y_test) = part(240), part(80)
    return Dataset("rows", x_train, y_train, x_test, y_test, 4)


def config(*sets: str) -> RunConfig:
    """The tiny configuration with changes."""
    return parse_config(TOML, sets)


def use_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs in this process load the made-up data set."""
    monkeypatch.setattr("ebscfl.sim.cell.load_dataset", make_rows)
