"""Messages to bytes and back: one strict, versioned format for every protocol and transport.

    magic "EBSC" | version u8 | message code u8 | reserved u16 = 0 | run tag, 8 bytes | body length u64 | body

Decoding is strict: unknown version or code, another run's tag, a wrong length, non-zero padding, a value its field kind
refuses, or a single byte left over is a `DecodeError`. Nothing is allocated from an announced length.
"""

from __future__ import annotations

import dataclasses
import struct

from ebscfl.errors import DecodeError, UsageError
from ebscfl.protocol import messages_secagg as _registers_the_comparators  # noqa: F401
from ebscfl.protocol.messages import MESSAGE_BY_CODE, Message
from ebscfl.protocol.wire import Reader, Writer

MAGIC = b"EBSC"
VERSION = 1
CODE_AT = 5
RUN_TAG_SIZE = 8
HEADER = struct.Struct("<4sBBH8sQ")
MAX_MESSAGE_BYTES = 1 << 34
"""No message is longer: sixteen GiB, far above the largest key package of a sane configuration."""


def encode(message: Message, run_tag: bytes) -> bytes:
    """The wire form of ``message`` within the run ``run_tag``."""
    if len(run_tag) != RUN_TAG_SIZE:
        raise UsageError(f"a run tag has {RUN_TAG_SIZE} bytes, not {len(run_tag)}")
    out = Writer()
    out.put(bytes(HEADER.size))  # so that alignment counts from the start of the message
    for field in dataclasses.fields(message):
        field.metadata["wire"].write(getattr(message, field.name), out)
    out.parts[0] = HEADER.pack(MAGIC, VERSION, message.code, 0, run_tag, out.size - HEADER.size)
    return b"".join(out.parts)


def body_length(header: bytes | bytearray, *, limit: int = MAX_MESSAGE_BYTES) -> int:
    """How many bytes follow a header: what a transport asks before it reads on."""
    if len(header) != HEADER.size:
        raise DecodeError(f"a header has {HEADER.size} bytes, not {len(header)}")
    magic, version, _, reserved, _, length = HEADER.unpack(header)
    if magic != MAGIC or reserved != 0:
        raise DecodeError("these bytes are not an ebscfl message")
    if version != VERSION:
        raise DecodeError(f"message format version {version}, this side speaks {VERSION}")
    if length + HEADER.size > limit:
        raise DecodeError(f"message of {length} bytes is over the limit of {limit}")
    return int(length)


def peek(data: bytes | bytearray) -> type[Message] | None:
    """Which message ``data`` says it is, unchecked; None if it says nothing known."""
    return MESSAGE_BY_CODE.get(data[CODE_AT]) if len(data) > CODE_AT and data[: len(MAGIC)] == MAGIC else None


def decode(data: bytes | bytearray, run_tag: bytes, *, limit: int = MAX_MESSAGE_BYTES) -> Message:
    """The message in ``data``, valid by construction; anything else raises `DecodeError`."""
    length = body_length(data[: HEADER.size], limit=limit)
    _, _, code, _, tag, _ = HEADER.unpack(data[: HEADER.size])
    if tag != run_tag:
        raise DecodeError("message belongs to another run")
    if length != len(data) - HEADER.size:
        raise DecodeError(f"body has {len(data) - HEADER.size} bytes, {length} announced")
    kind = MESSAGE_BY_CODE.get(code)
    if kind is None:
        raise DecodeError(f"unknown message code {code}")
    source = Reader(data, HEADER.size)
    values = {field.name: field.metadata["wire"].read(source) for field in dataclasses.fields(kind)}
    if source.remaining:
        raise DecodeError(f"{source.remaining} bytes left over after {kind.__name__}")
    try:
        return kind(**values)
    except UsageError as error:  # the constructor refused a value: on this path the peer chose it
        raise DecodeError(str(error)) from error
