"""How much one peer may ask: who may send which message, how large, how often, over how many connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ebscfl.errors import ConfigError, DecodeError, SequenceError
from ebscfl.ids import Address, Role
from ebscfl.protocol import codec
from ebscfl.protocol.messages import MESSAGE_BY_CODE
from ebscfl.protocol.roles import Setup

FROM_CLIENTS = frozenset({"EnrolRequest"})
"""All a client ever says to a key centre; everything else a key centre takes comes from the server."""
CLIENT_BYTES = 4096


@dataclass(frozen=True)
class Limits:
    """Bounds of one service; rates are per peer."""

    requests_per_s: float = 200.0
    burst: int = 400
    connections_per_peer: int = 8
    connections: int = 2048
    handshake_s: float = 10.0
    idle_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("requests_per_s", "burst", "connections_per_peer", "connections", "handshake_s", "idle_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"limits.{name} must be positive, not {getattr(self, name)}")


def message_limit(setup: Setup, sender: Address) -> int:
    """Bytes of the longest message ``sender`` has any reason to send."""
    if sender.role is Role.CLIENT:
        return CLIENT_BYTES
    # Root updates are m (l + 1) numbers of at most 8 bytes; sets of clients and batches of products are far smaller.
    return (1 << 20) + 8 * setup.num_clusters * (setup.dim + 1) + 64 * setup.num_clients


def check_kind(sender: Address, message: bytes) -> str:
    """The message's name if ``sender`` may send such a one; looks at the header only."""
    code = codec.HEADER.unpack(message[: codec.HEADER.size])[2]
    kind = MESSAGE_BY_CODE.get(code)
    if kind is None:
        raise DecodeError(f"unknown message code {code}", culprits=(sender,))
    from_client = kind.__name__ in FROM_CLIENTS
    if from_client != (sender.role is Role.CLIENT):
        raise SequenceError(f"{sender} may not send {kind.__name__} to the key centre", culprits=(sender,))
    return kind.__name__


class RateLimiter:
    """A token bucket a peer."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[Address, tuple[float, float]] = {}  # tokens, when

    def allow(self, peer: Address) -> bool:
        """Take one token, or say that there is none."""
        with self._lock:
            now = self._clock()
            tokens, then = self._buckets.get(peer, (float(self._limits.burst), now))
            tokens = min(float(self._limits.burst), tokens + (now - then) * self._limits.requests_per_s)
            allowed = tokens >= 1.0
            self._buckets[peer] = (tokens - allowed, now)
            return allowed


class ConnectionLimiter:
    """Counts open connections, in all and per peer."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._peers: dict[Address, int] = {}
        self._total = 0

    def enter(self) -> bool:
        """Before the handshake: room for one more?"""
        with self._lock:
            if self._total >= self._limits.connections:
                return False
            self._total += 1
            return True

    def leave(self) -> None:
        """The connection is gone."""
        with self._lock:
            self._total -= 1

    def enter_as(self, peer: Address) -> bool:
        """After the handshake: room for one more of this peer?"""
        with self._lock:
            if self._peers.get(peer, 0) >= self._limits.connections_per_peer:
                return False
            self._peers[peer] = self._peers.get(peer, 0) + 1
            return True

    def leave_as(self, peer: Address) -> None:
        """The peer's connection is gone."""
        with self._lock:
            self._peers[peer] -= 1

    @property
    def open(self) -> int:
        """Connections now."""
        return self._total
