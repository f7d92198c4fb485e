"""The whole protocol on one page: read this first.

`Session.round` plays one round with every role in one process. The steps below are the same for every protocol; what a
step computes lies in ``protocol/<name>/{kdc,client,server}.py``, and the mathematics in ``paper/`` and ``sealed/``.
A deployment drives the very same roles over a network instead of the `Bus`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import RoundAborted, UsageError
from ebscfl.ids import KDC, SERVER, Address, Role
from ebscfl.protocol.bus import LOCAL, Bus, FaultyWire, Received
from ebscfl.protocol.codec import RUN_TAG_SIZE
from ebscfl.protocol.registry import make_roles
from ebscfl.protocol.roles import Outcome, Setup
from ebscfl.protocol.rounds import next_round_id
from ebscfl.protocol.states import State

Floats = npt.NDArray[np.floating]
SERVER_KEYS = ("ServerKeyPackage", "ScoringKey", "DenseScoringKey", "RoundVerification")
"""Messages that bring the server keys: taking them is not part of verifying, scoring and aggregating."""


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What one round gave and what it cost."""

    protocol: str
    aggregates: npt.NDArray[np.float64]  # (m, l), normalized; theta_k moves by eta * |g0^k| * aggregates[k]
    total_weight: float
    cluster_weight: npt.NDArray[np.float64] | None  # (m,) where the protocol reveals it
    included: tuple[int, ...]  # clients in the sums
    culprits: dict[str, str]  # who misbehaved and how
    restarts: int
    seconds: dict[str, float]  # kdc, server, client (mean of one), clients (all), codec; server_keys: part of server
    bytes: dict[str, int]  # client_upload, kdc_to_client, kdc_to_server, server_to_kdc: totals of the round
    bytes_by_message: dict[str, int]
    transcript: dict[Address, list[Received]] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


class Session:
    """All roles of one run. Rounds are played one after the other; keys live as long as the session."""

    def __init__(
        self,
        protocol: str,
        *,
        num_clients: int,
        num_clusters: int,
        dim: int,
        root: bytes,
        normalize: str = "global",
        options: Mapping[str, Any] | None = None,
        keep_transcript: bool = True,
        wire: FaultyWire | None = None,
    ) -> None:
        run_tag = rng.derive(root, rng.USAGE_ROLE, "run-tag")[:RUN_TAG_SIZE]
        self.setup = Setup(protocol, num_clients, num_clusters, dim, run_tag, normalize, dict(options or {}))
        self.kdc, self.server, self.clients = make_roles(self.setup, root)
        roles = {KDC: self.kdc, SERVER: self.server} | {client.address: client for client in self.clients}
        self.bus = Bus(roles, run_tag, keep_transcript=keep_transcript, wire=wire)
        self._next_round = 1
        self._played = False
        # Once. Clients: enrol with the key centre, which answers each with its own key (where a protocol needs it).
        for client in self.clients:
            self.bus.act(client.address, client.enrol)

    def round(
        self,
        updates: Floats,
        clusters: Sequence[int],
        server_updates: Floats,
        *,
        training_round: int | None = None,
        clients: Sequence[int] | None = None,
    ) -> RoundResult:
        """One round: row i of ``updates`` and entry i of ``clusters`` are client i's.

        clients: who takes part, everybody by default; the rows of the others are not looked at.
        training_round: which round of the training this is, by default one more than the last. Keys and rounding
        depend on it and not on how many rounds were played before, so a resumed training goes on bit for bit.
        """
        self._check(updates, clusters, server_updates)
        if self._played:  # enrolment is paid for by the first round
            self.bus.reset_meters()
        training_round = self._next_round if training_round is None else training_round
        self._played, self._next_round = True, training_round + 1
        taking_part = tuple(range(self.setup.num_clients)) if clients is None else tuple(clients)
        if not set(taking_part) <= set(range(self.setup.num_clients)) or len(set(taking_part)) < len(taking_part):
            raise UsageError(f"clients must be different numbers in 0..{self.setup.num_clients - 1}")
        culprits: dict[str, str] = {}
        restarts = 0
        while True:
            self._collect(training_round, taking_part, updates, clusters, server_updates)
            culprits |= {str(address): reason for address, reason in self.server.culprits.items()}
            if not self.server.needs_restart:
                break
            # Server: zero-sum masks do not survive a missing client, so the round starts over without it.
            taking_part = tuple(i for i in taking_part if i not in self.server.missing)
            self.server.abandon_round()
            restarts += 1
            if len(taking_part) < 2:
                raise RoundAborted("fewer than two clients are left", culprits=tuple(culprits))
        # Server (with the key centre, where the protocol needs it): aggregate and open the sums, nothing else.
        self.bus.act(SERVER, self.server.finish_round)
        self.bus.act(SERVER, self.server.pending)  # whatever was lost on the way is asked again
        culprits |= {str(address): reason for address, reason in self.kdc.culprits.items()}
        if self.server.outcome is None:
            raise self._aborted("ended without a result", culprits)
        return self._result(self.server.outcome, culprits, restarts)

    def _collect(
        self,
        training_round: int,
        taking_part: Sequence[int],
        updates: Floats,
        clusters: Sequence[int],
        server_updates: Floats,
    ) -> None:
        # A round id is never used twice: a restart has fresh keys.
        round_id = next_round_id(training_round, self.server.round_id)
        # Server: commit the m root updates g0^k to the key centre. Key centre: deal or refresh keys.
        self.bus.act(SERVER, partial(self.server.start_round, round_id, taking_part, server_updates))
        self.bus.act(SERVER, self.server.pending)
        if self.server.state is not State.COLLECTING:
            raise self._aborted("was not opened", {str(a): why for a, why in self.kdc.culprits.items()})
        # Clients: encode the update into the slot of the chosen cluster, one message each.
        # Server: verify and score each upload as it arrives.
        for i in taking_part:
            client = self.clients[i]
            self.bus.act(client.address, partial(client.encode, round_id, updates[i], int(clusters[i])))
        # Server: ask those whose upload is missing or failed a check once more. Clients: repeat it.
        self.bus.act(SERVER, self.server.close_uploads)
        # Server: whoever failed twice is out and named.
        self.bus.act(SERVER, self.server.close_uploads)
        self.bus.act(SERVER, self.server.pending)

    def _aborted(self, what: str, culprits: Mapping[str, str]) -> RoundAborted:
        """The error for a round that ends here; the next round may begin."""
        if self.server.state is not State.IDLE:
            self.server.abandon_round()
        why = self.server.refusal or "the key centre did not answer"
        return RoundAborted(f"round {self.server.round_id} {what}: {why}", culprits=tuple(culprits))

    def _check(self, updates: Floats, clusters: Sequence[int], server_updates: Floats) -> None:
        setup = self.setup
        if updates.shape != (setup.num_clients, setup.dim) or len(clusters) != setup.num_clients:
            raise UsageError(
                f"{setup.num_clients} clients of dimension {setup.dim} expected, "
                f"got updates {updates.shape} and {len(clusters)} clusters"
            )
        if server_updates.shape != (setup.num_clusters, setup.dim):
            raise UsageError(f"server updates must have shape {(setup.num_clusters, setup.dim)}")
        if any(not 0 <= int(k) < setup.num_clusters for k in clusters):
            raise UsageError(f"clusters must lie in 0..{setup.num_clusters - 1}")

    def _result(self, outcome: Outcome, culprits: dict[str, str], restarts: int) -> RoundResult:
        bus = self.bus
        client_seconds = [s for address, s in bus.seconds.items() if address.role is Role.CLIENT]
        flows = {
            "client_upload": (Role.CLIENT, Role.SERVER),
            "kdc_to_client": (Role.KDC, Role.CLIENT),
            "kdc_to_server": (Role.KDC, Role.SERVER),
            "server_to_kdc": (Role.SERVER, Role.KDC),
        }
        by_message: dict[str, int] = {}
        for (_, _, name), size in bus.bytes.items():
            by_message[name] = by_message.get(name, 0) + size
        return RoundResult(
            protocol=self.setup.protocol,
            aggregates=outcome.aggregates,
            total_weight=outcome.total_weight,
            cluster_weight=outcome.cluster_weight,
            included=outcome.included,
            culprits=culprits,
            restarts=restarts,
            seconds={
                "kdc": bus.seconds.get(KDC, 0.0),
                "server": bus.seconds.get(SERVER, 0.0),
                "client": sum(client_seconds) / max(1, len(client_seconds)),
                "clients": sum(client_seconds),
                "codec": bus.codec_seconds,
                "client_encode": bus.event_seconds[Role.CLIENT, LOCAL] / max(1, len(client_seconds)),
                "server_keys": sum(
                    s for (role, event), s in bus.event_seconds.items() if role is Role.SERVER and event in SERVER_KEYS
                ),
            },
            bytes={
                name: sum(size for (a, b, _), size in bus.bytes.items() if (a, b) == flow)
                for name, flow in flows.items()
            },
            bytes_by_message=by_message,
            transcript={address: list(entries) for address, entries in bus.transcript.items()},
            events=outcome.events,
            details=outcome.details,
        )


def play_round(
    updates: Floats,
    clusters: Sequence[int],
    server_updates: Floats,
    *,
    protocol: str = "plain",
    seed: int = 0,
    normalize: str = "global",
    wire: FaultyWire | None = None,
    **options: Any,
) -> RoundResult:
    """One round from nothing: make the roles, play, return aggregates, costs and every message that was received."""
    session = Session(
        protocol,
        num_clients=len(updates),
        num_clusters=len(server_updates),
        dim=updates.shape[1],
        root=rng.root_from_seed(seed),
        normalize=normalize,
        options=options,
        wire=wire,
    )
    return session.round(updates, clusters, server_updates)
