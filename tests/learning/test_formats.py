"""Decoders: bytes written by hand come back, anything else is refused."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from ebscfl.learning import formats


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_idx_round_trip(items):
    assert np.array_equal(formats.read_idx(formats.write_idx(items)), items)


def test_idx_by_hand():
    raw = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(6))
    assert formats.read_idx(raw).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_idx_of_integers_is_big_endian():
    raw = bytes([0, 0, 0x0C, 1, 0, 0, 0, 2]) + bytes([0, 0, 1, 2]) + bytes([0xFF] * 4)
    assert formats.read_idx(raw).tolist() == [0x102, -1]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not an IDX"),
        (bytes([0, 1, 8, 1, 0, 0, 0, 0]), "not an IDX"),
        (bytes([0, 0, 9, 1, 0, 0, 0, 0]), "not an IDX"),
        (bytes([0, 0, 8, 0]), "not an IDX"),
        (bytes([0, 0, 8, 3, 0, 0, 0, 1]), "cut off"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 3, 1, 2]), "announces 11 bytes, the file has 10"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 1, 1, 2]), "announces 9 bytes, the file has 10"),
    ],
)
def test_bad_idx(raw, why):
    with pytest.raises(ValueError, match=why):
        formats.read_idx(raw)


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_records(label_bytes):
    side, n = 2, 3
    records = np.arange(n * (label_bytes + 3 * side * side), dtype=np.uint8).reshape(n, -1)
    images, labels = formats.read_cifar_records(records.tobytes(), label_bytes=label_bytes, side=side)
    assert labels.tolist() == [int(record[label_bytes - 1]) for record in records]
    for image, record in zip(images, records, strict=True):
        red, green, blue = record[label_bytes:].reshape(3, side, side)
        assert np.array_equal(image, [red, green, blue])


@pytest.mark.parametrize("size", [0, 12, 14])
def test_bad_cifar_records(size):
    with pytest.raises(ValueError, match="no whole number of records of 13 bytes"):
        formats.read_cifar_records(bytes(size), label_bytes=1, side=2)


def test_tar_members():
    raw = make_tar({"a/x.bin": b"xx", "a/y.bin": b"y", "other": b"z"})
    assert formats.read_tar_members(raw, ("a/y.bin", "a/x.bin")) == (b"y", b"xx")
    with pytest.raises(ValueError, match=r"lacks a/w\.bin"):
        formats.read_tar_members(raw, ("a/w.bin", "a/x.bin"))


def test_a_link_in_a_tar_is_not_followed():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        link = tarfile.TarInfo("x")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    with pytest.raises(ValueError, match="lacks x"):
        formats.read_tar_members(buffer.getvalue(), ("x",))


def make_tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 255))
def test_mosaic(tiles, height, width, start):
    images = ((start + np.arange(tiles * tiles * 3 * height * width)) % 256).astype(np.uint8)
    images = images.reshape(tiles * tiles, 3, height, width)
    picture = np.zeros((tiles * height, tiles * width, 3), dtype=np.uint8)
    for number, image in enumerate(images):
        top, left = number // tiles * height, number % tiles * width
        picture[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    assert np.array_equal(formats.read_mosaic(buffer.getvalue(), tiles=tiles), images)


def test_bad_mosaic():
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 6, 3), dtype=np.uint8)).save(buffer, "PNG")
    with pytest.raises(ValueError, match="no mosaic of 3 x 3"):
        formats.read_mosaic(buffer.getvalue(), tiles=3)
    with pytest.raises(OSError, match="cannot identify"):
        formats.read_mosaic(b"no picture", tiles=1)
