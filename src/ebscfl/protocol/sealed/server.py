"""The sealed server: products of each upload, one addition per upload, and a release at the end.

It holds at most one batch of uploads; its memory does not depend on the number of clients. What it sees is uniform
noise until the key centre's release, and then only the sums.

Server and key centre talk over an ordered, authenticated connection. When it breaks, whatever was not answered is asked
again over the next one (`pending`); repeated and late answers are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ebscfl.errors import RoundAborted, SequenceError, VerificationError
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
from ebscfl.protocol.sealed.round_store import KeptSum, RoundStore
from ebscfl.protocol.sealed.shards import SharedUploads
from ebscfl.protocol.sealed.words import from_wire, to_wire
from ebscfl.protocol.states import State, Step
from ebscfl.sealed import (
    Answer,
    RunningSum,
    SealedParameters,
    aggregates,
    batch_seed,
    fold,
    guard_products,
    guard_row,
    make_sketch,
    new_sum,
    open_counts,
    products_many,
    quantize_server_updates,
    slot_weights,
    unseal,
    workers_for,
)
from ebscfl.sealed import Release as ReleasedSum

BATCH_BYTES = 32 << 20
"""Uploads wait for their batch up to this size: one sketch and one exchange with the key centre serve them all."""
BATCH_CLIENTS = 32


class Held(NamedTuple):
    """One checked upload that waits for its answer."""

    client: int
    pair: Words  # (2, width)
    guard: Words  # (m,)
    blind: Words  # (2,)


class Asked(NamedTuple):
    """A batch the key centre has not answered yet."""

    held: list[Held]
    request: ScoreRequest
    shared: SharedUploads | None  # with the workers, if there are any


class SealedServer(ServerRole):
    """Streams uploads into one running sum. ``store`` is what survives a crash, if anything is to."""

    protocol = "sealed"

    def __init__(self, setup: Setup, params: SealedParameters, *, store: RoundStore | None = None) -> None:
        super().__init__(setup)
        self._params = params
        self._store = store
        if store is not None:
            self.round_id = store.newest()
        fitting = max(1, min(BATCH_CLIENTS, BATCH_BYTES // params.upload_bytes))
        self._batch_size = fitting if fitting < 4 else fitting // 4 * 4  # the kernels add uploads by fours
        self._workers = workers_for(params.width)
        self._row: npt.NDArray[np.int32] | None = None
        self._committed = False
        self._sketch_key: bytes | None = None
        self._sum = new_sum(params)
        self._held: list[Held] = []
        self._asked: dict[int, Asked] = {}
        self._batch = 0

    def open_round(self, server_updates: Floats) -> list[Outgoing]:
        """Commit the root updates when they changed, then open the round."""
        row = quantize_server_updates(self._params, server_updates)
        if self._store is not None:
            self._store.use(self.round_id)
        self._sketch_key, self._sum, self._batch = None, new_sum(self._params), 0
        self._held, self._asked = [], {}
        self._committed = self._committed and self._row is not None and np.array_equal(row, self._row)
        self._row = row
        return self._opening()

    def _opening(self) -> list[Outgoing]:
        assert self._row is not None
        commitment = [] if self._committed else [Outgoing(KDC, Commitment(self.round_id, self._row))]
        return [*commitment, Outgoing(KDC, OpenRound(self.round_id, self.expected))]

    def pending(self) -> list[Outgoing]:
        """What the key centre has not answered; it gives the same answer to the same question, however often."""
        if self.state is State.AWAITING_KEYS:
            return self._opening()
        if self.state is State.RELEASING:
            return [self._release_request()]
        return [Outgoing(KDC, asked.request) for asked in self._asked.values()]

    def on_round_opened(self, sender: Address, message: RoundOpened) -> list[Outgoing]:
        """From here on clients may upload."""
        self._only_kdc(sender)
        if message.round_id != self.round_id:
            raise SequenceError(f"the key centre opened round {message.round_id}", culprits=(sender,))
        self._sketch_key = message.sketch_key
        self._committed, self.refusal = True, None
        return []

    def on_upload(self, sender: Address, message: SealedUpload) -> list[Outgoing]:
        """Check shape and range, then hold it until its batch is full."""
        client = self.check_upload(sender, message.round_id)
        params = self._params
        pair = from_wire(params.field, message.words, (2, params.width), name=f"the upload of {sender}")
        guard = from_wire(params.field, message.guard, (params.num_clusters,), name=f"the guard of {sender}")
        blind = from_wire(params.field, message.blind, (2,), name=f"the blinding word of {sender}")
        self._held.append(Held(client, pair, guard, blind))
        self.waiting.add(client)
        return self.flush() if len(self._held) >= self._batch_size else []

    def flush(self) -> list[Outgoing]:
        """Ask the key centre about the uploads at hand."""
        if not self._held:
            return []
        assert self._row is not None
        assert self._sketch_key is not None
        params, seed = self._params, batch_seed(self._sketch_key, self._batch)
        sketch, row = make_sketch(params, seed), guard_row(params, seed)
        pairs = [held.pair for held in self._held]
        shared = None
        if self.pool.workers:
            shared = SharedUploads(params, self.pool, [(held.pair, held.guard) for held in self._held])
            products = shared.products(self._row, sketch)
        else:
            products = np.stack(products_many(params, pairs, self._row, sketch, workers=self._workers))
        clients = tuple(held.client for held in self._held)
        guards = np.stack([guard_products(params, _counts(params, h.pair), h.guard, h.blind, row) for h in self._held])
        request = ScoreRequest(self.round_id, self._batch, clients, to_wire(products), to_wire(guards))
        self._asked[self._batch] = Asked(self._held, request, shared)
        self._held, self._batch = [], self._batch + 1
        return [Outgoing(KDC, request)]

    def on_score_answer(self, sender: Address, message: ScoreAnswer) -> list[Outgoing]:
        """y += alpha c + t for every accepted upload of the batch; then the uploads are dropped."""
        self._only_kdc(sender)
        if message.round_id != self.round_id or (message.batch < self._batch and message.batch not in self._asked):
            return []  # a repeated answer, or one to a round that was given up
        asked = self._asked.get(message.batch)
        held = [] if asked is None else asked.held
        fits = message.answers.shape == (len(held), 2) and len(message.refusals) == len(held)
        if not held or message.clients != tuple(one.client for one in held) or not fits:
            raise VerificationError(f"an answer to batch {message.batch} that was not asked so", culprits=(sender,))
        if int(message.answers.max()) >= self._params.field.modulus:
            raise VerificationError("an answer lies outside the field", culprits=(sender,))
        del self._asked[message.batch]
        self.waiting -= set(message.clients)
        taken = [(h, row) for h, row, no in zip(held, message.answers, message.refusals, strict=True) if not no]
        for one, reason in zip(held, message.refusals, strict=True):
            if reason:
                self.rejected.add(one.client)
                self.culprits[client_address(one.client)] = reason
        if asked is not None and asked.shared is not None:
            rows = zip(message.answers, message.refusals, strict=True)
            asked.shared.fold(self._sum, [None if no else Answer(int(row[0]), int(row[1])) for row, no in rows])
        else:
            fold(
                self._params,
                self._sum,
                [Answer(int(row[0]), int(row[1])) for _, row in taken],
                [held.pair for held, _ in taken],
                [held.guard for held, _ in taken],
                workers=self._workers,
            )
        self.accepted |= {held.client for held, _ in taken}
        return []

    def finish(self) -> list[Outgoing]:
        """Ask for the release of exactly what was added. From here on the sum survives a crash."""
        if self._held or self._asked:
            self.abandon_round()
            raise RoundAborted("the key centre has not answered every batch", culprits=(KDC,))
        if self._store is not None:
            words, guard = self._sum.words.tobytes(), self._sum.guard.tobytes()
            self._store.keep_sum(KeptSum(self.round_id, tuple(sorted(self.accepted)), words, guard))
        return [self._release_request()]

    def _release_request(self) -> Outgoing:
        opening = to_wire(open_counts(self._params, self._sum))
        return Outgoing(KDC, ReleaseRequest(self.round_id, tuple(sorted(self.accepted)), opening))

    def resume_release(self) -> list[Outgoing]:
        """After a crash: ask again for the release that was asked for. Nothing to ask: no message, no change."""
        kept = None if self._store is None else self._store.kept_sum()
        if kept is None:
            return []
        self.advance(Step.RESUME_RELEASE)
        field = self._params.field
        words, guard = (np.frombuffer(data, dtype=field.dtype).copy() for data in (kept.words, kept.guard))
        self.round_id, self.expected, self.accepted = kept.round_id, kept.included, set(kept.included)
        self._sum = RunningSum(words, guard)
        return [self._release_request()]

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


def _counts(params: SealedParameters, pair: Words) -> Words:
    """(m,) the count coordinates of c."""
    return pair[0, params.dim :: params.slot_size]
