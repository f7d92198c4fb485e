"""A small TCP proxy that breaks what passes through it: late, cut, corrupted, doubled or refused connections.

It sees TLS bytes only, as any network does. So a corrupted or repeated piece is not a false message but a broken
connection, and what is tested is that both ends notice and repeat the request.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
import time
from collections.abc import Callable


class Fault(enum.Enum):
    """What happens to one piece of data on its way."""

    NONE = "none"
    DELAY = "delay"  # it comes late
    DROP = "drop"  # it never comes, and the connection is cut
    CORRUPT = "corrupt"  # one bit of it changes
    DUPLICATE = "duplicate"  # it comes twice
    CUT = "cut"  # half of it comes, then the connection ends


Plan = Callable[[int, str], Fault]
"""(number of the piece counted over all connections, "up" or "down") -> what happens to it."""


class FaultProxy:
    """Listens on a port of its own and passes everything to ``port`` according to a plan."""

    def __init__(self, port: int, plan: Plan, *, delay_s: float = 0.2) -> None:
        self._target = ("127.0.0.1", port)
        self._plan = plan
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._pieces = 0
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.injected: list[Fault] = []
        threading.Thread(target=self._accept, name="proxy-accept", daemon=True).start()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            self._end(sock)

    @property
    def port(self) -> int:
        """Where to connect instead."""
        return int(self._listener.getsockname()[1])

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(self._target, timeout=5.0)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._open |= {near, far}
            for source, sink, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pass, args=(source, sink, way), name=f"proxy-{way}", daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._deliver(sink, data, self._next(way)):
                    break
        self._end(source)
        self._end(sink)

    def _next(self, way: str) -> Fault:
        with self._lock:
            fault = self._plan(self._pieces, way)
            self._pieces += 1
            if fault is not Fault.NONE:
                self.injected.append(fault)
            return fault

    def _deliver(self, sink: socket.socket, data: bytes, fault: Fault) -> bool:
        """Pass a piece on; False ends the connection."""
        if fault is Fault.DROP:
            return False
        if fault is Fault.DELAY:
            time.sleep(self._delay_s)
        if fault is Fault.CORRUPT:
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        if fault is Fault.CUT:
            sink.sendall(data[: len(data) // 2])
            return False
        sink.sendall(data)
        if fault is Fault.DUPLICATE:
            sink.sendall(data)
        return True

    def _end(self, sock: socket.socket) -> None:
        self._open.discard(sock)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
