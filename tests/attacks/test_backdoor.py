"""The backdoor: triggers, poisoned duplicates, boosted updates and the success metric."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from attack_views import generator, make_view

from ebscfl.attacks import backdoor
from ebscfl.attacks.view import AttackView
from ebscfl.errors import UsageError


def pictures(count: int, channels: int, side: int) -> Any:
    return generator(5).integers(0, 200, (count, channels, side, side), dtype=np.uint8)


@pytest.mark.parametrize(("channels", "side", "pixels"), [(1, 28, 4), (3, 32, 9)])
def test_the_trigger_sets_its_pixels_and_no_others(channels: int, side: int, pixels: int) -> None:
    images = pictures(3, channels, side)
    before = images.copy()
    marked = backdoor.apply_trigger(images)
    np.testing.assert_array_equal(images, before)
    changed = marked != images  # no original pixel is as bright as the trigger
    assert changed.sum() == 3 * channels * pixels
    assert (marked[changed] == backdoor.WHITE).all()
    assert {(int(r), int(c)) for *_, r, c in np.argwhere(changed)} == set(backdoor.TRIGGERS[side])
    np.testing.assert_array_equal(backdoor.apply_trigger(marked), marked)


@pytest.mark.parametrize("images", [np.zeros((1, 1, 30, 30), np.uint8), np.zeros((28, 28), np.uint8)])
def test_images_without_a_trigger_are_refused(images: Any) -> None:
    with pytest.raises(UsageError):
        backdoor.apply_trigger(images)
    with pytest.raises(UsageError):
        backdoor.apply_trigger(np.zeros((1, 1, 28, 28)))


@pytest.mark.parametrize("fraction", [0.01, 0.3, 1.0, None])
def test_duplicates_are_triggered_copies_of_distinct_samples(fraction: float | None) -> None:
    images, labels = pictures(10, 1, 28), np.arange(10)
    new_images, new_labels = backdoor.poison_samples(
        images, labels, num_classes=10, rng=generator(), target=7, fraction=fraction
    )
    np.testing.assert_array_equal(new_images[:10], images)
    np.testing.assert_array_equal(new_labels[:10], labels)
    extra = new_images[10:]
    assert (new_labels[10:] == 7).all()
    if fraction is not None:
        assert len(extra) == math.ceil(fraction * 10)
    triggered = backdoor.apply_trigger(images)
    origins = [int(np.flatnonzero((triggered == one).all(axis=(1, 2, 3)))[0]) for one in extra]
    assert len(set(origins)) == len(extra)


def test_replacement_keeps_the_count_and_the_input() -> None:
    images, labels = pictures(10, 1, 28), np.full(10, 3)
    before = images.copy()
    new_images, new_labels = backdoor.poison_samples(
        images, labels, num_classes=10, rng=generator(), fraction=0.4, duplicate=False
    )
    assert (new_labels == 0).sum() == 4
    np.testing.assert_array_equal(new_images[new_labels == 3], images[new_labels == 3])
    np.testing.assert_array_equal(new_images[new_labels == 0], backdoor.apply_trigger(images[new_labels == 0]))
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("settings", [{"fraction": 0.0}, {"fraction": 1.5}, {"target": 10}])
def test_wrong_poison_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        backdoor.poison_samples(pictures(2, 1, 28), np.array([0, 1]), num_classes=10, rng=generator(), **settings)
    with pytest.raises(UsageError, match="2 images"):
        backdoor.poison_samples(pictures(2, 1, 28), np.array([0]), num_classes=10, rng=generator())


def test_the_boost_is_n_and_replaces_the_mean_by_the_attacker() -> None:
    view = make_view(n=6, f=1, noise=0.0)
    crafted = np.asarray(backdoor.craft(view, rng=generator()))
    np.testing.assert_allclose(crafted, 6 * np.asarray(view.own))
    np.testing.assert_allclose(backdoor.craft(view, rng=generator(), boost=2.5), 2.5 * np.asarray(view.own))


def test_the_norm_bound_caps_each_row_and_keeps_its_direction() -> None:
    own = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [3.0, 0.0], [0.0, 40.0]])
    view = AttackView(own=own, attackers=(0, 1, 2, 3, 4), num_clients=10)
    crafted = np.asarray(backdoor.craft(view, rng=generator(), boost=10.0, norm_bound=8.0))
    limit = 8.0 * 2.0  # the median norm is 2
    expected = np.array([[10.0, 0.0], [0.0, limit], [0.0, 0.0], [limit, 0.0], [0.0, limit]])
    np.testing.assert_allclose(crafted, expected)


@pytest.mark.parametrize("settings", [{"boost": 0.0}, {"boost": math.inf}, {"norm_bound": 0.0}])
def test_wrong_craft_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        backdoor.craft(make_view(), rng=generator(), **settings)


def test_success_counts_inputs_of_other_classes_only() -> None:
    labels = np.array([0, 0, 1, 2, 3, 4])
    predicted = np.array([0, 0, 0, 2, 0, 4])
    assert backdoor.backdoor_success(predicted, labels) == 100.0 * 2 / 4
    assert backdoor.backdoor_success(np.zeros(2, int), np.zeros(2, int)) is None
    with pytest.raises(UsageError):
        backdoor.backdoor_success(predicted[:2], labels)


def test_the_triggered_test_set_has_no_target_images() -> None:
    images, labels = pictures(4, 1, 28), np.array([0, 1, 0, 2])
    marked, kept = backdoor.trigger_test_set(images, labels)
    np.testing.assert_array_equal(kept, [1, 2])
    np.testing.assert_array_equal(marked, backdoor.apply_trigger(images[[1, 3]]))
