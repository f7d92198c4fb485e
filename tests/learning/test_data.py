"""Loading: every layout gives the same arrays, every damage a `DataError`; the embedded subset equals the originals."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.util
import io
import lzma
from pathlib import Path

import numpy as np
import pytest
from learning_fixtures import make_dataset
from PIL import Image
from test_formats import make_tar

from ebscfl.errors import DataError, UsageError
from ebscfl.learning import data, formats
from ebscfl.learning.data import MINI_TEST, MINI_TRAIN, Dataset, load_dataset
from ebscfl.learning.registry import QMNIST_LABELS, SOURCES, WRITERS, Shape, Source, SourceFile

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_embedded_mnist.py"

# Small sets in every published layout. 20 train and 10 test samples, 10 classes every class equally often.
NUM_TRAIN, NUM_TEST = 20, 10
Y_TRAIN, Y_TEST = np.arange(NUM_TRAIN, dtype=np.uint8) % 10, np.arange(NUM_TEST, dtype=np.uint8)[::-1] % 10
IDX_NAMES = tuple(file.name for file in SOURCES["mnist"].files)


def pixels(count: int, *shape: int) -> np.ndarray:
    size = count * int(np.prod(shape))
    return (np.arange(size) * 31 % 253).astype(np.uint8).reshape(count, *shape)


GRAY, COLOR = pixels(NUM_TRAIN + NUM_TEST, 28, 28), pixels(NUM_TRAIN + NUM_TEST, 3, 32, 32)


def idx_files() -> dict[str, bytes]:
    arrays = (GRAY[:NUM_TRAIN], Y_TRAIN, GRAY[NUM_TRAIN:], Y_TEST)
    return {name: gzip.compress(formats.write_idx(a)) for name, a in zip(IDX_NAMES, arrays, strict=True)}


def records(images, labels, label_bytes: int) -> bytes:
    """CIFAR-100 has a coarse label first; 77 is none of its 20, so a reader that took it would be refused."""
    return b"".join(
        bytes([77] * (label_bytes - 1) + [int(label)]) + image.tobytes()
        for image, label in zip(images, labels, strict=True)
    )


def cifar_members(name: str) -> dict[str, bytes]:
    test = records(COLOR[NUM_TRAIN:], Y_TEST, 1 if name == "cifar10" else 2)
    if name == "cifar100":
        return {
            "cifar-100-binary/train.bin": records(COLOR[:NUM_TRAIN], Y_TRAIN, 2),
            "cifar-100-binary/test.bin": test,
        }
    batches = {
        f"cifar-10-batches-bin/data_batch_{i + 1}.bin": records(COLOR[4 * i : 4 * i + 4], Y_TRAIN[4 * i : 4 * i + 4], 1)
        for i in range(5)
    }
    return batches | {"cifar-10-batches-bin/test_batch.bin": test}


def mosaic_parts(name: str) -> dict[str, bytes]:
    """8 mosaics of 2 x 2 tiles hold 32 tiles for 30 images; the last two stay empty. Four mosaics a part."""
    tiles = np.concatenate([COLOR, np.zeros((2, 3, 32, 32), dtype=np.uint8)])
    pictures = []
    for four in tiles.reshape(8, 2, 2, 3, 32, 32):
        picture = np.concatenate([np.concatenate([four[r, c] for c in range(2)], axis=2) for r in range(2)], axis=1)
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0))).save(buffer, "WEBP", lossless=True)
        pictures.append(np.frombuffer(buffer.getvalue(), dtype=np.uint8))
    blobs = {f"b{i:03d}": picture for i, picture in enumerate(pictures)}
    first = {"y_train": Y_TRAIN, "y_test": Y_TEST, "n_train": np.int64(NUM_TRAIN), "tiles": np.int64(2)}
    parts = [dict(list(blobs.items())[:4]) | first, dict(list(blobs.items())[4:])]
    return {f"{name}.part{i}.npz": savez(part) for i, part in enumerate(parts)}


def savez(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def registry_of(name: str, files: dict[str, bytes], extras: dict[str, bytes] | None = None, **shape):
    """A registry whose only data set is these very files."""

    def describe(contents: dict[str, bytes]) -> tuple[SourceFile, ...]:
        return tuple(
            SourceFile(file, len(raw), "md5:" + hashlib.md5(raw, usedforsecurity=False).hexdigest())
            for file, raw in contents.items()
        )

    image = (3, 32, 32) if name.startswith("cifar") else (1, 28, 28)
    expected = dataclasses.replace(Shape(image, NUM_TRAIN, NUM_TEST, 10, balanced=True), **shape)
    return {name: Source(name, name, "free", expected, describe(files), describe(extras or {}))}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, raw in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return folder


def load_written(name, folder, files, extras=None, **shape) -> Dataset:
    write(folder, files | (extras or {}))
    return load_dataset(name, folder, registry=registry_of(name, files, extras, **shape))


def tar_of(name: str, members: dict[str, bytes] | None = None) -> dict[str, bytes]:
    return {f"{name}.tar.gz": make_tar(members or cifar_members(name))}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("subfolder", [False, True])
def test_idx_layout(no_local_data, name, subfolder):
    files = idx_files()
    write(no_local_data / name if subfolder else no_local_data, files)
    loaded = load_dataset(name, no_local_data, registry=registry_of(name, files))
    check_arrays(loaded, GRAY[:, None])
    assert loaded.writers_train is None


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("layout", [tar_of, cifar_members, mosaic_parts])
def test_cifar_layouts(no_local_data, name, layout):
    check_arrays(load_written(name, no_local_data, layout(name)), COLOR)


def check_arrays(loaded: Dataset, images) -> None:
    assert np.array_equal(loaded.x_train, images[:NUM_TRAIN])
    assert np.array_equal(loaded.x_test, images[NUM_TRAIN:])
    assert np.array_equal(loaded.y_train, Y_TRAIN)
    assert np.array_equal(loaded.y_test, Y_TEST)
    assert loaded.y_train.dtype == np.int64
    assert loaded.num_classes == 10
    for array in (loaded.x_train, loaded.y_train, loaded.x_test, loaded.y_test):
        assert not array.flags.writeable


def qmnist_labels(labels) -> bytes:
    table = np.zeros((len(labels), 8), dtype=">i4")
    table[:, 0], table[:, 2] = labels, np.arange(len(labels)) + 2000
    lengths = np.array(table.shape, dtype=">u4").tobytes()
    return gzip.compress(bytes([0, 0, 0x0C, 2]) + lengths + table.tobytes())


@pytest.mark.parametrize(
    "extras",
    [
        {QMNIST_LABELS: qmnist_labels(Y_TRAIN)},
        {WRITERS: savez({"writer_train": np.arange(NUM_TRAIN, dtype=np.int16) + 2000})},
    ],
)
def test_writers(no_local_data, extras):
    loaded = load_written("mnist", no_local_data, idx_files(), extras)
    assert loaded.writers_train.tolist() == list(range(2000, 2000 + NUM_TRAIN))
    assert loaded.writers_train.dtype == np.int64


@pytest.mark.parametrize(
    ("extras", "why"),
    [
        ({QMNIST_LABELS: qmnist_labels(Y_TRAIN[::-1])}, "its labels are not those"),
        ({QMNIST_LABELS: qmnist_labels(Y_TRAIN[1:])}, "its labels are not those"),
        ({WRITERS: savez({"writer_train": np.arange(3)})}, "one writer for each of 20"),
        ({WRITERS: savez({"other": np.arange(20)})}, "writer_train"),
        ({WRITERS: b"not a zip"}, "corrupt"),
        ({WRITERS: savez({"writer_train": np.array([{}] * 20)})}, "allow_pickle=False"),
    ],
)
def test_bad_writers(no_local_data, extras, why):
    with pytest.raises(DataError, match=rf"corrupt .*{why}|{why}") as caught:
        load_written("mnist", no_local_data, idx_files(), extras)
    assert next(iter(extras)) in str(caught.value)
    assert "`ebs-cfl data fetch mnist`" in str(caught.value)


IMAGES = IDX_NAMES[0]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"not gzip", "Not a gzipped file"),
        (gzip.compress(b"not idx at all"), "not an IDX file"),
        (gzip.compress(formats.write_idx(GRAY[:NUM_TRAIN])[:-1]), "announces"),
        (gzip.compress(formats.write_idx(GRAY[:NUM_TRAIN]))[:-9], "end-of-stream"),
    ],
)
def test_a_damaged_file_whose_checksum_is_unknown_is_still_refused(no_local_data, raw, why):
    with pytest.raises(DataError, match=rf"{IMAGES} is corrupt \(.*{why}.*\); run `ebs-cfl data fetch mnist`"):
        load_written("mnist", no_local_data, idx_files() | {IMAGES: raw})


def test_a_checksum_mismatch_is_refused_before_decoding(no_local_data):
    files = idx_files()
    write(no_local_data, files | {IMAGES: b"x" * len(files[IMAGES])})
    with pytest.raises(DataError, match=rf"{IMAGES} is corrupt \(its md5 checksum is wrong\)"):
        load_dataset("mnist", no_local_data, registry=registry_of("mnist", files))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({IMAGES: gzip.compress(formats.write_idx(GRAY[:5]))}, r"is not mnist: images \(5, 1, 28, 28\)"),
        ({IMAGES: gzip.compress(formats.write_idx(GRAY[:NUM_TRAIN, :27]))}, r"is not mnist: images \(20, 1, 27, 28\)"),
        ({IDX_NAMES[1]: gzip.compress(formats.write_idx(Y_TRAIN[:5]))}, r"labels \(5,\)"),
        ({IDX_NAMES[1]: gzip.compress(formats.write_idx(Y_TRAIN[None]))}, r"labels \(1, 20\)"),
        ({IDX_NAMES[1]: gzip.compress(formats.write_idx(Y_TRAIN + 1))}, r"labels up to 10"),
        ({IDX_NAMES[1]: gzip.compress(formats.write_idx(Y_TRAIN // 2))}, "classes are unequal"),
    ],
)
def test_well_formed_files_of_another_set_are_refused(no_local_data, changes, why):
    with pytest.raises(DataError, match=why) as caught:
        load_written("mnist", no_local_data, idx_files() | changes)
    assert "`ebs-cfl data fetch mnist`" in str(caught.value)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_bad_cifar(no_local_data, name):
    members = cifar_members(name)
    first = next(iter(members))
    for files, why in (
        (tar_of(name, {k: v for k, v in members.items() if k != first}), f"lacks {first}"),
        (tar_of(name, members | {first: members[first][:-1]}), "no whole number of records"),
        ({f"{name}.tar.gz": b"not a tar"}, "corrupt"),
        (members | {first: members[first][:-1]}, "no whole number of records"),
        (mosaic_parts(name) | {f"{name}.part1.npz": savez({"b004": np.zeros(9, np.uint8)})}, "cannot identify"),
        (mosaic_parts(name) | {f"{name}.part0.npz": savez({"b000": np.zeros(9, np.uint8)})}, "y_train"),
    ):
        with pytest.raises(DataError, match=why) as caught:
            load_written(name, no_local_data, files)
        assert f"`ebs-cfl data fetch {name}`" in str(caught.value)


def test_missing_data_is_one_line_with_the_command(no_local_data):
    with pytest.raises(DataError, match=r"^cifar10: .*run `ebs-cfl data fetch cifar10`$"):
        load_dataset("cifar10", no_local_data)


def test_unknown_name():
    with pytest.raises(UsageError, match="unknown data set 'minst'"):
        load_dataset("minst")


def good_fields() -> dict:
    made = make_dataset(20, 5)
    return {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"x_train": np.zeros((20, 3, 3), np.uint8)}, "do not fit"),
        ({"x_test": np.zeros((10, 1, 3, 4), np.uint8)}, "do not fit"),
        ({"y_train": np.zeros(19, np.int64)}, "do not fit"),
        ({"x_test": np.zeros((0, 1, 3, 3), np.uint8), "y_test": np.zeros(0, np.int64)}, "do not fit"),
        ({"x_train": np.zeros((20, 1, 3, 3))}, "uint8"),
        ({"y_test": np.zeros(10, np.int32)}, "int64"),
        ({"y_test": np.full(10, 5)}, r"0\.\.4"),
        ({"y_test": np.full(10, -1)}, r"0\.\.4"),
        ({"y_train": np.zeros(20, np.int64), "y_test": np.zeros(10, np.int64), "num_classes": 1}, "at least 2"),
        ({"writers_train": np.zeros(19, np.int64)}, "one writer"),
    ],
)
def test_a_dataset_checks_itself(changes, why):
    with pytest.raises(UsageError, match=why):
        Dataset(**(good_fields() | changes))


def test_a_dataset_does_not_lock_the_callers_arrays():
    fields = good_fields() | {"y_train": np.zeros(20, np.int64)}
    made = Dataset(**fields)
    fields["y_train"][0] = 1
    with pytest.raises(ValueError, match="read-only"):
        made.y_train[0] = 2


# The embedded subset.


def test_embedded_set_is_complete_and_stratified():
    mini = load_dataset("mnist-mini")
    assert mini.x_train.shape == (MINI_TRAIN, 1, 28, 28)
    assert mini.x_test.shape == (MINI_TEST, 1, 28, 28)
    assert set(mini.y_train.tolist()) == set(mini.y_test.tolist()) == set(range(10))
    rows_train, rows_test = data.mini_rows(data.embedded_bytes())
    assert len(np.unique(rows_train)) == MINI_TRAIN
    assert len(np.unique(rows_test)) == MINI_TEST
    packed = Path(data.__file__).parent / "embedded" / data.MINI_FILE
    assert packed.stat().st_size < 3 * 2**20
    license_note = (packed.parent / "LICENSE-mnist-mini.txt").read_text()
    assert all(word in license_note for word in ("LeCun", "Cortes", "Burges", "by-sa/3.0"))


@pytest.mark.parametrize("damage", [lambda raw: raw[:-40], lambda raw: raw[:5000] + b"?" + raw[5001:]])
def test_a_damaged_embedded_file_is_refused(monkeypatch, tmp_path, damage):
    packed = (Path(data.__file__).parent / "embedded" / data.MINI_FILE).read_bytes()
    write(tmp_path, {f"embedded/{data.MINI_FILE}": damage(packed)})
    monkeypatch.setattr(data.resources, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match=r"mnist-mini\.xz cannot be read .*install the package again"):
        load_dataset("mnist-mini")


def test_other_embedded_contents_are_refused(monkeypatch, tmp_path):
    write(tmp_path, {f"embedded/{data.MINI_FILE}": lzma.compress(bytes(1000))})
    monkeypatch.setattr(data.resources, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match="does not match its checksum; install the package again"):
        load_dataset("mnist-mini")


def test_embedded_images_are_those_of_the_full_set(need_data):
    """Byte for byte, and each class holds its exact share of the full set, rounded down or up."""
    full, mini = load_dataset("mnist", need_data("mnist")), load_dataset("mnist-mini")
    rows_train, rows_test = data.mini_rows(data.embedded_bytes())
    for rows, x, y, full_x, full_y in (
        (rows_train, mini.x_train, mini.y_train, full.x_train, full.y_train),
        (rows_test, mini.x_test, mini.y_test, full.x_test, full.y_test),
    ):
        assert x.tobytes() == full_x[rows].tobytes()
        assert np.array_equal(y, full_y[rows])
        exact = len(y) * np.bincount(full_y) / len(full_y)
        assert np.all(np.abs(np.bincount(y) - exact) < 1)


def test_the_script_makes_the_embedded_bytes(need_data):
    spec = importlib.util.spec_from_file_location("make_embedded_mnist", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.embedded_payload(load_dataset("mnist", need_data("mnist"))) == data.embedded_bytes()


# The full sets, where they are.


def test_full_mnist(need_data):
    full = load_dataset("mnist", need_data("mnist"))
    # Class counts as published with the data set (5 421 fives are its rarest train digit, 6 742 ones its most common).
    assert np.bincount(full.y_train)[[5, 1]].tolist() == [5421, 6742]
    if full.writers_train is not None:
        assert len(np.unique(full.writers_train)) == 539


@pytest.mark.parametrize("name", ["fashion-mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_full_sets_of_ten_classes(need_data, name):
    full = load_dataset(name, need_data(name))
    assert np.bincount(full.y_test).tolist() == [1000] * 10


@pytest.mark.slow
def test_full_cifar100(need_data):
    full = load_dataset("cifar100", need_data("cifar100"))
    assert np.bincount(full.y_train).tolist() == [500] * 100
    assert np.bincount(full.y_test).tolist() == [100] * 100
