"""Lowered convolutions: the gradient of the sequential twin, in exact arithmetic up to rounding, whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_local import ROOT, hand_made
from torch import nn

from ebscfl import rng
from ebscfl.errors import ConfigError, UsageError
from ebscfl.learning.local import (
    STEPS,
    LocalSettings,
    _step_function,
    cluster_losses,
    confusion_counts,
    draw_batches,
    local_updates,
)
from ebscfl.learning.lowered import ALIGNMENT, lowered_floats, lowered_logits
from ebscfl.learning.models import _convolutional_chain, make_model


@pytest.mark.parametrize(("name", "side"), [("cnn", 13), ("cifar-cnn", 12), ("cifar-cnn", 9)])
@pytest.mark.parametrize("batch", [3, 8, 16])  # 16: weight gradients in two products
@pytest.mark.parametrize("channels", [1, 3])
def test_updates_equal_one_client_after_the_other_in_float64(name: str, side: int, batch: int, channels: int) -> None:
    data = hand_made(3, shape=(channels, side, side))
    model = make_model(name, (channels, side, side), data.num_classes)
    settings = LocalSettings(steps=3, batch_size=batch, lr=0.1, momentum=0.5, weight_decay=0.01, method="lowered")
    one_by_one = replace(settings, method="loop")  # in float32 against torch's own optimizer in test_local.py
    batches = draw_batches(data.client_rows, 3, batch, ROOT, rng.USAGE_BATCHES, 1)
    starts = torch.stack([model.init(ROOT, i) for i in range(3)]).double()
    fast = local_updates(model, starts, data, batches, settings)
    slow = local_updates(model, starts, data, batches, one_by_one)
    torch.testing.assert_close(fast, slow, rtol=0.0, atol=1e-12)
    assert float(slow.abs().max()) > 1e-2


def test_bfloat16_gives_the_direction_of_float32() -> None:
    data = hand_made(2, shape=(3, 16, 16))
    model = make_model("cifar-cnn", (3, 16, 16), data.num_classes)
    batches = draw_batches(data.client_rows, 1, 16, ROOT, rng.USAGE_BATCHES, 1)
    start = model.init(ROOT)
    exact, rounded = (
        local_updates(model, start, data, batches, LocalSettings(steps=1, batch_size=16, dtype=dtype, method="lowered"))
        for dtype in ("float32", "bfloat16")
    )
    # bfloat16 has 8 bits: 2^-8 a product, a few of them in a row.
    assert bool((torch.nn.functional.cosine_similarity(exact, rounded) > 1 - 20 * 2**-8).all())
    assert not torch.equal(exact, rounded)


@pytest.mark.parametrize("name", ["cnn", "cifar-cnn"])
def test_logits_are_the_models(name: str) -> None:
    model = make_model(name, (3, 12, 12), 4)
    theta = model.init(ROOT).double()
    x = torch.randn(5, 3, 12, 12, generator=rng.torch_generator(ROOT, "test-lowered/1"), dtype=torch.float64)
    torch.testing.assert_close(
        lowered_logits(model, theta, x, bfloat16=False), model.apply(theta, x), rtol=0.0, atol=1e-12
    )


def test_window_floats_are_counted() -> None:
    # FLTrust's network on 1 x 12 x 12: 10 x 10 windows of 9 + 1, filled to 16; then 3 x 3 of 270 + 1, filled to 272.
    assert ALIGNMENT == 8
    assert lowered_floats(make_model("cnn", (1, 12, 12), 4)) == 100 * 16 + 9 * 272
    assert lowered_floats(make_model("mlp", (1, 12, 12), 4)) == 0


def test_models_without_such_a_chain_are_refused() -> None:
    data = hand_made(2, shape=(1, 12, 12))
    for name in ("mlp", "resnet20"):
        model = make_model(name, (1, 12, 12), data.num_classes)
        assert model.convolutional is None
        batches = draw_batches(data.client_rows, 1, 4, ROOT, rng.USAGE_BATCHES, 1)
        with pytest.raises(UsageError, match="method lowered needs a chain of pooled convolutions"):
            local_updates(model, model.init(ROOT), data, batches, LocalSettings(steps=1, method="lowered"))
    with pytest.raises(ConfigError, match="compile_step needs method auto or vmap"):
        LocalSettings(method="lowered", compile_step=True)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_one_step_from_a_shared_start_is_the_loop_s(momentum: float) -> None:
    """A single step writes into the updates and reads one start that all clients share, without copies of it."""
    data = hand_made(4, shape=(3, 12, 12))
    model = make_model("cifar-cnn", (3, 12, 12), data.num_classes)
    settings = LocalSettings(steps=1, batch_size=5, lr=0.2, momentum=momentum, weight_decay=0.01, method="lowered")
    batches = draw_batches(data.client_rows, 1, 5, ROOT, rng.USAGE_BATCHES, 1)
    start = model.init(ROOT).double()
    before = start.clone()
    fast = local_updates(model, start, data, batches, settings)
    slow = local_updates(model, start, data, batches, replace(settings, method="loop"))
    torch.testing.assert_close(fast, slow, rtol=0.0, atol=1e-12)
    assert torch.equal(start, before)


def test_a_client_alone_is_the_client_among_others() -> None:
    data = hand_made(5, shape=(1, 12, 12))
    model = make_model("cnn", (1, 12, 12), data.num_classes)
    settings = LocalSettings(steps=2, batch_size=8, method="lowered")
    batches = draw_batches(data.client_rows, 2, 8, ROOT, rng.USAGE_BATCHES, 1)
    starts = torch.stack([model.init(ROOT, i) for i in range(5)]).double()
    together = local_updates(model, starts, data, batches, settings)
    for i in range(5):
        alone = local_updates(model, starts[i], data, batches[i : i + 1], settings)
        torch.testing.assert_close(alone[0], together[i], rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_diverged_client_shows_and_hurts_nobody_else(dtype: str) -> None:
    data = hand_made(3, shape=(1, 12, 12))
    model = make_model("cnn", (1, 12, 12), data.num_classes)
    settings = LocalSettings(steps=2, batch_size=8, dtype=dtype, method="lowered")
    batches = draw_batches(data.client_rows, 2, 8, ROOT, rng.USAGE_BATCHES, 1)
    starts = torch.stack([model.init(ROOT, i) for i in range(3)])
    fine = local_updates(model, starts, data, batches, settings)
    for bad in (torch.nan, torch.inf):
        broken = starts.clone()
        broken[1, 0] = bad
        updates = local_updates(model, broken, data, batches, settings)
        assert not bool(torch.isfinite(updates[1]).all())
        torch.testing.assert_close(updates[[0, 2]], fine[[0, 2]], rtol=0.0, atol=1e-6)
        losses = cluster_losses(model, broken, data, batches, settings)
        assert not bool(torch.isfinite(losses[:, 1]).any())
        assert bool(torch.isfinite(losses[:, [0, 2]]).all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_losses_and_counts_are_those_of_the_plain_model(dtype: str) -> None:
    data = hand_made(3, shape=(1, 12, 12))
    model = make_model("cnn", (1, 12, 12), data.num_classes)
    batches = draw_batches(data.client_rows, 2, 8, ROOT, rng.USAGE_BATCHES, 1)
    models = torch.stack([model.init(ROOT, i) for i in range(2)])
    lowered, plain = (LocalSettings(dtype=dtype, method=method) for method in ("lowered", "loop"))
    # bfloat16 rounds a product to 8 bits, and the two round in different places.
    close = 1e-5 if dtype == "float32" else 20 * 2**-8
    torch.testing.assert_close(
        cluster_losses(model, models, data, batches, lowered),
        cluster_losses(model, models, data, batches, plain),
        rtol=0.0,
        atol=close,
    )
    if dtype == "float32":
        assert torch.equal(confusion_counts(model, models, data, lowered), confusion_counts(model, models, data, plain))


def test_the_cpu_takes_the_loop_and_only_cuda_lowers() -> None:
    model = make_model("cifar-cnn", (3, 12, 12), 4)
    for dtype in ("float32", "bfloat16"):
        assert _step_function(model, LocalSettings(dtype=dtype), torch.device("cpu")) is STEPS["loop"]
        assert _step_function(model, LocalSettings(dtype=dtype), torch.device("cuda")) is STEPS["lowered"]
    residual = make_model("resnet20", (3, 12, 12), 4)
    assert _step_function(residual, LocalSettings(), torch.device("cuda")) is STEPS["vmap"]


CHAIN: list[nn.Module] = [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 25, 4)]


def with_layer(place: int, layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(*(layer if i == place else other for i, other in enumerate(CHAIN)))


@pytest.mark.parametrize(
    "module",
    [
        with_layer(0, nn.Conv2d(1, 2, 3, stride=2, padding=5)),
        with_layer(0, nn.Conv2d(1, 2, 3, bias=False)),
        with_layer(0, nn.Conv2d(1, 2, (3, 1), padding=(0, 0))),
        with_layer(0, nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")),
        with_layer(0, nn.Conv2d(1, 2, 3, dilation=2)),
        with_layer(0, nn.Conv2d(1, 2, 3, padding=3)),
        with_layer(1, nn.MaxPool2d(3)),
        with_layer(1, nn.MaxPool2d(2, stride=1)),
        with_layer(1, nn.AvgPool2d(2)),
        with_layer(2, nn.Tanh()),
        with_layer(4, nn.Linear(50, 4, bias=False)),
        nn.Sequential(*CHAIN[:4]),
        nn.Sequential(*CHAIN, nn.ReLU()),
        nn.Sequential(*CHAIN[3:]),
    ],
    ids=lambda module: " ".join(type(layer).__name__ for layer in module),
)
def test_other_modules_are_no_chain(module: nn.Sequential) -> None:
    """Everything `lowered_step` would compute wrongly is left to the others."""
    assert _convolutional_chain(nn.Sequential(*CHAIN)) is not None
    assert _convolutional_chain(module) is None
