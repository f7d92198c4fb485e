"""One SGD step of many clients at once, with their parameters stacked: four ways, one result.

* `dense_step` multiplies stacked matrices directly and lets the last product write into the parameters: for chains of
  linear layers and ReLUs. Nothing of the size of the parameters is allocated.
* `vmap_step` maps any model over clients with `torch.func.vmap`: convolutions become grouped ones, fast on CUDA.
* `ebscfl.learning.lowered.lowered_step` turns convolutions into batched matrix products: the fastest on CUDA.
* `loop_step` takes one client after the other: on the CPU a grouped convolution is slower than many plain ones
  (``bench/simulation.py`` shows it), and plain ones in channels-last order are the fastest.

Each computes torch.optim.SGD's rule g += wd * theta; buffer = momentum * buffer + g; theta -= lr * buffer. They read
the parameters from a source and move a target: the same memory, or a fresh target (its content is ignored), which then
receives the movement alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ebscfl.learning.models import FlatModel

Named = dict[str, Tensor]
GradientFunction = Callable[[Named, Tensor, Tensor], Named]


@dataclass(frozen=True)
class SgdSettings:
    """What one step needs to know."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    bfloat16: bool = False
    compiled: bool = False


@dataclass(frozen=True, eq=False)
class Stack:
    """Parameters of k clients by name, ``(k, *shape)``: read from ``sources``, moved in ``targets``."""

    sources: Named
    targets: Named
    buffers: Named | None  # momentum; None if there is none
    fresh: bool  # targets hold nothing yet and receive the movement alone

    def client(self, index: int) -> Stack:
        """The stack of one client alone."""

        def cut(named: Named) -> Named:
            return {name: view[index : index + 1] for name, view in named.items()}

        return Stack(
            cut(self.sources), cut(self.targets), None if self.buffers is None else cut(self.buffers), self.fresh
        )


def autocast(bfloat16: bool, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """bfloat16 products in the forward pass, or nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if bfloat16 else contextlib.nullcontext()


def dense_step(model: FlatModel, stack: Stack, x: Tensor, y: Tensor, settings: SgdSettings) -> None:
    """A step of linear layers and ReLUs by hand: images ``(k, b, C, H, W)``, labels ``(k, b)``."""
    weights = [stack.sources[weight] for weight, _ in model.dense]
    biases = [stack.sources[bias] if bias else None for _, bias in model.dense]
    inputs = [x.flatten(2)]
    for layer in range(len(weights) - 1):
        inputs.append(_linear(inputs[layer], weights[layer], biases[layer]).relu_())
    # d(mean cross entropy) / d(logits) = (softmax - onehot) / b
    signal = _linear(inputs[-1], weights[-1], biases[-1]).softmax(dim=2)
    signal.scatter_add_(2, y[:, :, None], signal.new_full((1, 1, 1), -1.0).expand(*y.shape, 1))
    signal /= y.shape[1]
    for layer in reversed(range(len(weights))):
        # Taken before the weight moves: after the first step sources and targets are the same memory.
        below = _back(signal, weights[layer]).mul_(inputs[layer] > 0) if layer else signal
        name, bias_name = model.dense[layer]
        _move_by_product(stack, name, signal.transpose(1, 2), inputs[layer], settings)
        if bias_name:
            move(stack, bias_name, signal.sum(dim=1), settings)
        signal = below


def vmap_step(model: FlatModel, stack: Stack, x: Tensor, y: Tensor, settings: SgdSettings) -> None:
    """A step of any model, mapped over clients."""
    if settings.compiled:
        gradients = compiled_gradients(model, settings.bfloat16)(stack.sources, x, y)
    else:
        gradients = stacked_gradients(model, settings.bfloat16, stack.sources, x, y)
    for name, gradient in gradients.items():
        move(stack, name, gradient, settings)


def loop_step(model: FlatModel, stack: Stack, x: Tensor, y: Tensor, settings: SgdSettings) -> None:
    """A step of any model, one client after the other; rows of the targets are written as they come."""
    for index in range(len(x)):
        client = stack.client(index)
        leaves = {name: view[0].detach().requires_grad_() for name, view in client.sources.items()}
        with autocast(settings.bfloat16, x.device):
            logits = model.apply_named(leaves, _channels_last(x[index]))
        loss = functional.cross_entropy(logits.to(x.dtype), y[index])
        for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            move(client, name, gradient[None], settings)


def stacked_gradients(model: FlatModel, bfloat16: bool, named: Named, x: Tensor, y: Tensor) -> Named:
    """Each client's gradient of its own mean loss, by one backward pass of the sum over clients."""
    leaves = {name: view.detach().requires_grad_() for name, view in named.items()}
    with autocast(bfloat16, x.device):
        logits: Tensor = torch.func.vmap(model.apply_named)(leaves, x)
    dtype = next(iter(named.values())).dtype
    loss = functional.cross_entropy(logits.flatten(0, 1).to(dtype), y.flatten(), reduction="sum") / y.shape[1]
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@functools.lru_cache(maxsize=8)
def compiled_gradients(model: FlatModel, bfloat16: bool, backend: str = "inductor") -> GradientFunction:
    """`stacked_gradients` through `torch.compile`, kept for the next call; worth its minute on CUDA only."""

    def loss(named: Named, images: Tensor, labels: Tensor) -> Tensor:
        with autocast(bfloat16, images.device):
            logits = model.apply_named(named, images)
        return functional.cross_entropy(logits.to(next(iter(named.values())).dtype), labels)

    def gradients(named: Named, x: Tensor, y: Tensor) -> Named:
        result: Named = torch.func.vmap(torch.func.grad(loss))(named, x, y)
        return result

    function: GradientFunction = torch.compile(gradients, backend=backend, dynamic=False)
    return function


def _linear(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``(k, b, in)`` through ``(k, out, in)``: one product if all clients share the weight, else one a client."""
    if weight.stride(0) == 0:
        return functional.linear(h, weight[0], None if bias is None else bias[0])
    if bias is None:
        return torch.bmm(h, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None, :], h, weight.transpose(1, 2))


def _back(signal: Tensor, weight: Tensor) -> Tensor:
    """``(k, b, out)`` back through ``(k, out, in)``."""
    return signal @ weight[0] if weight.stride(0) == 0 else torch.bmm(signal, weight)


def _move_by_product(stack: Stack, name: str, left: Tensor, right: Tensor, settings: SgdSettings) -> None:
    """`move` by the gradient ``left @ right``, which is never stored: it is added where it belongs."""
    source, target = stack.sources[name], stack.targets[name]
    if stack.buffers is not None:
        # The first product of a fresh buffer meets zeros, as torch's rule wants it.
        moving = stack.buffers[name].baddbmm_(left, right, beta=settings.momentum)
        if settings.weight_decay:
            moving.add_(source, alpha=settings.weight_decay)
        target.add_(moving, alpha=-settings.lr)
        return
    decay = -settings.lr * settings.weight_decay
    if decay and stack.fresh:
        torch.mul(source, decay, out=target)
    elif decay:
        target.add_(source, alpha=decay)
    # With beta = 0 the target is never read.
    target.baddbmm_(left, right, beta=0.0 if stack.fresh and not decay else 1.0, alpha=-settings.lr)


def move(stack: Stack, name: str, gradient: Tensor, settings: SgdSettings) -> None:
    """SGD's rule on one parameter: gradient ``(k, *shape)``."""
    if settings.weight_decay:
        gradient = gradient.add(stack.sources[name], alpha=settings.weight_decay)
    if stack.buffers is not None:
        gradient = stack.buffers[name].mul_(settings.momentum).add_(gradient)
    if stack.fresh:
        torch.mul(gradient, -settings.lr, out=stack.targets[name])
    else:
        stack.targets[name].add_(gradient, alpha=-settings.lr)


def _channels_last(x: Tensor) -> Tensor:
    """``(b, C, H, W)`` laid out pixel by pixel. Also for C = 1, where both orders are the same memory."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
