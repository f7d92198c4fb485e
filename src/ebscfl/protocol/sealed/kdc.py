"""The sealed key centre: shares a master key with every client, answers each upload once, releases each round once.

What it can and cannot tell apart. A failing tag means that the upload or the server's products are not what the client
sealed; nobody can say which of the two lied, so the client is barred for the run (a server could as well have dropped
it) and counted. More barred clients than corrupt ones are tolerated prove that the server lies: it is served no more.
What only a server can send is judged at once: a used round, a second set U, a set it was never answered for, root
updates changed within a round, a false opening of the counts. All of it is in the store before any answer leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import ProtocolError, RoundAborted, SequenceError, VerificationError
from ebscfl.ids import KDC, SERVER, Address, Role
from ebscfl.protocol.messages import (
    Commitment,
    Enrolment,
    EnrolRequest,
    Message,
    OpenRound,
    Refusal,
    Release,
    ReleaseRequest,
    RoundOpened,
    ScoreAnswer,
    ScoreRequest,
)
from ebscfl.protocol.roles import KdcRole, Outgoing, Setup
from ebscfl.protocol.sealed.channel import seal_to
from ebscfl.protocol.sealed.client import enrolment_context
from ebscfl.protocol.sealed.store import Answer, KdcStore
from ebscfl.protocol.sealed.words import from_wire, to_wire
from ebscfl.protocol.states import State, Step, step
from ebscfl.sealed import (
    NUM_PRODUCTS,
    ClientKeys,
    NoiseSettings,
    RunningSum,
    SealedParameters,
    Verdict,
    batch_seed,
    check_quorum,
    check_server_row,
    client_keys,
    decide_slots,
    fold,
    guard_scalar,
    kdc_check,
    make_sketch,
    master_key,
    new_sum,
    pads,
    products,
    release,
    round_noise,
    spent_epsilon,
)
from ebscfl.sealed import Answer as MaskedWeight
from ebscfl.sealed.score import REASON_TAG

REASON_BARRED = "barred"
REASONS = {
    REASON_BARRED: "it is barred for this run",
    "tag": "its upload is not what it sealed for this round (or the server changed it)",
    "count": "its count is not one half",
    "norm": "its update is longer than one",
}


class SealedKdc(KdcRole):
    """Answers from the store; the running sum P is a cache that a restart recomputes."""

    protocol = "sealed"

    def __init__(
        self, setup: Setup, params: SealedParameters, *, root: bytes, store: KdcStore, noise: NoiseSettings | None
    ) -> None:
        super().__init__(setup, KDC)
        self.state = State.SERVING if store.halted() is None else State.HALTED
        self._params = params
        self._root = root
        self._store = store
        self._noise = noise
        self._run = setup.run_id.hex()
        self._tolerated = int(setup.option("tolerated", params.quorum - 1))
        self._buffer = params.field.zeros((2, params.width))
        self._row: npt.NDArray[np.int32] | None = None
        self._total: RunningSum | None = None
        self._batches: dict[int, tuple[bytes, ScoreAnswer]] = {}

    # --- enrolment --------------------------------------------------------------------------------------------------

    def on_enrol(self, sender: Address, message: EnrolRequest) -> list[Outgoing]:
        """Deal the client its master key, sealed to its public key; asked again with the same key, the same answer."""
        if sender.role is not Role.CLIENT or not 0 <= sender.client < self.setup.num_clients:
            raise SequenceError(f"{sender} cannot enrol", culprits=(sender,))
        client = sender.client
        master = master_key(self._root, self._run, client)
        ephemeral = rng.derive(self._root, rng.USAGE_ROLE, "enrol", client, message.public_key)
        context = enrolment_context(self.setup.run_id, client)
        sealed = seal_to(message.public_key, master, context=context, ephemeral_private=ephemeral)
        self._store.enrol(client, message.public_key, master)
        return [Outgoing(sender, Enrolment(*sealed))]

    # --- a round ----------------------------------------------------------------------------------------------------

    def on_commitment(self, sender: Address, message: Commitment) -> list[Outgoing]:
        """Keep the root updates; they must be unit vectors and cannot change within an open round."""
        if refused := self._not_served(sender, message.round_id):
            return refused
        newest, _ = self._store.current_round()
        if message.round_id <= newest:
            return self._caught(message.round_id, f"root updates changed in round {newest}, which is open or over")
        try:
            check_server_row(self._params, np.ascontiguousarray(message.row))
        except VerificationError as error:
            return self._caught(message.round_id, str(error))
        self._store.commit_updates(message.row.astype("<i4").tobytes())
        self._row = None
        return []

    def on_open_round(self, sender: Address, message: OpenRound) -> list[Outgoing]:
        """Use up the round id; from here on the committed root updates are fixed."""
        if refused := self._not_served(sender, message.round_id):
            return refused
        newest, clients = self._store.current_round()
        if message.round_id == newest and message.clients == clients and not self._store.answers(newest):
            return [self._opened(message.round_id)]  # the answer was lost on the way: nothing has been used yet
        if message.round_id <= newest:
            return self._caught(message.round_id, f"round {message.round_id} is replayed: {newest} was opened before")
        if self._store.committed_updates() is None:
            return [self._refuse(message.round_id, "no root updates are committed")]
        unknown = set(message.clients) - set(self._store.enrolled())
        if unknown or len(set(message.clients)) != len(message.clients):
            return [self._refuse(message.round_id, f"clients that are not enrolled or named twice: {sorted(unknown)}")]
        self._store.open_round(message.round_id, message.clients)
        self._row, self._total, self._batches = None, None, {}
        return [self._opened(message.round_id)]

    def on_score_request(self, sender: Address, message: ScoreRequest) -> list[Outgoing]:
        """Check every row's tag, the count and the norm of each upload; answer rho - kappa."""
        if refused := self._not_served(sender, message.round_id):
            return refused
        current, clients = self._store.current_round()
        if message.round_id != current or self._store.released(current) is not None:
            return self._caught(message.round_id, f"scores asked for round {message.round_id}, which is not open")
        digest = _digest(message)
        if message.batch in self._batches and self._batches[message.batch][0] == digest:
            return [Outgoing(SERVER, self._batches[message.batch][1])]  # the very same question, the same answer
        used = self._store.answers(current)
        if message.clients and all(c in used and used[c].request_digest == digest for c in message.clients):
            return [Outgoing(SERVER, _reply(message, [used[c] for c in message.clients]))]  # answered before a restart
        if message.batch in self._batches or used.keys() & set(message.clients):
            return self._caught(current, "an upload was asked about twice with different products")
        if not message.clients or not set(message.clients) <= set(clients):
            return self._caught(current, f"scores asked for clients outside round {current}")
        shape = (len(message.clients), 2, NUM_PRODUCTS)
        try:
            sent = from_wire(self._params.field, message.products, shape, name="products")
        except ProtocolError as error:
            return self._caught(current, str(error))
        return self._answer(message, digest, sent)

    def _answer(self, message: ScoreRequest, digest: bytes, sent: npt.NDArray[Any]) -> list[Outgoing]:
        params, round_id = self._params, message.round_id
        sketch = make_sketch(params, batch_seed(self._sketch_key(round_id), message.batch))
        lam = guard_scalar(params, self._root, self._run, round_id)
        total = self._running_sum(round_id)
        answers: list[Answer] = []
        barred_before = self._store.barred()
        barred: dict[int, str] = {}
        pending = new_sum(params)
        for client, rows in zip(message.clients, sent, strict=True):
            if client in barred_before:
                answers.append(Answer(client, False, REASON_BARRED, 0, 0, 0, digest, float("nan")))
                continue
            keys = self._keys(round_id, client)
            own = products(params, pads(params, keys, self._buffer), self._committed(), sketch)
            verdict = kdc_check(params, rows, own, keys, lam)
            answers.append(_answer_of(client, verdict, digest))
            if verdict.reason == REASON_TAG:
                barred[client] = REASONS[REASON_TAG]
            if verdict.answer is not None:
                fold(params, pending, [verdict.answer], [self._buffer], [keys.guard_pad])
        self._store.record_answers(round_id, answers, bar=barred)  # durable before anything leaves
        self._total = _added(params, total, pending)
        if len(self._store.barred()) > self._tolerated:
            count = len(self._store.barred())
            return self._caught(round_id, f"{count} clients failed their tags, {self._tolerated} may be corrupt")
        reply = _reply(message, answers)
        self._batches[message.batch] = (digest, reply)
        return [Outgoing(SERVER, reply)]

    def on_release_request(self, sender: Address, message: ReleaseRequest) -> list[Outgoing]:
        """Check the set and the opened counts, mark the round released, then send P on the heavy enough slots."""
        if refused := self._not_served(sender, message.round_id):
            return refused
        params = self._params
        current, _ = self._store.current_round()
        included = tuple(sorted(message.included))
        before = self._store.released(current)
        if message.round_id != current:
            return self._caught(message.round_id, f"release asked for round {message.round_id}, which is not open")
        if before is not None and before != included:
            return self._caught(current, f"a second set was sent for round {current}")
        accepted = {client: a for client, a in self._store.answers(current).items() if a.accepted}
        if len(set(included)) != len(included) or not set(included) <= accepted.keys():
            return self._caught(current, "the set holds clients that were never accepted")
        try:
            check_quorum(params, len(included))
        except RoundAborted as error:
            return [self._refuse(current, str(error))]
        total = self._sum_of(current, included)
        lam = guard_scalar(params, self._root, self._run, current)
        noise = round_noise(params, self._root, self._run, current)
        weight = sum(accepted[i].rho for i in included)
        try:
            opening = from_wire(params.field, message.opening, (2, params.num_clusters), name="count opening")
            decision = decide_slots(params, opening, total, lam, weight, noise)
        except ProtocolError as error:
            return self._caught(current, str(error))
        if before is None:
            self._store.release(current, included)  # durable first: from here on nothing else of this round is released
        released = release(params, total, decision, noise)
        slots = released.released.astype(np.uint8)
        return [Outgoing(SERVER, Release(current, slots, to_wire(released.words), self._spend(current)))]

    # --- parts ------------------------------------------------------------------------------------------------------

    def _keys(self, round_id: int, client: int) -> ClientKeys:
        master = self._store.master_key(client)
        if master is None:
            raise SequenceError(f"client {client} is not enrolled", culprits=(client,))
        return client_keys(self._params, master, self._run, round_id, client)

    def _committed(self) -> npt.NDArray[np.int32]:
        if self._row is None:
            self._row = np.frombuffer(self._store.committed_updates() or b"", dtype="<i4").astype(np.int32)
        return self._row

    def _sketch_key(self, round_id: int) -> bytes:
        return rng.derive(self._root, rng.USAGE_SEALED_SKETCH, self._run, round_id)

    def _opened(self, round_id: int) -> Outgoing:
        return Outgoing(SERVER, RoundOpened(round_id, self._sketch_key(round_id)))

    def _running_sum(self, round_id: int) -> RunningSum:
        """P over everything answered so far; recomputed from the store after a restart."""
        if self._total is None:
            accepted = [client for client, a in self._store.answers(round_id).items() if a.accepted]
            self._total = self._recompute(round_id, accepted)
        return self._total

    def _recompute(self, round_id: int, clients: Sequence[int]) -> RunningSum:
        total, answers = new_sum(self._params), self._store.answers(round_id)
        for client in clients:
            keys = self._keys(round_id, client)
            answer = MaskedWeight(answers[client].alpha, answers[client].guard_alpha)
            fold(self._params, total, [answer], [pads(self._params, keys, self._buffer)], [keys.guard_pad])
        return total

    def _sum_of(self, round_id: int, included: Sequence[int]) -> RunningSum:
        """P over exactly ``included``: the running sum without those whose answer the server never added."""
        field = self._params.field
        total = self._running_sum(round_id)
        left_out = [c for c, a in self._store.answers(round_id).items() if a.accepted and c not in set(included)]
        if not left_out:
            return total
        extra = self._recompute(round_id, left_out)
        return RunningSum(field.subtract(total.words, extra.words), field.subtract(total.guard, extra.guard))

    def _spend(self, round_id: int) -> float:
        """epsilon spent so far, counting every release of the run."""
        if self._noise is None:
            return 0.0
        released = int.from_bytes(self._store.note("releases") or b"\0", "little")
        newest = int.from_bytes(self._store.note("last-release") or b"\0", "little")
        if round_id != newest:
            released += 1
            self._store.put_note("releases", released.to_bytes(8, "little"))
            self._store.put_note("last-release", round_id.to_bytes(8, "little"))
        return spent_epsilon(self._params.noise_multiplier, released, self._noise.delta)

    # --- verdicts ---------------------------------------------------------------------------------------------------

    def _not_served(self, sender: Address, round_id: int) -> list[Outgoing]:
        if sender != SERVER:
            raise SequenceError(f"only the server asks that, not {sender}", culprits=(sender,))
        reason = self._store.halted()
        return [] if reason is None else [self._refuse(round_id, f"this server was caught: {reason}")]

    def _refuse(self, round_id: int, reason: str) -> Outgoing:
        return Outgoing(SERVER, Refusal(round_id, reason[:500]))

    def _caught(self, round_id: int, reason: str) -> list[Outgoing]:
        """The server lied: durable, final."""
        self._store.halt(reason)
        self.state = step(self.protocol, self.role, self.state, Step.CATCH)
        self.culprits[SERVER] = reason
        return [self._refuse(round_id, f"this server was caught: {reason}")]

    def handlers(self) -> dict[type[Message], Callable[[Address, Any], list[Outgoing]]]:
        return {
            EnrolRequest: self.on_enrol,
            Commitment: self.on_commitment,
            OpenRound: self.on_open_round,
            ScoreRequest: self.on_score_request,
            ReleaseRequest: self.on_release_request,
        }


def _digest(message: ScoreRequest) -> bytes:
    header = repr((message.round_id, message.batch, message.clients)).encode()
    return hashlib.blake2b(header + message.products.tobytes(), digest_size=32).digest()


def _reply(message: ScoreRequest, answers: Sequence[Answer]) -> ScoreAnswer:
    return ScoreAnswer(
        message.round_id,
        message.batch,
        message.clients,
        np.array([[a.alpha, a.guard_alpha] for a in answers], dtype=np.uint64),
        tuple("" if a.accepted else REASONS[a.reason][:64] for a in answers),
    )


def _answer_of(client: int, verdict: Verdict, digest: bytes) -> Answer:
    masked = verdict.answer or MaskedWeight(0, 0)
    return Answer(
        client,
        verdict.accepted,
        verdict.reason,
        masked.alpha,
        masked.guard_alpha,
        verdict.weight,
        digest,
        verdict.score,
    )


def _added(params: SealedParameters, one: RunningSum, two: RunningSum) -> RunningSum:
    return RunningSum(params.field.add(one.words, two.words), params.field.add(one.guard, two.guard))
