"""Experiments made of runs: what is written, that a stopped one goes on, and what the numbers mean."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebscfl.config import RunConfig
from ebscfl.errors import CheckpointError, ConfigError, Interrupted, UsageError
from ebscfl.learning.data import Dataset
from ebscfl.reproduce import accuracy, tables
from ebscfl.reproduce.accuracy import Experiment, Setting, make_config, perform, summaries
from ebscfl.reproduce.tasks import Deadline
from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed

TINY = {
    "protocol": "direct",
    "rounds": 3,
    "methods": ["fedavg", "rfca-h"],
    "attacks": ["label-flip"],
    "data": {"dataset": "rows", "kind": "rotation", "groups": 2, "clients": 6, "min_size": 2, "root_size": 16},
    "model": {"name": "linear"},
    "local": {"steps": 2, "batch_size": 8, "lr": 0.5},
    "server": {"clusters": 2},
    "attack": {"fraction": 0.34},
}
CELLS = 4  # two methods, with and without attack


def rows_dataset(name: str, data_dir: Path | None = None) -> Dataset:
    """Noisy 6 x 6 images of 4 classes; class c has a bright row c + 1."""
    rng = numpy_generator(root_from_seed(3), USAGE_BENCH)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count, dtype=np.int64) % 4
        images = rng.integers(0, 80, size=(count, 1, 6, 6)).astype(np.uint8)
        images[np.arange(count), 0, labels + 1] += 150
        return images, labels

    (x_train, y_train), (x_test, y_test) = part(240), part(80)
    return Dataset("rows", x_train, y_train, x_test, y_test, 4)


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebscfl.sim.cell.load_dataset", rows_dataset)


def experiment(**changes: Any) -> Experiment:
    def settings(scale: str) -> list[Setting]:
        return [Setting({"lr": lr}, make_config(TINY, changes, {"local": {"lr": lr}})) for lr in (0.1, 0.5)]

    return Experiment("tiny", "A tiny experiment", settings, tables.by_setting("lr"))


def document(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "tiny" / "smoke" / "results.json").read_text())
    return found


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in found["rows"]]
    return {**found, "rows": rows, "seconds": 0.0}


def test_every_cell_is_one_row_with_everything_that_made_it(tmp_path: Path) -> None:
    paths = perform([experiment()], tmp_path, scale="smoke", seeds=(1, 2))
    assert [path.name for path in paths] == ["results.json", "results.md"]
    found = document(tmp_path)
    assert found["complete"] is True
    assert found["runs"] == [4, 4]
    assert len(found["rows"]) == 2 * 2 * CELLS
    assert {"version", "commit", "python", "torch", "numpy", "device", "cores", "command"} <= found.keys()
    assert found["command"] == "ebs-cfl reproduce tiny --scale smoke"
    for setting in found["settings"]:
        assert setting["labels"]["lr"] in (0.1, 0.5)
        assert f"lr = {setting['labels']['lr']}" in setting["config"]
    row = found["rows"][0]
    assert row["rounds"] == [1, 2, 3]
    for evaluation in ("own", "global"):
        assert row[evaluation]["fa"] == pytest.approx(row[f"curve_{evaluation}"][-1], abs=0.01)
        assert row[evaluation]["ma"] == pytest.approx(max(row[f"curve_{evaluation}"]), abs=0.01)
    assert str(tmp_path) not in json.dumps(found)


def test_stopped_and_resumed_is_the_unbroken_one(tmp_path: Path) -> None:
    perform([experiment()], tmp_path / "whole", scale="smoke")
    for _ in range(2 * CELLS * 3):  # settings x cells x rounds
        # A limit of zero seconds stops after every single round.
        with pytest.raises(Interrupted, match="--resume"):
            perform([experiment()], tmp_path / "cut", scale="smoke", resume=True, time_limit=0.0)
        assert document(tmp_path / "cut")["complete"] is False
    perform([experiment()], tmp_path / "cut", scale="smoke", resume=True, time_limit=0.0)
    assert without_times(document(tmp_path / "cut")) == without_times(document(tmp_path / "whole"))


def test_partial_results_are_written_and_say_so(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        perform([experiment()], tmp_path, scale="smoke", time_limit=0.0)
    found = document(tmp_path)
    assert found["complete"] is False
    assert found["runs"] == [0, 2]
    assert "0 of 2 runs finished" in tables.by_setting("lr")(found)


def test_existing_results_are_not_run_over(tmp_path: Path) -> None:
    perform([experiment()], tmp_path, scale="smoke")
    with pytest.raises(UsageError, match="--resume"):
        perform([experiment()], tmp_path, scale="smoke")


def test_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    perform([experiment()], tmp_path, scale="smoke")
    with pytest.raises(CheckpointError, match="other settings"):
        perform([experiment(rounds=4)], tmp_path, scale="smoke", resume=True)


def test_unknown_scale(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scale"):
        perform([experiment()], tmp_path, scale="huge")


def test_deadline_passes_everything_on() -> None:
    seen: list[str] = []

    class Watch:
        def cell_started(self, *args: Any) -> None:
            seen.append("start")

        def round_finished(self, *args: Any) -> None:
            seen.append("round")

        def cell_finished(self, *args: Any) -> None:
            seen.append("end")

    patient = Deadline(None, Watch())
    patient.cell_started("m", "a", 0, 1)
    patient.round_finished("m", "a", 1, None)
    patient.cell_finished("m", "a", 1.0)
    assert seen == ["start", "round", "end"]
    with pytest.raises(KeyboardInterrupt):
        Deadline(-1.0).round_finished("m", "a", 1, None)


def test_later_tables_win_and_inputs_stay() -> None:
    one: dict[str, Any] = {"rounds": 3, "data": {"clients": 10, "root_size": 40}}
    config = make_config(one, {"data": {"clients": 12}}, {"rounds": 5})
    assert isinstance(config, RunConfig)
    assert (config.rounds, config.data.clients, config.data.root_size) == (5, 12, 40)
    assert one == {"rounds": 3, "data": {"clients": 10, "root_size": 40}}


def row(seed: int, attack: str, fa: float, ma: float, **more: Any) -> dict[str, Any]:
    both = {"fa": fa, "ma": ma}
    base = {"asr": None, "share": 0.0, "share_settled": None, "backdoor": None, "clusters_used": 1}
    return {
        **base,
        "alpha": 0.1,
        "seed": seed,
        "method": "rfca",
        "attack": attack,
        "largest_cluster": 4,
        "own": both,
        "global": both,
        **more,
    }


def test_means_spreads_and_both_forms_of_air() -> None:
    rows = [row(1, "none", 80.0, 82.0), row(2, "none", 60.0, 60.0)]
    rows += [row(1, "sine", 70.0, 74.0, asr=50.0), row(2, "sine", 50.0, 58.0, asr=0.0)]
    found = summaries({"rows": rows}, ("alpha",))
    attacked = next(summary for summary in found if summary["attack"] == "sine")
    own = attacked["own"]
    assert own["fa"] == pytest.approx((60.0, 200.0**0.5))  # deviations +-10, divided by n - 1 = 1
    assert own["na"][0] == 70.0
    # Seed by seed: 80 - 72 = 8 and 60 - 54 = 6; printed 16 / 160 and 12 / 120.
    assert own["air_points"][0] == pytest.approx(7.0)
    assert own["air_printed"][0] == pytest.approx(100 * (0.1 + 0.1) / 2)
    assert attacked["asr"][0] == 25.0
    clean = next(summary for summary in found if summary["attack"] == "none")
    assert clean["own"]["air_points"] is None
    assert accuracy.mean_and_spread([3.0]) == (3.0, 0.0)
    assert accuracy.mean_and_spread([]) is None


def test_a_seed_without_its_clean_run_has_no_air() -> None:
    found = summaries({"rows": [row(1, "sine", 70.0, 74.0)]}, ("alpha",))
    assert found[0]["own"]["na"] is None
    assert found[0]["own"]["air_points"] is None


def test_commit_is_named_only_inside_a_checkout(tmp_path: Path) -> None:
    assert accuracy.git_commit(tmp_path) is None
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "a").write_text("1")
    subprocess.run([*git, "add", "a"], cwd=tmp_path, check=True)
    subprocess.run([*git, "commit", "-qm", "m"], cwd=tmp_path, check=True)
    clean = accuracy.git_commit(tmp_path)
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "a").write_text("2")
    assert accuracy.git_commit(tmp_path) == clean + "+"
