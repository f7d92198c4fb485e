"""What one party of a round has seen: the only thing an attack may look at.

A `View` holds the messages a party received, the public set-up of the run, and what the party itself put in or took
out (the server its root updates and the result, a corrupt client its update). Attacks are functions of a view and of
nothing else; the truth stays in `ebscfl.audit.record`, which only the scorer opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ebscfl.errors import UsageError
from ebscfl.ids import Address, Role
from ebscfl.protocol.bus import Received
from ebscfl.protocol.messages import EncodedUpdate, Message, PlainUpload, SealedUpload
from ebscfl.protocol.roles import Setup

Floats = npt.NDArray[np.float64]
MessageT = TypeVar("MessageT", bound=Message)
Upload = PlainUpload | EncodedUpdate | SealedUpload


@dataclass(frozen=True, eq=False, repr=False)
class OwnRound:
    """What the party put into one round, and what the round gave it."""

    round_id: int
    server_updates: Floats | None = None  # (m, l) the server's, and the key center's to whom they are sent
    sums: Floats | None = None  # (m, l) sum of trust weight times unit update: the server's result
    included: tuple[int, ...] = ()
    inputs: tuple[tuple[int, Floats, int], ...] = ()  # (client, update, cluster) of corrupt clients


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """Everything one party, or several that pool what they have, knows after some rounds."""

    role: str  # "server", "kdc", "server + 3 clients"
    messages: tuple[Received, ...]
    public: Setup
    rounds: tuple[OwnRound, ...]
    secret: bytes = field(default=b"")  # the key center's root; empty for everybody else

    def __repr__(self) -> str:
        return f"View({self.role!r}, {len(self.messages)} messages, {len(self.rounds)} rounds)"

    def of(self, kind: type[MessageT]) -> list[tuple[Address, MessageT]]:
        """(sender, message) of one kind, in the order they came."""
        return [(sender, message) for sender, message in self.messages if isinstance(message, kind)]

    def last(self, kind: type[MessageT]) -> MessageT:
        """The newest message of one kind."""
        found = self.of(kind)
        if not found:
            raise UsageError(f"the {self.role} of protocol {self.public.protocol} has seen no {kind.__name__}")
        return found[-1][1]

    def has(self, kind: type[Message]) -> bool:
        """Whether a message of this kind came."""
        return bool(self.of(kind))

    def uploads(self, kind: type[MessageT], round_id: int | None = None) -> Iterator[tuple[int, MessageT]]:
        """(client, upload) of one round, by default the last."""
        wanted = self.rounds[-1].round_id if round_id is None else round_id
        for sender, message in self.of(kind):
            if sender.role is Role.CLIENT and getattr(message, "round_id", None) == wanted:
                yield sender.client, message

    @property
    def corrupt(self) -> tuple[int, ...]:
        """Clients that share what they know with this party."""
        return tuple(sorted({client for own in self.rounds for client, _, _ in own.inputs}))


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """What an attack claims: for each target a direction in which its update points, and its cluster."""

    targets: tuple[int, ...]
    updates: Floats  # (targets, l); a zero row is no claim
    clusters: npt.NDArray[np.int64]  # (targets,); -1 is no claim
    scores: Floats | None = None  # (targets,) claimed cosines with the server update
    note: str = ""

    def __post_init__(self) -> None:
        if len(self.updates) != len(self.targets) or self.clusters.shape != (len(self.targets),):
            raise UsageError("an estimate needs one update and one cluster for each target")


def nothing(view: View, note: str) -> Estimate:
    """The estimate of a party that has no handle on anybody."""
    n = view.public.num_clients
    return Estimate(tuple(range(n)), np.zeros((n, view.public.dim)), np.full(n, -1), None, note)


def stacked(
    view: View, claims: Iterable[tuple[int, Floats, int]], *, scores: Floats | None = None, note: str = ""
) -> Estimate:
    """An estimate from (client, direction, cluster) triples."""
    rows = list(claims)
    updates = np.stack([row[1] for row in rows]) if rows else np.zeros((0, view.public.dim))
    clusters = np.array([row[2] for row in rows], dtype=np.int64)
    return Estimate(tuple(row[0] for row in rows), updates, clusters, scores, note)
