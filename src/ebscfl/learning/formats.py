"""Bytes of published data sets to arrays: IDX (MNIST family), CIFAR binary records, mosaics of equal tiles.

Pure functions without files or names. They refuse anything that is not exactly the announced size with a
`ValueError`; `ebscfl.learning.data` turns that into a `DataError` naming the file. No format here can run code:
the pickled "python version" of CIFAR is not read at all.
"""

from __future__ import annotations

import io
import math
import tarfile
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Third byte of an IDX file: the type of its items, big-endian.
_IDX_TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def read_idx(raw: bytes) -> npt.NDArray[Any]:
    """An IDX file: two zero bytes, item type, number of axes, each length as 4 bytes big-endian, then the items."""
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES or raw[3] == 0:
        raise ValueError("this is not an IDX file of bytes or 32-bit integers")
    dtype, axes = _IDX_TYPES[raw[2]], raw[3]
    start = 4 + 4 * axes
    if len(raw) < start:
        raise ValueError("the IDX header is cut off")
    shape = tuple(int(length) for length in np.frombuffer(raw, dtype=">u4", count=axes, offset=4))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise ValueError(f"the IDX header announces {expected} bytes, the file has {len(raw)}")
    items: npt.NDArray[Any] = np.frombuffer(raw, dtype=dtype, offset=start).reshape(shape)
    return items


def write_idx(items: Bytes) -> bytes:
    """The IDX file of an array of bytes (tests and exports)."""
    lengths = np.asarray(items.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 0x08, items.ndim]) + lengths + np.ascontiguousarray(items).tobytes()


def read_cifar_records(raw: bytes, *, label_bytes: int, side: int = 32) -> tuple[Bytes, Bytes]:
    """CIFAR binary version: each record is its label bytes, then 3 planes of side x side pixels.

    Returns images (n, 3, side, side) and the last label byte of each record (CIFAR-100: coarse first, then fine).
    """
    record = label_bytes + 3 * side * side
    if not raw or len(raw) % record:
        raise ValueError(f"{len(raw)} bytes are no whole number of records of {record} bytes")
    table = np.frombuffer(raw, dtype=np.uint8).reshape(-1, record)
    return table[:, label_bytes:].reshape(-1, 3, side, side), table[:, label_bytes - 1]


def read_tar_members(raw: bytes, names: tuple[str, ...]) -> tuple[bytes, ...]:
    """The named files of a tar.gz, in that order, without writing anything to disk."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
        for member in archive:
            if member.isfile() and member.name in names:
                stream = archive.extractfile(member)
                if stream is not None:
                    found[member.name] = stream.read()
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"the archive lacks {', '.join(missing)}")
    return tuple(found[name] for name in names)


def read_mosaic(picture: bytes, *, tiles: int) -> Bytes:
    """A lossless RGB picture of tiles x tiles images, row by row: (tiles^2, 3, H, W)."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    if tiles < 1 or pixels.shape[0] % tiles or pixels.shape[1] % tiles:
        raise ValueError(f"a picture of {pixels.shape[0]} x {pixels.shape[1]} pixels is no mosaic of {tiles} x {tiles}")
    height, width = pixels.shape[0] // tiles, pixels.shape[1] // tiles
    by_tile = pixels.reshape(tiles, height, tiles, width, 3).transpose(0, 2, 4, 1, 3)
    return by_tile.reshape(tiles * tiles, 3, height, width)
