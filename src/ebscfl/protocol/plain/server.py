"""The plain server: RFCA in the clear, one pass over each upload, memory independent of the number of clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import UsageError, VerificationError
from ebscfl.ids import Address
from ebscfl.plain import ClusterSums, unit_rows
from ebscfl.protocol.messages import Message, PlainUpload
from ebscfl.protocol.roles import Floats, Outcome, Outgoing, ServerRole, Setup


class PlainServer(ServerRole):
    """Scores and adds every upload as it arrives."""

    protocol = "plain"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._units: npt.NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._sums: npt.NDArray[np.float64] = np.zeros((0, 0))
        self._weights: npt.NDArray[np.float64] = np.zeros(0)

    def open_round(self, server_updates: Floats) -> list[Outgoing]:
        shape = (self.setup.num_clusters, self.setup.dim)
        if server_updates.shape != shape:
            raise UsageError(f"server updates must have shape {shape}, not {server_updates.shape}")
        self._units = unit_rows(server_updates).astype(np.float32)
        self._sums = np.zeros(shape)
        self._weights = np.zeros(len(server_updates))
        return []

    def on_upload(self, sender: Address, message: PlainUpload) -> list[Outgoing]:
        """Check, score against the claimed cluster's server update, add."""
        client = self.check_upload(sender, message.round_id)
        update = message.update
        if update.shape != (self.setup.dim,):
            raise VerificationError(
                f"{sender} sent {update.shape[0]} numbers, not {self.setup.dim}", culprits=(sender,)
            )
        if message.cluster >= self.setup.num_clusters:
            raise VerificationError(f"{sender} claims cluster {message.cluster}", culprits=(sender,))
        squared_norm = float(np.dot(update, update))
        if not 0 < squared_norm < np.inf:
            raise VerificationError(f"{sender} sent a zero or non-finite update", culprits=(sender,))
        norm = squared_norm**0.5
        trust = max(0.0, float(np.dot(update, self._units[message.cluster])) / norm)
        self._sums[message.cluster] += np.float32(trust / norm) * update
        self._weights[message.cluster] += trust
        self.accepted.add(client)
        return []

    def finish(self) -> list[Outgoing]:
        sums = ClusterSums(self._sums, self._weights)
        self.outcome = Outcome(
            aggregates=np.asarray(sums.aggregates(self.setup.normalize), dtype=np.float64),
            total_weight=float(self._weights.sum()),
            cluster_weight=self._weights.copy(),
            included=tuple(sorted(self.accepted)),
            events=tuple(self.events),
        )
        return []

    def handlers(self) -> dict[type[Message], Callable[[Address, Any], list[Outgoing]]]:
        return {PlainUpload: self.on_upload}
