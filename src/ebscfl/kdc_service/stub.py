"""The other end of the key centre's service: what a server or client process holds to talk to it.

Calls come back with an answer or raise: `KdcUnavailable` when the key centre stayed away for ``patience_s``,
`VerificationError` when it (or its certificate) refuses us for good. In between the stub reconnects and repeats the
same request; the service acts on it once.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from dataclasses import dataclass

from ebscfl.errors import DecodeError, VerificationError
from ebscfl.ids import KDC
from ebscfl.kdc_service.certificates import peer_address
from ebscfl.kdc_service.frames import KdcUnavailable, Kind, Reply, Request, Status, read_reply, send_request

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
REFUSING_ALERTS = ("CERTIFICATE", "UNKNOWN_CA")
"""TLS alerts that say our certificate is not accepted; any other alert is a damaged connection."""


@dataclass(frozen=True)
class Patience:
    """How long to wait."""

    connect_s: float = 10.0
    answer_s: float = 120.0  # of one attempt
    in_all_s: float = 120.0  # over all attempts


class KdcStub:
    """One peer's line to the key centre; not for several threads at once."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext, run_id: bytes, *, patience: Patience | None = None
    ) -> None:
        self._address = (host, port)
        self._context = context
        self._run_id = run_id
        self._patience = patience or Patience()
        self._sock: ssl.SSLSocket | None = None
        self._session = 0
        self._number = 0
        self.incarnation = 0
        self.newest_round = -1
        self.retries = 0

    def __enter__(self) -> KdcStub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock = None

    def hello(self) -> int:
        """Open a session, ending any other of the same name; returns the newest round the key centre knows."""
        self._session = 0
        self._ask(Kind.HELLO)
        return self.newest_round

    def say(self, message: bytes) -> tuple[bytes, ...]:
        """Hand over one message; returns the key centre's messages in answer to it."""
        return self._ask(Kind.SAY, message).messages

    def collect(self) -> tuple[bytes, ...]:
        """The messages the key centre keeps for us."""
        return self._ask(Kind.COLLECT).messages

    def _ask(self, kind: Kind, message: bytes = b"") -> Reply:
        deadline = time.monotonic() + self._patience.in_all_s
        pause = FIRST_PAUSE_S
        self._number += 1
        while True:
            try:
                reply = self._attempt(kind, message)
                why = reply.text
                if reply.status is Status.OK:
                    return reply
                if reply.status in (Status.REFUSED, Status.SUPERSEDED):
                    raise VerificationError(f"the key centre refuses: {reply.text}")
                if reply.status is Status.UNKNOWN_SESSION:
                    self._session = 0  # it restarted; the next attempt opens a session first
            except ssl.SSLCertVerificationError as error:
                raise VerificationError(
                    f"the key centre's certificate is not good: {error}", culprits=(KDC,)
                ) from error
            except ssl.SSLError as error:
                if any(word in (error.reason or "") for word in REFUSING_ALERTS):
                    raise VerificationError(f"the key centre does not accept our certificate: {error}") from error
                why = self._lost(error)
            except (OSError, DecodeError) as error:
                why = self._lost(error)
            if time.monotonic() + pause > deadline:
                host, port = self._address
                raise KdcUnavailable(f"the key centre at {host}:{port} does not answer: {why}")
            self.retries += 1
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _attempt(self, kind: Kind, message: bytes) -> Reply:
        if self._sock is None:
            self._sock = self._connect()
        if self._session == 0:
            hello = self._exchange(Request(Kind.HELLO, 0, 0))
            if hello.status is not Status.OK:
                return hello
            self._session, self.incarnation, self.newest_round = hello.session, hello.incarnation, hello.newest_round
            if kind is Kind.HELLO:
                return hello
        return self._exchange(Request(kind, self._session, self._number, message))

    def _connect(self) -> ssl.SSLSocket:
        raw = socket.create_connection(self._address, timeout=self._patience.connect_s)
        with contextlib.ExitStack() as undo:
            undo.callback(raw.close)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = self._context.wrap_socket(raw, server_hostname=self._address[0])  # takes raw's place
            undo.callback(sock.close)
            if peer_address(sock.getpeercert(), self._run_id) != KDC:
                raise VerificationError("the other end is not this run's key centre", culprits=(KDC,))
            sock.settimeout(self._patience.answer_s)
            undo.pop_all()
        return sock

    def _exchange(self, request: Request) -> Reply:
        assert self._sock is not None
        send_request(self._sock, request)
        return read_reply(self._sock)

    def _lost(self, error: Exception) -> str:
        self.close()
        return str(error) or type(error).__name__
