"""What every attack promises, whichever it is: one suite over the registry."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from ebscfl import rng as streams
from ebscfl.attacks import ATTACKS, AttackView
from ebscfl.errors import UsageError

ROOT = streams.root_from_seed(23)
CRAFTING = [name for name, spec in ATTACKS.items() if spec.craft is not None]
POISONING = [name for name, spec in ATTACKS.items() if spec.poison is not None]
# Every value of the settings that choose what an attack knows, one combination a row.
MODES: dict[str, list[dict[str, Any]]] = {
    "krum_attack": [{"knowledge": "full"}, {"knowledge": "partial"}],
    "trim_attack": [{"knowledge": "full"}, {"knowledge": "partial"}],
    "alie": [{"knowledge": "full"}, {"knowledge": "partial"}],
    "min_max": [{"knowledge": k, "perturbation": p} for k in ("full", "partial") for p in ("unit", "std", "sign")],
    "adaptive": [{"knowledge": "full"}, {"knowledge": "partial", "base": "colluders"}],
    "sine": [{"knowledge": k} for k in ("in", "pn", "fn")] + [{"knowledge": "in", "base": "colluders"}],
    "gaussian": [{"kind": "noise"}, {"kind": "additive"}, {"kind": "fitted"}],
    "sign_flip": [{"of": "own"}, {"of": "mean"}],
    "backdoor": [{}, {"norm_bound": 2.0}],
    "insider": [{"knowledge": "full"}, {"knowledge": "partial", "base": "colluders"}],
}
CASES = [pytest.param(name, mode, id=f"{name}-{i}") for name in CRAFTING for i, mode in enumerate(MODES[name])]
# Negating the view negates the result: these read the same for movements and gradients.
ODD = {"krum_attack", "trim_attack", "sign_flip", "backdoor", "insider"}


def generator() -> np.random.Generator:
    return streams.numpy_generator(ROOT, streams.USAGE_ATTACK, 1)


def make_view(f: int = 3, n: int = 9, d: int = 25, dtype: Any = np.float64, sign: float = 1.0) -> AttackView:
    draws = streams.numpy_generator(ROOT, streams.USAGE_ATTACK, 0)
    direction = draws.standard_normal(d)
    everyone = (sign * (direction + draws.standard_normal((n, d)))).astype(dtype)
    base = (sign * (direction + draws.standard_normal(d))).astype(dtype)
    attackers = tuple(range(n - f, n))
    return AttackView(everyone[n - f :].copy(), attackers, n, everyone, base, round_id=1)


def as_torch(view: AttackView) -> AttackView:
    kinds = {key: torch.from_numpy(np.array(getattr(view, key))) for key in ("own", "everyone", "base")}
    return dataclasses.replace(view, **kinds)


def craft(name: str, view: AttackView, mode: dict[str, Any]) -> Any:
    spec = ATTACKS[name]
    assert spec.craft is not None
    return spec.craft(view, rng=generator(), **spec.for_craft(mode))


def test_every_crafting_attack_is_covered() -> None:
    assert set(MODES) == set(CRAFTING)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_shape_dtype_and_kind_are_kept_and_the_input_is_not_touched(
    name: str, mode: dict[str, Any], dtype: Any
) -> None:
    view = make_view(dtype=dtype)
    before = {key: np.array(getattr(view, key)) for key in ("own", "everyone", "base")}
    crafted = craft(name, view, mode)
    assert isinstance(crafted, np.ndarray)
    assert (crafted.shape, crafted.dtype) == (view.own.shape, dtype)
    assert np.isfinite(crafted).all()
    crafted[...] = 0.0  # the result is memory of its own
    for key, value in before.items():
        np.testing.assert_array_equal(getattr(view, key), value)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_torch_gives_torch_with_the_same_numbers(name: str, mode: dict[str, Any]) -> None:
    view = make_view()
    crafted = craft(name, as_torch(view), mode)
    assert isinstance(crafted, torch.Tensor)
    np.testing.assert_array_equal(crafted.numpy(), craft(name, view, mode))


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_read_only_input_is_accepted(name: str, mode: dict[str, Any]) -> None:
    view = make_view()
    for key in ("own", "everyone", "base"):
        getattr(view, key).flags.writeable = False
    np.testing.assert_array_equal(craft(name, view, mode), craft(name, make_view(), mode))


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_the_same_generator_gives_the_same_update(name: str, mode: dict[str, Any]) -> None:
    np.testing.assert_array_equal(craft(name, make_view(), mode), craft(name, make_view(), mode))


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_one_attacker_is_enough(name: str, mode: dict[str, Any]) -> None:
    assert np.isfinite(craft(name, make_view(f=1), mode)).all()


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_what_needs_says_is_exactly_what_is_needed(name: str, mode: dict[str, Any]) -> None:
    view = make_view()
    needed = ATTACKS[name].needs(mode)
    for grant in ("everyone", "base"):
        without = dataclasses.replace(view, **{grant: None})
        if grant in needed:
            with pytest.raises(UsageError, match=f"needs view.{grant}"):
                craft(name, without, mode)
        else:
            np.testing.assert_array_equal(craft(name, without, mode), craft(name, view, mode))


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_all_clients_attacking_works_or_is_refused_in_one_line(name: str, mode: dict[str, Any]) -> None:
    view = make_view(f=4, n=4)
    impossible = name in ("krum_attack", "min_max", "alie", "sine") and mode.get("knowledge") in ("full", "fn")
    if impossible or name == "alie":
        with pytest.raises(UsageError) as caught:
            craft(name, view, mode)
        assert "\n" not in str(caught.value)
    else:
        assert np.isfinite(craft(name, view, mode)).all()


@pytest.mark.parametrize("name", sorted(ODD))
def test_odd_attacks_read_the_same_for_movements_and_gradients(name: str) -> None:
    for mode in MODES[name]:
        one, two = (craft(name, make_view(sign=sign), mode) for sign in (1.0, -1.0))
        # The Krum attack's followers carry noise of a fixed sign around its leader, row 0.
        rows = slice(0, 1) if name == "krum_attack" else slice(None)
        np.testing.assert_allclose(two[rows], -one[rows], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", POISONING)
def test_poisoning_is_deterministic_and_leaves_its_input(name: str) -> None:
    spec = ATTACKS[name]
    assert spec.poison is not None
    images = generator().integers(0, 255, (12, 1, 28, 28), dtype=np.uint8)
    labels = generator().integers(0, 10, 12)
    kept_images, kept_labels = images.copy(), labels.copy()
    one, two = (spec.poison(images, labels, num_classes=10, rng=generator(), **spec.for_poison()) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    new_images, new_labels = one
    assert len(new_images) == len(new_labels)
    assert (new_images.dtype, new_labels.dtype) == (images.dtype, labels.dtype)
    assert new_images.shape[1:] == images.shape[1:]
    assert new_labels.min() >= 0
    assert new_labels.max() < 10
    np.testing.assert_array_equal(images, kept_images)
    np.testing.assert_array_equal(labels, kept_labels)
    assert (new_labels[:12] != labels).any() or len(new_labels) > 12


@pytest.mark.parametrize("name", POISONING)
def test_poisoning_refuses_labels_outside_the_classes(name: str) -> None:
    spec = ATTACKS[name]
    assert spec.poison is not None
    images = np.zeros((1, 1, 28, 28), dtype=np.uint8)
    with pytest.raises(UsageError, match=r"0\.\.9"):
        spec.poison(images, np.array([10]), num_classes=10, rng=generator(), **spec.for_poison())
