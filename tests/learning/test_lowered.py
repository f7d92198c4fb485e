"""Lowered convolutions: the gradient of the sequential twin, in exact arithmetic up to rounding, whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_local import ROOT, hand_made

from ebscfl import rng
from ebscfl.errors import ConfigError, UsageError
from ebscfl.learning.local import LocalSettings, draw_batches, local_updates
from ebscfl.learning.lowered import ALIGNMENT, lowered_floats, lowered_logits
from ebscfl.learning.models import make_model


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
