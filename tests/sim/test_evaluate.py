from __future__ import annotations

import pytest
import torch

from ebscfl.sim.evaluate import own_accuracy, target_rate, triggered


def test_own_accuracy_weighs_classes_by_the_clients_labels() -> None:
    # One model, one domain, two classes: recall 3/4 and 1/2.
    counts = torch.tensor([[[[3, 1], [5, 5]]]])
    chosen = domains = torch.tensor([0, 0])
    share = torch.tensor([[1.0, 0.0], [0.2, 0.8]], dtype=torch.float64)
    assert own_accuracy(counts, chosen, domains, share).tolist() == pytest.approx([0.75, 0.2 * 0.75 + 0.8 * 0.5])


def test_classes_without_test_samples_are_left_out() -> None:
    counts = torch.tensor([[[[3, 1], [0, 0]]]])
    share = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    assert own_accuracy(counts, torch.tensor([0]), torch.tensor([0]), share).tolist() == [0.75]


def test_models_and_domains_are_looked_up_per_client() -> None:
    right, wrong = [[1, 0], [0, 1]], [[0, 1], [1, 0]]
    counts = torch.tensor([[right, wrong], [wrong, right]])  # model k is right in domain k
    share = torch.full((4, 2), 0.5, dtype=torch.float64)
    accuracy = own_accuracy(counts, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), share)
    assert accuracy.tolist() == [1.0, 0.0, 0.0, 1.0]


def test_target_rate_ignores_samples_of_the_target_class() -> None:
    counts = torch.tensor([[[[9, 0, 0], [2, 1, 1], [3, 0, 3]]]])
    # Of the 4 + 6 samples of classes 1 and 2, 2 + 3 are called class 0.
    assert target_rate(counts, torch.tensor([0]), torch.tensor([0]), 0).tolist() == [5 / 10]


def test_triggered_changes_only_the_test_images() -> None:
    from tiny_runs import make_rows

    from ebscfl.learning.federation import build_federation
    from ebscfl.learning.partition import PartitionSettings, make_partition
    from ebscfl.rng import root_from_seed

    rows = make_rows()
    settings = PartitionSettings(clients=3, min_size=2, root_size=8)
    data = build_federation(rows, make_partition(rows, settings, root_from_seed(1)))
    large = type(data)(**{**data.__dict__, "test_x": torch.zeros(1, 5, 1, 28, 28, dtype=torch.uint8)})
    marked = triggered(large, 2)
    assert marked.target == 2
    assert int((marked.data.test_x > 0).sum()) == 5 * 4  # four pixels of every image
    assert torch.equal(marked.data.x, data.x)
