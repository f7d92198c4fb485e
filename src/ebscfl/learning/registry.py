"""The data sets this package knows: published files, addresses, checksums and licenses. Data only.

A checksum decides, never a name or an address. MNIST and CIFAR-10/100 checksums are those their authors or their
long-standing mirrors publish (md5) or were taken from files that match them (sha256).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceFile:
    """One published file. Without ``checksum`` only its size and its content are checked; without ``urls`` it is
    recognized where it lies but never fetched."""

    name: str
    size: int | None
    checksum: str | None  # "sha256:..." or "md5:..."
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shape:
    """What the published arrays look like."""

    image: tuple[int, int, int]  # (C, H, W)
    num_train: int
    num_test: int
    num_classes: int
    balanced: bool  # every class equally often, in both sets


@dataclass(frozen=True)
class Source:
    """A data set: what to fetch, what else to recognize, and whose it is."""

    name: str
    title: str
    license: str
    shape: Shape
    files: tuple[SourceFile, ...]  # the canonical layout, which `fetch` brings
    extras: tuple[SourceFile, ...] = ()  # used where present
    alternatives: tuple[tuple[SourceFile, ...], ...] = ()  # other complete layouts
    pickled: tuple[str, ...] = ()  # layouts that would run code when read: named in errors, never opened


def _idx_files(rows: tuple[tuple[str, int, str], ...], *bases: str) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(name, size, digest, tuple(base + name for base in bases)) for name, size, digest in rows)


# The home page of MNIST no longer serves the files; both addresses are mirrors of the canonical four.
_MNIST = _idx_files(
    (
        (
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        (
            "train-labels-idx1-ubyte.gz",
            28_881,
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION = _idx_files(
    (
        ("train-images-idx3-ubyte.gz", 26_421_880, "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", 29_515, "md5:25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", 4_422_102, "md5:bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", 5_148, "md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
QMNIST_LABELS = "qmnist-train-labels-idx2-int.gz"
WRITERS = "mnist_writers.npz"
_CIFAR_LICENSE = "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; cite it"


def _extracted_cifar(folder: str, names: tuple[str, ...], size: int, test: tuple[str, int]) -> tuple[SourceFile, ...]:
    train = tuple(SourceFile(f"{folder}/{name}", size, None) for name in names)
    return (*train, SourceFile(f"{folder}/{test[0]}", test[1], None))


SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            "mnist",
            "MNIST, handwritten digits, 60 000 + 10 000",
            "Y. LeCun, C. Cortes, C. Burges, CC BY-SA 3.0",
            Shape((1, 28, 28), 60_000, 10_000, 10, balanced=False),
            _MNIST,
            extras=(
                SourceFile(WRITERS, 61_604, "sha256:9cb6a46f6056f20ab91252a94ba9c2b889a25859b98e1ff6b7324b9f96deda80"),
                SourceFile(
                    QMNIST_LABELS,
                    463_024,
                    "sha256:2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
                    ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/" + QMNIST_LABELS,),
                ),
            ),
        ),
        Source(
            "fashion-mnist",
            "Fashion-MNIST, clothes, 60 000 + 10 000",
            "Zalando SE, MIT",
            Shape((1, 28, 28), 60_000, 10_000, 10, balanced=True),
            _FASHION,
        ),
        Source(
            "cifar10",
            "CIFAR-10, photographs in 10 classes, 50 000 + 10 000",
            _CIFAR_LICENSE,
            Shape((3, 32, 32), 50_000, 10_000, 10, balanced=True),
            (
                SourceFile(
                    "cifar-10-binary.tar.gz",
                    170_052_171,
                    "md5:c32a1d4ab5d03f1284b67883e8d87530",
                    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                ),
            ),
            alternatives=(
                _extracted_cifar(
                    "cifar-10-batches-bin",
                    tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
                    10_000 * 3073,
                    ("test_batch.bin", 10_000 * 3073),
                ),
                (
                    SourceFile(
                        "cifar10.part0.npz",
                        51_205_180,
                        "sha256:3534a2ce9f5640bc587c6271cd42194d3ae700350ddd0ba48daaf2f8b74db8ce",
                    ),
                    SourceFile(
                        "cifar10.part1.npz",
                        48_692_784,
                        "sha256:6b78688cfee05889dc93910c91199d4b4c36d0d1ad3c173d394d17a69f2d88a3",
                    ),
                ),
            ),
            pickled=("cifar-10-python.tar.gz", "cifar-10-batches-py"),
        ),
        Source(
            "cifar100",
            "CIFAR-100, photographs in 100 fine classes, 50 000 + 10 000",
            _CIFAR_LICENSE,
            Shape((3, 32, 32), 50_000, 10_000, 100, balanced=True),
            (
                SourceFile(
                    "cifar-100-binary.tar.gz",
                    168_513_733,
                    "md5:03b5dce01913d631647c71ecec9e9cb8",
                    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                ),
            ),
            alternatives=(
                _extracted_cifar("cifar-100-binary", ("train.bin",), 50_000 * 3074, ("test.bin", 10_000 * 3074)),
                (
                    SourceFile(
                        "cifar100.part0.npz",
                        51_368_084,
                        "sha256:677670aed29e89fbf1dda595f5d722eb8fd8143c21269c5b0ec1683cc7d212c6",
                    ),
                    SourceFile(
                        "cifar100.part1.npz",
                        48_920_360,
                        "sha256:a8475c7b496b61311506858191d52381966b95e53d273dc3cbb48fc407a75f4f",
                    ),
                ),
            ),
            pickled=("cifar-100-python.tar.gz", "cifar-100-python"),
        ),
    )
}
