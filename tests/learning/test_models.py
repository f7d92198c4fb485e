"""Parameter counts are arithmetic, and the flat view is the module."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ebscfl import rng
from ebscfl.errors import ConfigError, UsageError
from ebscfl.learning.models import MODEL_NAMES, FlatModel, make_model

ROOT = rng.root_from_seed(5)
CIFAR = (3, 32, 32)
MNIST = (1, 28, 28)


def conv(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs * 9 + bias * outputs


def block(inputs: int, outputs: int) -> int:
    return conv(inputs, outputs, bias=False) + conv(outputs, outputs, bias=False) + 4 * outputs


COUNTS = {
    ("mlp", MNIST): 784 * 256 + 256 * 10,
    ("linear", MNIST): 784 * 10 + 10,
    ("quadrants", MNIST): 4 * 10,
    ("cnn", MNIST): conv(1, 30) + conv(30, 50) + (50 * 5 * 5 + 1) * 100 + (100 + 1) * 10,
    ("cifar-cnn", CIFAR): conv(3, 32) + conv(32, 64) + conv(64, 64) + (64 * 4 * 4 + 1) * 128 + (128 + 1) * 10,
    ("resnet20", CIFAR): conv(3, 16, bias=False)
    + 2 * 16
    + 3 * block(16, 16)
    + block(16, 32)
    + 2 * block(32, 32)
    + block(32, 64)
    + 2 * block(64, 64)
    + (64 + 1) * 10,
}


@pytest.mark.parametrize(("name", "shape"), COUNTS)
def test_parameter_counts(name: str, shape: tuple[int, int, int]) -> None:
    assert make_model(name, shape, 10).dim == COUNTS[name, shape]


def test_the_counts_the_papers_state() -> None:
    assert COUNTS["mlp", MNIST] * 4 == 794.0 * 1024
    assert COUNTS["cnn", MNIST] == 139_960
    assert COUNTS["resnet20", CIFAR] == 269_722


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_apply_is_the_module_and_layers_tile_the_vector(name: str) -> None:
    model = make_model(name, (2, 16, 12), 7)
    theta = model.init(ROOT, 0)
    x = torch.rand(3, 2, 16, 12, generator=rng.torch_generator(ROOT, "x"))
    module = model.to_module(theta)
    logits = model.apply(theta, x)
    assert logits.shape == (3, 7)
    torch.testing.assert_close(logits, module(x), rtol=0.0, atol=0.0)
    assert torch.equal(model.layout.flatten(dict(module.named_parameters())), theta)
    stop = 0
    for name_, part, shape in model.layers():
        assert part.start == stop
        assert part.stop - part.start == math.prod(shape) == module.get_parameter(name_).numel()
        stop = part.stop
    assert stop == model.dim


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("linear", 0),
        ("quadrants", 0),
        ("mlp", 784 * 256),
        ("cnn", 30 * (9 + 1) + 50 * (30 * 9 + 1) + 100 * (50 * 5 * 5 + 1)),
        ("resnet20", None),
    ],
)
def test_the_head_is_the_last_layer_and_nothing_else(name: str, head: int | None) -> None:
    shape = (3, 32, 32) if name == "resnet20" else (1, 28, 28)
    model = make_model(name, shape, 10)
    if head is None:
        head = model.dim - 10 * (64 + 1)
    assert model.head == head
    theta = model.init(ROOT)
    x = torch.rand(3, *shape, generator=rng.torch_generator(ROOT, "test-head/1"))
    other = theta.clone()
    other[model.head :] *= 3.0  # biases start at zero, so logits are a multiple of the head
    torch.testing.assert_close(model.apply(other, x), 3.0 * model.apply(theta, x))
    if head:
        other = theta.clone()
        other[: model.head] *= 1.5
        assert not torch.allclose(model.apply(other, x), model.apply(theta, x))


def test_init_is_glorot_and_a_function_of_its_context() -> None:
    model = make_model("cnn", MNIST, 10)
    theta = model.init(ROOT, 1)
    assert theta.shape == (model.dim,)
    assert theta.dtype == torch.float32
    assert torch.equal(theta, model.init(ROOT, 1))
    assert not torch.equal(theta, model.init(ROOT, 2))
    views = model.layout.views(theta)
    name, _, shape = model.layers()[2]  # the second convolution
    assert shape == (50, 30, 3, 3)
    bound = math.sqrt(6.0 / (30 * 9 + 50 * 9))
    # The largest of 13 500 uniform draws misses the bound by 1 % with probability 0.99^13500 = e^-135.
    assert 0.99 * bound < float(views[name].abs().max()) <= bound
    assert float(views[model.layers()[1][0]].abs().max()) == 0.0


def test_norm_gains_start_at_one() -> None:
    model = make_model("resnet20", CIFAR, 10)
    views = model.layout.views(model.init(ROOT))
    gains = [views[name] for name, _, shape in model.layers() if len(shape) == 1 and name.endswith("norm1.weight")]
    assert len(gains) == 9
    assert all(bool((gain == 1).all()) for gain in gains)


def test_making_a_model_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    make_model("cnn", MNIST, 10).init(ROOT)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("mpl", MNIST, 10),
        ("cnn", (1, 9, 28), 10),
        ("cifar-cnn", (3, 7, 7), 10),
        ("mlp", MNIST, 1),
        ("mlp", (1, 0, 3), 2),
    ],
)
def test_impossible_models_are_refused(name: str, shape: tuple[int, int, int], classes: int) -> None:
    with pytest.raises(ConfigError):
        make_model(name, shape, classes)


def test_buffers_are_refused() -> None:
    with pytest.raises(UsageError, match="buffers"):
        FlatModel("norm", nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4)), (1, 2, 2), 4)


def test_only_chains_of_linear_layers_are_dense() -> None:
    assert make_model("mlp", MNIST, 10).dense == (("1.weight", None), ("3.weight", None))
    assert make_model("linear", MNIST, 10).dense == (("1.weight", "1.bias"),)
    assert make_model("cnn", MNIST, 10).dense == ()
    odd = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    assert FlatModel("odd", odd, (1, 2, 2), 2).dense == ()
