"""Re-encode CIFAR so that it fits where little can be sent: python scripts/pack_cifar.py cifar10 OUT [--data-dir DIR]

Writes OUT/cifar10-packed.npz and prints its size and how far its pixels are from the originals.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from ebscfl.learning import packed
from ebscfl.learning.data import load_dataset


def main() -> None:
    """Pack, read back, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[name.removesuffix(packed.SUFFIX) for name in packed.NAMES])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--step", type=int, default=6, help="pixels are rounded to multiples of it")
    given = parser.parse_args()
    data = load_dataset(given.name, given.data_dir)
    raw = packed.pack(data.x_train, data.y_train, data.x_test, data.y_test, step=given.step)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{given.name}{packed.SUFFIX}.npz"
    path.write_bytes(raw)
    x_train, y_train, x_test, y_test = packed.unpack(path)
    assert np.array_equal(y_train, data.y_train)
    assert np.array_equal(y_test, data.y_test)
    measured = packed.loss(np.concatenate([data.x_train, data.x_test]), np.concatenate([x_train, x_test]))
    report = {
        "file": path.name,
        "mebibytes": round(len(raw) / 2**20, 2),
        "step": given.step,
        "mean_difference": round(measured.mean_difference, 3),
        "psnr_db": round(measured.psnr, 2),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
