#!/usr/bin/env python3
"""Make the MNIST subset that the package embeds, from the full MNIST files. Needs them: `ebs-cfl data fetch mnist`.

    python scripts/make_embedded_mnist.py [--data-dir DIR] [--out FILE]

A stratified sample of 10 000 train and 2 000 test images, a function of the seed below. The file is an xz stream of:
images (12 000 x 784 bytes, train first), labels (12 000 bytes), rows in the full sets (12 000 x int32, little-endian).
Prints the SHA-256 of those bytes, which `ebscfl.learning.data` checks.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
from pathlib import Path

import numpy as np

from ebscfl.learning.data import MINI_FILE, MINI_TEST, MINI_TRAIN, Dataset, load_dataset
from ebscfl.learning.partition import stratified_sample
from ebscfl.rng import USAGE_DATA_SPLIT, numpy_generator, root_from_seed

SEED = 0
TARGET = Path(__file__).resolve().parents[1] / "src" / "ebscfl" / "learning" / "embedded" / MINI_FILE


def embedded_payload(full: Dataset) -> bytes:
    """The bytes to embed."""
    root = root_from_seed(SEED)
    rows_train = stratified_sample(
        full.y_train, MINI_TRAIN, numpy_generator(root, USAGE_DATA_SPLIT, MINI_FILE, "train")
    )
    rows_test = stratified_sample(full.y_test, MINI_TEST, numpy_generator(root, USAGE_DATA_SPLIT, MINI_FILE, "test"))
    return b"".join(
        (
            full.x_train[rows_train].tobytes(),
            full.x_test[rows_test].tobytes(),
            full.y_train[rows_train].astype(np.uint8).tobytes(),
            full.y_test[rows_test].astype(np.uint8).tobytes(),
            rows_train.astype("<i4").tobytes(),
            rows_test.astype("<i4").tobytes(),
        )
    )


def main() -> None:
    """Parse, build, write."""
    parser = argparse.ArgumentParser(description="Make the embedded MNIST subset.")
    parser.add_argument("--data-dir", type=Path, help="where the full MNIST files lie")
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    payload = embedded_payload(load_dataset("mnist", options.data_dir))
    packed = lzma.compress(payload, check=lzma.CHECK_SHA256, preset=9 | lzma.PRESET_EXTREME)
    options.out.write_bytes(packed)
    print(f"{options.out}: {len(packed)} bytes, SHA-256 of the contents {hashlib.sha256(payload).hexdigest()}")


if __name__ == "__main__":
    main()
