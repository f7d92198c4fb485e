"""Where the full data sets lie, if they do, and a small one made of arithmetic."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ebscfl.errors import DataError
from ebscfl.learning import sources
from ebscfl.learning.data import Dataset

BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def _full_data_dir() -> Path | None:
    if os.environ.get(sources.ENVIRONMENT_VARIABLE):
        return None  # the package looks there by itself
    return BESIDE if BESIDE.is_dir() else None


@pytest.fixture(scope="session")
def need_data():
    """Gives the data_dir for a data set or skips, saying which command brings it."""

    def need(name: str) -> Path | None:
        folder = _full_data_dir()
        try:
            sources.locate(name, folder)
        except DataError as error:
            if sources.verify(name, folder).state == "corrupt":
                raise
            pytest.skip(f"full data set is absent: {error}")
        return folder

    return need


@pytest.fixture
def no_local_data(monkeypatch, tmp_path):
    """Neither the environment nor a cache offers data: only what the test puts into tmp_path / "cache"."""
    monkeypatch.delenv(sources.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def make_dataset(size: int = 400, classes: int = 5, *, channels: int = 1, side: int = 3, writers: int = 40) -> Dataset:
    """Sample i has label i mod classes, is written by i mod writers, and its pixels count up from 7 i (mod 251)."""
    pixels = channels * side * side
    x = (7 * np.arange(size)[:, None] + np.arange(pixels)[None, :]) % 251
    x = x.astype(np.uint8).reshape(size, channels, side, side)
    y = np.arange(size, dtype=np.int64) % classes
    test = slice(0, 2 * classes)
    return Dataset("synthetic", x, y, x[test], y[test], classes, np.arange(size, dtype=np.int64) % writers)


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    return make_dataset()
