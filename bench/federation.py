"""Load: many clients upload in one round of `sealed` through the real server role and a key centre in its own process.

    python bench/federation.py --clients 1000 --dim 200000 --clusters 2 --out federation.json

Server, key centre and clients are three processes, so that each one's peak memory is its own. The server asks for an
upload when it is done with the last one, and its clock stands still while the clients encode: what is timed is the
server from an upload's bytes on, exchanges with the key centre over TLS included. ``faults`` counts whatever did not go
as it should: clients left out, culprits named by server or key centre, requests that had to be repeated. The argument
``faults`` plays the fault harness instead.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from ebscfl import rng
from ebscfl.federation.faults import run_all
from ebscfl.federation.journal import Journal
from ebscfl.federation.processes import Children, free_ports, listens
from ebscfl.federation.scaleout import open_pool
from ebscfl.federation.server_agent import ServerAgent
from ebscfl.federation.superlink import flower_environment
from ebscfl.ids import KDC, SERVER, client_address
from ebscfl.kdc_service.certificates import issue
from ebscfl.kdc_service.deployment import (
    RunFile,
    authority_of,
    fresh_run_id,
    hand_out,
    init_kdc,
    open_stub,
    server_role,
    write_private,
)
from ebscfl.pool import Pool
from ebscfl.protocol import codec
from ebscfl.protocol.messages import MESSAGE_BY_CODE
from ebscfl.protocol.registry import make_roles
from ebscfl.protocol.roles import ClientRole, Setup


class NoJournal(Journal):
    """Nothing is kept: what the durable journal costs is disk bandwidth, measured on its own with --journal."""

    def append(self, event: Any, client: int, data: bytes) -> None:
        pass


class TimedLine:
    """A stub that remembers how long each answer took, and how many clients it was about."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.seconds: dict[str, list[float]] = {}

    @property
    def incarnation(self) -> int:
        return int(self._stub.incarnation)

    def say(self, message: bytes) -> tuple[bytes, ...]:
        started = time.perf_counter()
        answers: tuple[bytes, ...] = self._stub.say(message)
        kind = MESSAGE_BY_CODE[message[5]].__name__
        self.seconds.setdefault(kind, []).append(time.perf_counter() - started)
        return answers

    def collect(self) -> tuple[bytes, ...]:
        return self._stub.collect()  # type: ignore[no-any-return]


def enrol(home: Path, client: ClientRole) -> float:
    """One client enrols over a TLS connection of its own; returns the seconds from connecting to the answer."""
    identity = issue(authority_of(home / "kdc"), client.setup.run_id, client.address)
    write_private(home / "client" / "tls.pem", identity.certificate)
    write_private(home / "client" / "tls.key", identity.private_key)
    ((_, message),) = client.enrol()
    started = time.perf_counter()
    with open_stub(home / "client") as stub:
        (answer,) = stub.say(codec.encode(message, client.setup.run_id))
    seconds = time.perf_counter() - started
    client.receive(KDC, answer)
    return seconds


def peak_bytes(pid: int) -> int:
    """The most memory a process ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def percentile(values: list[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else 0.0


def load(
    clients: int, dim: int, clusters: int, *, journal: bool = False, corrupt: int = 0, workers: int = 0
) -> dict[str, Any]:
    """One round with ``clients`` uploads, of which the first ``corrupt`` are changed on the way."""
    with tempfile.TemporaryDirectory(prefix="ebscfl-load-") as name:
        home = Path(name)
        port, metrics = free_ports(2)
        setup = Setup("sealed", clients, clusters, dim, fresh_run_id(), "cluster")
        init_kdc(home / "kdc", RunFile(setup, port=port))
        hand_out(home / "kdc", SERVER, home / "server")
        hand_out(home / "kdc", client_address(0), home / "client")
        with Children(home / "logs", flower_environment(home)) as children, open_pool(workers) as pool:
            command = [sys.executable, "-m", "ebscfl.cli", "kdc", "serve", str(home / "kdc")]
            children.start("kdc", [*command, "--metrics-port", str(metrics), "--workers", str(workers)])
            children.wait_for(lambda: listens(port), "the key centre's start", timeout_s=60)
            return measure(home, setup, children, metrics, pool, journal=journal, corrupt=corrupt)


def everybody(home: Path, setup: Setup, corrupt: int, line: Connection) -> None:
    """The process of all clients: enrols them, then answers each request with the next upload."""
    roles = make_roles(setup, rng.root_from_seed(1))[2]
    line.send([enrol(home, role) for role in roles])
    draw = rng.numpy_generator(rng.root_from_seed(1), rng.USAGE_BENCH, "federation")
    server_updates = draw.standard_normal((setup.num_clusters, setup.dim))
    line.send(server_updates)
    for role in roles:
        line.recv()
        started = time.perf_counter()
        cluster = role.client % setup.num_clusters
        update = server_updates[cluster] + draw.standard_normal(setup.dim)
        ((_, message),) = role.encode(1, update, cluster)
        data = bytearray(codec.encode(message, setup.run_id))
        role._last = None  # a simulated client need not be able to repeat its upload
        if role.client < corrupt:
            data[len(data) // 2] ^= 1
        seconds = time.perf_counter() - started
        line.send_bytes(data)
        line.send(seconds)


def uploads(line: Connection, count: int, times: list[float]) -> Iterator[bytes]:
    """One upload after the other, made when it is asked for."""
    for _ in range(count):
        line.send(None)
        data = line.recv_bytes()
        times.append(line.recv())
        yield data


def count_faults(clients: int, included: int, culprits: int, retries: int, page: str) -> int:
    """Whatever did not go as it should; ``page`` is the key centre's metrics page."""
    lines = (line.split() for line in page.splitlines() if line.startswith("ebscfl_kdc_faults_total"))
    return max(clients - included, culprits) + retries + round(sum(float(words[-1]) for words in lines))


def measure(
    home: Path, setup: Setup, children: Children, metrics: int, pool: Pool, *, journal: bool, corrupt: int
) -> dict[str, Any]:
    """Enrol everybody, play the round, and take the numbers."""
    spawn = multiprocessing.get_context("spawn")
    line, theirs = spawn.Pipe()
    clients = spawn.Process(target=everybody, args=(home, setup, corrupt, theirs), daemon=True)
    clients.start()
    theirs.close()  # so that the end of that process is an end of file here
    enrolment, server_updates = line.recv(), line.recv()
    stub = open_stub(home / "server")
    stub.hello()
    timed = TimedLine(stub)
    kept = (Journal if journal else NoJournal)(home / "server" / "round.journal")
    agent = ServerAgent(lambda: server_role(home / "server", pool), timed, kept)
    encoding: list[float] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    agent.begin(1, range(setup.num_clients), server_updates)
    seconds, size = time.perf_counter() - started, 0
    for client, data in enumerate(uploads(line, setup.num_clients, encoding)):
        size = len(data)
        started = time.perf_counter()
        agent.upload(client, data)
        seconds += time.perf_counter() - started
    started = time.perf_counter()
    agent.close()
    agent.close()
    outcome = agent.finish()
    seconds += time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stub.close()
    kept.close()
    clients.join()
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics") as answer:
        page = answer.read().decode()
    answers = [s for times in timed.seconds.values() for s in times]
    return {
        "clients": setup.num_clients,
        "dim": setup.dim,
        "clusters": setup.num_clusters,
        "journal": journal,
        "workers": pool.workers,
        "included": len(outcome.included),
        "faults": count_faults(
            setup.num_clients, len(outcome.included), len(agent.role.culprits), stub.retries, page
        ),
        "upload_bytes": size,
        "server_seconds": seconds,
        "clients_per_s": setup.num_clients / seconds,
        "client_encode_seconds_each": sum(encoding) / setup.num_clients,
        "enrolment_seconds": {"p50": percentile(enrolment, 0.5), "p99": percentile(enrolment, 0.99)},
        "kdc_answer_seconds": {
            "p50": percentile(answers, 0.5), "p99": percentile(answers, 0.99), "max": max(answers),
            "answers": {kind: len(times) for kind, times in timed.seconds.items()},
        },
        "server_peak_bytes": peak * 1024,
        "server_bytes_before_round": before * 1024,
        "kdc_peak_bytes": peak_bytes(children.pid("kdc")),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
    }  # fmt: skip


def paragraph(document: dict[str, Any]) -> str:
    """What docs/how-to-deploy.md says of a run."""
    answers = document["kdc_answer_seconds"]
    return (
        f"{document['clients']} uploads of {document['upload_bytes'] / 1e6:.1f} MB, {document['faults']} faults: "
        f"{document['clients_per_s']:.0f} clients a second, at most {document['server_peak_bytes'] / 1e9:.2f} GB of "
        f"memory in the server and {document['kdc_peak_bytes'] / 1e9:.2f} GB in the key centre; its answers took "
        f"{answers['p50']:.3f} s (median), {answers['p99']:.3f} s (99th percentile) and {answers['max']:.2f} s "
        f"(the first, which loads compiled code)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("load", "faults"), default="load")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=200_000)
    parser.add_argument("--clusters", type=int, default=2)
    parser.add_argument("--journal", action="store_true", help="keep every upload durably, as a deployed server does")
    parser.add_argument("--workers", type=int, default=0, help="processes that share the sums of server and key centre")
    parser.add_argument("--corrupt", type=int, default=0, help="uploads that are changed on the way")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "faults":
        document = run_all()
    else:
        document = load(
            given.clients, given.dim, given.clusters,
            journal=given.journal, corrupt=given.corrupt, workers=given.workers,
        )  # fmt: skip
    text = json.dumps(document, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
