"""Four clients with 1 x 1 x 2 images and two classes: small enough to know every number by hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ebscfl.algorithms import ClientRound, Environment, ServerSettings, Uploads
from ebscfl.learning.federation import FederatedData
from ebscfl.learning.local import LocalSettings
from ebscfl.learning.models import make_model
from ebscfl.rng import root_from_seed

DIM = 6  # weight (2, 2), then bias (2,)
LIKES_0 = torch.tensor([0.0, 0, 0, 0, 3, 0])  # a model that says class 0 whatever it sees
LIKES_1 = torch.tensor([0.0, 0, 0, 0, 0, 3])
HOPELESS = torch.tensor([0.0, 0, 0, 0, 0, 1])  # nobody's best: right about class 1 less firmly than LIKES_1
PIXEL = 255


@dataclass(frozen=True, eq=False)
class Fixed:
    """An adversary that decides every upload, so that a test does."""

    updates: Tensor
    malformed: tuple[int, ...] = ()

    def corrupt(self, clients: ClientRound) -> Uploads:
        return Uploads(self.updates.clone(), self.malformed)


def basis(index: int, length: float = 1.0) -> Tensor:
    """``length`` times a unit vector."""
    vector = torch.zeros(DIM)
    vector[index] = length
    return vector


def federation(labels: tuple[tuple[int, ...], ...], root: tuple[tuple[int, ...], ...] = ((0,), (1,))) -> FederatedData:
    """Client i holds samples labeled ``labels[i]``; every image is (1, 0)."""
    holders = [*labels, *root]
    flat = [label for own in holders for label in own]
    rows, start = [], 0
    for own in holders:
        rows.append(torch.arange(start, start + len(own)))
        start += len(own)
    images = torch.tensor([PIXEL, 0], dtype=torch.uint8).expand(len(flat), 1, 1, 2).contiguous()
    share = torch.stack([torch.bincount(torch.tensor(own), minlength=2).double() / len(own) for own in labels])
    return FederatedData(
        x=images,
        y=torch.tensor(flat),
        client_rows=tuple(rows[: len(labels)]),
        root_rows=tuple(rows[len(labels) :]),
        test_x=images[:2].clone()[None],
        test_y=torch.tensor([[0, 1]]),
        client_domain=torch.zeros(len(labels), dtype=torch.int64),
        client_label_share=share,
        scale=torch.ones(1),
        shift=torch.zeros(1),
        num_classes=2,
    )


def environment(
    data: FederatedData,
    uploads: Tensor | None = None,
    *,
    malformed: tuple[int, ...] = (),
    faulty: int = 0,
    **server: object,
) -> Environment:
    """One step of learning rate 1 on one sample; uploads are given, or honest."""
    base = Environment(
        root=root_from_seed(1),
        model=make_model("linear", (1, 1, 2), 2),
        data=data,
        local=LocalSettings(steps=1, batch_size=1, lr=1.0),
        server=ServerSettings(**{"clusters": 2, **server}),  # type: ignore[arg-type]
        faulty=faulty,
    )
    if uploads is None:
        return base
    return Environment(**{**base.__dict__, "adversary": Fixed(uploads, malformed)})
