"""The batched program equals one client after the other, whatever the chunking."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ebscfl import rng
from ebscfl.arrays import as_updates
from ebscfl.errors import ConfigError, ProtocolError, UsageError
from ebscfl.learning import local
from ebscfl.learning.federation import FederatedData
from ebscfl.learning.local import (
    STEPS,
    LocalSettings,
    chunk_size,
    cluster_losses,
    confusion_counts,
    draw_batches,
    local_updates,
    local_updates_sequential,
)
from ebscfl.learning.models import FlatModel, make_model
from ebscfl.learning.stacked import compiled_gradients, stacked_gradients

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


def equal_to_twin(name: str, method: str, shared: bool, **changes: object) -> None:
    clients = 2 if name == "resnet20" else 4
    data = hand_made(clients)
    model = make_model(name, (1, 12, 12), 4)
    values = {"steps": 2, "batch_size": 4, "lr": 0.05, "method": method} | changes
    settings = LocalSettings(**values)  # type: ignore[arg-type]
    batches = draw_batches(data.client_rows, settings.steps, 4, ROOT, rng.USAGE_BATCHES, 1)
    starts = model.init(ROOT) if shared else starts_of(model, clients)
    fast = local_updates(model, starts, data, batches, settings)
    slow = local_updates_sequential(model, starts, data, batches, settings)
    assert fast.shape == (clients, model.dim)
    assert float(slow.abs().max()) > 1e-3
    torch.testing.assert_close(fast, slow, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "method"),
    [(n, m) for n in ("mlp", "linear") for m in STEPS if m != "lowered"] + [("cnn", m) for m in STEPS if m != "dense"],
)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_batched_equals_sequential(
    name: str, method: str, shared: bool, steps: int, momentum: float, weight_decay: float
) -> None:
    equal_to_twin(name, method, shared, steps=steps, momentum=momentum, weight_decay=weight_decay)


@pytest.mark.parametrize(
    ("name", "method"),
    [(n, m) for n in ("cifar-cnn", "resnet20") for m in ("loop", "vmap")] + [("cifar-cnn", "lowered")],
)
def test_larger_models_equal_their_twins(name: str, method: str) -> None:
    equal_to_twin(name, method, shared=False, momentum=0.9)


def test_one_step_is_minus_lr_times_the_gradient_of_softmax_regression() -> None:
    data = hand_made(3)
    model = make_model("linear", (1, 12, 12), 4)
    batches = draw_batches(data.client_rows, 1, 5, ROOT, rng.USAGE_BATCHES, 1)
    updates = local_updates(model, torch.zeros(model.dim), data, batches, LocalSettings(steps=1, lr=0.3))
    for update, rows in zip(updates, batches[:, 0], strict=True):
        # At theta = 0 the softmax is 1/4 in each class.
        signal = (0.25 - torch.nn.functional.one_hot(data.y[rows], 4)) / 5
        expected = torch.cat([(signal.T @ data.inputs(rows).flatten(1)).flatten(), signal.sum(dim=0)])
        torch.testing.assert_close(update, -0.3 * expected, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(("name", "method"), [("mlp", "dense"), ("mlp", "vmap"), ("cnn", "loop")])
def test_chunks_change_results_by_rounding_at_most(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = hand_made(7)
    model = make_model(name, (1, 12, 12), 4)
    batches = draw_batches(data.client_rows, 2, 4, ROOT, rng.USAGE_BATCHES, 1)
    results = []
    for size in (1, 2, 3, 7):
        monkeypatch.setattr(local, "chunk_size", lambda *_, size=size: size)
        settings = LocalSettings(steps=2, method=method)
        results.append(local_updates(model, starts_of(model, 7), data, batches, settings))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(("name", "side"), [("linear", 64), ("mlp", 64), ("cnn", 12)])
@pytest.mark.parametrize("shared", [True, False])
def test_on_the_cpu_no_bit_depends_on_the_memory(name: str, side: int, shared: bool) -> None:
    data = hand_made(7, shape=(1, side, side))
    model = make_model(name, (1, side, side), 4)
    batches = draw_batches(data.client_rows, 2, 16, ROOT, rng.USAGE_BATCHES, 1)
    starts = starts_of(model, 7)
    small, large = (LocalSettings(steps=2, momentum=0.9, memory_mb=memory_mb) for memory_mb in (1, 2048))
    for rows in (batches, batches[:, :1]):
        updates = [local_updates(model, starts[0] if shared else starts, data, rows, s) for s in (small, large)]
        assert torch.equal(*updates)
    losses = [cluster_losses(model, starts[:3], data, batches, s) for s in (small, large)]
    assert torch.equal(*losses)


def test_a_model_that_gives_nan_has_infinite_loss() -> None:
    model, data = make_model("linear", (1, 12, 12), 4), hand_made()
    batches = draw_batches(data.client_rows, 1, 4, ROOT, rng.USAGE_BATCHES, 1)
    models = torch.stack(
        [torch.full((model.dim,), float("nan")), torch.full((model.dim,), 1e38), torch.zeros(model.dim)]
    )
    losses = cluster_losses(model, models, data, batches, LocalSettings())
    assert not losses.isnan().any()
    assert (losses[:, 0] == torch.inf).all()
    assert (losses.argmin(dim=1) == 2).all()


def test_chunks_follow_the_memory_and_hold_at_least_one_client() -> None:
    model = make_model("linear", (1, 12, 12), 4)
    theta = torch.zeros(model.dim)
    # Per client: 4 vectors of 144 * 4 + 4 entries; 8 samples of 144 inputs and 4 * (144 + 4) activations; 4 bytes.
    per_client = 4 * (4 * 580 + 8 * (144 + 4 * 148))
    small = LocalSettings(memory_mb=1, method="vmap")
    assert chunk_size(model, 8, small, theta) == (1 << 20) // per_client
    assert chunk_size(model, 1 << 20, small, theta) == 1
    # Dense steps on the CPU have their own budget, and the caches' share of parameters is another bound.
    assert chunk_size(model, 8, LocalSettings(memory_mb=1), theta) == local.CPU_BLOCK_BYTES // per_client
    assert chunk_size(model, 1, LocalSettings(method="vmap"), theta) == local.CPU_PARAMETER_BYTES // (4 * 580)


def test_evaluation_is_the_obvious_loop_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = hand_made(4, shape=(1, 64, 64))  # 40 test samples of 48 KiB: 1 MiB cuts them
    model = make_model("linear", (1, 64, 64), 4)
    models = starts_of(model, 3)
    batches = draw_batches(data.client_rows, 2, 8, ROOT, rng.USAGE_BATCHES, 1)
    losses = torch.empty(4, 3)
    counts = torch.zeros(3, 2, 4, 4, dtype=torch.int64)
    for j in range(3):
        for i in range(4):
            rows = batches[i].flatten()
            losses[i, j] = torch.nn.functional.cross_entropy(model.apply(models[j], data.inputs(rows)), data.y[rows])
        for domain in range(2):
            for x, y in zip(data.test_x[domain], data.test_y[domain], strict=True):
                counts[j, domain, y, model.apply(models[j], data.scaled(x)[None]).argmax()] += 1
    settings = LocalSettings()
    for block in (1 << 20, 100 << 20):
        monkeypatch.setattr(local, "CPU_BLOCK_BYTES", block)
        torch.testing.assert_close(cluster_losses(model, models, data, batches, settings), losses, rtol=0, atol=1e-5)
        assert torch.equal(confusion_counts(model, models, data, settings), counts)


def test_batches_are_epochs_of_own_rows_and_depend_on_the_client_alone() -> None:
    rows = [torch.arange(100, 103), torch.arange(200, 210)]
    batches = draw_batches(rows, 3, 4, ROOT, rng.USAGE_BATCHES, 7, ids=[5, 9])
    assert batches.shape == (2, 3, 4)
    small, large = batches.view(2, 12)
    assert all(sorted(small[i : i + 3].tolist()) == [100, 101, 102] for i in range(0, 12, 3))
    assert sorted(large[:10].tolist()) == list(range(200, 210))
    swapped = draw_batches(rows[::-1], 3, 4, ROOT, rng.USAGE_BATCHES, 7, ids=[9, 5])
    assert torch.equal(swapped, batches.flip(0))
    assert not torch.equal(batches, draw_batches(rows, 3, 4, ROOT, rng.USAGE_BATCHES, 8, ids=[5, 9]))


def test_a_diverged_client_shows_and_hurts_nobody_else() -> None:
    data = hand_made(3)
    for name in ("mlp", "cnn"):
        model = make_model(name, (1, 12, 12), 4)
        batches = draw_batches(data.client_rows, 2, 4, ROOT, rng.USAGE_BATCHES, 1)
        starts = starts_of(model, 3)
        clean = local_updates(model, starts, data, batches, LocalSettings(steps=2))
        starts[1] = float("nan")
        updates = local_updates(model, starts, data, batches, LocalSettings(steps=2))
        assert torch.equal(updates[[0, 2]], clean[[0, 2]])
        with pytest.raises(ProtocolError, match=r"\[1\]"):
            as_updates(updates)


def test_bfloat16_is_close_and_float64_stays() -> None:
    data = hand_made(3)
    model = make_model("mlp", (1, 12, 12), 4)
    batches = draw_batches(data.client_rows, 1, 4, ROOT, rng.USAGE_BATCHES, 1)
    starts = starts_of(model, 3)
    exact = local_updates(model, starts.double(), data, batches, LocalSettings(steps=1))
    assert exact.dtype == torch.float64
    for method in ("vmap", "loop"):
        half = local_updates(model, starts, data, batches, LocalSettings(steps=1, dtype="bfloat16", method=method))
        assert half.dtype == torch.float32
        # Eight significant bits: each update within a few percent of its norm.
        assert bool(((half - exact).norm(dim=1) < 0.05 * exact.norm(dim=1)).all())


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": 0},
        {"batch_size": 0},
        {"memory_mb": 0},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"dtype": "float16"},
        {"method": "fast"},
        {"method": "loop", "compile_step": True},
        {"method": "dense", "dtype": "bfloat16"},
    ],
)
def test_impossible_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        LocalSettings(**bad)  # type: ignore[arg-type]


def test_impossible_calls_are_refused() -> None:
    data = hand_made(2)
    model = make_model("cnn", (1, 12, 12), 4)
    batches = draw_batches(data.client_rows, 1, 4, ROOT, rng.USAGE_BATCHES, 1)
    for starts in (torch.zeros(3, model.dim), torch.zeros(model.dim + 1), torch.zeros(model.dim).half()):
        with pytest.raises(UsageError, match="starts must be"):
            local_updates(model, starts, data, batches, LocalSettings())
    with pytest.raises(UsageError, match="batches must be"):
        local_updates(model, torch.zeros(model.dim), data, batches[0], LocalSettings())
    with pytest.raises(UsageError, match="chain of linear layers"):
        local_updates(model, torch.zeros(model.dim), data, batches, LocalSettings(method="dense"))
    with pytest.raises(UsageError, match="models must be"):
        cluster_losses(model, torch.zeros(model.dim), data, batches, LocalSettings())
    with pytest.raises(UsageError, match="client 8 has no data"):
        draw_batches([torch.arange(3), torch.arange(0)], 1, 4, ROOT, rng.USAGE_BATCHES, 1, ids=[4, 8])
    with pytest.raises(UsageError, match="one id"):
        draw_batches([torch.arange(3)], 1, 4, ROOT, rng.USAGE_BATCHES, 1, ids=[4, 8])
    with pytest.raises(UsageError, match="at least 1"):
        draw_batches([torch.arange(3)], 0, 4, ROOT, rng.USAGE_BATCHES, 1)


def test_the_function_given_to_the_compiler_equals_the_stacked_backward_pass() -> None:
    data = hand_made(3)
    model = make_model("cnn", (1, 12, 12), 4)
    rows = draw_batches(data.client_rows, 1, 4, ROOT, rng.USAGE_BATCHES, 1)[:, 0]
    named, x, y = model.layout.views(starts_of(model, 3)), data.inputs(rows), data.y[rows]
    traced = compiled_gradients(model, False, backend="eager")(named, x, y)
    for name, gradient in stacked_gradients(model, False, named, x, y).items():
        torch.testing.assert_close(traced[name], gradient, rtol=0.0, atol=1e-6)
