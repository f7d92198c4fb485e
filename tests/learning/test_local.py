"""The batched program equals one client after the other, whatever the chunking."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ebscfl import rng
from ebscfl.learning.federation import FederatedData
from ebscfl.learning.local import (
    LocalSettings,
    cluster_losses,
    confusion_counts,
    draw_batches,
    local_updates,
    local_updates_sequential,
)
from ebscfl.learning.models import FlatModel, make_model

ROOT = rng.root_from_seed(3)


def hand_made(clients: int = 5, shape: tuple[int, int, int] = (1, 12, 12), classes: int = 4) -> FederatedData:
    """Random images; client i holds 6 + 5 i of them; two test domains, the second with labels shifted by one."""
    generator = rng.torch_generator(ROOT, "test-data/1")
    sizes = [6 + 5 * i for i in range(clients)]
    total = sum(sizes)
    y = torch.randint(0, classes, (total,), generator=generator)
    test_x = torch.randint(0, 256, (1, 40, *shape), generator=generator, dtype=torch.uint8).repeat(2, 1, 1, 1, 1)
    test_y = torch.randint(0, classes, (1, 40), generator=generator)
    return FederatedData(
        x=torch.randint(0, 256, (total, *shape), generator=generator, dtype=torch.uint8),
        y=y,
        client_rows=tuple(torch.arange(total).split(sizes)),
        root_rows=(),
        test_x=test_x,
        test_y=torch.cat([test_y, (test_y + 1) % classes]),
        client_domain=torch.zeros(clients, dtype=torch.int64),
        client_label_share=torch.stack(
            [torch.bincount(part, minlength=classes) / len(part) for part in y.split(sizes)]
        ).double(),
        scale=torch.full((shape[0],), 2.0),
        shift=torch.full((shape[0],), -1.0),
        num_classes=classes,
    )


def starts_of(model: FlatModel, count: int) -> Tensor:
    return torch.stack([model.init(ROOT, i) for i in range(count)])


@pytest.mark.parametrize("name", ["mlp", "linear", "cnn", "cifar-cnn", "resnet20"])
def test_batched_equals_sequential(name: str) -> None:
    data = hand_made(clients=3)
    model = make_model(name, (1, 12, 12), 4)
    settings = LocalSettings(steps=3, batch_size=4, lr=0.05, momentum=0.9, weight_decay=0.01)
    batches = draw_batches(data.client_rows, 3, 4, ROOT, rng.USAGE_BATCHES, 1)
    fast = local_updates(model, starts_of(model, 3), data, batches, settings)
    slow = local_updates_sequential(model, starts_of(model, 3), data, batches, settings)
    assert fast.shape == (3, model.dim)
    torch.testing.assert_close(fast, slow, rtol=0.0, atol=1e-5)
    losses = cluster_losses(model, starts_of(model, 2), data, batches, settings)
    assert losses.shape == (3, 2)
    assert int(confusion_counts(model, starts_of(model, 2), data, settings).sum()) == 2 * 2 * 40
