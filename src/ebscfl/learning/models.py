"""Models as functions of one flat vector: MLP, CNNs, ResNet-20 with GroupNorm, and softmax regression.

A `FlatModel` owns no parameters: its torch module lives on the meta device, so nothing is drawn from torch's global
generator, and every call gets the parameters as one vector. All modules work under `torch.func.vmap` over
clients; none has buffers or batch statistics (BatchNorm would mix samples and could not be averaged as a vector).
Pooling comes before ReLU: max(relu(z)) = relu(max(z)), value and gradient, on a quarter of the entries.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ebscfl import rng
from ebscfl.errors import ConfigError, UsageError
from ebscfl.vectors import Layout

Shape = tuple[int, int, int]


class FlatModel:
    """A torch module seen as a function of one flat vector of ``dim`` parameters."""

    def __init__(self, name: str, module: nn.Module, input_shape: Shape, num_classes: int) -> None:
        if any(True for _ in module.buffers()):
            raise UsageError(f"model {name} has buffers: they would not travel in the flat vector")
        self.name = name
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.layout = Layout.of(module.named_parameters())
        self.dim = self.layout.dim
        self._module = module.to("meta")
        # (weight, bias or None) of each layer if the model is a chain of linear layers and ReLUs, else empty.
        self.dense = _dense_chain(self._module)
        # The layers of a chain of pooled convolutions and linear layers, else empty.
        self.convolutional = _convolutional_chain(self._module)
        self.activations = _count_activations(self._module, input_shape)

    def __repr__(self) -> str:
        return f"FlatModel({self.name!r}, dim={self.dim}, input_shape={self.input_shape}, classes={self.num_classes})"

    def init(self, root: bytes, *context: rng.Context) -> Tensor:
        """Start parameters ``(dim,)`` float32, a function of (root, context).

        Glorot's uniform U(-a, a), a^2 = 6 / (fan_in + fan_out), for weights; 1 for GroupNorm's gains; 0 for biases.
        """
        generator = rng.torch_generator(root, rng.USAGE_MODEL_INIT, *context)
        theta = torch.zeros(self.dim)
        for name, value in self.layout.views(theta).items():
            if value.ndim >= 2:
                area = math.prod(value.shape[2:])
                bound = math.sqrt(6.0 / (area * (value.shape[0] + value.shape[1])))
                value.uniform_(-bound, bound, generator=generator)
            elif name.endswith("weight"):
                value.fill_(1.0)
        return theta

    def apply(self, theta: Tensor, x: Tensor) -> Tensor:
        """Logits ``(b, classes)`` of images ``(b, C, H, W)``; pure, differentiable in both, vmap-able over both."""
        return self.apply_named(self.layout.views(theta), x)

    def apply_named(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        """`apply` with the parameters as `Layout.views` names them."""
        logits: Tensor = torch.func.functional_call(self._module, parameters, (x,))
        return logits

    def layers(self) -> list[tuple[str, slice, torch.Size]]:
        """Name, range in the flat vector and shape of each parameter."""
        rows = zip(self.layout.names, self.layout.slices(), self.layout.shapes, strict=True)
        return [(name, part, torch.Size(shape)) for name, part, shape in rows]

    @property
    def head(self) -> int:
        """Where the last layer begins in the flat vector; 0 if there is only one."""
        modules = [name.rpartition(".")[0] for name in self.layout.names]
        return sum(self.layout.sizes[: modules.index(modules[-1])])

    def to_module(self, theta: Tensor) -> nn.Module:
        """An ordinary torch module with a copy of ``theta`` as its parameters (to export or to serve)."""
        module = copy.deepcopy(self._module).to_empty(device=theta.device)
        with torch.no_grad():
            for name, value in self.layout.views(theta).items():
                module.get_parameter(name).copy_(value)
        return module


def _dense_chain(module: nn.Module) -> tuple[tuple[str, str | None], ...]:
    """Parameter names of Flatten, Linear, (ReLU, Linear)*; empty for any other module."""
    children = list(module.named_children())
    wanted = [nn.Flatten] + [nn.ReLU if place % 2 else nn.Linear for place in range(len(children) - 1)]
    if not isinstance(module, nn.Sequential) or len(children) % 2:
        return ()
    if any(type(child) is not kind for (_, child), kind in zip(children, wanted, strict=True)):
        return ()
    linear = [(name, child) for name, child in children if isinstance(child, nn.Linear)]
    return tuple((f"{name}.weight", None if child.bias is None else f"{name}.bias") for name, child in linear)


@dataclass(frozen=True)
class ConvLayer:
    """A square convolution of stride 1, pooled over 2 x 2, then ReLU: the names of its parameters, and its padding."""

    weight: str
    bias: str
    size: int
    padding: int


@dataclass(frozen=True)
class ConvChain:
    """Pooled convolutions, Flatten, then linear layers with ReLU between them, as (weight, bias) names."""

    convolutions: tuple[ConvLayer, ...]
    linear: tuple[tuple[str, str], ...]


def _convolutional_chain(module: nn.Module) -> ConvChain | None:
    """(Conv2d, MaxPool2d(2), ReLU)+, Flatten, Linear, (ReLU, Linear)*, all with biases; None for any other module."""
    children = list(module.named_children())
    kinds = [type(child) for _, child in children]
    if not isinstance(module, nn.Sequential) or nn.Flatten not in kinds:
        return None
    flat = kinds.index(nn.Flatten)
    tail = [nn.ReLU if place % 2 else nn.Linear for place in range(len(kinds) - flat - 1)]
    if flat == 0 or flat % 3 or kinds[:flat] != [nn.Conv2d, nn.MaxPool2d, nn.ReLU] * (flat // 3):
        return None
    if kinds[flat + 1 :] != tail or len(tail) % 2 == 0:
        return None
    convolutions = []
    for place in range(0, flat, 3):
        name, conv, pool = children[place][0], children[place][1], children[place + 1][1]
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(pool, nn.MaxPool2d)
        size, padding = conv.kernel_size[0], conv.padding[0]
        plain = (conv.stride, conv.dilation, conv.groups, conv.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        pooled = (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode) == (2, 2, 0, 1, False)
        square = conv.kernel_size == (size, size) and conv.padding == (padding, padding)
        if not (plain and pooled and square and isinstance(padding, int) and padding < size) or conv.bias is None:
            return None
        convolutions.append(ConvLayer(f"{name}.weight", f"{name}.bias", size, padding))
    linear = [(name, child) for name, child in children[flat + 1 :] if isinstance(child, nn.Linear)]
    if any(child.bias is None for _, child in linear):
        return None
    return ConvChain(tuple(convolutions), tuple((f"{name}.weight", f"{name}.bias") for name, _ in linear))


def _count_activations(module: nn.Module, input_shape: Shape) -> int:
    """Floats that one sample's forward pass produces, over all leaf modules: what a memory estimate needs."""
    total = 0

    def count(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        nonlocal total
        total += output.numel()

    hooks = [leaf.register_forward_hook(count) for leaf in module.modules() if not list(leaf.children())]
    with torch.no_grad():
        module(torch.empty(1, *input_shape, device="meta"))
    for hook in hooks:
        hook.remove()
    return total


def _linear(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _quadrants(shape: Shape, classes: int) -> nn.Module:
    """Softmax regression on the mean brightness of the four quadrants: 4 * 10 = 40 parameters on MNIST.

    It learns little; it exists because the keys of the paper's naive scheme grow with the cube of the model.
    """
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * shape[0], classes, bias=False))


def _mlp(shape: Shape, classes: int) -> nn.Module:
    """784-256-10 without bias on MNIST: 784 * 256 + 256 * 10 = 203 264 parameters, 794.0 KiB of float32."""
    inputs = math.prod(shape)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 256, bias=False), nn.ReLU(), nn.Linear(256, classes, bias=False)
    )


def _cnn(shape: Shape, classes: int) -> nn.Module:
    """FLTrust's MNIST network (Cao et al., NDSS 2021): two valid 3x3 convolutions, each pooled, then 100 units."""
    channels, height, width = shape
    side = [((size - 2) // 2 - 2) // 2 for size in (height, width)]
    if min(side) < 1:
        raise ConfigError(f"model cnn needs images of at least 10 x 10 pixels, not {height} x {width}")
    return nn.Sequential(
        nn.Conv2d(channels, 30, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(30, 50, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(50 * side[0] * side[1], 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )


def _cifar_cnn(shape: Shape, classes: int) -> nn.Module:
    """Three padded 3x3 convolutions (32, 64, 64), each pooled, then 128 units: 188 810 parameters on CIFAR-10."""
    channels, height, width = shape
    if min(height, width) < 8:
        raise ConfigError(f"model cifar-cnn needs images of at least 8 x 8 pixels, not {height} x {width}")
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    flat = 64 * (height // 8) * (width // 8)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, classes))


class _Residual(nn.Module):
    """A basic block of He et al. (CVPR 2016) with the parameter-free shortcut (their option A) and GroupNorm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.extra = outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions beside the shortcut, which drops pixels and adds zero channels where shapes change."""
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        shortcut = x[..., :: self.stride, :: self.stride]
        return torch.relu(inner + functional.pad(shortcut, (0, 0, 0, 0, 0, self.extra)))


def _resnet20(shape: Shape, classes: int) -> nn.Module:
    """ResNet-20 of He et al. (CVPR 2016): three stages of three blocks, 16, 32, 64 channels; GroupNorm of 8 groups."""
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), nn.GroupNorm(8, 16), nn.ReLU()]
    inputs = 16
    for outputs in (16, 32, 64):
        for block in range(3):
            layers.append(_Residual(inputs, outputs, stride=2 if block == 0 and outputs > 16 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


_BUILDERS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "cifar-cnn": _cifar_cnn,
    "resnet20": _resnet20,
    "linear": _linear,
    "quadrants": _quadrants,
}

MODEL_NAMES = tuple(_BUILDERS)


def make_model(name: str, input_shape: Shape, num_classes: int) -> FlatModel:
    """The model called ``name`` (one of `MODEL_NAMES`) for images ``(C, H, W)`` and ``num_classes`` classes."""
    if name not in _BUILDERS:
        raise ConfigError(f"unknown model {name!r}: choose one of {', '.join(MODEL_NAMES)}")
    if len(input_shape) != 3 or min(input_shape) < 1 or num_classes < 2:
        raise ConfigError(f"a model needs a (C, H, W) shape and at least 2 classes, not {input_shape}, {num_classes}")
    # On the meta device constructors allocate nothing and leave torch's global generator alone.
    with torch.device("meta"):
        module = _BUILDERS[name](input_shape, num_classes)
    return FlatModel(name, module, input_shape, num_classes)
