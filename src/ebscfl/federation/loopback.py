"""A whole federation on the loopback interface: real sockets, TLS, files and roles; no Flower.

For tests, the fault harness and the load benchmark. Clients answer in the thread that asks them; the key centre is a
thread, or a process of its own (`KdcProcess`) that is stopped by signal 9 only.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ebscfl.federation.client_agent import ClientAgent
from ebscfl.federation.journal import Journal
from ebscfl.federation.processes import Children, free_ports, listens
from ebscfl.federation.rounds import Exchange
from ebscfl.federation.server_agent import ServerAgent
from ebscfl.federation.superlink import flower_environment
from ebscfl.ids import SERVER, client_address
from ebscfl.kdc_service.deployment import (
    RunFile,
    hand_out,
    init_kdc,
    open_service,
    open_stub,
    server_role,
    write_durably,
)
from ebscfl.kdc_service.limits import Limits
from ebscfl.kdc_service.service import KdcService
from ebscfl.kdc_service.stub import KdcStub, Patience
from ebscfl.pool import IN_PLACE, Pool
from ebscfl.protocol.roles import Setup

Floats = npt.NDArray[np.floating]
SHORT = Patience(connect_s=5.0, answer_s=60.0, in_all_s=30.0)


class KdcProcess:
    """``ebs-cfl kdc serve`` as a process."""

    def __init__(self, directory: Path, port: int) -> None:
        self.port = port or free_ports(1)[0]
        self._directory = directory
        self._children = Children(directory.parent / "logs", flower_environment(directory.parent / "flower"))

    def start(self) -> None:
        """Returns when it answers."""
        words = ["kdc", "serve", str(self._directory), "--port", str(self.port), "--metrics-port", "0"]
        self._children.start("kdc", [sys.executable, "-m", "ebscfl.cli", *words])
        self._children.wait_for(lambda: listens(self.port), "the key centre's start", timeout_s=60, pause_s=0.02)

    def stop(self) -> None:
        """Signal 9."""
        self._children.kill("kdc")

    def fill_disk(self, full: bool) -> None:
        """From now on the process cannot make any file longer, or can again."""
        limits = (0, resource.RLIM_INFINITY) if full else (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(self._children.pid("kdc"), resource.RLIMIT_FSIZE, limits)


class Loopback:
    """The directories of every party below ``home``, and the service. ``port`` may be a proxy's."""

    def __init__(
        self, home: Path, setup: Setup, *, limits: Limits | None = None, process: bool = False, pool: Pool = IN_PLACE
    ) -> None:
        self.home = home
        self.process = process
        self.setup = setup
        self.limits = limits
        self.pool = pool
        self._closing: list[Callable[[], None]] = []
        self.kdc_dir, self.server_dir = home / "kdc", home / "server"
        init_kdc(self.kdc_dir, RunFile(setup, port=0))
        self.service: KdcService | KdcProcess = self._open(0)
        self._point_at(self.service.port)
        hand_out(self.kdc_dir, SERVER, self.server_dir)
        for i in range(setup.num_clients):
            hand_out(self.kdc_dir, client_address(i), self.client_dir(i))

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        for close in self._closing:
            close()
        self.service.stop()

    def client_dir(self, client: int) -> Path:
        """Where a client keeps its files."""
        return self.home / "clients" / str(client)

    def restart_service(self) -> None:
        """Stop the key centre (a process: by signal 9) and start it again from its files, on the same port."""
        port = self.service.port
        self.service.stop()
        self.service = self._open(port)

    def released(self) -> dict[int, tuple[int, ...]]:
        """Rounds the key centre has released and for whom. Its store is its own while it serves: it pauses for this."""
        port = self.service.port
        self.service.stop()
        db = sqlite3.connect(self.kdc_dir / "kdc.sqlite")
        rows = db.execute("SELECT round, released FROM rounds WHERE released IS NOT NULL").fetchall()
        db.close()
        self.service = self._open(port)
        return {int(round_id): tuple(json.loads(clients)) for round_id, clients in rows}

    def agent(self, *, journal: Journal | None = None, port: int | None = None) -> ServerAgent:
        """A server that has just come up."""
        stub = self.stub(self.server_dir, port=port)
        stub.hello()
        kept = journal or Journal(self.server_dir / "round.journal", durable=False)
        self._closing += [stub.close, kept.close]
        return ServerAgent(lambda: server_role(self.server_dir, self.pool), stub, kept)

    def client(self, client: int, *, port: int | None = None) -> ClientAgent:
        """A client that has just come up and is enrolled."""
        directory = self.client_dir(client)
        agent = ClientAgent(directory, client, stub=lambda: self.stub(directory, port=port))
        agent.enrol()
        return agent

    def stub(self, directory: Path, *, port: int | None = None) -> KdcStub:
        """A line to the key centre with a short patience."""
        return open_stub(directory, patience=SHORT, port=port)

    def _open(self, port: int) -> KdcService | KdcProcess:
        if self.process:
            process = KdcProcess(self.kdc_dir, port)
            process.start()
            return process
        service = open_service(self.kdc_dir, port=port, limits=self.limits, pool=self.pool)
        service.start()
        return service

    def _point_at(self, port: int) -> None:
        run = dataclasses.replace(RunFile.load(self.kdc_dir), port=port)
        write_durably(self.kdc_dir / "run.json", run.to_json().encode())


class DirectExchange(Exchange):
    """Clients answer when they are asked. ``answer`` gives a client's bytes, or None when it stays silent."""

    def __init__(self, answer: Callable[[int, int], bytes | None]) -> None:
        self._answer = answer
        self._ready: list[tuple[int, bytes]] = []

    def ask(self, round_id: int, clients: Sequence[int]) -> None:
        answers = ((i, self._answer(round_id, i)) for i in clients)
        self._ready += [(i, data) for i, data in answers if data is not None]

    def poll(self) -> Iterable[tuple[int, bytes]]:
        ready, self._ready = self._ready, []
        return ready


def answers_of(
    agents: Mapping[int, ClientAgent], updates: Floats, clusters: Sequence[int]
) -> Callable[[int, int], bytes | None]:
    """Clients that upload row i of ``updates`` for entry i of ``clusters``; those without an agent stay silent."""
    return lambda round_id, i: agents[i].upload(round_id, updates[i], clusters[i]) if i in agents else None
