"""Questions and answers through Flower's grid, with push and pull of our own instead of its fixed three-second sleeps.

Each reply is judged on its own: what is malformed, of another round, signed by nobody or a second one is dropped and
named, and the round goes on without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Message, MessageType

from ebscfl import rng
from ebscfl.errors import EbscflError, RoundAborted
from ebscfl.flower.records import NONCE_SIZE, Answer, Question, pack_question, read_answer
from ebscfl.kdc_service.deployment import RunFile

LOOK_S = 1.0
"""How often to look who is there. A node that was away after it was asked has lost the question and is asked again."""
AGAIN_S = 40.0
"""A question without an answer is asked again after this, then twice as long: being away for an instant is not seen."""


@dataclass
class _Waiting:
    """A client whose answer is missing."""

    round_id: int
    again_at: float
    patience_s: float
    away: bool


class FlowerExchange:
    """The server's line to its clients for one Flower run."""

    def __init__(self, grid: Any, directory: Path, *, pause_s: float = 0.1, ttl_s: float = 3600.0) -> None:
        run = RunFile.load(directory)
        self._grid = grid
        self._run_id, self._num_clients = run.setup.run_id, run.setup.num_clients
        self._authority = (directory / "ca.pem").read_bytes()
        # Two words of at most 8 bytes for each of m (l + 1) elements, in `paper` three times m l doubles per segment.
        self._limit = 4096 + 32 * run.setup.num_clusters * (run.setup.num_clusters + 1) * (run.setup.dim + 8)
        self._pause_s, self._ttl_s = pause_s, ttl_s
        self._models: npt.NDArray[np.float32] | None = None
        self._open: dict[str, tuple[int, Question]] = {}  # message id -> node, question
        self._waiting: dict[int, _Waiting] = {}  # client -> its question
        self._looked = 0.0
        self.node_of: dict[int, int] = {}  # client -> node
        self.dropped: dict[str, str] = {}
        self.exchanges = 0

    # --- who is there -----------------------------------------------------------------------------------------------

    def gather(self, *, wait_s: float, enough: int | None = None) -> tuple[int, ...]:
        """Ask new nodes who they are until ``enough`` clients (default: all) have answered or time is up."""
        wanted = self._num_clients if enough is None else enough
        end, asked = time.monotonic() + wait_s, dict.fromkeys(self.node_of.values(), 0.0)
        while len(self.node_of) < wanted and time.monotonic() < end:
            for node in self._grid.get_node_ids():
                if node not in asked or (node not in self.node_of.values() and asked[node] < time.monotonic() - 10.0):
                    asked[node] = time.monotonic()
                    self._push(node, Question(0, rng.os_random(NONCE_SIZE)), MessageType.QUERY)
            for node, answer in self._pull():
                self.node_of[answer.client] = node
            time.sleep(self._pause_s)
        return self.clients()

    def clients(self) -> tuple[int, ...]:
        """Clients that have answered in this run."""
        if not self.node_of:
            raise RoundAborted("no client has answered yet")
        return tuple(sorted(self.node_of))

    # --- a round ----------------------------------------------------------------------------------------------------

    def broadcast(self, models: npt.NDArray[np.float32]) -> None:
        """The models that go with every question from now on."""
        self._models = models

    def ask(self, round_id: int, clients: Sequence[int]) -> None:
        """Ask for uploads; answers to questions of other rounds are void from now on."""
        self._open = {key: (node, q) for key, (node, q) in self._open.items() if q.round_id in (0, round_id)}
        self._waiting.clear()
        self.exchanges += 1
        for client in clients:
            self._ask_one(round_id, client)

    def poll(self) -> Iterable[tuple[int, bytes]]:
        """Uploads since the last call."""
        found = []
        for node, answer in self._pull():
            if self.node_of.setdefault(answer.client, node) != node:
                self.dropped[f"node {node}"] = f"client {answer.client} speaks through another node"
            else:
                self._waiting.pop(answer.client, None)
                found.append((answer.client, answer.upload))
        self._look_after()
        return found

    def _look_after(self) -> None:
        """Repeat questions that were lost. It costs nothing: a client answers a round with the same bytes for ever."""
        now = time.monotonic()
        if not self._waiting or now < self._looked + LOOK_S:
            return
        self._looked, present = now, set(self._grid.get_node_ids())
        for client, waiting in list(self._waiting.items()):
            here = self.node_of.get(client) in present
            if here and (waiting.away or now >= waiting.again_at):
                self._ask_one(waiting.round_id, client, patience_s=None if waiting.away else 2 * waiting.patience_s)
            waiting.away = waiting.away or not here

    def _ask_one(self, round_id: int, client: int, *, patience_s: float | None = None) -> None:
        patience_s = AGAIN_S if patience_s is None else patience_s
        node = self.node_of.get(client)
        present = node in set(self._grid.get_node_ids())
        question = Question(round_id, rng.os_random(NONCE_SIZE), self._models)
        pushed = node is not None and present and self._push(node, question, MessageType.TRAIN)
        self._waiting[client] = _Waiting(round_id, time.monotonic() + patience_s, patience_s, away=not pushed)

    def _push(self, node: int, question: Question, kind: str) -> bool:
        message = Message(
            pack_question(question), dst_node_id=node, message_type=kind, ttl=self._ttl_s,
            group_id=str(question.round_id),
        )  # fmt: skip
        (message_id,) = list(self._grid.push_messages([message])) or [""]
        if message_id:
            self._open[message_id] = (node, question)
        return bool(message_id)

    def _pull(self) -> list[tuple[int, Answer]]:
        """Good answers to open questions; the rest is named in ``dropped``."""
        found = []
        for message in self._grid.pull_messages(list(self._open)) if self._open else ():
            node, question = self._open.pop(message.metadata.reply_to_message_id, (0, None))
            if question is None:
                continue  # an answer to a question that is void
            try:
                if message.metadata.src_node_id not in (node, 0) and not message.has_error():
                    raise RoundAborted(f"the reply comes from node {message.metadata.src_node_id}, not {node}")
                answer = read_answer(
                    message, question, authority=self._authority, run_id=self._run_id, limit=self._limit
                )
                found.append((node, answer))
            except EbscflError as error:
                self.dropped[f"node {node}"] = str(error)
        return found
