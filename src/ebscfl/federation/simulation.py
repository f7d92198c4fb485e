"""The federation in Flower's own simulation runtime: ``flwr run`` on a SuperLink that plays the clients through Ray.

The app, the roles and the key centre are those of a deployment: ServerApp and ClientApp enrol and talk to the key
centre over mutual TLS, and only encoded uploads leave a ClientApp. What Flower replaces is its network: nodes are
entries in a table, messages stay in one process, ClientApps run in Ray's workers.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebscfl.errors import DependencyError
from ebscfl.federation.processes import Children, ProcessFailed, flower_command, listens
from ebscfl.federation.site import Site, SiteSettings
from ebscfl.federation.superlink import CONNECTION
from ebscfl.kdc_service.deployment import write_durably

Say = Callable[[str], None]
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip
"""Ray reports to nobody and installs nothing; Flower starts it without a dashboard."""


def simulation_command(port: int) -> list[str]:
    """A SuperLink for this machine alone that plays clients instead of waiting for them."""
    return [
        flower_command("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def simulation_environment(ray_files: Path) -> dict[str, str]:
    """What Ray is told; its own files go to ``ray_files``."""
    return {**ENVIRONMENT, "RAY_TMPDIR": str(ray_files)}


class Simulation(Site):
    """A site whose clients are played by Flower."""

    def __init__(self, home: Path, settings: SiteSettings) -> None:
        if importlib.util.find_spec("ray") is None:
            raise DependencyError("Flower's simulation needs Ray: pip install 'ebscfl[federation]'")
        super().__init__(home, settings)
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        text += f'address = "{self.link}"\ninsecure = true\n'
        write_durably(self.home / "flower" / "config.toml", text.encode())

    def start(self, children: Children, ray_files: Path) -> None:
        """Key centre and SuperLink."""
        self.start_kdc(children)
        environment = {**simulation_environment(ray_files), "EBSCFL_CLIENTS_DIR": str(self.home / "clients")}
        children.start("superlink", simulation_command(self.link_port), environment)
        children.wait_for(lambda: listens(self.link_port), "the SuperLink's start", timeout_s=90)


def run_simulation(home: Path, settings: SiteSettings, say: Say = lambda text: None) -> dict[str, Any]:
    """Train below ``home``; everything that was started is stopped when this returns or raises."""
    started = time.monotonic()
    site, cores = Simulation(home, settings), len(os.sched_getaffinity(0))
    options = f"num-supernodes={settings.nodes} client-resources-num-cpus=1 init-args-num-cpus={cores}"
    # Sockets have short names: Ray's files cannot lie deep in a user's directory.
    with (
        tempfile.TemporaryDirectory(prefix="ebscfl-flwr-", ignore_cleanup_errors=True) as ray_files,
        Children(site.home / "logs", {**site.environment, "OMP_NUM_THREADS": "1"}) as children,
    ):
        say(f"starting the key centre and Flower's simulation of {settings.nodes} nodes; logs in {site.home / 'logs'}")
        site.start(children, Path(ray_files))
        submitted = time.monotonic()
        run = site.submit(children, "--federation-config", options)
        shown, looked = 0, time.monotonic()
        while not (site.server / "results.json").exists():
            children.check()
            shown = _tell(site, say, shown)
            if time.monotonic() > looked + 10.0:
                looked = time.monotonic()
                if (state := site.state_of(children, run)).startswith("finished"):
                    raise ProcessFailed(f"Flower's run ended ({state}) without results; see {site.home / 'logs'}")
            if time.monotonic() > submitted + settings.timeout_s:
                raise ProcessFailed(f"no results within {settings.timeout_s:.0f} s; see {site.home / 'logs'}")
            time.sleep(0.1)
        trained = time.monotonic() - submitted
        _tell(site, say, shown)
        ended = lambda: site.state_of(children, run).startswith("finished")  # noqa: E731
        children.wait_for(ended, "the end of Flower's run", timeout_s=60)  # Ray stops itself and leaves nothing
    lines, released = site.lines(), site.released()
    return {
        "rounds": len(lines),
        "nodes": settings.nodes,
        "updates_lost": sum(settings.nodes - len(line["included"]) for line in lines),
        "released_twice": None if released is None else max(0, len(released) - len(lines)),
        "accuracy": [line["accuracy_own"] for line in lines],
        "seconds_per_round": [round(line["seconds"]["step"], 3) for line in lines],
        "seconds_of_run": round(trained, 2),
        "seconds": round(time.monotonic() - started, 2),
        "results": site.results(),
    }


def _tell(site: Site, say: Say, shown: int) -> int:
    """Say how the steps went that were not told yet; returns how many there are."""
    lines = site.lines()
    for step, line in enumerate(lines[shown:], start=shown + 1):
        say(f"step {step} of {site.settings.steps}: accuracy {line['accuracy_own']:.1f} %")
    return len(lines)
