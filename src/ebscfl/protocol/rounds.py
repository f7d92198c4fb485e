"""Round ids: the training round and the attempt at it, in one integer that only grows.

Keys belong to a round id and are used once, so a round that starts over (a crash, a missing client) takes a fresh id:
the next attempt at the same training round. The key centre of `sealed` releases one attempt of a training round at
most. Otherwise a server could say "the round failed, send it again" after the release, and the difference of two sums
of the same updates over two sets of clients would show what one client sent.
"""

from __future__ import annotations

from ebscfl.errors import UsageError

ATTEMPT_BITS = 16
LARGEST_ROUND_ID = (1 << 63) - 1
"""Ids are signed 64-bit integers in the stores."""


def round_id_of(training_round: int, attempt: int = 0) -> int:
    """The id of an attempt at a training round."""
    if training_round < 0 or training_round > LARGEST_ROUND_ID >> ATTEMPT_BITS:
        raise UsageError(f"training round {training_round} is out of range")
    if not 0 <= attempt < 1 << ATTEMPT_BITS:
        raise UsageError(f"attempt {attempt} at training round {training_round} is out of range")
    return training_round << ATTEMPT_BITS | attempt


def training_round_of(round_id: int) -> int:
    """Which training round an id belongs to."""
    return round_id >> ATTEMPT_BITS


def next_round_id(training_round: int, newest: int) -> int:
    """The first unused id of ``training_round`` when ``newest`` is the last id that was used (-1: none)."""
    first = round_id_of(training_round)
    if newest < first:
        return first
    if training_round_of(newest) > training_round:
        raise UsageError(f"training round {training_round} is over: round {training_round_of(newest)} has begun")
    return round_id_of(training_round, (newest & ((1 << ATTEMPT_BITS) - 1)) + 1)
