"""The in-memory network: every message crosses the codec, is counted, recorded and timed.

A `FaultyWire` may drop, repeat, change or add bytes on the way, so misbehavior is simulated through the real roles.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from ebscfl.errors import ProtocolError
from ebscfl.ids import Address, Role
from ebscfl.protocol import codec
from ebscfl.protocol.messages import Message
from ebscfl.protocol.roles import Outgoing, RoleMachine


class Received(NamedTuple):
    """One entry of a transcript: what a party got, from whom, as the decoded object."""

    sender: Address
    message: Message


class Carried(NamedTuple):
    """Bytes on the wire."""

    sender: Address
    to: Address
    data: bytes


LOCAL = "local step"
NOT_A_MESSAGE = "not a message"

FaultyWire = Callable[[Carried], Iterable[Carried]]


class Bus:
    """Delivers messages between roles in order of sending until nothing is in flight."""

    def __init__(
        self,
        roles: Mapping[Address, RoleMachine],
        run_tag: bytes,
        *,
        keep_transcript: bool = True,
        wire: FaultyWire | None = None,
    ) -> None:
        self.roles = dict(roles)
        self.run_tag = run_tag
        self.keep_transcript = keep_transcript
        self.wire = wire
        self.clock = time.perf_counter  # benchmarks on busy machines put time.thread_time here
        self.seconds: dict[Address, float] = {}
        self.event_seconds: defaultdict[tuple[Role, str], float] = defaultdict(float)
        self.codec_seconds = 0.0
        self.bytes: Counter[tuple[Role, Role, str]] = Counter()
        self.transcript: dict[Address, list[Received]] = {address: [] for address in self.roles}
        self._in_flight: deque[Carried] = deque()

    def act(self, address: Address, local_step: Callable[[], list[Outgoing]]) -> None:
        """Run a local step of one role, then deliver everything it causes."""
        self._send(address, self._timed(address, LOCAL, local_step))
        while self._in_flight:
            carried = self._in_flight.popleft()
            role = self.roles.get(carried.to)
            if role is None:
                continue  # a party that left: the bytes are lost, as on any network
            self._record(carried)
            kind = codec.peek(carried.data)
            # Key material arrives in a buffer of the receiver's own, as on a network, so that wiping it is for real.
            data = bytearray(carried.data) if kind is not None and kind.confidential else carried.data
            name = kind.__name__ if kind is not None else NOT_A_MESSAGE
            self._send(carried.to, self._timed(carried.to, name, partial(role.receive, carried.sender, data)))

    def reset_meters(self) -> None:
        """Start a new measurement; the transcript goes on."""
        self.seconds.clear()
        self.event_seconds.clear()
        self.bytes.clear()
        self.codec_seconds = 0.0

    def _timed(self, address: Address, event: str, call: Callable[[], list[Outgoing]]) -> list[Outgoing]:
        started = self.clock()
        try:
            return call()
        finally:
            spent = self.clock() - started
            self.seconds[address] = self.seconds.get(address, 0.0) + spent
            self.event_seconds[address.role, event] += spent

    def _send(self, sender: Address, outgoing: Iterable[Outgoing]) -> None:
        for to, message in outgoing:
            started = self.clock()
            carried = Carried(sender, to, codec.encode(message, self.run_tag))
            self.codec_seconds += self.clock() - started
            self.bytes[sender.role, to.role, type(message).__name__] += len(carried.data)
            self._in_flight.extend(self.wire(carried) if self.wire else (carried,))

    def _record(self, carried: Carried) -> None:
        if not self.keep_transcript:
            return
        try:
            message = codec.decode(carried.data, self.run_tag)
        except ProtocolError:
            return  # not a message: the receiving role says so itself
        self.transcript[carried.to].append(Received(carried.sender, message))
