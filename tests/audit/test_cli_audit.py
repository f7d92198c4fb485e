"""The command: JSON alone on stdout, files where asked, exit code 1 when a private protocol leaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ebscfl.audit import run as audit_run
from ebscfl.audit.record import Finding
from ebscfl.cli_audit import audit_command

SMALL = ["--clients", "5", "--dim", "600", "--rounds", "3", "--seed", "4"]

app = typer.Typer()
app.command("audit")(audit_command)


def test_json_is_the_whole_output() -> None:
    done = CliRunner().invoke(app, ["--protocol", "paper", *SMALL, "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    spectral = [attack for attack in document["attacks"] if attack["name"] == "spectral"]
    assert all(attack["updates_recovered"] == attack["of"] for attack in spectral)
    assert document["alarms"] == []


def test_table_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The galleries have their own tests; here two small ones stand in for the full-size page.
    from ebscfl.audit import pictures

    dense = pictures.dense_gallery
    monkeypatch.setattr(pictures, "dense_gallery", lambda seed: dense(seed, clients=4, protocols=("plain", "sealed")))
    monkeypatch.setattr(pictures, "convolutional_gallery", lambda seed, data_dir: [])
    done = CliRunner().invoke(app, ["--protocol", "plain", *SMALL, "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert "read" in done.stdout
    assert "<h1>What the server can learn</h1>" in (tmp_path / "a" / "audit.html").read_text()
    assert json.loads((tmp_path / "a" / "audit.json").read_text())["settings"]["clients"] == 5


def test_a_leak_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    leak = Finding("uploads", "sealed", 5, 5, 5, 1.0, 0.5, 0.0)
    monkeypatch.setattr(audit_run, "audit_sealed", lambda settings: [leak])
    done = CliRunner().invoke(app, ["--protocol", "sealed", *SMALL])
    assert done.exit_code == 1
    assert "alarm" in done.stdout
