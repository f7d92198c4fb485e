"""Every error the package raises on purpose, and who is at fault in each.

    EbscflError                     exit 1
    ├── UsageError                  exit 2   we were called wrongly (argument, shape, dtype)
    ├── ConfigError                 exit 3   the operator's file or --set value
    │   └── CapacityError                    the configuration cannot hold what was asked (headroom, quorum)
    ├── DataError                   exit 4   a data set is missing or corrupt
    ├── CheckpointError             exit 5   a checkpoint is corrupt or belongs to another run
    ├── ProtocolError               exit 6   a peer misbehaved; ``culprits`` names it
    │   ├── DecodeError                      its bytes are not a message
    │   ├── VerificationError                its message fails a check
    │   ├── SequenceError                    its message came at the wrong moment, round, or twice
    │   └── RoundAborted                     too few honest uploads are left to finish the round
    ├── DependencyError             exit 7   an optional extra is not installed
    └── Interrupted                 exit 130 Ctrl-C; the message says how to resume

A check that must not be ignored raises. A role's ``handle`` is the one place that turns a
`ProtocolError` into a named culprit; a bare ``except Exception`` never becomes a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class EbscflError(Exception):
    """Base of all errors below; ``exit_code`` is what the command line returns for it."""

    exit_code: ClassVar[int] = 1


class UsageError(EbscflError):
    """The caller passed something this function cannot take."""

    exit_code = 2


class ConfigError(EbscflError):
    """A configuration file, preset or ``--set`` value is wrong."""

    exit_code = 3


class CapacityError(ConfigError):
    """The configuration asks for more than the scheme can hold without overflow or below quorum."""


class DataError(EbscflError):
    """A data set is missing, incomplete or does not match its checksum."""

    exit_code = 4


class CheckpointError(EbscflError):
    """A checkpoint cannot be read or belongs to a different run."""

    exit_code = 5


class ProtocolError(EbscflError):
    """A peer broke the protocol. ``culprits`` holds the addresses or client ids at fault."""

    exit_code = 6

    def __init__(self, message: str, culprits: Iterable[object] = ()) -> None:
        super().__init__(message)
        self.culprits: tuple[object, ...] = tuple(culprits)


class DecodeError(ProtocolError):
    """Bytes from a peer are not a valid message."""


class VerificationError(ProtocolError):
    """A well-formed message fails a cryptographic or algebraic check."""


class SequenceError(ProtocolError):
    """A message came in the wrong state, for the wrong round, or twice."""


class RoundAborted(ProtocolError):
    """The round cannot be finished: too few verified uploads."""


class DependencyError(EbscflError):
    """An optional dependency is missing; the message names the extra that brings it."""

    exit_code = 7


class Interrupted(EbscflError):
    """The user stopped the run; the message says how to resume it."""

    exit_code = 130
