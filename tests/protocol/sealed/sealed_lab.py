"""The roles of `sealed` on a table: every message is in the test's hands, and still crosses the codec."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ebscfl import rng
from ebscfl.ids import KDC, SERVER, Address, client_address
from ebscfl.plain import unit_rows
from ebscfl.protocol import codec
from ebscfl.protocol.messages import Message
from ebscfl.protocol.registry import make_roles
from ebscfl.protocol.roles import Outgoing, Setup
from ebscfl.protocol.sealed import parameters
from ebscfl.protocol.sealed.client import SealedClient
from ebscfl.protocol.sealed.kdc import SealedKdc
from ebscfl.protocol.sealed.server import SealedServer
from ebscfl.sealed import SealedParameters, encode
from ebscfl.sealed.score import trust_weight

N, M, L = 8, 2, 50
RUN_TAG = b"lab-run."
ROOT = rng.root_from_seed(11)


@dataclass(eq=False)
class Lab:
    """All roles of a small run, enrolled."""

    setup: Setup
    params: SealedParameters
    kdc: SealedKdc
    server: SealedServer
    clients: Sequence[SealedClient]
    updates: np.ndarray
    clusters: tuple[int, ...]
    server_updates: np.ndarray
    log: list[tuple[Address, Message]] = field(default_factory=list)

    def to_kdc(self, message: Message, sender: Address = SERVER) -> list[Message]:
        """What the key centre answers."""
        return [out.message for out in self.kdc.receive(sender, codec.encode(message, RUN_TAG))]

    def to_server(self, message: Message, sender: Address) -> list[Outgoing]:
        return self.server.receive(sender, codec.encode(message, RUN_TAG))

    def deliver(self, outgoing: Iterable[Outgoing]) -> None:
        """Carry messages between server and key centre until it is quiet."""
        queue = list(outgoing)
        while queue:
            to, message = queue.pop(0)
            self.log.append((to, message))
            if to == KDC:
                queue += [Outgoing(SERVER, m) for m in self.to_kdc(message)]
            elif to == SERVER:
                queue += self.to_server(message, KDC)

    def start(self, round_id: int = 1) -> None:
        self.deliver(self.server.start_round(round_id, range(self.setup.num_clients), self.server_updates))

    def uploads(self, round_id: int = 1) -> list[Message]:
        """Every client's upload."""
        return [
            client.encode(round_id, self.updates[i], self.clusters[i])[0].message
            for i, client in enumerate(self.clients)
        ]

    def close(self) -> None:
        self.deliver(self.server.close_uploads())
        self.deliver(self.server.close_uploads())

    def integer_sums(self, included: Iterable[int], round_id: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The reference on Python-sized integers: sums of rho x (m, l) and of rho (m,)."""
        params = self.params
        sums, counts = np.zeros((M, params.dim), dtype=object), np.zeros(M, dtype=object)
        row = np.rint(unit_rows(self.server_updates) * 2**params.server_bits).astype(np.int64)
        for i in included:
            client_root = rng.derive(ROOT, rng.USAGE_ROLE, "client", i)
            rounding = rng.derive(client_root, rng.USAGE_SEALED_ROUNDING)
            k = self.clusters[i]
            x = encode(params, self.updates[i], k, rounding, round_id, i).slot[:-1]
            rho = trust_weight(params, int(sum(int(a) * int(b) for a, b in zip(x, row[k], strict=True))))
            sums[k] += rho * x.astype(object)
            counts[k] += rho
        return sums, counts

    def reference(self, included: Iterable[int], round_id: int = 1) -> np.ndarray:
        """Aggregates by those integers, global normalization."""
        sums, counts = self.integer_sums(included, round_id)
        one = 1 << self.params.update_bits
        return np.array([[float(v) for v in row] for row in sums]) * (1.0 / (float(counts.sum()) * one))


def make_lab(*, n: int = N, dim: int = L, enrol: bool = True, **options: Any) -> Lab:
    """A run whose clients all agree with their cluster's server update, but for client 1, who opposes it."""
    setup = Setup("sealed", n, M, dim, RUN_TAG, "global", options)
    kdc, server, clients = make_roles(setup, ROOT)
    assert isinstance(kdc, SealedKdc)
    assert isinstance(server, SealedServer)
    draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "lab")
    server_updates = draw.standard_normal((M, dim))
    clusters = tuple(i % M for i in range(n))
    updates = draw.standard_normal((n, dim)) + server_updates[list(clusters)]
    updates[1] *= -1.0
    sealed_clients = [c for c in clients if isinstance(c, SealedClient)]
    lab = Lab(setup, parameters(setup), kdc, server, sealed_clients, updates, clusters, server_updates)
    for i, client in enumerate(sealed_clients if enrol else ()):
        (request,) = client.enrol()
        (answer,) = lab.to_kdc(request.message, client_address(i))
        client.receive(KDC, codec.encode(answer, RUN_TAG))
    return lab


def play_lab(lab: Lab, round_id: int = 1) -> None:
    """A whole honest round."""
    lab.start(round_id)
    for i, upload in enumerate(lab.uploads(round_id)):
        lab.deliver(lab.to_server(upload, client_address(i)))
    lab.close()
    lab.deliver(lab.server.finish_round())
