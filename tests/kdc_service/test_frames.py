"""Requests and replies survive the socket; lies about lengths do not get memory."""

from __future__ import annotations

import socket
import struct

import pytest

from ebscfl.errors import DecodeError
from ebscfl.kdc_service.frames import (
    MAGIC,
    REPLY,
    REQUEST,
    Kind,
    Reply,
    Request,
    Status,
    read_reply,
    read_request,
    send_reply,
    send_request,
)
from ebscfl.protocol import codec
from ebscfl.protocol.messages import OpenRound

MESSAGE = codec.encode(OpenRound(7, (1, 2, 3)), bytes(8))


@pytest.fixture
def pair():
    one, two = socket.socketpair()
    yield one, two
    one.close()
    two.close()


@pytest.mark.parametrize(
    "request_", [Request(Kind.HELLO, 0, 0), Request(Kind.SAY, 2**64 - 1, 2**63, MESSAGE), Request(Kind.COLLECT, 1, 2)]
)
def test_requests(pair, request_):
    send_request(pair[0], request_)
    assert read_request(pair[1], limit=1000) == request_


@pytest.mark.parametrize(
    "reply",
    [Reply(Status.OK, 5, 6, -1), Reply(Status.REFUSED, text="warum? ß"), Reply(Status.OK, 1, 2, 3, "", (MESSAGE,) * 3)],
)
def test_replies(pair, reply):
    send_reply(pair[0], reply)
    assert read_reply(pair[1]) == reply


def test_a_closed_connection_is_no_request(pair):
    pair[0].close()
    assert read_request(pair[1], limit=1000) is None


@pytest.mark.parametrize("cut", [1, REQUEST.size, REQUEST.size + 5, REQUEST.size + len(MESSAGE) - 1])
def test_a_torn_request_is_a_lost_connection(pair, cut):
    whole = REQUEST.pack(MAGIC, Kind.SAY, 1, 1) + MESSAGE
    pair[0].sendall(whole[:cut])
    pair[0].close()
    with pytest.raises(ConnectionResetError):
        read_request(pair[1], limit=1000)


def test_lies_are_refused_before_anything_is_read(pair):
    huge = bytearray(MESSAGE)
    struct.pack_into("<Q", huge, codec.HEADER.size - 8, 1 << 33)
    for wrong in (
        REQUEST.pack(b"HTTP", Kind.HELLO, 0, 0),
        REQUEST.pack(MAGIC, 99, 0, 0),
        REQUEST.pack(MAGIC, Kind.SAY, 0, 0) + huge[: codec.HEADER.size],
    ):
        pair[0].sendall(wrong)
        with pytest.raises(DecodeError):
            read_request(pair[1], limit=1000)
    pair[1].sendall(REPLY.pack(MAGIC, Status.OK, 0, 0, 0, 10_000, 0))
    with pytest.raises(DecodeError):
        read_reply(pair[0])
