"""The sealed key centre: shares a master key with every client, answers each upload once, releases each round once.

What it can and cannot tell apart. A failing tag means that the upload or the server's products are not what the client
sealed; nobody can say which of the two lied, so the client is barred for the run (a server could as well have dropped
it) and counted. More barred clients than corrupt ones are tolerated prove that the server lies: it is served no more.
What only a server can send is judged at once: a used round, a second set U, a set it was never answered for, root
updates changed within a round, a false opening of the counts. All of it is in the store before any answer leaves.

The same question always gets the same answer, also after a crash: a server that lost the connection asks again. Honest
servers can come to a second attempt at a training round that was released (they lost the result): that is refused
(`ebscfl.protocol.rounds` says why), and so is a round beyond the privacy budget; neither is taken for a lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import ProtocolError, RoundAborted, SequenceError, VerificationError
from ebscfl.field import Words
from ebscfl.ids import KDC, SERVER, Address, Role
from ebscfl.pool import Pool
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
from ebscfl.protocol.rounds import LARGEST_ROUND_ID, round_id_of, training_round_of
from ebscfl.protocol.sealed.channel import seal_to
from ebscfl.protocol.sealed.client import enrolment_context
from ebscfl.protocol.sealed.history import ScoreMemory
from ebscfl.protocol.sealed.pad_work import Claim, PadWork, Rows
from ebscfl.protocol.sealed.shards import SharedPadWork
from ebscfl.protocol.sealed.store import Answer, KdcStore
from ebscfl.protocol.sealed.words import from_wire, to_wire
from ebscfl.protocol.states import State, Step, step
from ebscfl.rules.score_history import History
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
    guard_row,
    guard_scalar,
    make_sketch,
    master_key,
    new_sum,
    release,
    round_noise,
    spent_epsilon,
)
from ebscfl.sealed import Answer as MaskedWeight
from ebscfl.sealed.score import REASON_TAG, reweighed

REASON_BARRED = "barred"
REASONS = {
    REASON_BARRED: "it is barred for this run",
    "tag": "its upload is not what it sealed for this round (or the server changed it)",
    "count": "its count is not one half",
    "norm": "its update is longer than one",
}


@dataclass(repr=False)
class CurrentRound:
    """The newest round as the store has it, with P: a cache that a restart loads again."""

    round_id: int
    clients: tuple[int, ...]
    members: frozenset[int]
    row: npt.NDArray[np.int32]
    sketch_key: bytes
    lam: int
    answers: dict[int, Answer]
    batches: set[int]
    total: RunningSum  # P over all accepted

    def __repr__(self) -> str:
        return f"CurrentRound({self.round_id}, <redacted>)"


class SealedKdc(KdcRole):
    """Answers from the store; what it holds in memory is a cache."""

    protocol = "sealed"

    def __init__(
        self,
        setup: Setup,
        params: SealedParameters,
        *,
        root: bytes,
        store: KdcStore,
        noise: NoiseSettings | None,
        tolerated: int,
        memory: ScoreMemory | None = None,
    ) -> None:
        """``root`` and what ``store`` writes are what a key centre must keep; a store opens for its own run only."""
        super().__init__(setup, KDC)
        self._run = setup.run_id.hex()
        rules = (params, noise, tolerated, *(() if memory is None else (memory.settings,)))
        store.bind(rng.derive(root, rng.USAGE_ROLE, "store", self._run, repr(rules)))
        self.state = State.SERVING if store.halted() is None else State.HALTED
        self._params = params
        self._root = root
        self._store = store
        self._noise = noise
        self._tolerated = tolerated
        self._memory = memory
        self._work: PadWork | SharedPadWork = PadWork(params)
        self._round: CurrentRound | None = None

    def use(self, pool: Pool) -> None:
        super().use(pool)
        self._work = SharedPadWork(self._params, pool) if pool.workers else PadWork(self._params)

    # --- enrolment --------------------------------------------------------------------------------------------------

    def on_enrol(self, sender: Address, message: EnrolRequest) -> list[Outgoing]:
        """Deal the client its master key, sealed to its public key; asking again gives the same answer."""
        if sender.role is not Role.CLIENT or not 0 <= sender.client < self.setup.num_clients:
            raise SequenceError(f"{sender} cannot enrol", culprits=(sender,))
        client = sender.client
        master = master_key(self._root, self._run, client)
        ephemeral = rng.derive(self._root, rng.USAGE_ROLE, "enrol", client, message.public_key)
        context = enrolment_context(self.setup.run_id, client)
        sealed = seal_to(message.public_key, master, context=context, ephemeral_private=ephemeral)
        try:
            self._store.enrol(client, message.public_key, master)
        except SequenceError as error:
            self.culprits[sender] = str(error)
            return [Outgoing(sender, Refusal(0, str(error)))]
        return [Outgoing(sender, Enrolment(*sealed))]

    # --- a round ----------------------------------------------------------------------------------------------------

    def on_commitment(self, sender: Address, message: Commitment) -> list[Outgoing]:
        """Keep root updates for rounds that are not open yet; they must be unit vectors."""
        if refused := self._not_served(sender, message.round_id):
            return refused
        newest, _ = self._store.current_round()
        payload = message.row.astype("<i4", copy=False).tobytes()
        if message.round_id <= newest:
            if payload == self._store.committed_updates(message.round_id):
                return []  # a repeated message
            return self._caught(message.round_id, f"root updates changed in round {newest}, which is open or over")
        try:
            check_server_row(self._params, np.ascontiguousarray(message.row))
        except VerificationError as error:
            return self._caught(message.round_id, str(error))
        self._store.commit_updates(message.round_id, payload)
        return []

    def on_open_round(self, sender: Address, message: OpenRound) -> list[Outgoing]:
        """Use up the round id; from here on the committed root updates are fixed."""
        if refused := self._not_served(sender, message.round_id):
            return refused
        round_id = message.round_id
        newest, clients = self._store.current_round()
        if round_id == newest and message.clients == clients:
            return [self._opened(round_id)]  # the answer was lost on the way
        if round_id <= newest:
            return self._caught(round_id, f"round {round_id} is replayed: {newest} was opened before")
        if reason := self._reason_to_refuse(message):
            return [self._refuse(round_id, reason)]
        if unknown := sorted(set(message.clients) - set(self._store.enrolled())):
            reason = f"clients {unknown[:10]} are not enrolled"
            return [Outgoing(SERVER, Refusal(round_id, reason, tuple(unknown)))]  # one such must not stop the rest
        self._store.open_round(round_id, message.clients)
        self._round = None
        return [self._opened(round_id)]

    def _reason_to_refuse(self, message: OpenRound) -> str | None:
        """Why a new round cannot be opened, where an honest server may ask for it."""
        training_round = training_round_of(message.round_id)
        first, after = round_id_of(training_round), round_id_of(training_round) + round_id_of(1)
        if self._store.released_rounds(first, after):
            return f"training round {training_round} is released already: go on with the next one"
        if self._noise is not None and self._store.released_rounds() >= self._noise.rounds:
            return f"the privacy budget is spent: {self._noise.rounds} rounds are released (dp_rounds)"
        if self._store.committed_updates(message.round_id) is None:
            return "no root updates are committed"
        if len(set(message.clients)) != len(message.clients):
            return "a client is named twice"
        return None

    def on_score_request(self, sender: Address, message: ScoreRequest) -> list[Outgoing]:
        """Check every row's tag, the count and the norm of each upload; answer rho - kappa."""
        if refused := self._not_served(sender, message.round_id):
            return refused
        current, digest, wanted = self._current(), _digest(message), set(message.clients)
        open_now = current is not None and current.round_id == message.round_id
        answers = current.answers if current is not None and open_now else self._store.answers(message.round_id)
        asked_before = [answers[client] for client in message.clients if client in answers]
        if message.clients and [a.request_digest for a in asked_before] == [digest] * len(message.clients):
            return [Outgoing(SERVER, _reply(message, asked_before))]  # the very same question, the same answer
        if current is None or not open_now or self._store.released(current.round_id) is not None:
            return self._caught(message.round_id, f"scores asked for round {message.round_id}, which is not open")
        if asked_before or message.batch in current.batches:
            return self._caught(current.round_id, "an upload was asked about twice with different products")
        if message.batch >= len(current.clients):  # a batch holds a client: more numbers are for looking for a sketch
            return self._caught(
                current.round_id, f"batch {message.batch} of a round with {len(current.clients)} clients"
            )
        if not wanted or not wanted <= current.members or len(wanted) != len(message.clients):
            return self._caught(current.round_id, f"scores asked for clients outside round {current.round_id} or twice")
        size = len(message.clients)
        try:
            sent = from_wire(self._params.field, message.products, (size, 2, NUM_PRODUCTS), name="products")
            guards = from_wire(self._params.field, message.guards, (size, 2), name="guard products")
        except ProtocolError as error:
            return self._caught(current.round_id, str(error))
        return self._answer(current, message, digest, sent, guards)

    def _answer(
        self, current: CurrentRound, message: ScoreRequest, digest: bytes, sent: Words, guards: Words
    ) -> list[Outgoing]:
        barred = self._store.barred()
        judged = [i for i, client in enumerate(message.clients) if client not in barred]
        clients = [message.clients[i] for i in judged]
        self._round = None  # P is added to in place: until the answers are on disk only the store is to be trusted
        verdicts = self._judge(current, message.batch, clients, sent[judged], guards[judged])
        by_client = {message.clients[i]: verdict for i, verdict in zip(judged, verdicts, strict=True)}
        answers = [_answer_of(c, by_client.get(c), digest, message.batch) for c in message.clients]
        failed = {c: REASONS[REASON_TAG] for c, verdict in by_client.items() if verdict.reason == REASON_TAG}
        count, halt = len(barred) + len(failed), None
        if count > self._tolerated:
            halt = f"{count} clients failed their tags, {self._tolerated} may be corrupt"
        self._store.record_answers(current.round_id, answers, bar=failed, halt=halt)  # durable before anything leaves
        if halt is not None:
            return self._caught(current.round_id, halt)
        self._round = current
        current.answers.update({answer.client: answer for answer in answers})
        current.batches.add(message.batch)
        return [Outgoing(SERVER, _reply(message, answers))]

    def _judge(
        self, current: CurrentRound, batch: int, clients: Sequence[int], sent: Words, guards: Words
    ) -> list[Verdict]:
        """Verdicts; the accepted ones are added to P."""
        seed = batch_seed(current.sketch_key, batch)
        sketch, row = make_sketch(self._params, seed), guard_row(self._params, seed)
        keys = [self._keys(current.round_id, client) for client in clients]
        claims = [Claim(*parts) for parts in zip(keys, sent, guards, strict=True)]
        rows = Rows(current.row, sketch, row, current.lam)
        if self._memory is None:
            return self._work.judge(current.total, rows, claims)
        return self._remember(self._memory, current, clients, keys, self._work.judge(None, rows, claims))

    def _remember(
        self,
        memory: ScoreMemory,
        current: CurrentRound,
        clients: Sequence[int],
        keys: Sequence[ClientKeys],
        verdicts: Sequence[Verdict],
    ) -> list[Verdict]:
        """The verdicts with the weights that the score history allows. All scores first, so pads are made twice."""
        counted = [i for i, verdict in enumerate(verdicts) if verdict.accepted]
        number = training_round_of(current.round_id)
        weights = memory.weights(number, [clients[i] for i in counted], [verdicts[i].score for i in counted])
        judged = list(verdicts)
        for i, weight in zip(counted, weights, strict=True):
            judged[i] = reweighed(self._params, verdicts[i], keys[i], current.lam, weight)
        answers = [(keys[i], answer) for i in counted if (answer := judged[i].answer) is not None]
        self._work.add(current.total, [key for key, _ in answers], [answer for _, answer in answers])
        return judged

    def score_history(self) -> History:
        """The score history so far: for the operator's own eyes, it names clients."""
        return History() if self._memory is None else self._memory.history()

    def on_release_request(self, sender: Address, message: ReleaseRequest) -> list[Outgoing]:
        """Check the set and the opened counts, mark the round released, then send P on the heavy enough slots."""
        if refused := self._not_served(sender, message.round_id):
            return refused
        params, current = self._params, self._current()
        included = tuple(sorted(message.included))
        before = self._store.released(message.round_id)
        if before is not None and before != included:
            return self._caught(message.round_id, f"a second set was sent for round {message.round_id}")
        if current is None or message.round_id != current.round_id:
            if before is not None:
                return [self._refuse(message.round_id, "a newer round has begun since this release")]
            return self._caught(message.round_id, f"release asked for round {message.round_id}, which is not open")
        accepted = {client: a for client, a in current.answers.items() if a.accepted}
        if len(set(included)) != len(included) or not set(included) <= accepted.keys():
            return self._caught(current.round_id, "the set holds clients that were never accepted")
        try:
            check_quorum(params, len(included))
        except RoundAborted as error:
            return [self._refuse(current.round_id, str(error))]
        total = self._sum_of(current, included)
        noise = round_noise(params, self._root, self._run, current.round_id)
        weight = sum(accepted[i].rho for i in included)
        try:
            opening = from_wire(params.field, message.opening, (2, params.num_clusters), name="count opening")
            decision = decide_slots(params, opening, total, current.lam, weight, noise)
        except ProtocolError as error:
            return self._caught(current.round_id, str(error))
        if before is None:
            self._store.release(current.round_id, included)  # durable first: nothing else of this round is released
        released = release(params, total, decision, noise)
        slots = released.released.astype(np.uint8)
        return [Outgoing(SERVER, Release(current.round_id, slots, to_wire(released.words), self._spent()))]

    # --- parts ------------------------------------------------------------------------------------------------------

    def _keys(self, round_id: int, client: int) -> ClientKeys:
        master = self._store.master_key(client)
        if master is None:
            raise SequenceError(f"client {client} is not enrolled", culprits=(client,))
        return client_keys(self._params, master, self._run, round_id, client)

    def _opened(self, round_id: int) -> Outgoing:
        return Outgoing(SERVER, RoundOpened(round_id, self._sketch_key(round_id)))

    def _sketch_key(self, round_id: int) -> bytes:
        return rng.derive(self._root, rng.USAGE_SEALED_SKETCH, self._run, round_id)

    def _current(self) -> CurrentRound | None:
        """The newest round; after a restart P is added up again from the keys and the answers."""
        if self._round is None:
            round_id, clients = self._store.current_round()
            updates = self._store.committed_updates(round_id)
            if updates is None:
                return None
            answers = self._store.answers(round_id)
            self._round = CurrentRound(
                round_id,
                clients,
                frozenset(clients),
                np.frombuffer(updates, dtype="<i4"),
                self._sketch_key(round_id),
                guard_scalar(self._params, self._root, self._run, round_id),
                answers,
                {answer.batch for answer in answers.values()},
                self._recompute(round_id, [answer for answer in answers.values() if answer.accepted]),
            )
        return self._round

    def _recompute(self, round_id: int, answers: Sequence[Answer]) -> RunningSum:
        total = new_sum(self._params)
        keys = [self._keys(round_id, answer.client) for answer in answers]
        self._work.add(total, keys, [MaskedWeight(a.alpha, a.guard_alpha) for a in answers])
        return total

    def _sum_of(self, current: CurrentRound, included: Sequence[int]) -> RunningSum:
        """P over exactly ``included``: the running sum without those whose answer the server never added."""
        field, members = self._params.field, set(included)
        left_out = [a for a in current.answers.values() if a.accepted and a.client not in members]
        if not left_out:
            return current.total
        extra = self._recompute(current.round_id, left_out)
        return RunningSum(
            field.subtract(current.total.words, extra.words), field.subtract(current.total.guard, extra.guard)
        )

    def _spent(self) -> float:
        """epsilon spent so far, counting every release of the run (the store knows them)."""
        if self._noise is None:
            return 0.0
        return spent_epsilon(self._params.noise_multiplier, self._store.released_rounds(), self._noise.delta)

    # --- verdicts ---------------------------------------------------------------------------------------------------

    def _not_served(self, sender: Address, round_id: int) -> list[Outgoing]:
        if sender != SERVER:
            raise SequenceError(f"only the server asks that, not {sender}", culprits=(sender,))
        reason = self._store.halted()
        if reason is None and round_id > LARGEST_ROUND_ID:
            return self._caught(round_id, f"round id {round_id} is out of range")
        return [] if reason is None else [self._refuse(round_id, f"this server was caught: {reason}")]

    def _refuse(self, round_id: int, reason: str) -> Outgoing:
        return Outgoing(SERVER, Refusal(round_id, reason[:500]))

    def _caught(self, round_id: int, reason: str) -> list[Outgoing]:
        """The server lied: durable, final."""
        self._store.halt(reason)
        self.state = step(self.protocol, self.role, self.state, Step.CATCH)
        self.culprits[SERVER] = reason
        return [self._refuse(round_id, f"this server was caught: {reason}")]

    def secrets(self) -> Sequence[npt.NDArray[Any]]:
        """Pads of the last clients and P."""
        return [*self._work.buffers, *([] if self._round is None else [self._round.total.words])]

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
    return hashlib.blake2b(header + message.products.tobytes() + message.guards.tobytes(), digest_size=32).digest()


def _reply(message: ScoreRequest, answers: Sequence[Answer]) -> ScoreAnswer:
    return ScoreAnswer(
        message.round_id,
        message.batch,
        message.clients,
        np.array([[a.alpha, a.guard_alpha] for a in answers], dtype=np.uint64),
        tuple("" if a.accepted else REASONS[a.reason][:64] for a in answers),
    )


def _answer_of(client: int, verdict: Verdict | None, digest: bytes, batch: int) -> Answer:
    if verdict is None:
        return Answer(client, False, REASON_BARRED, 0, 0, 0, digest, float("nan"), batch)
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
        batch,
    )
