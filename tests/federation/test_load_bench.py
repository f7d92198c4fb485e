"""bench/federation.py measures what it says, and the deployment page quotes its committed results."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "bench"
PAGE = " ".join((ROOT / "docs" / "how-to-deploy.md").read_text(encoding="utf-8").split())


def bench(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", ROOT / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return document


@pytest.mark.parametrize(("name", "journal"), [("federation.json", False), ("federation-journal.json", True)])
def test_the_page_says_what_was_measured(name: str, journal: bool):
    document = stored(name)
    assert (document["clients"], document["dim"], document["clusters"]) == (1000, 200_000, 2)
    assert document["journal"] is journal
    assert document["included"] == 1000
    assert document["faults"] == 0
    assert bench("federation").paragraph(document) in PAGE


def test_the_page_says_what_workers_gave():
    module = bench("scaleout")
    document = stored("scaleout.json")
    assert all(row["same_bits"] for row in document["rows"])
    assert module.paragraph(document) in PAGE


def measured(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "bench" / "federation.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
@pytest.mark.parametrize("corrupt", [0, 2])
def test_a_small_load(corrupt: int):
    clients = 9
    document = measured("--clients", str(clients), "--dim", "300", "--clusters", "2", "--corrupt", str(corrupt))
    assert document["included"] == clients - corrupt
    assert document["faults"] == corrupt
    assert document["clients_per_s"] == pytest.approx(clients / document["server_seconds"])
    # c and t of 2 (300 + 1) words, two guard words and a blinding pair, 4 bytes each, and less than 64 bytes of frame
    words = 4 * (2 * 2 * 301 + 2 + 2)
    assert words < document["upload_bytes"] < words + 64
    answers = document["kdc_answer_seconds"]
    assert 0 < answers["p50"] <= answers["p99"] <= answers["max"]
    assert answers["answers"] == {"Commitment": 1, "OpenRound": 1, "ScoreRequest": 1, "ReleaseRequest": 1}
    assert document["kdc_peak_bytes"] > 20e6  # a Python process with numpy
    assert document["server_peak_bytes"] >= document["server_bytes_before_round"]


def test_every_kind_of_fault_is_counted():
    count = bench("federation").count_faults
    page = '# TYPE ebscfl_kdc_faults_total counter\nebscfl_kdc_faults_total{culprit="server"} 2\n'
    assert count(10, 10, 0, 0, "") == 0
    assert count(10, 9, 0, 0, "") == 1
    assert count(10, 9, 1, 0, "") == 1  # the one that is named is the one that is missing
    assert count(10, 10, 1, 3, page) == 1 + 3 + 2
