from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from ebscfl.config import RunConfig, config_from_table, list_presets, load_preset, parse_config
from ebscfl.errors import ConfigError
from ebscfl.sim.attack_plans import ATTACKS

SAMPLES = Path(__file__).parent.parent / "docs" / "samples"


@pytest.mark.parametrize("name", list(list_presets()))
def test_every_preset_loads_and_survives_its_own_toml(name: str) -> None:
    config = load_preset(name)
    assert parse_config(config.to_toml()) == config
    assert list_presets()[name]


def test_expected_presets_are_there() -> None:
    assert {"default", "smoke", "mnist-dirichlet", "cifar10-dirichlet", "cifar10-iid"} <= list_presets().keys()


def test_default_preset_is_what_the_documentation_promises() -> None:
    config = load_preset()
    assert (config.data.dataset, config.data.kind, config.data.groups) == ("mnist-mini", "rotation", 4)
    assert config.data.clients == 20
    assert config.num_attackers == 8
    assert {"fedavg", "ifca", "fltrust", "rfca"} <= set(config.methods)
    assert "label-flip" in config.attacks


@pytest.mark.parametrize("name", ["basic.toml", "full.toml"])
def test_samples_parse(name: str) -> None:
    load_preset(str(SAMPLES / name))


def test_full_sample_shows_every_key_with_its_default() -> None:
    shown = tomllib.loads((SAMPLES / "full.toml").read_text(encoding="utf-8"))
    default = tomllib.loads(config_from_table({}).to_toml())
    for key, value in default.items():
        if not isinstance(value, dict):
            assert shown[key] == value, key
    for section in ("data", "model", "local", "server", "attack", "secure"):
        for key, value in default[section].items():
            if not isinstance(value, dict):
                assert shown[section][key] == value, f"{section}.{key}"
    assert load_preset(str(SAMPLES / "full.toml")) == config_from_table({})


def test_set_values_win_over_the_preset() -> None:
    config = load_preset("smoke", ["rounds=2", "data.clients=9", "methods=rfca", "attack.label-flip.variant=next"])
    assert (config.rounds, config.data.clients, config.methods) == (2, 9, ("rfca",))
    assert config.attack.options["label-flip"]["variant"] == "next"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("ronds=3", "ronds: unknown key; did you mean 'rounds'?"),
        ("data.client=3", "data.client: unknown key; did you mean 'clients'?"),
        ("rounds=0", "rounds must be at least 1"),
        ("rounds=many", "rounds: expected a whole number"),
        ("eval_every=0", "eval_every must be at least 1"),
        ("checkpoint_every=0", "checkpoint_every must be at least 1"),
        ("seed=-1", "seed must lie in"),
        ("device=tpu", "device must be one of"),
        ("evaluation=test", "evaluation must be one of"),
        ("protocol=magic", "protocol must be one of"),
        ("methods=rfcs", "methods: unknown method 'rfcs'; did you mean 'rfca'?"),
        ("methods=[]", "methods: name at least one"),
        ('methods=["rfca", "rfca"]', "methods: the same name stands twice"),
        ("attacks=labelflip", "attacks: unknown attack 'labelflip'; did you mean 'label-flip'?"),
        ("data.alpha=-1", "data.alpha must be"),
        ("data.clients=0", "data.clients must be"),
        ("model.name=mpl", "model.name: unknown model 'mpl'; did you mean 'mlp'?"),
        ("local.lr=-0.1", "local.lr must be"),
        ("local.lr=fast", "local.lr: expected a number"),
        ("server.clusters=0", "server.clusters must be at least 1"),
        ("server.choice_steps=0", "server.choice_steps must be at least 1"),
        ("server.root_direction=up", "server.root_direction must be one of cluster, mixed"),
        ("server.history_weight=x", "server.history_weight must be one of score, record, equal"),
        ("attack.fraction=1.0", "attack.fraction must lie in"),
        ("attack.fraction=0.01", "attack.fraction = 0.01 of data.clients = 6 is none"),
        ("attack.placement=x", "attack.placement must be one of"),
        ("attack.claim=x", "attack.claim must be one of"),
        ("attack.knowledge=x", "attack.knowledge must be full"),
        ("attack.fractoin=0.2", "attack.fractoin: unknown key; did you mean 'fraction'?"),
        ("attack.lable-flip.variant=next", "attack.lable-flip: unknown key or attack; did you mean 'label-flip'?"),
        ("attack.label-flip.varint=next", "attack.label-flip.varint: unknown key; did you mean 'variant'?"),
        ("attack.label-flip.target=x", "attack.label-flip.target: expected a whole number"),
    ],
)
def test_wrong_values_are_one_line_naming_the_key(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_preset("smoke", [assignment])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["server.normalize=global"], "server.share: a body is shared by the weights of clusters, so normalize must"),
        (["server.averaging=gradient"], "server.share: a body is shared by the weights of clusters, so averaging must"),
        (["protocol=paper"], "server.share: a body is shared by the weights of clusters, which 'paper' hides"),
        (["protocol=paper-naive"], "server.share: a body is shared by the weights of clusters, which 'paper-naive'"),
    ],
)
def test_a_shared_body_needs_the_weights_of_clusters(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_preset("smoke", ["server.share=body", *sets])
    assert str(caught.value).startswith(message)
    for protocol in ("direct", "plain", "sealed"):
        load_preset("smoke", ["server.share=body", f"protocol={protocol}"])


def test_krum_with_too_few_clients_never_starts() -> None:
    # 40 % of 10 are 4 attackers, and 2 * 4 + 2 is not below 10.
    with pytest.raises(ConfigError, match=r"krum needs 2 \* faulty \+ 2 < clients"):
        load_preset("smoke", ["methods=krum", "data.clients=10", "attack.fraction=0.4"])
    load_preset("smoke", ["methods=krum", "data.clients=20", "attack.fraction=0.4"])
    load_preset("smoke", ["methods=krum", "data.clients=10", "attack.fraction=0.4", "server.faulty=3"])


def test_cells_always_hold_the_run_without_attack_first() -> None:
    config = load_preset("smoke", ['methods=["fedavg", "rfca"]', 'attacks=["label-flip", "none"]'])
    assert config.cells == (("fedavg", "none"), ("fedavg", "label-flip"), ("rfca", "none"), ("rfca", "label-flip"))


def test_run_without_attacks_needs_no_attackers() -> None:
    assert load_preset("smoke", ["attacks=[]", "attack.fraction=0.0"]).num_attackers == 0


def test_knowledge_reaches_the_attacks_that_have_the_choice() -> None:
    config = load_preset("smoke", ['attacks=["trim-attack", "sine"]', "attack.knowledge=partial"])
    assert config.attack.options["trim-attack"]["knowledge"] == "partial"
    assert config.attack.options["sine"]["knowledge"] == "pn"
    own = load_preset("smoke", ["attacks=trim-attack", "attack.knowledge=partial", "attack.trim-attack.knowledge=full"])
    assert own.attack.options["trim-attack"]["knowledge"] == "full"


def test_options_of_every_attack_are_complete_in_the_resolved_config() -> None:
    names = ", ".join(f'"{name}"' for name in ATTACKS)
    config = load_preset("smoke", [f"attacks=[{names}]"])
    for name, spec in ATTACKS.items():
        assert config.attack.options[name].keys() == spec.defaults.keys()
    assert parse_config(config.to_toml()) == config


def test_digest_ties_to_every_setting() -> None:
    config = RunConfig()
    assert config.digest() == RunConfig().digest()
    assert config.digest() != replace(config, seed=2).digest()
    assert config.digest() != replace(config, server=replace(config.server, eta=0.5)).digest()


def test_unknown_presets_and_files() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'defualt'; did you mean 'default'"):
        load_preset("defualt")
    with pytest.raises(ConfigError, match=r"cannot read the config file nowhere\.toml"):
        load_preset("nowhere.toml")


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("rounds = = 3", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_preset(str(path))
