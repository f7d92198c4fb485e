"""A federation on one machine as real processes, with faults on the way: what ``ebs-cfl federation demo`` runs.

Key centre, SuperLink, server app and N SuperNodes talk over TLS; SuperNodes are known by their keys and run only the
demo's own app. After the first step one client is killed with signal 9 and started again, and so is the key centre.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebscfl.errors import ConfigError
from ebscfl.federation.processes import Children, flower_command, free_ports, listens
from ebscfl.federation.site import Site, SiteSettings
from ebscfl.federation.superlink import (
    CONNECTION,
    make_node_key,
    superlink_command,
    supernode_command,
    write_connection,
)
from ebscfl.kdc_service.deployment import write_durably

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoSettings(SiteSettings):
    """What the demo plays."""

    faults: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.faults and self.steps < 2:
            raise ConfigError("faults come after the first step: take at least 2 steps, or --no-faults")


class Demo(Site):
    """The federation's files below ``home`` and its processes."""

    def __init__(self, home: Path, settings: SiteSettings, say: Say) -> None:
        super().__init__(home, settings)
        self.say = say
        self.node_ports = free_ports(settings.nodes)
        self._allowed = self.home / "allowed-apps.txt"
        for i in range(settings.nodes):
            make_node_key(self.client(i))
        write_connection(self.home / "flower", self.link, self.server / "ca.pem")

    # --- processes --------------------------------------------------------------------------------------------------

    def start_client(self, children: Children, number: int) -> None:
        """A guarded SuperNode. After a kill the SuperLink takes it back only when it has missed its heartbeats."""
        directory = self.client(number)
        environment = self.guard.install(directory / "runners", self._allowed, self.environment)
        self.prepare_client(directory)
        environment["FLWR_HOME"] = str(directory / "flower")  # apps are unpacked here, apart from other clients
        command = supernode_command(directory, self.link_of(number), self.node_ports[number])
        children.start(f"client-{number}", command, environment, again_after_s=5.0)

    def start_link(self, children: Children) -> None:
        """The SuperLink; returns when it answers."""
        children.start("superlink", superlink_command(self.server, self.link_port))
        self.wait_for_link(children)

    def link_of(self, client: int) -> str:
        """Where a client finds the SuperLink."""
        return self.link

    def prepare_client(self, directory: Path) -> None:
        """Change what `guard` has installed for a client; here, nothing."""

    def wait_for_link(self, children: Children) -> None:
        """Until the SuperLink answers."""
        children.wait_for(lambda: listens(self.link_port), "the SuperLink's start", timeout_s=90)

    def start_all(self, children: Children) -> None:
        """Everything but the run itself."""
        self.start_kdc(children)
        self.start_link(children)
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
                               str(self.app)])  # fmt: skip
        (bundle,) = out.glob("*.fab")
        write_durably(self._allowed, f"{self.guard.app_hash(bundle.read_bytes())}  # the demo's app\n".encode())

    # --- what happened ----------------------------------------------------------------------------------------------

    def wait_for_step(self, children: Children, step: int) -> None:
        """Until that many steps are done."""
        children.wait_for(lambda: len(self.lines()) >= step, f"step {step}", timeout_s=self.settings.timeout_s)

    def report(self, injected: int) -> dict[str, Any]:
        """The demo's document."""
        lines = self.lines()
        released = self.released()
        return {
            "rounds": len(lines),
            "faults_injected": injected,
            "faults_survived": injected if len(lines) == self.settings.steps else 0,
            "updates_lost": sum(self.settings.nodes - len(line["included"]) for line in lines),
            "released_twice": max(0, len(released) - len(lines)) if released is not None else None,
            "seconds_per_round": [round(line["seconds"]["step"], 2) for line in lines],
            "asked_again": [line["asked_again"] for line in lines],
            "results": self.results(),
        }


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
    demo.say(f"killing client {last} and the key centre (signal 9); Flower takes the client back after a minute")
    children.kill(f"client-{last}")
    children.kill("kdc")
    time.sleep(1.0)
    demo.start_kdc(children)
    demo.start_client(children, last)
    return 2
