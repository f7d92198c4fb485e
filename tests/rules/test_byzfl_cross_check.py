"""Our rules against ByzFL's, where the two define the same thing.

* Average, Median (both take the mean of the two middle values) and TrMean(f) are the same rules.
* Krum: ByzFL sums over n - f - 1 nearest others, the paper and we over n - f - 2. ByzFL's Krum(f + 1) is our
  ``faulty=f``; its bound 2 (f + 1) < n is then exactly ours.
* MultiKrum(f + 1) averages n - f - 1 updates: ``select=n - f - 1`` here.

``import byzfl`` loads its training framework, which wants torchvision and seaborn; its aggregators need only numpy,
torch and scipy. So the package is registered without running its ``__init__``, and only they are imported:
``pip install --no-deps byzfl`` is enough.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ebscfl import rng
from ebscfl.rules.fedavg import fedavg
from ebscfl.rules.krum import krum
from ebscfl.rules.median import median
from ebscfl.rules.multi_krum import multi_krum
from ebscfl.rules.trimmed_mean import trimmed_mean

ROOT = rng.root_from_seed(2)
SHAPES = [(5, 3), (10, 40), (11, 200), (20, 1000)]


@pytest.fixture(scope="module")
def byzfl() -> Iterator[ModuleType]:
    """ByzFL's aggregators, without the rest of the package."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("byzfl is not installed: pip install --no-deps byzfl==0.0.11")
    shell = ModuleType("byzfl")
    shell.__path__ = list(spec.submodule_search_locations)
    before = {name for name in sys.modules if name.partition(".")[0] == "byzfl"}
    assert not before, "somebody else has imported byzfl"
    sys.modules["byzfl"] = shell
    try:
        yield importlib.import_module("byzfl.aggregators.aggregators")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "byzfl"]:
            del sys.modules[name]


def draw(num_clients: int, dim: int) -> npt.NDArray[np.float64]:
    return rng.numpy_generator(ROOT, "test-byzfl/1", num_clients, dim).standard_normal((num_clients, dim))


def close(ours: Any, theirs: Any) -> bool:
    """Equal up to the order in which n numbers are added."""
    return np.allclose(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_average_and_median(byzfl: ModuleType, shape: tuple[int, int]) -> None:
    updates = draw(*shape)
    assert close(fedavg(updates).aggregate, byzfl.Average()(updates))
    assert close(median(updates).aggregate, byzfl.Median()(updates))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("trim", [0, 1, 2])
def test_trimmed_mean(byzfl: ModuleType, shape: tuple[int, int], trim: int) -> None:
    updates = draw(*shape)
    assert close(trimmed_mean(updates, trim=trim).aggregate, byzfl.TrMean(trim)(updates))


@pytest.mark.parametrize("shape", SHAPES)
def test_krum_family_with_their_f_one_larger(byzfl: ModuleType, shape: tuple[int, int]) -> None:
    updates = draw(*shape)
    num_clients = shape[0]
    for faulty in range((num_clients - 3) // 2 + 1):
        assert np.array_equal(krum(updates, faulty=faulty).aggregate, byzfl.Krum(faulty + 1)(updates))
        ours = multi_krum(updates, faulty=faulty, select=num_clients - faulty - 1).aggregate
        assert close(ours, byzfl.MultiKrum(faulty + 1)(updates))


def test_the_bounds_of_krum_meet(byzfl: ModuleType) -> None:
    updates = draw(10, 4)
    krum(updates, faulty=3)
    byzfl.Krum(4)(updates)
    with pytest.raises(ValueError, match="Cannot tolerate"):
        byzfl.Krum(5)(updates)


def test_on_float32_tensors(byzfl: ModuleType) -> None:
    updates = torch.from_numpy(draw(9, 50)).float()
    for ours, theirs in (
        (median(updates), byzfl.Median()),
        (trimmed_mean(updates, trim=2), byzfl.TrMean(2)),
        (krum(updates, faulty=2), byzfl.Krum(3)),
    ):
        assert torch.allclose(torch.as_tensor(ours.aggregate), theirs(updates), rtol=1e-5, atol=1e-6)
