"""The sealed server: products of each upload, one addition per upload, and a release at the end.

It holds at most one batch of uploads; its memory does not depend on the number of clients. What it sees is uniform
noise until the key centre's release, and then only the sums.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ebscfl.errors import SequenceError, UsageError, VerificationError
from ebscfl.field import Words
from ebscfl.ids import KDC, Address, client_address
from ebscfl.protocol.messages import (
    Commitment,
    Message,
    OpenRound,
    Refusal,
    Release,
    ReleaseRequest,
    RoundOpened,
    ScoreAnswer,
    ScoreRequest,
    SealedUpload,
)
from ebscfl.protocol.roles import Floats, Outcome, Outgoing, ServerRole, Setup
from ebscfl.protocol.sealed.words import from_wire, to_wire
from ebscfl.sealed import (
    Answer,
    RunningSum,
    SealedParameters,
    aggregates,
    batch_seed,
    fold,
    make_sketch,
    new_sum,
    open_counts,
    products_many,
    quantize_server_updates,
    slot_weights,
    unseal,
)
from ebscfl.sealed import Release as ReleasedSum

BATCH_BYTES = 64 << 20
"""Uploads wait for their batch up to this size: one sketch and one exchange with the key centre serve them all."""
BATCH_CLIENTS = 32
THREADS = max(1, min(8, os.cpu_count() or 1))


class Held(NamedTuple):
    """One checked upload that waits for its answer."""

    client: int
    pair: Words  # (2, width)
    guard: Words  # (m,)


class SealedServer(ServerRole):
    """Streams uploads into one running sum."""

    protocol = "sealed"

    def __init__(self, setup: Setup, params: SealedParameters) -> None:
        super().__init__(setup)
        self._params = params
        self._batch_size = max(1, min(BATCH_CLIENTS, BATCH_BYTES // params.upload_bytes))
        self._row: npt.NDArray[np.int32] | None = None
        self._sketch_key: bytes | None = None
        self._sum = new_sum(params)
        self._held: list[Held] = []
        self._asked: dict[int, list[Held]] = {}
        self._batch = 0

    def open_round(self, server_updates: Floats) -> list[Outgoing]:
        """Commit the root updates when they changed, then open the round."""
        row = quantize_server_updates(self._params, server_updates)
        self._sketch_key, self._sum, self._batch = None, new_sum(self._params), 0
        self._held, self._asked = [], {}
        outgoing = []
        if self._row is None or not np.array_equal(row, self._row):
            outgoing.append(Outgoing(KDC, Commitment(self.round_id, row)))
        self._row = row
        return [*outgoing, Outgoing(KDC, OpenRound(self.round_id, self.expected))]

    def on_round_opened(self, sender: Address, message: RoundOpened) -> list[Outgoing]:
        """From here on batches can be scored."""
        self._only_kdc(sender)
        if message.round_id != self.round_id:
            raise SequenceError(f"the key centre opened round {message.round_id}", culprits=(sender,))
        self._sketch_key = message.sketch_key
        return []

    def on_upload(self, sender: Address, message: SealedUpload) -> list[Outgoing]:
        """Check shape and range, then hold it until its batch is full."""
        client = self.check_upload(sender, message.round_id)
        params = self._params
        pair = from_wire(params.field, message.words, (2, params.width), name=f"the upload of {sender}")
        guard = from_wire(params.field, message.guard, (params.num_clusters,), name=f"the guard of {sender}")
        self._held.append(Held(client, pair, guard))
        self.waiting.add(client)
        return self.flush() if len(self._held) >= self._batch_size else []

    def flush(self) -> list[Outgoing]:
        """Ask the key centre about the uploads at hand."""
        if not self._held or self._sketch_key is None:
            return []
        assert self._row is not None
        sketch = make_sketch(self._params, batch_seed(self._sketch_key, self._batch))
        pairs = [held.pair for held in self._held]
        products = np.stack(products_many(self._params, pairs, self._row, sketch, threads=THREADS))
        clients = tuple(held.client for held in self._held)
        request = ScoreRequest(self.round_id, self._batch, clients, to_wire(products))
        self._asked[self._batch] = self._held
        self._held, self._batch = [], self._batch + 1
        return [Outgoing(KDC, request)]

    def on_score_answer(self, sender: Address, message: ScoreAnswer) -> list[Outgoing]:
        """y += alpha c + t for every accepted upload of the batch; then the uploads are dropped."""
        self._only_kdc(sender)
        asked = self._asked.pop(message.batch, None)
        count = 0 if asked is None else len(asked)
        fits = message.answers.shape == (count, 2) and len(message.refusals) == count
        if asked is None or message.clients != tuple(held.client for held in asked) or not fits:
            raise VerificationError(f"an answer to batch {message.batch} that was not asked so", culprits=(sender,))
        self.waiting -= set(message.clients)
        taken = [(h, row) for h, row, no in zip(asked, message.answers, message.refusals, strict=True) if not no]
        for held, reason in zip(asked, message.refusals, strict=True):
            if reason:
                self.rejected.add(held.client)
                self.culprits[client_address(held.client)] = reason
        fold(
            self._params,
            self._sum,
            [Answer(int(row[0]), int(row[1])) for _, row in taken],
            [held.pair for held, _ in taken],
            [held.guard for held, _ in taken],
            threads=THREADS,
        )
        self.accepted |= {held.client for held, _ in taken}
        return []

    def finish(self) -> list[Outgoing]:
        """Ask for the release of exactly what was added."""
        if self._held or self._asked:
            raise UsageError("uploads are still waiting for their answers")
        opening = to_wire(open_counts(self._params, self._sum))
        return [Outgoing(KDC, ReleaseRequest(self.round_id, tuple(sorted(self.accepted)), opening))]

    def on_release(self, sender: Address, message: Release) -> list[Outgoing]:
        """y - P: the weighted sums of the released slots."""
        self._only_kdc(sender)
        params = self._params
        if message.round_id != self.round_id or message.slots.shape != (params.num_clusters,):
            raise VerificationError(f"a release for round {message.round_id}", culprits=(sender,))
        words = from_wire(params.field, message.pad_sum, (params.width,), name="the release")
        released = message.slots.astype(bool)
        opened = unseal(params, self._sum, ReleasedSum(words, released))
        weights = slot_weights(params, opened)
        events = [f"slot {k} stays closed: too little trust weight" for k in np.flatnonzero(~released)]
        if not weights.any():
            events.append("no client is trusted: no step")
        self._sum = new_sum(params)
        self.outcome = Outcome(
            aggregates=aggregates(params, opened, self.setup.normalize),
            total_weight=float(weights.sum()),
            cluster_weight=weights,
            included=tuple(sorted(self.accepted)),
            events=tuple(events),
            details={"parameters": params.describe(), "epsilon_spent": message.epsilon_spent},
        )
        return []

    @property
    def running_sum(self) -> RunningSum:
        """y: what partial servers merge."""
        return self._sum

    def _only_kdc(self, sender: Address) -> None:
        if sender != KDC:
            raise SequenceError(f"only the key centre sends that, not {sender}", culprits=(sender,))

    def handlers(self) -> dict[type[Message], Callable[[Address, Any], list[Outgoing]]]:
        return {
            RoundOpened: self.on_round_opened,
            SealedUpload: self.on_upload,
            ScoreAnswer: self.on_score_answer,
            Release: self.on_release,
            Refusal: self.on_refusal,
        }
