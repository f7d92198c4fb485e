"""The key centre's service: TLS connections in, one role behind one lock, answers out.

The role (`ebscfl.protocol.<name>.kdc`) is driven unchanged. This file adds what a network needs around it: who the peer
is (its certificate, never its message), each request acted on once, messages for others kept until they are fetched,
and a role rebuilt from its store when the store fails under it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Any

from ebscfl import rng
from ebscfl.errors import DataError, DecodeError, ProtocolError, VerificationError
from ebscfl.ids import Address, Role
from ebscfl.kdc_service.certificates import peer_address
from ebscfl.kdc_service.frames import Kind, Reply, Request, Status, read_request, send_reply
from ebscfl.kdc_service.limits import CLIENT_BYTES, ConnectionLimiter, Limits, RateLimiter, check_kind, message_limit
from ebscfl.kdc_service.metrics import Metrics
from ebscfl.protocol import codec
from ebscfl.protocol.roles import KdcRole, Setup

LOG = logging.getLogger("ebscfl.kdc")


@dataclass(frozen=True)
class HostedRole:
    """A key-centre role with what the service must know about its memory."""

    role: KdcRole
    newest_round: Callable[[], int]
    complaint: Callable[[], str | None]  # why the server is no longer served
    enrolled: Callable[[], int]
    admit: Callable[[bytes], None]  # raises ProtocolError on a message the role may not see again
    describe: Callable[[], dict[str, Any]]  # for the operator; nothing secret
    close: Callable[[], None]


@dataclass
class _Session:
    """The newest session of one peer and its last answer."""

    session: int
    number: int = 0
    reply: Reply | None = None


class KdcService:
    """Serves until stopped. ``make_role`` is called at the start and again whenever the store failed."""

    def __init__(
        self,
        setup: Setup,
        make_role: Callable[[], HostedRole],
        context: ssl.SSLContext,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        publish: Callable[[dict[str, Any]], None] = lambda state: None,
    ) -> None:
        self.setup = setup
        self.limits = limits or Limits()
        self.metrics = metrics or Metrics()
        self.incarnation = int.from_bytes(rng.os_random(8), "little")
        self._make_role = make_role
        self._publish = publish
        self._published: tuple[object, ...] = ()
        self._hosted: HostedRole | None = make_role()
        self._context = context
        self._lock = threading.Lock()  # one message at a time: the role is a state machine
        self._rate = RateLimiter(self.limits)
        self._count = ConnectionLimiter(self.limits)
        self._sessions: dict[Address, _Session] = {}
        self._next_session = 1
        self._mail: dict[Address, dict[str, bytes]] = {}
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((host, port), backlog=128)
        self._thread = threading.Thread(target=self._accept, name="kdc-accept", daemon=True)
        self._stopping = False
        self.held: IO[str] | None = None  # a lock file, given back when the service stops
        self._gauges()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and the store."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if self._hosted is not None:
                self._hosted.close()
                self._hosted = None
        if self.held is not None:
            self.held.close()

    def complaint(self) -> str | None:
        """What the health page says: None while everything is well."""
        with self._lock:
            if self._hosted is None:
                return "the store cannot be used"
            return self._hosted.complaint()

    # --- connections ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._stopping:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return  # stopped
            if not self._count.enter():
                self.metrics.add("ebscfl_kdc_refused_connections_total", reason="too many")
                raw.close()
                continue
            self.metrics.put("ebscfl_kdc_connections", self._count.open)
            threading.Thread(target=self._connection, args=(raw,), name="kdc-connection", daemon=True).start()

    def _connection(self, raw: socket.socket) -> None:
        sock = raw
        try:
            self._open.add(raw)
            raw.settimeout(self.limits.handshake_s)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # an answer is small and must not wait for an ACK
            # In this thread: a slow peer holds up nobody.
            sock = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            self._open.add(sock)
            sock.do_handshake()
            peer = peer_address(sock.getpeercert(), self.setup.run_id)
            sock.settimeout(self.limits.idle_s)
            self._serve(peer, sock)
        except ssl.SSLError as error:
            self._refused("certificate or TLS", error)
            self._open.discard(sock)
            sock = _drained(sock)
        except ProtocolError as error:
            self._refused("not a party", error)
            self._turn_away(sock, Reply(Status.REFUSED, text=str(error)))
        except OSError as error:
            LOG.debug("connection ended: %s", error)
        except (AttributeError, ValueError):
            if not self._stopping:  # a stop closes sockets under their threads, and Python's lose their TLS half
                raise
        finally:
            self._open -= {raw, sock}
            sock.close()
            self._count.leave()
            self.metrics.put("ebscfl_kdc_connections", self._count.open)

    def _refused(self, reason: str, error: Exception) -> None:
        self.metrics.add("ebscfl_kdc_refused_connections_total", reason=reason)
        LOG.warning("connection refused: %s", error)

    def _turn_away(self, sock: socket.socket, reply: Reply) -> None:
        """Say why, once the peer has asked: closing on an unread request would take the answer with it."""
        with contextlib.suppress(OSError, ProtocolError):
            sock.settimeout(2.0)
            read_request(sock, limit=CLIENT_BYTES)
            send_reply(sock, reply)

    def _serve(self, peer: Address, sock: socket.socket) -> None:
        if peer.role is Role.CLIENT and peer.client >= self.setup.num_clients:
            raise VerificationError(f"{peer} is outside the run's {self.setup.num_clients} clients")
        if not self._count.enter_as(peer):
            self.metrics.add("ebscfl_kdc_refused_connections_total", reason="too many of one peer")
            self._turn_away(sock, Reply(Status.SLOW_DOWN, text=f"too many connections of {peer}"))
            return
        try:
            limit = message_limit(self.setup, peer)
            while (request := read_request(sock, limit=limit)) is not None:
                send_reply(sock, self.answer(peer, request))
        except DecodeError as error:  # there is no telling where the next request begins: answer and hang up
            send_reply(sock, Reply(Status.REFUSED, text=str(error)))
            with contextlib.suppress(OSError):
                sock.settimeout(1.0)
                sock.recv(1 << 16)  # closing on unread bytes would take the answer with it
            self._refused("not a request", error)
        finally:
            self._count.leave_as(peer)

    # --- requests ---------------------------------------------------------------------------------------------------

    def answer(self, peer: Address, request: Request) -> Reply:
        """The reply to one request of an authenticated peer."""
        started = time.perf_counter()
        if not self._rate.allow(peer):
            reply = Reply(Status.SLOW_DOWN, text=f"{peer} asks too often")
        else:
            with self._lock:
                reply = self._in_order(peer, request)
        self.metrics.observe(time.perf_counter() - started)
        kind, status = request.kind.name.lower(), reply.status.name.lower()
        self.metrics.add("ebscfl_kdc_requests_total", party=peer.role_name, kind=kind, status=status)
        self.metrics.add("ebscfl_kdc_bytes_total", len(request.message), direction="in")
        self.metrics.add("ebscfl_kdc_bytes_total", sum(map(len, reply.messages)), direction="out")
        return replace(reply, incarnation=self.incarnation)

    def _in_order(self, peer: Address, request: Request) -> Reply:
        """Sessions and numbers: a request acts once, a superseded peer not at all."""
        if request.kind is Kind.HELLO:
            return self._hello(peer)
        state = self._sessions.get(peer)
        if state is None:
            return Reply(Status.UNKNOWN_SESSION, text="say HELLO first")
        if request.session != state.session:
            return Reply(Status.SUPERSEDED, text=f"another process speaks for {peer} now; this one must stop")
        if request.number == state.number and state.reply is not None:
            return state.reply
        if request.number < state.number:
            return Reply(Status.REFUSED, text=f"request {request.number} comes after request {state.number}")
        reply = self._collect(peer) if request.kind is Kind.COLLECT else self._say(peer, request.message)
        if reply.status in (Status.OK, Status.REFUSED):
            state.number, state.reply = request.number, reply
        return reply

    def _hello(self, peer: Address) -> Reply:
        hosted = self._role()
        if hosted is None:
            return Reply(Status.UNAVAILABLE, text="the store cannot be used")
        session, self._next_session = self._next_session, self._next_session + 1
        self._sessions[peer] = _Session(session)
        return Reply(Status.OK, session=session, newest_round=hosted.newest_round())

    def _collect(self, peer: Address) -> Reply:
        """Everything kept for the peer. It stays: a peer whose answer was lost fetches it again."""
        return Reply(Status.OK, messages=tuple(self._mail.get(peer, {}).values()))

    def _say(self, peer: Address, message: bytes) -> Reply:
        hosted = self._role()
        if hosted is None:
            return Reply(Status.UNAVAILABLE, text="the store cannot be used")
        try:
            check_kind(peer, message)
            hosted.admit(message)
            hosted.role.culprits.clear()
            outgoing = hosted.role.receive(peer, message)
        except ProtocolError as error:
            self.metrics.add("ebscfl_kdc_faults_total", culprit=str(peer))
            return Reply(Status.REFUSED, text=str(error))
        except (sqlite3.Error, OSError) as error:
            return self._store_failed(error)
        for culprit in hosted.role.culprits:
            self.metrics.add("ebscfl_kdc_faults_total", culprit=str(culprit))
        mine = []
        for to, what in outgoing:
            data = codec.encode(what, self.setup.run_id)
            if to == peer:
                mine.append(data)
            else:
                box = self._mail.setdefault(to, {})
                box.pop(type(what).__name__, None)  # only the newest of a kind is of use; order is that of arrival
                box[type(what).__name__] = data
        self._gauges()
        if not outgoing and peer in hosted.role.culprits:
            return Reply(Status.REFUSED, text=hosted.role.culprits[peer])
        return Reply(Status.OK, messages=tuple(mine))

    # --- the role's memory ------------------------------------------------------------------------------------------

    def _store_failed(self, error: Exception) -> Reply:
        """Nothing was answered, so nothing is lost: forget the role and read the store again next time."""
        LOG.error("the store failed: %s", error)
        if self._hosted is not None:
            with contextlib.suppress(sqlite3.Error):
                self._hosted.close()
        self._hosted = None
        return Reply(Status.UNAVAILABLE, text=f"the store cannot be written: {error}")

    def _role(self) -> HostedRole | None:
        if self._hosted is None and not self._stopping:
            try:
                self._hosted = self._make_role()
                self.metrics.add("ebscfl_kdc_restarts_of_role_total")
            except (DataError, sqlite3.Error, OSError) as error:
                LOG.error("the store cannot be opened: %s", error)
        return self._hosted

    def _gauges(self) -> None:
        if self._hosted is not None:
            hosted = self._hosted
            enrolled, newest, complaint = hosted.enrolled(), hosted.newest_round(), hosted.complaint()
            self.metrics.put("ebscfl_kdc_enrolled", enrolled)
            self.metrics.put("ebscfl_kdc_newest_round", newest)
            self.metrics.put("ebscfl_kdc_halted", complaint is not None)
            if (enrolled, newest, complaint) != self._published:
                self._published = (enrolled, newest, complaint)
                self._publish(hosted.describe())


def _drained(sock: socket.socket) -> socket.socket:
    """The bare connection of a failed handshake, read out: closing on unread bytes would take the alert with it."""
    bare = socket.socket(fileno=sock.detach())
    with contextlib.suppress(OSError):
        bare.shutdown(socket.SHUT_WR)
        bare.settimeout(1.0)
        for _ in range(8):
            if not bare.recv(1 << 12):
                break
    return bare
