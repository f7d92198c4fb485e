"""The list of experiments: every configuration is valid at every scale, and the GPU path needs little."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ebscfl.config import RunConfig
from ebscfl.errors import ConfigError
from ebscfl.learning.data import load_dataset
from ebscfl.learning.partition import make_partition
from ebscfl.reproduce import __main__ as command
from ebscfl.reproduce import defenses, noniid, search
from ebscfl.reproduce.accuracy import SCALES, SEEDS
from ebscfl.reproduce.experiments import EXPERIMENTS, make
from ebscfl.rng import root_from_seed

RUNNABLE = [name for name in EXPERIMENTS if EXPERIMENTS[name].settings("smoke")]


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("scale", SCALES)
def test_settings_are_valid_and_told_apart(name: str, scale: str) -> None:
    settings = EXPERIMENTS[name].settings(scale)
    assert len({setting.key for setting in settings}) == len(settings)
    assert len({setting.config.digest() for setting in settings}) == len(settings)
    for setting in settings:
        assert setting.config.protocol == "direct"
        embedded = setting.config.data.dataset == "mnist-mini"
        assert embedded is (scale != "full")


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_every_split_on_embedded_data_can_be_drawn(scale: str) -> None:
    data = load_dataset("mnist-mini")
    for name in RUNNABLE:
        for settings in {setting.config.data for setting in EXPERIMENTS[name].settings(scale)}:
            for seed in SEEDS[scale]:
                made = make_partition(data, settings, root_from_seed(seed))
                assert len(made.clients) == settings.clients


def test_the_main_table_is_the_paper_s() -> None:
    for setting in noniid.table_settings("full"):
        config = setting.config
        assert config.data.dataset == "cifar10"
        assert config.data.kind == "dirichlet"
        assert config.data.alpha == setting.labels["alpha"]
        assert config.attacks == ("label-flip", "sine")
        assert config.num_attackers == 0.4 * config.data.clients
        assert config.attack.options["sine"]["base"] == "proxy"
        literal = setting.labels["variant"] == "literal"
        assert (config.server.root_updates == "fixed") is literal
        assert (config.server.normalize == "global") is literal


def test_the_sweep_counts_two_hundred_events() -> None:
    for setting in noniid.sweep_settings("full"):
        assert setting.config.num_attackers * setting.config.rounds == 200


def test_the_search_never_sees_an_attack() -> None:
    for scale in SCALES:
        for setting in search.search_settings(scale):
            assert {attack for _, attack in setting.config.cells} == {"none"}


def test_search_factors_scale_the_base() -> None:
    by_knob = {setting.labels["knob"]: setting.config for setting in search.search_settings("small")}
    assert by_knob["lr x 2"].local.lr == 2 * by_knob["base"].local.lr
    assert by_knob["steps x 2"].local.steps == 2 * by_knob["base"].local.steps
    assert by_knob["root x 3"].data.root_size == 3 * by_knob["base"].data.root_size


def settings_by_key(config: RunConfig) -> dict[str, Any]:
    """Every setting under its dotted key."""
    table = tomllib.loads(config.to_toml())
    flat = {key: value for key, value in table.items() if not isinstance(value, dict)}
    return flat | {f"{part}.{key}": value for part in table if part not in flat for key, value in table[part].items()}


def changed(before: RunConfig, after: RunConfig) -> set[str]:
    """The dotted keys whose values differ."""
    old, new = settings_by_key(before), settings_by_key(after)
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


@pytest.mark.parametrize("scale", SCALES)
def test_options_change_one_thing_each(scale: str) -> None:
    settings = {setting.labels["option"]: setting.config for setting in defenses.option_settings(scale)}
    ours = [settings[option] for option in defenses.OPTIONS if option in settings]
    assert len(ours) == (2 if scale == "smoke" else len(defenses.OPTIONS))
    for before, after in pairwise(ours):
        assert len(changed(before, after)) == 1, changed(before, after)
    assert changed(settings["IFCA, nothing shared"], settings["IFCA, shared body"]) == {"server.share"}


def test_the_options_end_with_our_rule() -> None:
    *_, built_up = defenses.option_settings("full")
    (ours,) = (
        setting.config
        for setting in noniid.table_settings("full")
        if setting.labels == {"alpha": 0.1, "variant": "ours"}
    )
    assert built_up.config.server == ours.server
    assert built_up.config.methods == ours.methods == ("rfca-h",)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="table-noniid"):
        make("table-nonid", tmp_path)
    with pytest.raises(ConfigError, match="scale"):
        make("table-noniid", tmp_path, scale="big")
    with pytest.raises(ConfigError, match=r"results\.json"):
        make("table-noniid", tmp_path, scale="smoke", render_only=True)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", "--scale", "smoke", "--out", str(tmp_path), "--seeds", "3"]
    assert command.main([*arguments, "--time-limit", "0"]) != 0
    assert "--resume" in capsys.readouterr().err
    assert command.main(arguments) != 0  # results are there
    assert "--resume" in capsys.readouterr().err
    assert command.main([*arguments, "--render"]) == 0
    assert "results.md" in capsys.readouterr().out


def test_a_machine_with_torch_numpy_and_pillow_is_enough(tmp_path: Path) -> None:
    """What nothing can be installed on: everything else refuses to be imported."""
    script = f"""
import sys
for name in "typer rich click jinja2 matplotlib numba cryptography scipy flwr dp_accounting".split():
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
from ebscfl.reproduce.__main__ import main
code = main(["table-noniid", "--scale", "smoke", "--out", {str(tmp_path)!r}, "--time-limit", "0"])
assert code == main(["table-noniid", "--scale", "smoke", "--out", {str(tmp_path)!r}, "--resume", "--time-limit", "0"])
assert main(["table-noniid", "--scale", "smoke", "--out", {str(tmp_path)!r}, "--render"]) == 0
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNABLE)
def test_smoke_runs_to_the_end(name: str, tmp_path: Path) -> None:
    paths = make(name, tmp_path, scale="smoke")
    assert {"results.json", "results.md"} <= {path.name for path in paths}
    assert "runs finished" not in paths[1].read_text()
