"""Many clients' convolutional networks as batched matrix products: what CUDA is fast at.

A grouped convolution, which `torch.func.vmap` makes of many clients' plain ones, reaches a small part of a GPU's
speed. Here every convolution is lowered: its windows are copied into the rows of a matrix, and one batched product over
clients does the rest, forward and backward. With ``bfloat16`` products and activations have that type; parameters,
losses and the step stay as they are.

Shapes: k clients, b samples a batch, h x w pixels, c channels in, o channels out, s x s windows of s * s * c + 1
columns (the last is 1, for the bias), filled up with zeros to a multiple of `ALIGNMENT`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ebscfl.learning.models import ConvLayer, FlatModel
from ebscfl.learning.stacked import Named, SgdSettings, Stack, move
from ebscfl.learning.windows import on

ALIGNMENT = 8
"""Columns come in multiples of 16 bytes of bfloat16: tensor cores refuse other rows."""
SPLIT = 8
"""Samples whose weight gradients are summed in one product: the gradient of a layer is a small matrix, and a product
for each client alone would leave most of a GPU idle."""


class _Convolved(NamedTuple):
    """What the backward pass of a convolution needs."""

    columns: Tensor  # (k * b, h' * w', columns)
    matrix: Tensor  # (k, columns, o)
    codes: Tensor  # where each maximum was
    below: torch.Size  # (k * b, c, h, w)
    side: tuple[int, int]  # h', w'


def lowered_step(model: FlatModel, stack: Stack, x: Tensor, y: Tensor, settings: SgdSettings) -> None:
    """A step of a chain of pooled convolutions and linear layers: images ``(k, b, c, h, w)``, labels ``(k, b)``."""
    chain = model.convolutional
    assert chain is not None
    k, b = y.shape
    dtype = torch.bfloat16 if settings.bfloat16 else x.dtype
    weights = {name: view.to(dtype) for name, view in stack.sources.items()}
    kept, inputs, logits = _forward(model, weights, x.to(dtype))
    # d(mean cross entropy) / d(logits) = (softmax - onehot) / b
    signal = logits.to(x.dtype).softmax(dim=2)
    signal.scatter_add_(2, y[:, :, None], signal.new_full((1, 1, 1), -1.0).expand(*y.shape, 1))
    signal = (signal / b).to(dtype)
    for index in reversed(range(len(chain.linear))):
        weight, bias = chain.linear[index]
        # Taken before the weight moves: sources and targets may be the same memory.
        below = torch.bmm(signal, weights[weight])
        _step(stack, weight, torch.bmm(signal.transpose(1, 2), inputs[index]), settings)
        _step(stack, bias, signal.sum(dim=1, dtype=x.dtype), settings)
        signal = below.mul_(inputs[index] > 0) if index else below
    ops = on(x.device)
    channels = kept[-1].matrix.shape[2]
    pooled = signal.reshape(k * b, channels, *(length // 2 for length in kept[-1].side)).permute(0, 2, 3, 1)
    for index in reversed(range(len(kept))):
        layer, convolved = chain.convolutions[index], kept[index]
        unpooled = ops.unpool(pooled.contiguous(), convolved.codes, *convolved.side)
        if index:
            rows = unpooled.reshape(k, -1, unpooled.shape[3])
            inner = math.prod((layer.size, layer.size, convolved.below[1]))
            columns = torch.bmm(rows, convolved.matrix[:, :inner].transpose(1, 2))
            columns = columns.view(k * b, -1, inner)
            pooled = ops.fold(columns, *convolved.below[2:], layer.size, layer.padding)
        gradient = _matrix_gradient(convolved.columns, unpooled, k, b, x.dtype)
        inner = layer.size**2 * convolved.below[1]
        shaped = gradient[:, :inner].view(k, layer.size, layer.size, convolved.below[1], -1).permute(0, 4, 3, 1, 2)
        _step(stack, layer.weight, shaped, settings)
        _step(stack, layer.bias, gradient[:, inner], settings)


def lowered_logits(model: FlatModel, theta: Tensor, x: Tensor, *, bfloat16: bool) -> Tensor:
    """Logits ``(b, classes)`` of images ``(b, c, h, w)`` under one vector ``(dim,)``: `FlatModel.apply`."""
    dtype = torch.bfloat16 if bfloat16 else x.dtype
    weights = {name: view[None].to(dtype) for name, view in model.layout.views(theta).items()}
    return _forward(model, weights, x[None].to(dtype))[2][0]


def lowered_floats(model: FlatModel) -> int:
    """Floats of one sample's windows, over all convolutions: what a memory estimate needs."""
    chain, (_, height, width) = model.convolutional, model.input_shape
    if chain is None:
        return 0
    shapes = dict(zip(model.layout.names, model.layout.shapes, strict=True))
    total = 0
    for layer in chain.convolutions:
        _, channels, size, _ = shapes[layer.weight]
        height, width = (side + 2 * layer.padding - size + 1 for side in (height, width))
        total += height * width * _columns(size, channels)
        height, width = height // 2, width // 2
    return total


def _columns(size: int, channels: int) -> int:
    return -(-(size * size * channels + 1) // ALIGNMENT) * ALIGNMENT


def _forward(model: FlatModel, weights: Named, x: Tensor) -> tuple[list[_Convolved], list[Tensor], Tensor]:
    """What each convolution keeps, what each linear layer is given ``(k, b, in)``, and the logits ``(k, b, out)``."""
    chain = model.convolutional
    assert chain is not None
    ops, (k, b) = on(x.device), x.shape[:2]
    images = x.flatten(0, 1)  # (k * b, c, h, w), whatever the strides
    kept: list[_Convolved] = []
    for layer in chain.convolutions:
        matrix = _matrix(weights[layer.weight], weights[layer.bias], layer)
        side = tuple(length + 2 * layer.padding - layer.size + 1 for length in images.shape[2:])
        columns = ops.windows(images, layer.size, layer.padding, matrix.shape[1])
        z = torch.bmm(columns.view(k, -1, columns.shape[2]), matrix)
        top, codes = ops.pool(z.view(k * b, *side, -1))
        kept.append(_Convolved(columns, matrix, codes, images.shape, (side[0], side[1])))
        images = top.permute(0, 3, 1, 2)
    # The flat vector of the model counts channels first.
    inputs = [images.reshape(k, b, -1)]
    for weight, bias in chain.linear[:-1]:
        inputs.append(_linear(inputs[-1], weights[weight], weights[bias]).relu_())
    return kept, inputs, _linear(inputs[-1], *(weights[name] for name in chain.linear[-1]))


def _matrix(weight: Tensor, bias: Tensor, layer: ConvLayer) -> Tensor:
    """Weights ``(k, o, c, s, s)`` and biases ``(k, o)`` as the other factor of the windows: ``(k, columns, o)``."""
    rows = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)  # (k, s * s * c, o)
    fill = _columns(layer.size, weight.shape[2]) - rows.shape[1] - 1
    return functional.pad(torch.cat([rows, bias[:, None]], dim=1), (0, 0, 0, fill))


def _matrix_gradient(columns: Tensor, signal: Tensor, k: int, b: int, dtype: torch.dtype) -> Tensor:
    """``(k, columns, o)`` from ``(k * b, h' * w', columns)`` and ``(k * b, h', w', o)``, a few samples a product."""
    parts = b // SPLIT if b % SPLIT == 0 else 1
    left = columns.view(k * parts, -1, columns.shape[2])
    right = signal.reshape(k * parts, -1, signal.shape[3])
    return torch.bmm(left.transpose(1, 2), right).view(k, parts, left.shape[2], -1).sum(dim=1, dtype=dtype)


def _linear(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias[:, None, :], h, weight.transpose(1, 2))


def _step(stack: Stack, name: str, gradient: Tensor, settings: SgdSettings) -> None:
    move(stack, name, gradient.to(stack.targets[name].dtype), settings)
