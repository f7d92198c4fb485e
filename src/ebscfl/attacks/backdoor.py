"""Scaling attack: a trigger backdoor with boosted updates (Bagdasaryan et al. 2020; used by FLTrust, NDSS 2021).

Two halves. Before training, `poison_samples` adds triggered copies of an attacker's images, labeled as the target
class. After training, `craft` multiplies the update by the boost factor lambda, by default n, so that it survives
averaging with n - 1 others. A boost is the same for movements and gradients, no sign changes.

The trigger patterns are those of code co-authored by FLTrust's first author; that the FLTrust paper used the very same
ones is not confirmed. Some public code boosts by n + 1 (it counts the server's update) or by n / f; n is meant.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ebscfl.arrays import Array
from ebscfl.attacks.label_flip import check_labels
from ebscfl.attacks.view import AttackView, finish, own_updates
from ebscfl.errors import UsageError

TRIGGERS: dict[int, tuple[tuple[int, int], ...]] = {
    # image height -> (row, column) of the pixels set to white in every channel
    28: ((26, 26), (24, 26), (26, 24), (25, 25)),
    32: ((1, 28), (1, 29), (1, 30), (2, 29), (3, 28), (4, 29), (5, 28), (5, 29), (5, 30)),
}
WHITE = 255


def apply_trigger(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A copy of ``images`` (N, C, H, W) with the trigger for their size: 28x28 (MNIST family) or 32x32 (CIFAR)."""
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
        raise UsageError("images must be a uint8 numpy array (N, C, H, W)")
    height, width = images.shape[2:]
    if height != width or height not in TRIGGERS:
        raise UsageError(
            f"no backdoor trigger for {height}x{width} images: only {', '.join(map(str, TRIGGERS))} squared"
        )
    marked = images.copy()
    rows, columns = zip(*TRIGGERS[height], strict=True)
    marked[:, :, list(rows), list(columns)] = WHITE
    return marked


def poison_samples(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    *,
    num_classes: int,
    rng: np.random.Generator,
    target: int = 0,
    fraction: float | None = 0.5,
    duplicate: bool = True,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Triggered copies of ``ceil(fraction * N)`` distinct samples, labeled ``target``.

    They are appended to the clean samples (``duplicate``) or take the place of their originals. ``fraction=None`` draws
    it uniformly from (0, 1], as SAFEFL does for every attacker.
    """
    check_labels(labels, num_classes)
    if len(images) != len(labels):
        raise UsageError(f"{len(images)} images for {len(labels)} labels")
    _check_target(target, num_classes)
    share = 1.0 - rng.random() if fraction is None else fraction
    if not 0.0 < share <= 1.0:
        raise UsageError(f"fraction must be in (0, 1], not {fraction}")
    chosen = np.sort(rng.permutation(len(labels))[: math.ceil(share * len(labels))])
    marked = apply_trigger(images[chosen])
    if duplicate:
        wanted = np.full(len(chosen), target, dtype=labels.dtype)
        return np.concatenate([images, marked]), np.concatenate([labels, wanted])
    new_images, new_labels = images.copy(), labels.copy()
    new_images[chosen], new_labels[chosen] = marked, target
    return new_images, new_labels


def craft(
    view: AttackView, *, rng: np.random.Generator, boost: float | None = None, norm_bound: float | None = None
) -> Array:
    """Own (poisoned) updates times ``boost`` (None: n).

    ``norm_bound`` caps each boosted update at that many times the median norm of the attackers' own updates: the
    attacker that expects a norm check.
    """
    own = own_updates(view)
    factor = float(view.num_clients) if boost is None else boost
    if not (factor > 0.0 and math.isfinite(factor)):
        raise UsageError(f"boost must be positive and finite, not {boost}")
    crafted = own * factor
    if norm_bound is not None:
        if not norm_bound > 0.0:
            raise UsageError(f"norm_bound must be positive, not {norm_bound}")
        limit = norm_bound * own.norm(dim=1).quantile(0.5)
        norms = crafted.norm(dim=1, keepdim=True)
        # A zero row stays zero: its ratio is 0 / 0 otherwise.
        crafted = crafted * (limit / norms.clamp_min(limit)).nan_to_num(nan=0.0)
    return finish(crafted, view)


def trigger_test_set(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], *, target: int = 0
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The test images whose true class is not the target, triggered, with their true labels."""
    others = labels != target
    return apply_trigger(images[others]), labels[others]


def backdoor_success(
    predicted: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], *, target: int = 0
) -> float | None:
    """Percent of triggered inputs of other classes that the model calls ``target``; None if there are none."""
    if predicted.shape != labels.shape:
        raise UsageError(f"predicted has shape {predicted.shape} but labels {labels.shape}")
    others = labels != target
    if not bool(others.any()):
        return None
    return 100.0 * float(np.mean(predicted[others] == target))


def _check_target(target: int, num_classes: int) -> None:
    if not 0 <= target < num_classes:
        raise UsageError(f"target must be a class in 0..{num_classes - 1}, not {target}")
