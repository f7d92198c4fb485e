"""Data sets re-encoded for a machine that only little can be sent to: ``cifar10-packed`` and ``cifar100-packed``.

Pixels are rounded to multiples of ``step`` and the quotients stored in lossless WebP mosaics. That loses less at the
same size than lossy WebP does: CIFAR-10 at step 6 takes about 55 MiB at a PSNR of 43 dB, while lossy WebP at quality 95
takes 43 MiB at 36 dB (it halves the resolution of color). Results name the packed set, never the original.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import DataError, UsageError
from ebscfl.learning.formats import Bytes, read_mosaic

SUFFIX = "-packed"
NAMES = ("cifar10-packed", "cifar100-packed")
TILES = 32
"""Images of a mosaic per side."""


@dataclass(frozen=True)
class Loss:
    """What packing cost: mean absolute difference of pixels (0..255) and peak signal-to-noise ratio in dB."""

    mean_difference: float
    psnr: float


def quantize(images: Bytes, step: int) -> tuple[Bytes, Bytes]:
    """Quotients to store, and the pixels they come back as."""
    if not 1 <= step <= 64:
        raise UsageError(f"step must lie in 1..64, not {step}")
    quotients = ((images.astype(np.uint16) + step // 2) // step).astype(np.uint8)
    return quotients, restore(quotients, step)


def restore(quotients: Bytes, step: int) -> Bytes:
    """Pixels of stored quotients."""
    return np.minimum(quotients.astype(np.uint16) * step, 255).astype(np.uint8)


def loss(original: Bytes, back: Bytes) -> Loss:
    """The difference between two sets of images."""
    gap = original.astype(np.float64) - back
    square = float((gap**2).mean())
    return Loss(float(np.abs(gap).mean()), float("inf") if square == 0 else 10 * float(np.log10(255.0**2 / square)))


def pack(
    x_train: Bytes, y_train: npt.NDArray[np.int64], x_test: Bytes, y_test: npt.NDArray[np.int64], *, step: int
) -> bytes:
    """The packed file: (N, 3, H, W) uint8 images and their labels."""
    images = np.concatenate([x_train, x_test])
    quotients, _ = quantize(images, step)
    arrays: dict[str, npt.NDArray[Any]] = {
        "step": np.array(step),
        "n_train": np.array(len(x_train)),
        "y_train": y_train.astype(np.uint8),
        "y_test": y_test.astype(np.uint8),
    }
    for number, block in enumerate(_blocks(quotients)):
        arrays[f"b{number:03d}"] = np.frombuffer(_mosaic(block), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _blocks(images: Bytes) -> Iterable[Bytes]:
    """Full mosaics; the last one is filled up with black."""
    size = TILES * TILES
    for start in range(0, len(images), size):
        block = images[start : start + size]
        if len(block) < size:
            block = np.concatenate([block, np.zeros((size - len(block), *images.shape[1:]), dtype=np.uint8)])
        yield block


def _mosaic(block: Bytes) -> bytes:
    from PIL import Image

    _, channels, height, width = block.shape
    picture = block.reshape(TILES, TILES, channels, height, width).transpose(0, 3, 1, 4, 2)
    buffer = io.BytesIO()
    flat = np.ascontiguousarray(picture.reshape(TILES * height, TILES * width, channels))
    Image.fromarray(flat).save(buffer, "WEBP", lossless=True, quality=80, method=4)
    return buffer.getvalue()


def unpack(path: Path) -> tuple[Bytes, npt.NDArray[np.int64], Bytes, npt.NDArray[np.int64]]:
    """Train images and labels, test images and labels of a packed file.

    Raises:
        DataError: it is no packed file, or damaged.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            keys = sorted(key for key in archive.files if key[0] == "b" and key[1:].isdigit())
            blocks = [read_mosaic(archive[key].tobytes(), tiles=TILES) for key in keys]
            y_train, y_test = (archive[key].astype(np.int64) for key in ("y_train", "y_test"))
            step, count = int(archive["step"]), int(archive["n_train"])
        images = restore(np.concatenate(blocks), step)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is corrupt ({type(error).__name__}); make it again with scripts/pack_cifar.py"
        ) from None
    total = len(y_train) + len(y_test)
    if count != len(y_train) or len(images) < total:
        raise DataError(f"{path} is corrupt (labels and images differ in number); make it again")
    return images[:count], y_train, images[count:total], y_test


def find_packed(name: str, folders: Iterable[Path]) -> Path:
    """The file of a packed set in the first of ``folders`` that has it."""
    for folder in folders:
        path = folder / f"{name}.npz"
        if path.is_file():
            return path
    raise DataError(f"{name}: no {name}.npz was found; make it with scripts/pack_cifar.py and name its --data-dir")
