"""The operator's commands end to end: a federation made, a client's own request signed, served, enrolled, looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ebscfl.cli import main
from ebscfl.config import load_preset
from ebscfl.errors import ConfigError, UsageError
from ebscfl.ids import client_address
from ebscfl.kdc_service.deployment import party_of


def ebs(*arguments: object) -> int:
    return main([str(a) for a in arguments])


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    config = load_preset("smoke", ("data.clients=4", "data.groups=2", "attacks=[]", "protocol=sealed"))
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert ebs("kdc", "init", tmp_path / "kdc", "--config", tmp_path / "config.toml", "--port", 0) == 0
    return tmp_path, capsys.readouterr().out.strip()


def test_a_clients_key_never_leaves_it(made: tuple[Path, str], capsys: pytest.CaptureFixture[str]):
    home, run_id = made
    assert ebs("client", "init", home / "c2", "--run-id", run_id, "--client", 2) == 0
    key = (home / "c2" / "tls.key").read_bytes()
    request = home / "c2" / "request.csr"
    assert ebs("kdc", "enrol", home / "kdc", "--client", 2, "--request", request, "--out", home / "signed") == 0
    assert not (home / "signed" / "tls.key").exists()
    assert party_of(home / "signed") == client_address(2)
    assert (home / "c2" / "tls.key").read_bytes() == key
    assert ebs("kdc", "enrol", home / "kdc", "--client", 3, "--request", request, "--out", home / "stolen") == 6
    assert "client 3" in capsys.readouterr().err
    assert ebs("client", "init", home / "c2", "--run-id", run_id, "--client", 2) == UsageError.exit_code
    assert ebs("client", "init", home / "c9", "--run-id", "xyz", "--client", 2) == UsageError.exit_code
    assert ebs("client", "node-key", home / "c2") == 0
    assert (home / "c2" / "node.pub").read_text().startswith("ecdsa-sha2-nistp384 ")


def test_mistakes_are_one_line(made: tuple[Path, str], capsys: pytest.CaptureFixture[str]):
    home, _ = made
    config = home / "config.toml"
    assert ebs("kdc", "init", home / "kdc", "--config", config) == UsageError.exit_code  # never overwritten
    assert ebs("kdc", "enrol", home / "kdc", "--out", home / "x") == UsageError.exit_code
    assert ebs("kdc", "enrol", home / "kdc", "--client", 4, "--out", home / "x") == UsageError.exit_code
    assert ebs("kdc", "status", home / "nothing") == ConfigError.exit_code
    assert len(capsys.readouterr().err.strip().splitlines()) == 4


@pytest.mark.slow
def test_serve_enrol_status_and_health(made: tuple[Path, str], capsys: pytest.CaptureFixture[str]):
    home, _ = made
    command = [sys.executable, "-m", "ebscfl.cli", "kdc", "serve", str(home / "kdc"), "--metrics-port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().replace(",", "").split()
            port, pages = int(words[3]), words[-1]
            run = json.loads((home / "kdc" / "run.json").read_text())
            (home / "kdc" / "run.json").write_text(json.dumps({**run, "port": port}))
            assert ebs("kdc", "enrol", home / "kdc", "--client", 1, "--out", home / "c1") == 0
            assert ebs("client", "enrol", home / "c1") == 0
            capsys.readouterr()
            assert ebs("kdc", "status", home / "kdc", "--json") == 0
            state = json.loads(capsys.readouterr().out)
            assert (state["enrolled"], state["newest_round"], state["halted"]) == ([1], -1, None)
            with urllib.request.urlopen(f"http://{pages}/metrics", timeout=5) as answer:
                assert "ebscfl_kdc_enrolled 1\n" in answer.read().decode()
            with urllib.request.urlopen(f"http://{pages}/health", timeout=5) as answer:
                assert answer.read() == b"ok\n"
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_lost_database_is_not_made_anew(made: tuple[Path, str], capsys: pytest.CaptureFixture[str]):
    home, _ = made
    (home / "kdc" / "kdc.sqlite").unlink()  # as a restored backup without it: used keys would be answered again
    assert ebs("kdc", "serve", home / "kdc") == ConfigError.exit_code
    assert "kdc.sqlite is gone" in capsys.readouterr().err
    assert not (home / "kdc" / "kdc.sqlite").exists()
