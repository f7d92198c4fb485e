"""Data sets as stored: uint8 images with channels first, checked on the way in.

``mnist-mini`` is part of the package; the others are found by `ebscfl.learning.sources`. Every load checks file
checksums, sizes, label ranges and class counts: what comes back is the published data set or a `DataError` that names
the file and the command that mends it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import DataError, UsageError
from ebscfl.learning import formats, packed, sources
from ebscfl.learning.registry import QMNIST_LABELS, SOURCES, WRITERS, Shape, Source

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

MINI_TRAIN, MINI_TEST = 10_000, 2_000
MINI_FILE = "mnist-mini.xz"
# Of the unpacked bytes; scripts/make_embedded_mnist.py prints it.
MINI_SHA256 = "7f1b2802746ca7af809f921b8bc58b500b7b9d69f2b326dfc8af7388c0578ac2"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test images with labels; the arrays are read-only."""

    name: str
    x_train: Images  # (N, C, H, W)
    y_train: Labels  # (N,)
    x_test: Images
    y_test: Labels
    num_classes: int
    writers_train: Labels | None = None  # (N,): who wrote each image (MNIST)

    def __post_init__(self) -> None:
        for x, y in ((self.x_train, self.y_train), (self.x_test, self.y_test)):
            if x.ndim != 4 or x.shape[1:] != self.x_train.shape[1:] or y.shape != x.shape[:1] or len(y) == 0:
                raise UsageError(f"{self.name}: images {x.shape} and labels {y.shape} do not fit together")
            if x.dtype != np.uint8 or y.dtype != np.int64:
                raise UsageError(f"{self.name}: needs uint8 images and int64 labels, not {x.dtype} and {y.dtype}")
            if y.min() < 0 or y.max() >= self.num_classes:
                raise UsageError(f"{self.name}: labels must lie in 0..{self.num_classes - 1}")
        if self.num_classes < 2:
            raise UsageError(f"{self.name}: needs at least 2 classes")
        if self.writers_train is not None and self.writers_train.shape != self.y_train.shape:
            raise UsageError(f"{self.name}: needs one writer for each train image")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                view = value.view()
                view.flags.writeable = False
                object.__setattr__(self, field.name, view)


_MINI_SHAPE = Shape((1, 28, 28), MINI_TRAIN, MINI_TEST, 10, balanced=False)


@dataclass(frozen=True, eq=False)
class _Arrays:
    x_train: Images
    y_train: npt.NDArray[Any]
    x_test: Images
    y_test: npt.NDArray[Any]
    writers_train: npt.NDArray[Any] | None = None


def load_dataset(name: str, data_dir: Path | None = None, *, registry: Mapping[str, Source] = SOURCES) -> Dataset:
    """The data set called ``name``: mnist-mini (embedded), mnist, fashion-mnist, cifar10 or cifar100 (fine labels), or
    one of `packed.NAMES`.

    Raises:
        UsageError: no such data set.
        DataError: it is not on this machine, or a file of it is corrupt.
    """
    if name == sources.EMBEDDED:
        return _checked(name, _read_mini(embedded_bytes()), _MINI_SHAPE, f"the embedded {MINI_FILE}")
    if name in packed.NAMES:
        original = name.removesuffix(packed.SUFFIX)
        path = packed.find_packed(name, sources.search_folders(original, data_dir))
        x_train, y_train, x_test, y_test = packed.unpack(path)
        return _checked(name, _Arrays(x_train, y_train, x_test, y_test), registry[original].shape, str(path))
    paths = sources.locate(name, data_dir, registry)
    where = str(next(iter(paths.values())).parent)
    return _checked(name, _read(name, paths), registry[name].shape, where)


def embedded_bytes() -> bytes:
    """The unpacked embedded subset, checked: images, then labels, then rows in the full set (see `mini_rows`)."""
    repair = "install the package again"
    try:
        packed = (resources.files("ebscfl.learning") / "embedded" / MINI_FILE).read_bytes()
        raw = lzma.decompress(packed)
    except (OSError, lzma.LZMAError) as error:
        raise DataError(f"the embedded {MINI_FILE} cannot be read ({error}); {repair}") from None
    if hashlib.sha256(raw).hexdigest() != MINI_SHA256:
        raise DataError(f"the embedded {MINI_FILE} does not match its checksum; {repair}")
    return raw


def mini_rows(raw: bytes) -> tuple[Labels, Labels]:
    """Which rows of the full train and test set the embedded subset holds."""
    count = MINI_TRAIN + MINI_TEST
    rows = np.frombuffer(raw, dtype="<i4", offset=count * (28 * 28 + 1)).astype(np.int64)
    return rows[:MINI_TRAIN], rows[MINI_TRAIN:]


def _read_mini(raw: bytes) -> _Arrays:
    count, pixels = MINI_TRAIN + MINI_TEST, 28 * 28
    x = np.frombuffer(raw, dtype=np.uint8, count=count * pixels).reshape(count, 1, 28, 28)
    y = np.frombuffer(raw, dtype=np.uint8, count=count, offset=count * pixels)
    return _Arrays(x[:MINI_TRAIN], y[:MINI_TRAIN], x[MINI_TRAIN:], y[MINI_TRAIN:])


@contextlib.contextmanager
def _decoding(name: str, path: Path) -> Iterator[None]:
    """The one place where a decoder's complaint becomes a `DataError`."""
    try:
        yield
    except (ValueError, KeyError, EOFError, OSError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is corrupt ({error}); run {sources.fix_command(name)}") from None


def _read(name: str, paths: dict[str, Path]) -> _Arrays:
    if "train-images-idx3-ubyte.gz" in paths:
        return _read_idx_set(name, paths)
    if f"{name}.part0.npz" in paths:
        return _read_mosaics(name, [paths[f"{name}.part{i}.npz"] for i in (0, 1)])
    return _read_cifar(name, paths)


def _read_idx_set(name: str, paths: dict[str, Path]) -> _Arrays:
    items = {}
    for file_name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        path = paths[f"{file_name}-ubyte.gz"]
        with _decoding(name, path):
            items[file_name] = formats.read_idx(gzip.decompress(path.read_bytes()))
    return _Arrays(
        items["train-images-idx3"][:, None],
        items["train-labels-idx1"],
        items["t10k-images-idx3"][:, None],
        items["t10k-labels-idx1"],
        _read_writers(name, paths, items["train-labels-idx1"]),
    )


def _read_writers(name: str, paths: dict[str, Path], labels: Images) -> npt.NDArray[Any] | None:
    if QMNIST_LABELS in paths:
        path = paths[QMNIST_LABELS]
        with _decoding(name, path):
            # QMNIST columns: 0 class, 1 NIST series, 2 writer, then provenance; in the order of MNIST's train set.
            table = formats.read_idx(gzip.decompress(path.read_bytes()))
            if table.ndim != 2 or not np.array_equal(table[:, 0], labels):
                raise ValueError("its labels are not those of the train set")
            return table[:, 2]
    if WRITERS in paths:
        with _decoding(name, paths[WRITERS]), np.load(paths[WRITERS], allow_pickle=False) as archive:
            writers: npt.NDArray[Any] = archive["writer_train"]
            if writers.shape != labels.shape:
                raise ValueError(f"it does not name one writer for each of {len(labels)} images")
            return writers
    return None


def _read_cifar(name: str, paths: dict[str, Path]) -> _Arrays:
    if name == "cifar10":
        folder, label_bytes = "cifar-10-batches-bin", 1
        members = (*(f"{folder}/data_batch_{i}.bin" for i in range(1, 6)), f"{folder}/test_batch.bin")
    else:
        folder, label_bytes = "cifar-100-binary", 2
        members = (f"{folder}/train.bin", f"{folder}/test.bin")
    if members[0] in paths:
        raw = tuple(paths[member].read_bytes() for member in members)
        path = paths[members[0]].parent
    else:
        path = next(iter(paths.values()))
        with _decoding(name, path):
            raw = formats.read_tar_members(path.read_bytes(), members)
    with _decoding(name, path):
        parts = [formats.read_cifar_records(part, label_bytes=label_bytes) for part in raw]
    x_train, y_train = (np.concatenate([part[i] for part in parts[:-1]]) for i in (0, 1))
    return _Arrays(x_train, y_train, np.ascontiguousarray(parts[-1][0]), parts[-1][1])


def _read_mosaics(name: str, paths: list[Path]) -> _Arrays:
    images, items = [], {}
    for path in paths:
        with _decoding(name, path), np.load(path, allow_pickle=False) as archive:
            if path == paths[0]:
                items = {key: archive[key] for key in ("y_train", "y_test", "n_train", "tiles")}
            for key in sorted(k for k in archive.files if k[0] == "b" and k[1:].isdigit()):
                images.append(formats.read_mosaic(archive[key].tobytes(), tiles=int(items["tiles"])))
    x, num_train = np.concatenate(images), int(items["n_train"])
    # The last mosaic is padded with empty tiles.
    return _Arrays(x[:num_train], items["y_train"], x[num_train : num_train + len(items["y_test"])], items["y_test"])


def _checked(name: str, arrays: _Arrays, shape: Shape, where: str) -> Dataset:
    """The last check: exactly the sizes, labels and class counts of the published set."""
    repair = f"run {sources.fix_command(name)}"
    for x, y, count in (
        (arrays.x_train, arrays.y_train, shape.num_train),
        (arrays.x_test, arrays.y_test, shape.num_test),
    ):
        if x.shape != (count, *shape.image) or y.shape != (count,):
            raise DataError(f"{where} is not {name}: images {x.shape}, labels {y.shape}; {repair}")
        counts = np.bincount(y, minlength=shape.num_classes)
        if len(counts) > shape.num_classes:
            raise DataError(f"{where} is not {name}: it has labels up to {len(counts) - 1}; {repair}")
        if shape.balanced and counts.min() != counts.max():
            raise DataError(f"{where} is corrupt (classes are unequal); {repair}")
    writers = arrays.writers_train
    return Dataset(
        name,
        arrays.x_train,
        arrays.y_train.astype(np.int64),
        arrays.x_test,
        arrays.y_test.astype(np.int64),
        shape.num_classes,
        None if writers is None else writers.astype(np.int64),
    )
