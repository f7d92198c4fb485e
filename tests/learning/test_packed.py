"""Re-encoded data sets: the loss is the rounding, and nothing else gets in."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from ebscfl.errors import DataError, UsageError
from ebscfl.learning import packed
from ebscfl.learning.data import load_dataset
from ebscfl.learning.registry import SOURCES, Shape
from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed


def images(count: int) -> np.ndarray:
    rng = numpy_generator(root_from_seed(1), USAGE_BENCH, "packed")
    return rng.integers(0, 256, size=(count, 3, 8, 8)).astype(np.uint8)


def labels(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) % 10


@pytest.mark.parametrize("step", [1, 2, 5, 6, 7])
def test_rounding_is_to_the_nearest_multiple(step: int) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    quotients, back = packed.quantize(every, step)
    assert np.abs(every.astype(int) - back).max() <= max(step // 2, step - 1 - 255 % step if step > 1 else 0)
    assert np.array_equal(packed.restore(quotients, step), back)
    inner = back[back < 255]
    assert not (inner % step).any()


def test_file_round_trip_loses_the_rounding_only(tmp_path: Path) -> None:
    train, test = images(1100), images(30)
    path = tmp_path / "cifar10-packed.npz"
    path.write_bytes(packed.pack(train, labels(1100), test, labels(30), step=6))
    x_train, y_train, x_test, y_test = packed.unpack(path)
    assert np.array_equal(x_train, packed.quantize(train, 6)[1])
    assert np.array_equal(x_test, packed.quantize(test, 6)[1])
    assert np.array_equal(y_train, labels(1100))
    assert np.array_equal(y_test, labels(30))


def test_loss_by_hand() -> None:
    zero = np.zeros((1, 1, 2, 2), dtype=np.uint8)
    two = np.array([[[[0, 0], [2, 4]]]], dtype=np.uint8)
    found = packed.loss(zero, two)
    assert found.mean_difference == 1.5
    assert found.psnr == pytest.approx(10 * np.log10(255**2 / 5.0))
    assert packed.loss(zero, zero).psnr == float("inf")


def test_damage_is_noticed(tmp_path: Path) -> None:
    raw = packed.pack(images(20), labels(20), images(10), labels(10), step=6)
    path = tmp_path / "cifar10-packed.npz"
    for broken in (b"", raw[: len(raw) // 2], raw[:300] + bytes([raw[300] ^ 1]) + raw[301:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="corrupt"):
            packed.unpack(path)
    with pytest.raises(UsageError, match="step"):
        packed.quantize(images(1), 0)


def test_a_data_set_by_its_packed_name(tmp_path: Path) -> None:
    small = dataclasses.replace(SOURCES["cifar10"], shape=Shape((3, 8, 8), 40, 20, 10, balanced=True))
    registry = {**SOURCES, "cifar10": small}
    with pytest.raises(DataError, match=r"pack_cifar\.py"):
        load_dataset("cifar10-packed", tmp_path, registry=registry)
    raw = packed.pack(images(40), labels(40), images(20), labels(20), step=6)
    (tmp_path / "cifar10-packed.npz").write_bytes(raw)
    found = load_dataset("cifar10-packed", tmp_path, registry=registry)
    assert found.name == "cifar10-packed"
    assert found.x_train.shape == (40, 3, 8, 8)
    with pytest.raises(DataError, match="is not cifar10-packed"):
        load_dataset("cifar10-packed", tmp_path)  # not the published sizes
