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


def test_rows_of_other_seeds_stay_when_one_more_is_run(tmp_path: Path) -> None:
    both = play(tmp_path / "both", seeds=(1, 2))
    play(tmp_path / "apart", seeds=(2,))
    shutil.rmtree(tmp_path / "apart" / "tiny" / "smoke" / "work")  # another machine
    apart = play(tmp_path / "apart", seeds=(1,), resume=True)
    assert untimed(apart) == untimed(both)
    assert (apart["seeds"], apart["runs"], apart["complete"]) == ([1, 2], [4, 4], True)


def test_rows_of_renamed_labels_do_not_count(tmp_path: Path) -> None:
    play(tmp_path)
    path = tmp_path / "tiny" / "smoke" / "results.json"
    document = json.loads(path.read_text())
    document["rows"] = [{("step" if key == "steps" else key): row[key] for key in row} for row in document["rows"]]
    path.write_text(json.dumps(document))
    shutil.rmtree(path.parent / "work")
    again = play(tmp_path, resume=True)
    assert again["complete"]
    assert all("step" not in row for row in again["rows"])


def test_several_experiments_are_made_in_one_go(tmp_path: Path) -> None:
    other = Experiment(
        "other", "other", lambda scale: experiment(lr=0.2).settings(scale)[:1], tables.by_setting("steps")
    )
    paths = perform([experiment(), other], tmp_path, scale="smoke", only={"steps": "1"})
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        f"{name}/smoke/results.{ending}" for name in ("tiny", "other") for ending in ("json", "md")
    ]
    found = {name: json.loads((tmp_path / name / "smoke" / "results.json").read_text()) for name in ("tiny", "other")}
    assert found["tiny"]["runs"] == [1, 2]
    assert found["other"]["complete"]


@pytest.mark.parametrize("text", ["[]", '{"rows": 3}', '{"rows": ["a"]}', '{"rows": [{"seed": "x"}]}', '{"row": []}'])
def test_a_document_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tiny" / "smoke" / "results.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"results\.json is corrupt"):
        play(tmp_path, resume=True)


def test_a_document_names_every_source_of_its_rows(tmp_path: Path) -> None:
    play(tmp_path, only={"steps": "1"})
    path = tmp_path / "tiny" / "smoke" / "results.json"
    document = json.loads(path.read_text())
    document["rows"] = [{**row, "device": "elsewhere"} for row in document["rows"]]
    path.write_text(json.dumps(document))
    shutil.rmtree(path.parent / "work")
    assert play(tmp_path, resume=True)["device"] == "elsewhere, cpu"


def test_runs_that_still_lie_there_keep_what_they_were_made_with(tmp_path: Path) -> None:
    """A newer commit that goes on did not measure what an older one did."""
    play(tmp_path, only={"steps": "1"})
    path = tmp_path / "tiny" / "smoke" / "results.json"
    document = json.loads(path.read_text())
    document["rows"] = [{**row, "commit": "older"} for row in document["rows"]]
    path.write_text(json.dumps(document))
    again = play(tmp_path, resume=True)
    assert again["complete"]
    assert {(row["steps"], row["commit"] == "older") for row in again["rows"]} == {(1, True), (2, False)}
    assert again["commit"].startswith("older, ")


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
