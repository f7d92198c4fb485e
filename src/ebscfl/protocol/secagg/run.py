"""One round of a secure sum on one page: advertise, share, upload, open, with explicit points to drop out.

The steps differ from `protocol.run` (clients deal to each other, and nobody knows trust), so the comparators have a
session of their own, on the same bus, codec, transcript and meters. Roles are billed by CPU time, not by the clock.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import RoundAborted, UsageError
from ebscfl.ids import SERVER, Address, Role
from ebscfl.protocol.bus import Bus, FaultyWire, Received
from ebscfl.protocol.codec import RUN_TAG_SIZE
from ebscfl.protocol.roles import Floats, Outgoing, RoleMachine, Setup
from ebscfl.protocol.secagg import make_sum_roles
from ebscfl.protocol.secagg.roles import SumClient

DROP_POINTS = ("advertise", "share", "upload", "open")
"""Where a client may leave: before it sends its keys, its shares, its input, or what opens the sum."""


@dataclass(frozen=True, eq=False)
class SumResult:
    """What a round gave and what it cost."""

    protocol: str
    sums: npt.NDArray[np.int64]  # (m, l) exact
    mean: npt.NDArray[np.float64]  # (m, l) the sums over the number of included clients, in update units
    included: tuple[int, ...]
    culprits: dict[str, str]
    seconds: dict[str, float]  # CPU: server, client (mean of one), clients (all), codec
    client_seconds: dict[int, float]
    bytes: dict[str, int]  # client_upload, server_to_client: totals
    bytes_by_message: dict[str, int]
    transcript: dict[Address, list[Received]] = field(default_factory=dict)


def cpu_bus(
    roles: Mapping[Address, RoleMachine],
    run_tag: bytes,
    *,
    keep_transcript: bool = True,
    wire: FaultyWire | None = None,
) -> Bus:
    """A `Bus` that bills CPU time of the process: busy neighbors on the machine cost a role nothing."""
    bus = Bus(roles, run_tag, keep_transcript=keep_transcript, wire=wire)
    bus.clock = time.process_time
    return bus


class SecureSumSession:
    """All roles of one run; rounds are played one after the other."""

    def __init__(
        self,
        protocol: str,
        *,
        num_clients: int,
        dim: int,
        root: bytes,
        num_clusters: int = 1,
        options: Mapping[str, Any] | None = None,
        keep_transcript: bool = True,
        wire: FaultyWire | None = None,
    ) -> None:
        run_tag = rng.derive(root, rng.USAGE_ROLE, "run-tag")[:RUN_TAG_SIZE]
        self.setup = Setup(protocol, num_clients, num_clusters, dim, run_tag, options=dict(options or {}))
        self.server, self.clients = make_sum_roles(self.setup, root)
        self._roles: dict[Address, RoleMachine] = {SERVER: self.server} | {c.address: c for c in self.clients}
        self.bus = cpu_bus(self._roles, run_tag, keep_transcript=keep_transcript, wire=wire)
        self.fixed = self.server.params.fixed
        self._round_id = 0

    def round(
        self,
        updates: Floats,
        clusters: Sequence[int] | None = None,
        *,
        dropouts: Mapping[str, Collection[int]] | None = None,
    ) -> SumResult:
        """One round: row i of ``updates`` is client i's; ``dropouts`` says who leaves at which of `DROP_POINTS`."""
        self._check(updates, clusters, dropouts or {})
        claimed = [0] * self.setup.num_clients if clusters is None else [int(k) for k in clusters]
        leaving = {point: set((dropouts or {}).get(point, ())) for point in DROP_POINTS}
        bus, server = self.bus, self.server
        bus.reset_meters()
        bus.roles = dict(self._roles)
        self._round_id += 1
        round_id = self._round_id
        try:
            # Server: invite. Clients: fresh public keys.
            self._leave(leaving["advertise"])
            bus.act(SERVER, partial(server.start_round, round_id, range(self.setup.num_clients)))
            # Server: hand out the keys of each client's peers. Clients: deal encrypted shares (FastSecAgg deals later).
            self._leave(leaving["share"])
            bus.act(SERVER, server.close_keys)
            if server.deals_shares:
                # Server: relay. Clients: keep what they can open.
                bus.act(SERVER, server.close_shares)
            # Clients: the input, masked, or (FastSecAgg) as shares.
            self._leave(leaving["upload"])
            for client in self.clients:
                if client.address in bus.roles and client.is_ready:
                    i = client.client
                    bus.act(client.address, partial(self.upload, client, round_id, updates[i], claimed[i]))
            # Server: ask for what opens the sum (FastSecAgg: relay). Clients: answer once.
            self._leave(leaving["open"])
            bus.act(SERVER, server.close_uploads)
            # Server: open the sum, nothing else.
            bus.act(SERVER, server.finish_round)
        except RoundAborted:
            server.abandon_round()
            raise
        return self._result()

    def upload(self, client: SumClient, round_id: int, update: Floats, cluster: int) -> list[Outgoing]:
        """One client's input."""
        return client.encode(round_id, update, cluster)

    def _leave(self, clients: Collection[int]) -> None:
        for i in clients:
            self.bus.roles.pop(self.clients[i].address, None)

    def _check(self, updates: Floats, clusters: Sequence[int] | None, dropouts: Mapping[str, Collection[int]]) -> None:
        setup = self.setup
        if updates.shape != (setup.num_clients, setup.dim):
            raise UsageError(f"updates must have shape {(setup.num_clients, setup.dim)}, not {updates.shape}")
        if clusters is None and setup.num_clusters > 1:
            raise UsageError(f"with {setup.num_clusters} clusters every client must claim one")
        if clusters is not None and (
            len(clusters) != setup.num_clients or any(not 0 <= int(k) < setup.num_clusters for k in clusters)
        ):
            raise UsageError(f"{setup.num_clients} clusters in 0..{setup.num_clusters - 1} expected")
        if unknown := set(dropouts) - set(DROP_POINTS):
            raise UsageError(f"clients leave at {', '.join(DROP_POINTS)}, not at {sorted(unknown)[0]!r}")
        if any(not 0 <= i < setup.num_clients for ids in dropouts.values() for i in ids):
            raise UsageError(f"clients are numbered 0..{setup.num_clients - 1}")

    def _result(self) -> SumResult:
        bus, outcome = self.bus, self.server.outcome
        if outcome is None:
            raise UsageError("the round has no outcome")
        client_seconds = {a.client: s for a, s in bus.seconds.items() if a.role is Role.CLIENT}
        by_message: dict[str, int] = {}
        for (_, _, name), size in bus.bytes.items():
            by_message[name] = by_message.get(name, 0) + size
        return SumResult(
            protocol=self.setup.protocol,
            sums=outcome.sums,
            mean=self.fixed.decode(outcome.sums) / len(outcome.included),
            included=outcome.included,
            culprits={str(address): reason for address, reason in self.server.culprits.items()},
            seconds={
                "server": bus.seconds.get(SERVER, 0.0),
                "client": sum(client_seconds.values()) / max(1, len(client_seconds)),
                "clients": sum(client_seconds.values()),
                "codec": bus.codec_seconds,
            },
            client_seconds=client_seconds,
            bytes={
                "client_upload": _flow(bus, Role.CLIENT, Role.SERVER),
                "server_to_client": _flow(bus, Role.SERVER, Role.CLIENT),
            },
            bytes_by_message=by_message,
            transcript={address: list(entries) for address, entries in bus.transcript.items()},
        )


def _flow(bus: Bus, sender: Role, receiver: Role) -> int:
    return sum(size for (a, b, _), size in bus.bytes.items() if (a, b) == (sender, receiver))
