"""Load: many clients upload in one round of `sealed` through the real server role and a key centre in its own process.

    python bench/federation.py --clients 1000 --dim 200000 --clusters 2 --out federation.json

Clients are roles in this process; their encoding is timed apart. The server's time is from handing it an upload until
it takes the next, exchanges with the key centre over TLS included. ``faults`` plays the fault harness instead.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ebscfl import rng
from ebscfl.federation.faults import run_all
from ebscfl.federation.journal import Journal
from ebscfl.federation.processes import Children, free_ports, listens
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


def load(clients: int, dim: int, clusters: int, *, journal: bool) -> dict[str, Any]:
    """One round with ``clients`` uploads."""
    with tempfile.TemporaryDirectory(prefix="ebscfl-load-") as name:
        home = Path(name)
        (port,) = free_ports(1)
        setup = Setup("sealed", clients, clusters, dim, fresh_run_id(), "cluster")
        init_kdc(home / "kdc", RunFile(setup, port=port))
        hand_out(home / "kdc", SERVER, home / "server")
        hand_out(home / "kdc", client_address(0), home / "client")
        with Children(home / "logs", flower_environment(home)) as children:
            command = [sys.executable, "-m", "ebscfl.cli_kdc", "serve", str(home / "kdc"), "--metrics-port", "0"]
            children.start("kdc", command)
            children.wait_for(lambda: listens(port), "the key centre's start", timeout_s=60)
            return measure(home, setup, children, journal=journal)


def measure(home: Path, setup: Setup, children: Children, *, journal: bool) -> dict[str, Any]:
    """Enrol everybody, play the round, and take the numbers."""
    roles = make_roles(setup, rng.root_from_seed(1))[2]
    enrolment = [enrol(home, role) for role in roles]
    draw = rng.numpy_generator(rng.root_from_seed(1), rng.USAGE_BENCH, "federation")
    server_updates = draw.standard_normal((setup.num_clusters, setup.dim))
    stub = open_stub(home / "server")
    stub.hello()
    line = TimedLine(stub)
    kept = (Journal if journal else NoJournal)(home / "server" / "round.journal")
    agent = ServerAgent(lambda: server_role(home / "server"), line, kept)
    encoding = 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    agent.begin(1, range(setup.num_clients), server_updates)
    for role in roles:
        cluster = role.client % setup.num_clusters
        encode_started = time.perf_counter()
        update = server_updates[cluster] + draw.standard_normal(setup.dim)
        ((_, message),) = role.encode(1, update, cluster)
        data = codec.encode(message, setup.run_id)
        role._last = None  # a simulated client need not be able to repeat its upload
        encoding += time.perf_counter() - encode_started
        agent.upload(role.client, data)
    agent.close()
    agent.close()
    outcome = agent.finish()
    seconds = time.perf_counter() - started - encoding
    stub.close()
    kept.close()
    answers = [s for times in line.seconds.values() for s in times]
    return {
        "clients": setup.num_clients,
        "dim": setup.dim,
        "clusters": setup.num_clusters,
        "journal": journal,
        "included": len(outcome.included),
        "upload_bytes": len(data),
        "server_seconds": seconds,
        "clients_per_s": setup.num_clients / seconds,
        "client_encode_seconds_each": encoding / setup.num_clients,
        "enrolment_seconds": {"p50": percentile(enrolment, 0.5), "p99": percentile(enrolment, 0.99)},
        "kdc_answer_seconds": {
            "p50": percentile(answers, 0.5), "p99": percentile(answers, 0.99), "max": max(answers),
            "answers": {kind: len(times) for kind, times in line.seconds.items()},
        },
        "server_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "server_bytes_before_round": before * 1024,
        "kdc_peak_bytes": peak_bytes(children.pid("kdc")),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("load", "faults"), default="load")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=200_000)
    parser.add_argument("--clusters", type=int, default=2)
    parser.add_argument("--journal", action="store_true", help="keep every upload durably, as a deployed server does")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "faults":
        document = run_all()
    else:
        document = load(given.clients, given.dim, given.clusters, journal=given.journal)
    text = json.dumps(document, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
