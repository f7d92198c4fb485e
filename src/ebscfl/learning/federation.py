"""Tensors ready for training: every sample as its holder sees it, and the test set through every domain.

Each holder (client or root part) owns its own rows of ``x`` and ``y``: no row belongs to two holders, so poisoning
one client can never touch another. Poisoning returns a new object; the old one stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ebscfl.errors import UsageError
from ebscfl.learning.data import Dataset
from ebscfl.learning.partition import Domain, Part, Partition

MAX_PIXEL = 255.0


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What n clients and the server hold, and what all are tested on. Tensors share one device."""

    x: Tensor  # (N, C, H, W) uint8: every held sample, already turned by its holder's domain
    y: Tensor  # (N,) int64: already mapped by its holder's domain
    client_rows: tuple[Tensor, ...]  # rows of x per client, int64
    root_rows: tuple[Tensor, ...]  # rows of x per root part, int64
    test_x: Tensor  # (R, M, C, H, W) uint8: the test set seen through each domain
    test_y: Tensor  # (R, M) int64
    client_domain: Tensor  # (n,) int64
    client_label_share: Tensor  # (n, classes) float64: label mix of what the client holds now; rows sum to 1
    scale: Tensor  # (C,) float32: model input = x / 255 * scale + shift
    shift: Tensor  # (C,) float32
    num_classes: int

    @property
    def num_clients(self) -> int:
        """How many clients hold data."""
        return len(self.client_rows)

    def to(self, device: torch.device | str) -> FederatedData:
        """The same data on ``device``."""
        return FederatedData(
            x=self.x.to(device),
            y=self.y.to(device),
            client_rows=tuple(rows.to(device) for rows in self.client_rows),
            root_rows=tuple(rows.to(device) for rows in self.root_rows),
            test_x=self.test_x.to(device),
            test_y=self.test_y.to(device),
            client_domain=self.client_domain.to(device),
            client_label_share=self.client_label_share.to(device),
            scale=self.scale.to(device),
            shift=self.shift.to(device),
            num_classes=self.num_classes,
        )

    def scaled(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Stored images (..., C, H, W) uint8 as model input; computed in ``dtype``."""
        scale, shift = (t.to(dtype)[:, None, None] for t in (self.scale, self.shift))
        return images.to(dtype).div_(MAX_PIXEL).mul_(scale).add_(shift)

    def inputs(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Model input of ``rows`` of x: (...) int64 -> (..., C, H, W)."""
        return self.scaled(self.x[rows], dtype)


def build_federation(dataset: Dataset, partition: Partition, *, standardize: bool = False) -> FederatedData:
    """Every holder's samples, turned and mapped by its domain.

    Args:
        standardize: give each channel mean 0 and variance 1 over the train set (a public constant of the data set)
            instead of the range [0, 1].

    Raises:
        UsageError: a client or root part holds nothing, or the partition does not fit the data set.
    """
    parts = (*partition.clients, *partition.root)
    _check(dataset, partition)
    sizes = [len(part.indices) for part in parts]
    stops = np.cumsum(sizes)
    rows = tuple(torch.arange(stop - size, stop) for size, stop in zip(sizes, stops.tolist(), strict=True))
    indices = np.concatenate([part.indices for part in parts])
    holder_domain = np.repeat([part.domain for part in parts], sizes)
    x = torch.empty((len(indices), *dataset.x_train.shape[1:]), dtype=torch.uint8)
    y = torch.empty(len(indices), dtype=torch.int64)
    test_x, test_y = [], []
    for number, domain in enumerate(partition.domains):
        (mine,) = np.nonzero(holder_domain == number)
        target = torch.from_numpy(mine)
        x[target], y[target] = _seen_through(domain, dataset.x_train[indices[mine]], dataset.y_train[indices[mine]])
        seen_x, seen_y = _seen_through(domain, dataset.x_test.copy(), dataset.y_test.copy())
        test_x.append(seen_x)
        test_y.append(seen_y)
    client_rows, root_rows = rows[: len(partition.clients)], rows[len(partition.clients) :]
    scale, shift = _input_scale(dataset, standardize)
    return FederatedData(
        x=x,
        y=y,
        client_rows=client_rows,
        root_rows=root_rows,
        test_x=torch.stack(test_x),
        test_y=torch.stack(test_y),
        client_domain=torch.tensor([part.domain for part in partition.clients], dtype=torch.int64),
        client_label_share=torch.stack([_label_share(y[r], dataset.num_classes) for r in client_rows]),
        scale=scale,
        shift=shift,
        num_classes=dataset.num_classes,
    )


def replace_labels(data: FederatedData, client: int, labels: Tensor) -> FederatedData:
    """``data`` with other labels on the samples of one client; the images are shared, not copied."""
    rows = _rows_of(data, client)
    _check_samples(data, client, data.x[rows], labels)
    y, share = data.y.clone(), data.client_label_share.clone()
    y[rows] = labels.to(y.device)
    share[client] = _label_share(y[rows], data.num_classes)
    return replace(data, y=y, client_label_share=share)


def replace_client(data: FederatedData, client: int, images: Tensor, labels: Tensor) -> FederatedData:
    """``data`` with other samples for one client: any number above 0."""
    return replace_clients(data, {client: (images, labels)})


def append_samples(data: FederatedData, client: int, images: Tensor, labels: Tensor) -> FederatedData:
    """``data`` with further samples for one client (a backdoor adds triggered duplicates)."""
    rows = _rows_of(data, client)
    _check_samples(data, client, images, labels)
    both = torch.cat([data.x[rows], images.to(data.x.device)]), torch.cat([data.y[rows], labels.to(data.y.device)])
    return replace_clients(data, {client: both})


def replace_clients(data: FederatedData, samples: Mapping[int, tuple[Tensor, Tensor]]) -> FederatedData:
    """``data`` with other ``(images, labels)`` for several clients, copying the rest once.

    A client that keeps its number of samples keeps its rows; one that does not gets new rows at the end, and its old
    rows stay in ``x`` unused (nobody refers to them).
    """
    x, y = data.x.clone(), data.y.clone()
    more_x, more_y = [x], [y]
    size = len(x)
    client_rows = list(data.client_rows)
    share = data.client_label_share.clone()
    for client in sorted(samples):
        images, labels = samples[client]
        rows = _rows_of(data, client)
        _check_samples(data, client, images, labels)
        images, labels = images.to(x.device), labels.to(y.device)
        if len(labels) == len(rows):
            x[rows], y[rows] = images, labels
        else:
            more_x.append(images)
            more_y.append(labels)
            client_rows[client] = torch.arange(size, size + len(labels), device=rows.device)
            size += len(labels)
        share[client] = _label_share(labels, data.num_classes)
    if len(more_x) > 1:
        x, y = torch.cat(more_x), torch.cat(more_y)
    return replace(data, x=x, y=y, client_rows=tuple(client_rows), client_label_share=share)


def _check(dataset: Dataset, partition: Partition) -> None:
    height, width = dataset.x_train.shape[2:]
    if height != width and any(domain.quarter_turns % 2 for domain in partition.domains):
        raise UsageError(f"images of {height} x {width} pixels cannot be turned by 90 degrees: they are not square")
    for domain in partition.domains:
        if domain.label_map.shape != (dataset.num_classes,):
            raise UsageError(f"a label map has {domain.label_map.shape} entries, {dataset.name} {dataset.num_classes}")
    _check_parts("client", partition.clients, dataset, len(partition.domains))
    _check_parts("root part", partition.root, dataset, len(partition.domains))
    if not partition.clients:
        raise UsageError("the partition has no client")


def _check_parts(what: str, parts: Sequence[Part], dataset: Dataset, num_domains: int) -> None:
    for number, part in enumerate(parts):
        if len(part.indices) == 0:
            raise UsageError(f"{what} {number} holds no sample")
        if part.indices.min() < 0 or part.indices.max() >= len(dataset.y_train):
            raise UsageError(f"{what} {number} refers to a sample outside the train set of {dataset.name}")
        if not 0 <= part.domain < num_domains:
            raise UsageError(f"{what} {number} has domain {part.domain}; there are {num_domains}")


def _check_samples(data: FederatedData, client: int, images: Tensor, labels: Tensor) -> None:
    if len(labels) == 0 or labels.shape != (len(images),) or images.shape[1:] != data.x.shape[1:]:
        raise UsageError(
            f"client {client} needs images of shape (k, {', '.join(map(str, data.x.shape[1:]))}) and k labels, k > 0; "
            f"got {tuple(images.shape)} and {tuple(labels.shape)}"
        )
    if images.dtype != data.x.dtype or labels.dtype != data.y.dtype:
        raise UsageError(f"client {client} needs uint8 images and int64 labels, not {images.dtype} and {labels.dtype}")
    if int(labels.min()) < 0 or int(labels.max()) >= data.num_classes:
        raise UsageError(f"labels of client {client} must lie in 0..{data.num_classes - 1}")


def _rows_of(data: FederatedData, client: int) -> Tensor:
    if not 0 <= client < data.num_clients:
        raise UsageError(f"there is no client {client}: clients are 0..{data.num_clients - 1}")
    return data.client_rows[client]


def _seen_through(
    domain: Domain, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    turned = torch.rot90(torch.from_numpy(images), domain.quarter_turns, dims=(-2, -1))
    return turned, torch.from_numpy(domain.label_map[labels])


def _label_share(labels: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(labels, minlength=num_classes).to(torch.float64) / len(labels)


def _input_scale(dataset: Dataset, standardize: bool) -> tuple[Tensor, Tensor]:
    """(C,) scale and shift. Moments come from the histogram of each channel: exact, whatever the size."""
    channels = dataset.x_train.shape[1]
    if not standardize:
        return torch.ones(channels), torch.zeros(channels)
    values = np.arange(256) / MAX_PIXEL
    mean, deviation = np.empty(channels), np.empty(channels)
    for channel in range(channels):
        counts = np.bincount(dataset.x_train[:, channel].reshape(-1), minlength=256)
        mean[channel] = counts @ values / counts.sum()
        deviation[channel] = np.sqrt(counts @ (values - mean[channel]) ** 2 / counts.sum())
    if not deviation.all():
        raise UsageError(f"{dataset.name} cannot be standardized: a channel is constant")
    scale, shift = 1.0 / deviation, -mean / deviation
    return torch.from_numpy(scale).float(), torch.from_numpy(shift).float()
