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
    ADVERTISING = "advertising"  # a secure sum's server takes public keys
    SHARING = "sharing"  # it takes encrypted shares for relay
    AWAITING_SHARES = "awaiting shares"  # a secure sum's client has dealt and waits for its peers' shares
    UNMASKING = "unmasking"  # the server takes what opens the sum
    DONE = "done"  # the round's result is there
    SERVING = "serving"  # the key centre answers
    HALTED = "halted"  # the key centre caught the server cheating and serves no more


class Step(enum.Enum):
    """Local steps: events that no message causes."""

    ENROL = "enrol"
    START_ROUND = "start_round"
    ENCODE = "encode"
    CLOSE_KEYS = "close_keys"
    CLOSE_SHARES = "close_shares"
    CLOSE_UPLOADS = "close_uploads"
    FINISH_ROUND = "finish_round"
    RESUME_RELEASE = "resume_release"
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

_PAPER_SERVER: Table = {
    **_SERVER_COMMON,
    (S.IDLE, "start_round"): S.AWAITING_KEYS,
    (S.DONE, "start_round"): S.AWAITING_KEYS,
    (S.AWAITING_KEYS, "abandon"): S.IDLE,
    (S.AWAITING_KEYS, "ServerKeyPackage"): S.AWAITING_KEYS,
    (S.AWAITING_KEYS, "ScoringKey"): S.AWAITING_KEYS,
    (S.AWAITING_KEYS, "DenseScoringKey"): S.AWAITING_KEYS,
    (S.AWAITING_KEYS, "RoundVerification"): S.COLLECTING,
    (S.AWAITING_KEYS, "Refusal"): S.AWAITING_KEYS,
    (S.COLLECTING, "EncodedUpdate"): S.COLLECTING,
    (S.RESENDING, "EncodedUpdate"): S.RESENDING,
    (S.CLOSED, "finish_round"): S.DONE,
}
_PAPER_CLIENT: Table = {
    (S.IDLE, "ClientKeyPackage"): S.AWAITING_KEYS,
    (S.AWAITING_KEYS, "RoundKey"): S.READY,
    (S.READY, "RoundKey"): S.READY,
    (S.READY, "ClientKeyPackage"): S.AWAITING_KEYS,
    (S.READY, "encode"): S.SENT,
    (S.SENT, "ResendRequest"): S.SENT,
    (S.SENT, "RoundKey"): S.READY,
    (S.SENT, "ClientKeyPackage"): S.AWAITING_KEYS,
}
_PAPER_KDC: Table = {
    (S.SERVING, "ServerUpdates"): S.SERVING,
    (S.SERVING, "OpenRound"): S.SERVING,
}

_SEALED_SERVER: Table = {
    **_SERVER_COMMON,
    (S.IDLE, "start_round"): S.AWAITING_KEYS,
    (S.DONE, "start_round"): S.AWAITING_KEYS,
    (S.IDLE, "resume_release"): S.RELEASING,  # after a crash between the request and the release
    (S.AWAITING_KEYS, "RoundOpened"): S.COLLECTING,
    (S.AWAITING_KEYS, "Refusal"): S.AWAITING_KEYS,
    (S.AWAITING_KEYS, "abandon"): S.IDLE,
    (S.COLLECTING, "RoundOpened"): S.COLLECTING,  # asked twice, answered twice
    (S.COLLECTING, "SealedUpload"): S.COLLECTING,
    (S.RESENDING, "SealedUpload"): S.RESENDING,
    (S.COLLECTING, "ScoreAnswer"): S.COLLECTING,
    (S.RESENDING, "ScoreAnswer"): S.RESENDING,
    (S.CLOSED, "ScoreAnswer"): S.CLOSED,
    (S.RELEASING, "ScoreAnswer"): S.RELEASING,  # a repeated answer that took its time
    (S.COLLECTING, "Refusal"): S.COLLECTING,
    (S.RESENDING, "Refusal"): S.RESENDING,
    (S.CLOSED, "Refusal"): S.CLOSED,
    (S.CLOSED, "finish_round"): S.RELEASING,
    (S.RELEASING, "Release"): S.DONE,
    (S.RELEASING, "Refusal"): S.IDLE,
    (S.RELEASING, "abandon"): S.IDLE,
}
_SEALED_CLIENT: Table = {
    (S.IDLE, "enrol"): S.AWAITING_KEYS,
    (S.AWAITING_KEYS, "enrol"): S.AWAITING_KEYS,  # the answer was lost
    (S.AWAITING_KEYS, "Enrolment"): S.READY,
    (S.READY, "Enrolment"): S.READY,
    (S.AWAITING_KEYS, "Refusal"): S.IDLE,
    (S.READY, "encode"): S.SENT,
    (S.SENT, "encode"): S.SENT,
    (S.SENT, "ResendRequest"): S.SENT,
}
_SEALED_KDC: Table = {
    (S.SERVING, "EnrolRequest"): S.SERVING,
    (S.SERVING, "Commitment"): S.SERVING,
    (S.SERVING, "OpenRound"): S.SERVING,
    (S.SERVING, "ScoreRequest"): S.SERVING,
    (S.SERVING, "ReleaseRequest"): S.SERVING,
    (S.SERVING, "catch"): S.HALTED,
    # A halted key centre still answers the server, with a refusal, and still takes no part in anything.
    (S.HALTED, "Commitment"): S.HALTED,
    (S.HALTED, "OpenRound"): S.HALTED,
    (S.HALTED, "ScoreRequest"): S.HALTED,
    (S.HALTED, "ReleaseRequest"): S.HALTED,
}

# --- secure sums: "secagg" also stands for SecAgg+ and CCESA, whose graph is all that differs ---

_SUM_SERVER_COMMON: Table = {
    (S.IDLE, "start_round"): S.ADVERTISING,
    (S.DONE, "start_round"): S.ADVERTISING,
    (S.ADVERTISING, "PublicKeys"): S.ADVERTISING,
    (S.COLLECTING, "close_uploads"): S.UNMASKING,
    (S.UNMASKING, "finish_round"): S.DONE,
    (S.ADVERTISING, "abandon"): S.IDLE,
    (S.COLLECTING, "abandon"): S.IDLE,
    (S.UNMASKING, "abandon"): S.IDLE,
}
_DEALING_SERVER: Table = {
    **_SUM_SERVER_COMMON,
    (S.ADVERTISING, "close_keys"): S.SHARING,
    (S.SHARING, "ShareBundle"): S.SHARING,
    (S.SHARING, "close_shares"): S.COLLECTING,
    (S.SHARING, "abandon"): S.IDLE,
    (S.COLLECTING, "MaskedInput"): S.COLLECTING,
}
_SECAGG_SERVER: Table = {**_DEALING_SERVER, (S.UNMASKING, "UnmaskShares"): S.UNMASKING}
_LIGHT_SERVER: Table = {
    **_DEALING_SERVER,
    (S.UNMASKING, "ShareSum"): S.UNMASKING,
    (S.UNMASKING, "ShareComplaint"): S.UNMASKING,
}
_FAST_SERVER: Table = {
    **_SUM_SERVER_COMMON,
    (S.ADVERTISING, "close_keys"): S.COLLECTING,
    (S.COLLECTING, "ShareBundle"): S.COLLECTING,
    (S.UNMASKING, "ShareSum"): S.UNMASKING,
    (S.UNMASKING, "ShareComplaint"): S.UNMASKING,
}


def _sum_client(deals: bool, last: str) -> Table:
    """A client that deals shares before it knows its input, or shares the input itself; ``last`` is what it answers."""
    invited: Table = {
        (state, "SumInvitation"): S.AWAITING_KEYS
        for state in (S.IDLE, S.AWAITING_KEYS, S.AWAITING_SHARES, S.READY, S.SENT, S.DONE)
        if deals or state is not S.AWAITING_SHARES
    }
    if not deals:
        return {**invited, (S.AWAITING_KEYS, "PeerKeys"): S.READY, (S.READY, "encode"): S.SENT, (S.SENT, last): S.DONE}
    return {
        **invited,
        (S.AWAITING_KEYS, "PeerKeys"): S.AWAITING_SHARES,
        (S.AWAITING_SHARES, "RelayedShares"): S.READY,
        (S.READY, "encode"): S.SENT,
        (S.SENT, last): S.DONE,
    }


TRANSITIONS: dict[tuple[str, Role], Table] = {
    ("plain", Role.SERVER): _PLAIN_SERVER,
    ("plain", Role.CLIENT): _PLAIN_CLIENT,
    ("plain", Role.KDC): {},
    ("paper", Role.SERVER): _PAPER_SERVER,
    ("paper", Role.CLIENT): _PAPER_CLIENT,
    ("paper", Role.KDC): _PAPER_KDC,
    ("sealed", Role.SERVER): _SEALED_SERVER,
    ("sealed", Role.CLIENT): _SEALED_CLIENT,
    ("sealed", Role.KDC): _SEALED_KDC,
    ("secagg", Role.SERVER): _SECAGG_SERVER,
    ("secagg", Role.CLIENT): _sum_client(True, "UnmaskRequest"),
    ("lightsecagg", Role.SERVER): _LIGHT_SERVER,
    ("lightsecagg", Role.CLIENT): _sum_client(True, "ShareSumRequest"),
    ("fastsecagg", Role.SERVER): _FAST_SERVER,
    ("fastsecagg", Role.CLIENT): _sum_client(False, "RelayedShares"),
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
