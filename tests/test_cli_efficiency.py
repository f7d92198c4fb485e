"""`bench secure-aggregation` and `reproduce` as commands: one JSON document, one line an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ebscfl.cli_bench import bench_app
from ebscfl.cli_reproduce import reproduce_command
from ebscfl.errors import ConfigError, UsageError
from ebscfl.reproduce.registry import ITEMS

RUNNER = CliRunner()
REPRODUCE = typer.Typer()
REPRODUCE.command()(reproduce_command)
BENCH = [
    "secure-aggregation",
    "--clients",
    "6",
    "--dim",
    "40",
    "--repeats",
    "1",
    "--protocol",
    "plain",
    "--protocol",
    "secagg",
]


def test_bench_json_is_one_document() -> None:
    result = RUNNER.invoke(bench_app, [*BENCH, "--dropouts", "0", "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert [row["protocol"] for row in document["rows"]] == ["plain", "secagg"]


def test_bench_table_shows_every_row() -> None:
    result = RUNNER.invoke(bench_app, BENCH, catch_exceptions=False)
    assert result.stdout.count("secagg") == result.stdout.count("plain") == 2


def test_reproduce_lists_everything_and_says_what_is_missing() -> None:
    listed = RUNNER.invoke(REPRODUCE, ["--list"], catch_exceptions=False).stdout
    assert len(listed.splitlines()) == len(ITEMS)
    assert "table-noniid" in listed
    assert "nothing is measured" in listed
    rows = json.loads(RUNNER.invoke(REPRODUCE, ["--list", "--json"], catch_exceptions=False).stdout)["items"]
    assert [row["name"] for row in rows] == [item.name for item in ITEMS]


def test_reproduce_makes_files(tmp_path: Path) -> None:
    arguments = ["table-features", "--out", str(tmp_path), "--json"]
    made = json.loads(RUNNER.invoke(REPRODUCE, arguments, catch_exceptions=False).stdout)
    assert all(Path(path).exists() for path in made["files"])


def test_reproduce_refuses() -> None:
    with pytest.raises(UsageError, match="--list"):
        RUNNER.invoke(REPRODUCE, [], catch_exceptions=False)
    with pytest.raises(ConfigError, match="the paper has no"):
        RUNNER.invoke(REPRODUCE, ["table-9"], catch_exceptions=False)
