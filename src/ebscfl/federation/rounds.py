"""One round over a network: ask, gather until a deadline, ask the stragglers once more, finish if a quorum is there.

The loop knows nothing of Flower: an `Exchange` carries questions to clients and brings their bytes. Time is an argument
too, so tests play deadlines without waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError, RoundAborted
from ebscfl.federation.server_agent import ClientsRefused, KeysLost, ServerAgent
from ebscfl.ids import client_address
from ebscfl.protocol.roles import Outcome

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Deadlines:
    """Per round. After ``first_s`` the missing are asked once more, after ``last_s`` more they are left out."""

    first_s: float = 60.0
    last_s: float = 60.0
    quorum: int = 2
    pause_s: float = 0.05
    attempts: int = 5
    """Rounds opened for one step of training before it is given up (lost keys, missing zero-sum masks)."""

    def __post_init__(self) -> None:
        for name in ("first_s", "last_s", "pause_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
        if self.quorum < 1 or self.attempts < 1:
            raise ConfigError(f"quorum and attempts must be at least 1, not {self.quorum} and {self.attempts}")


class Exchange(Protocol):
    """How questions reach clients and their bytes come back."""

    def ask(self, round_id: int, clients: Sequence[int]) -> None:
        """Ask these clients for their upload of this round."""

    def poll(self) -> Iterable[tuple[int, bytes]]:
        """Uploads that have come since the last call, with the client the transport vouches for."""


@dataclass(frozen=True, eq=False)
class RoundEnd:
    """How a round went."""

    round_id: int
    outcome: Outcome
    culprits: dict[str, str]
    asked_again: tuple[int, ...]
    restarts: int
    seconds: float


def play(
    agent: ServerAgent,
    exchange: Exchange,
    clients: Sequence[int],
    server_updates: Floats,
    *,
    fresh_round: Callable[[], int],
    deadlines: Deadlines,
    resumed: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RoundEnd:
    """Play a round to its end.

    Args:
        fresh_round: a round id never used before, durably reserved.
        resumed: the agent has replayed an open round from its journal: go on with that one.

    Raises:
        RoundAborted: no quorum, or the key centre refuses.
    """
    started = clock()
    taking_part = tuple(clients)
    asked_again: set[int] = set()
    culprits: dict[str, str] = {}
    for attempt in range(deadlines.attempts):
        try:
            if not resumed:
                agent.begin(fresh_round(), taking_part, server_updates)
            resumed = False
            taking_part = agent.role.expected
            asked_again |= _gather(agent, exchange, deadlines, clock, sleep)
            culprits |= {str(address): reason for address, reason in agent.role.culprits.items()}
            if agent.role.needs_restart:
                if agent.keys_lost():
                    continue  # nobody's fault: all clients again, under new keys
                taking_part = tuple(i for i in taking_part if i not in agent.role.missing)
                agent.abandon()
                _enough(len(taking_part), deadlines, culprits)
                continue
            if len(agent.role.accepted) < deadlines.quorum:
                agent.abandon()
            _enough(len(agent.role.accepted), deadlines, culprits)
            outcome = agent.finish()
            return RoundEnd(
                agent.role.round_id, outcome, culprits, tuple(sorted(asked_again)), attempt, clock() - started
            )
        except KeysLost:
            continue
        except ClientsRefused as error:
            culprits |= {str(client_address(i)): str(error) for i in error.clients}
            taking_part = tuple(i for i in taking_part if i not in error.clients)
            agent.abandon()
            _enough(len(taking_part), deadlines, culprits)
    raise RoundAborted(f"the round was opened {deadlines.attempts} times without an end", culprits=tuple(culprits))


def _gather(
    agent: ServerAgent,
    exchange: Exchange,
    deadlines: Deadlines,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> set[int]:
    """Take uploads until everybody is in or time is up; returns who was asked again."""
    asked_again: set[int] = set()
    missing = [i for i in agent.role.expected if i not in agent.present]
    for patience in (deadlines.first_s, deadlines.last_s)[agent.closed :]:
        if missing:
            exchange.ask(agent.role.round_id, missing)
            end = clock() + patience
            while clock() < end and agent.heard < len(agent.role.expected):
                for client, data in exchange.poll():
                    agent.upload(client, data)
                sleep(deadlines.pause_s)
        missing = sorted(agent.close())
        asked_again |= set(missing)
    return asked_again


def _enough(count: int, deadlines: Deadlines, culprits: dict[str, str]) -> None:
    if count < deadlines.quorum:
        raise RoundAborted(f"{count} valid uploads, {deadlines.quorum} are needed", culprits=tuple(culprits))
