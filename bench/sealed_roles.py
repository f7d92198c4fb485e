"""Streams a round of `sealed` through the real roles, server and key centre each in a process of its own; prints JSON.

    python bench/sealed_roles.py [--clients 200] [--dim 1000000] [--clusters 2] [--field m61]

This process plays the clients and the network. There are few distinct inputs, but every client has its own keys and
every upload is sealed, encoded, framed and sent. Memory is what the two processes report of themselves: the peak of
the whole life (ru_maxrss, start-up and first compilation included) and what is resident after the round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from ebscfl import rng
from ebscfl.ids import KDC, SERVER, client_address
from ebscfl.plain import rfca_round, unit_rows
from ebscfl.protocol import codec, stream
from ebscfl.protocol.messages import SealedUpload
from ebscfl.protocol.registry import make_roles
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.sealed import parameters
from ebscfl.protocol.sealed.client import SealedClient
from ebscfl.protocol.sealed.kdc import SealedKdc
from ebscfl.protocol.sealed.server import SealedServer
from ebscfl.protocol.sealed.store import MemoryStore
from ebscfl.protocol.sealed.words import to_wire
from ebscfl.sealed import client_keys, encode, seal, seal_blind

ROOT = rng.root_from_seed(31)
RUN = b"bench-rt"
DISTINCT = 4
TARGET_CLIENTS = 10_000


def setup_of(options: argparse.Namespace) -> Setup:
    chosen = {} if options.field is None else {"field": options.field}
    return Setup("sealed", options.clients, options.clusters, options.dim, RUN, "global", chosen)


def inputs_of(setup: Setup) -> tuple[np.ndarray, list[int], np.ndarray]:
    """A few updates that agree with their cluster's server update."""
    draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "sealed-roles")
    server = unit_rows(draw.standard_normal((setup.num_clusters, setup.dim)))
    clusters = [i % setup.num_clusters for i in range(DISTINCT)]
    return unit_rows(draw.standard_normal((DISTINCT, setup.dim))) + server[clusters], clusters, server


def memory(_: bytes) -> bytes:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return json.dumps({"peak_mib": round(peak), "now_mib": round(pages * resource.getpagesize() / 2**20)}).encode()


def play_server(setup: Setup) -> None:
    """The child process that is the server."""
    server = SealedServer(setup, parameters(setup))

    def outcome(_: bytes) -> bytes:
        return b"" if server.outcome is None else server.outcome.aggregates.tobytes()

    def start(updates: bytes) -> list[stream.Outgoing]:
        rows = np.frombuffer(updates, dtype=np.float64).reshape(setup.num_clusters, setup.dim)
        return server.start_round(1, range(setup.num_clients), rows)

    steps: dict[str, stream.LocalStep] = {
        "start": start,
        "close": lambda _: server.close_uploads(),
        "finish": lambda _: server.finish_round(),
        "outcome": outcome,
        "memory": memory,
    }
    stream.serve(server, sys.stdin.buffer, sys.stdout.buffer, steps=steps)


def play_kdc(setup: Setup) -> None:
    """The child process that is the key centre."""
    params = parameters(setup)
    root = rng.derive(ROOT, rng.USAGE_ROLE, "kdc")
    kdc = SealedKdc(setup, params, root=root, store=MemoryStore(), noise=None, tolerated=params.quorum - 1)
    stream.serve(kdc, sys.stdin.buffer, sys.stdout.buffer, steps={"memory": memory})


class Peer:
    """A role's process and the seconds this side waited for it."""

    def __init__(self, role: str, arguments: list[str]) -> None:
        command = [sys.executable, __file__, "--role", role, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.seconds = 0.0

    def call(self, frame: stream.Frame) -> list[stream.Frame]:
        started = time.perf_counter()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        stream.write_frame(self.process.stdin, frame)  # type: ignore[arg-type]
        answers: list[stream.Frame] = []
        while (answer := stream.read_frame(self.process.stdout)) is not None:  # type: ignore[arg-type]
            if answer.kind == stream.END:
                self.seconds += time.perf_counter() - started
                return answers
            answers.append(answer)
        raise SystemExit("a role's process ended")

    def note(self, step: str) -> bytes:
        return self.call(stream.step_frame(step))[0].data

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def relay(server: Peer, kdc: Peer, frame: stream.Frame) -> None:
    """One frame to the server, and everything between it and the key centre that follows."""
    queue = [frame]
    while queue:
        for question in server.call(queue.pop(0)):
            if question.address == KDC:
                answers = kdc.call(stream.message_frame(SERVER, question.data))
                queue += [stream.message_frame(KDC, answer.data) for answer in answers]


def enrol(setup: Setup, kdc: Peer) -> list[bytes]:
    """Every client's master key, over its sealed enrolment."""
    _, _, clients = make_roles(setup, ROOT)
    keys = []
    for client in clients:
        assert isinstance(client, SealedClient)
        request = codec.encode(client.enrol()[0].message, RUN)
        client.receive(KDC, kdc.call(stream.message_frame(client.address, request))[0].data)
        keys.append(next(iter(client.secrets())).tobytes())
    return keys


def measure(options: argparse.Namespace, arguments: list[str]) -> dict[str, object]:
    setup = setup_of(options)
    params = parameters(setup)
    updates, clusters, server_updates = inputs_of(setup)
    encoded = [encode(params, updates[d], clusters[d], ROOT, 1, d) for d in range(DISTINCT)]
    server, kdc = Peer("server", arguments), Peer("kdc", arguments)
    masters = enrol(setup, kdc)
    relay(server, kdc, stream.step_frame("start", server_updates.tobytes()))
    server.seconds = kdc.seconds = client_seconds = 0.0
    buffer = params.field.zeros((2, params.width))
    started = time.perf_counter()
    for i, master in enumerate(masters):
        begun = time.perf_counter()
        keys = client_keys(params, master, RUN.hex(), 1, i)
        upload = seal(params, encoded[i % DISTINCT], keys, buffer)
        blind = to_wire(seal_blind(params, keys, ROOT, 1))
        data = codec.encode(SealedUpload(1, to_wire(upload.words), to_wire(upload.guard), blind), RUN)
        client_seconds += time.perf_counter() - begun
        relay(server, kdc, stream.message_frame(client_address(i), data))
    for step in ("close", "close", "finish"):
        relay(server, kdc, stream.step_frame(step))
    total = time.perf_counter() - started
    aggregates = np.frombuffer(server.note("outcome"), dtype=np.float64).reshape(server_updates.shape)
    rows = [i % DISTINCT for i in range(setup.num_clients)]
    shares = np.bincount(rows, minlength=DISTINCT) / setup.num_clients
    want = _weighted(updates, clusters, server_updates, shares)
    document = {
        "clients": setup.num_clients,
        "dim": setup.dim,
        "clusters": setup.num_clusters,
        "parameters": params.describe(),
        "upload_bytes": params.upload_bytes,
        "seconds": {"total": total, "clients": client_seconds, "server_and_pipe": server.seconds, "kdc": kdc.seconds},
        "clients_per_s": setup.num_clients / total,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "minutes_for_10000_at_this_rate": TARGET_CLIENTS * total / setup.num_clients / 60,
        "memory": {"server": json.loads(server.note("memory")), "kdc": json.loads(kdc.note("memory"))},
        "relative_error": float(np.linalg.norm(aggregates - want) / np.linalg.norm(want)),
    }
    server.close()
    kdc.close()
    return document


def _weighted(updates: np.ndarray, clusters: list[int], server: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """RFCA where input d comes shares[d] of the time."""
    sums, weights = np.zeros_like(server), 0.0
    for d in range(DISTINCT):
        alone, weight = rfca_round(updates[[d]], [clusters[d]], server)
        sums += shares[d] * weight * alone
        weights += shares[d] * weight
    return sums / weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--dim", type=int, default=1_000_000)
    parser.add_argument("--clusters", type=int, default=2)
    parser.add_argument("--field", choices=["m31", "m61"])
    parser.add_argument("--role", choices=["server", "kdc"])
    options = parser.parse_args()
    if options.role is None:
        print(json.dumps(measure(options, sys.argv[1:]), indent=2))
    else:
        {"server": play_server, "kdc": play_kdc}[options.role](setup_of(options))


if __name__ == "__main__":
    main()
