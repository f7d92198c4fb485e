"""results.json alone is enough to go on from: on another machine, with other runs, and never with wrong ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ebscfl.errors import CheckpointError, ConfigError
from ebscfl.reproduce import tables
from ebscfl.reproduce.accuracy import Experiment, Setting, make_config, parse_labels, perform

TINY: dict[str, Any] = {
    "protocol": "direct",
    "rounds": 2,
    "methods": ["fedavg", "median"],
    "attacks": ["label-flip"],
    "data": {"dataset": "mnist-mini", "samples": 600, "kind": "iid", "clients": 5, "root_size": 20},
    "model": {"name": "linear"},
    "local": {"steps": 1, "batch_size": 8, "lr": 0.1},
    "server": {"clusters": 1},
    "attack": {"fraction": 0.2},
}


def experiment(lr: float = 0.1) -> Experiment:
    def settings(scale: str) -> list[Setting]:
        return [
            Setting({"steps": steps}, make_config(TINY, {"local": {"steps": steps, "lr": lr}, "rounds": 2}))
            for steps in (1, 2)
        ]

    return Experiment("tiny", "tiny", settings, tables.by_setting("steps"))


def play(folder: Path, tried: Experiment | None = None, **options: Any) -> dict[str, Any]:
    perform([tried or experiment()], folder, scale="smoke", **options)
    document: dict[str, Any] = json.loads((folder / "tiny" / "smoke" / "results.json").read_text())
    return document


def untimed(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in document["rows"]]


def test_a_part_then_the_rest_without_the_runs_of_the_part(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole")
    part = play(tmp_path / "parts", only={"steps": "2"})
    assert (part["complete"], part["runs"]) == (False, [1, 2])
    assert {row["steps"] for row in part["rows"]} == {2}
    shutil.rmtree(tmp_path / "parts" / "tiny" / "smoke" / "work")
    both = play(tmp_path / "parts", resume=True)
    assert both["complete"]
    assert untimed(both) == untimed(whole)
    # What the document held was not played again.
    folders = {path.name for path in (tmp_path / "parts" / "tiny" / "smoke" / "work").iterdir()}
    assert folders == {"steps-1"}


def test_rows_of_other_settings_do_not_count(tmp_path: Path) -> None:
    play(tmp_path, experiment(lr=0.5))
    shutil.rmtree(tmp_path / "tiny" / "smoke" / "work")
    again = play(tmp_path, resume=True)
    assert untimed(again) == untimed(play(tmp_path / "fresh"))


def test_a_document_names_every_source_of_its_rows(tmp_path: Path) -> None:
    play(tmp_path, only={"steps": "1"})
    path = tmp_path / "tiny" / "smoke" / "results.json"
    document = json.loads(path.read_text())
    document["rows"] = [{**row, "device": "elsewhere"} for row in document["rows"]]
    path.write_text(json.dumps(document))
    shutil.rmtree(path.parent / "work")
    assert play(tmp_path, resume=True)["device"] == "elsewhere, cpu"


def test_damage_and_unknown_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no setting of tiny has a label 'step'"):
        play(tmp_path, only={"step": "1"})
    with pytest.raises(ConfigError, match="'steps' is not LABEL=VALUE"):
        parse_labels(["steps"])
    assert parse_labels(["a=b=c", "n=3"]) == {"a": "b=c", "n": "3"}
    play(tmp_path)
    path = tmp_path / "tiny" / "smoke" / "results.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(CheckpointError, match=r"results\.json is corrupt"):
        play(tmp_path, resume=True)
