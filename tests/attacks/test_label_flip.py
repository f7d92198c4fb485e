"""Label flipping flips exactly what its variant says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attack_views import generator
from hypothesis import given
from hypothesis import strategies as st

from ebscfl.attacks.label_flip import poison_labels, poison_samples
from ebscfl.errors import UsageError


@given(st.integers(2, 12), st.data())
def test_mirror_undoes_itself_and_sums_to_the_last_class(num_classes: int, data: st.DataObject) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, num_classes - 1), min_size=1)), dtype=np.int64)
    flipped = poison_labels(labels, num_classes=num_classes)
    assert (flipped + labels == num_classes - 1).all()
    np.testing.assert_array_equal(poison_labels(flipped, num_classes=num_classes), labels)


@given(st.integers(2, 12))
def test_next_returns_after_all_classes_and_never_keeps_a_label(num_classes: int) -> None:
    labels = np.arange(num_classes)
    turned = labels
    for _ in range(num_classes):
        following = poison_labels(turned, num_classes=num_classes, variant="next")
        assert (following != turned).all()
        turned = following
    np.testing.assert_array_equal(turned, labels)


def test_targeted_touches_the_source_class_only() -> None:
    labels = np.array([4, 6, 4, 0])
    flipped = poison_labels(labels, num_classes=10, variant="targeted", source=4, target=6)
    np.testing.assert_array_equal(flipped, [6, 6, 6, 0])
    np.testing.assert_array_equal(labels, [4, 6, 4, 0])


@pytest.mark.parametrize(
    "settings",
    [
        {"variant": "reverse"},
        {"variant": "targeted"},
        {"variant": "targeted", "source": 1, "target": 10},
        {"variant": "mirror", "source": 1},
        {"variant": "next", "target": 1},
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        poison_labels(np.array([1]), num_classes=10, **settings)


@pytest.mark.parametrize("labels", [np.array([0.0]), np.array([[0]]), np.array([10]), np.array([-1]), [0]])
def test_wrong_labels_are_refused(labels: Any) -> None:
    with pytest.raises(UsageError):
        poison_labels(labels, num_classes=10)


def test_images_stay() -> None:
    images = np.zeros((2, 1, 4, 4), dtype=np.uint8)
    kept, flipped = poison_samples(images, np.array([0, 9]), num_classes=10, rng=generator())
    assert kept is images
    np.testing.assert_array_equal(flipped, [9, 0])
    with pytest.raises(UsageError, match="2 images for 1 labels"):
        poison_samples(images, np.array([0]), num_classes=10, rng=generator())
