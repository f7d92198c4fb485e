from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ebscfl import cli, errors
from ebscfl.config import load_preset
from ebscfl.errors import EbscflError
from ebscfl.sim import runner
from ebscfl.sim.journal import read_lines

TINY = [
    "smoke", "--set", "rounds=2", "--set", "data.samples=200", "--set", "methods=rfca", "--set", "local.steps=1",
]  # fmt: skip
DOCS = Path(__file__).parent.parent / "docs"


def test_json_is_the_whole_of_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *TINY, "--out", str(tmp_path / "r"), "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert list(document) == ["run_id", "preset", "seconds", "results"]
    assert document["preset"] == "smoke"
    assert [(row["method"], row["attack"]) for row in document["results"]] == [("rfca", "none"), ("rfca", "label-flip")]
    keys = ["method", "attack", "fa", "ma", "na", "asr", "air_printed", "air_points", "attacker_weight_share"]
    assert all(list(row) == keys for row in document["results"])
    assert str(tmp_path / "r") in captured.err


def test_table_shows_every_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *TINY, "--out", str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    for word in ("FA", "MA", "NA", "ASR", "AIR", "label flip", "no attack", "RFCA"):
        assert word in out
    assert (tmp_path / "r" / "config.toml").is_file()


def test_a_run_whose_models_stand_still_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["run", "smoke", "--set", "rounds=2", "--set", "methods=rfca", "--set", "protocol=direct"]
    assert cli.main([*small, "--set", "local.lr=1e30", "--set", "attacks=[]", "--out", str(tmp_path / "far")]) == 0
    said = capsys.readouterr().err
    assert "warning: rfca x none took no step in 2 rounds: no root update for models [0, 1]" in said
    assert cli.main([*small, "--set", "attacks=[]", "--out", str(tmp_path / "near")]) == 0
    assert "warning" not in capsys.readouterr().err


def test_resume_of_a_finished_run_prints_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *TINY, "--out", str(tmp_path / "r"), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert cli.main(["run", "--resume", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == first["results"]


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["presets"]) == 0
    out = capsys.readouterr().out
    assert "default" in out
    assert "smoke" in out


def test_data_list_names_the_embedded_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list"]) == 0
    assert "mnist-mini" in capsys.readouterr().out


def test_data_list_says_what_to_do_about_a_missing_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("EBSCFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["data", "list"]) == 0
    assert "ebs-cfl data fetch cifar10" in capsys.readouterr().out


@pytest.mark.parametrize(("content", "word"), [(None, "ebs-cfl data fetch mnist"), (b"not a data set", "is corrupt")])
def test_data_verify_of_an_unusable_set_is_a_data_error(
    content: bytes | None,
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("EBSCFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if content is not None:
        (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    assert cli.main(["data", "verify", "mnist", "--data-dir", str(tmp_path)]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert word in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_data_verify_of_the_embedded_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "verify", "mnist-mini"]) == 0
    assert "mnist-mini" in capsys.readouterr().out


def test_help_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--help"]) == 0
    assert "--resume" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "defualt"], 3, "unknown preset 'defualt'; did you mean 'default'?"),
        (["run", "smoke", "--set", "ronds=2"], 3, "ronds: unknown key; did you mean 'rounds'?"),
        (["run", "smoke", "--set", "rounds"], 3, "write key=value"),
        (["run", "smoke", "--set", "rounds=0"], 3, "rounds must be at least 1"),
        (["run", "smoke", "--set", "methods=krum"], 3, "krum needs 2 * faulty + 2 < clients"),
        (["run", "smoke", "--set", "data.dataset=mnost"], 3, "data.dataset: unknown data set 'mnost'"),
        (["run", "smoke", "--set", "attacks=sine", "--set", "attack.sine.knowledge=IN"], 3, "attack.sine: knowledge"),
        (["run", "smoke", "--set", "attack.label-flip.variant=none"], 3, "attack.label-flip: variant must be one of"),
        (["run", "nowhere.toml"], 3, "cannot read the config file"),
        (["run", "smoke", "--resume", "x"], 2, "--resume takes everything"),
        (["run", "--resume", "nowhere"], 2, "holds no run to resume"),
        (["run", "--wrong"], 2, "No such option"),
        (["run", "smoke", "more"], 2, "unexpected extra argument"),
        (["walk"], 2, "No such command"),
        (["report", "nowhere"], 2, "nowhere"),
        (["data", "verify", "mnost"], 2, "unknown data set"),
    ],
)
def test_errors_are_one_line_and_their_class_decides_the_code(
    arguments: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("ebs-cfl: ")
    assert message in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_missing_data_names_the_command_that_fixes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EBSCFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "smoke", "--set", "data.dataset=cifar10"]) == 4
    assert "ebs-cfl data fetch cifar10" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def all_errors(kind: type[EbscflError] = EbscflError) -> list[type[EbscflError]]:
    return [kind, *(error for child in kind.__subclasses__() for error in all_errors(child))]


@pytest.mark.parametrize("kind", [error for error in all_errors() if error.__module__ == errors.__name__])
def test_every_error_class_ends_with_its_code(
    kind: type[EbscflError], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("one clear line")

    monkeypatch.setattr(runner, "run", fail)
    assert cli.main(["run", "smoke"]) == kind.exit_code
    assert capsys.readouterr().err.splitlines()[-1] == "ebs-cfl: one clear line"


def test_every_error_class_has_a_row_in_the_documentation() -> None:
    page = (DOCS / "ref-exit-codes.md").read_text(encoding="utf-8")
    rows = {(name, int(code)) for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)}
    own = [error for error in all_errors() if error.__module__ == errors.__name__]
    assert rows == {(error.__name__, error.exit_code) for error in own}


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_resumes_to_the_same_metrics(tmp_path: Path) -> None:
    # 40 parameters: a round costs little more than its messages, so a busy machine gets through too.
    sets = ("rounds=60", "eval_every=20", "methods=rfca", "attacks=[]", "data.samples=300", "model.name=quadrants")
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    arguments = ["smoke", *(word for assignment in sets for word in ("--set", assignment)), "--out", str(stopped)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ebscfl.cli", "run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},  # sums depend on the number of threads
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and len(read_lines(stopped / "metrics.jsonl")) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.strip().splitlines()[-1] == f"ebs-cfl: stopped; resume with: ebs-cfl run --resume {stopped}"
    assert len(read_lines(stopped / "metrics.jsonl")) < 62
    runner.resume(stopped)
    runner.run(load_preset("smoke", sets), out=whole)
    timeless = [
        [{**line, "seconds": None, "role_seconds": None} for line in read_lines(run / "metrics.jsonl")]
        for run in (stopped, whole)
    ]
    assert timeless[0] == timeless[1]
