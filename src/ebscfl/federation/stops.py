"""Stopping points for the kill matrix: a real ServerApp or ClientApp halts at a named phase until killed or let go.

``python -m ebscfl.federation.stops flwr-serverapp ...`` is Flower's runner with these points put into our classes. A
point that is not armed costs nothing; a file ``<point>`` in the directory `VARIABLE` arms it, the process that comes
there renames it to ``<point>.reached`` and goes on when that file is gone. Nothing but `kills` starts processes so.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from ebscfl.federation import client_agent
from ebscfl.federation.client_agent import ClientAgent
from ebscfl.federation.coordinator import Coordinator
from ebscfl.federation.server_agent import ServerAgent

VARIABLE = "EBSCFL_STOPS"
BEFORE_ENROLMENT, ENROLLED, ENCODED, UPLOADED, RELEASED = (
    "before enrolment", "enrolled", "encoded", "uploaded", "released"
)  # fmt: skip


def reach(point: str) -> None:
    """Halt here if the point is armed."""
    directory = Path(os.environ[VARIABLE])
    reached = directory / f"{point}.reached"
    try:
        os.rename(directory / point, reached)
    except FileNotFoundError:
        return
    while reached.exists():
        time.sleep(0.02)


def client_points() -> None:
    """Before the enrolment request, after its answer is on the disk, and between encoding an upload and keeping it."""
    agents: Any = client_agent
    enrol, write = ClientAgent.enrol, agents.write_private

    def stopping_enrol(agent: ClientAgent) -> None:
        new, client = not (agent.directory / "enrolment.bin").exists(), agent.role.address.client
        if new:
            reach(f"{BEFORE_ENROLMENT}.{client}")
        enrol(agent)
        if new:
            reach(f"{ENROLLED}.{client}")

    def stopping_write(path: Path, data: bytes) -> None:
        if path.name == "upload.bin":
            reach(f"{ENCODED}.{path.parent.name}")
        write(path, data)

    agents.ClientAgent.enrol = stopping_enrol
    agents.write_private = stopping_write


def server_points() -> None:
    """Before the release is asked for, and between the release and the checkpoint."""
    agent_class: Any = ServerAgent
    coordinator_class: Any = Coordinator
    finish, save = ServerAgent.finish, Coordinator._save

    def stopping_finish(agent: ServerAgent) -> Any:
        reach(UPLOADED)
        return finish(agent)

    def stopping_save(coordinator: Coordinator) -> None:
        reach(RELEASED)
        save(coordinator)

    agent_class.finish = stopping_finish
    coordinator_class._save = stopping_save


def script(runner: str) -> str:
    """A shell script that stands for Flower's ``runner``."""
    return f'#!/bin/sh\nexec "{sys.executable}" -m ebscfl.federation.stops {runner} "$@"\n'


def main() -> None:
    """Become the runner named first on the command line."""
    del sys.argv[0]
    if sys.argv[0] == "flwr-serverapp":
        server_points()
        from flwr.superlink.cli import flwr_serverapp

        flwr_serverapp()
    else:
        client_points()
        from ebscfl.flower import guard

        guard.main()


if __name__ == "__main__":
    main()
