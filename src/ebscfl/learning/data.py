"""Data sets as stored: uint8 images with channels first, checked on the way in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test images with labels. Arrays are read-only."""

    name: str
    x_train: npt.NDArray[np.uint8]  # (N, C, H, W)
    y_train: npt.NDArray[np.int64]  # (N,)
    x_test: npt.NDArray[np.uint8]
    y_test: npt.NDArray[np.int64]
    num_classes: int
    writers_train: npt.NDArray[np.int64] | None = None  # (N,): who wrote each image (MNIST)
