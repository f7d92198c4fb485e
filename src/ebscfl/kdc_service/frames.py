"""One exchange with the key centre on a socket: a fixed header, then messages in the codec's own frames.

    request:  magic "EBSK" | kind u8 | 3 zero bytes | session u64 | number u64, then one message if kind is SAY
    reply:    magic "EBSK" | status u8 | 3 zero bytes | incarnation u64 | session u64 | newest round + 1 u64
              | count u32 | text u16, then ``text`` bytes of UTF-8 (why, when not OK), then ``count`` messages

A HELLO opens a session and ends every earlier one of the same peer. Within it ``number`` orders the requests: the
service acts on a number once and repeats the answer when it is asked again, so a peer may repeat a request whose answer
was lost. ``incarnation`` changes when the service restarts. Lengths are checked before anything is read.
"""

from __future__ import annotations

import enum
import socket
import struct
from dataclasses import dataclass

from ebscfl.errors import DecodeError, EbscflError
from ebscfl.protocol import codec

MAGIC = b"EBSK"
REQUEST = struct.Struct("<4sB3xQQ")
REPLY = struct.Struct("<4sB3xQQQIH")
MAX_MESSAGES = 64
"""Messages in one reply: the longest, the paper's first deal, has five."""


class KdcUnavailable(EbscflError):
    """The key centre cannot be reached or cannot answer now; asking again later is safe."""


class Kind(enum.IntEnum):
    """What a request asks."""

    HELLO = 1  # open a session; tells who answers, and the newest round
    SAY = 2  # one message for the role
    COLLECT = 3  # the messages kept for the caller


class Status(enum.IntEnum):
    """How a request was taken."""

    OK = 0
    REFUSED = 1  # never ask that again
    SLOW_DOWN = 2  # over the rate limit: wait
    UNAVAILABLE = 3  # the key centre cannot keep its state now (disk full): nothing was done
    SUPERSEDED = 4  # a newer session of the same peer has taken over
    UNKNOWN_SESSION = 5  # the service restarted: say HELLO first


@dataclass(frozen=True)
class Request:
    """What a peer asks."""

    kind: Kind
    session: int
    number: int
    message: bytes = b""


@dataclass(frozen=True)
class Reply:
    """What the key centre answers."""

    status: Status
    incarnation: int = 0
    session: int = 0
    newest_round: int = -1
    text: str = ""
    messages: tuple[bytes, ...] = ()


def send_request(sock: socket.socket, request: Request) -> None:
    """Write a request."""
    sock.sendall(REQUEST.pack(MAGIC, request.kind, request.session, request.number) + request.message)


def read_request(sock: socket.socket, *, limit: int) -> Request | None:
    """The next request, or None when the peer closed the connection between two of them."""
    first = sock.recv(1)
    if not first:
        return None
    magic, kind, session, number = REQUEST.unpack(first + read_exactly(sock, REQUEST.size - 1))
    if magic != MAGIC or kind not in Kind.__members__.values():
        raise DecodeError("this is not a request to a key centre")
    message = read_message(sock, limit=limit) if kind == Kind.SAY else b""
    return Request(Kind(kind), session, number, message)


def send_reply(sock: socket.socket, reply: Reply) -> None:
    """Write a reply."""
    text = reply.text.encode()[:500]
    identity = (reply.incarnation, reply.session, reply.newest_round + 1)
    sock.sendall(REPLY.pack(MAGIC, reply.status, *identity, len(reply.messages), len(text)) + text)
    for message in reply.messages:
        sock.sendall(message)


def read_reply(sock: socket.socket, *, limit: int = codec.MAX_MESSAGE_BYTES) -> Reply:
    """The answer to a request."""
    magic, status, incarnation, session, newest, count, length = REPLY.unpack(read_exactly(sock, REPLY.size))
    if magic != MAGIC or status not in Status.__members__.values() or count > MAX_MESSAGES or length > 500:
        raise DecodeError("this is not a key centre's reply")
    text = read_exactly(sock, length).decode(errors="replace")
    messages = tuple(read_message(sock, limit=limit) for _ in range(count))
    return Reply(Status(status), incarnation, session, newest - 1, text, messages)


def read_message(sock: socket.socket, *, limit: int) -> bytes:
    """One message in the codec's frame; an announced length over ``limit`` is refused before reading on."""
    header = read_exactly(sock, codec.HEADER.size)
    return header + read_exactly(sock, codec.body_length(header, limit=limit))


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """``size`` bytes; memory grows with what really arrives."""
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError(f"the connection ended after {len(parts)} of {size} bytes")
        parts += part
    return bytes(parts)
