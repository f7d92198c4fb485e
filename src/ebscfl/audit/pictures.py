"""Pictures for the audit page: one image a client, one training step, and what the server makes of the upload.

The rounds are real: every role and message of each protocol, the update of a real model on a real image. Only what
the server's view gives is inverted, with the attack that works best on that protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ebscfl import rng
from ebscfl.audit.inversion import Image, MatchSettings, invert_dense, likeness, match_gradients, one_step_update
from ebscfl.audit.plain import read
from ebscfl.audit.record import Truth, play, server_view
from ebscfl.audit.sealed_uploads import read_uploads
from ebscfl.audit.spectral import spectral
from ebscfl.audit.views import Estimate, Floats, View
from ebscfl.errors import DataError
from ebscfl.learning.data import Dataset, load_dataset
from ebscfl.learning.models import FlatModel, make_model

CLUSTERS = 2
DENSE_CLIENTS = 8


@dataclass(frozen=True, eq=False)
class Picture:
    """One client's image and its reconstructions by protocol."""

    client: int
    label: int
    original: Image
    seen: dict[str, Image]

    def likeness(self, protocol: str) -> float:
        """Correlation with the original."""
        return likeness(self.seen[protocol], self.original)


@dataclass(frozen=True, eq=False)
class Gallery:
    """Pictures of one model and data set."""

    dataset: str
    model: str
    method: str
    pictures: tuple[Picture, ...]


def last_masked(view: View) -> Estimate:
    """The reading of a sealed upload that is shown: the upload as it is. No other one is better."""
    *_, (_, estimate) = read_uploads(view, "masked")
    return estimate


BEST_ATTACK: dict[str, Callable[[View], Estimate]] = {"plain": read, "paper": spectral, "sealed": last_masked}


def dense_gallery(
    seed: int = 0, *, clients: int = DENSE_CLIENTS, protocols: Sequence[str] = tuple(BEST_ATTACK)
) -> Gallery:
    """Embedded MNIST digits and the MLP: the first layer's update is inverted in closed form."""
    data = load_dataset("mnist-mini")
    model = make_model("mlp", _shape(data), data.num_classes)

    def invert(update: Floats, theta: torch.Tensor) -> Image:
        return invert_dense(model, update)

    pictures = _reconstruct(data, model, seed, clients, protocols, invert)
    return Gallery("MNIST", model.name, "closed form, from the first linear layer", pictures)


def convolutional_gallery(
    seed: int = 0,
    *,
    clients: int = 4,
    data_dir: Path | None = None,
    settings: MatchSettings | None = None,
    protocols: Sequence[str] = tuple(BEST_ATTACK),
) -> list[Gallery]:
    """Convolutional networks on MNIST and, where it is on this machine, CIFAR-10: gradient matching."""
    galleries = []
    for name, model_name, title, default in (
        ("mnist-mini", "cnn", "MNIST", MatchSettings(steps=200)),
        ("cifar10", "cifar-cnn", "CIFAR-10", MatchSettings()),
    ):
        try:
            data = load_dataset(name, data_dir)
        except DataError:
            continue  # the page shows what there is
        model = make_model(model_name, _shape(data), data.num_classes)
        root = rng.root_from_seed(seed)

        def invert(
            update: Floats,
            theta: torch.Tensor,
            model: FlatModel = model,
            root: bytes = root,
            chosen: MatchSettings = settings or default,
        ) -> Image:
            return match_gradients(model, theta, update, root, chosen)

        pictures = _reconstruct(data, model, seed, clients, protocols, invert)
        galleries.append(Gallery(title, model.name, "gradient matching", pictures))
    return galleries


def _shape(data: Dataset) -> tuple[int, int, int]:
    channels, height, width = data.x_train.shape[1:]
    return int(channels), int(height), int(width)


def _reconstruct(
    data: Dataset,
    model: FlatModel,
    seed: int,
    clients: int,
    protocols: Sequence[str],
    invert: Callable[[Floats, torch.Tensor], Image],
) -> tuple[Picture, ...]:
    root = rng.root_from_seed(seed)
    theta = model.init(root, "audit")
    rows = _one_of_each(data, clients, root)
    images = [data.x_train[row].astype(np.float64) / 255.0 for row in rows]
    labels = [int(data.y_train[row]) for row in rows]
    updates = np.stack([one_step_update(model, theta, x, y) for x, y in zip(images, labels, strict=True)])
    truth = Truth(updates, tuple(i % CLUSTERS for i in range(clients)), _root_updates(data, model, theta, root))
    seen: list[dict[str, Image]] = [{} for _ in range(clients)]
    for protocol in protocols:
        estimate = BEST_ATTACK[protocol](server_view(play(protocol, [truth], seed=seed)))
        for client, update in zip(estimate.targets, estimate.updates, strict=True):
            seen[client][protocol] = invert(update, theta)
    return tuple(Picture(i, labels[i], images[i], seen[i]) for i in range(clients))


def _one_of_each(data: Dataset, count: int, root: bytes) -> list[int]:
    """One train image of each class in turn, drawn by the seed."""
    draw = rng.numpy_generator(root, rng.USAGE_AUDIT, "images", data.name)
    chosen = []
    for i in range(count):
        of_class = np.flatnonzero(data.y_train == i % data.num_classes)
        chosen.append(int(draw.choice(of_class)))
    return chosen


def _root_updates(data: Dataset, model: FlatModel, theta: torch.Tensor, root: bytes) -> Floats:
    """The server's root updates: the mean of a few one-step updates on test images, one set a cluster."""
    draw = rng.numpy_generator(root, rng.USAGE_AUDIT, "root-images", data.name)
    rows = draw.choice(len(data.y_test), size=(CLUSTERS, 4), replace=False)
    return np.stack(
        [
            np.mean([one_step_update(model, theta, data.x_test[i] / 255.0, int(data.y_test[i])) for i in mine], axis=0)
            for mine in rows
        ]
    )
