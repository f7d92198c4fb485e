"""The registry: closed names and settings, one place for defaults, and what each attack must be granted."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from ebscfl.attacks import ATTACKS, AttackSpec, get_attack
from ebscfl.errors import ConfigError


def test_names_and_kinds() -> None:
    kinds = {name: spec.kind for name, spec in ATTACKS.items()}
    assert kinds.pop("label_flip") == "data"
    assert kinds.pop("backdoor") == "both"
    assert set(kinds.values()) == {"update"}
    assert set(kinds) == {
        *("krum_attack", "trim_attack", "adaptive", "sine", "sign_flip", "gaussian", "alie", "min_max", "insider"),
    }
    assert "none" not in ATTACKS
    assert isinstance(ATTACKS, MappingProxyType)


def test_unknown_names_and_settings_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'trim_attack'"):
        get_attack("trim_atack")
    with pytest.raises(ConfigError, match="known: adaptive"):
        get_attack("zzz")
    with pytest.raises(ConfigError, match="'poison_percent'"):
        get_attack("sine").for_craft({"poison_persent": 1.0})
    with pytest.raises(ConfigError, match="no setting 'rng'"):
        get_attack("sign_flip").for_craft({"rng": 1})


def test_settings_are_split_between_the_halves() -> None:
    spec = get_attack("backdoor")
    chosen = {"boost": 5.0, "target": 3}
    assert spec.for_craft(chosen) == {"boost": 5.0, "norm_bound": None}
    assert spec.for_poison(chosen) == {"target": 3, "fraction": 0.5, "duplicate": True}
    assert spec.defaults == {**spec.for_craft(), **spec.for_poison()}
    assert get_attack("label_flip").for_craft() == {}


@pytest.mark.parametrize(
    ("name", "settings", "granted"),
    [
        ("label_flip", {}, set()),
        ("sign_flip", {}, set()),
        ("alie", {}, set()),
        ("alie", {"knowledge": "full"}, {"everyone"}),
        ("trim_attack", {}, {"everyone"}),
        ("trim_attack", {"knowledge": "partial"}, set()),
        ("adaptive", {}, {"everyone", "base"}),
        ("adaptive", {"knowledge": "partial", "base": "colluders"}, set()),
        ("sine", {}, {"base"}),
        ("sine", {"base": "proxy"}, {"proxy"}),
        ("sine", {"knowledge": "fn", "base": "colluders"}, {"everyone"}),
    ],
)
def test_what_an_attack_must_be_granted(name: str, settings: dict[str, Any], granted: set[str]) -> None:
    assert get_attack(name).needs(settings) == granted


def test_a_spec_keeps_no_state() -> None:
    spec = AttackSpec("empty")
    assert spec.defaults == {}
    assert spec.needs() == frozenset()


@pytest.mark.parametrize("name", ATTACKS)
def test_defaults_pass_the_check(name: str) -> None:
    for shape in ((1, 28, 28), (3, 32, 32)):
        get_attack(name).check({}, num_classes=10, image_shape=shape)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sine", {"knowledge": "IN"}, "attack.sine: knowledge"),
        ("sine", {"scale_norm": 0.5}, "attack.sine: scale_norm"),
        ("adaptive", {"probes": 0}, "attack.adaptive: passes"),
        ("label_flip", {"variant": "sideways"}, "attack.label-flip: variant"),
        ("backdoor", {"target": 10}, "attack.backdoor: target must be a class in 0..9"),
        ("backdoor", {"boost": -1.0}, "attack.backdoor: boost"),
        ("trim_attack", {"reach": 1.0}, "attack.trim-attack: reach"),
        ("gaussian", {"kind": "loud"}, "attack.gaussian: kind"),
        ("krum_attack", {"knowledge": "half"}, "attack.krum-attack: knowledge"),
    ],
)
def test_values_an_attack_cannot_take_are_refused_before_a_run(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        get_attack(name).check(settings, num_classes=10, image_shape=(1, 28, 28))


def test_the_trigger_must_fit_the_images() -> None:
    with pytest.raises(ConfigError, match="no backdoor trigger for 6x6"):
        get_attack("backdoor").check({}, num_classes=10, image_shape=(1, 6, 6))
