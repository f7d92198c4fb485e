"""Tensors of a federation against a slow twin, sample by sample; poisoning touches one client only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from learning_fixtures import make_dataset

from ebscfl.errors import UsageError
from ebscfl.learning.federation import (
    append_samples,
    build_federation,
    replace_client,
    replace_clients,
    replace_labels,
)
from ebscfl.learning.partition import Domain, Part, Partition, PartitionSettings, make_partition
from ebscfl.rng import root_from_seed

DATASET = make_dataset(size=300, classes=5, channels=2)


def partition_of(kind: str) -> Partition:
    return make_partition(DATASET, PartitionSettings(kind=kind, clients=8, root_size=16), root_from_seed(3))


@pytest.fixture(scope="module")
def data():
    return build_federation(DATASET, partition_of("rotation"))


def slow_view(image, label, domain: Domain):
    for _ in range(domain.quarter_turns):
        image = np.stack([turn_left(plane) for plane in image])
    return image, int(domain.label_map[label])


def turn_left(plane):
    """A quarter turn counterclockwise: row i of the result is column (last - i)."""
    rows, columns = plane.shape
    return np.array([[plane[r, columns - 1 - i] for r in range(rows)] for i in range(columns)])


@pytest.mark.parametrize("kind", ["iid", "rotation", "permutation"])
def test_every_sample_is_seen_through_its_holders_domain(kind):
    partition = partition_of(kind)
    data = build_federation(DATASET, partition)
    parts = [*zip(partition.clients, data.client_rows, strict=True), *zip(partition.root, data.root_rows, strict=True)]
    for part, rows in parts:
        assert len(rows) == len(part.indices)
        for index, row in zip(part.indices, rows.tolist(), strict=True):
            image, label = slow_view(DATASET.x_train[index], DATASET.y_train[index], partition.domains[part.domain])
            assert np.array_equal(data.x[row].numpy(), image)
            assert int(data.y[row]) == label
    for number, domain in enumerate(partition.domains):
        for row in range(len(DATASET.y_test)):
            image, label = slow_view(DATASET.x_test[row], DATASET.y_test[row], domain)
            assert np.array_equal(data.test_x[number, row].numpy(), image)
            assert int(data.test_y[number, row]) == label


def test_rows_belong_to_one_holder(data):
    rows = torch.cat([*data.client_rows, *data.root_rows])
    assert torch.equal(rows.sort().values, torch.arange(len(data.x)))
    assert data.num_clients == 8


@pytest.mark.parametrize("kind", ["group", "permutation"])
def test_label_share_is_after_the_label_map(kind):
    partition = partition_of(kind)
    share = build_federation(DATASET, partition).client_label_share
    assert share.dtype == torch.float64
    for client, part in enumerate(partition.clients):
        mapped = [int(partition.domains[part.domain].label_map[DATASET.y_train[i]]) for i in part.indices]
        assert share[client].tolist() == pytest.approx([mapped.count(k) / len(mapped) for k in range(5)], abs=1e-15)
        assert int(build_federation(DATASET, partition).client_domain[client]) == part.domain


def test_inputs_scale_to_the_unit_range(data):
    rows = torch.tensor([[0, 5, 5], [1, 2, 3]])
    inputs = data.inputs(rows)
    assert inputs.shape == (2, 3, 2, 3, 3)
    assert inputs.dtype == torch.float32
    # One rounding of a quotient: half a unit in the last place of numbers up to 1.
    assert torch.allclose(inputs.double(), data.x[rows].double() / 255, atol=2**-24, rtol=0)
    assert data.inputs(rows, torch.float64).dtype == torch.float64


def test_standardized_inputs_have_mean_zero_and_variance_one():
    everyone = Partition((Part(np.arange(300), 0),), (Part(np.arange(1), 0),), (Domain(0, np.arange(5)),))
    data = build_federation(DATASET, everyone, standardize=True)
    inputs = data.inputs(data.client_rows[0], torch.float64)
    # scale and shift are kept in float32: relative error 2^-24 on values up to a few units.
    assert torch.allclose(inputs.mean(dim=(0, 2, 3)), torch.zeros(2, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(inputs.var(dim=(0, 2, 3), correction=0), torch.ones(2, dtype=torch.float64), atol=1e-6)


def test_standardizing_a_constant_channel_is_refused():
    flat = dataclasses.replace(DATASET, x_train=np.zeros_like(DATASET.x_train))
    with pytest.raises(UsageError, match="a channel is constant"):
        build_federation(flat, partition_of("iid"), standardize=True)


def test_to_moves_every_tensor(data):
    moved = data.to("meta")
    for field in dataclasses.fields(moved):
        value = getattr(moved, field.name)
        for tensor in value if isinstance(value, tuple) else [value]:
            assert not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta"
    assert moved.num_classes == data.num_classes


def untouched(before, after, client) -> bool:
    others = [rows for i, rows in enumerate(before.client_rows) if i != client] + list(before.root_rows)
    kept = [rows for i, rows in enumerate(after.client_rows) if i != client] + list(after.root_rows)
    return all(
        torch.equal(before.x[a], after.x[b]) and torch.equal(before.y[a], after.y[b])
        for a, b in zip(others, kept, strict=True)
    )


def test_replace_labels(data):
    old = data.y[data.client_rows[2]].clone()
    poisoned = replace_labels(data, 2, data.num_classes - 1 - old)
    assert torch.equal(poisoned.y[poisoned.client_rows[2]], 4 - old)
    assert torch.equal(poisoned.x[poisoned.client_rows[2]], data.x[data.client_rows[2]])
    assert torch.equal(data.y[data.client_rows[2]], old)
    assert untouched(data, poisoned, 2)
    slow = replace_client(data, 2, data.x[data.client_rows[2]], 4 - old)
    assert torch.equal(slow.y, poisoned.y)
    assert torch.equal(slow.client_label_share, poisoned.client_label_share)
    with pytest.raises(UsageError, match="and k labels"):
        replace_labels(data, 2, old[1:])
    assert torch.equal(poisoned.client_label_share[2], data.client_label_share[2].flip(0))
    assert torch.equal(poisoned.client_label_share[3], data.client_label_share[3])


@pytest.mark.parametrize("count", [1, 3, 100])
def test_replace_client_takes_any_number(data, count):
    images = torch.full((count, 2, 3, 3), 9, dtype=torch.uint8)
    labels = torch.full((count,), 3)
    poisoned = replace_client(data, 0, images, labels)
    assert torch.equal(poisoned.x[poisoned.client_rows[0]], images)
    assert torch.equal(poisoned.y[poisoned.client_rows[0]], labels)
    assert poisoned.client_label_share[0].tolist() == [0, 0, 0, 1, 0]
    assert untouched(data, poisoned, 0)


def test_append_samples(data):
    images, labels = torch.full((4, 2, 3, 3), 255, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
    more = append_samples(data, 7, images, labels)
    rows, old = more.client_rows[7], data.client_rows[7]
    assert torch.equal(more.x[rows], torch.cat([data.x[old], images]))
    assert torch.equal(more.y[rows], torch.cat([data.y[old], labels]))
    assert untouched(data, more, 7)


def test_replacing_many_equals_replacing_one_by_one(data):
    samples = {
        client: (torch.full((count, 2, 3, 3), client, dtype=torch.uint8), torch.full((count,), client % 5))
        for client, count in ((1, 5), (4, len(data.client_rows[4])), (6, 50))
    }
    together, one_by_one = replace_clients(data, samples), data
    for client, (images, labels) in samples.items():
        one_by_one = replace_client(one_by_one, client, images, labels)
    for a, b in zip(together.client_rows, one_by_one.client_rows, strict=True):
        assert torch.equal(together.x[a], one_by_one.x[b])
        assert torch.equal(together.y[a], one_by_one.y[b])
    assert torch.equal(together.client_label_share, one_by_one.client_label_share)


@pytest.mark.parametrize(
    ("client", "images", "labels", "message"),
    [
        (8, torch.zeros(1, 2, 3, 3, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), "no client 8"),
        (-1, torch.zeros(1, 2, 3, 3, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), "no client -1"),
        (0, torch.zeros(0, 2, 3, 3, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), "k > 0"),
        (0, torch.zeros(2, 2, 3, 3, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), "and k labels"),
        (0, torch.zeros(1, 1, 3, 3, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), r"shape \(k, 2, 3, 3\)"),
        (0, torch.zeros(1, 2, 3, 3), torch.zeros(1, dtype=torch.int64), "not torch.float32"),
        (0, torch.zeros(1, 2, 3, 3, dtype=torch.uint8), torch.tensor([5]), r"must lie in 0..4"),
        (0, torch.zeros(1, 2, 3, 3, dtype=torch.uint8), torch.tensor([-1]), r"must lie in 0..4"),
    ],
)
def test_bad_poison(data, client, images, labels, message):
    with pytest.raises(UsageError, match=message):
        replace_client(data, client, images, labels)
    with pytest.raises(UsageError, match=message):
        append_samples(data, client, images, labels)


IDENTITY = Domain(0, np.arange(5))
ONE = Part(np.array([0]), 0)
NONE = Part(np.zeros(0, dtype=np.int64), 0)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Partition((ONE, NONE), (ONE,), (IDENTITY,)), "client 1 holds no sample"),
        (Partition((ONE,), (ONE, NONE), (IDENTITY,)), "root part 1 holds no sample"),
        (Partition((), (ONE,), (IDENTITY,)), "has no client"),
        (Partition((Part(np.array([300]), 0),), (ONE,), (IDENTITY,)), "client 0 refers to a sample outside"),
        (Partition((Part(np.array([-1]), 0),), (ONE,), (IDENTITY,)), "client 0 refers to a sample outside"),
        (Partition((Part(np.array([1]), 1),), (ONE,), (IDENTITY,)), "client 0 has domain 1; there are 1"),
        (Partition((ONE,), (ONE,), (Domain(0, np.arange(4)),)), "label map"),
    ],
)
def test_bad_partition(partition, message):
    with pytest.raises(UsageError, match=message):
        build_federation(DATASET, partition)


def test_oblong_images_cannot_be_turned_by_90_degrees():
    oblong = dataclasses.replace(DATASET, x_train=DATASET.x_train[..., :2], x_test=DATASET.x_test[..., :2])
    turned = Partition((ONE,), (ONE,), (Domain(1, np.arange(5)),))
    with pytest.raises(UsageError, match="3 x 2 pixels cannot be turned"):
        build_federation(oblong, turned)
    half = Partition((ONE,), (ONE,), (Domain(2, np.arange(5)),))
    assert torch.equal(build_federation(oblong, half).x[0], torch.from_numpy(oblong.x_train[0].copy()).flip(1, 2))
