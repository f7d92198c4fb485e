"""A federation on one machine as real processes, with faults on the way: what ``ebs-cfl federation demo`` runs.

Key centre, SuperLink, server app and N SuperNodes talk over TLS; SuperNodes are known by their keys and run only the
demo's own app. After the first step one client is killed with signal 9 and started again, and so is the key centre.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebscfl.config import RunConfig, load_preset
from ebscfl.errors import ConfigError, DependencyError
from ebscfl.federation.processes import Children, flower_command, free_ports, listens
from ebscfl.federation.superlink import (
    CONNECTION,
    flower_environment,
    make_node_key,
    superlink_command,
    supernode_command,
    write_connection,
)
from ebscfl.federation.training import setup_of
from ebscfl.ids import SERVER, client_address
from ebscfl.kdc_service.deployment import RunFile, fresh_run_id, hand_out, init_kdc, write_durably
from ebscfl.sim.journal import read_lines

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoSettings:
    """What the demo plays."""

    preset: str = "default"
    nodes: int = 4
    steps: int = 3
    protocol: str = "sealed"
    attack: str = "none"
    faults: bool = True
    first_s: float = 75.0
    last_s: float = 240.0
    timeout_s: float = 900.0
    sets: tuple[str, ...] = ()
    workers: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 2 or self.steps < 1:
            raise ConfigError(f"the demo needs at least 2 nodes and 1 step, not {self.nodes} and {self.steps}")
        if self.faults and self.steps < 2:
            raise ConfigError("faults come after the first step: take at least 2 steps, or no faults")

    def config(self) -> RunConfig:
        """The preset with as many clients as there are nodes."""
        sets = (f"data.clients={self.nodes}", f"rounds={self.steps}", f"protocol={self.protocol}", *self.sets)
        return load_preset(self.preset, sets)


class Demo:
    """The federation's files below ``home`` and its processes."""

    def __init__(self, home: Path, settings: DemoSettings, say: Say) -> None:
        try:
            from ebscfl.flower import app_files, guard
        except ModuleNotFoundError as error:
            raise DependencyError("the demo needs Flower: pip install 'ebscfl[federation]'") from error
        self.home, self.settings, self.say = home.resolve(), settings, say
        self.kdc, self.server = self.home / "kdc", self.home / "server"
        self.kdc_port, self.link_port, *self.node_ports = free_ports(2 + settings.nodes)
        self.link = f"127.0.0.1:{self.link_port}"
        self.environment = flower_environment(self.home / "flower")
        self._allowed = self.home / "allowed-apps.txt"
        self._app = app_files.write_app(self.home / "app")
        self._guard = guard
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
            make_node_key(self.client(i))
        for directory in (self.server, *(self.client(i) for i in range(self.settings.nodes))):
            write_durably(directory / "config.toml", config.to_toml().encode())
            write_durably(directory / "training.json", json.dumps({"attack": self.settings.attack}).encode())
        write_connection(self.home / "flower", self.link, self.server / "ca.pem")

    # --- processes --------------------------------------------------------------------------------------------------

    def start_kdc(self, children: Children) -> None:
        """The key centre; returns when it answers."""
        command = [sys.executable, "-m", "ebscfl.cli_kdc", "serve", str(self.kdc), "--metrics-port", "0"]
        children.start("kdc", [*command, "--workers", str(self.settings.workers)])
        children.wait_for(lambda: listens(self.kdc_port), "the key centre's start", timeout_s=60)

    def start_client(self, children: Children, number: int) -> None:
        """A guarded SuperNode. After a kill the SuperLink takes it back only when it has missed its heartbeats."""
        directory = self.client(number)
        environment = self._guard.install(directory / "runners", self._allowed, self.environment)
        environment["FLWR_HOME"] = str(directory / "flower")  # apps are unpacked here, apart from other clients
        command = supernode_command(directory, self.link, self.node_ports[number])
        children.start(f"client-{number}", command, environment, again_after_s=5.0)

    def start_all(self, children: Children) -> None:
        """Everything but the run itself."""
        self.start_kdc(children)
        children.start("superlink", superlink_command(self.server, self.link_port))
        children.wait_for(lambda: listens(self.link_port), "the SuperLink's start", timeout_s=90)
        for i in range(self.settings.nodes):
            key = str(self.client(i) / "node.pub")
            children.run("register", [flower_command("flwr"), "supernode", "register", key, CONNECTION])
        self.allow_app(children)
        for i in range(self.settings.nodes):
            self.start_client(children, i)

    def allow_app(self, children: Children) -> None:
        """Build the bundle and put its hash on the clients' list."""
        out = self.home / "bundle"
        out.mkdir(exist_ok=True)
        children.run("build", ["sh", "-c", 'cd "$0" && "$1" build --app "$2"', str(out), flower_command("flwr"),
                               str(self._app)])  # fmt: skip
        (bundle,) = out.glob("*.fab")
        write_durably(self._allowed, f"{self._guard.app_hash(bundle.read_bytes())}  # the demo's app\n".encode())

    def submit(self, children: Children) -> None:
        """``flwr run``."""
        s = self.settings
        config = (
            f'directory="{self.server}" steps={s.steps} first-s={s.first_s} last-s={s.last_s} gather-s={s.timeout_s} '
            f"workers={s.workers}"
        )
        command = [flower_command("flwr"), "run", str(self._app), CONNECTION, "--run-config", config]
        children.run("flwr-run", command)

    # --- what happened ----------------------------------------------------------------------------------------------

    def lines(self) -> list[dict[str, Any]]:
        """The steps done so far."""
        return [line for line in read_lines(self.server / "metrics.jsonl") if line["kind"] == "round"]

    def wait_for_step(self, children: Children, step: int) -> None:
        """Until that many steps are done."""
        children.wait_for(lambda: len(self.lines()) >= step, f"step {step}", timeout_s=self.settings.timeout_s)

    def report(self, injected: int) -> dict[str, Any]:
        """The demo's document."""
        lines = self.lines()
        document = json.loads((self.server / "results.json").read_text())
        released = self._released()
        return {
            "rounds": len(lines),
            "faults_injected": injected,
            "faults_survived": injected if len(lines) == self.settings.steps else 0,
            "updates_lost": sum(self.settings.nodes - len(line["included"]) for line in lines),
            "released_twice": max(0, released - len(lines)) if released is not None else None,
            "seconds_per_round": [round(line["seconds"]["step"], 2) for line in lines],
            "asked_again": [line["asked_again"] for line in lines],
            "results": document["results"],
        }

    def _released(self) -> int | None:
        """Rounds the key centre has released (it has stopped by now); None where the protocol has no release."""
        path = self.kdc / "kdc.sqlite"
        if not path.exists():
            return None
        db = sqlite3.connect(path)
        try:
            return int(db.execute("SELECT count(*) FROM rounds WHERE released IS NOT NULL").fetchone()[0])
        finally:
            db.close()


def run_demo(home: Path, settings: DemoSettings, say: Say = lambda text: None) -> dict[str, Any]:
    """Play the demo below ``home``; everything that was started is stopped when this returns or raises."""
    started = time.monotonic()
    demo = Demo(home, settings, say)
    injected = 0
    with Children(demo.home / "logs", {**demo.environment, "OMP_NUM_THREADS": "1"}) as children:
        say(f"starting the key centre, the SuperLink and {settings.nodes} SuperNodes; logs in {demo.home / 'logs'}")
        demo.start_all(children)
        demo.submit(children)
        for step in range(1, settings.steps + 1):
            demo.wait_for_step(children, step)
            say(f"step {step} of {settings.steps}: accuracy {demo.lines()[step - 1]['accuracy_own']:.1f} %")
            if step == 1 and settings.faults:
                injected += _inject(demo, children)
        finished = demo.server / "results.json"
        children.wait_for(finished.exists, "the end of the run", timeout_s=120)
    return {**demo.report(injected), "seconds": round(time.monotonic() - started, 1)}


def _inject(demo: Demo, children: Children) -> int:
    """Kill a client and the key centre with signal 9 in the middle of a step, and start both again."""
    last = demo.settings.nodes - 1
    demo.say(f"killing client {last} and the key centre (signal 9)")
    children.kill(f"client-{last}")
    children.kill("kdc")
    time.sleep(1.0)
    demo.start_kdc(children)
    demo.start_client(children, last)
    return 2
