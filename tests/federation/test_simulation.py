"""Flower's own runtime plays the same app: equal numbers to the built-in simulator, and nothing left running."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ebscfl.errors import ConfigError
from ebscfl.federation.site import Site, SiteSettings

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "bench" / "federation_simulators.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "how-to-deploy.md").read_text(encoding="utf-8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
SIMULATE = [sys.executable, "-m", "ebscfl.cli", "federation", "simulate", "smoke", "--nodes", "4"]


def built_in(preset: str, protocol: str, nodes: int, steps: int, out: Path) -> list[float]:
    """Accuracies of the simulator of `ebs-cfl run`, from a process like those of the federation."""
    sets = [f"rounds={steps}", f"protocol={protocol}", f"data.clients={nodes}", 'methods=["rfca"]', "attacks=[]"]
    command = [sys.executable, "-m", "ebscfl.cli", "run", preset, "--out", str(out), "--json"]
    words = [word for one in [*sets, "eval_every=1"] for word in ("--set", one)]
    subprocess.run([*command, *words], env=ENVIRONMENT, check=True, timeout=120)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["accuracy_own"] for line in lines if line["kind"] == "round" and line["round"] > 0]


def command_of_the_page(home: Path) -> list[str]:
    """The deployment page's simulation, with its own configuration."""
    (config,) = re.findall(r"^```toml config.toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (home / "config.toml").write_text(config)
    (line,) = re.findall(r"^ebs-cfl (federation simulate .*)$", PAGE, re.MULTILINE)
    return [sys.executable, "-m", "ebscfl.cli", *shlex.split(line)]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["plain", "sealed"])
def test_both_simulators_give_the_same(protocol: str, tmp_path: Path):
    pytest.importorskip("ray", reason="needs the extra 'federation' (Flower with Ray)")
    if protocol == "plain":
        nodes, steps, command = 4, 2, [*SIMULATE, "--protocol", "plain", "--steps", "2", "--json"]
    else:
        nodes, steps, command = 2, 2, command_of_the_page(tmp_path)
    words = [*command, "--out", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, check=True, timeout=200)
    document = json.loads(done.stdout)
    preset = "smoke" if protocol == "plain" else str(tmp_path / "config.toml")
    want = built_in(preset, protocol, nodes, steps, tmp_path / "run")
    assert len(want) == steps
    if protocol == "plain":
        assert document["accuracy"] == want  # same batches, same sums in the order of arrival: same numbers
    else:  # the coins of stochastic rounding are the clients' secrets: models differ in the fifth digit
        assert document["accuracy"] == pytest.approx(want, abs=0.2)
        assert document["released_twice"] == 0
    assert document["updates_lost"] == 0
    assert document["results"][0]["fa"] == document["results"][0]["na"] == document["accuracy"][-1]
    log = (tmp_path / "site" / "logs" / "kdc.log").read_text()
    assert "serving on port" in log  # a real key centre, over mutual TLS
    enrolled = sorted(path.parent.name for path in (tmp_path / "site" / "clients").glob("*/enrolment.bin"))
    assert enrolled == ([str(i) for i in range(nodes)] if protocol == "sealed" else [])


@pytest.mark.slow
@pytest.mark.parametrize(("command", "sign"), [("simulate", "server/metrics.jsonl"), ("demo", "logs/client-2.log")])
def test_ctrl_c_stops_everything(command: str, sign: str, tmp_path: Path):
    pytest.importorskip("ray", reason="needs the extra 'federation' (Flower with Ray)")
    site, words = tmp_path / "site", [command if word == "simulate" else word for word in SIMULATE]
    with subprocess.Popen([*words, "--steps", "200", "--out", str(site)], env=ENVIRONMENT, stderr=subprocess.PIPE,
                          text=True, start_new_session=True) as process:  # fmt: skip
        until(lambda: (site / sign).exists(), 120)
        assert len(mentions(site)) >= 3
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "every process that was started is gone" in said
    assert "Traceback" not in said
    until(lambda: not mentions(site), 20)


def mentions(home: Path) -> list[str]:
    """Processes that were started for this site: it is in their command line or environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(home).encode() in text and int(entry.name) != os.getpid():
            found.append(text.decode(errors="replace")[:100])
    return found


def until(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.2)


def test_mistakes_are_found_before_anything_starts(tmp_path: Path):
    for wrong in ({"nodes": 1}, {"steps": 0}, {"protocol": "direct"}, {"attack": "krum"}, {"attack": "x"}):
        with pytest.raises(ConfigError):
            SiteSettings(**wrong)
    pytest.importorskip("flwr", reason="needs the extra 'federation' (Flower)")
    (tmp_path / "kdc").mkdir()
    with pytest.raises(ConfigError, match="another directory"):
        Site(tmp_path, SiteSettings(preset="smoke"))


def test_the_page_names_the_measured_ratio():
    plain, sealed = RECORD["runs"]
    assert (plain["protocol"], sealed["protocol"]) == ("plain", "sealed")
    for run_ in RECORD["runs"]:
        assert run_["ratio"] == pytest.approx(run_["flower"]["seconds"] / run_["built_in"]["seconds"], abs=0.006)
        assert len(run_["flower"]["accuracy"]) == RECORD["steps"]
    assert plain["largest_difference_of_accuracy"] == 0
    told = " ".join(PAGE.split())
    (sentence,) = re.findall(r"takes ([\d.]+) times as long as `ebs-cfl run` \(([\d.]+) under `plain`\)", told)
    assert sentence == (f"{sealed['ratio']:.1f}", f"{plain['ratio']:.1f}")
