"""From an update back to the images it was computed from.

    dense         the weight gradient of a first linear layer is sum_b delta_b x_b^T: for one image its rows are all
                  multiples of that image (Phong et al., 2018); for a batch, of mixtures
    convolutional search an image whose gradient points the same way (Zhu et al., "Deep leakage from gradients", 2019,
                  with the cosine loss, signed steps and total variation of Geiping et al., 2020)

An update is movement, so minus a gradient; its length is lost in both protocols and not needed. The label comes from
the last layer's bias: after one step on one image only the true class's bias has moved up (Zhao et al., iDLG, 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from ebscfl import rng
from ebscfl.audit.views import Floats
from ebscfl.errors import UsageError
from ebscfl.learning.models import FlatModel

Image = npt.NDArray[np.float64]  # (C, H, W) in [0, 1]


@dataclass(frozen=True)
class MatchSettings:
    """How long and how smooth the search for an image is."""

    steps: int = 400
    lr: float = 0.1
    smooth: float = 0.1  # weight of the total variation at the start; it falls to a tenth of that
    spread: float = 0.5  # standard deviation of the start around gray

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.lr > 0 or self.smooth < 0 or self.spread < 0:
            raise UsageError("a search needs at least one step, a positive rate, and no negative smoothness or spread")


def one_step_update(model: FlatModel, theta: torch.Tensor, image: Image, label: int) -> Floats:
    """What a client sends after one SGD step on one image: minus the gradient, up to the learning rate."""
    x = torch.from_numpy(image.astype(np.float32))[None]
    gradient = _gradient(model, theta.detach().requires_grad_(), x, torch.tensor([label]), keep_graph=False)
    return np.asarray((-gradient).detach().double().numpy())


def _gradient(
    model: FlatModel, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, keep_graph: bool
) -> torch.Tensor:
    loss = functional.cross_entropy(model.apply(theta, x), y)
    (gradient,) = torch.autograd.grad(loss, theta, create_graph=keep_graph)
    return gradient


def invert_dense(model: FlatModel, update: Floats) -> Image:
    """The image behind the first linear layer's update: its best rank-one row factor, made positive.

    Of an update that is noise this is noise.
    """
    _, part, shape = model.layers()[0]
    if len(shape) != 2:
        raise UsageError(f"the first layer of {model.name} is not linear: use match_gradients")
    weights = update[part].reshape(tuple(shape))
    values, vectors = np.linalg.eigh(weights @ weights.T)
    row = vectors[:, -1] @ weights
    return to_image(row * np.sign(row.sum() or 1.0), model.input_shape) if values[-1] > 0 else _gray(model)


def to_image(values: Floats, shape: tuple[int, ...]) -> Image:
    """Pixels in [0, 1]: scaled so that the largest of non-negative values is one; mixed signs use the full range."""
    low = min(0.0, float(values.min()))
    high = float(values.max())
    # A recovered image has no negative pixels but for rounding; noise has as many as positive ones.
    low = 0.0 if low > -0.05 * high else low
    return np.clip((values - low) / max(high - low, 1e-300), 0.0, 1.0).reshape(shape)


def _gray(model: FlatModel) -> Image:
    return np.full(model.input_shape, 0.5)


def infer_label(model: FlatModel, update: Floats) -> int:
    """The class whose output rose: the largest entry of the last bias, or of the last weights summed by class."""
    _, part, shape = model.layers()[-1]
    last = update[part].reshape(tuple(shape))
    return int((last if last.ndim == 1 else last.sum(axis=1)).argmax())


def match_gradients(
    model: FlatModel, theta: torch.Tensor, update: Floats, root: bytes, settings: MatchSettings | None = None
) -> Image:
    """An image whose gradient at ``theta`` has the greatest cosine with minus ``update``."""
    threads = torch.get_num_threads()
    # One small image: two threads spend their time waiting for each other, many times over on a busy machine.
    torch.set_num_threads(1)
    try:
        return _search(model, theta, update, root, settings or MatchSettings())
    finally:
        torch.set_num_threads(threads)


def _search(model: FlatModel, theta: torch.Tensor, update: Floats, root: bytes, chosen: MatchSettings) -> Image:
    label = torch.tensor([infer_label(model, update)])
    goal = torch.from_numpy(-update).float()
    goal = goal / goal.norm().clamp_min(1e-30)
    start = theta.detach().clone().requires_grad_()
    generator = rng.torch_generator(root, rng.USAGE_AUDIT, "inversion")
    noise = torch.randn((1, *model.input_shape), generator=generator)
    x = (0.5 + chosen.spread * noise).clamp(0.0, 1.0).requires_grad_()
    optimizer = torch.optim.Adam([x], lr=chosen.lr)
    marks = [int(chosen.steps * share) for share in (0.4, 0.65, 0.9)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, marks, gamma=0.3)
    for step in range(chosen.steps):
        smooth = chosen.smooth * 0.1 ** (step / chosen.steps)
        gradient = _gradient(model, start, x, label, keep_graph=True)
        loss = 1.0 - (gradient @ goal) / gradient.norm() + smooth * _variation(x)
        (slope,) = torch.autograd.grad(loss, x)
        x.grad = slope.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(0.0, 1.0)
    return np.asarray(x.detach()[0].double().numpy())


def _variation(x: torch.Tensor) -> torch.Tensor:
    """Mean absolute difference between neighboring pixels."""
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    return down + (x[..., :, 1:] - x[..., :, :-1]).abs().mean()


def likeness(one: Image, two: Image) -> float:
    """Pearson correlation of the pixels: 1 is the same picture up to brightness and contrast."""
    if one.std() < 1e-9 or two.std() < 1e-9:
        return 0.0  # a blank picture resembles nothing
    return float(np.corrcoef(one.reshape(-1), two.reshape(-1))[0, 1])
