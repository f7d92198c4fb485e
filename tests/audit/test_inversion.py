"""Updates back to images: exact where algebra says so, recognizable where it is a search, noise where it must be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ebscfl import rng
from ebscfl.audit.inversion import (
    MatchSettings,
    infer_label,
    invert_dense,
    likeness,
    match_gradients,
    one_step_update,
    to_image,
)  # fmt: skip
from ebscfl.errors import UsageError
from ebscfl.learning.data import load_dataset
from ebscfl.learning.models import FlatModel, make_model

ROOT = rng.root_from_seed(8)


def digit(row: int) -> tuple[np.ndarray, int]:
    data = load_dataset("mnist-mini")
    return data.x_train[row] / 255.0, int(data.y_train[row])


def update_of(name: str, row: int) -> tuple[FlatModel, torch.Tensor, np.ndarray, np.ndarray, int]:
    image, label = digit(row)
    model = make_model(name, (1, 28, 28), 10)
    theta = model.init(ROOT, "inversion")
    return model, theta, one_step_update(model, theta, image, label), image, label


def test_one_step_update_is_the_finite_difference_of_the_loss() -> None:
    model, theta, update, image, label = update_of("linear", 3)
    x = torch.from_numpy(image)[None]
    direction = torch.from_numpy(update / np.linalg.norm(update))

    def loss(step: float) -> float:
        theta_there = theta.double() + step * direction
        weights = model.layout.views(theta_there)
        logits = x.reshape(1, -1) @ next(iter(weights.values())).T + list(weights.values())[1]
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor([label])))

    slope = (loss(1e-4) - loss(-1e-4)) / 2e-4
    assert slope == pytest.approx(-float(np.linalg.norm(update)), rel=1e-4)


@pytest.mark.parametrize("row", [0, 7, 100])
def test_the_first_linear_layer_gives_the_image_exactly(row: int) -> None:
    model, _, update, image, _ = update_of("mlp", row)
    found = invert_dense(model, update)
    assert np.abs(found - image / image.max()).max() < 1e-3  # float32 gradients
    # An update is known up to its length only, and that is enough.
    assert np.allclose(invert_dense(model, update / np.linalg.norm(update)), found, atol=1e-5)


def test_a_batch_gives_a_mixture() -> None:
    model, theta, first, image, _ = update_of("mlp", 0)
    other, label = digit(1)
    found = invert_dense(model, first + one_step_update(model, theta, other, label))
    assert 0.3 < likeness(found, image) < 0.999


def test_noise_gives_noise() -> None:
    model, _, update, image, _ = update_of("mlp", 0)
    noise = rng.numpy_generator(ROOT, rng.USAGE_AUDIT, "noise").standard_normal(update.size)
    # 784 pixels: a correlation has standard deviation 1/28.
    assert abs(likeness(invert_dense(model, noise), image)) < 5 / 28
    assert np.all(invert_dense(model, np.zeros(update.size)) == 0.5)


def test_convolutions_have_no_closed_form() -> None:
    model = make_model("cnn", (1, 28, 28), 10)
    with pytest.raises(UsageError, match="match_gradients"):
        invert_dense(model, np.zeros(model.dim))


@pytest.mark.parametrize("name", ["linear", "cnn", "mlp"])
@pytest.mark.parametrize("row", [0, 5, 9])
def test_the_label_is_read_off_the_last_layer(name: str, row: int) -> None:
    model, _, update, _, label = update_of(name, row)
    assert infer_label(model, update) == label


def test_gradient_matching_finds_the_digit_and_restores_the_threads() -> None:
    model, theta, update, image, _ = update_of("cnn", 0)
    threads = torch.get_num_threads()
    found = match_gradients(model, theta, update, ROOT, MatchSettings(steps=200))
    assert torch.get_num_threads() == threads
    assert likeness(found, image) > 0.95
    assert found.min() >= 0.0
    assert found.max() <= 1.0


def test_gradient_matching_makes_nothing_of_noise() -> None:
    model, theta, update, image, _ = update_of("cnn", 0)
    noise = rng.numpy_generator(ROOT, rng.USAGE_AUDIT, "noise").standard_normal(update.size)
    assert likeness(match_gradients(model, theta, noise, ROOT, MatchSettings(steps=30)), image) < 0.5


def test_likeness_is_the_correlation_of_pixels() -> None:
    image, _ = digit(2)
    assert likeness(image, 0.5 * image + 0.1) == pytest.approx(1.0)
    assert likeness(image, 1.0 - image) == pytest.approx(-1.0)
    assert likeness(image, np.full(image.shape, 0.3)) == 0.0


def test_to_image_keeps_zero_black_and_stretches_mixed_signs() -> None:
    assert np.allclose(to_image(np.array([0.0, 1.0, 4.0]), (1, 1, 3)), [[[0.0, 0.25, 1.0]]])
    assert np.allclose(to_image(np.array([-1.0, 0.0, 1.0]), (1, 1, 3)), [[[0.0, 0.5, 1.0]]])
    assert np.allclose(to_image(np.array([-0.01, 0.5, 1.0]), (1, 1, 3)), [[[0.0, 0.5, 1.0]]])


def test_settings_are_checked() -> None:
    for arguments in ({"steps": 0}, {"lr": 0.0}, {"smooth": -1.0}, {"spread": -1.0}):
        with pytest.raises(UsageError):
            MatchSettings(**arguments)  # type: ignore[arg-type]
