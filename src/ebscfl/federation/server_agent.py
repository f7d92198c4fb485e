"""Drives a server role over a real line to the key centre, and brings it back to where it stood after a crash."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ebscfl.errors import CheckpointError, RoundAborted, UsageError
from ebscfl.federation.journal import Entry, Event, Journal
from ebscfl.ids import KDC, client_address
from ebscfl.protocol import codec
from ebscfl.protocol.roles import Outcome, Outgoing, ServerRole

Floats = npt.NDArray[np.floating]
DURABLE_PROTOCOLS = ("sealed", "plain")
"""Protocols whose round survives a restart of the key centre; the paper's keeps its keys in memory only."""

_START = struct.Struct("<QQIII")  # round, incarnation of the key centre, clients, m, l


class KeysLost(RoundAborted):
    """The key centre restarted and this protocol's keys went with it: play the round again under a new id."""


class ClientsRefused(RoundAborted):
    """The key centre opens no round with these clients; without them it will."""

    def __init__(self, message: str, clients: Iterable[int]) -> None:
        self.clients = frozenset(clients)
        super().__init__(message, culprits=map(client_address, sorted(self.clients)))


class Line(Protocol):
    """What the agent needs of a `KdcStub`."""

    incarnation: int

    def say(self, message: bytes) -> tuple[bytes, ...]:
        """Hand over one message and return the answers."""

    def collect(self) -> tuple[bytes, ...]:
        """Messages kept for us; here, to see whether the key centre is still the same process."""


class ServerAgent:
    """One server role and one round at a time. ``make_role`` gives a fresh role."""

    def __init__(self, make_role: Callable[[], ServerRole], line: Line, journal: Journal) -> None:
        self._make_role = make_role
        self._line = line
        self._journal = journal
        self._answers: deque[bytes] = deque()  # of the journal, not yet replayed
        self._seen: dict[int, tuple[int, int]] = {}
        self._incarnation: int | None = None
        self.role = make_role()
        self.closed = 0

    # --- steps of a round -------------------------------------------------------------------------------------------

    def begin(self, round_id: int, clients: Sequence[int], server_updates: Floats) -> None:
        """Open a round: tell the key centre, which answers with what the role needs."""
        updates = np.ascontiguousarray(server_updates, dtype="<f8")
        head = _START.pack(round_id, self._line.incarnation, len(clients), *updates.shape)
        self._journal.clear()
        self._journal.append(Event.START, 0, head + np.array(clients, dtype="<u4").tobytes() + updates.tobytes())
        if self._incarnation is not None and self._lost_keys():
            self.role = self._make_role()
        self._start(round_id, self._line.incarnation, clients, updates)

    def upload(self, client: int, data: bytes) -> None:
        """A client's bytes. The very same bytes twice are the network's doing and count once."""
        if client in self._seen and self._seen[client] == _mark(data):
            return
        self._journal.append(Event.UPLOAD, client, data)
        self._take(client, data)

    def close(self) -> dict[int, bytes]:
        """Close uploads: the first time returns what to send to those who must be asked again."""
        self._journal.append(Event.CLOSE, 0, b"")
        return self._close()

    def finish(self) -> Outcome:
        """Aggregate; with `sealed`, ask for the release. Safe to repeat after a crash: the set is in the journal."""
        self._deliver(self.role.finish_round())
        if self.role.outcome is None:
            why = self.role.refusal or "the key centre did not answer"
            raise RoundAborted(f"round {self.role.round_id} ended without a result: {why}")
        return self.role.outcome

    def abandon(self) -> None:
        """Give the round up; nothing was released."""
        self._journal.clear()
        self.role.abandon_round()

    def keys_lost(self) -> bool:
        """Ask the key centre whether this round's keys are gone with an earlier process of it."""
        self._line.collect()
        return self._lost_keys()

    @property
    def heard(self) -> int:
        """Clients that sent something since they were asked last."""
        return len(self._seen)

    @property
    def present(self) -> tuple[int, ...]:
        """Clients whose upload was taken, judged or not."""
        return tuple(sorted(self.role.accepted | self.role.waiting | self.role.rejected))

    # --- after a crash ----------------------------------------------------------------------------------------------

    def resume(self) -> bool:
        """Replay the journal into the role. False: there was no open round."""
        entries = self._journal.entries
        if not entries or entries[0].event is not Event.START:
            return False
        self._answers = deque(entry.data for entry in entries if entry.event is Event.ANSWER)
        try:
            for entry in entries:
                self._replay(entry)
        except RoundAborted:  # refused, or its keys are gone: it would have been abandoned an instant later
            self._answers.clear()
            self.abandon()
            return False
        return True  # an answer may be left over: the crash came between it and the role's next step, which asks again

    def _replay(self, entry: Entry) -> None:
        if entry.event is Event.START:
            round_id, incarnation, count, m, dim = _START.unpack_from(entry.data)
            place = _START.size + 4 * count
            clients = np.frombuffer(entry.data[_START.size : place], dtype="<u4").tolist()
            updates = np.frombuffer(entry.data[place:], dtype="<f8").reshape(m, dim)
            self._start(round_id, incarnation, clients, updates)
        elif entry.event is Event.UPLOAD:
            self._take(entry.client, entry.data)
        elif entry.event is Event.CLOSE:
            self._close()

    # --- parts ------------------------------------------------------------------------------------------------------

    def _start(self, round_id: int, incarnation: int, clients: Sequence[int], updates: Floats) -> None:
        self._seen, self.closed, self._incarnation = {}, 0, incarnation
        self._deliver(self.role.start_round(round_id, clients, updates))
        if self.role.refusal is not None:
            why = f"the key centre refuses round {round_id}: {self.role.refusal}"
            raise ClientsRefused(why, self.role.refused_clients) if self.role.refused_clients else RoundAborted(why)

    def _take(self, client: int, data: bytes) -> None:
        self._seen[client] = _mark(data)
        self._deliver(self.role.receive(client_address(client), data))

    def _close(self) -> dict[int, bytes]:
        self.closed += 1
        asked = self._deliver(self.role.close_uploads())
        for client in asked:
            self._seen.pop(client, None)  # its upload was bad or never came: the same bytes count again
        return asked

    def _deliver(self, outgoing: Sequence[Outgoing]) -> dict[int, bytes]:
        """Carry messages to the key centre and its answers back until it is quiet; the rest is for clients."""
        waiting, for_clients = deque(outgoing), {}
        while waiting:
            to, message = waiting.popleft()
            data = codec.encode(message, self.role.setup.run_id)
            if to == KDC:
                for answer in self._say(data):
                    waiting.extend(self.role.receive(KDC, answer))
            else:
                for_clients[to.client] = data
        return for_clients

    def _say(self, data: bytes) -> list[bytes]:
        digest = hashlib.blake2b(data, digest_size=32).digest()
        if self._answers:
            recorded = self._answers.popleft()
            if recorded[:32] != digest:
                raise CheckpointError("the journal does not fit this run: remove it to play the round anew")
            return _split(recorded[32:])
        answers = self._line.say(data)
        if self._lost_keys():
            raise KeysLost(f"the key centre restarted in round {self.role.round_id}")
        self._journal.append(Event.ANSWER, 0, digest + b"".join(answers))
        return list(answers)

    def _lost_keys(self) -> bool:
        if self._incarnation is None:
            raise UsageError("no round was opened")
        return self.role.setup.protocol not in DURABLE_PROTOCOLS and self._line.incarnation != self._incarnation


def _mark(data: bytes) -> tuple[int, int]:
    """What tells a client's uploads apart. No cryptography: who makes two of one mark only has the second ignored."""
    return len(data), zlib.crc32(data)


def _split(data: bytes) -> list[bytes]:
    """Messages written one after the other."""
    parts = []
    while data:
        size = codec.HEADER.size + codec.body_length(data[: codec.HEADER.size])
        parts.append(data[:size])
        data = data[size:]
    return parts
