"""A federation's files on one machine: a directory a party, keys and certificates, the Flower app; and its key centre.

`Demo` and the kill matrix start SuperNodes on it, `Simulation` lets Flower's own simulation runtime play the clients.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebscfl.attacks import ATTACKS
from ebscfl.config import NO_ATTACK, RunConfig, load_preset
from ebscfl.errors import ConfigError, DependencyError
from ebscfl.federation.processes import Children, flower_command, free_ports, listens
from ebscfl.federation.superlink import CONNECTION, flower_environment
from ebscfl.federation.training import setup_of
from ebscfl.ids import SERVER, client_address
from ebscfl.kdc_service.deployment import RunFile, fresh_run_id, hand_out, init_kdc, write_durably
from ebscfl.sim.journal import read_lines


@dataclass(frozen=True)
class SiteSettings:
    """What is trained, by how many, for how long."""

    preset: str = "default"
    nodes: int = 4
    steps: int = 3
    protocol: str = "sealed"
    attack: str = "none"
    first_s: float = 75.0
    last_s: float = 240.0
    timeout_s: float = 900.0
    sets: tuple[str, ...] = ()
    workers: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 2 or self.steps < 1:
            raise ConfigError(f"a federation needs at least 2 nodes and 1 step, not {self.nodes} and {self.steps}")
        if self.protocol == "direct":
            raise ConfigError("protocol = direct has no roles to put on a network: take sealed, paper or plain")
        on_data = [name for name, spec in ATTACKS.items() if spec.poison is not None]
        if self.attack not in (NO_ATTACK, *on_data):
            raise ConfigError(
                f"clients of a federation play attacks on data ({', '.join(on_data)}), not {self.attack!r}"
            )

    def config(self) -> RunConfig:
        """The preset with as many clients as there are nodes, trained by RFCA (or RFCA-H) alone."""
        sets = (f"data.clients={self.nodes}", f"rounds={self.steps}", f"protocol={self.protocol}", *self.sets)
        return load_preset(self.preset, sets)


class Site:
    """The federation's files below ``home``, made when this is made."""

    def __init__(self, home: Path, settings: SiteSettings) -> None:
        try:
            from ebscfl.flower import app_files, guard
        except ModuleNotFoundError as error:  # pragma: no cover - the extra is there where the suite runs
            raise DependencyError("this needs Flower: pip install 'ebscfl[federation]'") from error
        flower_command("flower-superlink")  # raises where Flower is not installed
        self.home, self.settings = home.resolve(), settings
        if (self.home / "kdc").exists():
            raise ConfigError(f"{self.home} holds a federation already: name another directory")
        self.kdc, self.server = self.home / "kdc", self.home / "server"
        self.kdc_port, self.link_port = free_ports(2)
        self.link = f"127.0.0.1:{self.link_port}"
        self.environment = flower_environment(self.home / "flower")
        self.app = app_files.write_app(self.home / "app")
        self.guard = guard
        self._lay_out()

    def client(self, number: int) -> Path:
        """A client's directory."""
        return self.home / "clients" / str(number)

    def _lay_out(self) -> None:
        config = self.settings.config()
        setup = setup_of(config, fresh_run_id())
        init_kdc(self.kdc, RunFile(setup, port=self.kdc_port))
        hand_out(self.kdc, SERVER, self.server, hosts=("127.0.0.1",))
        for i in range(self.settings.nodes):
            hand_out(self.kdc, client_address(i), self.client(i))
        for directory in (self.server, *(self.client(i) for i in range(self.settings.nodes))):
            write_durably(directory / "config.toml", config.to_toml().encode())
            write_durably(directory / "training.json", json.dumps({"attack": self.settings.attack}).encode())

    # --- processes --------------------------------------------------------------------------------------------------

    def start_kdc(self, children: Children) -> None:
        """The key centre; returns when it answers."""
        command = [sys.executable, "-m", "ebscfl.cli", "kdc", "serve", str(self.kdc), "--metrics-port", "0"]
        children.start("kdc", [*command, "--workers", str(self.settings.workers)])
        children.wait_for(lambda: listens(self.kdc_port), "the key centre's start", timeout_s=60)

    def submit(self, children: Children, *options: str) -> str:
        """``flwr run``; returns Flower's number of the run."""
        s = self.settings
        config = (
            f'directory="{self.server}" steps={s.steps} first-s={s.first_s} last-s={s.last_s} gather-s={s.timeout_s} '
            f"workers={s.workers}"
        )
        command = [
            flower_command("flwr"), "run", str(self.app), CONNECTION, "--run-config", config, "--format", "json",
            *options,
        ]  # fmt: skip
        said = children.run("flwr-run", command)
        return str(json.loads(said[said.index("{") :])["run-id"])

    def state_of(self, children: Children, run: str) -> str:
        """What Flower says of a run: "running", "finished:completed", "finished:failed", ..."""
        said = children.run("flwr-ls", [flower_command("flwr"), "ls", CONNECTION, "--run-id", run, "--format", "json"])
        return str(json.loads(said[said.index("{") :])["runs"][0]["status"])

    def unfinished(self, children: Children) -> list[str]:
        """Runs that Flower has not ended, the newest first."""
        said = children.run("flwr-ls", [flower_command("flwr"), "ls", CONNECTION, "--format", "json"])
        runs: list[dict[str, Any]] = json.loads(said[said.index("{") :])["runs"]
        alive = [run for run in runs if not str(run["status"]).startswith("finished")]
        return [str(run["run-id"]) for run in sorted(alive, key=lambda run: str(run["pending-at"]), reverse=True)]

    # --- what happened ----------------------------------------------------------------------------------------------

    def lines(self) -> list[dict[str, Any]]:
        """The steps done so far."""
        path = self.server / "metrics.jsonl"
        return [line for line in read_lines(path) if line["kind"] == "round"] if path.exists() else []

    def results(self) -> list[dict[str, Any]]:
        """Rows of the finished run."""
        rows: list[dict[str, Any]] = json.loads((self.server / "results.json").read_text())["results"]
        return rows

    def released(self) -> list[int] | None:
        """Rounds the key centre has released (it has stopped); None where the protocol has no release."""
        path = self.kdc / "kdc.sqlite"
        if not path.exists():
            return None
        with contextlib.closing(sqlite3.connect(path)) as db:
            rows = db.execute("SELECT round FROM rounds WHERE released IS NOT NULL ORDER BY round").fetchall()
        return [int(row[0]) for row in rows]
