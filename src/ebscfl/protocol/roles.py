"""What every role is: a state machine that takes a message and returns messages. No sockets, no clock, no torch.

A protocol is three classes derived from `ServerRole`, `ClientRole` and `KdcRole`. Networks and the simulator drive them
through the same two doors: `RoleMachine.receive` for bytes from a peer, and the local steps (`start_round`, `encode`,
`close_uploads`, `finish_round`). ``receive`` is the one place that turns a `ProtocolError` into a named culprit; a
`UsageError` or any bug of ours passes through it untouched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError, ProtocolError, RoundAborted, SequenceError, UsageError
from ebscfl.ids import KDC, SERVER, Address, Role, client_address
from ebscfl.pool import IN_PLACE, Pool
from ebscfl.protocol import codec
from ebscfl.protocol.messages import Message, Refusal, ResendRequest
from ebscfl.protocol.states import State, Step, step

Floats = npt.NDArray[np.floating]


class Outgoing(NamedTuple):
    """A message and where it goes."""

    to: Address
    message: Message


@dataclass(frozen=True)
class Setup:
    """What all roles of a run agree on before it starts. It holds no secret."""

    protocol: str
    num_clients: int
    num_clusters: int
    dim: int
    run_id: bytes = bytes(codec.RUN_TAG_SIZE)
    normalize: str = "global"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("num_clients", "num_clusters", "dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if len(self.run_id) != codec.RUN_TAG_SIZE:
            raise ConfigError(f"a run id has {codec.RUN_TAG_SIZE} bytes, not {len(self.run_id)}")

    def option(self, name: str, default: Any) -> Any:
        """One protocol option with its default."""
        return self.options.get(name, default)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the server knows at the end of a round."""

    aggregates: npt.NDArray[np.float64]  # (m, l), normalized, not scaled by |g0|
    total_weight: float
    cluster_weight: npt.NDArray[np.float64] | None  # (m,) where the protocol reveals it
    included: tuple[int, ...]  # clients whose uploads are in the sums
    events: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


class RoleMachine(ABC):
    """One party: an address, a state, and `receive`."""

    protocol: ClassVar[str]
    role: ClassVar[Role]

    def __init__(self, setup: Setup, address: Address) -> None:
        self.setup = setup
        self.address = address
        self.state = State.IDLE
        self.culprits: dict[Address, str] = {}
        self.pool: Pool = IN_PLACE

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}, {self.state.value}>"

    def use(self, pool: Pool) -> None:
        """Share heavy sums out to ``pool`` from now on; the results keep their bits."""
        self.pool = pool

    def receive(self, sender: Address, data: bytes | bytearray) -> list[Outgoing]:
        """Decode and handle bytes from ``sender``; whatever it did wrong is recorded under its name."""
        try:
            return self.handle(sender, codec.decode(data, self.setup.run_id))
        except ProtocolError as error:
            return self.blame(error.culprits or (sender,), str(error))

    def blame(self, culprits: Sequence[object], reason: str) -> list[Outgoing]:
        """Record a peer's misbehavior; a role may answer it."""
        for culprit in culprits:
            if isinstance(culprit, int):
                culprit = client_address(culprit)
            if isinstance(culprit, Address):
                self.culprits[culprit] = reason
        return []

    def handle(self, sender: Address, message: Message) -> list[Outgoing]:
        """Act on a decoded message: check its place in the order of events, then call its handler."""
        kind = type(message)
        handler: Callable[[Address, Any], list[Outgoing]] | None = self.handlers().get(kind)
        if handler is None:
            raise SequenceError(f"{self.address} takes no {kind.__name__}", culprits=(sender,))
        after = step(self.protocol, self.role, self.state, kind.__name__, culprit=sender)
        outgoing = handler(sender, message)
        self.state = after if self.state is not State.HALTED else State.HALTED
        return outgoing

    def advance(self, local_step: Step) -> None:
        """Take a local step in the state table, or raise `UsageError`."""
        self.state = step(self.protocol, self.role, self.state, local_step)

    @abstractmethod
    def handlers(self) -> dict[type[Message], Callable[[Address, Any], list[Outgoing]]]:
        """Message class -> method."""

    def secrets(self) -> Iterable[npt.NDArray[Any]]:
        """The arrays that hold key material."""
        return ()

    def wipe(self) -> None:
        """Overwrite key material with zeros; the role is of no use afterwards."""
        for array in self.secrets():
            array.flags.writeable = True
            array.fill(0)


class ClientRole(RoleMachine):
    """Encodes one update a round and can repeat the very same upload when asked."""

    role = Role.CLIENT

    def __init__(self, setup: Setup, client: int) -> None:
        super().__init__(setup, client_address(client))
        self.client = client
        self._last: Outgoing | None = None
        self._round_id = -1

    def enrol(self) -> list[Outgoing]:
        """Once a run, before the first round: what the client must say to the key centre (often nothing)."""
        return []

    def encode(self, round_id: int, update: Floats, cluster: int) -> list[Outgoing]:
        """The upload for this round."""
        if round_id <= self._round_id:  # two updates under one key show their difference
            raise SequenceError(f"round {round_id} is not newer than round {self._round_id}", culprits=(SERVER,))
        self.advance(Step.ENCODE)
        self._round_id = round_id
        self._last = None  # if building fails there is nothing to repeat, least of all the last round's upload
        self._last = Outgoing(SERVER, self.build_upload(round_id, update, cluster))
        return [self._last]

    @abstractmethod
    def build_upload(self, round_id: int, update: Floats, cluster: int) -> Message:
        """Encode ``update`` for ``cluster`` under this round's keys."""

    def on_resend_request(self, sender: Address, message: ResendRequest) -> list[Outgoing]:
        """Repeat the upload: the same bytes, so that nothing new is revealed under used keys."""
        if sender != SERVER or message.round_id != self._round_id or self._last is None:
            raise SequenceError("nothing was sent in that round", culprits=(sender,))
        return [self._last]


class ServerRole(RoleMachine):
    """Opens a round, takes one upload a client, asks once for missing or bad ones, finishes."""

    role = Role.SERVER
    survives_dropouts: ClassVar[bool] = True
    """False where a missing upload forces a restart under fresh keys (zero-sum masks)."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, SERVER)
        self.round_id = -1
        self.expected: tuple[int, ...] = ()
        self._taking_part: frozenset[int] = frozenset()
        self.accepted: set[int] = set()
        self.rejected: set[int] = set()  # judged for good: asking again would need a second key
        self.waiting: set[int] = set()  # received, the verdict is still on its way
        self.refusal: str | None = None
        self.refused_clients: frozenset[int] = frozenset()  # without them the key centre would open the round
        self.events: list[str] = []
        self.outcome: Outcome | None = None

    def start_round(self, round_id: int, clients: Sequence[int], server_updates: Floats) -> list[Outgoing]:
        """Open round ``round_id`` (newer than every earlier one) for ``clients``."""
        if round_id <= self.round_id:
            raise UsageError(f"round {round_id} is not newer than round {self.round_id}")
        self.advance(Step.START_ROUND)
        self.round_id, self.expected, self._taking_part = round_id, tuple(clients), frozenset(clients)
        self.accepted, self.rejected, self.waiting, self.events, self.outcome = set(), set(), set(), [], None
        self.culprits, self.refusal, self.refused_clients = {}, None, frozenset()
        return self.open_round(server_updates)

    @abstractmethod
    def open_round(self, server_updates: Floats) -> list[Outgoing]:
        """Protocol part of `start_round`."""

    def check_upload(self, sender: Address, round_id: int) -> int:
        """The checks every upload gets before anything else; returns the client's number."""
        if sender.role is not Role.CLIENT or sender.client not in self._taking_part:
            raise SequenceError(f"{sender} takes no part in round {self.round_id}", culprits=(sender,))
        if round_id != self.round_id:
            raise SequenceError(f"upload for round {round_id} in round {self.round_id}", culprits=(sender,))
        if any(sender.client in heard for heard in (self.accepted, self.rejected, self.waiting)):
            raise SequenceError(f"second upload of {sender} in round {round_id}", culprits=(sender,))
        return sender.client

    @property
    def missing(self) -> tuple[int, ...]:
        """Expected clients without an accepted upload."""
        return tuple(i for i in self.expected if i not in self.accepted)

    def flush(self) -> list[Outgoing]:
        """Send on what is still held back (uploads that wait for a batch to fill)."""
        return []

    def pending(self) -> list[Outgoing]:
        """Questions the key centre has not answered yet, to be sent again after a lost connection."""
        return []

    def close_uploads(self) -> list[Outgoing]:
        """First call: ask those who failed or stayed silent once more. Second call: no more uploads."""
        asking = self.state is State.COLLECTING
        self.advance(Step.CLOSE_UPLOADS)
        outgoing = self.flush()
        heard = self.accepted | self.rejected | self.waiting
        silent = [i for i in self.expected if i not in heard]
        for client in silent:
            reason = self.culprits.get(client_address(client), "no valid upload arrived")
            if asking:
                outgoing.append(Outgoing(client_address(client), ResendRequest(self.round_id, reason)))
            else:
                self.culprits[client_address(client)] = reason
        return outgoing

    @property
    def needs_restart(self) -> bool:
        """True when the missing uploads make this round's keys useless."""
        return self.state is State.CLOSED and bool(self.missing) and not self.survives_dropouts

    def abandon_round(self) -> None:
        """Give the round up; nothing was released."""
        self.advance(Step.ABANDON)

    def finish_round(self) -> list[Outgoing]:
        """Aggregate what was accepted; the result is in `outcome` once every answer is in."""
        if self.refusal is not None or not self.accepted:
            why = "not one valid upload" if self.refusal is None else f"the key centre refuses it: {self.refusal}"
            self.abandon_round()
            raise RoundAborted(f"round {self.round_id}: {why}", culprits=tuple(self.culprits))
        self.advance(Step.FINISH_ROUND)
        return self.finish()

    @abstractmethod
    def finish(self) -> list[Outgoing]:
        """Protocol part of `finish_round`."""

    def on_refusal(self, sender: Address, message: Refusal) -> list[Outgoing]:
        """The key centre will not go on with this round."""
        if sender != KDC:  # else any client could end a round
            raise SequenceError(f"only the key centre refuses a round, not {sender}", culprits=(sender,))
        if message.round_id == self.round_id:
            self.refusal, self.refused_clients = message.reason, frozenset(message.clients)
        return []


class KdcRole(RoleMachine):
    """Deals keys, and in `sealed` also answers scores and releases the round."""

    role = Role.KDC
