from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import config, make_rows, use_rows

from ebscfl.config import RunConfig
from ebscfl.errors import CheckpointError, ConfigError, DataError, Interrupted, UsageError
from ebscfl.learning.partition import Part, Partition
from ebscfl.sim import cell as cell_module
from ebscfl.sim.checkpoint import checkpoint_path
from ebscfl.sim.journal import Line, read_lines
from ebscfl.sim.runner import resume, run


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    use_rows(monkeypatch)


def timeless(run_dir: Path) -> list[Line]:
    """The metrics of a run without the times."""
    return [{**line, "seconds": None, "role_seconds": None} for line in read_lines(run_dir / "metrics.jsonl")]


class StopAfter:
    """Ctrl-C after so many rounds of the whole run."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def cell_started(self, method: str, attack: str, first_round: int, rounds: int) -> None:
        pass

    def round_finished(self, method: str, attack: str, round_id: int, accuracy: float | None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def cell_finished(self, method: str, attack: str, accuracy: float) -> None:
        pass


def test_run_writes_what_the_contract_lists(tmp_path: Path) -> None:
    result = run(config(), preset="tiny", out=tmp_path / "r", sets=("rounds=4",))
    names = {str(path.relative_to(tmp_path / "r")) for path in (tmp_path / "r").rglob("*") if path.is_file()}
    assert names == {"config.toml", "run.json", "metrics.jsonl", "results.json"} | {
        f"checkpoints/{method}--{attack}.npz" for method in ("fedavg", "rfca") for attack in ("none", "label-flip")
    }
    document = json.loads((tmp_path / "r" / "results.json").read_text(encoding="utf-8"))
    assert document == result.document
    assert list(document) == ["run_id", "preset", "seconds", "results"]
    assert document["run_id"] == "r"
    info = json.loads((tmp_path / "r" / "run.json").read_text(encoding="utf-8"))
    assert info["status"] == "complete"
    assert info["reproduce"] == "ebs-cfl run tiny --set rounds=4"


def test_round_lines_carry_everything_and_weights_are_shares(tmp_path: Path) -> None:
    run(config(), out=tmp_path / "r")
    lines = read_lines(tmp_path / "r" / "metrics.jsonl")
    rounds = [line for line in lines if line["kind"] == "round"]
    assert [line["round"] for line in rounds[:5]] == [0, 1, 2, 3, 4]
    for line in rounds:
        assert ("attackers" in line) == ("client_domain" in line) == (line["round"] == 0)
        assert len(line["clusters"]) == len(line["weights"]) == 6
        assert sum(line["weights"]) == pytest.approx(0.0 if line["round"] == 0 else 1.0)
        assert line["seconds"].keys() == {"train", "cluster", "attack", "aggregate", "evaluate"}
        assert len(line["accuracy_clusters"]) == (2 if line["method"] == "rfca" else 1)
        assert (line["scores"] is None) == (line["method"] == "fedavg" or line["round"] == 0)
    ends = [line for line in lines if line["kind"] == "cell"]
    first = {(line["method"], line["attack"]): line for line in rounds if line["round"] == 0}
    for line in ends:
        early = first[line["method"], line["attack"]]
        assert (early["attackers"], early["client_domain"]) == (line["attackers"], line["client_domain"])
        assert np.array(line["confusion"]).sum() == (6 - len(line["attackers"])) * 80
        curve = [r["accuracy_own"] for r in rounds if (r["method"], r["attack"]) == (line["method"], line["attack"])][
            1:
        ]
        assert (line["fa"], line["ma"]) == (curve[-1], max(curve))


def test_fedavg_accepts_every_attacker_and_rfca_holds(tmp_path: Path) -> None:
    result = run(config("rounds=6"), out=tmp_path / "r")
    assert result.row("fedavg", "label-flip")["asr"] == 100.0
    assert result.row("fedavg", "label-flip")["attacker_weight_share"] == pytest.approx(100 * 2 / 6, abs=5)
    assert result.row("rfca", "label-flip")["asr"] == 0.0
    assert result.row("rfca", "label-flip")["fa"] > result.row("fedavg", "label-flip")["fa"]
    assert result.row("rfca")["asr"] is None
    with pytest.raises(UsageError, match="no cell"):
        result.row("rfca", "sine")


def test_same_seed_same_metrics_and_another_seed_others(tmp_path: Path) -> None:
    run(config(), out=tmp_path / "a")
    run(config(), out=tmp_path / "b")
    run(config("seed=2"), out=tmp_path / "c")
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")
    assert timeless(tmp_path / "a") != timeless(tmp_path / "c")


def test_memory_budget_does_not_change_results(tmp_path: Path) -> None:
    changes = ["model.name=mlp"]
    run(config(*changes), out=tmp_path / "a")
    run(config(*changes, "local.memory_mb=1"), out=tmp_path / "b")
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")


@pytest.mark.parametrize("stop", [1, 3, 4, 7, 13])
def test_resumed_metrics_are_those_of_an_unbroken_run(tmp_path: Path, stop: int) -> None:
    run(config(), out=tmp_path / "whole")
    with pytest.raises(Interrupted, match=r"ebs-cfl run --resume .*broken"):
        run(config(), out=tmp_path / "broken", progress=StopAfter(stop))
    assert json.loads((tmp_path / "broken" / "run.json").read_text(encoding="utf-8"))["status"] == "interrupted"
    resume(tmp_path / "broken")
    assert timeless(tmp_path / "broken") == timeless(tmp_path / "whole")


def test_resume_after_a_crash_uses_the_last_periodic_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(config(), out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config(), out=tmp_path / "broken", progress=StopAfter(4 + 3))
    # As a power cut in round 4 would leave it: the checkpoint of round 2, later lines, and half a line.
    source = checkpoint_path(tmp_path / "broken", "fedavg", "label-flip")
    with pytest.raises(Interrupted):
        run(config(), out=tmp_path / "early", progress=StopAfter(4 + 2))
    source.write_bytes(checkpoint_path(tmp_path / "early", "fedavg", "label-flip").read_bytes())
    with open(tmp_path / "broken" / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "round", "meth')
    resume(tmp_path / "broken")
    assert timeless(tmp_path / "broken") == timeless(tmp_path / "whole")


def test_a_lost_checkpoint_starts_only_its_cell_anew(tmp_path: Path) -> None:
    run(config(), out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config(), out=tmp_path / "broken", progress=StopAfter(6))
    checkpoint_path(tmp_path / "broken", "fedavg", "label-flip").unlink()
    resume(tmp_path / "broken")
    assert timeless(tmp_path / "broken") == timeless(tmp_path / "whole")


def test_resuming_a_finished_run_repeats_its_results(tmp_path: Path) -> None:
    first = run(config(), out=tmp_path / "r")
    before = timeless(tmp_path / "r")
    assert resume(tmp_path / "r").rows == first.rows
    assert timeless(tmp_path / "r") == before


def interrupted(tmp_path: Path) -> Path:
    with pytest.raises(Interrupted):
        run(config(), out=tmp_path / "r", progress=StopAfter(2))
    return tmp_path / "r"


def test_resume_refuses_a_corrupt_checkpoint(tmp_path: Path) -> None:
    run_dir = interrupted(tmp_path)
    checkpoint_path(run_dir, "fedavg", "none").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="corrupt"):
        resume(run_dir)


def test_resume_refuses_a_foreign_checkpoint(tmp_path: Path) -> None:
    run_dir = interrupted(tmp_path)
    run(config("seed=9"), out=tmp_path / "other")
    foreign = checkpoint_path(tmp_path / "other", "fedavg", "none").read_bytes()
    checkpoint_path(run_dir, "fedavg", "none").write_bytes(foreign)
    with pytest.raises(CheckpointError, match="another run"):
        resume(run_dir)


def test_resume_refuses_a_changed_configuration(tmp_path: Path) -> None:
    run_dir = interrupted(tmp_path)
    path = run_dir / "config.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("rounds = 4", "rounds = 5"), encoding="utf-8")
    with pytest.raises(CheckpointError, match="was changed"):
        resume(run_dir)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"run_id": "x"}'])
def test_resume_refuses_a_damaged_run_file(tmp_path: Path, content: str) -> None:
    run_dir = interrupted(tmp_path)
    (run_dir / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match="damaged"):
        resume(run_dir)


def test_resume_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        resume(tmp_path)


def test_a_directory_in_use_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="not empty"):
        run(config(), out=tmp_path)


def test_errors_before_the_first_round_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, data_dir: Path | None) -> Any:
        raise DataError("gone")

    monkeypatch.setattr(cell_module, "load_dataset", missing)
    with pytest.raises(DataError):
        run(config(), out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_client_without_data_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cell_module.make_partition(make_rows(), config().data, b"\0" * 32)
    empty = Part(whole.clients[3].indices[:0], 0)
    holed = Partition((*whole.clients[:3], empty, *whole.clients[4:]), whole.root, whole.domains)
    monkeypatch.setattr(cell_module, "make_partition", lambda *_: holed)
    with pytest.raises(ConfigError, match=r"clients \[3\] hold no data"):
        run(config(), out=tmp_path / "r")


def test_cuda_on_a_machine_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        run(config("device=cuda"), out=tmp_path / "r")
    assert cell_module.choose_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            ("model.name=mlp", "local.lr=1e38", "server.root_lr=0.5"),
            "dropped clients [0, 1, 2, 3, 4, 5]: update holds NaN",
        ),
        (("local.lr=1e30",), "no root update for models [0, 1]"),
    ],
)
def test_a_diverging_run_goes_on_and_says_who_diverged(tmp_path: Path, sets: tuple[str, ...], said: str) -> None:
    run(config(*sets, "attacks=[]"), out=tmp_path / "r")
    lines = read_lines(tmp_path / "r" / "metrics.jsonl")
    rounds = [line for line in lines if line["kind"] == "round" and line["method"] == "rfca" and line["round"] > 0]
    assert len(rounds) == 4
    for line in rounds:
        assert any(event.startswith(said) for event in line["events"]), line["events"]


def test_evaluation_decides_what_fa_measures(tmp_path: Path) -> None:
    own = run(config("attacks=[]"), out=tmp_path / "own")
    union = run(config("attacks=[]", "evaluation=global"), out=tmp_path / "global")
    last = [line for line in read_lines(tmp_path / "own" / "metrics.jsonl") if line["kind"] == "round"][-1]
    assert own.row("rfca")["fa"] == last["accuracy_own"]
    assert union.row("rfca")["fa"] == last["accuracy_global"]
    assert last["accuracy_own"] > last["accuracy_global"]  # each cluster model knows its own rotation


def test_rounds_between_evaluations_have_none(tmp_path: Path) -> None:
    run(config("eval_every=3", "attacks=[]", "methods=fedavg"), out=tmp_path / "r")
    lines = [line for line in read_lines(tmp_path / "r" / "metrics.jsonl") if line["kind"] == "round"]
    assert [line["accuracy_own"] is not None for line in lines] == [True, False, False, True, True]


@pytest.mark.parametrize(
    "sets",
    [
        ('methods=["median", "trimmed-mean", "krum", "multi-krum"]', "attacks=krum-attack", "data.clients=9"),
        ('methods=["fltrust", "ifca"]', 'attacks=["sine", "trim-attack", "alie"]'),
        ("methods=rfca", 'attacks=["min-max", "gaussian", "sign-flip"]', "server.root_updates=fixed"),
    ],
)
def test_other_methods_and_attacks_play(tmp_path: Path, sets: tuple[str, ...]) -> None:
    result = run(config("rounds=2", *sets), out=tmp_path / "r")
    assert all(0 <= row["fa"] <= 100 for row in result.rows)


def test_the_learning_path_needs_only_torch_numpy_and_pillow() -> None:
    code = (
        "import sys\n"
        "for name in ('numba', 'cryptography', 'typer', 'rich', 'jinja2', 'matplotlib', 'scipy', 'dp_accounting'):\n"
        "    sys.modules[name] = None\n"
        "import ebscfl.sim.runner\n"
        "from ebscfl import load_preset\n"
        "load_preset('default')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_config_type_is_public() -> None:
    import ebscfl

    assert ebscfl.RunConfig is RunConfig
    assert all(hasattr(ebscfl, name) for name in ebscfl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ebscfl.nothing
