"""Local training of all clients as one batched program, and the batched losses that choose a cluster.

Parameters of a chunk of clients are stacked, the forward pass is mapped over clients with `torch.func.vmap`, and one
ordinary backward pass of the summed loss gives every client its own gradient (client i's loss does not depend on
client j's parameters). `local_updates_sequential` is the slow twin: one torch module and optimizer a client.

A client that diverges returns NaN or infinity in its own row and leaves the others alone; the rule that receives the
updates names it (`ebscfl.arrays.as_updates`). How far results depend on chunks is said in `chunk_size`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ebscfl import rng
from ebscfl.errors import ConfigError, UsageError
from ebscfl.learning.federation import FederatedData
from ebscfl.learning.lowered import lowered_floats, lowered_logits, lowered_step
from ebscfl.learning.models import FlatModel
from ebscfl.learning.stacked import SgdSettings, Stack, autocast, dense_step, loop_step, vmap_step

MIB = 1 << 20
CPU_PARAMETER_BYTES = 16 * MIB
"""Parameters of a chunk on the CPU: larger ones leave the caches and cost fresh pages for every temporary."""
CPU_BLOCK_BYTES = 128 * MIB
"""What a chunk of `dense_step`, or a block of evaluated samples, takes on the CPU, whatever ``memory_mb`` says."""

StepFunction = Callable[[FlatModel, Stack, Tensor, Tensor, SgdSettings], None]
STEPS: dict[str, StepFunction] = {"dense": dense_step, "lowered": lowered_step, "vmap": vmap_step, "loop": loop_step}


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains: SGD on the mean cross entropy of each batch."""

    steps: int = 10
    batch_size: int = 32
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    dtype: str = "float32"  # or "bfloat16": autocast of the forward pass
    memory_mb: int = 2048  # a chunk of clients stays below this (but holds at least one); see `chunk_size`
    method: str = "auto"  # or one of `STEPS`, to compare them
    compile_step: bool = False  # torch.compile the vmapped step: for CUDA, worth it from some hundred steps on

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "memory_mb"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0.0 < self.lr < float("inf"):
            raise ConfigError(f"lr must be positive and finite, not {self.lr}")
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"momentum must lie in [0, 1), not {self.momentum}")
        if not 0.0 <= self.weight_decay < float("inf"):
            raise ConfigError(f"weight_decay must be at least 0 and finite, not {self.weight_decay}")
        if self.method not in ("auto", *STEPS):
            raise ConfigError(f"method must be auto or one of {', '.join(STEPS)}, not {self.method!r}")
        if self.method == "dense" and self.dtype != "float32":
            raise ConfigError("method dense has no autocast: use float32, or method auto, vmap or loop")
        if self.compile_step and self.method not in ("auto", "vmap"):
            raise ConfigError(f"compile_step needs method auto or vmap, not {self.method!r}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"dtype must be float32 or bfloat16, not {self.dtype!r}")


def draw_batches(
    rows: Sequence[Tensor],
    steps: int,
    batch_size: int,
    root: bytes,
    usage: str,
    round_id: int,
    ids: Sequence[int] | None = None,
) -> Tensor:
    """Rows of the data that each client trains on this round: ``(n, steps, batch)`` int64.

    Each client runs through its own rows in shuffled epochs, one after the other, so a client with fewer rows than
    ``steps * batch`` meets them again (and one smaller than a batch meets them within it). The shuffles depend on
    (root, usage, round_id, client id) alone; ``ids`` defaults to 0..n-1.
    """
    if steps < 1 or batch_size < 1:
        raise UsageError(f"steps and batch_size must be at least 1, not {steps} and {batch_size}")
    names = range(len(rows)) if ids is None else ids
    if len(names) != len(rows) or not rows:
        raise UsageError(f"need one id for each of at least one client: {len(names)} ids, {len(rows)} clients")
    need = steps * batch_size
    drawn = []
    for client, own in zip(names, rows, strict=True):
        if len(own) == 0:
            raise UsageError(f"client {client} has no data: leave it out or give it at least one sample")
        generator = rng.numpy_generator(root, usage, round_id, int(client))
        epochs = [generator.permutation(len(own)) for _ in range(-(-need // len(own)))]
        order = torch.from_numpy(np.concatenate(epochs)[:need])
        drawn.append(own[order.to(own.device)])
    return torch.stack(drawn).view(len(rows), steps, batch_size)


def local_updates(
    model: FlatModel, starts: Tensor, data: FederatedData, batches: Tensor, settings: LocalSettings
) -> Tensor:
    """Every client's update ``theta_after - theta_before``: ``(n, dim)``.

    Args:
        starts: ``(n, dim)``, each client's start vector, or ``(dim,)`` if all share one.
        batches: ``(n, steps, batch)`` rows of ``data``; its shape decides the number of steps.
    """
    starts = _check_starts(model, starts, batches)
    num_clients = len(batches)
    updates = torch.empty((num_clients, model.dim), dtype=starts.dtype, device=starts.device)
    size = chunk_size(model, batches.shape[2], settings, starts)
    for part in _chunks(num_clients, size):
        _train_chunk(model, starts[part], data, batches[part], settings, updates[part])
    return updates


def local_updates_sequential(
    model: FlatModel, starts: Tensor, data: FederatedData, batches: Tensor, settings: LocalSettings
) -> Tensor:
    """`local_updates`, one client after the other with an ordinary torch module and optimizer."""
    starts = _check_starts(model, starts, batches)
    updates = []
    for start, rows in zip(starts, batches, strict=True):
        module = model.to_module(start)
        optimizer = torch.optim.SGD(
            module.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        for step_rows in rows:
            optimizer.zero_grad()
            with autocast(settings.dtype == "bfloat16", starts.device):
                logits = module(data.inputs(step_rows, starts.dtype))
            functional.cross_entropy(logits.to(starts.dtype), data.y[step_rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        after = model.layout.flatten(dict(module.named_parameters())).detach()
        updates.append(after - start)
    return torch.stack(updates)


def cluster_losses(
    model: FlatModel, models: Tensor, data: FederatedData, batches: Tensor, settings: LocalSettings
) -> Tensor:
    """``(n, m)``: mean cross entropy of each model ``(m, dim)`` on each client's batches ``(n, steps, batch)``.

    A model that gives NaN has infinite loss: the lowest of a row would otherwise be a diverged model's.
    """
    _check_models(model, models)
    rows = batches.flatten(1)  # (n, samples)
    losses = torch.empty((len(rows), len(models)), dtype=models.dtype, device=models.device)
    size = max(1, _eval_samples(model, settings, models) // rows.shape[1])
    with torch.no_grad():
        for part in _chunks(len(rows), size):
            x, y = data.inputs(rows[part].flatten(), models.dtype), data.y[rows[part]]
            for index, theta in enumerate(models):
                logits = _forward(model, theta, x, settings)
                each = functional.cross_entropy(logits, y.flatten(), reduction="none")
                losses[part, index] = each.view(y.shape).mean(dim=1)
    return losses.nan_to_num_(nan=torch.inf, posinf=torch.inf)


def confusion_counts(model: FlatModel, models: Tensor, data: FederatedData, settings: LocalSettings) -> Tensor:
    """How often each model says what on each test domain: ``(m, R, classes, classes)`` int64, [.., true, predicted]."""
    _check_models(model, models)
    classes, (domains, samples) = data.num_classes, data.test_y.shape
    counts = torch.zeros((len(models), domains, classes * classes), dtype=torch.int64, device=models.device)
    size = _eval_samples(model, settings, models)
    with torch.no_grad():
        for domain in range(domains):
            for part in _chunks(samples, size):
                x, y = data.scaled(data.test_x[domain, part], models.dtype), data.test_y[domain, part]
                for index, theta in enumerate(models):
                    predicted = _forward(model, theta, x, settings).argmax(dim=1)
                    counts[index, domain] += torch.bincount(y * classes + predicted, minlength=classes * classes)
    return counts.view(len(models), domains, classes, classes)


def chunk_size(model: FlatModel, batch_size: int, settings: LocalSettings, like: Tensor) -> int:
    """Clients trained at once: as many as ``memory_mb`` holds, and on the CPU no more than its caches serve well.

    On the CPU no bit of a result depends on ``memory_mb``: `loop_step` never looks at two clients together, and the
    chunks of `dense_step` (like the blocks of evaluation) have a fixed budget instead, because a batched product rounds
    differently when the number or the alignment of its matrices changes. With `vmap_step` (on CUDA, or asked for) the
    last bits may differ between two values of ``memory_mb``, not between two runs of one configuration.
    """
    on_cpu = like.device.type == "cpu"
    fixed = on_cpu and _step_function(model, settings, like.device) is dense_step
    # Parameters, gradient, step and momentum; inputs; activations, their gradients and a reordered copy of each.
    parameters = (4 + (settings.momentum > 0)) * model.dim
    windows = 2 * lowered_floats(model) if _step_function(model, settings, like.device) is lowered_step else 0
    floats = parameters + batch_size * (int(np.prod(model.input_shape)) + 4 * model.activations + windows)
    size = (CPU_BLOCK_BYTES if fixed else settings.memory_mb * MIB) // (floats * like.element_size())
    if on_cpu:
        size = min(size, CPU_PARAMETER_BYTES // (model.dim * like.element_size()))
    return max(1, size)


def _train_chunk(
    model: FlatModel, starts: Tensor, data: FederatedData, batches: Tensor, settings: LocalSettings, updates: Tensor
) -> None:
    """Train a chunk of clients and write their updates ``(k, dim)``."""
    steps = batches.shape[1]
    step_of = _step_function(model, settings, starts.device)
    sgd = SgdSettings(
        settings.lr, settings.momentum, settings.weight_decay, settings.dtype == "bfloat16", settings.compile_step
    )
    # A single step writes the movement straight into the update: no copy of the start vectors, no subtraction, and the
    # start vectors stay one if all clients share them. Its momentum is the gradient.
    theta = updates if steps == 1 else starts.clone()
    momentum = torch.zeros_like(theta) if settings.momentum and steps > 1 else None
    views = model.layout.views
    targets, buffers = views(theta), None if momentum is None else views(momentum)
    for step in range(steps):
        rows = batches[:, step]
        stack = Stack(views(starts) if steps == 1 else targets, targets, buffers, fresh=steps == 1)
        step_of(model, stack, data.inputs(rows, starts.dtype), data.y[rows], sgd)
    if steps > 1:
        torch.sub(theta, starts, out=updates)


def _step_function(model: FlatModel, settings: LocalSettings, device: torch.device) -> StepFunction:
    """The fastest way there is, as measured by ``bench/simulation.py``."""
    if settings.method == "dense" and not model.dense:
        raise UsageError(f"method dense needs a chain of linear layers, model {model.name} is none")
    if settings.method == "lowered" and model.convolutional is None:
        raise UsageError(f"method lowered needs a chain of pooled convolutions, model {model.name} is none")
    if settings.method != "auto":
        return STEPS[settings.method]
    if model.dense and settings.dtype == "float32" and not settings.compile_step:
        return dense_step
    if settings.compile_step:
        return vmap_step
    if device.type == "cpu":
        return loop_step
    return vmap_step if model.convolutional is None else lowered_step


def _forward(model: FlatModel, theta: Tensor, x: Tensor, settings: LocalSettings) -> Tensor:
    if _step_function(model, settings, theta.device) is lowered_step:
        return lowered_logits(model, theta, x, bfloat16=settings.dtype == "bfloat16").to(theta.dtype)
    with autocast(settings.dtype == "bfloat16", theta.device):
        logits = model.apply(theta, x)
    return logits.to(theta.dtype)


def _eval_samples(model: FlatModel, settings: LocalSettings, like: Tensor) -> int:
    """Samples evaluated at once: inputs, and two layers' activations at most, stay below the budget (`chunk_size`)."""
    windows = lowered_floats(model) if _step_function(model, settings, like.device) is lowered_step else 0
    floats = int(np.prod(model.input_shape)) + 2 * model.activations + windows
    budget = CPU_BLOCK_BYTES if like.device.type == "cpu" else settings.memory_mb * MIB
    return max(1, budget // (floats * like.element_size()))


def _chunks(total: int, size: int) -> Iterator[slice]:
    for first in range(0, total, size):
        yield slice(first, min(first + size, total))


def _check_starts(model: FlatModel, starts: Tensor, batches: Tensor) -> Tensor:
    """``starts`` as ``(n, dim)`` without copying."""
    if batches.ndim != 3 or batches.numel() == 0:
        raise UsageError(f"batches must be (n, steps, batch) and not empty, not {tuple(batches.shape)}")
    if starts.ndim == 1:
        starts = starts.expand(len(batches), -1)
    if starts.shape != (len(batches), model.dim):
        raise UsageError(f"starts must be ({len(batches)}, {model.dim}) or ({model.dim},), not {tuple(starts.shape)}")
    if starts.dtype not in (torch.float32, torch.float64):
        raise UsageError(f"starts must be float32 or float64, not {starts.dtype}")
    return starts.detach()


def _check_models(model: FlatModel, models: Tensor) -> None:
    if models.ndim != 2 or models.shape[0] == 0 or models.shape[1] != model.dim:
        raise UsageError(f"models must be (m, {model.dim}) with m >= 1, not {tuple(models.shape)}")
