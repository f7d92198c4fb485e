"""Rule 1: every state of every role and every legal transition is in this file, as data.

A role asks `step(role, protocol, state, event)` before it acts. Events are the names of messages and of local steps.
The diagram in ``docs/ref-protocol-states.md`` and the exhaustive test of illegal pairs are made from `TRANSITIONS`.
"""

from __future__ import annotations

import enum

from ebscfl.errors import SequenceError, UsageError
from ebscfl.ids import Role


class State(enum.Enum):
    """Where a role stands."""

    IDLE = "idle"  # no round is open
    AWAITING_KEYS = "awaiting keys"  # the key centre has not answered yet
    READY = "ready"  # keys are here, nothing encoded
    SENT = "sent"  # the client's upload is out; it may be asked once more
    COLLECTING = "collecting"  # the server takes uploads
    RESENDING = "resending"  # the server takes repeated uploads of those it asked
    CLOSED = "closed"  # uploads are complete
    RELEASING = "releasing"  # the server waits for the key centre's release
    DONE = "done"  # the round's result is there
    SERVING = "serving"  # the key centre answers
    HALTED = "halted"  # the key centre caught the server cheating and serves no more


class Step(enum.Enum):
    """Local steps: events that no message causes."""

    START_ROUND = "start_round"
    ENCODE = "encode"
    CLOSE_UPLOADS = "close_uploads"
    FINISH_ROUND = "finish_round"
    ABANDON = "abandon"
    CATCH = "catch"


S = State
Table = dict[tuple[State, str], State]

_SERVER_COMMON: Table = {
    (S.COLLECTING, "close_uploads"): S.RESENDING,
    (S.RESENDING, "close_uploads"): S.CLOSED,
    (S.CLOSED, "abandon"): S.IDLE,
    (S.COLLECTING, "abandon"): S.IDLE,
    (S.RESENDING, "abandon"): S.IDLE,
}

_PLAIN_SERVER: Table = {
    **_SERVER_COMMON,
    (S.IDLE, "start_round"): S.COLLECTING,
    (S.DONE, "start_round"): S.COLLECTING,
    (S.COLLECTING, "PlainUpload"): S.COLLECTING,
    (S.RESENDING, "PlainUpload"): S.RESENDING,
    (S.CLOSED, "finish_round"): S.DONE,
}
_PLAIN_CLIENT: Table = {
    (S.IDLE, "encode"): S.SENT,
    (S.SENT, "encode"): S.SENT,
    (S.SENT, "ResendRequest"): S.SENT,
}

TRANSITIONS: dict[tuple[str, Role], Table] = {
    ("plain", Role.SERVER): _PLAIN_SERVER,
    ("plain", Role.CLIENT): _PLAIN_CLIENT,
    ("plain", Role.KDC): {},
}


def next_state(protocol: str, role: Role, state: State, event: str) -> State | None:
    """The state after ``event``, or None where the pair is illegal."""
    return TRANSITIONS[protocol, role].get((state, event))


def step(protocol: str, role: Role, state: State, event: str | Step, *, culprit: object = None) -> State:
    """The state after ``event``. An illegal message is the peer's fault, an illegal local step the caller's."""
    name = event.value if isinstance(event, Step) else event
    after = next_state(protocol, role, state, name)
    if after is not None:
        return after
    text = f"{protocol} {role.value} is {state.value}: {name} is not possible now"
    if isinstance(event, Step):
        raise UsageError(text)
    raise SequenceError(text, culprits=() if culprit is None else (culprit,))
