"""Label flipping: the attackers train on wrong labels (Biggio et al. 2012; FLTrust, Cao et al. NDSS 2021).

Three published variants, all on *every* sample of an attacker:

* ``mirror``: ``l -> L - 1 - l`` (FLTrust; the default). With odd L the middle class keeps its label;
* ``next``: ``l -> (l + 1) mod L``;
* ``targeted``: ``source -> target``, other labels untouched (Tolpegin et al. 2020).

Labels are the ones the attacker would have trained on, i.e. after its own world's label map.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import UsageError

VARIANTS = ("mirror", "next", "targeted")


def poison_labels(
    labels: npt.NDArray[np.int64],
    *,
    num_classes: int,
    variant: str = "mirror",
    source: int | None = None,
    target: int | None = None,
) -> npt.NDArray[np.int64]:
    """The flipped copy of ``labels``; ``source`` and ``target`` belong to the targeted variant only."""
    check_labels(labels, num_classes)
    if variant not in VARIANTS:
        raise UsageError(f"variant must be one of {', '.join(VARIANTS)}, not {variant!r}")
    if variant != "targeted":
        if source is not None or target is not None:
            raise UsageError(f"source and target belong to variant 'targeted', not to {variant!r}")
        return num_classes - 1 - labels if variant == "mirror" else (labels + 1) % num_classes
    if source is None or target is None or not (0 <= source < num_classes and 0 <= target < num_classes):
        raise UsageError(f"variant 'targeted' needs source and target below {num_classes}, not {source} and {target}")
    return np.where(labels == source, np.int64(target), labels)


def poison_samples(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    *,
    num_classes: int,
    rng: np.random.Generator,
    variant: str = "mirror",
    source: int | None = None,
    target: int | None = None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """`poison_labels` with the signature all sample poisoning shares; images and ``rng`` are not used."""
    if len(images) != len(labels):
        raise UsageError(f"{len(images)} images for {len(labels)} labels")
    return images, poison_labels(labels, num_classes=num_classes, variant=variant, source=source, target=target)


def check_labels(labels: npt.NDArray[Any], num_classes: int) -> None:
    """Labels are a vector of integers in [0, num_classes)."""
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UsageError("labels must be a one-dimensional numpy array of integers")
    if labels.size and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        raise UsageError(f"labels must lie in 0..{num_classes - 1}, not {int(labels.min())}..{int(labels.max())}")
